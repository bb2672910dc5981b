//! Experiments on the simulated machine, and on this one with lock statistics.
//!
//! `machines` names the machines, `interface` models how programs submit, `irq` and `poller` who
//! takes interrupts, `host_adapter` what drives behind a SCSI host shared, `linux24` how Linux 2.4
//! did raw I/O, `linux3` what kernels of 2013 had beside the layer, `bounce` a drive whose data it
//! copied, `window` says which part of a run counts, `job` and `raw_job` are submitters, `workers`
//! serve drives, `file_costs` is what a file adds, `program` are threads that work as programs do,
//! through a cache or straight, `tags` looks at tags meanwhile, `run` is a row, `rows` are many.
//! Everything below a job is the production code of the block layer and the drives. Called by the
//! binary's verbs.

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

use std::fmt;
use std::str::FromStr;

use millrace_block::{
    ControllerConfig, Inside, Layout, SchedulerKind, ServingConfig, Spread, Stack, Stamp,
};
use millrace_drives::{Spec, Words};
use millrace_runtime::RecorderConfig;

use crate::load::bench::BenchError;
use crate::load::row::Queues;
use crate::load::workload::Workload;

pub(crate) use file_costs::FileCosts;
pub use host_adapter::HostAdapterConfig;
pub use interface::{Host, InterfaceKind, Stop};
pub use linux3::{DioCount, KernelKind, Linux3};
pub(crate) use linux24::KernelCosts;
pub use linux24::{Linux24, LockScope, Readv, TimeUse};
pub(crate) use machines::check_origins;
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

/// The thread or CPU that takes the interrupts of drives that complete later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Irq {
    /// None: the submitter looks for completions, and finds them on its own core.
    #[default]
    Submitter,
    /// CPU 0 takes them all and forwards them.
    Core0,
    /// The first CPU of the hardware queue's socket takes and forwards them.
    Steered,
    /// The poller of a queue: one for each look that finds something done, as if the drive had
    /// interrupted it. A poller that was busy elsewhere finds several and pays once, where a drive
    /// that does not gather them would have interrupted it for each.
    Poller,
}

impl Irq {
    /// All, with their names.
    pub const NAMES: [(Irq, &'static str); 4] = [
        (Irq::Submitter, "submitter"),
        (Irq::Core0, "core0"),
        (Irq::Steered, "steered"),
        (Irq::Poller, "poller"),
    ];

    /// Whether completions are found by looking, and not by a handler of their own.
    fn is_polled(self) -> bool {
        matches!(self, Irq::Submitter | Irq::Poller)
    }
}

impl fmt::Display for Irq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Irq::NAMES.iter().find(|(irq, _)| irq == self).map_or("", |(_, name)| name);
        f.pad(name)
    }
}

impl FromStr for Irq {
    type Err = String;

    fn from_str(text: &str) -> Result<Irq, String> {
        let found = Irq::NAMES.iter().find(|(_, name)| *name == text);
        let names = Irq::NAMES.map(|(_, name)| name).join(", ");
        found.map(|(irq, _)| *irq).ok_or_else(|| format!("one of {names}"))
    }
}

/// How a row's drives are served, and what these hang on.
#[derive(Debug, Clone, Default)]
pub struct Service {
    /// Controllers that drives may name.
    pub controllers: Vec<ControllerConfig>,
    /// How the volume's drives are served.
    pub serving: ServingConfig,
    /// The CPUs of the drives' workers; none if empty.
    pub worker_cpus: Vec<u32>,
    /// Drive i is a volume of its own, of the jobs i, i + drives and so on.
    pub apart: bool,
    /// The order in which what waits goes to a drive.
    pub scheduler: SchedulerKind,
    /// Neighbours stay apart.
    pub nomerges: bool,
    /// The threads that may be inside a hardware queue.
    pub inside: Inside,
    /// What the kernel's driver and mid-layer had all drives share.
    pub adapter: HostAdapterConfig,
    /// How raw I/O is done, if not plainly.
    pub history: Linux24,
    /// What kernels of 2013 had beside the layer.
    pub linux3: Linux3,
    /// Each I/O is one of a file, which costs a simulated machine more at its submission.
    pub of_file: bool,
}

/// One row to run on a simulated machine, or on this one with lock statistics.
#[derive(Debug, Clone)]
pub struct SimPlan {
    /// Drives that run on any machine: `null`, `ram` and `model`.
    pub drives: Vec<Spec>,
    /// How they are joined.
    pub layout: Layout,
    /// How the drives are served.
    pub service: Service,
    /// Design of the layer.
    pub stack: Stack,
    /// Software queues.
    pub software_queues: Spread,
    /// Hardware queues.
    pub hardware_queues: Spread,
    /// Job i runs on `cpus[i % len]`; not empty on a simulated machine.
    pub cpus: Vec<u32>,
    /// Submitters, 1 to 65,535.
    pub jobs: u32,
    /// What each does; its seed is the simulation's too.
    pub workload: Workload,
    /// What is measured.
    pub length: Length,
    /// When times are taken.
    pub stamp: Stamp,
    /// How programs submit.
    pub interface: InterfaceKind,
    /// I/Os that go in at once, 1 or more, as fio's `iodepth_batch_submit`; all that are free if
    /// not given.
    pub batch: Option<u32>,
    /// The taker of interrupts.
    pub irq: Irq,
    /// What is reported besides the row.
    pub watch: Watch,
}

/// What is reported besides the row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watch {
    /// What the locks did.
    pub locks: bool,
    /// Tags in use, seen from this CPU, which does nothing else, every so many nanoseconds.
    pub tags: Option<(u32, u64)>,
    /// Every step of every I/O.
    pub trace: Option<RecordingPlan>,
}

/// What is recorded of a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordingPlan {
    /// Where to, and what the devices are called.
    pub config: RecorderConfig,
    /// The drives' devices.
    pub devices: Vec<u32>,
    /// Events that fit into a thread's ring. On a simulated machine those that find it full are
    /// dropped, since rings are emptied when the row has ended.
    pub ring: usize,
}

/// Threads that a simulated machine has room for.
const THREADS_MAX: u32 = 4_096;

impl SimPlan {
    fn cpu_of(&self, job: u32) -> Option<u32> {
        self.cpus.get(job as usize % self.cpus.len().max(1)).copied()
    }

    fn check(&self, cpus: u32) -> Result<(), BenchError> {
        let wrong = |text: String| Err(BenchError::Workload(text));
        if self.jobs == 0 || self.jobs > 65_535 {
            return wrong(format!("{} jobs: 1 to 65535", self.jobs));
        }
        if cpus != u32::MAX && self.cpus.is_empty() {
            return wrong("no CPU to run on".into());
        }
        // Beside the jobs there are the main thread, one that watches tags, the workers, and a
        // handler of interrupts for each CPU at most.
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
            return wrong(format!("CPU {cpu}: the machine has {cpus}"));
        }
        if self.interface == InterfaceKind::Sync && self.workload.iodepth != 1 {
            let depth = self.workload.iodepth;
            return wrong(format!("interface sync has one I/O in flight: iodepth is {depth}"));
        }
        self.service.history.check(self.workload.bs_bytes, self.workload.iodepth)?;
        if self.workload.verify {
            return wrong("verify: these drives and buffers hold nothing to read back".into());
        }
        Ok(())
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
