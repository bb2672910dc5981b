//! `Results`: the points of an experiment, each run once, and what they gave.
//!
//! A paper's module says what a point is and which points each of its parts shows; parts share
//! points. All points of all parts run side by side, those with the most work first, and what they
//! give does not depend on the order. `repeat` makes the page. Called by the papers' modules.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::ops::ControlFlow;

use millrace_machine::Model;

use crate::bench::BenchError;
use crate::page::Page;
use crate::paper::{Repetition, Step, distinct, models, run_points, whole_parts};

/// What is run once.
pub(crate) trait Point: PartialEq + Sync {
    /// A part of the experiment.
    type Part: Copy + PartialEq + 'static;
    /// What a point gives.
    type Seen: Send;

    /// Points that a part shows.
    fn of(part: Self::Part) -> Vec<Self>
    where
        Self: Sized;

    /// The machine that it runs on.
    fn machine(&self) -> &'static str;

    /// The point in words, for a progress bar.
    fn task(&self) -> String;

    /// How much work it is beside the others.
    fn work(&self) -> u32;

    /// Runs it.
    ///
    /// # Errors
    /// If a machine's file or the simulation is wrong.
    fn run(&self, model: &Model, seed: u64) -> Result<Self::Seen, BenchError>;

    /// Line and lock events in it.
    fn events(seen: &Self::Seen) -> u64;
}

/// All points that were run.
pub(crate) struct Results<P: Point> {
    models: Vec<Model>,
    points: Vec<(P, P::Seen)>,
}

impl<P: Point> Results<P> {
    /// Runs what the parts need; also says which parts were run whole.
    pub(crate) fn run(
        parts: &[P::Part],
        seed: u64,
        tell: impl FnMut(Step<'_>) -> ControlFlow<()> + Send,
    ) -> Result<(Results<P>, Vec<P::Part>), BenchError> {
        let mut points = distinct(parts.iter().flat_map(|part| P::of(*part)));
        // The long ones first, so that none is left over for the end.
        points.sort_by_key(|point| Reverse(point.work()));
        let models = models(distinct(points.iter().map(P::machine)).iter())?;
        let run = |at: usize| {
            let point: &P = &points[at];
            let model = models.iter().find(|model| model.name == point.machine());
            point.run(model.expect("loaded above"), seed)
        };
        let names: Vec<String> = points.iter().map(P::task).collect();
        let rows = run_points(&names, run, tell)?;
        let ran = points.into_iter().zip(rows).collect();
        let (parts, points) = whole_parts(parts, P::of, ran);
        Ok((Results { models, points }, parts))
    }

    /// All points.
    pub(crate) fn points(&self) -> impl Iterator<Item = &(P, P::Seen)> {
        self.points.iter()
    }

    /// The machine of this name, if a point ran on it.
    pub(crate) fn model(&self, name: &str) -> Option<&Model> {
        self.models.iter().find(|model| model.name == name)
    }

    /// What a point gave, if it was run.
    pub(crate) fn at(&self, point: impl Borrow<P>) -> Option<&P::Seen> {
        let point = point.borrow();
        self.points.iter().find(|(other, _)| other == point).map(|(_, seen)| seen)
    }
}

/// An experiment, by its name on the command line.
pub(crate) struct Experiment<P: 'static> {
    /// That name.
    pub(crate) paper: &'static str,
    /// The page's title.
    pub(crate) title: &'static str,
    /// Paragraphs of introduction.
    pub(crate) intro: &'static [&'static str],
    /// All parts, with their names.
    pub(crate) parts: &'static [(P, &'static str)],
}

/// Runs parts of an experiment and makes their page; `fill` gives it checks, figures and tables.
/// Also says which parts were run whole.
///
/// # Errors
/// If a machine's file or a simulation is wrong.
pub(crate) fn repeat<P: Point>(
    experiment: &Experiment<P::Part>,
    (parts, seed): (&[P::Part], u64),
    tell: impl FnMut(Step<'_>) -> ControlFlow<()> + Send,
    fill: impl FnOnce(&Results<P>, &[P::Part], Page) -> Page,
) -> Result<(Page, Vec<P::Part>), BenchError> {
    let (results, parts) = Results::<P>::run(parts, seed, tell)?;
    let Experiment { paper, title, intro, parts: names } = experiment;
    let repetition = Repetition {
        paper,
        title,
        intro,
        seed,
        rows: results.points.len(),
        events: results.points.iter().map(|(_, seen)| P::events(seen)).sum(),
        models: &results.models,
    };
    let page = fill(&results, &parts, repetition.page(names, &parts));
    Ok((page, parts))
}
