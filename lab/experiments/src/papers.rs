//! Repetition of papers' experiments: the table of all papers, and the code that the papers share.
//!
//! `papers/NAME.toml` has a paper's points (single simulations), figures, tables and checks.
//! `millrace-lab paper` calls this file. The modules:
//! - `sheet` reads the TOML file and renders the result page.
//! - `formula` evaluates the formulas in the TOML file.
//! - The module of each paper turns the settings of a point into a simulation.
//! - `points` runs the points.
//! - `spans` simulates nothing; it measures this machine.

mod atc17;
mod comparison;
mod formula;
pub(crate) mod inputs;
pub(crate) mod machine_table;
mod mechanism;
mod msst15;
mod ols02;
pub(crate) mod points;
mod schedulers;
mod sheet;
mod spans;
mod systor13;

use std::ops::ControlFlow;
use std::sync::{LazyLock, Mutex};

use millrace_simulator::Model;

use crate::load::bench::BenchError;
use crate::page::Page;
use crate::simulation::{machine, run_rows};

use millrace_machine::lock_unpoisoned;
use sheet::Sheet;

pub use mechanism::Mechanism;
pub use points::PartSelection;
#[cfg(test)]
pub(crate) use points::run_without;
pub(crate) use points::{Point, Results, mechanisms, repeat};

/// Callback at the beginning of each simulation or measurement. The returned value can end the run.
pub type Tell<'a> = dyn FnMut(Step<'_>) -> ControlFlow<()> + Send + 'a;

/// A paper whose experiments can be repeated, or another experiment in the same form.
#[derive(Debug)]
pub struct Paper {
    /// Name of the paper on the command line.
    pub name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) intro: Vec<&'static str>,
    /// Names of the parts of the paper's page, in order. Empty if the page has a single part.
    pub parts: Vec<&'static str>,
    pub(crate) run: fn(PartSelection<'_>, &mut Tell<'_>) -> Result<Page, BenchError>,
    pub(crate) mechanisms: fn(&[&'static str]) -> Result<Vec<Mechanism>, BenchError>,
}

/// All papers, in the order in which they are run.
pub static PAPERS: LazyLock<[Paper; 6]> = LazyLock::new(|| {
    [
        systor13::paper(),
        atc17::paper(),
        msst15::paper(),
        ols02::paper(),
        schedulers::paper(),
        spans::paper(),
    ]
});

impl Paper {
    fn of_sheet(
        name: &'static str,
        sheet: &'static Sheet,
        mechanisms: fn(&[&'static str]) -> Result<Vec<Mechanism>, BenchError>,
        run: fn(PartSelection<'_>, &mut Tell<'_>) -> Result<Page, BenchError>,
    ) -> Paper {
        let intro = sheet.intro.iter().map(String::as_str).collect();
        Paper { name, title: &sheet.title, intro, parts: sheet.parts(), run, mechanisms }
    }

    /// Runs the selected parts of the paper's page (such as `fig4`) and returns the page. If a
    /// check needs another part, the page lists the check as not made. `tell` is called when a
    /// simulation begins, and can end the run. The page then has only the parts whose simulations
    /// are all complete.
    ///
    /// # Errors
    /// If a machine's file is invalid, a simulation fails, or this machine cannot measure.
    pub fn run(&self, wanted: PartSelection<'_>, tell: &mut Tell<'_>) -> Result<Page, BenchError> {
        (self.run)(wanted, tell)
    }

    /// Returns the mechanisms of the simulated machine or kernel that can be switched off. `parts`
    /// are the parts of the paper's page to run, such as `fig4`.
    pub fn mechanisms(&self, parts: &[&'static str]) -> Result<Vec<Mechanism>, BenchError> {
        (self.mechanisms)(parts)
    }
}

pub(crate) struct Repetition<'a> {
    pub(crate) paper: &'a Paper,
    pub(crate) seed: u64,
    /// Mechanisms of the simulated machine or kernel that a second run of each simulation switched
    /// off.
    pub(crate) without: &'a [Mechanism],
    pub(crate) rows: usize,
    /// Number of simulated events, such as accesses to cache lines, in all simulations of this
    /// page.
    pub(crate) events: u64,
    pub(crate) models: &'a [Model],
}

impl Repetition<'_> {
    pub(crate) fn page(&self, parts: &[&str]) -> Page {
        let mut facts = vec![
            ("command", self.command(parts)),
            ("seed", self.seed.to_string()),
            ("rows run", self.rows.to_string()),
            ("events simulated", self.events.to_string()),
        ];
        if !self.without.is_empty() {
            facts.insert(1, ("left out in a second run", mechanism::in_words(self.without)));
        }
        let mut page = Page {
            title: self.paper.title.into(),
            intro: self.paper.intro.iter().map(ToString::to_string).collect(),
            remarks: self.remarks(parts),
            facts: facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            ..Page::default()
        };
        page.add_machines(self.models.iter().map(machine_table::of));
        page
    }

    fn remarks(&self, parts: &[&str]) -> Vec<String> {
        let Paper { name: paper, parts: names, .. } = self.paper;
        let list = |is_there: bool| {
            let some = names.iter().copied().filter(|part| parts.contains(part) == is_there);
            some.collect::<Vec<_>>().join(", ")
        };
        let mut remarks = Vec::new();
        if parts.is_empty() {
            let all = format!("millrace-lab paper {paper} runs all parts");
            remarks.push(format!("No part of {paper} was finished; {all}."));
        } else if parts.len() < names.len() {
            remarks.push(format!(
                "This page shows only these parts of {paper}: {}. Parts not run: {}; \
                 millrace-lab paper {paper} runs all parts.",
                list(true),
                list(false)
            ));
        }
        if !self.without.is_empty() {
            remarks.push(format!(
                "Each point was run twice: with all mechanisms, and without {} ({}). Lines, rows \
                 and tables marked 'without' show the second run. Verdicts and the exit status \
                 are those of the first.",
                mechanism::words(self.without),
                mechanism::in_words(self.without)
            ));
        }
        remarks
    }

    fn command(&self, parts: &[&str]) -> String {
        let Repetition { paper, seed, without, .. } = self;
        let Paper { name: paper, parts: names, .. } = paper;
        let chosen: Vec<&str> = names.iter().copied().filter(|part| parts.contains(part)).collect();
        let parts = match chosen.len() == names.len() {
            true => String::new(),
            false => format!(":{}", chosen.join(",")),
        };
        let without = match without {
            [] => String::new(),
            some => format!(" --without {}", mechanism::words(some)),
        };
        format!("millrace-lab paper {paper}{parts} --seed {seed}{without}")
    }
}

pub(crate) fn distinct<P: PartialEq>(wanted: impl Iterator<Item = P>) -> Vec<P> {
    let mut all = Vec::new();
    for one in wanted {
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all
}

/// Progress of a run of several tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step<'a> {
    /// Number of tasks that have ended.
    pub done: usize,
    /// Number of all tasks of the run, each a simulation or a measurement.
    pub of: usize,
    /// Description of the task that has just begun.
    pub task: &'a str,
}

/// Runs one point (simulation) for each name, several in parallel. `tell` is called with the name
/// before each point, and can end the run. The results of points that did not begin are `None`.
pub(crate) fn run_points<T: Send>(
    names: &[String],
    run: impl Fn(usize) -> Result<T, BenchError> + Sync,
    tell: &mut Tell<'_>,
) -> Result<Vec<Option<T>>, BenchError> {
    let told = Mutex::new((0, tell));
    let begin = |index: usize| {
        let (done, tell) = &mut *lock_unpoisoned(&told);
        tell(Step { done: *done, of: names.len(), task: names[index].as_str() })
    };
    let run = |index: usize| match begin(index) {
        ControlFlow::Break(()) => Ok(None),
        ControlFlow::Continue(()) => run(index).map(Some),
    };
    run_rows(names.len(), run, |_| lock_unpoisoned(&told).0 += 1)
}

/// Returns the parts of a paper's page whose simulations (points) were all run, and the results of
/// these simulations.
pub(crate) fn whole_parts<P: Copy, Q: PartialEq, T>(
    parts: &[P],
    points_of: impl Fn(P) -> Vec<Q>,
    ran: Vec<(Q, Option<T>)>,
) -> (Vec<P>, Vec<(Q, T)>) {
    let is_there = |point: &Q| ran.iter().any(|(other, seen)| other == point && seen.is_some());
    let whole = |part: &P| points_of(*part).iter().all(is_there);
    let parts: Vec<P> = parts.iter().copied().filter(whole).collect();
    let wanted: Vec<Q> = parts.iter().flat_map(|part| points_of(*part)).collect();
    let kept = ran.into_iter().filter(|(point, _)| wanted.contains(point));
    (parts, kept.filter_map(|(point, seen)| Some((point, seen?))).collect())
}

pub(crate) fn models<'a>(names: impl Iterator<Item = &'a str>) -> Result<Vec<Model>, BenchError> {
    let load =
        |name: &str| machine(name).map_err(|error| BenchError::Machine { text: error.to_string() });
    names.map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::CheckVerdict;

    #[test]
    fn without_runs_every_check_is_listed_and_none_holds() {
        for paper in PAPERS.iter().filter(|paper| !paper.parts.is_empty()) {
            let none = PartSelection::new(&[], 1);
            let page = paper.run(none, &mut |_| ControlFlow::Continue(())).expect("nothing to run");
            assert!(page.checks.len() >= 5, "{}", paper.name);
            assert!(page.checks.iter().all(|check| check.holds == CheckVerdict::NotYet));
        }
    }

    #[test]
    fn a_run_that_is_ended_keeps_the_parts_whose_points_all_ran() {
        let names: Vec<String> = (0..6).map(|number| format!("point {number}")).collect();
        let mut told = Vec::new();
        let mut tell = |step: Step<'_>| {
            told.push(step.task.to_owned());
            if step.task == "point 4" { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let ran = run_points(&names, |index| Ok(index * 10), &mut tell).expect("no row may fail");
        assert!(told.len() == 6 && ran[0] == Some(0) && ran[4].is_none(), "{told:?} {ran:?}");
        // Parts a and b share point 1; part c needs a point that was left out.
        let points_of = |part: char| match part {
            'a' => vec![0, 1],
            'b' => vec![1, 2],
            _ => vec![3, 4],
        };
        let ran = (0..).zip(ran).collect();
        let (parts, points) = whole_parts(&['a', 'b', 'c'], points_of, ran);
        assert_eq!((parts, points), (vec!['a', 'b'], vec![(0, 0), (1, 10), (2, 20)]));
    }
}
