//! The figures, out of the points that were run.
//!
//! A line for each scheduler, a panel for each drive. What was not run is left out. Called by
//! `schedulers`.

use millrace_block::SchedulerKind;
use millrace_drives::Words;

use super::points::{Grouping, Point, Rig};
use super::runs::{CORES, DEPTHS, LINES, OTHERS, Results, SHARED, SHARING};
use crate::page::{Figure, Panel, Series, SeriesKind, Unit};

/// The figures of these parts.
pub(super) fn all(parts: &[&str], results: &Results) -> Vec<Figure> {
    parts.iter().filter_map(|part| one(*part, results)).collect()
}

fn one(part: &str, results: &Results) -> Option<Figure> {
    Some(match part {
        "scaling" => Figure::new(
            "scaling",
            "Cores at a null drive",
            "I/Os a second. Prediction: nobody has measured this machine. All clients are one \
             group, or each is a group of its own, which the schedulers have to agree about.",
            [scaling(results)],
        ),
        "weights" => Figure::new(
            "weights",
            "Shares by weight",
            "Four clients of depth 32 and of weights 100 to 800: each one's part of the cost. See \
             that fair and latency lie on the line by weight, and none does not.",
            SHARED.map(|rig| weights(results, rig)),
        ),
        "shallow" => Figure::new(
            "shallow",
            "One I/O at a time beside clients of depth 256",
            "What a client of depth 1 keeps of its IOPS alone. See that without a scheduler deep \
             clients leave it little.",
            SHARED.map(|rig| shallow(results, rig)),
        ),
        "disk" => Figure::new(
            "disk",
            "Random reads of a disk of 7,200 rpm",
            "I/Os a second by depth: sorted by sector, and first come, first served. See from \
             which depth on sorting pays.",
            [disk(results)],
        ),
        _ => return None,
    })
}

/// A line of the points that were run.
fn line(name: &str, xs: impl IntoIterator<Item = u32>, y: impl Fn(u32) -> Option<f64>) -> Series {
    Series::ours(name, xs.into_iter().filter_map(|x| Some((f64::from(x), y(x)?))).collect())
}

fn scaling(results: &Results) -> Panel {
    let of = |(kind, grouping): (SchedulerKind, Grouping)| {
        let name = match grouping {
            Grouping::Together => kind.word().to_owned(),
            Grouping::Each => format!("{}, groups", kind.word()),
        };
        let of = |cores| results.iops(&Point::cores(kind, cores, grouping));
        Series { kind: SeriesKind::Prediction, ..line(&name, CORES, of) }
    };
    let series = LINES.map(of).to_vec();
    Panel::new("2 x 64 cores", "cores", ("IOPS", Unit::Count), series)
}

fn weights(results: &Results, rig: Rig) -> Panel {
    let weights = [100, 200, 400, 800];
    let of = |kind: SchedulerKind| {
        let point = Point::weights(rig, kind);
        line(kind.word(), weights, |weight| {
            Some(results.client(&point, &format!("w{weight}"))?.share)
        })
    };
    let mut series = SHARING.map(of).to_vec();
    series.push(line("by weight", weights, |weight| Some(f64::from(weight) / 1500.0)));
    Panel::new(rig.name(), "weight", ("of the cost", Unit::Percent), series)
}

fn shallow(results: &Results, rig: Rig) -> Panel {
    let alone = Point::shallow(rig, SchedulerKind::None, 0);
    let of = |kind: SchedulerKind| {
        line(kind.word(), OTHERS, |others| {
            results.kept("shallow", &Point::shallow(rig, kind, others), &alone)
        })
    };
    let series = SHARING.map(of).to_vec();
    Panel::new(rig.name(), "clients of depth 256", ("of alone", Unit::Percent), series)
}

fn disk(results: &Results) -> Panel {
    let of = |kind: SchedulerKind| {
        line(kind.word(), DEPTHS, |depth| results.iops(&Point::disk(kind, depth)))
    };
    let series = [SchedulerKind::None, SchedulerKind::Deadline].map(of).to_vec();
    Panel::new("hdd7200", "depth", ("IOPS", Unit::Count), series)
}
