//! `atc17`: the experiments of the Falcon paper (Kumar et al., ATC 2017) on a simulated machine
//! like the paper's, in virtual time.
//!
//! A `Rig` is a controller with its drives. A `Point` is one simulation with settings from
//! `papers/atc17.toml`, which also has the figures, tables and checks. The only inputs are the
//! machines' files and the drives' presets; no result of the paper is an input. The load is one
//! thread that submits through libaio to a RAID-0, or a modelled program (module `programs`). The
//! volume is served as in Linux (per-volume), by a worker for each drive (per-drive), or in
//! millrace's other modes (inline, auto). `millrace-lab paper` calls this file.

use std::sync::LazyLock;

use millrace_block::baseline::Stack;
use millrace_block::{ControllerConfig, Layout, Serving, ServingConfig, Sharing, Spread, Stamp};
use millrace_drives::ModelTiming;
use millrace_simulator::Model;
use serde::Deserialize;
use toml::Table;

use super::sheet::{Sheet, parsed, word};
use crate::load::bench::BenchError;
use crate::load::workload::{Rw, Workload};
use crate::papers::{self, Mechanism, Paper, Results, machine_table};
use crate::programs::{Task, servers, utilities};
use crate::simulation::{
    FileCosts, HostAdapterConfig, InterfaceKind, Irq, Length, ObservedRow, Service, SimPlan, Watch,
    run_observed,
};

static SHEET: LazyLock<Sheet> =
    LazyLock::new(|| Sheet::parse(include_str!("../../papers/atc17.toml")));

const OF_FILES: [&str; 4] = ["buffered", "ext4", "servers", "utilities"];

pub(super) fn paper() -> Paper {
    Paper::of_sheet("atc17", &SHEET, papers::mechanisms::<Point>, |wanted, tell| {
        let costs = FileCosts::linux_4_4()?;
        let about = "costs of file I/O in Linux 4.4, in addition to the costs of block I/O in the \
                     machine's table";
        papers::repeat::<Point>(("atc17", &SHEET), wanted, tell, |mut page, parts| {
            page.add_machines(SHEET.given());
            if parts.iter().any(|part| OF_FILES.contains(part)) {
                page.add_machines([machine_table::of_costs(&costs.name, about, &costs.entries())]);
            }
            page
        })
    })
}

/// Bytes that the load keeps in flight for each drive. At 4 KiB per bio, 2,048 bios are twice the
/// default `pressure_high`, so back pressure limits the I/Os in flight.
const IN_FLIGHT_BYTES: u32 = 2048 * 4096;
/// Number of I/Os in flight for each drive, in simulations that:
/// - compare drives,
/// - sample the tags in use, or
/// - use the serving mode `auto`.
const FEW: u32 = 64;
const LENGTH_NS: u64 = 100_000_000;
/// Measured virtual time, in nanoseconds, of simulations that compare drives or use the serving
/// mode `auto`. The number n of I/Os in flight at a drive changes like a random walk. So the start
/// of the run has an effect for about n^2 I/Os. With n = 64 and 80,000 I/Os per second, the effect
/// lasts 50 ms.
const LONG_NS: u64 = 1_000_000_000;
/// CPU of the thread that samples the tags in use, and the sampling period in nanoseconds.
const WATCH: (u32, u64) = (11, 10_000);
const TAGS_SHOWN_NS: u64 = 2_000_000;
/// Number of runs, with different seeds, for settings whose I/O rate depends much on the seed.
const DRAWS: u64 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Rig {
    /// Intel AHCI ports, two of them with fast links.
    Ahci,
    /// Intel SCU, four SATA II ports.
    Scu,
    /// LSI 9300-8i.
    #[default]
    Hba,
    Nvme,
}

impl Rig {
    fn drives(self) -> u32 {
        match self {
            Rig::Ahci => 2,
            Rig::Scu => 4,
            Rig::Hba => 8,
            Rig::Nvme => 1,
        }
    }

    fn preset(self) -> &'static str {
        match self {
            Rig::Ahci | Rig::Hba => "850evo",
            Rig::Scu => "520-sata2",
            Rig::Nvme => "950pro",
        }
    }

    /// Returns the controller if its drives share its tags; `None` if each drive has its own tags.
    fn controller(self) -> Option<ControllerConfig> {
        let (name, tags) = match self {
            Rig::Ahci | Rig::Nvme => return None,
            Rig::Scu => ("scu", 250),
            Rig::Hba => ("hba", 10_140),
        };
        let sharing = Sharing::Controller;
        Some(ControllerConfig { name: name.into(), tags, sharing, node: None })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Depth {
    /// Largest number of I/Os that the block layer accepts.
    Full,
    Few,
    One,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
enum Program {
    Graph(u32),
    Named(String),
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Point {
    rig: Rig,
    drives: Option<u32>,
    #[serde(deserialize_with = "parsed")]
    rw: Rw,
    bs: u32,
    #[serde(deserialize_with = "word")]
    serving: Serving,
    /// Chunk size of the RAID-0 volume in KiB.
    chunk: u32,
    /// High and low watermark of the number of plugged bios. `None` selects the block layer's
    /// defaults.
    marks: Option<[u32; 2]>,
    depth: Depth,
    /// True for the Falcon paper's ideal system. The ideal system has no volume: each drive has its
    /// own submitting thread.
    apart: bool,
    /// True if a thread samples the tags in use during the simulation. In such a simulation, the
    /// number of I/Os in flight is limited to [`FEW`] for each drive.
    watched: bool,
    long: bool,
    /// True for I/O to a file on the volume, which takes more CPU time than I/O to the volume.
    file: bool,
    task: Option<Program>,
    #[serde(skip)]
    without: Vec<Mechanism>,
    #[serde(skip)]
    draw: u64,
}

impl Default for Point {
    fn default() -> Point {
        Point {
            rig: Rig::Hba,
            drives: None,
            rw: Rw::RandRead,
            bs: 4096,
            serving: Serving::PerDrive,
            chunk: 4,
            marks: None,
            depth: Depth::Full,
            apart: false,
            watched: false,
            long: false,
            file: false,
            task: None,
            without: Vec::new(),
            draw: 0,
        }
    }
}

impl Point {
    fn settled(mut self) -> Point {
        let usual = ServingConfig::default();
        self.drives.get_or_insert(self.rig.drives());
        self.marks.get_or_insert([usual.plug_high, usual.plug_low]);
        self
    }

    fn drives(&self) -> u32 {
        self.drives.unwrap_or(self.rig.drives())
    }

    fn program(&self) -> Option<Task> {
        let servers = servers::Kind::ALL.into_iter().map(Task::Server);
        let others = utilities::Kind::ALL.into_iter().map(Task::Utility).chain([Task::Writers]);
        self.task.as_ref().map(|program| match program {
            Program::Graph(threads) => Task::Graph(*threads),
            Program::Named(name) => {
                let found = servers.chain(others).find(|task| task.name() == name);
                found.unwrap_or_else(|| panic!("{name}: no such program"))
            }
        })
    }

    /// Returns the simulations of a point, each with another seed. Random I/O with the default
    /// settings has [`DRAWS`] simulations, because its I/O rate differs by a tenth or more between
    /// seeds. The cause is that workers wait for a lock that all drives share.
    fn draws(self) -> impl Iterator<Item = Point> {
        let Point { rw, chunk, marks, file, .. } = self;
        let usual = Point { rw, chunk, marks, file, ..Point::default() }.settled();
        let differs = !rw.is_sequential() && self == usual;
        (0..if differs { DRAWS } else { 1 }).map(move |draw| Point { draw, ..self.clone() })
    }

    /// Returns the state of the host adapter, such as locks, that the commands of all drives share.
    /// With AHCI there is none, because each port has a SCSI host of its own.
    fn adapter(&self) -> HostAdapterConfig {
        let has = |mechanism| !self.without.contains(&mechanism);
        let (is_hba, is_scu) = (self.rig == Rig::Hba, self.rig == Rig::Scu);
        HostAdapterConfig {
            lookup_lock: is_hba && has(Mechanism::LookupLock),
            host_busy: (is_hba || is_scu) && has(Mechanism::HostBusy),
            controller_lock: is_scu && has(Mechanism::ControllerLock),
            coalescing: is_scu && has(Mechanism::Coalescing),
        }
    }

    fn depth(&self) -> u32 {
        match self.depth {
            Depth::One => 1,
            Depth::Full if !self.watched => self.drives() * (IN_FLIGHT_BYTES / self.bs),
            Depth::Full | Depth::Few => self.drives() * FEW,
        }
    }

    fn plan(&self, seed: u64) -> SimPlan {
        let (drives, depth) = (self.drives(), self.depth());
        let service = self.service();
        let at = service.controllers.first().map_or(String::new(), |hub| format!("@{}", hub.name));
        let dies = match self.without.contains(&Mechanism::Dies) {
            true => format!(",units={}", ModelTiming::UNITS_MAX),
            false => String::new(),
        };
        let drive = format!("model{at}:preset={}{dies}", self.rig.preset());
        // In the ideal system (`apart`), each drive has a submitting thread. The thread runs on the
        // CPU that the drive's worker has in other simulations, so that the distances between CPUs
        // are the same in all simulations.
        let (jobs, iodepth, cpus) = match self.program() {
            Some(task) => (task.threads(), task.depth(depth), task.cpus()),
            None if self.apart => (drives, depth / drives, (1..=drives).collect()),
            None => (1, depth, vec![0]),
        };
        let seed = seed.wrapping_add(self.draw);
        let workload = Workload { rw: self.rw, bs_bytes: self.bs, iodepth, verify: false, seed };
        SimPlan {
            drives: vec![drive.parse().expect("the preset must exist"); drives as usize],
            layout: Layout::Stripe { chunk_sectors: self.chunk * 2 },
            service,
            stack: Stack::Mq,
            software_queues: Spread::Core,
            hardware_queues: Spread::Core,
            cpus,
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

    fn service(&self) -> Service {
        let has_workers = matches!(self.serving, Serving::PerDrive | Serving::Auto);
        let usual = ServingConfig::of(self.serving);
        Service {
            controllers: Vec::from_iter(self.rig.controller()),
            serving: ServingConfig {
                plug_high: self.marks.map_or(usual.plug_high, |[high, _]| high),
                plug_low: self.marks.map_or(usual.plug_low, |[_, low]| low),
                ..usual
            },
            worker_cpus: if has_workers { (1..=self.drives()).collect() } else { Vec::new() },
            apart: self.apart,
            adapter: self.adapter(),
            of_file: self.file,
            ..Service::default()
        }
    }
}

impl papers::Point for Point {
    type Measurement = ObservedRow;
    const OWN: &'static [Mechanism] = &[
        Mechanism::LookupLock,
        Mechanism::HostBusy,
        Mechanism::ControllerLock,
        Mechanism::Coalescing,
        Mechanism::Dies,
    ];
    /// The mechanism `Lines` (cache lines of the single queue's lock) affects only the stack `sq`,
    /// which no simulation of this paper uses.
    const UNUSED: &'static [Mechanism] = &[Mechanism::Lines];

    fn of_settings(settings: Table) -> Result<Point, String> {
        settings.try_into().map(Point::settled).map_err(|error| error.to_string())
    }

    fn of(part: &str) -> Vec<Point> {
        SHEET.points(part).into_iter().flat_map(Point::draws).collect()
    }

    fn without(mut self, mechanism: Mechanism) -> Point {
        self.without.push(mechanism);
        self
    }

    fn machine(&self) -> &str {
        if self.rig == Rig::Nvme { "e5-2620-nvme" } else { "e5-2620" }
    }

    fn task(&self) -> String {
        let Point { rig, rw, chunk, serving, .. } = self;
        let what = self.program().map_or_else(|| rw.to_string(), |task| task.name().to_owned());
        format!("{rig:?} x {}, {what}, stripe {chunk} KiB, {}", self.drives(), serving.name())
    }

    fn work(&self) -> u32 {
        u32::from(self.long || self.program().is_some()) << 16 | self.drives()
    }

    fn run(&self, model: &Model, seed: u64) -> Result<ObservedRow, BenchError> {
        match self.program() {
            Some(task) => task.run(model, &self.plan(seed)),
            None => run_observed(model, &self.plan(seed)),
        }
    }

    fn events(seen: &ObservedRow) -> u64 {
        seen.row.machine.as_ref().and_then(|machine| machine.sim_events).unwrap_or(0)
    }

    fn metric(results: &Results<Point>, point: &Point, name: &str) -> Option<Vec<f64>> {
        let seen = results.at(point)?;
        let samples = || seen.tags.iter().take_while(|sample| sample.at_ns <= TAGS_SHOWN_NS);
        let in_use = |drive: usize| samples().map(|s| f64::from(s.in_use[drive])).collect();
        let mean = || {
            let runs = point.clone().draws().filter_map(|run| Some(results.at(run)?.row.iops));
            let runs: Vec<f64> = runs.collect();
            (runs.iter().sum::<f64>() / runs.len() as f64, runs)
        };
        Some(match name {
            // `iops` is the mean of the runs; `spread` is (largest - smallest) / mean.
            "iops" => vec![mean().0],
            "spread" => {
                let (mean, runs) = mean();
                let most = runs.iter().copied().fold(0.0, f64::max);
                vec![(most - runs.iter().copied().fold(f64::INFINITY, f64::min)) / mean]
            }
            "lat_ns" => vec![seen.row.lat_ns.mean as f64],
            "stack_ns" => seen.stack_ns.iter().map(|ns| *ns as f64).collect(),
            "tags_us" => samples().map(|sample| sample.at_ns as f64 / 1e3).collect(),
            "tags_1" => in_use(0),
            "tags_2" => in_use(1),
            _ => panic!("{name}: no such metric"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::run_without;
    use crate::simulation::machine;

    #[test]
    fn writes_of_all_drives_hold_workers_back_not_a_submitter() {
        let model = machine("e5-2620").expect("the machine must exist");
        let gain = |serving, without: &[Mechanism]| {
            let point = Point { serving, ..Point::default() };
            let iops = |without| {
                run_without(&point, &model, (1, without)).expect("the run must succeed").row.iops
            };
            iops(without) / iops(&[])
        };
        let lock = gain(Serving::PerDrive, &[Mechanism::LookupLock]);
        let both = gain(Serving::PerDrive, &[Mechanism::LookupLock, Mechanism::HostBusy]);
        let alone = gain(Serving::PerVolume, &[Mechanism::LookupLock]);
        // Beside that lock the counts cost next to nothing.
        assert!(lock > 1.1 && both > 0.99 * lock && alone < 1.1, "{lock} {both} {alone}");
    }

    #[test]
    fn waiting_interrupts_drain_drives_of_a_sequential_reader() {
        let model = machine("e5-2620").expect("the machine must exist");
        let gain = |rw, bs| {
            let serving = Serving::PerVolume;
            let depth = Depth::Few;
            let point = Point { rig: Rig::Scu, serving, depth, rw, bs, ..Point::default() };
            let iops = |without| {
                run_without(&point, &model, (1, without)).expect("the run must succeed").row.iops
            };
            iops(&[Mechanism::Coalescing]) / iops(&[])
        };
        let (sequential, random) = (gain(Rw::Read, 65_536), gain(Rw::RandRead, 4096));
        assert!(sequential > 1.1 && random < 1.05, "{sequential} {random}");
    }

    #[test]
    fn scu_takes_its_lock_twice_for_command_and_once_for_interrupt() {
        let model = machine("e5-2620").expect("the machine must exist");
        let mut plan = Point { rig: Rig::Scu, depth: Depth::Few, ..Point::default() }.plan(1);
        plan.watch.locks = true;
        let seen = run_observed(&model, &plan).expect("the run must succeed");
        let locks = seen.row.machine.and_then(|machine| machine.locks).expect("asked for");
        let taken = |name| {
            let of_all = locks.iter().find(|line| line.name == name && line.site.is_none());
            of_all.expect("it was taken").acquisitions as f64
        };
        // Each I/O takes the lock of its process's list once.
        let share = taken("controller") / taken("aio-context-list");
        assert!((2.0..2.5).contains(&share), "{share}");
    }

    #[test]
    fn a_flusher_that_only_batches_lets_one_writer_write_faster() {
        let model = machine("e5-2620").expect("the machine must exist");
        let run = |serving| {
            let task = Some(Program::Named("copy to".into()));
            let point = Point { task, serving, ..Point::default() };
            papers::Point::run(&point, &model, 1).expect("the run must succeed")
        };
        let [linux, ours] = [Serving::PerVolume, Serving::PerDrive].map(run);
        assert!(ours.row.iops > 1.3 * linux.row.iops, "{} {}", ours.row.iops, linux.row.iops);
        // Dirty memory is bounded, writers are held back, and pages leave in large writes.
        let stats = linux.cache.expect("through a cache");
        assert!(stats.throttled > 0 && stats.dirty < stats.pages / 2, "{stats:?}");
        assert!(stats.written_back > 16 * stats.write_requests, "{stats:?}");
    }

    #[test]
    fn a_program_gives_the_same_numbers_again() {
        let model = machine("e5-2620").expect("the machine must exist");
        let serving = Serving::PerVolume;
        let point = Point { task: Some(Program::Graph(8)), serving, ..Point::default() };
        let run = || papers::Point::run(&point, &model, 1).expect("the run must succeed").row;
        assert_eq!(run(), run());
    }

    #[test]
    fn dies_hold_back_a_drive_with_as_many_reads_as_dies() {
        let model = machine("e5-2620-nvme").expect("the machine must exist");
        let gain = |depth| {
            let iops = |point: Point| {
                let mut plan = point.plan(1);
                plan.workload.iodepth = depth;
                run_observed(&model, &plan).expect("the run must succeed").row.iops
            };
            let point = Point { rig: Rig::Nvme, ..Point::default() };
            iops(papers::Point::without(point.clone(), Mechanism::Dies)) / iops(point)
        };
        let (one, many) = (gain(1), gain(32));
        assert!(many > 1.1 && (one - 1.0).abs() < 0.01, "{many} {one}");
    }
}
