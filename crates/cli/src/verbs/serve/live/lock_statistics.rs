//! The daemon's part of `millrace locks`: lock statistics of all its drives, on request.
//!
//! Owns the process's lock meter while there is one. A client that goes away without a word ends it
//! by its silence: the next request, or the next look of the main thread, finds that nobody has
//! asked for ten seconds. Called by daemon.rs for the control socket, and by watch.rs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_block::Volume;
use millrace_machine::{Deadline, LockMeter, Machine, Native};

use crate::views::Refusal;
use crate::views::locks::{Lock, Locks};

/// Longest silence of a client.
const LEASE: Duration = Duration::from_secs(10);

/// The statistics, if they are taken.
#[derive(Default)]
pub struct LockStatistics(Mutex<Option<MeterSession>>);

struct MeterSession {
    meter: LockMeter,
    cpus: u64,
    silence: Deadline<Native>,
}

impl LockStatistics {
    /// Starts to take them, from nothing.
    ///
    /// # Errors
    /// `busy` if somebody does.
    pub fn start(&self, volumes: &[Arc<Volume<Native>>]) -> Result<(), Refusal> {
        let mut place = self.look();
        let busy = || Refusal::new("busy", "lock statistics are being taken; wait for their end");
        if place.is_some() {
            return Err(busy());
        }
        let meter = LockMeter::start().ok_or_else(busy)?;
        volumes.iter().flat_map(|volume| volume.drives()).for_each(|disk| disk.meter_locks());
        let cpus = Native::topology().cpus().len() as u64;
        *place = Some(MeterSession { meter, cpus, silence: Deadline::after(LEASE) });
        Ok(())
    }

    /// The statistics so far.
    ///
    /// # Errors
    /// `none` if they are not taken, or no longer.
    pub fn status(&self) -> Result<Locks, Refusal> {
        let mut place = self.look();
        let session = place.as_mut().ok_or_else(none)?;
        session.silence = Deadline::after(LEASE);
        Ok(session.locks())
    }

    /// Ends them.
    ///
    /// # Errors
    /// As [`LockStatistics::status`].
    pub fn stop(&self) -> Result<Locks, Refusal> {
        self.look().take().map(|session| session.locks()).ok_or_else(none)
    }

    /// Ends them if nobody has asked for too long.
    pub fn end_if_silent(&self) {
        drop(self.look());
    }

    /// The session, unless its time is over.
    fn look(&self) -> MutexGuard<'_, Option<MeterSession>> {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        place.take_if(|session| session.silence.is_over());
        place
    }
}

impl MeterSession {
    fn locks(&self) -> Locks {
        Locks {
            elapsed_ns: self.meter.elapsed_ns(),
            cpus: self.cpus,
            locks: self.meter.rows().iter().map(Lock::from).collect(),
        }
    }
}

fn none() -> Refusal {
    let text = "no lock statistics are being taken; locks-start starts them, and who does not ask \
                for 10 s ends them";
    Refusal::new("none", text)
}
