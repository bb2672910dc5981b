//! Scheduling of one execution: decides which thread continues and which waits, and detects
//! deadlocks.
//!
//! The methods of `Session` in this file make the decisions; session.rs records the state of each
//! thread. Rules for preemptions:
//! - A thread may be preempted only before an operation whose outcome depends on other threads:
//!   loads, read-modify-writes, SeqCst stores and fences, locks, parking. The number of preemptions
//!   is bounded.
//! - Other stores need no preemption. After such a store, another thread may still read an older
//!   store, or place its own store before it in modification order. So no behaviour is lost.
//! - A switch away from a thread that must wait does not count as a preemption.
//!
//! Invariant: the picked thread can run at once.

use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

use super::session::{NOBODY, Session, ThreadYielder, WaitReason};
use super::view::THREADS_MAX;

impl Session {
    pub(super) fn end(&mut self) {
        self.note(|| "ends".to_string());
        self.here().wait = WaitReason::Ended;
        match self.pick(Some(self.current)) {
            Some(next) => (self.current, self.spent.in_a_row) = (next, 0),
            None if self.threads.iter().all(|thread| thread.wait == WaitReason::Ended) => {
                self.current = NOBODY;
            }
            None => {
                self.fail(self.stuck());
            }
        }
    }

    /// Starts a step of the current thread. Another thread may be chosen to run before the step. In
    /// that case, returns the `ThreadYielder` with which the caller must suspend the current
    /// thread.
    pub(super) fn turn(&mut self) -> Option<*const ThreadYielder> {
        if self.failure.is_some() {
            return None;
        }
        self.spent.steps += 1;
        if self.spent.steps > self.bounds.steps {
            let text = format!(
                "more than {} steps: this is a livelock, or max_steps is too low",
                self.bounds.steps
            );
            return self.fail(text);
        }
        if self.here().fresh {
            // No preemption: the scheduler has just chosen this thread for its first step.
            self.here().fresh = false;
            return None;
        }
        self.spent.in_a_row += 1;
        if self.spent.in_a_row > self.bounds.patience {
            return self.give_way();
        }
        if self.spent.preemptions >= self.bounds.preemptions {
            return None;
        }
        let old = self.current;
        let next = self.pick(Some(self.current)).unwrap_or(old);
        if next == old {
            return None;
        }
        self.spent.preemptions += 1;
        let turns = self.here().turns;
        self.note(|| format!("is preempted by T{next}"));
        (self.current, self.spent.in_a_row) = (next, 0);
        Some(turns)
    }

    /// Switches to another thread if one can run, because the current thread has made too many
    /// consecutive steps and may be in a wait loop.
    fn give_way(&mut self) -> Option<*const ThreadYielder> {
        self.spent.in_a_row = 0;
        let turns = self.here().turns;
        let next = self.pick(None)?;
        self.note(|| format!("gives way to T{next}"));
        self.current = next;
        Some(turns)
    }

    pub(super) fn wait(&mut self, wait: WaitReason) -> Option<*const ThreadYielder> {
        if self.failure.is_some() {
            return None;
        }
        self.here().wait = wait;
        self.here().fresh = false;
        let (old, turns) = (self.current, self.here().turns);
        match self.pick(Some(self.current)) {
            Some(next) if next == old => None,
            Some(next) => {
                self.note(|| "waits".to_string());
                (self.current, self.spent.in_a_row) = (next, 0);
                Some(turns)
            }
            None => self.fail(self.stuck()),
        }
    }

    /// Picks a thread that can run. The default choice is `current` if that thread can run.
    fn pick(&mut self, current: Option<usize>) -> Option<usize> {
        let (mut ready, mut count) = ([0u8; THREADS_MAX], 0);
        let before = self.current;
        let others = (0..self.threads.len()).filter(|thread| *thread != before);
        for thread in current.into_iter().chain(others) {
            if self.can_run(thread) {
                ready[count] = thread as u8;
                count += 1;
            }
        }
        match count {
            0 => None,
            1 => Some(ready[0].into()),
            _ => Some(ready[self.trail.choose(count)].into()),
        }
    }

    fn can_run(&self, thread: usize) -> bool {
        let in_time = |deadline_ns: Option<u64>| {
            deadline_ns
                .is_some_and(|ns| ns <= self.now_ns || self.spent.deadlines < self.bounds.deadlines)
        };
        match self.threads[thread].wait {
            WaitReason::Turn => true,
            WaitReason::Lock(lock) => self.memory.last(lock) == 0,
            WaitReason::Park(parker, deadline_ns) => {
                self.parkers[parker as usize] || in_time(deadline_ns)
            }
            WaitReason::Change { set, since, deadline_ns } => {
                self.has_moved(thread, set, since)
                    || self.changed(thread, set).next().is_some()
                    || in_time(deadline_ns)
            }
            WaitReason::Join(other) => self.threads[other].wait == WaitReason::Ended,
            WaitReason::Ended => false,
        }
    }

    /// Iterates over the locations in `set` that have a store newer than the thread's view. Each
    /// item is a location, with the timestamp of the oldest such store.
    fn changed(&self, thread: usize, set: u64) -> impl Iterator<Item = (u32, u32)> + '_ {
        let known = &self.threads[thread].views.current.stamps;
        let locations = (0..self.memory.locations() as u32).filter(move |at| set >> at & 1 == 1);
        locations.filter_map(|at| Some((at, self.memory.newer(at, known[at as usize])?)))
    }

    fn has_moved(&self, thread: usize, set: u64, since: u64) -> bool {
        let mut locations = (0..self.memory.locations() as u32).filter(|at| set >> at & 1 == 1);
        locations.any(|at| self.memory.stored_by_others(at, thread) > since)
    }

    /// Ends the current thread's wait for a change of the locations in `set`. Returns true if a
    /// location has changed, so that the caller must evaluate its condition again. Returns false if
    /// the deadline has passed.
    pub(super) fn resume_await(&mut self, set: u64, since: u64, deadline_ns: u64) -> bool {
        if self.has_moved(self.current, set, since) {
            return true;
        }
        let count = self.changed(self.current, set).count();
        if count == 0 {
            self.pass_deadline(deadline_ns);
            return false;
        }
        let chosen = if count > 1 { self.trail.choose(count) } else { 0 };
        let next = self.changed(self.current, set).nth(chosen);
        if let Some((at, stamp)) = next {
            self.here().views.current.stamps[at as usize] = stamp;
        }
        true
    }

    pub(super) fn pass_deadline(&mut self, deadline_ns: u64) {
        self.note(|| format!("has waited until {deadline_ns} ns"));
        if deadline_ns > self.now_ns {
            self.spent.deadlines += 1;
            self.now_ns = deadline_ns;
        }
    }

    pub(super) fn fail(&mut self, reason: String) -> Option<*const ThreadYielder> {
        if self.failure.is_some() {
            return None;
        }
        self.note(|| format!("FAILS: {reason}"));
        self.failure = Some(reason);
        Some(self.here().turns)
    }

    fn stuck(&self) -> String {
        let mut text = String::from("nobody can run:");
        for (index, thread) in self.threads.iter().enumerate() {
            let what = match thread.wait {
                WaitReason::Ended | WaitReason::Turn => continue,
                WaitReason::Lock(lock) => format!("lock at location {lock}"),
                WaitReason::Park(parker, _) => format!("a wake-up of parker {parker}"),
                WaitReason::Change { set, .. } => {
                    let used = (0..64).filter(|at| set >> at & 1 == 1);
                    let names: Vec<String> = used.map(|at: u32| at.to_string()).collect();
                    format!("a change of location {}", names.join(", "))
                }
                WaitReason::Join(other) => format!("the end of T{other}"),
            };
            text.push_str(&format!(" T{index} waits for {what};"));
        }
        text
    }
}
