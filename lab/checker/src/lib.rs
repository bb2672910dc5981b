//! `Checked`: the `Machine` that explores every interleaving and every memory order of a model.
//!
//! A model is a closure that creates its data, starts a few threads and asserts a property. The
//! [`Explorer`] runs the model repeatedly with different choices: the thread that runs next, the
//! store that a load reads, the position of a store in modification order. Failures are panics,
//! data races on `Line`s, and threads that can never continue (lost wake-ups, deadlocks).
//! Executions share nothing but the trail of choices. Only tests and the explorer use this crate.
//! ARCHITECTURE.md lists the limits of the method. Source: Kang et al., POPL 2017; for waits,
//! Kokologiannakis et al., "Effective lock handling in stateless model checking", OOPSLA 2019.

#![doc = include_str!("../README.md")]

mod execute;
mod explorer;
mod memory;
#[doc(hidden)]
pub mod plant;
mod primitives;
mod race;
mod schedule;
mod session;
mod trail;
mod view;

pub use explorer::{Explorer, Failure, Report};
pub use primitives::{
    CheckedCounter, CheckedGuard, CheckedLine, CheckedLock, CheckedMeter, CheckedParker,
    CheckedThread, CheckedWord, meter_locks, unmeter_locks,
};

use millrace_machine::{CpuId, Machine, Order, Stage, Topology};
use session::{WaitReason, fail, turn, with};

/// Implementation of `Machine` under which the checker explores all thread orders of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked;

// SAFETY: one thread of an exploration runs at a time, so its real accesses are ordered.
// Relaxed and acquire/release orders are simulated in memory.rs.
#[allow(unsafe_code)]
unsafe impl Machine for Checked {
    type Lock<T: Send> = CheckedLock<T>;
    type Word = CheckedWord;
    type Line<T: Send> = CheckedLine<T>;
    type Counter = CheckedCounter;
    type Parker = CheckedParker;
    type Thread = CheckedThread;
    type Meter = CheckedMeter;

    const THREADS_MOVE: bool = false;

    /// Returns the virtual time, which changes only when a deadline passes.
    fn now() -> u64 {
        with(|s| s.now_ns)
    }

    /// Returns the CPU on which the thread was started, or CPU 0.
    fn cpu() -> CpuId {
        CpuId(with(|s| s.here().cpu))
    }

    /// Returns a single NUMA node with the number of CPUs that `Explorer::cpus` set.
    fn topology() -> Topology {
        Topology::uniform(1, with(|s| s.bounds.cpus))
    }

    fn fence(order: Order) {
        assert!(order != Order::Relaxed, "there is no relaxed fence");
        if order == Order::SeqCst {
            turn();
        }
        with(|s| {
            s.acted();
            let (memory, turn) = s.access();
            memory.fence(turn.views, order);
            s.note(|| format!("fence {order:?}"));
        });
    }

    fn spawn(name: &str, cpu: Option<CpuId>, body: Box<dyn FnOnce() + Send>) -> CheckedThread {
        let cpu = cpu.map(|cpu| cpu.0);
        let index = with(|s| s.spawn(name, cpu, body)).unwrap_or_else(|| {
            fail("more than 8 threads in one execution".to_string());
            0
        });
        CheckedThread(index)
    }

    fn is_panicking() -> bool {
        std::thread::panicking()
    }

    /// Evaluates `ready` until it returns true or the deadline passes. After a failed evaluation
    /// the thread waits until one of the locations that `ready` read has a newer value. A model
    /// must not depend on the number of evaluations.
    fn spin_until(deadline_ns: u64, mut ready: impl FnMut() -> bool) -> bool {
        loop {
            let (outer, since) = with(|s| (core::mem::take(&mut s.touched), s.memory.stored));
            let hit = ready();
            let (touched, failed) = with(|s| {
                let touched = s.touched;
                s.touched |= outer;
                (touched, s.failure.is_some())
            });
            if hit || failed {
                return hit;
            }
            let deadline = (deadline_ns != u64::MAX).then_some(deadline_ns);
            let text = "waits until a word or lock that its condition uses changes";
            with(|s| s.note(|| text.to_string()));
            session::wait(WaitReason::Change { set: touched, since, deadline_ns: deadline });
            if !with(|s| s.resume_await(touched, since, deadline_ns)) {
                return false;
            }
        }
    }

    fn work(_stage: Stage, _units: u32) {}
}

/// Fails the execution unless `holds` is true. The thread does not unwind, unlike with `assert!`,
/// so that no destructor of unfinished work runs.
#[track_caller]
pub fn ensure(holds: bool, what: &str) {
    if !holds {
        let place = core::panic::Location::caller();
        fail(format!("{what} ({}:{})", place.file(), place.line()));
    }
}
