//! Jobs of the process's thread pool and the rules by which they share its threads.
//!
//! Owns a lane of jobs for each drive, an inbox of results for each reactor, and the counts of
//! threads; starts no thread and makes no system call, so that tests compare it with a plain model.
//! Called by `pool.rs` under the pool's mutex.
//!
//! Fairness: the next job comes from the lane with the fewest jobs running, in turn among equals.
//! At most [`PoolLimits::lane`] jobs of a lane run at a time. When [`PoolLimits::shared`] jobs run,
//! only lanes without a running job get a thread, which the pool then adds: drives that hang
//! therefore never keep another drive from its first thread. While the system refuses more
//! threads, the last of those that exist is kept for such lanes in the same way.
//! Invariant: a lane is in the list of its number of running jobs if and only if it has jobs
//! queued and may run another one.

use super::{Job, PoolLimits};
use crate::table::Key;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Most jobs of a lane that can run at a time, whatever the limits say.
pub(super) const LANE_MAX: usize = 16;
/// The end of a list, and the place of a lane that is in none.
const NONE: u32 = u32::MAX;

/// Jobs of one drive.
#[derive(Default)]
struct Lane {
    jobs: VecDeque<Job>,
    running: usize,
    /// Its owner is gone; the place is free once nothing runs.
    retired: bool,
    /// Counts towards the threads that are kept.
    reserved: bool,
    /// When it came to have jobs and none running.
    starved_since_ns: u64,
    /// The list that it is in.
    listed: Option<usize>,
    previous: u32,
    next: u32,
}

/// Lanes in order of their turn, linked by index.
#[derive(Clone, Copy)]
struct LaneList {
    first: u32,
    last: u32,
}

/// Results for one reactor.
#[derive(Default)]
struct Inbox {
    results: Vec<(Key, i32)>,
    running: usize,
    asleep: bool,
    /// None when the reactor is gone: results are dropped.
    wake: Option<Arc<OwnedFd>>,
}

/// What the pool must do so that jobs get threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// Nothing.
    Nobody,
    /// Wake a thread that waits.
    Idle,
    /// Start a thread.
    New,
}

/// The pool's state.
pub(super) struct JobQueue {
    limits: PoolLimits,
    lanes: Vec<Lane>,
    free_lanes: Vec<u32>,
    inboxes: Vec<Inbox>,
    free_inboxes: Vec<u32>,
    /// Lanes that may run a job, by the number of those that run.
    ready: [LaneList; LANE_MAX],
    /// Jobs that run.
    busy: usize,
    /// Threads that there are, with those being started.
    pub(super) threads: usize,
    /// Threads that wait and were not called.
    pub(super) idle: usize,
    /// Threads that were called or started, and have not looked for a job yet.
    pub(super) coming: usize,
    /// Calls that a waiting thread has not taken up yet.
    pub(super) calls: usize,
    /// The system refused the last thread; none is asked for before this time.
    refused_until_ns: Option<u64>,
    /// The first refusal after a thread that was given has not been told of.
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
            ready: [LaneList { first: NONE, last: NONE }; LANE_MAX],
            busy: 0,
            threads: 0,
            idle: 0,
            coming: 0,
            calls: 0,
            refused_until_ns: None,
            refusal_untold: false,
        }
    }

    /// Opens a lane.
    pub(super) fn open_lane(&mut self) -> u32 {
        let at = self.free_lanes.pop().unwrap_or(self.lanes.len() as u32);
        if at as usize == self.lanes.len() {
            self.lanes.push(Lane::default());
        }
        self.lanes[at as usize] =
            Lane { jobs: std::mem::take(&mut self.lanes[at as usize].jobs), ..Lane::default() };
        at
    }

    /// Closes a lane; jobs that it still has are run.
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

    /// Lanes that are open.
    fn open_lanes(&self) -> usize {
        self.lanes.len() - self.free_lanes.len()
    }

    /// Has a lane count towards the threads that are kept.
    pub(super) fn reserve(&mut self, lane: u32) {
        self.lanes[lane as usize].reserved = true;
    }

    /// Threads that never end: one for each drive that needs any, up to [`PoolLimits::kept`].
    pub(super) fn kept(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.reserved).take(self.limits.kept).count()
    }

    /// Opens an inbox, whose owner `wake` wakes.
    pub(super) fn open_inbox(&mut self, wake: Arc<OwnedFd>) -> u32 {
        let at = self.free_inboxes.pop().unwrap_or(self.inboxes.len() as u32);
        if at as usize == self.inboxes.len() {
            self.inboxes.push(Inbox::default());
        }
        self.inboxes[at as usize].wake = Some(wake);
        at
    }

    /// Closes an inbox. Its jobs that nobody has begun are dropped.
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

    /// Moves the results of an inbox into `into`, which is empty.
    pub(super) fn take_results(&mut self, inbox: u32, into: &mut Vec<(Key, i32)>) {
        std::mem::swap(&mut self.inboxes[inbox as usize].results, into);
    }

    /// Has the next result wake the owner of an inbox; false if results are there already.
    pub(super) fn sleep(&mut self, inbox: u32) -> bool {
        let at = &mut self.inboxes[inbox as usize];
        at.asleep = at.results.is_empty();
        at.asleep
    }

    /// Ends what `sleep` began.
    pub(super) fn awake(&mut self, inbox: u32) {
        self.inboxes[inbox as usize].asleep = false;
    }

    /// Adds a job.
    pub(super) fn put(&mut self, job: Job, now_ns: u64) {
        let lane = job.lane;
        self.lanes[lane as usize].jobs.push_back(job);
        if self.lanes[lane as usize].listed.is_none() {
            self.relist(lane, now_ns);
        }
    }

    /// Takes a job back that no thread has begun; false if there is none.
    pub(super) fn cancel(&mut self, lane: u32, inbox: u32, key: Key) -> bool {
        let jobs = &mut self.lanes[lane as usize].jobs;
        let Some(at) = jobs.iter().position(|job| job.key == key && job.inbox == inbox) else {
            return false;
        };
        jobs.remove(at);
        self.unlist_if_empty(lane);
        true
    }

    /// Takes a lane without jobs out of its list, and frees it if nobody needs it any more.
    fn unlist_if_empty(&mut self, lane: u32) {
        if self.lanes[lane as usize].jobs.is_empty() {
            self.unlink(lane);
            self.free_lane(lane);
        }
    }

    /// The next job, for a thread that is free.
    pub(super) fn take(&mut self, now_ns: u64) -> Option<Job> {
        let lane = self.next_lane()?;
        let job = self.lanes[lane as usize].jobs.pop_front()?;
        self.lanes[lane as usize].running += 1;
        self.inboxes[job.inbox as usize].running += 1;
        self.busy += 1;
        self.relist(lane, now_ns);
        Some(job)
    }

    /// The lane of the next job, for a thread that is there.
    fn next_lane(&self) -> Option<u32> {
        let shared = match self.refused_until_ns {
            Some(_) => self.limits.shared.min(self.threads.saturating_sub(1)),
            None => self.limits.shared,
        };
        self.first_lane(shared)
    }

    /// The lane whose turn it is when `shared` threads serve any lane.
    fn first_lane(&self, shared: usize) -> Option<u32> {
        let most = if self.busy < shared { self.limits.lane } else { 1 };
        self.ready[..most].iter().map(|list| list.first).find(|lane| *lane != NONE)
    }

    /// Records what became of a job; the descriptor that wakes its owner, if that sleeps.
    pub(super) fn finish(&mut self, job: &Job, result: i32, now_ns: u64) -> Option<Arc<OwnedFd>> {
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

    /// Decides whether jobs need another thread, and counts that one as coming.
    pub(super) fn call(&mut self, now_ns: u64) -> Call {
        if self.can_wake() {
            (self.idle, self.calls, self.coming) = (self.idle - 1, self.calls + 1, 1);
            return Call::Idle;
        }
        let most = self.limits.shared + self.open_lanes();
        let is_due = self.next_growth_ns().is_some_and(|growth_ns| growth_ns <= now_ns);
        if !is_due || self.threads >= most {
            return Call::Nobody;
        }
        self.start();
        Call::New
    }

    /// Returns true if a thread that waits has work, and none is on its way already.
    fn can_wake(&self) -> bool {
        self.coming == 0 && self.idle > 0 && self.next_lane().is_some()
    }

    /// When another thread may be started, if jobs wait for one and none is on its way: at once
    /// below the number that is shared; above it when a drive without any has waited for long.
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

    /// Counts a thread that is started beyond those that jobs ask for.
    pub(super) fn start(&mut self) {
        (self.threads, self.coming) = (self.threads + 1, self.coming + 1);
    }

    /// Records that the system gave the thread that was asked for.
    pub(super) fn given(&mut self) {
        self.refused_until_ns = None;
    }

    /// Records that the system refused the thread that was asked for.
    pub(super) fn refused(&mut self, now_ns: u64) {
        let again_ns = now_ns.saturating_add(self.limits.refused_ns);
        self.refusal_untold |= self.refused_until_ns.replace(again_ns).is_none();
        (self.threads, self.coming) = (self.threads - 1, self.coming - 1);
    }

    /// Puts a lane where it belongs after its jobs have changed.
    fn relist(&mut self, lane: u32, now_ns: u64) {
        self.unlink(lane);
        let at = &mut self.lanes[lane as usize];
        if at.jobs.is_empty() || at.running >= self.limits.lane {
            return;
        }
        if at.running == 0 {
            at.starved_since_ns = now_ns;
        }
        let running = at.running;
        let last = self.ready[running].last;
        (at.listed, at.previous, at.next) = (Some(running), last, NONE);
        match last {
            NONE => self.ready[running].first = lane,
            last => self.lanes[last as usize].next = lane,
        }
        self.ready[running].last = lane;
    }

    fn unlink(&mut self, lane: u32) {
        let at = &mut self.lanes[lane as usize];
        let Some(list) = at.listed.take() else { return };
        let (previous, next) = (at.previous, at.next);
        match previous {
            NONE => self.ready[list].first = next,
            previous => self.lanes[previous as usize].next = next,
        }
        match next {
            NONE => self.ready[list].last = previous,
            next => self.lanes[next as usize].previous = previous,
        }
    }
}

#[cfg(test)]
mod tests;
