//! `schedulers`: how I/O schedulers share a drive between clients, and the cost of scheduling, on
//! simulated machines.
//!
//! The experiment is not from a paper. A `Point` is one simulation of clients that share a drive
//! under a scheduler, with settings from `papers/schedulers.toml`. `limit_accuracy` measures how
//! exactly a rate limit is kept.

mod limit_accuracy;

use std::sync::LazyLock;
use std::time::Duration;

use millrace_block::{
    CostModel, GroupConfig, GroupId, GroupLimits, LatencyTarget, Layout, OpCost, OpRates, Priority,
    SchedulerKind, Spread,
};
use millrace_drives::{ModelPreset, Words, model_presets};
use millrace_simulator::Model;
use serde::Deserialize;
use toml::Table;

use super::sheet::{Sheet, parsed, word};
use crate::load::bench::BenchError;
use crate::load::contention::{
    Client, ContentionPlan, ContentionReport, Phases, contend_simulated,
};
use crate::load::workload::Rw;
use crate::papers::{self, Mechanism, Paper, Results};
use limit_accuracy::LimitAccuracy;

static SHEET: LazyLock<Sheet> =
    LazyLock::new(|| Sheet::parse(include_str!("../../papers/schedulers.toml")));

pub(super) fn paper() -> Paper {
    Paper::of_sheet("schedulers", &SHEET, papers::mechanisms::<Point>, |wanted, tell| {
        papers::repeat::<Point>(("schedulers", &SHEET), wanted, tell, |page, _| page)
    })
}

const MS: u64 = 1_000_000;
/// Time at which clients begin if `warm_up_ms` is set. The token buckets of their groups are full
/// by that time.
const LIMITED_START_NS: u64 = 50 * MS;
const FREE_LENGTH_NS: u64 = 5 * MS;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Settings {
    drive: String,
    #[serde(deserialize_with = "word")]
    scheduler: SchedulerKind,
    clients: Vec<Load>,
    /// Name of the one entry of `clients` to simulate; `None` simulates all entries.
    only: Option<String>,
    #[serde(default)]
    groups: bool,
    /// Number of clients for each entry of `clients`. Entries with `others = true` use the number
    /// in the setting `others` instead.
    #[serde(default = "one")]
    threads: u32,
    #[serde(default)]
    others: u32,
    #[serde(default = "usual_depth")]
    depth: u32,
    /// Rate limit of each group in I/Os per second.
    limit: Option<u64>,
    warm_up_ms: Option<u64>,
    length_ms: Option<u64>,
}

fn one() -> u32 {
    1
}

fn usual_depth() -> u32 {
    32
}

/// Clients of one kind; by default, each reads 4 KiB at random in a group of weight 100.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Load {
    name: String,
    #[serde(default = "random_read", deserialize_with = "parsed")]
    rw: Rw,
    #[serde(default = "page")]
    bs: u32,
    depth: Option<u32>,
    #[serde(default = "usual_weight")]
    weight: u32,
    /// Latency target of the clients' group, in microseconds, for the 99th percentile.
    target_us: Option<u64>,
    #[serde(default)]
    idle: bool,
    #[serde(default)]
    others: bool,
    /// Time at which the client begins.
    #[serde(default)]
    start_ms: u64,
    /// Pause after each I/O.
    #[serde(default)]
    think_ms: u64,
    /// Number of writes after which the client flushes; 0 for never.
    #[serde(default)]
    fsync: u32,
}

fn random_read() -> Rw {
    Rw::RandRead
}

fn page() -> u32 {
    4096
}

fn usual_weight() -> u32 {
    100
}

#[derive(Debug, Clone, PartialEq)]
struct Point {
    drive: String,
    scheduler: SchedulerKind,
    loads: Vec<(Load, u32)>,
    groups: bool,
    depth: u32,
    limit: Option<u64>,
    start_ns: u64,
    phases: Phases,
}

impl From<Settings> for Point {
    fn from(settings: Settings) -> Point {
        let Settings { drive, scheduler, groups, threads, others, depth, limit, .. } = settings;
        let is_there = |load: &Load| settings.only.as_ref().is_none_or(|only| *only == load.name);
        let count = |load: Load| {
            let count = if load.others { others } else { threads };
            (load, count)
        };
        let mut phases = phases(&drive, scheduler);
        let set = |ns: &mut u64, ms: Option<u64>| *ns = ms.map_or(*ns, |ms| ms * MS);
        set(&mut phases.warm_up_ns, settings.warm_up_ms);
        set(&mut phases.length_ns, settings.length_ms);
        phases.times = limit.is_some();
        Point {
            drive,
            scheduler,
            loads: settings.clients.into_iter().filter(is_there).map(count).collect(),
            // The setting `groups` gives each client a group of its own, instead of one group for
            // each kind of client. With one client of each kind (`threads` is 1), there is no
            // difference.
            groups: groups && threads > 1,
            depth,
            limit,
            start_ns: if settings.warm_up_ms.is_some() { LIMITED_START_NS } else { 0 },
            phases,
        }
    }
}

fn phases(drive: &str, scheduler: SchedulerKind) -> Phases {
    let (warm_up_ms, length_ms) = match drive {
        // On the null drive, the deadline scheduler takes about 20 ms until each I/O in flight has
        // been served once. The warm-up takes 40 ms, twice this time, and so does the measurement.
        "null" if scheduler == SchedulerKind::Deadline => (40, 40),
        "null" => (5, 5),
        "850evo" => (400, 800),
        "950pro" => (200, 300),
        model if model.starts_with("model:") => (2_000, 4_000),
        _ => (5_000, 30_000),
    };
    let (warm_up_ns, length_ns) = (warm_up_ms * MS, length_ms * MS);
    Phases { warm_up_ns, length_ns, step_ns: None, times: false }
}

impl Point {
    fn free(&self) -> Point {
        let phases = Phases { length_ns: FREE_LENGTH_NS, times: false, ..self.phases };
        Point { limit: None, phases, ..self.clone() }
    }

    fn preset(&self) -> Option<&'static ModelPreset> {
        model_presets().iter().find(|preset| preset.name == self.drive)
    }

    fn cost(&self) -> CostModel {
        let Some(preset) = self.preset() else { return CostModel::default() };
        let op = |iops, bytes_per_s| {
            let rates = OpRates { random_iops: iops, sequential_iops: iops, bytes_per_s };
            OpCost::from_rates(&rates)
        };
        CostModel {
            read: op(preset.random_iops.0, preset.bytes_per_s.0),
            write: op(preset.random_iops.1, preset.bytes_per_s.1),
        }
    }

    fn clients(&self) -> u32 {
        self.loads.iter().map(|(_, count)| count).sum()
    }

    fn group(&self, load: &Load, name: String) -> GroupConfig {
        let target = |us: u64| LatencyTarget::Percentile(9_900, Duration::from_micros(us));
        GroupConfig {
            weight: load.weight,
            priority: if load.idle { Priority::Idle } else { Priority::default() },
            latency_target: load.target_us.map(target),
            limits: GroupLimits { iops: self.limit, ..GroupLimits::default() },
            ..GroupConfig::new(name)
        }
    }

    fn plan(&self, seed: u64) -> ContentionPlan {
        let spec = match self.preset() {
            None if self.drive == "null" => "null:size=1t".to_owned(),
            None => self.drive.clone(),
            Some(preset) => format!("model:preset={}", preset.name),
        };
        let (mut groups, mut clients) = (Vec::new(), Vec::new());
        for (load, count) in &self.loads {
            for number in 0..*count {
                let is_own = self.groups || load.others;
                let name =
                    if is_own { format!("{}{number}", load.name) } else { load.name.clone() };
                if is_own || number == 0 {
                    groups.push(self.group(load, name.clone()));
                }
                clients.push(Client {
                    name,
                    group: GroupId(groups.len() as u16),
                    rw: load.rw,
                    bs_bytes: load.bs,
                    iodepth: load.depth.unwrap_or(self.depth),
                    cpu: None,
                    start_ns: self.start_ns.max(load.start_ms * MS),
                    thinktime_ns: load.think_ms * MS,
                    fsync: load.fsync,
                    sync: false,
                });
            }
        }
        ContentionPlan {
            drives: vec![spec.parse().expect("the drive's spec must be valid")],
            layout: Layout::Linear,
            scheduler: self.scheduler,
            queues: (Spread::Core, Spread::Core),
            cost: self.cost(),
            groups,
            clients,
            phases: self.phases,
            seed,
        }
    }
}

impl papers::Point for Point {
    type Measurement = ContentionReport;
    /// The mechanism `Lines` (cache lines of the single queue's lock) affects only the stack `sq`,
    /// which no simulation here uses.
    const UNUSED: &'static [Mechanism] = &[Mechanism::Lines];

    fn of_settings(settings: Table) -> Result<Point, String> {
        settings.try_into::<Settings>().map(Point::from).map_err(|error| error.to_string())
    }

    fn of(part: &str) -> Vec<Point> {
        SHEET.points(part)
    }

    fn machine(&self) -> &str {
        if self.drive == "null" { "epyc-2x64" } else { "x5690" }
    }

    fn task(&self) -> String {
        let (clients, drive) = (self.clients(), &self.drive);
        let limit = self.limit.map_or_else(String::new, |iops| format!(", limited to {iops} IOPS"));
        format!("{clients} clients of {drive}, {}{limit}", self.scheduler.word())
    }

    fn work(&self) -> u32 {
        self.clients()
    }

    fn run(&self, model: &Model, seed: u64) -> Result<ContentionReport, BenchError> {
        contend_simulated(model, &self.plan(seed))
    }

    fn events(seen: &ContentionReport) -> u64 {
        seen.sim_events.unwrap_or(0)
    }

    fn metric(results: &Results<Point>, point: &Point, name: &str) -> Option<Vec<f64>> {
        let seen = results.at(point)?;
        let limited = || LimitAccuracy::of(results, point, point.limit?);
        if let Some((client, name)) = name.split_once('.') {
            let row = seen.client(client).unwrap_or_else(|| panic!("{client}: no such client"));
            return Some(vec![match name {
                "iops" => row.iops,
                "ios" => row.ios as f64,
                "share" => row.share,
                "bytes" => row.bw_bytes_per_s,
                "p50" => row.lat_ns.p50 as f64,
                "p99" => row.lat_ns.p99 as f64,
                "p999" => row.lat_ns.p999 as f64,
                "max" => row.lat_ns.max as f64,
                "errors" => row.failed.errors as f64,
                _ => panic!(
                    "{name} is not a metric of a client; use iops, ios, share, bytes, p50, p99, p999 or max"
                ),
            }]);
        }
        let one = match name {
            "iops" => seen.iops,
            "jain" => seen.jain,
            "off_weight" => {
                let off =
                    |row: &crate::load::contention::ClientRow| row.share / row.weight_share - 1.0;
                return Some(seen.clients.iter().map(off).collect());
            }
            "due" => limited()?.due_iops,
            "off" => limited()?.off().0,
            "window_ms" => (limited()?.window_ns / MS) as f64,
            "window_off" => limited()?.off().1,
            "burst" => limited()?.burst,
            _ => panic!("{name}: no such metric"),
        };
        Some(vec![one])
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::page::CheckVerdict;
    use crate::papers::PartSelection;

    #[test]
    fn run_part_has_its_checks_judged_against_expectations() {
        let wanted = PartSelection::new(&["disk"], 1);
        let page =
            paper().run(wanted, &mut |_| ControlFlow::Continue(())).expect("the run must succeed");
        let judged = page.checks.iter().filter(|check| check.holds != CheckVerdict::NotYet);
        assert_eq!(judged.map(|check| check.id.as_str()).collect::<Vec<_>>(), ["disk.sorted"]);
        assert_eq!(page.figures.len(), 1);
        let (text, html) = (page.text(), page.html());
        assert!(text.contains("expected") && html.contains("<th>found</th>"), "{text}");
    }

    /// The other parts have tests elsewhere, or take minutes.
    #[test]
    fn promises_to_a_small_reader_hold() {
        let wanted = PartSelection::new(&["late", "pauses", "storms"], 1);
        let page =
            paper().run(wanted, &mut |_| ControlFlow::Continue(())).expect("the run must succeed");
        let judged: Vec<_> =
            page.checks.iter().filter(|c| c.holds != CheckVerdict::NotYet).collect();
        assert_eq!(judged.len(), 6);
        for check in judged {
            assert!(check.holds == CheckVerdict::Yes, "{}", page.text());
        }
    }
}
