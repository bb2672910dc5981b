//! Jobs of the process's thread pool, and the rules by which drives share its threads.
//!
//! `JobQueue` owns a lane (queue) of jobs for each drive, an inbox of results for each reactor, and
//! the counts of threads. `JobQueue` starts no thread and makes no system call, so that tests can
//! compare it with a simple model.
//!
//! Fairness: the next job comes from the lane with the fewest running jobs, round robin among
//! equals. At most [`PoolLimits::lane`] jobs of a lane run at a time. While [`PoolLimits::shared`]
//! jobs are running, only lanes without a running job get a thread, and the pool starts additional
//! threads for them; so drives that hang never keep another drive from its first thread. While the
//! system refuses more threads, the last existing thread is reserved for such lanes in the same
//! way. Invariant: a lane is in the set `ready` if and only if it has jobs queued and may run
//! another job.

use super::{PoolJob, PoolLimits};
use crate::table::OperationKey;
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

#[derive(Default)]
struct JobLane {
    jobs: VecDeque<PoolJob>,
    running: usize,
    /// True if the lane (a drive's job queue) is closed. The lane is freed after its last job.
    retired: bool,
    reserved: bool,
    /// Time, in nanoseconds, at which the drive began to have waiting jobs but no running job.
    starved_since_ns: u64,
    listed: Option<LaneTurn>,
}

/// Sort key of a drive's job queue (lane): number of running jobs, position in the round robin,
/// lane index.
type LaneTurn = (usize, u64, u32);
#[derive(Default)]
struct ResultInbox {
    results: Vec<(OperationKey, i32)>,
    running: usize,
    asleep: bool,
    /// Eventfd of the reactor. `None` if the reactor no longer exists, in which case results are
    /// dropped.
    wake: Option<Arc<OwnedFd>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadCall {
    Nobody,
    Idle,
    New,
}

pub(super) struct JobQueue {
    limits: PoolLimits,
    lanes: Vec<JobLane>,
    free_lanes: Vec<u32>,
    inboxes: Vec<ResultInbox>,
    free_inboxes: Vec<u32>,
    /// Job queues (lanes) of drives that may run another job, in the order in which pool threads
    /// serve the drives.
    ready: BTreeSet<LaneTurn>,
    last_position: u64,
    busy: usize,
    /// Number of threads, including those being started.
    pub(super) threads: usize,
    /// Number of idle threads, except those being woken.
    pub(super) idle: usize,
    /// Number of threads that were woken or started and have not asked for a job yet.
    pub(super) coming: usize,
    /// Number of wake-ups sent to idle threads and not received yet.
    pub(super) calls: usize,
    /// Time before which no thread is started, because the system refused the last one.
    refused_until_ns: Option<u64>,
    /// True if the system has begun to refuse threads and no warning about it was given yet.
    pub(super) refusal_untold: bool,
}

impl JobQueue {
    pub(super) const fn new(limits: PoolLimits) -> JobQueue {
        JobQueue {
            limits,
            lanes: Vec::new(),
            free_lanes: Vec::new(),
            inboxes: Vec::new(),
            free_inboxes: Vec::new(),
            ready: BTreeSet::new(),
            last_position: 0,
            busy: 0,
            threads: 0,
            idle: 0,
            coming: 0,
            calls: 0,
            refused_until_ns: None,
            refusal_untold: false,
        }
    }

    pub(super) fn open_lane(&mut self) -> u32 {
        let at = self.free_lanes.pop().unwrap_or(self.lanes.len() as u32);
        match self.lanes.get_mut(at as usize) {
            Some(lane) => *lane = JobLane::default(),
            None => self.lanes.push(JobLane::default()),
        }
        at
    }

    /// Closes a drive's job queue (lane). The remaining jobs still run.
    pub(super) fn close_lane(&mut self, lane: u32) {
        let at = &mut self.lanes[lane as usize];
        (at.retired, at.reserved) = (true, false);
        self.free_lane(lane);
    }

    fn free_lane(&mut self, lane: u32) {
        let at = &self.lanes[lane as usize];
        if at.retired && at.running == 0 && at.jobs.is_empty() {
            self.lanes[lane as usize].retired = false;
            self.free_lanes.push(lane);
        }
    }

    fn open_lanes(&self) -> usize {
        self.lanes.len() - self.free_lanes.len()
    }

    pub(super) fn reserve(&mut self, lane: u32) {
        self.lanes[lane as usize].reserved = true;
    }

    /// Returns the number of threads that the pool keeps even while idle: one for each drive that
    /// reserved a thread, up to [`PoolLimits::kept`].
    pub(super) fn kept(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.reserved).take(self.limits.kept).count()
    }

    pub(super) fn open_inbox(&mut self, wake: Arc<OwnedFd>) -> u32 {
        let at = self.free_inboxes.pop().unwrap_or(self.inboxes.len() as u32);
        if at as usize == self.inboxes.len() {
            self.inboxes.push(ResultInbox::default());
        }
        self.inboxes[at as usize].wake = Some(wake);
        at
    }

    /// Closes the inbox in which a reactor receives its results. Drops the reactor's jobs that no
    /// thread has started.
    pub(super) fn close_inbox(&mut self, inbox: u32) {
        for lane in 0..self.lanes.len() as u32 {
            self.lanes[lane as usize].jobs.retain(|job| job.inbox != inbox);
            self.unlist_if_empty(lane);
        }
        let at = &mut self.inboxes[inbox as usize];
        (at.wake, at.asleep) = (None, false);
        at.results.clear();
        if at.running == 0 {
            self.free_inboxes.push(inbox);
        }
    }

    pub(super) fn take_results(&mut self, inbox: u32, into: &mut Vec<(OperationKey, i32)>) {
        std::mem::swap(&mut self.inboxes[inbox as usize].results, into);
    }

    /// Makes the next result wake the reactor that owns the inbox. Returns false, without effect,
    /// if results are waiting already.
    pub(super) fn sleep(&mut self, inbox: u32) -> bool {
        let at = &mut self.inboxes[inbox as usize];
        at.asleep = at.results.is_empty();
        at.asleep
    }

    pub(super) fn awake(&mut self, inbox: u32) {
        self.inboxes[inbox as usize].asleep = false;
    }

    pub(super) fn put(&mut self, job: PoolJob, now_ns: u64) {
        let lane = job.lane;
        self.lanes[lane as usize].jobs.push_back(job);
        if self.lanes[lane as usize].listed.is_none() {
            self.relist(lane, now_ns);
        }
    }

    pub(super) fn cancel(&mut self, lane: u32, inbox: u32, key: OperationKey) -> bool {
        let jobs = &mut self.lanes[lane as usize].jobs;
        let Some(at) = jobs.iter().position(|job| job.key == key && job.inbox == inbox) else {
            return false;
        };
        jobs.remove(at);
        self.unlist_if_empty(lane);
        true
    }

    fn unlist_if_empty(&mut self, lane: u32) {
        if self.lanes[lane as usize].jobs.is_empty() {
            self.unlink(lane);
            self.free_lane(lane);
        }
    }

    pub(super) fn take(&mut self, now_ns: u64) -> Option<PoolJob> {
        let lane = self.next_lane()?;
        let job = self.lanes[lane as usize].jobs.pop_front()?;
        self.lanes[lane as usize].running += 1;
        self.inboxes[job.inbox as usize].running += 1;
        self.busy += 1;
        self.relist(lane, now_ns);
        Some(job)
    }

    fn next_lane(&self) -> Option<u32> {
        let shared = match self.refused_until_ns {
            Some(_) => self.limits.shared.min(self.threads.saturating_sub(1)),
            None => self.limits.shared,
        };
        self.first_lane(shared)
    }

    /// Returns the lane (the queued jobs of one drive) to serve next. If the number of running jobs
    /// has reached `shared`, only a lane without running jobs qualifies.
    fn first_lane(&self, shared: usize) -> Option<u32> {
        let (running, _, lane) = *self.ready.first()?;
        (running == 0 || self.busy < shared).then_some(lane)
    }

    /// Records the result of a job. Returns the eventfd of the job's reactor if the reactor must be
    /// woken.
    pub(super) fn finish(
        &mut self,
        job: &PoolJob,
        result: i32,
        now_ns: u64,
    ) -> Option<Arc<OwnedFd>> {
        self.busy -= 1;
        self.lanes[job.lane as usize].running -= 1;
        self.relist(job.lane, now_ns);
        self.free_lane(job.lane);
        let inbox = &mut self.inboxes[job.inbox as usize];
        inbox.running -= 1;
        if inbox.wake.is_none() {
            if inbox.running == 0 {
                self.free_inboxes.push(job.inbox);
            }
            return None;
        }
        inbox.results.push((job.key, result));
        if std::mem::take(&mut inbox.asleep) { inbox.wake.clone() } else { None }
    }

    /// Decides whether the jobs need another thread. If so, counts that thread as woken or
    /// starting.
    pub(super) fn call(&mut self, now_ns: u64) -> ThreadCall {
        if self.can_wake() {
            (self.idle, self.calls, self.coming) = (self.idle - 1, self.calls + 1, 1);
            return ThreadCall::Idle;
        }
        let most = self.limits.shared + self.open_lanes();
        let is_due = self.next_growth_ns().is_some_and(|growth_ns| growth_ns <= now_ns);
        if !is_due || self.threads >= most {
            return ThreadCall::Nobody;
        }
        self.start();
        ThreadCall::New
    }

    /// Returns true if an idle thread should be woken for a waiting job. Returns false while
    /// another woken or new thread is about to take a job.
    fn can_wake(&self) -> bool {
        self.coming == 0 && self.idle > 0 && self.next_lane().is_some()
    }

    /// Returns the time in nanoseconds from which the pool may start another thread, or `None` if
    /// no thread is needed. Once the pool has as many threads as [`PoolLimits::shared`] says, it
    /// grows only for a drive whose jobs no thread has served for [`PoolLimits::growth_ns`].
    pub(super) fn next_growth_ns(&self) -> Option<u64> {
        if self.coming > 0 || self.can_wake() {
            return None;
        }
        let lane = self.first_lane(self.limits.shared)?;
        let refused_until_ns = self.refused_until_ns.unwrap_or(0);
        if self.threads < self.limits.shared {
            return Some(refused_until_ns);
        }
        let starved_ns = self.lanes[lane as usize].starved_since_ns;
        Some(refused_until_ns.max(starved_ns.saturating_add(self.limits.growth_ns)))
    }

    /// Counts a new thread, which the caller must start.
    pub(super) fn start(&mut self) {
        (self.threads, self.coming) = (self.threads + 1, self.coming + 1);
    }

    pub(super) fn given(&mut self) {
        self.refused_until_ns = None;
    }

    pub(super) fn refused(&mut self, now_ns: u64) {
        let again_ns = now_ns.saturating_add(self.limits.refused_ns);
        self.refusal_untold |= self.refused_until_ns.replace(again_ns).is_none();
        (self.threads, self.coming) = (self.threads - 1, self.coming - 1);
    }

    fn relist(&mut self, lane: u32, now_ns: u64) {
        self.unlink(lane);
        let at = &mut self.lanes[lane as usize];
        if at.jobs.is_empty() || at.running >= self.limits.lane {
            return;
        }
        if at.running == 0 {
            at.starved_since_ns = now_ns;
        }
        self.last_position += 1;
        let turn = (at.running, self.last_position, lane);
        at.listed = Some(turn);
        self.ready.insert(turn);
    }

    fn unlink(&mut self, lane: u32) {
        if let Some(turn) = self.lanes[lane as usize].listed.take() {
            self.ready.remove(&turn);
        }
    }
}

#[cfg(test)]
mod tests;
