//! Final flush of all volumes by an I/O thread, after the thread's requests have ended.
//!
//! A drive that does not answer in time is reported, and the stop of the server continues. If the
//! volume has a cache, the flush writes all dirty pages to the drives below. So the deadline is
//! extended as long as these drives make progress.
//!
//! The block layer may merge flushes of several threads into one flush on one thread's hardware
//! queue. So each thread continues to serve its drives until the flushes of all threads are
//! answered.

use millrace_block::Error;
use millrace_machine::{Deadline, Machine, Native};

use super::Worker;
use super::drain::CUT_OFF_NS;
use crate::last_flush::LastFlush;
use crate::nbd::execute::WorkerContext;
use crate::stop::{FLUSH_NS, Progress, TURN_NS, goes_on};

/// Time, in nanoseconds, from the deadline of the stop until a thread abandons its flushes.
const MORE_NS: u64 = CUT_OFF_NS + FLUSH_NS;

impl Worker {
    /// Flushes all volumes at the same time, so that a stuck volume delays no other.
    pub(super) fn flush(
        &mut self,
        limit: &mut Deadline<Native>,
        failures: &mut Vec<String>,
    ) -> Result<(), Error> {
        let WorkerContext { ctx, submitter, .. } = &mut self.core;
        let lanes = &mut submitter.lanes;
        let numbers = 0..lanes.numbers();
        let of_lane = |lane| {
            let volume = &lanes.get_mut(lane)?.served.volume;
            let is_written = !volume.limits().features.read_only;
            is_written.then(|| LastFlush::of(Progress::of(volume)))
        };
        let mut flushes: Vec<Option<LastFlush>> = numbers.map(of_lane).collect();
        while flushes.iter().any(Option::is_some) {
            let given_ns = limit.left_with_ns(MORE_NS);
            for (lane, flush) in flushes.iter_mut().enumerate() {
                let Some(lane) = lanes.get_mut(lane) else { continue };
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
                let has_work = || lanes.iter().any(|lane| lane.channel.has_work());
                ctx.turn(Some(Native::now() + TURN_NS), has_work)?;
            }
        }
        for lane in lanes.iter().filter(|lane| lane.overdue > 0) {
            let (count, name) = (lane.overdue, lane.served.volume.name());
            failures.push(format!("{name}: its drives never answered {count} requests"));
        }
        Ok(())
    }

    /// Serves the drives until the flushes of all threads have completed: the block layer may have
    /// merged flushes of other threads into one on this thread's hardware queue. The time limit is
    /// a little longer than the limit for this thread's own flushes.
    pub(super) fn await_flushes(&mut self, limit: &mut Deadline<Native>) -> Result<(), Error> {
        let WorkerContext { ctx, submitter, shared, .. } = &mut self.core;
        let (lanes, more_ns) = (&mut submitter.lanes, MORE_NS + CUT_OFF_NS);
        let done = || shared.all_flushed();
        let volumes = &lanes.volumes();
        let mut progress: Vec<Progress> = volumes.iter().map(Progress::of).collect();
        while !done() && goes_on(&mut progress, limit.left_with_ns(more_ns)) {
            lanes.iter_mut().for_each(|lane| {
                lane.channel.poll(|_| ());
            });
            let has_work = || done() || lanes.iter().any(|lane| lane.channel.has_work());
            ctx.turn(Some(Native::now() + TURN_NS), has_work)?;
        }
        Ok(())
    }
}
