//! `spin_until`: busy waiting that costs the simulator nothing while nothing changes.
//!
//! While the condition is evaluated, the lines that it reads are noted. If it is false the CPU
//! spins (and is counted as spinning) until somebody else changes one of them, then reads it again
//! at the cost of a transfer. A condition that reads no line or asks for the time is polled, at
//! intervals that double up to a bound. If another thread wants the CPU it gets it, as where the
//! real thing yields. Invariant: a thread stands in the list of a line if it noted the line since
//! its `spin_until` began; a write after that makes it dirty, so that no change is missed.

use core::sync::atomic::Ordering::Relaxed;
use std::vec::Vec;

use super::line::LineState;
use super::pool::State;
use super::report::SimError;
use super::time::PS_PER_NS;
use super::world::{World, private, suspend};

/// Longest interval between two looks, in intervals of the model.
const POLL_GROWTH_MAX: u64 = 64;

/// Polls until `ready` or the deadline.
pub(super) fn spin_until(deadline_ns: u64, mut ready: impl FnMut() -> bool) -> bool {
    let deadline_ps = deadline_ns.saturating_mul(PS_PER_NS);
    let Some(outer) = private(|world| world.me().spin.recording) else {
        return spin_outside(deadline_ns, ready);
    };
    let mut growth = 1;
    let hit = loop {
        private(World::begin_look);
        let hit = ready();
        let wait = private(|world| world.end_look(hit, deadline_ps, &mut growth));
        match wait.expect("inside a simulation") {
            Look::Over(hit) => break hit,
            Look::Again => {}
            Look::Wait => suspend(),
        }
    };
    private(|world| {
        if !outer {
            world.forget_lines();
        }
        world.me().spin.recording = outer;
        world.recording = outer;
    });
    hit
}

/// Nobody's time passes outside of a simulation: real threads are given some, but no deadline
/// comes nearer.
fn spin_outside(deadline_ns: u64, mut ready: impl FnMut() -> bool) -> bool {
    loop {
        if ready() {
            return true;
        }
        if deadline_ns != u64::MAX {
            return false;
        }
        std::thread::yield_now();
    }
}

/// What follows an evaluation.
enum Look {
    Over(bool),
    Again,
    Wait,
}

impl World {
    fn begin_look(&mut self) {
        self.recording = true;
        let spin = &mut self.me().spin;
        spin.recording = true;
        (spin.dirty, spin.read_clock) = (false, false);
    }

    fn end_look(&mut self, hit: bool, deadline_ps: u64, growth: &mut u64) -> Look {
        if hit || self.now_ps >= deadline_ps {
            return Look::Over(hit);
        }
        if std::thread::panicking() {
            return self.spin_in_panic(deadline_ps);
        }
        let poll_ps = self.prices.spin_poll;
        let spin = &self.me().spin;
        let polls = spin.watching.is_empty() || spin.read_clock;
        if spin.dirty {
            self.now_ps += poll_ps;
            return Look::Again;
        }
        if self.wanted() {
            // Time goes on even where switching is free.
            self.now_ps += poll_ps;
            self.give_way();
            return Look::Wait;
        }
        let mut wake_ps = deadline_ps;
        if polls {
            wake_ps = wake_ps.min(self.now_ps + poll_ps * *growth);
            *growth = (*growth * 2).min(POLL_GROWTH_MAX);
        }
        self.spin(State::Spinning);
        self.set_timer(self.thread, wake_ps);
        Look::Wait
    }

    /// Others do not run while a thread unwinds: the deadline is there at once.
    fn spin_in_panic(&mut self, deadline_ps: u64) -> Look {
        if deadline_ps < u64::MAX {
            self.now_ps = deadline_ps;
            return Look::Over(false);
        }
        let (thread, at_ns) = (self.me().name.clone(), self.now_ps / PS_PER_NS);
        let message = "it panicked, and its destructors wait for another thread".into();
        self.run.failure = Some(SimError::Panic { thread, at_ns, message });
        Look::Wait
    }

    /// The running thread's condition reads a line.
    #[cold]
    pub(super) fn record(&mut self, line: &LineState) {
        let mut watch = line.watch.load(Relaxed);
        if watch == 0 {
            self.watches.push(Vec::new());
            watch = self.watches.len() as u32;
            line.watch.store(watch, Relaxed);
        }
        let thread = self.thread;
        let watching = &mut self.me().spin.watching;
        if !watching.contains(&watch) {
            watching.push(watch);
            self.watches[watch as usize - 1].push(thread);
        }
    }

    fn forget_lines(&mut self) {
        let thread = self.thread;
        for watch in core::mem::take(&mut self.me().spin.watching) {
            self.watches[watch as usize - 1].retain(|watcher| *watcher != thread);
        }
    }

    /// The running CPU changed what a line holds, at this time: who looks at it looks again.
    #[inline]
    pub(super) fn wake_watchers(&mut self, line: &LineState, time_ps: u64) {
        let watch = line.watch.load(Relaxed);
        if watch != 0 {
            self.wake_list(watch, time_ps);
        }
    }

    #[cold]
    fn wake_list(&mut self, watch: u32, time_ps: u64) {
        let watchers = core::mem::take(&mut self.watches[watch as usize - 1]);
        let me = self.thread;
        for &thread in watchers.iter().filter(|watcher| **watcher != me) {
            self.thread_mut(thread).spin.dirty = true;
            if self.thread(thread).state == State::Spinning {
                self.set_timer(thread, u64::MAX);
                self.end_spin(thread, time_ps);
            }
        }
        self.watches[watch as usize - 1] = watchers;
    }
}
