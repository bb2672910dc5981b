//! `Results`: the simulations (points) of a paper, each run once, and their measurements.
//!
//! A paper's module defines its points. The paper's file lists the parts of its result page, such
//! as figures, and the points that each part shows; several parts may show the same point. All
//! points run in parallel, those with the most work first; their results do not depend on the
//! order. `repeat` makes the page. If the user switches off mechanisms of the simulated machine or
//! kernel, each point is run twice: with all mechanisms, and without these.

use std::borrow::Borrow;
use std::cmp::Reverse;

use millrace_drives::Words;
use millrace_simulator::Model;
use toml::Table;

use crate::load::bench::BenchError;
use crate::page::Page;
use crate::papers::mechanism::{self, Mechanism};
use crate::papers::sheet::Sheet;
use crate::papers::{
    PAPERS, Repetition, Tell, comparison, distinct, models, run_points, whole_parts,
};

/// Selection of parts of a paper's results, such as figures, and settings that apply to all
/// simulations of these parts.
#[derive(Debug, Clone, Copy)]
pub struct PartSelection<'a> {
    /// Names of the parts of the paper's page, such as `fig4`, without duplicates.
    pub parts: &'a [&'static str],
    /// Seed of all simulations.
    pub seed: u64,
    /// Mechanisms of the simulated machine or kernel that are switched off in a second run of each
    /// simulation. If empty, there is no second run.
    pub without: &'a [Mechanism],
}

impl<'a> PartSelection<'a> {
    /// Selects `parts` of a paper, such as its figures. No mechanism of the simulated machine is
    /// switched off.
    pub fn new(parts: &'a [&'static str], seed: u64) -> Self {
        PartSelection { parts, seed, without: &[] }
    }
}

/// A point: one simulation of a paper, with its settings. If several parts of the paper's page need
/// the same point, the simulation runs only once.
pub(crate) trait Point: Clone + PartialEq + Sync {
    type Measurement: Send;
    /// Mechanisms that this paper's simulations can switch off, besides those of the machine
    /// models.
    const OWN: &'static [Mechanism] = &[];
    /// Mechanisms of the machine models that have no effect on this paper's simulations. Users
    /// cannot switch off these mechanisms for this paper.
    const UNUSED: &'static [Mechanism] = &[];

    fn of_settings(settings: Table) -> Result<Self, String>
    where
        Self: Sized;

    /// Returns a metric of a simulation by name; `None` if the simulation was not run.
    fn metric(results: &Results<Self>, point: &Self, name: &str) -> Option<Vec<f64>>
    where
        Self: Sized;

    fn rows(_results: &Results<Self>, _point: &Self, _name: &str) -> Vec<Vec<String>>
    where
        Self: Sized,
    {
        Vec::new()
    }

    fn of(part: &str) -> Vec<Self>
    where
        Self: Sized;

    fn without(self, _mechanism: Mechanism) -> Self
    where
        Self: Sized,
    {
        self
    }

    fn machine(&self) -> &str;

    fn task(&self) -> String;

    fn work(&self) -> u32;

    fn run(&self, model: &Model, seed: u64) -> Result<Self::Measurement, BenchError>;

    fn events(seen: &Self::Measurement) -> u64;
}

pub(crate) struct Results<P: Point> {
    models: Vec<Model>,
    points: Vec<(P, P::Measurement)>,
}

impl<P: Point> Results<P> {
    /// Runs the simulations that the selected parts of the page show. If `wanted.without` lists
    /// mechanisms, each simulation also runs a second time without these. Also returns the parts
    /// whose simulations were all run.
    pub(crate) fn run(
        wanted: PartSelection<'_>,
        tell: &mut Tell<'_>,
    ) -> Result<(PairedResults<P>, Vec<&'static str>), BenchError> {
        let PartSelection { parts, seed, without } = wanted;
        let mut points = distinct(parts.iter().flat_map(|part| P::of(part)));
        // Start the simulations with the most work first, so that no long simulation runs alone at
        // the end.
        points.sort_by_key(|point| Reverse(point.work()));
        let models = models(distinct(points.iter().map(P::machine)).into_iter())?;
        let of = |name: &str| models.iter().find(|model| model.name == name);
        // Each point has one or two tasks: a run with all mechanisms and, if `without` is not
        // empty, a run without these mechanisms. So task number `at` belongs to point number `at /
        // times`.
        let times = if without.is_empty() { 1 } else { 2 };
        let run = |at: usize| {
            let point = &points[at / times];
            let model = of(point.machine()).expect("the machine was loaded above");
            match at % times {
                0 => point.run(model, seed),
                _ => run_without(point, model, (seed, without)),
            }
        };
        let words = mechanism::words(without);
        let names: Vec<String> = (0..points.len() * times)
            .map(|at| match at % times {
                0 => points[at / times].task(),
                _ => format!("{}, without {words}", points[at / times].task()),
            })
            .collect();
        let mut rows = run_points(&names, run, tell)?.into_iter();
        let ran = points.into_iter().map(|point| {
            let whole = rows.next().flatten();
            let rest = if times == 2 { rows.next().flatten().map(Some) } else { Some(None) };
            (point, whole.zip(rest))
        });
        let (parts, points) = whole_parts(parts, P::of, ran.collect());
        let (mut with, mut rest) = (Vec::new(), Vec::new());
        for (point, (whole, left)) in points {
            rest.extend(left.map(|left| (point.clone(), left)));
            with.push((point, whole));
        }
        let rest = (times == 2).then(|| Results { models: models.clone(), points: rest });
        Ok((PairedResults { with: Results { models, points: with }, without: rest }, parts))
    }

    pub(crate) fn at(&self, point: impl Borrow<P>) -> Option<&P::Measurement> {
        let point = point.borrow();
        self.points.iter().find(|(other, _)| other == point).map(|(_, seen)| seen)
    }
}

pub(crate) struct PairedResults<P: Point> {
    pub(crate) with: Results<P>,
    pub(crate) without: Option<Results<P>>,
}

/// Runs a simulation with some mechanisms of its machine or kernel switched off. The machine gets
/// another name, because controllers are named after their machine, and parallel simulations must
/// not share controllers.
pub(crate) fn run_without<P: Point>(
    point: &P,
    model: &Model,
    (seed, without): (u64, &[Mechanism]),
) -> Result<P::Measurement, BenchError> {
    let point = without.iter().fold(point.clone(), |point, one| point.without(*one));
    let mut model = model.clone();
    without.iter().for_each(|mechanism| mechanism.take_from(&mut model));
    model.name = format!("{}-without-{}", model.name, mechanism::words(without));
    point.run(&model, seed)
}

pub(crate) fn mechanisms<P: Point>(parts: &[&'static str]) -> Result<Vec<Mechanism>, BenchError> {
    let points: Vec<P> = parts.iter().flat_map(|part| P::of(part)).collect();
    let models = models(distinct(points.iter().map(P::machine)).into_iter())?;
    let has = |mechanism: &Mechanism| {
        let in_machine = || models.iter().any(|model| mechanism.is_in(model));
        !models.is_empty() && P::OWN.contains(mechanism)
            || !P::UNUSED.contains(mechanism) && in_machine()
    };
    Ok(Mechanism::WORDS.iter().map(|(mechanism, _)| *mechanism).filter(has).collect())
}

pub(crate) fn repeat<P: Point>(
    (paper, sheet): (&str, &Sheet),
    wanted: PartSelection<'_>,
    tell: &mut Tell<'_>,
    mut finish: impl FnMut(Page, &[&str]) -> Page,
) -> Result<Page, BenchError> {
    let (PairedResults { with, without }, parts) = Results::<P>::run(wanted, tell)?;
    let ran = || [Some(&with), without.as_ref()].into_iter().flatten();
    let seen = || ran().flat_map(|results| &results.points);
    let repetition = Repetition {
        paper: PAPERS
            .iter()
            .find(|known| known.name == paper)
            .expect("the paper is in the table of papers"),
        seed: wanted.seed,
        without: wanted.without,
        rows: seen().count(),
        events: seen().map(|(_, seen)| P::events(seen)).sum(),
        models: &with.models,
    };
    let mut fill = |results, page| finish(sheet.fill(results, (paper, &parts), page), &parts);
    let page = fill(&with, repetition.page(&parts));
    Ok(match &without {
        None => page,
        Some(results) => comparison::merged(page, fill(results, Page::default()), wanted.without),
    })
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use millrace_block::baseline::{Inside, Stack};
    use millrace_block::{Layout, Spread, Stamp};

    use super::*;
    use crate::load::workload::{Rw, Workload};
    use crate::simulation::{InterfaceKind, Irq, Length, Service, SimPlan, Watch, run_simulated};

    /// A null drive on twelve cores of four sockets, through libaio.
    #[derive(Debug, Clone, Copy, PartialEq)]
    struct TestPoint(Stack);

    impl Point for TestPoint {
        type Measurement = f64;
        const OWN: &'static [Mechanism] = &[Mechanism::Copies];
        const UNUSED: &'static [Mechanism] = &[Mechanism::Links];

        fn of(part: &str) -> Vec<TestPoint> {
            Stack::from_word(part).map(TestPoint).into_iter().collect()
        }

        fn machine(&self) -> &str {
            "x7560"
        }

        fn task(&self) -> String {
            "tiny".into()
        }

        fn work(&self) -> u32 {
            1
        }

        fn run(&self, model: &Model, seed: u64) -> Result<f64, BenchError> {
            let plan = SimPlan {
                drives: vec!["null:size=1t".parse().expect("the drive's spec must be valid")],
                layout: Layout::Linear,
                service: Service { inside: Inside::Each, ..Service::default() },
                stack: self.0,
                software_queues: Spread::Core,
                hardware_queues: Spread::Node,
                cpus: (0..12).collect(),
                jobs: 12,
                workload: Workload {
                    rw: Rw::RandRead,
                    bs_bytes: 512,
                    iodepth: 32,
                    verify: false,
                    seed,
                },
                length: Length::Rounds,
                stamp: Stamp::Batch,
                interface: InterfaceKind::Libaio,
                batch: Some(1),
                irq: Irq::Submitter,
                watch: Watch::default(),
            };
            run_simulated(model, &plan).map(|row| row.iops)
        }

        fn events(_seen: &f64) -> u64 {
            1
        }

        fn of_settings(settings: Table) -> Result<TestPoint, String> {
            Err(format!("{settings}: no settings"))
        }

        fn metric(results: &Results<TestPoint>, point: &TestPoint, _: &str) -> Option<Vec<f64>> {
            results.at(point).map(|iops| vec![*iops])
        }
    }

    /// Rate without a mechanism over the rate with all.
    fn rest(stack: Stack, mechanism: Mechanism) -> f64 {
        let parts = [stack.word()];
        let wanted = PartSelection { parts: &parts, seed: 1, without: &[mechanism] };
        let run = Results::<TestPoint>::run(wanted, &mut |_| ControlFlow::Continue(()));
        let (PairedResults { with, without }, parts) = run.expect("the run must succeed");
        assert_eq!(parts, [stack.word()]);
        let of = |results: &Results<TestPoint>| *results.at(TestPoint(stack)).expect("it was run");
        of(&without.expect("the check must have a second run")) / of(&with)
    }

    #[test]
    fn what_makes_a_design_slow_makes_it_faster_when_it_is_left_out() {
        for (stack, mechanism, (least, most)) in [
            (Stack::Sq, Mechanism::Spinners, (1.05, 9.0)),
            (Stack::Sq, Mechanism::Distance, (1.3, 9.0)),
            (Stack::Sq, Mechanism::Lines, (1.1, 9.0)),
            (Stack::Mq, Mechanism::Distance, (1.3, 9.0)),
            (Stack::Mq, Mechanism::Queueing, (1.3, 9.0)),
            // Only the single queue has lines under its lock, and none of it copies.
            (Stack::Mq, Mechanism::Lines, (1.0, 1.0)),
            (Stack::Sq, Mechanism::Copies, (1.0, 1.0)),
        ] {
            let rest = rest(stack, mechanism);
            assert!((least..=most).contains(&rest), "{stack:?} without {mechanism:?}: {rest}");
        }
    }

    #[test]
    fn run_without_omissions_is_one_run_with_its_mechanisms() {
        let wanted = PartSelection::new(&["mq"], 1);
        let run = Results::<TestPoint>::run(wanted, &mut |_| ControlFlow::Continue(()));
        assert!(run.expect("the run must succeed").0.without.is_none());
        let known = mechanisms::<TestPoint>(&["mq"]).expect("the machine must exist");
        let machine = ["spinners", "distance", "queueing", "lines", "copies"];
        assert_eq!(known.iter().map(|one| one.word()).collect::<Vec<_>>(), machine);
        assert!(mechanisms::<TestPoint>(&[]).expect("no machine").is_empty());
    }
}
