//! What \[MQ\] ran: points (a design on so many cores of a machine), each run once.
//!
//! Figures ask for curves; the points that they share are the same. All points of all parts run
//! side by side, the long ones first, and their results do not depend on the order.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use millrace_block::{Layout, Spread, Stack, Stamp};
use millrace_machine::Model;

use super::Part;
use super::figures::name_of;
use crate::bench::BenchError;
use crate::paper::{self, Step};
use crate::row::Row;
use crate::sim::{InterfaceKind, Irq, Length, Service, SimPlan, Watch, run_simulated};
use crate::workload::{Rw, Workload};

/// The machines of table 1, by sockets.
pub(super) const MACHINES: [&str; 4] = ["i7-3930k", "x5690", "x7560", "e7-2870"];
/// Eight sockets.
pub(super) const EIGHT: &str = MACHINES[3];
/// A machine of today.
pub(super) const TODAY: &str = "epyc-2x64";
/// The designs, in the order of the paper's legends.
pub(super) const STACKS: [Stack; 3] = [Stack::Sq, Stack::Mq, Stack::Raw];
/// The mappings of figures 9 and 10.
pub(super) const SPREADS: [Spread; 3] = [Spread::One, Spread::Node, Spread::Core];

/// What tells one curve from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Curve {
    pub(super) machine: &'static str,
    pub(super) stack: Stack,
    pub(super) interface: InterfaceKind,
    pub(super) software_queues: Spread,
    pub(super) hardware_queues: Spread,
}

impl Curve {
    /// The paper's default: a software queue per core, a hardware queue per socket. Raw is a driver
    /// that takes bios itself, past every queue of the layer (`make_request_fn`), and shares
    /// nothing between CPUs: here that is a queue of the driver for each core.
    pub(super) fn new(machine: &'static str, stack: Stack, interface: InterfaceKind) -> Curve {
        let hardware_queues = if stack == Stack::Raw { Spread::Core } else { Spread::Node };
        let software_queues = Spread::Core;
        Curve { machine, stack, interface, software_queues, hardware_queues }
    }

    /// With other queues.
    pub(super) fn queues(self, software_queues: Spread, hardware_queues: Spread) -> Curve {
        Curve { software_queues, hardware_queues, ..self }
    }

    /// Curves that a part shows.
    fn of(part: Part) -> Vec<Curve> {
        let each = |machines: &[&'static str], stacks: &[Stack], interface| {
            let of = |machine| stacks.iter().map(move |s| Curve::new(machine, *s, interface));
            machines.iter().copied().flat_map(of).collect::<Vec<_>>()
        };
        let mq = Curve::new(EIGHT, Stack::Mq, InterfaceKind::LibaioFixed);
        match part {
            Part::Fig4 => each(&MACHINES, &[Stack::Sq], InterfaceKind::Libaio),
            Part::Fig6 => each(&MACHINES, &STACKS, InterfaceKind::Libaio),
            Part::Fig7 | Part::Table2 => each(&MACHINES, &STACKS, InterfaceKind::Sync),
            Part::Fig8 => [InterfaceKind::Libaio, InterfaceKind::LibaioFixed]
                .iter()
                .flat_map(|interface| each(&[EIGHT], &STACKS, *interface))
                .collect(),
            Part::Fig9 => SPREADS.map(|spread| mq.queues(Spread::One, spread)).to_vec(),
            Part::Fig10 => SPREADS.map(|spread| mq.queues(Spread::Core, spread)).to_vec(),
            Part::Today => today(),
        }
    }

    /// A point in words, for a progress bar.
    fn task(&self, cores: u32) -> String {
        let (name, machine, interface) = (name_of(self.stack), self.machine, self.interface);
        format!("{name} on {cores} cores of {machine}, {interface}")
    }

    fn plan(&self, cores: u32, seed: u64) -> SimPlan {
        let iodepth = if self.interface == InterfaceKind::Sync { 1 } else { 32 };
        // A ring takes all that is free with one look; the others take a call for each.
        let batch = (self.interface != InterfaceKind::Ring).then_some(1);
        SimPlan {
            drives: vec!["null:size=1t".parse().expect("a drive in order")],
            layout: Layout::Linear,
            service: Service::default(),
            stack: self.stack,
            software_queues: self.software_queues,
            hardware_queues: self.hardware_queues,
            cpus: (0..cores).collect(),
            jobs: cores,
            workload: Workload { rw: Rw::RandRead, bs_bytes: 512, iodepth, verify: false, seed },
            length: Length::Rounds,
            stamp: Stamp::Batch,
            interface: self.interface,
            batch,
            irq: Irq::Submitter,
            watch: Watch::default(),
        }
    }
}

/// The present-day curves: both designs, hardware queues per core and per socket.
fn today() -> Vec<Curve> {
    let mq = Curve::new(TODAY, Stack::Mq, InterfaceKind::Ring);
    let sq = Curve::new(TODAY, Stack::Sq, InterfaceKind::Ring);
    vec![mq.queues(Spread::Core, Spread::Core), mq, sq]
}

/// What one point gave.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) iops: f64,
    pub(super) mean_ns: f64,
    pub(super) max_ns: f64,
    events: u64,
}

impl Point {
    fn of(row: &Row) -> Point {
        Point {
            iops: row.iops,
            mean_ns: row.lat_ns.mean as f64,
            max_ns: row.lat_ns.max as f64,
            events: row.machine.as_ref().and_then(|machine| machine.sim_events).unwrap_or(0),
        }
    }
}

/// All points that were run.
pub(super) struct Results {
    models: Vec<Model>,
    curves: Vec<(Curve, BTreeMap<u32, Point>)>,
}

impl Results {
    /// Runs what the parts need; also says which parts were run whole.
    pub(super) fn run(
        parts: &[Part],
        seed: u64,
        tell: impl FnMut(Step<'_>) -> ControlFlow<()> + Send,
    ) -> Result<(Results, Vec<Part>), BenchError> {
        let curves = paper::distinct(parts.iter().flat_map(|part| Curve::of(*part)));
        let used = |name: &&&'static str| curves.iter().any(|curve| curve.machine == **name);
        let models = paper::models(MACHINES.iter().chain([&TODAY]).filter(used))?;
        let model = |curve: &Curve| models.iter().find(|model| model.name == curve.machine);
        let mut points = Vec::new();
        for (index, curve) in curves.iter().enumerate() {
            let model = model(curve).expect("loaded above");
            points.extend(cores_of(model).into_iter().map(|cores| (index, cores, model)));
        }
        // The long ones first, so that none is left over for the end.
        points.sort_by_key(|(index, cores, _)| (std::cmp::Reverse(*cores), *index));
        let run = |at: usize| {
            let (index, cores, model) = points[at];
            run_simulated(model, &curves[index].plan(cores, seed))
        };
        let names: Vec<String> =
            points.iter().map(|(index, cores, _)| curves[*index].task(*cores)).collect();
        let rows = paper::run_points(&names, run, tell)?;
        let mut ran: Vec<_> = curves.into_iter().map(|c| (c, Some(BTreeMap::new()))).collect();
        for ((index, cores, _), row) in points.iter().zip(&rows) {
            // A curve that lacks a point is as one that was not run.
            let curve = &mut ran[*index].1;
            match (row, curve.as_mut()) {
                (Some(row), Some(curve)) => _ = curve.insert(*cores, Point::of(row)),
                _ => *curve = None,
            }
        }
        let (parts, curves) = paper::whole_parts(parts, Curve::of, ran);
        Ok((Results { models, curves }, parts))
    }

    /// How many points.
    pub(super) fn len(&self) -> usize {
        self.curves.iter().map(|(_, points)| points.len()).sum()
    }

    /// Line and lock events in all of them.
    pub(super) fn events(&self) -> u64 {
        self.curves.iter().flat_map(|(_, points)| points.values()).map(|point| point.events).sum()
    }

    /// The machines they ran on.
    pub(super) fn machines(&self) -> &[Model] {
        &self.models
    }

    /// One of them, by its name.
    pub(super) fn model(&self, name: &str) -> Option<&Model> {
        self.models.iter().find(|model| model.name == name)
    }

    /// The points of a curve, if it was run.
    pub(super) fn curve(&self, curve: Curve) -> Option<&BTreeMap<u32, Point>> {
        self.curves.iter().find(|(other, _)| *other == curve).map(|(_, points)| points)
    }
}

/// Cores at which a machine is measured: all of the first socket and the first of the second, then
/// the first, the middle and the last of each.
fn cores_of(model: &Model) -> Vec<u32> {
    let (all, socket) = (model.cpus(), model.cores_per_socket);
    let wanted = |cores: &u32| {
        let place = cores % socket;
        *cores <= socket + 2 && socket <= 16
            || all <= 12
            || place <= 1
            || place == socket / 2
            || cores.is_power_of_two()
            || cores.is_multiple_of(16) && socket > 16
    };
    (1..=all).filter(wanted).collect()
}
