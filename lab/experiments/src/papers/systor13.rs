//! `systor13`: the experiments of \[MQ\] on its four machines, in virtual time.
//!
//! A `Point` is one simulation with settings from `papers/systor13.toml`, which also has the
//! figures, tables and checks. The machines' files are the only input; no result of the paper is an
//! input. As in the paper, one process per core, in socket order, does random reads of 512 bytes
//! from a null drive. For rates, each process keeps 32 I/Os in flight and submits them one by one
//! (fio's default); for latencies, it does one I/O at a time. `millrace-lab paper` calls this file.

use std::sync::LazyLock;

use millrace_block::baseline::{Inside, Stack};
use millrace_block::{Layout, Spread, Stamp};
use millrace_drives::Words;
use millrace_simulator::Model;
use serde::Deserialize;
use toml::Table;

use super::sheet::{Sheet, parsed, word};
use crate::load::bench::BenchError;
use crate::load::row::Row;
use crate::load::workload::{Rw, Workload};
use crate::papers::{self, Mechanism, Paper, Results};
use crate::simulation::{
    DioCount, InterfaceKind, Irq, Length, Linux3, Service, SimPlan, Watch, run_simulated,
};

static SHEET: LazyLock<Sheet> =
    LazyLock::new(|| Sheet::parse(include_str!("../../papers/systor13.toml")));

pub(super) fn paper() -> Paper {
    Paper::of_sheet("systor13", &SHEET, papers::mechanisms::<Point>, |wanted, tell| {
        papers::repeat::<Point>(("systor13", &SHEET), wanted, tell, |page, _| page)
    })
}

/// A present-day machine for comparison, which is not in the paper.
const TODAY: &str = "epyc-2x64";

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    machine: String,
    #[serde(deserialize_with = "word")]
    stack: Stack,
    #[serde(default = "libaio", deserialize_with = "parsed")]
    interface: InterfaceKind,
    #[serde(default = "core", deserialize_with = "word")]
    software: Spread,
    /// Placement of hardware queues. The paper's default is one queue per socket. In the paper's
    /// raw design, the driver takes bios directly (`make_request_fn`), and CPUs share no state of
    /// the block layer. For this design, the model always uses one hardware queue per core.
    #[serde(default = "node", deserialize_with = "word")]
    hardware: Spread,
    cores: u32,
    /// True if the run measures maximum latencies. A kernel thread then preempts the job on each
    /// core once.
    #[serde(default)]
    maxima: bool,
    #[serde(skip)]
    without: Vec<Mechanism>,
}

fn libaio() -> InterfaceKind {
    InterfaceKind::Libaio
}

fn core() -> Spread {
    Spread::Core
}

fn node() -> Spread {
    Spread::Node
}

impl Point {
    /// Returns the number of threads that may dispatch from a hardware queue at a time. On the
    /// paper's machines, any number may do so with the stack `mq`, as in the kernel of 2013.
    fn inside(&self) -> Inside {
        match self.stack == Stack::Mq && self.machine != TODAY {
            true => Inside::Each,
            false => Inside::ONE,
        }
    }

    fn has(&self, mechanism: Mechanism) -> bool {
        !self.without.contains(&mechanism)
    }

    fn plan(&self, model: &Model, seed: u64) -> SimPlan {
        let Point { interface, cores, maxima, .. } = *self;
        let iodepth = if interface == InterfaceKind::Sync { 1 } else { 32 };
        // Time of one preemption by a kernel thread: a CFS time slice and two context switches. The
        // model's `time_slice` is the minimum granularity of CFS. `sched_latency` is eight times
        // the minimum granularity. With two threads on a CPU, a CFS time slice is half of
        // `sched_latency`, that is, four times the minimum granularity.
        let threads = &model.threads;
        let slice_ns = (4.0 * threads.time_slice.ns + 2.0 * threads.context_switch.ns) as u64;
        let linux3 = Linux3 {
            dio_count: if self.has(Mechanism::DioCount) { DioCount::All } else { DioCount::None },
            queue_counters: self.inside() == Inside::Each && self.has(Mechanism::QueueCounters),
            noise_ns: if maxima && self.has(Mechanism::Noise) { slice_ns } else { 0 },
        };
        SimPlan {
            drives: vec!["null:size=1t".parse().expect("the drive's spec must be valid")],
            layout: Layout::Linear,
            service: Service { inside: self.inside(), linux3, ..Service::default() },
            stack: self.stack,
            software_queues: self.software,
            hardware_queues: self.hardware,
            cpus: (0..cores).collect(),
            jobs: cores,
            workload: Workload { rw: Rw::RandRead, bs_bytes: 512, iodepth, verify: false, seed },
            // Measure for 2.5 slices. The kernel thread wakes at most one slice after the start of
            // the window, and runs for one slice. So it ends before the window does.
            length: if maxima { Length::Time(slice_ns * 5 / 2) } else { Length::Rounds },
            stamp: Stamp::Batch,
            interface,
            // With the interface `Ring`, a job submits all I/Os that its depth allows at once. With
            // the other interfaces, the job submits each I/O in a system call of its own.
            batch: (interface != InterfaceKind::Ring).then_some(1),
            irq: Irq::Submitter,
            watch: Watch::default(),
        }
    }
}

impl papers::Point for Point {
    type Measurement = Row;
    const OWN: &'static [Mechanism] =
        &[Mechanism::DioCount, Mechanism::QueueCounters, Mechanism::Noise];

    fn of_settings(settings: Table) -> Result<Point, String> {
        let point: Point = settings.try_into().map_err(|error| error.to_string())?;
        let hardware = if point.stack == Stack::Raw { Spread::Core } else { point.hardware };
        Ok(Point { hardware, ..point })
    }

    fn of(part: &str) -> Vec<Point> {
        SHEET.points(part)
    }

    fn without(mut self, mechanism: Mechanism) -> Point {
        self.without.push(mechanism);
        self
    }

    fn machine(&self) -> &str {
        &self.machine
    }

    fn task(&self) -> String {
        let Point { machine, interface, cores, .. } = self;
        let maxima = if self.maxima { ", for maxima" } else { "" };
        format!("{} on {cores} cores of {machine}, {interface}{maxima}", self.stack.word())
    }

    fn work(&self) -> u32 {
        self.cores
    }

    fn run(&self, model: &Model, seed: u64) -> Result<Row, BenchError> {
        run_simulated(model, &self.plan(model, seed))
    }

    fn events(seen: &Row) -> u64 {
        seen.machine.as_ref().and_then(|machine| machine.sim_events).unwrap_or(0)
    }

    fn metric(results: &Results<Point>, point: &Point, name: &str) -> Option<Vec<f64>> {
        let seen = results.at(point)?;
        let max_ns = seen.lat_ns.max as f64;
        let one = match name {
            "iops" => seen.iops,
            "mean_ns" => seen.lat_ns.mean as f64,
            "max_ns" => max_ns,
            "max_bucket" => bucket_ms(max_ns),
            _ => panic!("{name}: no such metric"),
        };
        Some(vec![one])
    }
}

/// Returns the upper limit, in milliseconds, of the bucket of fio's latency histogram that contains
/// a latency of `ns`.
fn bucket_ms(ns: f64) -> f64 {
    let ms = [
        0.002, 0.004, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.0, 4.0, 10.0, 20.0, 50.0,
        100.0, 250.0, 500.0, 750.0, 1000.0, 2000.0,
    ];
    ms.into_iter().find(|edge| ns <= edge * 1e6).unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::Point as _;
    use crate::simulation::machine;

    fn point(machine: &str, stack: Stack, interface: InterfaceKind, cores: u32) -> Point {
        let hardware = if stack == Stack::Raw { Spread::Core } else { Spread::Node };
        Point {
            machine: machine.into(),
            stack,
            interface,
            software: Spread::Core,
            hardware,
            cores,
            maxima: false,
            without: Vec::new(),
        }
    }

    fn run(on: &Point) -> Row {
        let model = machine(&on.machine).expect("the machine must exist");
        on.run(&model, 1).expect("the run must succeed")
    }

    #[test]
    fn what_kernel_counted_slows_those_who_share_it_and_nobody_else() {
        let point = |machine, stack, cores| point(machine, stack, InterfaceKind::Libaio, cores);
        for (on, mechanism, (least, most)) in [
            (point("i7-3930k", Stack::Mq, 6), Mechanism::QueueCounters, (1.03, 1.2)),
            (point("i7-3930k", Stack::Mq, 1), Mechanism::QueueCounters, (1.0, 1.01)),
            (point("i7-3930k", Stack::Raw, 6), Mechanism::QueueCounters, (1.0, 1.0)),
            (point("x7560", Stack::Raw, 12), Mechanism::DioCount, (1.5, 9.0)),
            (point("x7560", Stack::Raw, 1), Mechanism::DioCount, (1.0, 1.05)),
        ] {
            let rest = run(&on.clone().without(mechanism)).iops / run(&on).iops;
            assert!((least..=most).contains(&rest), "{on:?} without {mechanism:?}: {rest}");
        }
    }

    #[test]
    fn longest_latency_is_of_the_kernel_thread_and_mean_is_not() {
        let plain = point("i7-3930k", Stack::Mq, InterfaceKind::Sync, 2);
        let on = Point { maxima: true, ..plain.clone() };
        let max_ns = |on: Point| run(&on).lat_ns.max as f64;
        let (with, without) = (max_ns(on.clone()), max_ns(on.without(Mechanism::Noise)));
        assert!((9e6..9.1e6).contains(&with) && without < 1e5, "{with} {without}");
        assert!(max_ns(plain) < 1e5);
    }
}
