//! The figures of \[FALCON\], out of the points that were run.
//!
//! A panel per load, a line per way of serving. What the paper states as factors is drawn as hollow
//! points, on the rate of our own one drive or of our own per-volume path.

use millrace_block::Serving;

use super::checks::{program_gain, share};
use super::rigs::{LOADS, Load, Point, Rig};
use super::runs::{CHUNKS_KIB, COMPARED, COUNTS, HIGHS, LOWS, Results, SERVINGS, swept};
use crate::page::{Figure, Mark, Panel, Series, Unit};
use crate::programs::{Task, servers, utilities};

/// The figures of these parts.
pub(super) fn all(parts: &[&str], results: &Results) -> Vec<Figure> {
    parts.iter().filter_map(|part| one(*part, results)).collect()
}

fn one(part: &str, results: &Results) -> Option<Figure> {
    Some(match part {
        "scaling" => Figure::new(
            "scaling",
            "Scaling over drives",
            "I/Os a second of a volume on the HBA. See where each way stops rising. Hollow: the \
             paper's factors on our one drive, of random loads; those of sequential ones are not \
             given as numbers.",
            LOADS.map(|load| scaling(results, load)),
        ),
        "stripes" => Figure::new(
            "stripes",
            "Stripe sizes",
            "Bytes a second of eight drives on the HBA. Sequential I/Os are of 64 KiB: Linux's \
             path splits them at every chunk and never merges the parts again. See from which \
             stripe on it keeps up with per-drive. The paper's points are not given as numbers.",
            LOADS.map(|load| stripes(results, load)),
        ),
        "controllers" => Figure::new(
            "controllers",
            "Controllers",
            "Rate over that of the per-volume path; 1 random read, 2 random write, 3 sequential \
             read, 4 sequential write. See where a worker for each drive gains most. Hollow: the \
             paper's factors; those of AHCI are not given as numbers.",
            [(Rig::Ahci, [0.0; 4]), (Rig::Scu, SCU), (Rig::Hba, HBA)]
                .map(|(rig, paper)| controller(results, rig, paper)),
        ),
        "watermarks" => Figure::new(
            "watermarks",
            "Watermarks",
            "Eight drives on the HBA served per drive. Left: high \
             watermarks for each drive, the low one at half of it. Right: low watermarks below a \
             high one of 32. See where rates fall. Vertical: the paper's choice, 32 and 16; the \
             paper's rates are not given as numbers.",
            [highs(results), lows(results)],
        ),
        "ideal" => Figure::new(
            "ideal",
            "Share of the ideal system",
            "The volume served per drive, over as many threads as drives, each with a drive of \
             its own. See how much a single submitter costs. Hollow: the paper's shares with \
             eight drives.",
            [ideal(results)],
        ),
        "tags" => Figure::new(
            "tags",
            "Tags in use over time",
            "Two drives on AHCI ports with 32 tags each, random reads. Linux's path takes tags \
             while it plugs, and stops for all drives when one has none: see whether one drive \
             has few in use while the other has all. The paper's course is not given as numbers.",
            [Serving::PerVolume, Serving::PerDrive].map(|serving| tags(results, serving)),
        ),
        "fairness" => Figure::new(
            "fairness",
            "Stack latency by drive",
            "Mean time from queueing to the drive's driver, of eight drives on the HBA in their \
             order in the volume. See whether per-volume's rises in that order, and per-drive's \
             is much the same for all. Dotted: 1.55 times our fastest drive, which the paper's \
             slowest is at least; its times are not given as numbers.",
            [LOADS[0], LOADS[1]].map(|load| fairness(results, load)),
        ),
        "servers" | "utilities" => return gains(part, results),
        _ => return None,
    })
}

/// What programs of a part gain.
fn gains(part: &str, results: &Results) -> Option<Figure> {
    Some(match part {
        "servers" => Figure::new(
            "servers-gain",
            "Servers: per-drive over per-volume",
            "1 file server, 2 web server, 3 web proxy. See that only what writes much gains in the \
             model. Hollow: the paper's factors.",
            [programs(results, servers::Kind::ALL.map(Task::Server), &[1.39, 1.6, 2.0])],
        ),
        "utilities" => Figure::new(
            "utilities-gain",
            "Copies, tar and untar: per-drive over per-volume",
            "1 copy from, 2 copy to, 3 tar, 4 untar. See that copies gain more than \
             tar and untar, in the model as in the paper. Hollow: the paper's factors.",
            [programs(results, utilities::Kind::ALL.map(Task::Utility), &[1.63, 2.81, 1.29, 1.09])],
        ),
        _ => return None,
    })
}

/// A line of the points that were run.
fn line(name: &str, xs: impl IntoIterator<Item = u32>, y: impl Fn(u32) -> Option<f64>) -> Series {
    Series::ours(name, xs.into_iter().filter_map(|x| Some((f64::from(x), y(x)?))).collect())
}

const IOPS: (&str, Unit) = ("IOPS", Unit::Count);

fn scaling(results: &Results, load: Load) -> Panel {
    let point = |serving| Point::on(Rig::Hba, load, serving);
    let of = |serving: Serving| {
        line(serving.name(), COUNTS, |drives| results.iops(point(serving).drives(drives)))
    };
    let mut series: Vec<Series> = SERVINGS.map(of).to_vec();
    let factors = match LOADS.iter().position(|known| *known == load) {
        Some(0) => [1.92, 3.65, 6.02],
        Some(1) => [1.86, 3.34, 6.29],
        _ => [0.0; 3],
    };
    if let Some(one) = results.iops(point(Serving::PerDrive).drives(1)).filter(|_| factors[0] > 0.0)
    {
        let theirs = [2.0, 4.0, 8.0].into_iter().zip(factors.map(|factor| factor * one));
        series.push(Series::theirs(Serving::PerDrive.name(), theirs.collect::<Vec<_>>()));
    }
    Panel::new(load.name, "drives", IOPS, series)
}

fn stripes(results: &Results, load: Load) -> Panel {
    let rate = |serving, chunk| {
        let iops = results.iops(Point::on(Rig::Hba, load, serving).chunk(chunk))?;
        Some(iops * f64::from(load.bs_bytes))
    };
    let of = |serving: Serving| line(serving.name(), CHUNKS_KIB, |chunk| rate(serving, chunk));
    let series = SERVINGS.map(of).to_vec();
    Panel::new(load.name, "stripe, KiB", ("bytes/s", Unit::Count), series)
}

/// What the paper has of per-drive over per-volume, by load.
pub(super) const HBA: [f64; 4] = [1.83, 1.66, 3.42, 2.73];
pub(super) const SCU: [f64; 4] = [1.25, 1.08, 1.59, 1.85];

fn controller(results: &Results, rig: Rig, theirs: [f64; 4]) -> Panel {
    let gain = |serving, number: u32| {
        let load = LOADS[number as usize - 1];
        results.gain(Point::on(rig, load, serving), Serving::PerVolume)
    };
    let of = |serving: Serving| line(serving.name(), 1..=4, |number| gain(serving, number));
    let mut series: Vec<Series> = SERVINGS.map(of).to_vec();
    if theirs[0] > 0.0 {
        let points: Vec<_> = [1.0, 2.0, 3.0, 4.0].into_iter().zip(theirs).collect();
        series.push(Series::theirs(Serving::PerDrive.name(), points));
    }
    let title = format!("{}, {} drives", rig.name(), rig.drives());
    Panel::new(title, "load", ("over per-volume", Unit::Plain), series)
}

/// What programs gain, by their number, beside the paper's factors.
fn programs<const N: usize>(results: &Results, tasks: [Task; N], theirs: &[f64]) -> Panel {
    let gain = |number: u32| program_gain(results, tasks[number as usize - 1], 8);
    let name = Serving::PerDrive.name();
    let ours = line(name, 1..=N as u32, gain);
    let points: Vec<_> = (1..).map(f64::from).zip(theirs.iter().copied()).collect();
    let series = vec![ours, Series::theirs(name, points)];
    Panel::new("HBA, 8 drives", "program", ("over per-volume", Unit::Plain), series)
}

fn sweep(
    results: &Results,
    (title, theirs): (&str, u32),
    xs: [u32; 6],
    marks: fn(u32) -> (u32, u32),
) -> Panel {
    let of = |load: usize| line(LOADS[load].name, xs, |x| results.iops(swept(load, marks(x))));
    let panel = Panel::new(title, "bios for each drive", IOPS, [0, 1].map(of).to_vec());
    Panel { marks: vec![Mark { x: f64::from(theirs), label: "paper".into() }], ..panel }
}

fn highs(results: &Results) -> Panel {
    sweep(results, ("high watermark", 32), HIGHS, |high| (high, high / 2))
}

fn lows(results: &Results) -> Panel {
    sweep(results, ("low watermark", 16), LOWS, |low| (32, low))
}

fn ideal(results: &Results) -> Panel {
    let of = |load: usize| line(LOADS[load].name, COUNTS, |drives| share(results, load, drives));
    let mut series = [0, 1].map(of).to_vec();
    series.push(Series::theirs(LOADS[0].name, [(8.0, 0.976)]));
    series.push(Series::theirs(LOADS[1].name, [(8.0, 0.989)]));
    Panel::new("HBA", "drives", ("of the ideal", Unit::Percent), series)
}

/// Samples that are shown: the first two milliseconds.
const TAGS_SHOWN_NS: u64 = 2_000_000;

fn tags(results: &Results, serving: Serving) -> Panel {
    let seen = results.at(Point::on(Rig::Ahci, LOADS[0], serving).watched());
    let samples = || {
        let all = seen.iter().flat_map(|seen| &seen.tags);
        all.take_while(|sample| sample.at_ns <= TAGS_SHOWN_NS)
    };
    let of = |drive: usize| {
        let point = |sample: &crate::simulation::TagSample| {
            (sample.at_ns as f64 / 1e3, f64::from(sample.in_use[drive]))
        };
        Series::ours(format!("drive {}", drive + 1), samples().map(point).collect())
    };
    let series = (0..Rig::Ahci.drives() as usize).map(of).collect();
    Panel::new(serving.name(), "microseconds", ("tags in use", Unit::Plain), series)
}

/// The slowest drive's stack latency over the fastest's in the paper's per-volume path, at least.
const SLOWEST: f64 = 1.55;

fn fairness(results: &Results, load: Load) -> Panel {
    let of = |serving: Serving| {
        let seen = results.at(Point::on(Rig::Hba, load, serving).few().long());
        let mean = |drive: u32| Some(*seen?.stack_ns.get(drive as usize - 1)? as f64);
        line(serving.name(), 1..=Rig::Hba.drives(), mean)
    };
    let mut series = COMPARED.map(of).to_vec();
    let times = series[0].points.iter().map(|(_, ns)| *ns);
    if let Some(fastest) = times.reduce(f64::min) {
        let least = [1.0, f64::from(Rig::Hba.drives())].map(|drive| (drive, SLOWEST * fastest));
        series.push(Series::theirs(format!("{}, slowest at least", COMPARED[0].name()), least));
    }
    Panel::new(load.name, "drive", ("stack latency", Unit::Nanoseconds), series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_caption_says_what_to_see_and_what_the_paper_has() {
        crate::papers::check_captions(7, |none| all(super::super::PAPER.parts, none));
    }
}
