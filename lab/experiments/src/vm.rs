//! A virtual machine on the simulated machine: guest, virtqueues and I/O threads in virtual time.
//!
//! `costs` is what virtualisation costs, from a file; `spinlock` a lock of the guest's kernel;
//! `ring` a virtqueue with its driver's lock and its suppression of notifications; `vcpu` a vCPU as
//! others see it; `memory` QEMU's map of the guest's memory; `machine` what all threads share;
//! `guest` what runs on a vCPU: a process and the guest's driver; `iothread` the host's side: the
//! production block layer with the production policies of vhost (`BatchPacer`, `Polling`); `run`
//! one row; `bench` a row of the command line. vCPUs and I/O threads are simulated threads that
//! share the host's CPUs. Called by papers' experiments and by `bench --vm`. Source: \[MIOT\].
//!
//! What is left out: threads that an idle CPU pulls; caches and TLBs that an exit pollutes; nested
//! paging; ticks; directed yields of vCPUs that spin.

mod bench;
mod costs;
mod guest;
mod iothread;
mod machine;
mod memory;
mod ring;
mod run;
mod spinlock;
mod vcpu;

use std::sync::{Mutex, MutexGuard, PoisonError};

use millrace_drives::Spec;
use millrace_simulator::Model;

use crate::load::workload::Workload;
use crate::simulation::Length;

pub use bench::{
    Effect, Mode, VCPUS_MAX, VmBench, VmGuest, VmIoCost, VmReport, VmSetting, VmWork, run_vm_bench,
};
pub(crate) use costs::VmCosts;
pub(crate) use run::{VmResult, run_vm, run_vm_until, share_nothing};
pub(crate) use spinlock::LockSeen;

/// How a virtual machine's queues are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueService {
    /// Virtqueues; vCPU v uses queue v mod queues.
    pub(crate) queues: u32,
    /// I/O threads; queue q belongs to thread q mod threads.
    pub(crate) threads: u32,
    /// Completions and interrupts stay where they belong: the drive's on the I/O thread's core, a
    /// queue's with its vCPU. Otherwise CPU 0 takes the drive's and forwards them, vCPU 0 takes all
    /// of the guest's.
    pub(crate) steered: bool,
    /// Longest wait of workload-aware batch submission; 0 is off.
    pub(crate) wait_max_ns: u64,
    /// Longest polling of an I/O thread; 0 is off.
    pub(crate) poll_max_ns: u64,
}

/// Longest that aware batching may hold a submission back.
pub(crate) const WAIT_MAX_NS: u64 = 20_000;

impl QueueService {
    /// What a mode has in a guest with so many vCPUs.
    pub(crate) const fn of(mode: Mode, vcpus: u32) -> QueueService {
        let one =
            QueueService { queues: 1, threads: 1, steered: true, wait_max_ns: 0, poll_max_ns: 0 };
        match mode {
            Mode::Baseline => one,
            Mode::Mq => QueueService { queues: vcpus, ..one },
            Mode::Miot => {
                QueueService { queues: vcpus, threads: vcpus, wait_max_ns: WAIT_MAX_NS, ..one }
            }
        }
    }

    /// CPU of an I/O thread: several are pinned, one to a core, then to their siblings. One alone
    /// begins on the last CPU, and wanders from there.
    fn thread_cpu(self, thread: u32, model: &Model) -> u32 {
        if self.threads == 1 { model.cpus() - 1 } else { machine::cpu_of(model, thread) }
    }

    /// vCPU that a queue interrupts.
    fn target(self, queue: u32) -> u32 {
        if self.steered { queue } else { 0 }
    }
}

/// Effects of the host that can be switched off, to see what each does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Effects {
    /// The host takes the CPU of a vCPU that holds a lock of the guest, or waits for one.
    pub(crate) preemption: bool,
    /// vCPUs, and an I/O thread that is alone, wake on idle CPUs.
    pub(crate) roaming: bool,
    /// CPUs of a core share its execution; without it they are cores.
    pub(crate) sharing: bool,
    /// Aware batching waits for no longer than the system calls take that it could save.
    pub(crate) bound: bool,
    /// All I/O threads share one map of the guest's memory, under one mutex.
    pub(crate) translation: bool,
    /// QEMU looks whether to interrupt after each request, not once for all that are done.
    pub(crate) signals: bool,
}

impl Effects {
    /// All of them.
    pub(crate) const ALL: Effects = Effects {
        preemption: true,
        roaming: true,
        sharing: true,
        bound: true,
        translation: true,
        signals: true,
    };
}

/// One row.
#[derive(Debug, Clone)]
pub(crate) struct VmPlan {
    /// vCPUs, which begin one to a core, then on their siblings.
    pub(crate) vcpus: u32,
    /// Submitting processes, process p on vCPU p.
    pub(crate) processes: u32,
    /// How the guest's queues are served.
    pub(crate) served: QueueService,
    /// Effects that are on.
    pub(crate) effects: Effects,
    /// What each process does.
    pub(crate) workload: Workload,
    /// The drive behind it, and whether it interrupts.
    pub(crate) drive: Spec,
    pub(crate) interrupts: bool,
    /// What is measured.
    pub(crate) length: Length,
}

/// What happened, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Exits by cause: notifications of the device, interrupts, halts, IPIs of the guest.
    pub(crate) kicks: u64,
    pub(crate) interrupted: u64,
    pub(crate) halts: u64,
    pub(crate) ipis: u64,
    /// Interrupts that the device raised, whether they made a vCPU exit or not.
    pub(crate) signals: u64,
    /// `io_submit` and the requests in them.
    pub(crate) submissions: u64,
    pub(crate) submitted: u64,
    /// Submissions that were held back, once or several times, and sleeps of I/O threads.
    pub(crate) held: u64,
    pub(crate) sleeps: u64,
    /// From submission in the guest to its reaping.
    pub(crate) latency_ns: u64,
    pub(crate) reaped: u64,
}

impl Counts {
    /// Exits of all causes.
    pub(crate) fn exits(&self) -> u64 {
        self.kicks + self.interrupted + self.halts + self.ipis
    }

    /// What came since.
    fn since(&self, before: &Counts) -> Counts {
        Counts {
            kicks: self.kicks - before.kicks,
            interrupted: self.interrupted - before.interrupted,
            halts: self.halts - before.halts,
            ipis: self.ipis - before.ipis,
            signals: self.signals - before.signals,
            submissions: self.submissions - before.submissions,
            submitted: self.submitted - before.submitted,
            held: self.held - before.held,
            sleeps: self.sleeps - before.sleeps,
            latency_ns: self.latency_ns - before.latency_ns,
            reaped: self.reaped - before.reaped,
        }
    }
}

/// The simulation's own state, which costs the machine nothing: all threads of a simulation are one
/// of the system's, and no guard is held over a call to the machine.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
