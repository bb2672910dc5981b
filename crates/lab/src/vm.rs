//! A virtual machine on the simulated machine: guest, virtqueues and I/O threads in virtual time.
//!
//! `costs` is what virtualisation costs, from a file; `ring` a virtqueue with its lock and its
//! suppression of notifications; `vcpu` a vCPU as others see it; `machine` what all threads share;
//! `guest` what runs on a vCPU: a process and the guest's driver; `iothread` the host's side: the
//! production block layer with the production policies of vhost (`Pace`, `Polling`); `run` one row.
//! vCPUs and I/O threads are simulated threads that share the host's cores. Called by papers'
//! experiments. Source: \[MIOT\].
//!
//! What is left out: hyper-threads; a scheduler that moves threads, or takes a core from a vCPU
//! that holds a lock of the guest; caches and TLBs that an exit pollutes; nested paging; ticks.

mod costs;
mod guest;
mod iothread;
mod machine;
mod ring;
mod run;
mod vcpu;

use std::sync::{Mutex, MutexGuard, PoisonError};

use millrace_drives::Spec;

use crate::sim::Length;
use crate::workload::Workload;

pub(crate) use costs::VmCosts;
pub(crate) use run::{Seen, run_vm};

/// How a virtual machine's queues are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Served {
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

impl Served {
    /// CPU of an I/O thread: thread i on core i mod cores. One thread alone, which Linux would let
    /// wander, stays on the last core, to which processes come last.
    fn thread_cpu(self, thread: u32, cpus: u32) -> u32 {
        if self.threads == 1 { cpus - 1 } else { thread % cpus }
    }

    /// vCPU that a queue interrupts.
    fn target(self, queue: u32) -> u32 {
        if self.steered { queue } else { 0 }
    }
}

/// One row.
#[derive(Debug, Clone)]
pub(crate) struct VmPlan {
    /// vCPUs; vCPU v runs on core v mod cores.
    pub(crate) vcpus: u32,
    /// Submitting processes, process p on vCPU p.
    pub(crate) processes: u32,
    /// How the guest's queues are served.
    pub(crate) served: Served,
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
    /// Times that requests were held back, and that an I/O thread slept.
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
