//! `millrace paper`: repeats papers' experiments and sets their numbers beside ours.
//!
//! Called by cli.rs. Experiments and their pages are the lab's; this prints each page and writes it
//! as one HTML file. Exit status 1 if a check does not hold. Ctrl-C prints what was run whole until
//! then, and writes no page, which would take the place of a whole one.
#![allow(clippy::print_stderr)]

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use millrace_lab::page::{Check, CheckKind, Holds, Page};
use millrace_lab::{Interrupt, Step, atc17, msst15, ols02, schedulers, systor13, walk};

use super::bar::Bar;
use super::grid::{WIDTH, wrapped};
use super::interrupt::{self, INTERRUPTED};
use crate::config::words::whole;

const EXAMPLES: &str = "\
Examples:
  millrace paper
      all papers: tables and checks here, plots in systor13.html, atc17.html, msst15.html,
      ols02.html, schedulers.html, walk.html
  millrace paper systor13:fig9,fig10
      two figures
  millrace paper atc17 --json --html /tmp/p.html
      one paper for a program, and its page elsewhere

Exit status: 0 if every check holds, 1 if one does not (its name and the reason are printed), 130 \
after Ctrl-C, which prints the parts that were finished.

Parts of systor13: fig4, fig6, fig7, fig8, fig9, fig10, table2, today
Parts of atc17: scaling, stripes, controllers, watermarks, latency, ideal, tags, fairness, nvme
Parts of msst15: null, nvme, gap, threads, ablations, effects, dearer
Parts of ols02: dm, readv, dsw, calls, native, ablations
Parts of schedulers: scaling, weights, equal, shallow, target, limits, idle, disk";

/// What of which paper.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    Systor13(Vec<systor13::Part>),
    Atc17(Vec<atc17::Part>),
    Msst15(Vec<msst15::Part>),
    Ols02(Vec<ols02::Part>),
    Schedulers(Vec<schedulers::Part>),
    Walk,
}

impl Wanted {
    fn all() -> Vec<Wanted> {
        vec![
            Wanted::Systor13(systor13::Part::all()),
            Wanted::Atc17(atc17::Part::all()),
            Wanted::Msst15(msst15::Part::all()),
            Wanted::Ols02(ols02::Part::all()),
            Wanted::Schedulers(schedulers::Part::all()),
            Wanted::Walk,
        ]
    }

    fn name(&self) -> &'static str {
        match self {
            Wanted::Systor13(_) => "systor13",
            Wanted::Atc17(_) => "atc17",
            Wanted::Msst15(_) => "msst15",
            Wanted::Ols02(_) => "ols02",
            Wanted::Schedulers(_) => "schedulers",
            Wanted::Walk => "walk",
        }
    }

    /// What was found.
    fn run(&self, seed: u64, tell: impl FnMut(Step<'_>) -> ControlFlow<()> + Send) -> Result<Page> {
        Ok(match self {
            Wanted::Systor13(parts) => systor13::systor13(parts, seed, tell)?.0,
            Wanted::Atc17(parts) => atc17::atc17(parts, seed, tell)?.0,
            Wanted::Msst15(parts) => msst15::msst15(parts, seed, tell)?.0,
            Wanted::Ols02(parts) => ols02::ols02(parts, seed, tell)?.0,
            Wanted::Schedulers(parts) => schedulers::schedulers(parts, seed, tell)?.0,
            Wanted::Walk => walk::walk(seed, tell)?,
        })
    }
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Wanted, String> {
        let (paper, parts) = text.split_once(':').unwrap_or((text, ""));
        match paper {
            "systor13" => Ok(Wanted::Systor13(parts_of(parts, systor13::Part::all)?)),
            "atc17" => Ok(Wanted::Atc17(parts_of(parts, atc17::Part::all)?)),
            "msst15" => Ok(Wanted::Msst15(parts_of(parts, msst15::Part::all)?)),
            "ols02" => Ok(Wanted::Ols02(parts_of(parts, ols02::Part::all)?)),
            "schedulers" => Ok(Wanted::Schedulers(parts_of(parts, schedulers::Part::all)?)),
            "walk" if parts.is_empty() => Ok(Wanted::Walk),
            "walk" => Err(format!("{text}: walk has no parts")),
            _ => Err(format!(
                "{paper}: no such paper here; there are systor13, atc17, msst15, ols02, \
                 schedulers and walk"
            )),
        }
    }
}

/// The parts that a list names, in order and each once; all if it is empty.
fn parts_of<P: FromStr<Err = String> + Ord>(
    list: &str,
    all: fn() -> Vec<P>,
) -> Result<Vec<P>, String> {
    if list.is_empty() {
        return Ok(all());
    }
    let mut parts = list.split([',', ':']).map(str::parse).collect::<Result<Vec<P>, _>>()?;
    parts.sort();
    parts.dedup();
    Ok(parts)
}

/// Arguments of `paper`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Papers, or parts of them: systor13[:fig4,...], atc17[:scaling,...], msst15[:null,...],
    /// ols02[:dm,...]; schedulers[:weights,...], which is of no paper; walk
    /// measures this machine [default: all]
    #[arg(value_name = "PAPER[:PART,...]")]
    wanted: Vec<Wanted>,
    /// The file of the page with plots [default: PAPER.html]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Seed of the simulations
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: u64,
    /// Print checks, figures and tables as JSON: of several papers, one object with a key for each
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
///
/// # Errors
/// If a simulation fails or a page cannot be written.
pub fn run(args: &Args) -> Result<ExitCode> {
    let papers = if args.wanted.is_empty() { Wanted::all() } else { args.wanted.clone() };
    if args.html.is_some() && papers.len() > 1 {
        bail!("--html names one file, and there are {} papers: name one", papers.len());
    }
    let interrupt = interrupt::on_ctrl_c()?;
    let mut pages = Vec::new();
    for paper in &papers {
        let page = page_of(paper, args, &interrupt)?;
        if !args.json {
            super::say(&page.text());
        }
        pages.push((paper.name(), page));
        if interrupt.is_set() {
            break;
        }
    }
    if args.json {
        super::say(&json_of(&pages));
    }
    if interrupt.is_set() {
        let last = pages.last().map_or("", |(name, _)| name);
        eprintln!(
            "interrupted during {last}: above is what was finished; no page of it is written"
        );
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let failed = failed(&pages);
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("{}", wrapped(failed.split(' ').map(str::to_owned), WIDTH));
    Ok(ExitCode::from(1))
}

/// Which checks do not hold, in a sentence; nothing if all do.
fn failed(pages: &[(&str, Page)]) -> String {
    let no = |check: &&Check| check.kind != CheckKind::Input && check.holds == Holds::No;
    let of = |(_, page): &'_ (_, Page)| {
        page.checks.iter().filter(no).map(|check| check.id.clone()).collect::<Vec<_>>()
    };
    let names: Vec<String> = pages.iter().flat_map(of).collect();
    match names.len() {
        0 => String::new(),
        1 => format!("1 check does not hold: {}; the tables above say why", names[0]),
        count => {
            format!("{count} checks do not hold: {}; the tables above say why", names.join(", "))
        }
    }
}

/// Runs one paper and writes its page, unless it was interrupted.
fn page_of(paper: &Wanted, args: &Args, interrupt: &Interrupt) -> Result<Page> {
    let start = Instant::now();
    let mut bar = Bar::new(0);
    let page = paper.run(args.seed, |step| {
        bar.step(step.done, step.of, &format!("{}: {}", paper.name(), step.task));
        if interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    bar.clear();
    if interrupt.is_set() {
        return Ok(page);
    }
    let file = args.html.clone().unwrap_or_else(|| format!("{}.html", paper.name()).into());
    std::fs::write(&file, page.html())
        .with_context(|| format!("{}: cannot write the page", file.display()))?;
    eprintln!("note: {} written, {:.1} s", file.display(), start.elapsed().as_secs_f64());
    Ok(page)
}

fn json_of(pages: &[(&str, Page)]) -> String {
    match pages {
        [(_, page)] => page.json(),
        pages => {
            let each = |(name, page): &(&str, Page)| format!("\"{name}\": {}", page.json());
            format!("{{{}}}", pages.iter().map(each).collect::<Vec<_>>().join(",\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_paper_are_named_after_a_colon() {
        assert_eq!("systor13".parse(), Ok(Wanted::Systor13(systor13::Part::all())));
        let figures = vec![systor13::Part::Fig9, systor13::Part::Fig10];
        assert_eq!("systor13:fig10,fig9".parse(), Ok(Wanted::Systor13(figures)));
        assert!("systor13:fig5".parse::<Wanted>().unwrap_err().contains("fig4, fig6"));
        assert_eq!("atc17:nvme:nvme".parse(), Ok(Wanted::Atc17(vec![atc17::Part::Nvme])));
        assert!("atc17:fig5".parse::<Wanted>().unwrap_err().contains("scaling, stripes"));
        assert_eq!("msst15:gap".parse(), Ok(Wanted::Msst15(vec![msst15::Part::Gap])));
        let weights = vec![schedulers::Part::Weights];
        assert_eq!("schedulers:weights".parse(), Ok(Wanted::Schedulers(weights)));
        assert!("msst15:fig5".parse::<Wanted>().unwrap_err().contains("null, nvme"));
        assert!("fast16".parse::<Wanted>().unwrap_err().contains("atc17, msst15"));
    }

    #[test]
    fn checks_that_do_not_hold_are_named() {
        let check = |id: &str, kind, holds: bool| Check::new(id, kind, Default::default(), holds);
        let page = Page {
            checks: vec![
                check("a", CheckKind::Input, false),
                check("b", CheckKind::Quantitative, true),
                check("c", CheckKind::OrderOnly, false),
            ],
            ..Page::default()
        };
        assert_eq!(failed(&[("p", Page::default())]), "");
        let said = "1 check does not hold: c; the tables above say why";
        assert_eq!(failed(&[("p", page.clone())]), said);
        assert!(
            failed(&[("p", page.clone()), ("q", page)]).starts_with("2 checks do not hold: c, c;")
        );
    }

    #[test]
    fn several_papers_are_one_object_and_one_is_itself() {
        let page = || Page { title: "t".into(), ..Page::default() };
        let one: serde_json::Value = serde_json::from_str(&json_of(&[("a", page())])).unwrap();
        assert_eq!(one["title"], "t");
        let two = json_of(&[("a", page()), ("b", page())]);
        let two: serde_json::Value = serde_json::from_str(&two).unwrap();
        assert_eq!((&two["a"]["title"], &two["b"]["title"]), (&"t".into(), &"t".into()));
    }
}
