//! Hyper-threads, and the choice of the CPU on which a thread wakes.
//!
//! The CPUs of one core (siblings) share its execution units. Work on a CPU takes longer while a
//! sibling also works; a sibling that spins does not count. Only the siblings' state at the CPU's
//! last access to shared data counts. Cache line transfers between siblings cost as much as between
//! cores: a shared L1 is not modelled.
//!
//! A thread that may roam (change its CPU) wakes on the first idle CPU of this list:
//!
//! - The CPU on which the thread ran last.
//! - The first CPU of a core of the same socket, if all CPUs of the core are idle.
//! - A sibling of the CPU on which the thread ran last.
//!
//! If no such CPU is idle, the thread wakes where it ran last. Called by the scheduler. Kernel
//! counterpart: `select_idle_sibling` (kernel/sched/fair.c, 3.17). Not modelled: a CPU that pulls
//! threads when it becomes idle, and periodic balancing.

use crate::model::Model;
use crate::scheduler::Scheduler;
use crate::scheduler::pool::{NO_THREAD, ThreadPhase};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Siblings {
    per_core: usize,
    cores_per_socket: usize,
    /// Factor by which work slows down while siblings are busy, in units of 1/65536.
    shared: u64,
}

impl Siblings {
    pub(crate) fn new(model: &Model) -> Siblings {
        let cores_per_socket = model.cores_per_socket as usize;
        let Some(threads) = &model.hyper_threads else {
            return Siblings { per_core: 1, cores_per_socket, shared: 1 << 16 };
        };
        let shared = f64::from(threads.per_core) / threads.gain.factor * 65_536.0;
        let per_core = threads.per_core as usize;
        Siblings { per_core, cores_per_socket, shared: shared.max(65_536.0).round() as u64 }
    }
}

impl Scheduler {
    /// Returns the duration of work on this CPU: longer than `alone_ps` if a sibling is busy.
    #[inline]
    pub(crate) fn stretched(&self, alone_ps: u64) -> u64 {
        if self.siblings.per_core == 1 { alone_ps } else { self.stretched_on(self.cpu, alone_ps) }
    }

    pub(crate) fn stretched_on(&self, cpu: usize, alone_ps: u64) -> u64 {
        let first = cpu - cpu % self.siblings.per_core;
        let others = (first..first + self.siblings.per_core).filter(|other| *other != cpu);
        if !others.into_iter().any(|other| self.works(other)) {
            return alone_ps;
        }
        ((u128::from(alone_ps) * u128::from(self.siblings.shared)) >> 16) as u64
    }

    fn works(&self, cpu: usize) -> bool {
        let thread = self.cpus[cpu].current;
        thread != NO_THREAD
            && !matches!(
                self.pool.thread(thread).state,
                ThreadPhase::Spinning | ThreadPhase::Locking(_)
            )
    }

    fn is_idle(&self, cpu: usize) -> bool {
        self.cpus[cpu].current == NO_THREAD && self.cpus[cpu].queue.is_empty()
    }

    /// Lets the running thread wake on any CPU of its socket from now on.
    pub(crate) fn roam(&mut self) {
        self.me().roams = true;
    }

    /// Moves a sleeping thread to an idle CPU if the thread may roam. Called before the thread
    /// becomes ready.
    pub(crate) fn place(&mut self, thread: u32) {
        let state = self.pool.thread(thread);
        if !state.roams || state.body.is_some() {
            return;
        }
        let (from, to) = (state.cpu, self.idle_cpu_near(state.cpu));
        if from != to {
            let (old_ps, new_ps) = (self.cpus[from].fair.least_ps, self.cpus[to].fair.least_ps);
            let state = self.pool.thread_mut(thread);
            state.cpu = to;
            // A run time has a meaning only relative to the minimum run time of its CPU. Keep the
            // difference when the thread moves to another CPU.
            state.ran_ps = (state.ran_ps + new_ps).saturating_sub(old_ps);
        }
    }

    fn idle_cpu_near(&self, last: usize) -> usize {
        if self.is_idle(last) {
            return last;
        }
        let Siblings { per_core, cores_per_socket, .. } = self.siblings;
        let core = last / per_core;
        let socket = core - core % cores_per_socket;
        let cores = (0..cores_per_socket)
            .map(|step| (socket + (core - socket + step) % cores_per_socket) * per_core);
        let mut whole = cores.filter(|first| (0..per_core).all(|i| self.is_idle(first + i)));
        let sibling = || (core * per_core..(core + 1) * per_core).find(|cpu| self.is_idle(*cpu));
        whole.next().or_else(sibling).unwrap_or(last)
    }
}
