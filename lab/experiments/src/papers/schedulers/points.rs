//! `Point`: clients at a drive under a scheduler, each run once.
//!
//! `Rig` is the drive with its machine and its price list, `Load` is one kind of client and how
//! many of it there are. The constructors are the experiments of the page.

use millrace_block::{
    CostModel, GroupConfig, GroupId, GroupLimits, LatencyTarget, Layout, OpCost, OpRates, Priority,
    SchedulerKind, Spread,
};
use millrace_drives::{ModelPreset, Words, model_presets};

use crate::load::contention::{Client, ContentionPlan, Phases};
use crate::load::workload::Rw;

const MS: u64 = 1_000_000;
/// Machines of the points.
pub(super) const MACHINES: [&str; 2] = ["epyc-2x64", "x5690"];
/// What the reader of the part `target` is promised for 99 of 100 I/Os.
pub(super) const TARGET_NS: u64 = 200_000;
/// When limited clients begin: their group has saved up its burst by then.
const LIMITED_START_NS: u64 = 50 * MS;

/// A drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rig {
    Null,
    Evo,
    Pro,
    Disk,
}

impl Rig {
    /// Its name, and that of its preset.
    pub(super) fn name(self) -> &'static str {
        match self {
            Rig::Null => "null",
            Rig::Evo => "850evo",
            Rig::Pro => "950pro",
            Rig::Disk => "hdd7200",
        }
    }

    pub(super) fn machine(self) -> &'static str {
        MACHINES[usize::from(self != Rig::Null)]
    }

    fn preset(self) -> Option<&'static ModelPreset> {
        model_presets().iter().find(|preset| preset.name == self.name())
    }

    /// What I/Os cost, by the figures of the drive's data sheet.
    fn cost(self) -> CostModel {
        let Some(preset) = self.preset() else { return CostModel::default() };
        let op = |iops, bytes_per_s| {
            let rates = OpRates { random_iops: iops, sequential_iops: iops, bytes_per_s };
            OpCost::of_rates(&rates)
        };
        CostModel {
            read: op(preset.random_iops.0, preset.bytes_per_s.0),
            write: op(preset.random_iops.1, preset.bytes_per_s.1),
        }
    }

    fn spec(self) -> String {
        match self {
            Rig::Null => "null:size=1t".into(),
            _ => format!("model:preset={}", self.name()),
        }
    }

    /// Warm-up and measured time.
    fn phases(self) -> Phases {
        let (warm_up_ns, length_ns) = match self {
            Rig::Null => (5 * MS, 5 * MS),
            Rig::Evo => (400 * MS, 800 * MS),
            Rig::Pro => (200 * MS, 300 * MS),
            Rig::Disk => (5_000 * MS, 30_000 * MS),
        };
        Phases { warm_up_ns, length_ns, step_ns: None, times: false }
    }
}

/// Clients of one kind, which share a group.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Load {
    pub(super) group: GroupConfig,
    pub(super) rw: Rw,
    pub(super) bs_bytes: u32,
    pub(super) iodepth: u32,
    pub(super) clients: u32,
}

impl Load {
    /// A client that reads 4 KiB at random.
    fn new(name: impl Into<String>, iodepth: u32) -> Load {
        let group = GroupConfig::new(name);
        Load { group, rw: Rw::RandRead, bs_bytes: 4096, iodepth, clients: 1 }
    }

    /// A writer of 128 KiB.
    fn writer(iodepth: u32) -> Load {
        Load { rw: Rw::RandWrite, bs_bytes: 128 << 10, ..Load::new("writer", iodepth) }
    }
}

/// What is run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    pub(super) rig: Rig,
    pub(super) scheduler: SchedulerKind,
    pub(super) loads: Vec<Load>,
    pub(super) phases: Phases,
    start_ns: u64,
}

/// Whether all cores' clients are one group, or each is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grouping {
    Together,
    Each,
}

/// Which of two clients are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientPresence {
    First,
    Second,
    Both,
}

impl ClientPresence {
    /// Those of these two loads that are there.
    fn of(self, loads: [Load; 2]) -> Vec<Load> {
        let [first, second] = loads;
        match self {
            ClientPresence::First => vec![first],
            ClientPresence::Second => vec![second],
            ClientPresence::Both => vec![first, second],
        }
    }
}

impl Point {
    pub(super) fn new(rig: Rig, scheduler: SchedulerKind, loads: Vec<Load>) -> Point {
        Point { rig, scheduler, loads, phases: rig.phases(), start_ns: 0 }
    }

    /// So many cores at a null drive.
    pub(super) fn cores(scheduler: SchedulerKind, cores: u32, grouping: Grouping) -> Point {
        let load = |number: u32| {
            let name = format!("g{number}");
            Load { bs_bytes: 512, ..Load::new(name, 32) }
        };
        let loads = match grouping {
            Grouping::Together => vec![Load { clients: cores, ..load(0) }],
            Grouping::Each => (0..cores).map(load).collect(),
        };
        let mut point = Point::new(Rig::Null, scheduler, loads);
        if scheduler == SchedulerKind::Deadline {
            // What is in flight takes 20 ms to go round.
            (point.phases.warm_up_ns, point.phases.length_ns) = (40 * MS, 40 * MS);
        }
        point
    }

    /// Clients of weights 100, 200, 400 and 800.
    pub(super) fn weights(rig: Rig, scheduler: SchedulerKind) -> Point {
        let load = |weight| {
            let plain = Load::new(format!("w{weight}"), 32);
            Load { group: GroupConfig { weight, ..plain.group.clone() }, ..plain }
        };
        Point::new(rig, scheduler, [100, 200, 400, 800].map(load).to_vec())
    }

    /// Two clients of depth 32 and two of depth 256.
    pub(super) fn depths(rig: Rig, scheduler: SchedulerKind) -> Point {
        let load = |(name, depth): (&str, u32)| Load::new(name, depth);
        let loads = [("a32", 32), ("b256", 256), ("c32", 32), ("d256", 256)].map(load);
        Point::new(rig, scheduler, loads.to_vec())
    }

    /// A reader of 4 KiB and a writer of 128 KiB.
    pub(super) fn sizes(rig: Rig, scheduler: SchedulerKind) -> Point {
        Point::new(rig, scheduler, vec![Load::new("reader", 32), Load::writer(32)])
    }

    /// One I/O at a time beside so many clients of depth 256.
    pub(super) fn shallow(rig: Rig, scheduler: SchedulerKind, others: u32) -> Point {
        let other = |number| Load::new(format!("deep{number}"), 256);
        let loads = std::iter::once(Load::new("shallow", 1)).chain((0..others).map(other));
        Point::new(rig, scheduler, loads.collect())
    }

    /// A reader of depth 1 with a latency target, and a writer.
    pub(super) fn target(rig: Rig, scheduler: SchedulerKind, present: ClientPresence) -> Point {
        let mut reader = Load::new("reader", 1);
        reader.group.latency_target = Some(LatencyTarget::Percentile(9_900, TARGET_NS));
        Point::new(rig, scheduler, present.of([reader, Load::writer(256)]))
    }

    /// Threads of a group that has a limit, or none.
    pub(super) fn limit(iops: Option<u64>, threads: u32) -> Point {
        let mut load = Load { bs_bytes: 512, clients: threads, ..Load::new("limited", 32) };
        load.group.limits = GroupLimits { iops, ..GroupLimits::default() };
        let mut point = Point::new(Rig::Null, SchedulerKind::None, vec![load]);
        point.start_ns = LIMITED_START_NS;
        let length_ns = match iops {
            None => 5 * MS,
            Some(0..=1_000) => 5_000 * MS,
            Some(..=10_000) => 3_000 * MS,
            Some(..=100_000) => 2_000 * MS,
            Some(_) => 150 * MS,
        };
        // The burst has gone by after as long again.
        let warm_up_ns = LIMITED_START_NS + 50 * MS;
        point.phases = Phases { warm_up_ns, length_ns, step_ns: None, times: iops.is_some() };
        point
    }

    /// A client of usual priority and one of priority idle.
    pub(super) fn idle(rig: Rig, scheduler: SchedulerKind, present: ClientPresence) -> Point {
        let mut idle = Load::new("idle", 32);
        idle.group.priority = Priority::Idle;
        Point::new(rig, scheduler, present.of([Load::new("usual", 32), idle]))
    }

    /// Random reads of a disk.
    pub(super) fn disk(scheduler: SchedulerKind, iodepth: u32) -> Point {
        Point::new(Rig::Disk, scheduler, vec![Load::new("reader", iodepth)])
    }

    /// Threads.
    pub(super) fn clients(&self) -> u32 {
        self.loads.iter().map(|load| load.clients).sum()
    }

    /// The point in words, for a progress bar.
    pub(super) fn in_words(&self) -> String {
        let (clients, drive) = (self.clients(), self.rig.name());
        let limit = self.loads[0].group.limits.iops;
        let limit = limit.map_or_else(String::new, |iops| format!(", limited to {iops} IOPS"));
        format!("{clients} clients of {drive}, {}{limit}", self.scheduler.word())
    }

    pub(super) fn plan(&self, seed: u64) -> ContentionPlan {
        let of_load = |(load, group): (&Load, u16)| {
            let client = Client {
                name: load.group.name.clone(),
                group: GroupId(group),
                rw: load.rw,
                bs_bytes: load.bs_bytes,
                iodepth: load.iodepth,
                cpu: None,
                start_ns: self.start_ns,
                thinktime_ns: 0,
            };
            std::iter::repeat_n(client, load.clients as usize)
        };
        ContentionPlan {
            drives: vec![self.rig.spec().parse().expect("a drive in order")],
            layout: Layout::Linear,
            scheduler: self.scheduler,
            queues: (Spread::Core, Spread::Core),
            cost: self.rig.cost(),
            groups: self.loads.iter().map(|load| load.group.clone()).collect(),
            clients: self.loads.iter().zip(1..).flat_map(of_load).collect(),
            phases: self.phases,
            seed,
        }
    }
}
