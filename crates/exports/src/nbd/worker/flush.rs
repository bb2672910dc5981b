//! Final flush of all volumes by an I/O thread, after the last of its requests.
//!
//! drain.rs makes and runs it when nothing is in flight any more; it calls the block layer. A drive
//! that does not answer in time is reported and not waited for. Drives below a cache have time as
//! long as they make progress, since all dirty pages are written to them. The threads of a server
//! flush at the same time, and the block layer may merge their flushes, so no thread stops serving
//! its drives before all flushes are answered.

use millrace_block::{Bio, Error};
use millrace_machine::{Deadline, Machine, Native};
use millrace_runtime::IoContext;

use crate::nbd::server_state::ServerState;
use crate::nbd::submit::lanes::VolumeLanes;
use crate::stop::{FLUSH_USER_DATA, Progress, TURN_NS, goes_on};

struct VolumeFlush {
    lane: usize,
    progress: Progress,
    /// Time to retry after a failed flush, in nanoseconds.
    again_ns: Option<u64>,
}

/// The final flush of an I/O thread.
pub(crate) struct FinalFlush<'a> {
    pub(crate) ctx: &'a mut IoContext,
    pub(crate) lanes: &'a mut VolumeLanes,
    pub(crate) shared: &'a ServerState,
    /// Deadline of the stop. Flushes are abandoned `more_ns` later.
    pub(crate) limit: &'a mut Deadline<Native>,
    pub(crate) more_ns: u64,
}

impl FinalFlush<'_> {
    /// Flushes all volumes at the same time, so that a stuck volume delays no other.
    pub(crate) fn run(&mut self, failures: &mut Vec<String>) -> Result<(), Error> {
        let mut asked = self.submit_flushes(failures);
        while !asked.is_empty() {
            self.take_flushed(&mut asked, failures);
            asked.retain_mut(|asked| self.goes_on(asked, failures));
            if !asked.is_empty() {
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

    /// Submits a flush to every writable volume. Returns those that accepted it.
    fn submit_flushes(&mut self, failures: &mut Vec<String>) -> Vec<VolumeFlush> {
        let mut asked = Vec::new();
        for lane in 0..self.lanes.numbers() {
            let Some(its) = self.lanes.get_mut(lane) else { continue };
            if its.served.volume.limits().features.read_only {
                continue;
            }
            let progress = Progress::of(&its.served.volume);
            if self.submit_flush(lane, failures) {
                asked.push(VolumeFlush { lane, progress, again_ns: None });
            }
        }
        asked
    }

    /// Submits a flush to a volume. Returns true if it was accepted.
    fn submit_flush(&mut self, lane: usize, failures: &mut Vec<String>) -> bool {
        let flush = Bio::flush().with_user_data(FLUSH_USER_DATA);
        let submitted = self.lanes[lane].channel.submit(flush);
        if let Err(rejected) = &submitted {
            let name = self.lanes[lane].served.volume.name();
            failures.push(format!("{name}: no flush: {:?}", rejected.reason));
        }
        submitted.is_ok()
    }

    /// Retries a failed flush when that is due. Returns true while the volume must be waited for.
    fn goes_on(&mut self, asked: &mut VolumeFlush, failures: &mut Vec<String>) -> bool {
        let volume = &self.lanes[asked.lane].served.volume;
        if asked.progress.is_over(volume, self.limit.left_with_ns(self.more_ns), 0) {
            failures.push(asked.progress.failure(volume));
            return false;
        }
        if asked.again_ns.is_none_or(|at_ns| Native::now() < at_ns) {
            return true;
        }
        asked.again_ns = None;
        self.submit_flush(asked.lane, failures)
    }

    /// Polls all volumes and removes those whose flush has completed from `asked`.
    fn take_flushed(&mut self, asked: &mut Vec<VolumeFlush>, failures: &mut Vec<String>) {
        for index in 0..self.lanes.numbers() {
            let Some(lane) = self.lanes.get_mut(index) else { continue };
            let mut outcome = None;
            lane.channel.poll(|done| {
                outcome = outcome.or((done.user_data == FLUSH_USER_DATA).then_some(done.status));
            });
            let Some(status) = outcome else { continue };
            let volume = &lane.served.volume;
            asked.retain_mut(|asked| {
                if asked.lane != index {
                    return true;
                }
                asked.again_ns = match status.is_ok() {
                    true => None,
                    false => asked.progress.again_at(volume, status),
                };
                if !status.is_ok() && asked.again_ns.is_none() {
                    failures.push(asked.progress.failure(volume));
                }
                asked.again_ns.is_some()
            });
        }
    }

    /// Serves the drives until the flushes of all threads have completed: a merged flush may have
    /// been issued on this thread's queue. Waits up to `more_ns` longer than for its own flush.
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
