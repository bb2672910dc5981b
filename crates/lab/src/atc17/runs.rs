//! Which points each part of \[FALCON\] needs, and what they gave.
//!
//! Parts share points; each is run once, side by side with others, those with the most work first.
//! Results do not depend on the order.

use std::ops::ControlFlow;

use millrace_block::Serving;
use millrace_machine::Model;

use super::Part;
use super::rigs::{LOADS, MACHINES, Point, Rig};
use crate::bench::BenchError;
use crate::paper::{self, Step};
use crate::sim::{Observed, run_observed};

/// The ways of serving, in the order of legends and columns.
pub(super) const SERVINGS: [Serving; 4] =
    [Serving::PerVolume, Serving::PerDrive, Serving::Inline, Serving::Auto];
/// Drives of the figure on scaling.
pub(super) const COUNTS: [u32; 4] = [1, 2, 4, 8];
/// Stripe sizes.
pub(super) const CHUNKS_KIB: [u32; 4] = [4, 8, 16, 32];
/// High watermarks, with half of them as low ones.
pub(super) const HIGHS: [u32; 6] = [4, 8, 16, 32, 64, 128];
/// Low watermarks, below a high one of 32.
pub(super) const LOWS: [u32; 6] = [1, 4, 8, 16, 24, 32];

/// Each of the loads, served in each way.
fn loads(rig: Rig) -> Vec<Point> {
    let each = |load| SERVINGS.map(|serving| Point::on(rig, load, serving));
    LOADS.into_iter().flat_map(each).collect()
}

/// The points of the sweep of watermarks: both random loads.
pub(super) fn swept(load: usize, (high, low): (u32, u32)) -> Point {
    Point::on(Rig::Hba, LOADS[load], Serving::PerDrive).marks(high, low)
}

/// Points that a part shows.
fn points_of(part: Part) -> Vec<Point> {
    let hba = loads(Rig::Hba);
    let random = || hba.iter().copied().filter(|point| LOADS[..2].contains(&point.load));
    match part {
        Part::Scaling => {
            hba.iter().flat_map(|point| COUNTS.map(|drives| point.drives(drives))).collect()
        }
        Part::Stripes => {
            hba.iter().flat_map(|point| CHUNKS_KIB.map(|chunk| point.chunk(chunk))).collect()
        }
        Part::Controllers => [Rig::Ahci, Rig::Scu, Rig::Hba].into_iter().flat_map(loads).collect(),
        Part::Watermarks => [0, 1]
            .into_iter()
            .flat_map(|load| {
                let highs = HIGHS.map(|high| swept(load, (high, high / 2)));
                highs.into_iter().chain(LOWS.map(move |low| swept(load, (32, low))))
            })
            .collect(),
        Part::Latency => random().map(Point::single).collect(),
        Part::Ideal => {
            let ideal = LOADS[..2].iter().map(|load| Point::ideal(Rig::Hba, *load));
            let counted = |point: Point| COUNTS.map(|drives| point.drives(drives));
            let served = random().filter(|point| point.serving == Serving::PerDrive);
            ideal.chain(served).flat_map(counted).collect()
        }
        Part::Tags => [Serving::PerVolume, Serving::PerDrive]
            .map(|serving| Point::on(Rig::Ahci, LOADS[0], serving).watched())
            .to_vec(),
        Part::Fairness => random().collect(),
        Part::Nvme => SERVINGS.map(|serving| Point::on(Rig::Nvme, LOADS[0], serving)).to_vec(),
    }
}

/// All points that were run.
pub(super) struct Results {
    models: Vec<Model>,
    points: Vec<(Point, Observed)>,
}

impl Results {
    /// Runs what the parts need; also says which parts were run whole.
    pub(super) fn run(
        parts: &[Part],
        seed: u64,
        tell: impl FnMut(Step<'_>) -> ControlFlow<()> + Send,
    ) -> Result<(Results, Vec<Part>), BenchError> {
        let mut points = paper::distinct(parts.iter().flat_map(|part| points_of(*part)));
        // The long ones first, so that none is left over for the end.
        points.sort_by_key(|point| (point.serving != Serving::Auto, u32::MAX - point.drives));
        let used = |name: &&&'static str| points.iter().any(|p| p.rig.machine() == **name);
        let models = paper::models(MACHINES.iter().filter(used))?;
        let run = |at: usize| {
            let point: &Point = &points[at];
            let model = models.iter().find(|model| model.name == point.rig.machine());
            run_observed(model.expect("loaded above"), &point.plan(seed))
        };
        let names: Vec<String> = points.iter().map(Point::task).collect();
        let rows = paper::run_points(&names, run, tell)?;
        let ran = points.into_iter().zip(rows).collect();
        let (parts, points) = paper::whole_parts(parts, points_of, ran);
        Ok((Results { models, points }, parts))
    }

    /// How many points.
    pub(super) fn len(&self) -> usize {
        self.points.len()
    }

    /// Line and lock events in all of them.
    pub(super) fn events(&self) -> u64 {
        let machines = self.points.iter().filter_map(|(_, seen)| seen.row.machine.as_ref());
        machines.filter_map(|machine| machine.sim_events).sum()
    }

    /// The machines they ran on.
    pub(super) fn machines(&self) -> &[Model] {
        &self.models
    }

    /// All points.
    pub(super) fn points(&self) -> impl Iterator<Item = &Point> {
        self.points.iter().map(|(point, _)| point)
    }

    /// What a point gave, if it was run.
    pub(super) fn at(&self, point: Point) -> Option<&Observed> {
        self.points.iter().find(|(other, _)| *other == point).map(|(_, seen)| seen)
    }

    /// I/Os a second of a point.
    pub(super) fn iops(&self, point: Point) -> Option<f64> {
        self.at(point).map(|seen| seen.row.iops)
    }

    /// Rate of a point over that of the same row served otherwise.
    pub(super) fn gain(&self, point: Point, other: Serving) -> Option<f64> {
        Some(self.iops(point)? / self.iops(point.served(other))?)
    }
}
