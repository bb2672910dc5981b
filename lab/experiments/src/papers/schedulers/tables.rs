//! The tables, out of the points that were run.
//!
//! A row for each drive and scheduler, or for each limit and number of threads. What was not run is
//! left out. Called by `schedulers`.

use millrace_block::SchedulerKind;
use millrace_drives::Words;

use super::limit_accuracy::LimitAccuracy;
use super::points::{ClientPresence, Point, Rig, TARGET_NS};
use super::runs::{LIMITS, Results, SHARED, SHARING, THREADS};
use crate::page::DataTable;

/// The tables of these parts.
pub(super) fn all(parts: &[&str], results: &Results) -> Vec<DataTable> {
    parts.iter().filter_map(|part| one(*part, results)).collect()
}

fn one(part: &str, results: &Results) -> Option<DataTable> {
    Some(match part {
        "equal" => equal(results),
        "target" => target(results),
        "limits" => limits(results),
        "idle" => idle(results),
        _ => return None,
    })
}

/// A row for each drive and scheduler, if its points were run.
fn rows(of: impl Fn(Rig, SchedulerKind) -> Option<Vec<String>>) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for rig in SHARED {
        for kind in SHARING {
            let cells = of(rig, kind).into_iter();
            rows.extend(cells.map(|cells| {
                [vec![rig.name().to_owned(), kind.word().to_owned()], cells].concat()
            }));
        }
    }
    rows
}

fn percent(part: f64) -> String {
    format!("{:.1}", part * 100.0)
}

fn equal(results: &Results) -> DataTable {
    let row = |rig, kind| {
        let (depths, sizes) =
            (results.at(Point::depths(rig, kind))?, results.at(Point::sizes(rig, kind))?);
        let share = |name| sizes.client(name).map(|row| percent(row.share));
        let mut cells: Vec<String> = depths.clients.iter().map(|row| percent(row.share)).collect();
        cells.push(format!("{:.4}", depths.jain));
        cells.extend([share("reader")?, share("writer")?, format!("{:.4}", sizes.jain)]);
        Some(cells)
    };
    DataTable::new(
        ("equal", "Equal weights: parts of the cost, in %"),
        "Left: four clients of depth 32 and 256. Right: a reader of 4 KiB and a writer of 128 KiB, \
         depth 32. Jain's index is 1 where all get the same.",
        [
            "drive",
            "scheduler",
            "d32",
            "d256",
            "d32",
            "d256",
            "Jain",
            "4k read",
            "128k write",
            "Jain",
        ],
        rows(row),
    )
}

fn target(results: &Results) -> DataTable {
    let row = |rig, kind| {
        let alone = |present| Point::target(rig, SchedulerKind::None, present);
        let point = Point::target(rig, kind, ClientPresence::Both);
        let before = results.client(&alone(ClientPresence::First), "reader")?.lat_ns;
        let now = results.client(&point, "reader")?.lat_ns;
        let kept = results.kept("writer", &point, &alone(ClientPresence::Second))?;
        let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
        let mut cells: Vec<String> =
            [before.p50, before.p99, now.p50, now.p99, now.p999].map(us).to_vec();
        cells.push(format!("{:.2}", now.p99 as f64 / before.p99 as f64));
        let bytes = results.client(&point, "writer")?.bw_bytes_per_s;
        cells.extend([format!("{:.0}", bytes / 1e6), percent(kept)]);
        Some(cells)
    };
    DataTable::new(
        (
            "target",
            format!("A reader with a target of p99 {} us beside a writer, us", TARGET_NS / 1000),
        ),
        "The reader has one 4 KiB read at a time, the writer 256 writes of 128 KiB. What the \
         writer keeps is of what it does alone. Only latency knows targets.",
        [
            "drive",
            "scheduler",
            "alone p50",
            "alone p99",
            "p50",
            "p99",
            "p99.9",
            "p99 / alone",
            "write MB/s",
            "kept %",
        ],
        rows(row),
    )
}

fn limits(results: &Results) -> DataTable {
    let row = |iops, threads| {
        let limited = LimitAccuracy::of(results, iops, threads)?;
        let off = |part: f64| format!("{:+.2}", part * 100.0);
        let (whole, window) = limited.off();
        Some(vec![
            iops.to_string(),
            threads.to_string(),
            format!("{:.0}", limited.due_iops),
            format!("{:.0}", limited.iops),
            off(whole),
            format!("{} ms", limited.window_ns / 1_000_000),
            off(window),
            percent(limited.burst),
        ])
    };
    let each = |iops| THREADS.into_iter().filter_map(move |threads| row(iops, threads));
    DataTable::new(
        ("limits", "Limits of one group over its threads"),
        "Due is the limit, or what the threads do without one, if that is less. The window slides \
         over what was measured. The burst, 10 ms, is what a window of any length had beyond its \
         length at the rate and one I/O; the group had saved it up before it began.",
        ["limit", "threads", "due", "IOPS", "off %", "window", "worst %", "burst used %"],
        LIMITS.into_iter().flat_map(each).collect(),
    )
}

fn idle(results: &Results) -> DataTable {
    let row = |rig, kind| {
        let both = Point::idle(rig, kind, ClientPresence::Both);
        let iops = |name| results.client(&both, name).map(|row| format!("{:.0}", row.iops));
        let alone = results.client(&Point::idle(rig, kind, ClientPresence::Second), "idle")?.iops;
        let share = results.client(&both, "idle")?.share;
        let usual = Point::idle(rig, SchedulerKind::None, ClientPresence::First);
        let kept = results.kept("usual", &both, &usual)?;
        let numbers = [percent(kept), iops("idle")?, percent(share), format!("{alone:.0}")];
        Some([vec![iops("usual")?], numbers.to_vec()].concat())
    };
    DataTable::new(
        ("idle", "A group of priority idle beside one of usual priority, IOPS"),
        "Both of depth 32. Kept: of what the usual one does alone without a scheduler. Alone: the idle \
         one without the other.",
        ["drive", "scheduler", "usual", "kept %", "idle", "% of cost", "idle alone"],
        rows(row),
    )
}
