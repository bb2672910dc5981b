//! The daemon's part of `millrace locks`: lock statistics of all its drives, on request.
//!
//! If a client dies, the next request or periodic check ends the statistics.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use millrace_block::Volume;
use millrace_machine::{Deadline, LockMeter, Machine, Native, lock_unpoisoned};

use crate::views::Refusal;
use crate::views::locks::{LockCounters, LockReport};

const LEASE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct LockStatistics(Mutex<Option<MeterSession>>);

struct MeterSession {
    meter: LockMeter,
    cpus: u64,
    silence: Deadline<Native>,
}

impl LockStatistics {
    pub fn start(&self, volumes: &[Arc<Volume<Native>>]) -> Result<(), Refusal> {
        let mut place = self.look();
        let busy = || {
            Refusal::new(
                "busy",
                "another client is taking lock statistics; wait until it has finished",
            )
        };
        if place.is_some() {
            return Err(busy());
        }
        let meter = LockMeter::start().ok_or_else(busy)?;
        volumes.iter().flat_map(|volume| volume.drives()).for_each(|disk| disk.meter_locks());
        let cpus = Native::topology().cpus().len() as u64;
        *place = Some(MeterSession { meter, cpus, silence: Deadline::after(LEASE) });
        Ok(())
    }

    pub fn status(&self) -> Result<LockReport, Refusal> {
        let mut place = self.look();
        let session = place.as_mut().ok_or_else(none)?;
        session.silence = Deadline::after(LEASE);
        Ok(session.locks())
    }

    pub fn stop(&self) -> Result<LockReport, Refusal> {
        self.look().take().map(|session| session.locks()).ok_or_else(none)
    }

    pub fn end_if_silent(&self) {
        drop(self.look());
    }

    fn look(&self) -> MutexGuard<'_, Option<MeterSession>> {
        let mut place = lock_unpoisoned(&self.0);
        place.take_if(|session| session.silence.is_over());
        place
    }
}

impl MeterSession {
    fn locks(&self) -> LockReport {
        LockReport {
            elapsed_ns: self.meter.elapsed_ns(),
            cpus: self.cpus,
            locks: self.meter.rows().iter().map(LockCounters::from).collect(),
        }
    }
}

fn none() -> Refusal {
    let text = "no lock statistics are being collected; locks-start starts them, and they end if \
                the client asks nothing for 10 s";
    Refusal::new("none", text)
}
