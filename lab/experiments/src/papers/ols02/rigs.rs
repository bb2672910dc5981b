//! The steps of \[OLS\] and the points that are run of them.
//!
//! A `Step` is a row of its tables; a `Case` a step under a load. Pure descriptions, from which
//! `plan` makes what the simulator runs.

use millrace_block::{Layout, ServingConfig, Spread, Stack, Stamp};
use millrace_drives::Spec;

use crate::load::workload::{Rw, Workload};
use crate::simulation::{
    InterfaceKind, Irq, Length, Linux24, LockScope, Readv, Service, SimPlan, Watch,
};

/// The machine.
pub(super) const MACHINE: &str = "p3-8way";
/// Its CPUs.
pub(super) const CPUS: u32 = 8;
/// Bytes of a read of the microbenchmark: input.
pub(super) const READ_BYTES: u32 = 65_536;
/// Elements of its vector in the readv test: input.
const IOVECS: u32 = 16;
/// Disks of an adapter: input.
const DISKS: u32 = 8;
/// Bios of a batch at most: more than an I/O has.
const PLUG: u32 = 1_024;
/// Virtual time that is measured.
const LENGTH_NS: u64 = 1_000_000_000;

/// A row of \[OLS\]'s tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// 2.4.17.
    Baseline,
    /// Without bounce buffers.
    Sb,
    /// With a lock for each queue.
    Sbi,
    /// With raw I/O in pages.
    Sbir,
    /// With vectors that are one I/O.
    Sbirv,
    /// 2.5.17, rewritten.
    Linux25,
}

impl Step {
    /// The paper's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Step::Baseline => "Baseline",
            Step::Sb => "SB",
            Step::Sbi => "SBI",
            Step::Sbir => "SBIR",
            Step::Sbirv => "SBIRV",
            Step::Linux25 => "2.5.17",
        }
    }

    fn has_at_least(self, other: Step) -> bool {
        self as u8 >= other as u8
    }
}

/// What runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// 32 processes, each reading its raw device in 64 KiB.
    Dm,
    /// These reads by vectors of 16 times 4 KiB.
    DmReadv,
    /// Reads by vectors, and computing of so many nanoseconds after each.
    Dsw {
        /// That time.
        compute_ns: u64,
    },
}

/// What is taken out of the model, to see what hangs on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ablation {
    /// The copies of bounces; their pages stay.
    Copies,
    /// All that the adapters' drivers and the bottom half charge.
    Kernel,
    /// The lock that the adapters' drivers share with all others: each adapter has one.
    DriverLock,
    /// Time of the adapters for a command.
    CommandTime,
    /// The limit of the adapters' rate.
    Bandwidth,
    /// Processes on 7 CPUs beside the bottom half: all have their own.
    Crowd,
}

impl Ablation {
    /// All that are run, with what they leave out.
    pub(super) const ALL: [(Ablation, &'static str); 6] = [
        (Ablation::Copies, "copies of bounces"),
        (Ablation::Kernel, "adapters' drivers, bottom half, buffer heads before the lock"),
        (Ablation::DriverLock, "the one lock of all adapters' drivers"),
        (Ablation::CommandTime, "the adapters' time for a command"),
        (Ablation::Bandwidth, "the adapters' bandwidth"),
        (Ablation::Crowd, "processes that wait for a CPU: 7 of them instead of 32"),
    ];
}

/// What a row is run without; a bit for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Ablations(u8);

impl Ablations {
    fn and(self, without: Ablation) -> Ablations {
        Ablations(self.0 | 1 << without as u8)
    }

    fn has(self, without: Ablation) -> bool {
        self.0 & 1 << without as u8 != 0
    }
}

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) step: Step,
    pub(super) load: Load,
    left_out: Ablations,
}

impl Case {
    pub(super) fn new(step: Step, load: Load) -> Case {
        Case { step, load, left_out: Ablations::default() }
    }

    pub(super) fn but(self, without: Ablation) -> Case {
        Case { left_out: self.left_out.and(without), ..self }
    }

    /// In words.
    pub(super) fn in_words(&self) -> String {
        let load = match self.load {
            Load::Dm => "DM",
            Load::DmReadv => "DM, readv",
            Load::Dsw { .. } => "DSW",
        };
        let left_out = Ablation::ALL.iter().filter(|(without, _)| self.left_out.has(*without));
        let without = left_out.map(|(_, what)| format!(", without {what}")).collect::<String>();
        format!("{load}, {}{without}", self.step.name())
    }

    /// Adapters: 4, 6 for DSW: input.
    fn adapters(&self) -> u32 {
        if matches!(self.load, Load::Dsw { .. }) { 6 } else { 4 }
    }

    fn drives(&self, machine: &str) -> Vec<Spec> {
        let command = if self.left_out.has(Ablation::CommandTime) { "0" } else { "150us" };
        let rate = if self.left_out.has(Ablation::Bandwidth) { "0" } else { "60MB" };
        // A name for each point on each machine: controllers of one name are one, and points run
        // side by side.
        let mark = format!("{self:?}{machine}");
        let mark: String = mark.chars().filter(char::is_ascii_alphanumeric).collect();
        let drive = |number: u32| {
            let adapter = number % self.adapters();
            let text = format!(
                "model:preset=ultrastar-36lzx,depth=64,controller={mark}-{adapter},\
                 controller-command={command},controller-bandwidth={rate}"
            );
            text.parse().expect("a preset and keys of the model")
        };
        let count = if self.left_out.has(Ablation::Crowd) { 7 } else { self.adapters() * DISKS };
        (0..count).map(drive).collect()
    }

    fn history(&self) -> Linux24 {
        let (step, readv) = (self.step, self.load != Load::Dm);
        let whole = self.step == Step::Sbirv || !readv;
        let adapters = match step {
            _ if self.left_out.has(Ablation::Kernel) => None,
            _ if self.left_out.has(Ablation::DriverLock) => Some(LockScope::Adapter),
            Step::Linux25 => Some(LockScope::Adapter),
            _ => Some(LockScope::Global),
        };
        Linux24 {
            unit_bytes: match step {
                Step::Baseline | Step::Sb | Step::Sbi => Some(512),
                Step::Sbir | Step::Sbirv => Some(4096),
                Step::Linux25 => None,
            },
            iovecs: readv.then_some(IOVECS),
            readv: if whole { Readv::Whole } else { Readv::Serial },
            bounce: step == Step::Baseline,
            without_copies: self.left_out.has(Ablation::Copies),
            descriptor_bytes: if step.has_at_least(Step::Sbir) { 608 } else { 8_792 },
            request_lock: match step {
                Step::Baseline | Step::Sb => LockScope::Global,
                Step::Sbi | Step::Sbir | Step::Sbirv => LockScope::Queue,
                Step::Linux25 => LockScope::Adapter,
            },
            plug_in_queue: true,
            adapters,
            compute_ns: if let Load::Dsw { compute_ns } = self.load { compute_ns } else { 0 },
        }
    }

    /// What the simulator runs on a machine of this name.
    pub(super) fn plan(&self, machine: &str, seed: u64) -> SimPlan {
        let drives = self.drives(machine);
        let jobs = drives.len() as u32;
        SimPlan {
            drives,
            layout: Layout::Linear,
            service: Service {
                // The queue itself is plugged: an I/O goes in whole.
                serving: ServingConfig { plug_high: PLUG, ..ServingConfig::default() },
                apart: true,
                history: self.history(),
                ..Service::default()
            },
            stack: Stack::Sq,
            software_queues: Spread::One,
            hardware_queues: Spread::One,
            // CPU 0 takes interrupts and runs the bottom half.
            cpus: (1..CPUS).collect(),
            jobs,
            workload: Workload {
                rw: Rw::Read,
                bs_bytes: READ_BYTES,
                iodepth: 1,
                verify: false,
                seed,
            },
            length: Length::Time(LENGTH_NS),
            stamp: Stamp::Io,
            interface: InterfaceKind::Sync,
            batch: None,
            irq: Irq::Core0,
            watch: Watch { locks: true, ..Watch::default() },
        }
    }
}
