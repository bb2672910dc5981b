//! Which points each part needs, and what they gave.
//!
//! Parts share points; each is run once, side by side with others, those with the most work first.
//! Results do not depend on the order.

use millrace_block::SchedulerKind;
use millrace_simulator::Model;

use super::points::{ClientPresence, Grouping, Point, Rig};
use crate::load::bench::BenchError;
use crate::load::contention::{ClientRow, ContentionReport, contend_simulated};
use crate::papers::{self, Mechanism};

/// Cores of the part `scaling`.
pub(super) const CORES: [u32; 5] = [1, 8, 32, 64, 128];
/// Its lines.
pub(super) const LINES: [(SchedulerKind, Grouping); 6] = [
    (SchedulerKind::None, Grouping::Together),
    (SchedulerKind::Deadline, Grouping::Together),
    (SchedulerKind::Fair, Grouping::Together),
    (SchedulerKind::Latency, Grouping::Together),
    (SchedulerKind::Fair, Grouping::Each),
    (SchedulerKind::Latency, Grouping::Each),
];
/// Drives that groups share.
pub(super) const SHARED: [Rig; 2] = [Rig::Evo, Rig::Pro];
/// Schedulers that are compared there.
pub(super) const SHARING: [SchedulerKind; 3] =
    [SchedulerKind::None, SchedulerKind::Fair, SchedulerKind::Latency];
/// Clients of depth 256 beside one of depth 1.
pub(super) const OTHERS: [u32; 3] = [1, 3, 7];
/// Limits in I/Os a second.
pub(super) const LIMITS: [u64; 4] = [100, 10_000, 100_000, 2_000_000];
/// Threads that share a limit.
pub(super) const THREADS: [u32; 3] = [1, 8, 64];
/// Depths at the disk.
pub(super) const DEPTHS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// A point for each drive and scheduler.
fn each(point: impl Fn(Rig, SchedulerKind) -> Point) -> Vec<Point> {
    let of = |rig| SHARING.map(|scheduler| point(rig, scheduler));
    SHARED.into_iter().flat_map(of).collect()
}

impl papers::Point for Point {
    type Measurement = ContentionReport;
    /// No single queue is run.
    const UNUSED: &'static [Mechanism] = &[Mechanism::Lines];

    fn of(part: &str) -> Vec<Point> {
        let none = SchedulerKind::None;
        match part {
            "scaling" => LINES
                .into_iter()
                .flat_map(|(scheduler, grouping)| {
                    CORES.map(|cores| Point::cores(scheduler, cores, grouping))
                })
                .collect(),
            "weights" => each(Point::weights),
            "equal" => [each(Point::depths), each(Point::sizes)].concat(),
            "shallow" => {
                let alone = SHARED.map(|rig| Point::shallow(rig, none, 0));
                let beside =
                    OTHERS.map(|others| each(|rig, kind| Point::shallow(rig, kind, others)));
                [alone.to_vec(), beside.concat()].concat()
            }
            "target" => {
                let alone = |rig| {
                    [ClientPresence::First, ClientPresence::Second]
                        .map(|p| Point::target(rig, none, p))
                };
                let beside = each(|rig, kind| Point::target(rig, kind, ClientPresence::Both));
                [SHARED.map(alone).concat(), beside].concat()
            }
            "limits" => {
                let limits = std::iter::once(None).chain(LIMITS.map(Some));
                limits
                    .flat_map(|limit| THREADS.map(|threads| Point::limit(limit, threads)))
                    .collect()
            }
            "idle" => {
                let usual = SHARED.map(|rig| Point::idle(rig, none, ClientPresence::First));
                let idle = [ClientPresence::Second, ClientPresence::Both]
                    .map(|present| each(|rig, kind| Point::idle(rig, kind, present)));
                [usual.to_vec(), idle.concat()].concat()
            }
            _ => [none, SchedulerKind::Deadline]
                .into_iter()
                .flat_map(|scheduler| DEPTHS.map(|depth| Point::disk(scheduler, depth)))
                .collect(),
        }
    }

    fn machine(&self) -> &'static str {
        self.rig.machine()
    }

    fn task(&self) -> String {
        self.in_words()
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
}

/// All points that were run.
pub(super) type Results = papers::Results<Point>;

impl Results {
    /// I/Os a second of all clients of a point.
    pub(super) fn iops(&self, point: &Point) -> Option<f64> {
        Some(self.at(point)?.iops)
    }

    /// What a client of a point got.
    pub(super) fn client(&self, point: &Point, name: &str) -> Option<&ClientRow> {
        self.at(point)?.client(name)
    }

    /// What a client got over what it gets in another point.
    pub(super) fn kept(&self, name: &str, point: &Point, alone: &Point) -> Option<f64> {
        Some(self.client(point, name)?.iops / self.client(alone, name)?.iops)
    }
}
