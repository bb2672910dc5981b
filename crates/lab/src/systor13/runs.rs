//! What \[MQ\] ran: points (a design on so many cores of a machine), each run once.
//!
//! Figures ask for curves; the points that they share are the same. All points of all parts run
//! side by side, the long ones first, and their results do not depend on the order.

use std::collections::BTreeMap;

use millrace_block::{Inside, Layout, Spread, Stack, Stamp};
use millrace_machine::Model;

use super::Part;
use super::figures::name_of;
use crate::bench::BenchError;
use crate::paper;
use crate::row::Row;
use crate::sim::{InterfaceKind, Irq, Length, Service, SimPlan, Watch, machine, run_simulated};
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

    /// In the kernel all CPUs of a hardware queue were inside at once. Millrace's own way is to let
    /// one in, as on the machine of today.
    fn inside(&self) -> Inside {
        match self.stack == Stack::Mq && self.machine != TODAY {
            true => Inside::Each,
            false => Inside::ONE,
        }
    }

    /// A point in words.
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
            service: Service { inside: self.inside(), ..Service::default() },
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

/// A design on so many cores of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct On {
    curve: Curve,
    cores: u32,
}

impl paper::Point for On {
    type Part = Part;
    type Seen = Point;

    fn of(part: Part) -> Vec<On> {
        let each = |curve: Curve| {
            let cores = machine(curve.machine).map_or_else(|_| vec![1], |model| cores_of(&model));
            cores.into_iter().map(move |cores| On { curve, cores })
        };
        Curve::of(part).into_iter().flat_map(each).collect()
    }

    fn machine(&self) -> &'static str {
        self.curve.machine
    }

    fn task(&self) -> String {
        self.curve.task(self.cores)
    }

    fn work(&self) -> u32 {
        self.cores
    }

    fn run(&self, model: &Model, seed: u64) -> Result<Point, BenchError> {
        run_simulated(model, &self.curve.plan(self.cores, seed)).map(|row| Point::of(&row))
    }

    fn events(seen: &Point) -> u64 {
        seen.events
    }
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
pub(super) type Results = paper::Results<On>;

impl Results {
    /// The points of a curve by cores, if it was run.
    pub(super) fn curve(&self, curve: Curve) -> Option<BTreeMap<u32, Point>> {
        let of = self.points().filter(|(on, _)| on.curve == curve);
        let points: BTreeMap<_, _> = of.map(|(on, point)| (on.cores, *point)).collect();
        (!points.is_empty()).then_some(points)
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
