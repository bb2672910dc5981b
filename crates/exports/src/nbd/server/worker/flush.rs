//! The flush of all volumes at the end of an I/O thread, after the last of its requests.
//!
//! Made and run by drain.rs when nothing is in flight any more; calls the block layer. A drive that
//! does not answer in time is named, and not waited for; drives below a cache have time for as long
//! as they go on, since all that is dirty is written to them. The threads of a server flush at the
//! same time, and the block layer may join their flushes, so none of them stops serving its drives
//! before all are answered.

use millrace_block::{Bio, Error};
use millrace_machine::{Machine, Native};
use millrace_runtime::IoContext;

use crate::nbd::server::shared::Shared;
use crate::nbd::server::submit::lane::Lane;
use crate::stop::{FLUSH_USER_DATA, Progress, TURN_NS};

/// What an I/O thread flushes, and until when.
pub(crate) struct Flush<'a> {
    pub(crate) ctx: &'a mut IoContext,
    pub(crate) lanes: &'a mut [Lane],
    pub(crate) shared: &'a Shared,
    /// When to give up, by the layer's clock.
    pub(crate) deadline_ns: u64,
}

impl Flush<'_> {
    /// Flushes all volumes at the same time, so that one that is stuck holds up no other.
    pub(crate) fn run(&mut self, failures: &mut Vec<String>) -> Result<(), Error> {
        let (mut asked, mut progress) = (self.submit_flushes(failures), Progress::default());
        let volumes = &self.shared.exports.volumes;
        while !asked.is_empty() && Native::now() < progress.extend(volumes, self.deadline_ns) {
            self.take_flushed(&mut asked, failures);
            if !asked.is_empty() {
                let has_work = || self.lanes.iter().any(|lane| lane.channel.has_work());
                self.ctx.turn(Some(Native::now() + TURN_NS), has_work)?;
            }
        }
        for lane in asked {
            let name = self.shared.exports.volumes[lane].name();
            failures.push(format!("{name}: flush: no answer in time"));
        }
        for (lane, volume) in self.lanes.iter().zip(&self.shared.exports.volumes) {
            if lane.overdue > 0 {
                let (count, name) = (lane.overdue, volume.name());
                failures.push(format!("{name}: {count} requests its drives never answered"));
            }
        }
        Ok(())
    }

    /// Asks every volume that can be written for a flush; returns the lanes that took it.
    fn submit_flushes(&mut self, failures: &mut Vec<String>) -> Vec<usize> {
        let mut asked = Vec::new();
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            if lane.channel.volume().limits().features.read_only {
                continue;
            }
            match lane.channel.submit(Bio::flush().with_user_data(FLUSH_USER_DATA)) {
                Ok(()) => asked.push(index),
                Err(rejected) => {
                    let name = self.shared.exports.volumes[index].name();
                    failures.push(format!("{name}: no flush: {:?}", rejected.reason));
                }
            }
        }
        asked
    }

    /// Serves all volumes and takes those off the list whose flush is answered.
    fn take_flushed(&mut self, asked: &mut Vec<usize>, failures: &mut Vec<String>) {
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let mut outcome = None;
            lane.channel.poll(|done| {
                outcome = outcome.or((done.user_data == FLUSH_USER_DATA).then_some(done.status));
            });
            let Some(status) = outcome else { continue };
            asked.retain(|lane| *lane != index);
            if !status.is_ok() {
                let name = self.shared.exports.volumes[index].name();
                failures.push(format!("{name}: flush: {status}"));
            }
        }
    }

    /// Serves the drives until the flushes of all threads are answered: a flush that joined another
    /// may have been issued on this thread's queue. Waits `more_ns` longer than for its own at
    /// most.
    pub(crate) fn await_others(&mut self, more_ns: u64) -> Result<(), Error> {
        let deadline_ns = self.deadline_ns.saturating_add(more_ns);
        let (lanes, shared) = (&mut *self.lanes, self.shared);
        let (done, mut progress) = (|| shared.all_flushed(), Progress::default());
        let volumes = &shared.exports.volumes;
        while !done() && Native::now() < progress.extend(volumes, deadline_ns) {
            lanes.iter_mut().for_each(|lane| {
                lane.channel.poll(|_| ());
            });
            let has_work = || done() || lanes.iter().any(|lane| lane.channel.has_work());
            self.ctx.turn(Some(Native::now() + TURN_NS), has_work)?;
        }
        Ok(())
    }
}
