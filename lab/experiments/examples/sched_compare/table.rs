//! The table: for each cell and pair of schedulers a line of the kernel's, one of ours, and ratios.
//!
//! Owns what the columns mean: medians of the rounds, and medians of each round's own ratio, since
//! both sides of a round saw the same minute. Called by main.rs.

use comfy_table::{CellAlignment, Table};
use serde_json::{Value, json};

use crate::Side;
use crate::compare::{self, median};
use crate::load::Sample;
use crate::settings::{Cell, Pair};

/// What the columns count.
pub const LEGEND: &str = "\
Medians of the rounds. Ratios are ours / kernel, medians of each round's own.
shares  of what all clients of the cell got, by cost: 10 us and 2 ns a byte for each I/O
Jain    index of what each got by cost for its weight
first   the cell's first client: its IOPS, how much that is of what it has alone with the same
        scheduler (if a cell measures that), and latency in microseconds as fio saw it
server  CPU time for one I/O: millrace's process; or all kworkers and fio's time in the kernel
CPU     that with all of fio's time; interrupts are in neither";

const HEAD: [&str; 12] = [
    "scheduler",
    "shares %",
    "Jain",
    "first IOPS",
    "alone %",
    "p50",
    "p99",
    "p99.9",
    "MiB/s",
    "server us",
    "CPU us",
    "ours/kernel: first IOPS, p99, MiB/s, CPU",
];

/// What was found in a cell by each side, one sample a round.
pub type Measured<'a> = (&'a Cell, Vec<(Side<'a>, Vec<Sample>)>);

/// The samples of a side in a cell.
fn of_side<'a>(cell: &'a [(Side<'_>, Vec<Sample>)], side: Side<'_>) -> Option<&'a [Sample]> {
    cell.iter().find(|(other, _)| *other == side).map(|(_, samples)| &samples[..])
}

fn first_iops(sample: &Sample) -> f64 {
    sample.clients[0].iops
}

fn bytes(sample: &Sample) -> f64 {
    sample.total(|got| got.bytes_per_s)
}

fn median_of(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    median(samples.iter().map(of).collect())
}

/// IOPS of a cell's first client where the cell of it alone was measured, too.
fn alone(found: &[Measured<'_>], cell: &Cell, side: Side<'_>) -> Option<f64> {
    let is_it = |other: &Cell| {
        let (one, first) = (&other.clients[..], &cell.clients[0]);
        one.len() == 1
            && (one[0].rw, one[0].bs_bytes, one[0].depth) == (first.rw, first.bs_bytes, first.depth)
    };
    let (_, sides) = found.iter().find(|(other, _)| cell.clients.len() > 1 && is_it(other))?;
    of_side(sides, side).map(|samples| median_of(samples, first_iops))
}

/// The columns of one side in a cell, but for the ratios.
fn columns(side: Side<'_>, samples: &[Sample], alone: Option<f64>) -> Vec<String> {
    let of = |of: fn(&Sample) -> f64| median_of(samples, of);
    let clients = 0..samples[0].clients.len();
    let share = |place: usize| median_of(samples, |sample| sample.clients[place].share * 100.0);
    let shares: Vec<String> = clients.map(|place| format!("{:.1}", share(place))).collect();
    let latency = |k: usize| format!("{:.0}", median_of(samples, |s| s.clients[0].lat_us[k]));
    let mut columns = vec![
        side.to_string(),
        shares.join(" : "),
        format!("{:.3}", of(|sample| sample.jain)),
        format!("{:.0}", of(first_iops)),
        alone.map_or_else(String::new, |alone| format!("{:.0}", of(first_iops) / alone * 100.0)),
    ];
    columns.extend([0, 1, 2].map(latency));
    columns.extend([
        format!("{:.0}", of(bytes) / f64::from(1 << 20)),
        format!("{:.1}", of(|sample| sample.server_us)),
        format!("{:.1}", of(|sample| sample.cpu_us)),
    ]);
    columns
}

/// Ours by the kernel's, round by round.
fn ratios(ours: &[Sample], kernel: &[Sample]) -> String {
    let one = |of: fn(&Sample) -> f64| {
        let values = |samples: &[Sample]| samples.iter().map(of).collect::<Vec<f64>>();
        format!("{:.2}", compare::ratio(&values(ours), &values(kernel)))
    };
    [one(first_iops), one(|s| s.clients[0].lat_us[1]), one(bytes), one(|s| s.cpu_us)].join("  ")
}

/// All of it.
pub fn table(found: &[Measured<'_>], pairs: &[Pair]) -> Table {
    let mut table = compare::table(HEAD);
    for (cell, sides) in found {
        table.add_row([cell.to_string()]);
        for Pair { kernel, ours } in pairs {
            let (kernel, ours) = (Side::Kernel(kernel), Side::Ours(ours));
            let (theirs, own) = (of_side(sides, kernel), of_side(sides, ours));
            for (side, samples) in [(kernel, theirs), (ours, own)] {
                let Some(samples) = samples else { continue };
                let mut row = columns(side, samples, alone(found, cell, side));
                if let (Side::Ours(_), Some(theirs)) = (side, theirs) {
                    row.push(ratios(samples, theirs));
                }
                table.add_row(row);
            }
        }
    }
    table.column_iter_mut().skip(1).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    table
}

/// Each run, for programs.
pub fn samples(found: &[Measured<'_>]) -> Vec<Value> {
    let mut all = Vec::new();
    for (cell, sides) in found {
        for (side, samples) in sides {
            all.extend(samples.iter().enumerate().map(|(round, sample)| {
                let (cell, side) = (cell.to_string(), side.to_string());
                json!({ "cell": cell, "side": side, "round": round, "sample": sample.to_json() })
            }));
        }
    }
    all
}
