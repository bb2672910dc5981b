//! `for_each_event`: reads a trace event by event, with an optional progress bar.
//!
//! The verbs of `trace` call this function with a closure for each event. Standard error gets
//! messages about the trace, such as missing files, and at the end the list of damaged files.

use std::io::ErrorKind;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use millrace_trace::{Reader, TraceEntry, TraceNames};

use crate::ProgressBar;

const EVENTS_A_LOOK: u32 = 4_096;
const BAR_EVERY: Duration = Duration::from_millis(100);

/// Passes each event of a reader to `each` until the trace ends or `each` returns `Stop`, and shows
/// the progress in `bar`. A caller that prints lines meanwhile must pass an invisible bar, because
/// the bar would break up lines on the same terminal. Damage in a trace file ends the reading of
/// that file, and is printed and returned, not treated as an error.
pub fn for_each_event(
    reader: &mut Reader,
    (bar, label): (ProgressBar, &str),
    mut each: impl FnMut(&TraceEntry, &mut Reader) -> EventFlow,
) -> Result<EventWalk> {
    let say = |notes: &[String]| notes.iter().for_each(|note| crate::tell!("note: {note}"));
    let known = reader.notes();
    say(&known);
    let mut progress = Progress { bar, label: label.into(), events: 0, shown: Instant::now() };
    while let Some(entry) = reader.read()? {
        if each(&entry, reader) == EventFlow::Stop {
            break;
        }
        progress.event(reader);
    }
    drop(progress);
    let notes = reader.notes();
    say(&notes[known.len()..]);
    let damage = reader.damage().iter().map(ToString::to_string).collect();
    Ok(EventWalk { names: reader.names().clone(), notes, damage: ReadDamage::tell(damage) })
}

/// Result of reading a trace: names of processes and devices, notes, and damaged files.
#[derive(Debug)]
pub struct EventWalk {
    /// Names of the processes and devices in the trace.
    pub names: TraceNames,
    /// Messages of the reader about the trace, such as missing files; already printed to standard
    /// error.
    pub notes: Vec<String>,
    /// Files that could not be read to the end, a line of text for each.
    pub damage: ReadDamage,
}

/// Damaged files of a trace, one line for each with the position and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct ReadDamage(Vec<String>);

impl ReadDamage {
    /// Prints each line of `damage`, one for each damaged file, to standard error.
    pub fn tell(damage: Vec<String>) -> ReadDamage {
        damage.iter().for_each(|damage| crate::tell!("error: {damage}"));
        ReadDamage(damage)
    }

    /// Returns a line for each damaged file.
    pub fn lines(&self) -> &[String] {
        &self.0
    }

    /// Returns the exit status of a verb that read the trace: 1 if a part was missing, else 0.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(u8::from(!self.0.is_empty()))
    }
}

/// Tells `for_each_event` whether to continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventFlow {
    /// Read the next event.
    Event,
    /// Read no further.
    Stop,
}

/// Progress bar of a trace that is being read; erased when dropped.
struct Progress {
    bar: ProgressBar,
    label: String,
    events: u32,
    shown: Instant,
}

impl Progress {
    fn event(&mut self, reader: &Reader) {
        self.events = self.events.wrapping_add(1);
        if self.events.is_multiple_of(EVENTS_A_LOOK) && self.shown.elapsed() >= BAR_EVERY {
            self.shown = Instant::now();
            self.bar.show(0, &self.label, reader.progress());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.clear();
    }
}

/// Returns true if the program that reads our output, such as `head`, has closed the pipe.
pub fn is_gone(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::BrokenPipe
}
