//! A simulated virtual machine: guest, virtqueues and I/O threads, in virtual time.
//!
//! vCPUs and I/O threads are simulated threads that share the host's CPUs. The modules:
//! - `guest`: the thread of a vCPU, with a process and the guest's driver.
//! - `vcpu`: a vCPU as other threads see it.
//! - `ring`: a virtqueue with its driver's lock and notification suppression.
//! - `spinlock`: a lock of the guest's kernel.
//! - `memory`: QEMU's map of the guest's memory.
//! - `iothread`: an I/O thread of the host. It uses the production block layer and the production
//!   policies of vhost (`BatchPacer`, `Polling`).
//! - `machine`: the state that all threads share.
//! - `costs`: the costs of virtualisation, from a file.
//! - `run`: runs one simulation.
//! - `bench`: runs one simulation for the command line.
//!
//! Source: \[MIOT\].
//!
//! Not modelled: idle CPUs that pull threads from busy CPUs; cache and TLB pollution by exits;
//! nested paging; timer ticks; directed yields of spinning vCPUs.

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueService {
    /// Number of virtqueues. vCPU v uses queue v modulo this number.
    pub(crate) queues: u32,
    /// Number of I/O threads. Queue q belongs to thread q modulo this number.
    pub(crate) threads: u32,
    /// If true, the drive's interrupts go to the I/O thread's core, and each queue's interrupts to
    /// the queue's vCPU. If false, CPU 0 takes all interrupts of the drive and forwards them, and
    /// vCPU 0 takes all interrupts of the queues.
    pub(crate) steered: bool,
    /// Longest wait for further requests by workload-aware batching, in nanoseconds; 0 disables
    /// batching.
    pub(crate) wait_max_ns: u64,
    /// Longest time that an I/O thread polls, in nanoseconds; 0 disables polling.
    pub(crate) poll_max_ns: u64,
}

pub(crate) const WAIT_MAX_NS: u64 = 20_000;

impl QueueService {
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

    /// Returns the CPU on which an I/O thread starts. A single I/O thread starts on the last CPU
    /// and may move. Several I/O threads are pinned: one per core, then further ones on the cores'
    /// second CPUs.
    fn thread_cpu(self, thread: u32, model: &Model) -> u32 {
        if self.threads == 1 { model.cpus() - 1 } else { machine::cpu_of(model, thread) }
    }

    fn target(self, queue: u32) -> u32 {
        if self.steered { queue } else { 0 }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct VmPlan {
    /// Number of vCPUs, placed on one CPU of each core first, and then on the cores' second CPUs.
    pub(crate) vcpus: u32,
    /// Number of submitting processes. Process p runs on vCPU p.
    pub(crate) processes: u32,
    pub(crate) served: QueueService,
    pub(crate) without: Vec<Effect>,
    pub(crate) workload: Workload,
    /// Drive of the guest, with interrupts if `interrupts` is true.
    pub(crate) drive: Spec,
    pub(crate) interrupts: bool,
    pub(crate) length: Length,
}

impl VmPlan {
    fn has(&self, effect: Effect) -> bool {
        !self.without.contains(&effect)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Number of VM exits caused by a vCPU that notified the device. The next three fields are the
    /// numbers of VM exits for interrupts, halts and IPIs.
    pub(crate) kicks: u64,
    pub(crate) interrupted: u64,
    pub(crate) halts: u64,
    pub(crate) ipis: u64,
    pub(crate) signals: u64,
    pub(crate) submissions: u64,
    pub(crate) submitted: u64,
    pub(crate) held: u64,
    pub(crate) sleeps: u64,
    /// Sum of the latencies of the `reaped` requests, from submission in the guest to reaping, in
    /// nanoseconds.
    pub(crate) latency_ns: u64,
    pub(crate) reaped: u64,
}

impl Counts {
    pub(crate) fn exits(&self) -> u64 {
        self.kicks + self.interrupted + self.halts + self.ipis
    }

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
