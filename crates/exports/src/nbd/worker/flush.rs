//! Final flush of all volumes by an I/O thread, after the last of its requests.
//!
//! A drive that does not answer in time is reported, and the stop continues. The deadline is
//! extended for drives below a cache as long as they make progress, because all dirty pages are
//! written to them. The block layer may merge the flushes of several threads, so each thread
//! continues to serve its drives until the flushes of all threads are answered.

use millrace_block::Error;
use millrace_machine::{Deadline, Machine, Native};
use millrace_runtime::IoContext;

use crate::last_flush::LastFlush;
use crate::nbd::server_state::ServerState;
use crate::nbd::submit::lanes::VolumeLanes;
use crate::stop::{Progress, TURN_NS, goes_on};

pub(crate) struct FinalFlush<'a> {
    pub(crate) ctx: &'a mut IoContext,
    pub(crate) lanes: &'a mut VolumeLanes,
    pub(crate) shared: &'a ServerState,
    /// Deadline of the stop. The thread abandons its flushes `more_ns` after this deadline.
    pub(crate) limit: &'a mut Deadline<Native>,
    pub(crate) more_ns: u64,
}

impl FinalFlush<'_> {
    /// Flushes all volumes at the same time, so that a stuck volume delays no other.
    pub(crate) fn run(&mut self, failures: &mut Vec<String>) -> Result<(), Error> {
        let lanes = 0..self.lanes.numbers();
        let mut flushes: Vec<Option<LastFlush>> = lanes
            .map(|lane| {
                let volume = &self.lanes.get_mut(lane)?.served.volume;
                let is_written = !volume.limits().features.read_only;
                is_written.then(|| LastFlush::of(Progress::of(volume)))
            })
            .collect();
        while flushes.iter().any(Option::is_some) {
            let given_ns = self.limit.left_with_ns(self.more_ns);
            for (lane, flush) in flushes.iter_mut().enumerate() {
                let Some(lane) = self.lanes.get_mut(lane) else { continue };
                let Some(its) = flush else {
                    lane.channel.poll(|_| ());
                    continue;
                };
                if let Some(outcome) = its.turn(&mut lane.channel, given_ns) {
                    failures.extend(outcome.err());
                    *flush = None;
                }
            }
            if flushes.iter().any(Option::is_some) {
                let has_work = || self.lanes.iter().any(|lane| lane.channel.has_work());
                self.ctx.turn(Some(Native::now() + TURN_NS), has_work)?;
            }
        }
        for lane in self.lanes.iter() {
            if lane.overdue > 0 {
                let (count, name) = (lane.overdue, lane.served.volume.name());
                failures.push(format!("{name}: its drives never answered {count} requests"));
            }
        }
        Ok(())
    }

    /// Serves the drives until the flushes of all threads have completed, because merged flushes
    /// may be on this thread's queue. Waits up to `more_ns` beyond the deadline of its own flush.
    pub(crate) fn await_others(&mut self, more_ns: u64) -> Result<(), Error> {
        let more_ns = self.more_ns.saturating_add(more_ns);
        let (lanes, shared, limit) = (&mut *self.lanes, self.shared, &mut *self.limit);
        let done = || shared.all_flushed();
        let volumes = &lanes.volumes();
        let mut progress: Vec<Progress> = volumes.iter().map(|one| Progress::of(one)).collect();
        while !done() && goes_on(volumes, &mut progress, limit.left_with_ns(more_ns)) {
            lanes.iter_mut().for_each(|lane| {
                lane.channel.poll(|_| ());
            });
            let has_work = || done() || lanes.iter().any(|lane| lane.channel.has_work());
            self.ctx.turn(Some(Native::now() + TURN_NS), has_work)?;
        }
        Ok(())
    }
}
