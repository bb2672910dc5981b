//! `Simulated`: a many-core NUMA machine in virtual time, on which the production code runs as is.
//!
//! The second implementation of `Machine`. Its CPUs are coroutines that a discrete-event loop runs
//! on one thread of the system (run.rs, scheduler.rs), in the order of their clocks (world.rs).
//! Accesses to cache lines cost by distance (line.rs, fabric.rs), locks by their spinners
//! (lock.rs), sleeping and waking by the threads involved (thread.rs), work by its stage; all
//! constants are a `Model`'s. Outside a running simulation nothing is charged: objects may be
//! made, read and dropped there. An object belongs to one simulation at a time. Source: \[MQ\] for
//! what to model.

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
pub use world::still::Still;

use millrace_machine::{CpuId, Machine, Order, Stage, Topology};
use model::time::PS_PER_NS;
use world::{pass, private, shared};

/// The machine that runs in a [`Simulation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Simulated;

// SAFETY: one thread of a simulation runs at a time, so that all its accesses are ordered. Outside
// one, `fence` is the standard library's.
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

    /// Outside a simulation, always when one begins.
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

    /// Outside a simulation, 0.
    #[inline]
    fn cpu() -> CpuId {
        CpuId(private(|world| world.scheduler.cpu as u32).unwrap_or(0))
    }

    /// Outside a simulation, one CPU.
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

    /// A thread without a CPU of its own choice is put on the one after that of the last thread.
    ///
    /// # Panics
    /// Outside a simulation, if there is no such CPU, or if there are 4,096 threads.
    fn spawn(name: &str, cpu: Option<CpuId>, body: Box<dyn FnOnce() + Send>) -> SimThread {
        let cpus = private(|world| world.scheduler.cpus.len() as u32);
        let cpus = cpus.expect("simulated threads are started by simulated threads");
        assert!(cpu.is_none_or(|cpu| cpu.0 < cpus), "thread {name}: there is no CPU {cpu:?}");
        let started = shared(|world| {
            world.scheduler.charge_system_call();
            world.scheduler.add_thread(name, cpu.map(|cpu| cpu.0 as usize), body)
        });
        let (thread, ended) = started.expect("asked for above");
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

/// What only programs made for the simulated machine do.
/// Longest time that one charge takes: two hours.
const CHARGE_NS_MAX: u64 = 2 * 3_600 * 1_000_000_000;

impl Simulated {
    /// Whether the caller runs in a simulation.
    #[must_use]
    pub fn is_running() -> bool {
        private(|_| ()).is_some()
    }

    /// Lets the caller's CPU work for a time, two hours at most.
    pub fn charge(ns: u64) {
        pass(|world| world.scheduler.stretched(ns.min(CHARGE_NS_MAX) * PS_PER_NS));
    }

    /// Stops all CPUs for a time, two hours at most, as a signal, a freezer or a hypervisor stops
    /// a process. Deadlines pass meanwhile; their threads run when the time is over.
    pub fn stop_all(ns: u64) {
        pass(|world| scheduler::stop_all(&mut world.scheduler, ns.min(CHARGE_NS_MAX) * PS_PER_NS));
    }

    /// Charges a system call that does nothing.
    pub fn system_call() {
        pass(|world| world.scheduler.stretched(world.scheduler.prices.system_call));
    }

    /// The caller may wake on another CPU of its socket from now on, if the one that it slept on is
    /// busy and another idle. What goes by [`Machine::cpu`] must ask again after each sleep.
    ///
    /// # Source
    /// `select_idle_sibling`, kernel/sched/fair.c of Linux 3.17.
    pub fn roam() {
        private(|world| world.scheduler.roam());
    }

    /// The caller's CPU is left to it from now on, as it is to the holder of a lock, even while the
    /// caller spins; until as many calls of [`Simulated::release_cpu`].
    pub fn keep_cpu() {
        private(|world| world.scheduler.me().locks += 1);
    }

    /// Takes one [`Simulated::keep_cpu`] back.
    pub fn release_cpu() {
        private(|world| world.scheduler.me().locks -= 1);
    }

    /// Interrupts another CPU: charges both.
    ///
    /// # Panics
    /// If there is no such CPU.
    pub fn interrupt(cpu: CpuId) {
        shared(|world| {
            world.events += 1;
            world.scheduler.interrupt(cpu.0 as usize);
        });
    }
}
