//! `TraceProgress`: progress of reading a trace, and notes about the trace, for another thread to
//! show.
//!
//! A thread of the lab's replay reads the trace and updates the `TraceProgress`. Meanwhile, the
//! main thread of the verb shows a progress bar. At the end, the main thread prints the notes. Both
//! threads share the `TraceProgress` through an `Arc`.

use std::sync::{Arc, Mutex, MutexGuard};

use millrace_experiments::trace::{AnySource, TraceIo, TraceSource, unmeasured_note};
use millrace_machine::lock_unpoisoned;

const IOS_A_LOOK: u64 = 4_096;

#[derive(Debug, Default)]
pub struct TraceProgress(Mutex<ProgressState>);

#[derive(Debug, Default)]
pub struct ProgressState {
    /// Part of the trace that has been read, 0 to 1.
    pub progress: f64,
    pub notes: Vec<String>,
    /// Files that were not read to their end, each with the position and the reason.
    pub damage: Vec<String>,
    /// All devices of the trace; `None` until the trace was read to its end.
    devices: Option<Vec<String>>,
}

impl TraceProgress {
    /// Returns the members of `devices` that the trace does not contain, and the names of all
    /// devices in the trace. Returns `None` if no member is missing, or if the trace is not yet
    /// read to its end.
    pub fn missing<'a>(
        &self,
        devices: impl Iterator<Item = &'a str>,
    ) -> Option<(Vec<&'a str>, Vec<String>)> {
        let has = self.known().devices.clone()?;
        let missing: Vec<_> = devices.filter(|name| !has.iter().any(|has| has == name)).collect();
        (!missing.is_empty()).then_some((missing, has))
    }

    pub fn known(&self) -> MutexGuard<'_, ProgressState> {
        lock_unpoisoned(&self.0)
    }
}

pub struct TrackedTrace<S> {
    source: S,
    watch: Arc<TraceProgress>,
    ios: u64,
    measured: u64,
}

impl TrackedTrace<AnySource> {
    pub fn new(source: AnySource, watch: &Arc<TraceProgress>) -> TrackedTrace<AnySource> {
        TrackedTrace { source, watch: Arc::clone(watch), ios: 0, measured: 0 }
    }

    fn say(&self, devices: Option<Vec<String>>) {
        let (progress, mut notes) = (self.source.progress(), self.source.notes());
        notes.extend(unmeasured_note(self.ios, self.measured));
        let damage = self.source.damage();
        *self.watch.known() = ProgressState { progress, notes, damage, devices };
    }
}

impl TraceSource for TrackedTrace<AnySource> {
    type Error = <AnySource as TraceSource>::Error;

    fn next_io(&mut self) -> Result<Option<TraceIo>, Self::Error> {
        let io = self.source.next_io();
        if let Ok(Some(io)) = &io {
            self.ios += 1;
            self.measured += u64::from(io.latency_ns.is_some());
        }
        if self.ios.is_multiple_of(IOS_A_LOOK) || !matches!(io, Ok(Some(_))) {
            let has_ended = matches!(io, Ok(None));
            self.say(has_ended.then(|| self.source.devices().to_vec()));
        }
        io
    }

    fn devices(&self) -> &[String] {
        self.source.devices()
    }
}
