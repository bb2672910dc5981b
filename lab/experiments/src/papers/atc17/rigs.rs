//! The test beds of \[FALCON\] and the points that are run on them.
//!
//! A `Rig` is a controller with its drives on a machine; a `Point` one row: so many of its drives,
//! a load, and who serves. Pure descriptions, from which `plan` makes what the simulator runs.

use millrace_block::{
    ControllerConfig, Layout, Serving, ServingConfig, Sharing, Spread, Stack, Stamp,
};
use millrace_drives::ModelTiming;

use crate::load::workload::{Rw, Workload};
use crate::programs::Task;
use crate::simulation::{HostAdapterConfig, InterfaceKind, Irq, Length, Service, SimPlan, Watch};

/// The machine with SATA drives, and the same with an NVMe drive.
pub(super) const MACHINES: [&str; 2] = ["e5-2620", "e5-2620-nvme"];

/// Bytes in flight for each drive: \[FALCON\]'s replayer submits as fast as possible, so that what
/// bounds it is the layer, by its pressure points or its tags. In chunks of 4 KiB twice the high
/// point that it has by itself.
const IN_FLIGHT_BYTES: u32 = 2048 * 4096;
/// I/Os in flight for each drive where drives are compared, tags watched, or `auto` has to choose.
const FEW: u32 = 64;
/// Virtual time that is measured.
const LENGTH_NS: u64 = 100_000_000;
/// Virtual time that is measured where `auto` must have tried both ways and settled, and where
/// drives are compared: how many of the I/Os in flight wait for which drive drifts by steps of one,
/// and takes (I/Os for a drive) squared of these to forget where it was: 64 x 64 at 80,000 a second
/// are 50 ms for a drive, half a window of the usual length.
const LONG_NS: u64 = 1_000_000_000;
/// The CPU that looks at tags, and how often.
const WATCH: (u32, u64) = (11, 10_000);

/// A controller with its drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rig {
    /// Intel AHCI ports, two of them with fast links.
    Ahci,
    /// Intel SCU, four SATA II ports.
    Scu,
    /// LSI 9300-8i.
    Hba,
    /// No controller but the drive's own.
    Nvme,
}

impl Rig {
    pub(super) fn name(self) -> &'static str {
        match self {
            Rig::Ahci => "AHCI",
            Rig::Scu => "SCU",
            Rig::Hba => "HBA",
            Rig::Nvme => "NVMe",
        }
    }

    /// How many drives it has.
    pub(super) fn drives(self) -> u32 {
        match self {
            Rig::Ahci => 2,
            Rig::Scu => 4,
            Rig::Hba => 8,
            Rig::Nvme => 1,
        }
    }

    pub(super) fn machine(self) -> &'static str {
        MACHINES[usize::from(self == Rig::Nvme)]
    }

    fn preset(self) -> &'static str {
        match self {
            Rig::Ahci | Rig::Hba => "850evo",
            Rig::Scu => "520-sata2",
            Rig::Nvme => "950pro",
        }
    }

    /// The controller whose tags all its drives share, if it is such a one.
    fn controller(self) -> Option<ControllerConfig> {
        let (name, tags) = match self {
            Rig::Ahci | Rig::Nvme => return None,
            Rig::Scu => ("scu", 250),
            Rig::Hba => ("hba", 10_140),
        };
        let sharing = Sharing::Controller;
        Some(ControllerConfig { name: name.into(), tags, sharing, node: None })
    }

    /// What its commands share. AHCI has a SCSI host for each port, so nothing; the SCU's driver is
    /// another than the HBA's.
    fn adapter(self) -> HostAdapterConfig {
        HostAdapterConfig {
            lookup_lock: self == Rig::Hba,
            host_busy: matches!(self, Rig::Hba | Rig::Scu),
            controller_lock: self == Rig::Scu,
            coalescing: self == Rig::Scu,
        }
    }
}

/// What the submitting thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) name: &'static str,
    rw: Rw,
    pub(super) bs_bytes: u32,
}

/// The four loads, in the paper's order.
pub(super) const LOADS: [Load; 4] = [
    Load { name: "random read", rw: Rw::RandRead, bs_bytes: 4096 },
    Load { name: "random write", rw: Rw::RandWrite, bs_bytes: 4096 },
    Load { name: "sequential read", rw: Rw::Read, bs_bytes: 65_536 },
    Load { name: "sequential write", rw: Rw::Write, bs_bytes: 65_536 },
];

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) rig: Rig,
    pub(super) drives: u32,
    pub(super) load: Load,
    pub(super) serving: Serving,
    chunk_kib: u32,
    /// High and low watermark for each drive.
    marks: (u32, u32),
    depth: u32,
    /// A thread for each drive instead of a volume.
    apart: bool,
    watched: bool,
    /// Measured for long.
    pub(super) long: bool,
    /// The I/Os are of a file.
    pub(super) of_file: bool,
    /// A program instead of the replayer.
    pub(super) task: Option<Task>,
    /// I/Os wait for dies.
    pub(super) dies: bool,
    pub(super) adapter: HostAdapterConfig,
    /// Which of several runs of the same row, each with another seed.
    pub(super) draw: u64,
}

/// Runs of a row whose rate hangs on the seed.
const DRAWS: u64 = 5;

/// The runs of a row: several where workers wait for a lock of all drives, since their rate then
/// differs by a tenth and more from seed to seed. Whatever the stripe and the watermarks.
pub(super) fn draws(point: Point) -> impl Iterator<Item = Point> {
    let usual = Point::on(Rig::Hba, point.load, Serving::PerDrive);
    let Point { chunk_kib, marks, .. } = usual;
    let plain = Point { of_file: false, chunk_kib, marks, ..point };
    let differs = LOADS[..2].contains(&point.load) && plain == usual;
    (0..if differs { DRAWS } else { 1 }).map(move |draw| Point { draw, ..point })
}

impl Point {
    /// All of a rig's drives.
    pub(super) fn on(rig: Rig, load: Load, serving: Serving) -> Point {
        let drives = rig.drives();
        let ServingConfig { plug_high, plug_low, .. } = ServingConfig::default();
        Point {
            rig,
            drives,
            load,
            serving,
            chunk_kib: 4,
            marks: (plug_high, plug_low),
            depth: 0,
            apart: false,
            watched: false,
            long: false,
            of_file: false,
            task: None,
            dies: true,
            adapter: rig.adapter(),
            draw: 0,
        }
        .drives(drives)
    }

    pub(super) fn drives(self, drives: u32) -> Point {
        let depth = drives * (IN_FLIGHT_BYTES / self.load.bs_bytes);
        Point { drives, depth, ..self }
    }

    pub(super) fn chunk(self, chunk_kib: u32) -> Point {
        Point { chunk_kib, ..self }
    }

    /// Other watermarks.
    pub(super) fn marks(self, high: u32, low: u32) -> Point {
        Point { marks: (high, low), ..self }
    }

    /// With so many I/Os in flight in all.
    pub(super) fn depth(self, depth: u32) -> Point {
        Point { depth, ..self }
    }

    /// One I/O at a time.
    pub(super) fn single(self) -> Point {
        self.depth(1)
    }

    /// \[FALCON\]'s ideal system: a submitting thread for each drive, through Linux's path.
    pub(super) fn ideal(rig: Rig, load: Load) -> Point {
        Point { apart: true, ..Point::on(rig, load, Serving::PerVolume) }
    }

    /// With somebody who looks at tags.
    pub(super) fn watched(self) -> Point {
        Point { watched: true, ..self.few() }
    }

    /// Measured for long.
    pub(super) fn long(self) -> Point {
        Point { long: true, ..self }
    }

    /// With few in flight; drives can be compared if it is measured for long, too.
    pub(super) fn few(self) -> Point {
        Point { depth: self.drives * FEW, ..self }
    }

    /// A program on all drives of the HBA.
    pub(super) fn program(task: Task, serving: Serving) -> Point {
        let load = Load { name: task.name(), ..LOADS[0] };
        Point { task: Some(task), ..Point::on(Rig::Hba, load, serving) }
    }

    /// This point, served otherwise.
    pub(super) fn served(self, serving: Serving) -> Point {
        Point { serving, ..self }
    }

    /// In words, for tables.
    pub(super) fn about(&self) -> String {
        let Point { rig, drives, load, chunk_kib, depth, .. } = self;
        let name = format!("{} x {drives}, {}, stripe {chunk_kib} KiB", rig.name(), load.name);
        match (self.of_file, *depth) {
            (true, _) => format!("{name}, of a file"),
            (false, 1) => format!("{name}, one at a time"),
            _ => name,
        }
    }

    /// In words, for a progress bar.
    pub(super) fn in_words(&self) -> String {
        format!("{}, {}", self.about(), self.serving.name())
    }

    /// What the simulator runs.
    pub(super) fn plan(&self, seed: u64) -> SimPlan {
        let service = self.service();
        let at = service.controllers.first().map_or(String::new(), |hub| format!("@{}", hub.name));
        let most = format!(",units={}", ModelTiming::UNITS_MAX);
        let dies = if self.dies { "" } else { &most };
        let drive = format!("model{at}:preset={}{dies}", self.rig.preset());
        let (jobs, depth) = match self.task {
            Some(task) => (task.threads(), task.depth(self.depth)),
            None if self.apart => (self.drives, self.depth / self.drives),
            None => (1, self.depth),
        };
        let workload = Workload {
            rw: self.load.rw,
            bs_bytes: self.load.bs_bytes,
            iodepth: depth,
            verify: false,
            seed: seed.wrapping_add(self.draw),
        };
        SimPlan {
            drives: vec![drive.parse().expect("a preset of the model"); self.drives as usize],
            layout: Layout::Stripe { chunk_sectors: self.chunk_kib * 2 },
            service,
            stack: Stack::Mq,
            software_queues: Spread::Core,
            hardware_queues: Spread::Core,
            cpus: self.cpus(),
            jobs,
            workload,
            length: Length::Time(if self.long { LONG_NS } else { LENGTH_NS }),
            stamp: Stamp::Io,
            interface: InterfaceKind::Libaio,
            batch: None,
            irq: Irq::Poller,
            watch: Watch { tags: self.watched.then_some(WATCH), ..Watch::default() },
        }
    }

    /// The submitter's CPU; a thread for each drive runs where the drive's worker would, so that
    /// both are as far from each other's lines.
    fn cpus(&self) -> Vec<u32> {
        match self.task {
            Some(task) => task.cpus(),
            None if self.apart => (1..=self.drives).collect(),
            None => vec![0],
        }
    }

    fn service(&self) -> Service {
        let has_workers = matches!(self.serving, Serving::PerDrive | Serving::Auto);
        Service {
            controllers: Vec::from_iter(self.rig.controller()),
            serving: ServingConfig {
                plug_high: self.marks.0,
                plug_low: self.marks.1,
                ..ServingConfig::of(self.serving)
            },
            worker_cpus: if has_workers { (1..=self.drives).collect() } else { Vec::new() },
            apart: self.apart,
            adapter: self.adapter,
            of_file: self.of_file,
            ..Service::default()
        }
    }
}

/// A point whose I/Os are of a file on ext4.
pub(super) fn of_file(mut point: Point) -> Point {
    point.of_file = true;
    point
}

/// The graph engine's points: what the paper compares.
pub(super) const GRAPHS: [(u32, Serving); 3] =
    [(1, Serving::PerDrive), (1, Serving::PerVolume), (8, Serving::PerVolume)];
