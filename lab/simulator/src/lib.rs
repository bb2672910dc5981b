//! `Simulated`: a many-core NUMA machine in virtual time, on which the production code runs
//! unchanged.
//!
//! This crate is a second implementation of `Machine`. Simulated threads are coroutines. A
//! discrete-event loop runs them on one system thread (run.rs, scheduler.rs), in the order of the
//! clocks of their CPUs (world.rs). All costs come from a `Model`:
//!
//! - An access to a cache line costs more with a longer distance (line.rs, fabric.rs).
//! - A lock costs more with more spinning CPUs (lock.rs).
//! - The cost of sleeping and waking depends on the state of the CPUs (thread.rs).
//! - The cost of work depends on its `Stage`.
//!
//! Outside a running simulation nothing takes virtual time: objects may be created, read and
//! dropped there. An object belongs to one simulation at a time. Source: \[MQ\] for the costs to
//! model.

#![doc = include_str!("../README.md")]

mod memory;
mod model;
mod primitives;
mod report;
mod run;
mod scheduler;
mod world;

pub use memory::fabric::LinkUse;
pub use model::transfer::Transfer;
pub use model::{
    CPUS_MAX, CacheCosts, Cost, CpuCosts, Factor, Fairness, HyperThreads, Lines, Model, ModelError,
    Rate, SOCKETS_MAX, Share, ThreadCosts, Turns, Wiring, WorkCosts,
};
pub use primitives::lock::{SimGuard, SimLock};
pub use primitives::meter::SimMeter;
pub use primitives::thread::{SimParker, SimThread};
pub use primitives::word::{SimCounter, SimLine, SimWord};
pub use report::{BEGIN_NS, BlockedThread, CpuTimes, Report, SimError};
pub use run::Simulation;
pub use world::still::StillGuard;

use millrace_machine::{CpuId, Machine, Order, Stage, Topology};
use model::time::PS_PER_NS;
use world::{pass, private, shared};

/// The [`Machine`] whose calls the running [`Simulation`] serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Simulated;

// SAFETY: one thread of a simulation runs at a time, so all its accesses are ordered.
// Outside a simulation, `fence` executes a real fence.
#[allow(unsafe_code)]
unsafe impl Machine for Simulated {
    type Lock<T: Send> = SimLock<T>;
    type Word = SimWord;
    type Line<T: Send> = SimLine<T>;
    type Counter = SimCounter;
    type Parker = SimParker;
    type Thread = SimThread;
    type Meter = SimMeter;

    const THREADS_MOVE: bool = false;

    /// Returns the virtual time in nanoseconds. Outside a simulation, returns the time at which
    /// every simulation begins.
    #[inline]
    fn now() -> u64 {
        pass(|world| {
            if world.scheduler.recording {
                world.scheduler.me().spin.read_clock = true;
            }
            world.scheduler.stretched(world.prices.clock_read)
        });
        private(|world| world.scheduler.now_ps / PS_PER_NS).unwrap_or(BEGIN_NS)
    }

    /// Returns the number of the caller's CPU, or 0 outside a simulation.
    #[inline]
    fn cpu() -> CpuId {
        CpuId(private(|world| world.scheduler.cpu as u32).unwrap_or(0))
    }

    /// Returns the simulated topology; outside a simulation, a single CPU.
    fn topology() -> Topology {
        private(|world| world.topology()).unwrap_or_else(|| Topology::uniform(1, 1))
    }

    #[inline]
    fn fence(order: Order) {
        if !Simulated::is_running() {
            core::sync::atomic::fence(order);
        } else if order == Order::SeqCst {
            pass(|world| world.prices.fence);
        }
    }

    /// Starts a simulated thread. A thread without a given CPU is placed on the CPU after that of
    /// the last thread started.
    ///
    /// # Panics
    /// Panics outside a simulation, if the machine has no such CPU, or if there are already 4,096
    /// threads.
    fn spawn(name: &str, cpu: Option<CpuId>, body: Box<dyn FnOnce() + Send>) -> SimThread {
        let cpus = private(|world| world.scheduler.cpus.len() as u32);
        let cpus = cpus.expect("only simulated threads can start simulated threads");
        assert!(cpu.is_none_or(|cpu| cpu.0 < cpus), "thread {name}: there is no CPU {cpu:?}");
        let started = shared(|world| {
            world.scheduler.charge_system_call();
            world.scheduler.add_thread(name, cpu.map(|cpu| cpu.0 as usize), body)
        });
        let (thread, ended) = started.expect("the caller is inside a simulation, as checked above");
        SimThread { thread, ended }
    }

    fn is_panicking() -> bool {
        std::thread::panicking()
    }

    fn spin_until(deadline_ns: u64, ready: impl FnMut() -> bool) -> bool {
        primitives::spin::spin_until(deadline_ns, ready)
    }

    #[inline]
    fn work(stage: Stage, units: u32) {
        pass(|world| {
            let alone_ps = world.prices.work_ps(stage, units, &mut world.random);
            world.scheduler.stretched(alone_ps)
        });
    }
}

/// Maximum time that one call adds to a clock: two hours, in nanoseconds.
const CHARGE_NS_MAX: u64 = 2 * 3_600 * 1_000_000_000;

impl Simulated {
    /// Returns true if the caller runs in a simulation.
    #[must_use]
    pub fn is_running() -> bool {
        private(|_| ()).is_some()
    }

    /// Keeps the caller's CPU busy for `ns` nanoseconds, at most two hours.
    pub fn charge(ns: u64) {
        pass(|world| world.scheduler.stretched(ns.min(CHARGE_NS_MAX) * PS_PER_NS));
    }

    /// Stops all CPUs for `ns` nanoseconds, at most two hours, as a signal, a freezer or a
    /// hypervisor stops a process. Deadlines pass during this time; threads whose deadline has
    /// passed run afterwards.
    pub fn stop_all(ns: u64) {
        pass(|world| scheduler::stop_all(&mut world.scheduler, ns.min(CHARGE_NS_MAX) * PS_PER_NS));
    }

    /// Advances the clock of the caller's CPU by the time of an empty system call.
    pub fn system_call() {
        pass(|world| world.scheduler.stretched(world.scheduler.prices.system_call));
    }

    /// Allows the caller to wake on another CPU of its socket from now on, if the CPU on which it
    /// slept is busy and another one is idle. Code that depends on [`Machine::cpu`] must query the
    /// CPU again after each sleep.
    ///
    /// # Source
    /// `select_idle_sibling`, kernel/sched/fair.c of Linux 3.17.
    pub fn roam() {
        private(|world| world.scheduler.roam());
    }

    /// Protects the caller from preemption, even while the caller spins. A thread that holds a lock
    /// has the same protection. Each call must be undone by a call of [`Simulated::release_cpu`].
    pub fn keep_cpu() {
        private(|world| world.scheduler.me().locks += 1);
    }

    /// Undoes one call of [`Simulated::keep_cpu`]. The caller may be preempted again once all its
    /// calls of `keep_cpu` are undone and it holds no lock.
    pub fn release_cpu() {
        private(|world| world.scheduler.me().locks -= 1);
    }

    /// Sends an interrupt to another CPU; both CPUs spend time on the interrupt.
    ///
    /// # Panics
    /// Panics if the machine has no such CPU.
    pub fn interrupt(cpu: CpuId) {
        shared(|world| {
            world.events += 1;
            world.scheduler.interrupt(cpu.0 as usize);
        });
    }
}
