//! Threads and parkers of the simulated machine.
//!
//! A thread that sleeps leaves its CPU to the next thread in the CPU's run queue. The waking thread
//! pays for the wake-up. If the sleeper's CPU is idle, the sleeper continues after a latency,
//! otherwise it joins the CPU's run queue. A wake-up that comes before the sleep is kept. Kernel
//! counterpart: an eventfd and `try_to_wake_up`.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::Arc;

use crate::model::time::PS_PER_NS;
use crate::scheduler::pool::{EndFlag, NO_THREAD, ThreadPhase};
use crate::world::{World, shared, suspend};
use millrace_machine::{Parker, Thread};

/// A handle of a thread of the simulated machine.
#[derive(Debug)]
pub struct SimThread {
    pub(crate) thread: u32,
    pub(crate) ended: Arc<EndFlag>,
}

impl Thread for SimThread {
    /// Waits until the thread has ended. Always returns true, because a panic in any thread ends
    /// the whole simulation.
    ///
    /// # Panics
    /// Panics if the thread has not ended and the caller is not in the thread's simulation.
    fn join(self) -> bool {
        let waits = shared(|world| {
            if self.ended.is_set() {
                return false;
            }
            let scheduler = &mut world.scheduler;
            let me = scheduler.thread;
            scheduler.pool.thread_mut(self.thread).joiners.push(me);
            scheduler.charge_system_call();
            scheduler.block(ThreadPhase::Joining(self.thread));
            true
        });
        if waits == Some(true) {
            suspend();
        }
        assert!(self.ended.is_set(), "a thread must be joined in its own simulation");
        true
    }
}

#[derive(Debug)]
struct ParkState {
    /// True if a wake-up was sent that no sleep has consumed yet.
    pending: AtomicBool,
    sleeper: AtomicU32,
    epoch: AtomicU32,
}

/// Lets a thread of the simulated machine sleep until another thread wakes it.
#[derive(Debug, Clone)]
pub struct SimParker(Arc<ParkState>);

impl Parker for SimParker {
    fn new() -> Self {
        SimParker(Arc::new(ParkState {
            pending: AtomicBool::new(false),
            sleeper: AtomicU32::new(NO_THREAD),
            epoch: AtomicU32::new(0),
        }))
    }

    /// Sleeps until woken or until the deadline. Returns at once outside a simulation.
    fn park(&self, deadline_ns: Option<u64>) {
        let sleeps = shared(|world| world.park(&self.0, deadline_ns));
        if sleeps == Some(true) {
            suspend();
            self.0.sleeper.store(NO_THREAD, Relaxed);
            self.0.pending.store(false, Relaxed);
        }
    }

    fn unpark(&self) {
        if shared(|world| world.unpark(&self.0)).is_none() {
            self.0.pending.store(true, Relaxed);
        }
    }
}

impl World {
    /// Puts the running thread to sleep. Returns false if a wake-up is pending or the deadline has
    /// passed.
    fn park(&mut self, sleep: &ParkState, deadline_ns: Option<u64>) -> bool {
        self.events += 1;
        let scheduler = &mut self.scheduler;
        scheduler.charge_system_call();
        let deadline_ps = deadline_ns.map_or(u64::MAX, |ns| ns.saturating_mul(PS_PER_NS));
        if sleep.pending.swap(false, Relaxed) || deadline_ps <= scheduler.now_ps {
            return false;
        }
        if std::thread::panicking() {
            // No other thread runs during a panic, so no wake-up can come. Advance the clock to the
            // deadline, by at most 1 ms.
            scheduler.now_ps = deadline_ps.min(scheduler.now_ps + 1_000_000_000);
            return false;
        }
        sleep.sleeper.store(scheduler.thread, Relaxed);
        sleep.epoch.store(self.epoch, Relaxed);
        scheduler.set_timer(scheduler.thread, deadline_ps);
        scheduler.block(ThreadPhase::Parked);
        true
    }

    fn unpark(&mut self, sleep: &ParkState) {
        self.events += 1;
        let scheduler = &mut self.scheduler;
        let time_ps = scheduler.now_ps;
        let sleeper = sleep.sleeper.load(Relaxed);
        let was_pending = sleep.pending.swap(true, Relaxed);
        let asleep = sleeper != NO_THREAD && sleep.epoch.load(Relaxed) == self.epoch;
        if was_pending || !asleep || scheduler.pool.thread(sleeper).state != ThreadPhase::Parked {
            scheduler.charge_system_call();
            return;
        }
        scheduler.now_ps += scheduler.prices.wake;
        scheduler.set_timer(sleeper, u64::MAX);
        scheduler.make_ready(sleeper, time_ps);
    }
}
