//! What \[MQ\] ran: points (a design on so many cores of a machine), each run once.
//!
//! Figures ask for curves; the points that they share are the same. All points of all parts run
//! side by side, the long ones first, and their results do not depend on the order.

use std::collections::BTreeMap;

use millrace_block::{Inside, Layout, Spread, Stack, Stamp};
use millrace_simulator::Model;

use super::figures::name_of;
use crate::load::bench::BenchError;
use crate::load::row::Row;
use crate::load::workload::{Rw, Workload};
use crate::papers::{self, Mechanism};
use crate::simulation::{
    DioCount, InterfaceKind, Irq, Length, Linux3, Service, SimPlan, Watch, machine, run_simulated,
};

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
    fn of(part: &str) -> Vec<Curve> {
        let each = |machines: &[&'static str], stacks: &[Stack], interface| {
            let of = |machine| stacks.iter().map(move |s| Curve::new(machine, *s, interface));
            machines.iter().copied().flat_map(of).collect::<Vec<_>>()
        };
        let mq = Curve::new(EIGHT, Stack::Mq, InterfaceKind::LibaioFixed);
        match part {
            "fig4" => each(&MACHINES, &[Stack::Sq], InterfaceKind::Libaio),
            "fig6" => each(&MACHINES, &STACKS, InterfaceKind::Libaio),
            "fig7" => each(&MACHINES, &STACKS, InterfaceKind::Sync),
            "fig8" => [InterfaceKind::Libaio, InterfaceKind::LibaioFixed]
                .iter()
                .flat_map(|interface| each(&[EIGHT], &STACKS, *interface))
                .collect(),
            "fig9" => SPREADS.map(|spread| mq.queues(Spread::One, spread)).to_vec(),
            "fig10" => SPREADS.map(|spread| mq.queues(Spread::Core, spread)).to_vec(),
            "today" => today(),
            _ => Vec::new(),
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
pub(super) struct DesignPoint {
    curve: Curve,
    cores: u32,
    /// Maxima are looked for: the run is so long that a kernel thread comes to each core.
    maxima: bool,
    dio_count: DioCount,
    queue_counters: bool,
    noise: bool,
}

impl DesignPoint {
    /// The kernel as it was.
    fn new(curve: Curve, cores: u32) -> DesignPoint {
        let queue_counters = curve.inside() == Inside::Each;
        let dio_count = DioCount::All;
        DesignPoint { curve, cores, maxima: false, dio_count, queue_counters, noise: true }
    }

    /// Run for its longest latency.
    fn for_maxima(self) -> DesignPoint {
        DesignPoint { maxima: true, ..self }
    }

    fn plan(&self, model: &Model, seed: u64) -> SimPlan {
        let DesignPoint { curve, cores, maxima, dio_count, queue_counters, noise } = *self;
        let mut plan = curve.plan(cores, seed);
        // A slice of CFS with two threads on a CPU: half of sched_latency, which is eight times the
        // least granularity; and the switches to it and back.
        let threads = &model.threads;
        let slice_ns = (4.0 * threads.time_slice.ns + 2.0 * threads.context_switch.ns) as u64;
        let noise_ns = if maxima && noise { slice_ns } else { 0 };
        plan.service.linux3 = Linux3 { dio_count, queue_counters, noise_ns };
        if maxima {
            // The kernel thread comes in the first two fifths.
            plan.length = Length::Time(slice_ns * 5 / 2);
        }
        plan
    }
}

impl papers::Point for DesignPoint {
    type Measurement = Point;
    const OWN: &'static [Mechanism] =
        &[Mechanism::DioCount, Mechanism::QueueCounters, Mechanism::Noise];

    fn of(part: &str) -> Vec<DesignPoint> {
        let cores = |name| machine(name).map_or_else(|_| vec![1], |model| cores_of(&model));
        if part == "table2" {
            let all = |curve: &Curve| cores(curve.machine).last().copied().unwrap_or(1);
            let point = |curve: Curve| DesignPoint::new(curve, all(&curve)).for_maxima();
            return Curve::of("fig7").into_iter().map(point).collect();
        }
        let each = |curve: Curve| {
            cores(curve.machine).into_iter().map(move |cores| DesignPoint::new(curve, cores))
        };
        Curve::of(part).into_iter().flat_map(each).collect()
    }

    fn without(self, mechanism: Mechanism) -> DesignPoint {
        match mechanism {
            Mechanism::DioCount => DesignPoint { dio_count: DioCount::None, ..self },
            Mechanism::QueueCounters => DesignPoint { queue_counters: false, ..self },
            Mechanism::Noise => DesignPoint { noise: false, ..self },
            _ => self,
        }
    }

    fn machine(&self) -> &'static str {
        self.curve.machine
    }

    fn task(&self) -> String {
        let task = self.curve.task(self.cores);
        if self.maxima { format!("{task}, for maxima") } else { task }
    }

    fn work(&self) -> u32 {
        self.cores
    }

    fn run(&self, model: &Model, seed: u64) -> Result<Point, BenchError> {
        run_simulated(model, &self.plan(model, seed)).map(|row| Point::of(&row))
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
pub(super) type Results = papers::Results<DesignPoint>;

impl Results {
    /// The points of a curve by cores, if it was run.
    pub(super) fn curve(&self, curve: Curve) -> Option<BTreeMap<u32, Point>> {
        let of = self.points().filter(|(on, _)| on.curve == curve && !on.maxima);
        let points: BTreeMap<_, _> = of.map(|(on, point)| (on.cores, *point)).collect();
        (!points.is_empty()).then_some(points)
    }

    /// The longest latency of a curve at all cores, if it was run for that.
    pub(super) fn max_ns(&self, curve: Curve) -> Option<f64> {
        let mut of = self.points().filter(|(on, _)| on.curve == curve && on.maxima);
        of.next().map(|(_, point)| point.max_ns)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::Point as _;

    fn run(on: DesignPoint) -> Point {
        let model = machine(on.curve.machine).expect("a known machine");
        on.run(&model, 1).expect("it runs")
    }

    #[test]
    fn what_the_kernel_counted_slows_those_who_share_it_and_nobody_else() {
        let point = |machine, stack, cores| {
            DesignPoint::new(Curve::new(machine, stack, InterfaceKind::Libaio), cores)
        };
        for (on, mechanism, (least, most)) in [
            (point("i7-3930k", Stack::Mq, 6), Mechanism::QueueCounters, (1.03, 1.2)),
            (point("i7-3930k", Stack::Mq, 1), Mechanism::QueueCounters, (1.0, 1.01)),
            (point("i7-3930k", Stack::Raw, 6), Mechanism::QueueCounters, (1.0, 1.0)),
            (point("x7560", Stack::Raw, 12), Mechanism::DioCount, (1.5, 9.0)),
            (point("x7560", Stack::Raw, 1), Mechanism::DioCount, (1.0, 1.05)),
        ] {
            let rest = run(on.without(mechanism)).iops / run(on).iops;
            assert!((least..=most).contains(&rest), "{on:?} without {mechanism:?}: {rest}");
        }
    }

    #[test]
    fn the_longest_latency_is_that_of_the_kernel_thread_and_the_mean_is_run_without_it() {
        let curve = Curve::new("i7-3930k", Stack::Mq, InterfaceKind::Sync);
        let on = DesignPoint::new(curve, 2).for_maxima();
        let (with, without) = (run(on).max_ns, run(on.without(Mechanism::Noise)).max_ns);
        assert!((9e6..9.1e6).contains(&with) && without < 1e5, "{with} {without}");
        assert!(run(DesignPoint::new(curve, 2)).max_ns < 1e5);
    }
}
