//! The tables of \[FALCON\]'s repetition: what has too few numbers for a plot.
//!
//! One row for each load; columns are the ways of serving.

use millrace_block::Serving;

use super::Part;
use super::figures::{HBA, SCU};
use super::rigs::{LOADS, Load, Point, Rig};
use super::runs::{Results, SERVINGS};
use crate::page::DataTable;

/// The tables of these parts.
pub(super) fn all(parts: &[Part], results: &Results) -> Vec<DataTable> {
    parts.iter().filter_map(|part| one(*part, results)).collect()
}

fn one(part: Part, results: &Results) -> Option<DataTable> {
    Some(match part {
        Part::Controllers => table(
            "rates",
            "Rates on the controllers",
            "Thousands of I/Os a second: 4 KiB random, 64 KiB sequential. The last columns are \
             per-drive over per-volume, ours and the paper's.",
            controllers(results),
        ),
        Part::Latency => table(
            "latency",
            "One I/O at a time",
            "Mean latency of 4 KiB on eight drives on the HBA. Below the low watermark the \
             submitting thread serves the drives itself.",
            LOADS[..2].iter().map(|load| latency(results, *load)).collect(),
        ),
        Part::Nvme => table(
            "nvme",
            "A single NVMe drive",
            "Thousands of 4 KiB random reads a second. A single drive is served by the submitting \
             thread in every mode; the per-volume path keeps one request back to merge with.",
            vec![rates(results, Point::on(Rig::Nvme, LOADS[0], Serving::PerDrive), Some(1.13))],
        ),
        _ => return None,
    })
}

/// A table with a column for each way of serving, then our gain and the paper's.
fn table(id: &str, title: &str, caption: &str, rows: Vec<Vec<String>>) -> DataTable {
    let last = ["per-drive over per-volume", "paper"];
    let head = ["load"].into_iter().chain(SERVINGS.map(Serving::name)).chain(last);
    DataTable::new((id, title), caption, head, rows)
}

fn controllers(results: &Results) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (rig, theirs) in [(Rig::Ahci, None), (Rig::Scu, Some(SCU)), (Rig::Hba, Some(HBA))] {
        for (number, load) in LOADS.into_iter().enumerate() {
            let point = Point::on(rig, load, Serving::PerDrive);
            rows.push(rates(results, point, theirs.map(|factors| factors[number])));
        }
    }
    rows
}

fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".into())
}

fn rates(results: &Results, point: Point, paper: Option<f64>) -> Vec<String> {
    let rate = |serving| results.iops(point.served(serving));
    let gain = results.gain(point.served(Serving::PerDrive), Serving::PerVolume);
    let name = format!("{} x {}, {}", point.rig.name(), point.drives, point.load.name);
    let rates = SERVINGS.map(|serving| or_dash(rate(serving).map(|r| format!("{:.1}", r / 1e3))));
    let factors = [gain, paper].map(|factor| or_dash(factor.map(|f| format!("{f:.2}"))));
    [name].into_iter().chain(rates).chain(factors).collect()
}

fn latency(results: &Results, load: Load) -> Vec<String> {
    let mean = |serving| {
        let seen = results.at(Point::on(Rig::Hba, load, serving).single())?;
        Some(seen.row.lat_ns.mean as f64)
    };
    let cells = SERVINGS.map(|s| or_dash(mean(s).map(|ns| format!("{:.2} us", ns / 1e3))));
    let factor = mean(Serving::PerDrive)
        .zip(mean(Serving::PerVolume))
        .map(|(ours, linux)| format!("{:.3}", ours / linux));
    let last = [or_dash(factor), "0.97".into()];
    [load.name.to_owned()].into_iter().chain(cells).chain(last).collect()
}
