//! `spin_until`: busy waiting that costs the simulator no real time while nothing changes.
//!
//! The cache lines that the condition reads are recorded. If the condition is false, the CPU spins
//! (and is counted as spinning) until another CPU changes one of these lines. The condition is then
//! evaluated again, which takes the time of a cache line transfer. A condition that reads no line,
//! or reads the clock, is polled at intervals that double up to a limit. If another thread needs
//! the CPU, the spinning thread yields the CPU. Invariant: a thread is in the watch list of every
//! line that it recorded since its `spin_until` began. A write to such a line marks the thread as
//! dirty, so the thread misses no change.

use core::sync::atomic::Ordering::Relaxed;
use std::vec::Vec;

use crate::memory::line::LineState;
use crate::model::time::PS_PER_NS;
use crate::scheduler::pool::ThreadPhase;
use crate::world::{World, private, suspend};

/// Maximum interval between two polls, in multiples of `CpuCosts::spin_poll`.
const POLL_GROWTH_MAX: u64 = 64;

pub(crate) fn spin_until(deadline_ns: u64, mut ready: impl FnMut() -> bool) -> bool {
    let deadline_ps = deadline_ns.saturating_mul(PS_PER_NS);
    let Some(outer) = private(|world| world.scheduler.me().spin.recording) else {
        return spin_outside(deadline_ns, ready);
    };
    let mut growth = 1;
    let hit = loop {
        private(World::begin_look);
        if ready() {
            break true;
        }
        let wait = private(|world| world.end_look(deadline_ps, &mut growth));
        match wait.expect("the caller runs in a simulation") {
            SpinStep::TimedOut => break false,
            SpinStep::Again => {}
            SpinStep::Wait => suspend(),
        }
    };
    private(|world| {
        if !outer {
            world.forget_lines();
        }
        world.scheduler.me().spin.recording = outer;
        world.scheduler.recording = outer;
    });
    hit
}

/// Spins outside a simulation, where no virtual time passes: yields to other system threads, and
/// treats any deadline as already passed.
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

enum SpinStep {
    TimedOut,
    Again,
    Wait,
}

impl World {
    fn begin_look(&mut self) {
        self.scheduler.recording = true;
        let spin = &mut self.scheduler.me().spin;
        spin.recording = true;
        (spin.dirty, spin.read_clock) = (false, false);
    }

    fn end_look(&mut self, deadline_ps: u64, growth: &mut u64) -> SpinStep {
        if self.scheduler.now_ps >= deadline_ps {
            return SpinStep::TimedOut;
        }
        if std::thread::panicking() {
            return self.spin_in_panic(deadline_ps);
        }
        let poll_ps = self.prices.spin_poll;
        let scheduler = &mut self.scheduler;
        let spin = &scheduler.me().spin;
        let polls = spin.watching.is_empty() || spin.read_clock;
        if spin.dirty {
            scheduler.now_ps += poll_ps;
            return SpinStep::Again;
        }
        if scheduler.wanted() {
            // Advance the clock before the thread yields its CPU. If context switches cost nothing,
            // the threads of a CPU could otherwise yield to each other forever, at the same virtual
            // time.
            scheduler.now_ps += poll_ps;
            scheduler.give_way();
            return SpinStep::Wait;
        }
        let mut wake_ps = deadline_ps;
        if polls {
            wake_ps = wake_ps.min(scheduler.now_ps + poll_ps * *growth);
            *growth = (*growth * 2).min(POLL_GROWTH_MAX);
        }
        scheduler.spin(ThreadPhase::Spinning);
        scheduler.set_timer(scheduler.thread, wake_ps);
        SpinStep::Wait
    }

    /// Handles `spin_until` in a destructor during a panic. No other thread runs then, so only the
    /// deadline can end the wait.
    fn spin_in_panic(&mut self, deadline_ps: u64) -> SpinStep {
        if deadline_ps < u64::MAX {
            self.scheduler.now_ps = deadline_ps;
            return SpinStep::TimedOut;
        }
        self.fail("the thread panicked, and a destructor waits for another thread".into());
        SpinStep::Wait
    }

    #[cold]
    pub(crate) fn record(&mut self, line: &LineState) {
        let mut watch = line.watch.load(Relaxed);
        if watch == 0 {
            self.watches.push(Vec::new());
            watch = self.watches.len() as u32;
            line.watch.store(watch, Relaxed);
        }
        let thread = self.scheduler.thread;
        let watching = &mut self.scheduler.me().spin.watching;
        if !watching.contains(&watch) {
            watching.push(watch);
            self.watches[watch as usize - 1].push(thread);
        }
    }

    fn forget_lines(&mut self) {
        let thread = self.scheduler.thread;
        for watch in core::mem::take(&mut self.scheduler.me().spin.watching) {
            self.watches[watch as usize - 1].retain(|watcher| *watcher != thread);
        }
    }

    #[inline]
    pub(crate) fn wake_watchers(&mut self, line: &LineState, time_ps: u64) {
        let watch = line.watch.load(Relaxed);
        if watch != 0 {
            self.wake_list(watch, time_ps);
        }
    }

    #[cold]
    fn wake_list(&mut self, watch: u32, time_ps: u64) {
        let watchers = core::mem::take(&mut self.watches[watch as usize - 1]);
        let me = self.scheduler.thread;
        for &thread in watchers.iter().filter(|watcher| **watcher != me) {
            let state = self.scheduler.pool.thread_mut(thread);
            state.spin.dirty = true;
            if state.state == ThreadPhase::Spinning {
                self.scheduler.set_timer(thread, u64::MAX);
                self.scheduler.end_spin(thread, time_ps);
            }
        }
        self.watches[watch as usize - 1] = watchers;
    }
}
