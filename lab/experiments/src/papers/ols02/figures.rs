//! The figures of \[OLS\]'s repetition: its rows as points beside ours.
//!
//! Steps are on the x axis, numbered in the paper's order.

use super::checks::{PAPER_DM, PAPER_DSW, PAPER_READV};
use super::rigs::{Load, Step};
use super::runs::{DM, DSW, READV, Results, RowSummary, dsw};
use crate::page::{Figure, Panel, Series, Unit};

/// The figures of these parts.
pub(super) fn all(parts: &[&str], results: &Results) -> Vec<Figure> {
    let of = |part: &&str| match *part {
        "dm" => Some(rates(results, ("dm", "DM"), (Load::Dm, &DM), &PAPER_DM)),
        "readv" => {
            Some(rates(results, ("readv", "DM by readv"), (Load::DmReadv, &READV), &PAPER_READV))
        }
        "dsw" => Some(database(results)),
        _ => None,
    };
    parts.iter().filter_map(of).collect()
}

fn place(index: usize) -> f64 {
    index as f64 + 1.0
}

fn names(steps: &[Step]) -> String {
    let name = |(index, step): (usize, &Step)| format!("{} {}", index + 1, step.name());
    steps.iter().enumerate().map(name).collect::<Vec<_>>().join(", ")
}

fn ours(
    results: &Results,
    (load, steps): (Load, &[Step]),
    name: &str,
    y: impl Fn(&RowSummary) -> f64,
) -> Series {
    let at = |(index, step): (usize, &Step)| Some((place(index), y(&results.shown(*step, load)?)));
    Series::ours(name, steps.iter().enumerate().filter_map(at).collect())
}

fn theirs(name: &str, values: impl Iterator<Item = f64>) -> Series {
    Series::theirs(name, (0..).map(place).zip(values).collect::<Vec<_>>())
}

fn rates(
    results: &Results,
    (id, title): (&str, &str),
    (load, steps): (Load, &[Step]),
    paper: &[(f64, f64)],
) -> Figure {
    let of = (load, steps);
    let rate = vec![
        ours(results, of, "MB/s", |row| row.mb_per_s),
        theirs("MB/s", paper.iter().map(|row| row.0)),
    ];
    let idle = vec![
        ours(results, of, "idle", |row| row.idle),
        theirs("idle", paper.iter().map(|row| row.1 / 100.0)),
        ours(results, of, "spinning on locks", |row| row.spin),
    ];
    let caption = format!(
        "Steps: {}. Hollow: the paper's. See where the rate ends at what four adapters carry, 240 \
         MB/s, and which part of the CPUs is left.",
        names(steps)
    );
    Figure::new(
        id,
        title,
        &caption,
        [
            Panel::new("rate", "step", ("MB/s", Unit::Plain), rate),
            Panel::new("CPUs", "step", ("part of all CPUs", Unit::Percent), idle),
        ],
    )
}

fn database(results: &Results) -> Figure {
    let of = (dsw(), &DSW[..]);
    let first = results.shown(DSW[0], dsw()).map_or(1.0, |row| row.mb_per_s);
    let metric = PAPER_GAINS.iter().scan(1.0, |sum, gain| {
        *sum *= gain;
        Some(*sum)
    });
    let rate = vec![
        ours(results, of, "rate", |row| row.mb_per_s / first),
        theirs("metric of interest", metric),
    ];
    let part = |at: usize| PAPER_DSW.iter().map(move |row| row[at] / 100.0);
    let cpus = vec![
        ours(results, of, "user", |row| row.user),
        theirs("user", part(0)),
        ours(results, of, "idle", |row| row.idle),
        theirs("idle", part(2)),
    ];
    let caption = format!(
        "Steps: {}. Hollow: the paper's. The rate is over that of Baseline; see whether user time \
         rises with it and the kernel's falls.",
        names(&DSW)
    );
    Figure::new(
        "dsw",
        "DSW: reads by readv, and computing",
        &caption,
        [
            Panel::new("rate", "step", ("over Baseline", Unit::Plain), rate),
            Panel::new("CPUs", "step", ("part of all CPUs", Unit::Percent), cpus),
        ],
    )
}

/// The paper's rates over the row before.
const PAPER_GAINS: [f64; 5] = [1.0, 1.37, 1.78, 1.16, 1.18];
