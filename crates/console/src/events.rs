//! `for_each_event`: the events of a trace one after the other, with a progress bar.
//!
//! Called by the verbs of `trace`, which say what is done with each event. Notes of the reader go
//! to standard error, before and after the events, and so does the damage of files that were not
//! read to their end.
#![allow(clippy::print_stderr)]

use std::io::ErrorKind;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use millrace_trace::{Reader, TraceEntry, TraceNames};

use crate::Bar;

/// Events between two looks at the clock.
const EVENTS_A_LOOK: u32 = 4_096;
/// Time between two changes of the progress bar.
const BAR_EVERY: Duration = Duration::from_millis(100);

/// Gives each event of a reader to `each`, until the end or until that says stop, and shows in a
/// bar of this label how far it is. A bar is for verbs that print nothing meanwhile: it would tear
/// lines on the same terminal.
///
/// # Errors
/// If a trace cannot be read. A trace of which a part can be read is no error, but damaged.
pub fn for_each_event(
    reader: &mut Reader,
    (bar, label): (Bar, &str),
    mut each: impl FnMut(&TraceEntry, &mut Reader) -> Next,
) -> Result<EventWalk> {
    let say = |notes: &[String]| notes.iter().for_each(|note| eprintln!("note: {note}"));
    let known = reader.notes();
    say(&known);
    let mut progress = Progress { bar, label: label.into(), events: 0, shown: Instant::now() };
    while let Some(entry) = reader.read()? {
        if each(&entry, reader) == Next::Stop {
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

/// A walk over the events of a trace that has ended.
#[derive(Debug)]
pub struct EventWalk {
    /// Names of processes and devices.
    pub names: TraceNames,
    /// Notes of the reader, which people were told.
    pub notes: Vec<String>,
    /// Damage of files that were not read to their end.
    pub damage: ReadDamage,
}

/// Files of a trace that are damaged, so that a part of them could not be read: each with the place
/// and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct ReadDamage(Vec<String>);

impl ReadDamage {
    /// Tells people on standard error which files are damaged, each with the place and the reason.
    pub fn tell(damage: Vec<String>) -> ReadDamage {
        damage.iter().for_each(|damage| eprintln!("error: {damage}"));
        ReadDamage(damage)
    }

    /// A line for each file.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.0
    }

    /// Exit status of a verb that has done its work: 1 if a part of the trace is missing in it.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(u8::from(!self.0.is_empty()))
    }
}

/// Answer of `each` to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// To the next event.
    Event,
    /// No further.
    Stop,
}

/// A progress bar; wiped when dropped.
struct Progress {
    bar: Bar,
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

/// Whether whoever read our output has gone away, as `head` does: no reason to complain.
#[must_use]
pub fn is_gone(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::BrokenPipe
}
