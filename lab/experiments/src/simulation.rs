//! Benchmarks on the simulated machine, and on this machine with lock statistics.
//!
//! `machines` names the machine models, and `interface` models the submission interface. `irq` and
//! `poller` model the handling of interrupts. `host_adapter` models state of a SCSI host that its
//! drives share. `linux24` models raw I/O of Linux 2.4, and `linux3` shared state of kernels of
//! 2013 outside of the block layer. `bounce` marks the data of a drive as copied through bounce
//! buffers. `window` selects the measured part of a run. `job` and `raw_job` submit I/O, and
//! `workers` serve drives. `file_costs` has the CPU time that I/O to files takes outside of the
//! block layer. `program` has threads that do I/O like programs, through a cache or directly.
//! `tags` samples the tags in use. `run` runs one simulation, and `rows` runs many. Jobs use the
//! production code of the block layer and the drives. The binary's verbs call this module.

mod bounce;
mod coalescing;
mod file_costs;
mod host_adapter;
mod interface;
mod irq;
mod job;
mod linux24;
mod linux3;
mod machines;
mod poller;
pub(crate) mod program;
mod raw_job;
mod rows;
mod run;
mod tags;
pub(crate) mod window;
mod workers;

use millrace_block::baseline::{Inside, Stack};
use millrace_block::{ControllerConfig, Layout, SchedulerKind, ServingConfig, Spread, Stamp};
use millrace_drives::{Spec, Words};
use millrace_runtime::RecorderConfig;

use crate::load::bench::BenchError;
use crate::load::row::{MachineRow, Queues};
use crate::load::threads::cpu_of;
use crate::load::workload::{Workload, text_by_words};

pub(crate) use file_costs::FileCosts;
pub use host_adapter::HostAdapterConfig;
pub use interface::{Host, InterfaceKind, Stop};
pub use linux3::{DioCount, KernelKind, Linux3};
pub(crate) use linux24::KernelCosts;
pub use linux24::{Linux24, LockScope, Readv, TimeUse};
pub(crate) use machines::read_costs;
pub use machines::{MachineError, machine, machine_names};
pub(crate) use poller::PollerDriver;
pub use rows::run_rows;
pub use run::{
    ObservedRow, run_metered, run_metered_until, run_observed, run_simulated, run_simulated_until,
};
pub use tags::TagSample;
pub use window::Length;
pub(crate) use window::{Window, WindowStep};
pub(crate) use workers::Workers;

/// Handling of the interrupts of drives that complete asynchronously.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Irq {
    /// No interrupts: the submitter polls for completions on its own CPU.
    #[default]
    Submitter,
    /// CPU 0 takes all interrupts and notifies the submitters' CPUs.
    Core0,
    /// The first CPU of the hardware queue's socket takes the interrupts and notifies the
    /// submitters' CPUs.
    Steered,
    /// No interrupt handler: the drive is polled. If a poll finds completions, the polling CPU also
    /// spends the time of one interrupt.
    Poller,
}

impl Irq {
    fn is_polled(self) -> bool {
        matches!(self, Irq::Submitter | Irq::Poller)
    }
}

impl Words for Irq {
    const WORDS: &'static [(Irq, &'static str)] = &[
        (Irq::Submitter, "submitter"),
        (Irq::Core0, "core0"),
        (Irq::Steered, "steered"),
        (Irq::Poller, "poller"),
    ];
}

text_by_words!(Irq);

/// Configuration of the drives of a [`SimPlan`], and of the kernel that the simulation models.
#[derive(Debug, Clone, Default)]
pub struct Service {
    /// Controllers to which the specifications of drives may refer by name.
    pub controllers: Vec<ControllerConfig>,
    /// Serving mode of the volume.
    pub serving: ServingConfig,
    /// CPUs of the drives' workers; empty for no workers.
    pub worker_cpus: Vec<u32>,
    /// If true, each drive is a volume of its own; job j uses volume j modulo their number.
    pub apart: bool,
    /// I/O scheduler of the drives.
    pub scheduler: SchedulerKind,
    /// If true, adjacent bios are not merged.
    pub nomerges: bool,
    /// Number of threads that may dispatch from a hardware queue at a time.
    pub inside: Inside,
    /// Simulated kernel state that all drives behind a host adapter share, such as the count of
    /// commands.
    pub adapter: HostAdapterConfig,
    /// Settings of raw I/O as in Linux 2.4.
    pub history: Linux24,
    /// Model of code outside of the block layer in the kernels of 2012 and 2013: shared state, and
    /// preemption by a kernel thread.
    pub linux3: Linux3,
    /// If true, each I/O is direct I/O to a file, which takes more time at submission on a
    /// simulated machine.
    pub of_file: bool,
}

/// A benchmark to run on a simulated machine, or on the real machine with lock statistics.
#[derive(Debug, Clone)]
pub struct SimPlan {
    /// Drives of kinds that also run on a simulated machine: `null`, `ram` and `model`.
    pub drives: Vec<Spec>,
    /// Layout of the volume.
    pub layout: Layout,
    /// Configuration of the drives and the kernel.
    pub service: Service,
    /// Design of the block layer.
    pub stack: Stack,
    /// Distribution of software queues: one per core, one per NUMA node, or a single queue.
    pub software_queues: Spread,
    /// Distribution of hardware queues: one per core, one per NUMA node, or a single queue.
    pub hardware_queues: Spread,
    /// CPUs of the jobs: job i runs on `cpus[i % len]`. Must not be empty on a simulated machine.
    pub cpus: Vec<u32>,
    /// Number of submitters, 1 to 65,535.
    pub jobs: u32,
    /// Workload of each job. Its seed is also the seed of the simulation.
    pub workload: Workload,
    /// Length of the measured window.
    pub length: Length,
    /// Granularity of the timestamps: one for each batch or for each I/O.
    pub stamp: Stamp,
    /// Submission interface of the jobs.
    pub interface: InterfaceKind,
    /// Number of I/Os submitted together, at least 1, as fio's `iodepth_batch_submit`. `None`
    /// submits all I/Os that the I/O depth allows.
    pub batch: Option<u32>,
    /// Handling of the drives' interrupts.
    pub irq: Irq,
    /// Results to collect in addition to the benchmark's `Row`.
    pub watch: Watch,
}

/// Results to collect in addition to a benchmark's `Row`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watch {
    /// Report lock statistics.
    pub locks: bool,
    /// If given, a thread samples the tags in use. Fields: the thread's own CPU, and the period in
    /// nanoseconds.
    pub tags: Option<(u32, u64)>,
    /// If given, every trace event of every I/O is recorded.
    pub trace: Option<RecordingPlan>,
}

/// Settings for recording the trace events of a benchmark's I/Os.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordingPlan {
    /// Settings of the recorder: its output, and the names of the devices.
    pub config: RecorderConfig,
    /// Device numbers of the drives.
    pub devices: Vec<u32>,
    /// Number of events in each thread's ring. On a simulated machine, rings are emptied after the
    /// run, and events that find their ring full are dropped.
    pub ring: usize,
}

const THREADS_MAX: u32 = 4_096;

impl SimPlan {
    fn cpu_of(&self, job: u32) -> Option<u32> {
        cpu_of(&self.cpus, job)
    }

    fn check(&self, cpus: u32) -> Result<(), BenchError> {
        let wrong = |text: String| Err(BenchError::Workload(text));
        if self.jobs == 0 || self.jobs > 65_535 {
            return wrong(format!("{} jobs: the number of jobs must be 1 to 65535", self.jobs));
        }
        if cpus != u32::MAX && self.cpus.is_empty() {
            return wrong("the plan names no CPU to run jobs on".into());
        }
        // Threads besides the submitting ones: the main thread, the sampler of the tags in use, the
        // drives' workers, and an interrupt handler for each CPU.
        let others = (2 + self.service.worker_cpus.len() as u32).saturating_add(cpus);
        let most = THREADS_MAX.saturating_sub(others);
        if cpus != u32::MAX && self.jobs > most {
            let jobs = self.jobs;
            return wrong(format!(
                "numjobs={jobs}: a simulated machine has room for {THREADS_MAX} threads; use \
                 {most} or fewer"
            ));
        }
        let mut used = self.cpus.iter().chain(&self.service.worker_cpus);
        if let Some(cpu) = used.find(|cpu| **cpu >= cpus) {
            return wrong(format!("CPU {cpu} does not exist: the machine has {cpus}"));
        }
        if self.interface == InterfaceKind::Sync && self.workload.iodepth != 1 {
            let depth = self.workload.iodepth;
            return wrong(format!("interface sync has one I/O in flight: iodepth is {depth}"));
        }
        self.service.history.check(self.workload.bs_bytes, self.workload.iodepth)?;
        if self.workload.verify {
            return wrong(
                "verify is not possible: the data of these drives and buffers is not kept".into(),
            );
        }
        Ok(())
    }

    fn machine_row(&self, machine: &str) -> MachineRow {
        MachineRow {
            machine: machine.to_owned(),
            interface: self.interface.to_string(),
            irq: self.irq.to_string(),
            batch: self.batch,
            history: self.service.history.row(self.service.inside, &self.service.linux3),
            seed: self.workload.seed,
            ..MachineRow::default()
        }
    }

    fn queues(&self) -> Queues {
        Queues {
            stack: self.stack.word().into(),
            scheduler: self.service.scheduler.word().into(),
            software_queues: self.software_queues.word().into(),
            hardware_queues: self.hardware_queues.word().into(),
            cpus: self.cpus.len() as u32,
            serving: self.service.serving.serving.name().into(),
        }
    }
}
