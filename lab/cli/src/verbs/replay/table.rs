//! Formats the report of a replay, as text or as JSON.
//!
//! In the text, lines on waits, changes and omissions appear only if there is something to report.

use anyhow::{Context, Result};
use millrace_console::words::MIB;
use millrace_console::{Side, TextGrid, fitted};
use millrace_experiments::replay::{
    LATE, Latency, Lateness, OpReport, ReplaySeries, Report, StopReason,
};
use serde_json::{Value, json};

const COLUMNS: usize = 60;

pub struct Head {
    pub traces: String,
    pub format: String,
    /// Name of the simulated machine; `None` if the replay ran on this machine.
    pub machine: Option<String>,
}

pub fn json(head: &Head, report: &Report, [notes, damage]: [&[String]; 2]) -> Result<String> {
    let mut value = json!({
        "traces": head.traces, "format": head.format, "notes": notes, "damage": damage,
    });
    if let Some(machine) = &head.machine {
        value["machine"] = json!(machine);
    }
    let report = serde_json::to_value(report).context("the report as JSON")?;
    if let (Value::Object(all), Value::Object(report)) = (&mut value, report) {
        all.extend(report);
    }
    serde_json::to_string_pretty(&value).context("the report as JSON")
}

pub fn text(head: &Head, report: &Report) -> String {
    let mut parts = vec![first_line(head, report)];
    if report.counts.ios > 0 {
        parts.push(ops(report));
        parts.push(latencies(report));
        parts.extend(over_time(report));
    }
    if report.targets.len() > 1 {
        parts.push(targets(report));
    }
    let lines = lines(report);
    if !lines.is_empty() {
        parts.push(lines.join("\n"));
    }
    parts.join("\n\n")
}

fn first_line(head: &Head, report: &Report) -> String {
    let Report { iodepth, seconds, trace_seconds, .. } = report;
    let ios = report.counts.ios;
    let how = match report.speed {
        Some(speed) => format!("at {speed}x its times"),
        None => format!("as fast as possible, {iodepth} in flight"),
    };
    let on = match report.targets.as_slice() {
        [one] => format!(" on {}", one.target),
        many => format!(" on {} targets", many.len()),
    };
    let machine = head.machine.as_ref().map_or_else(String::new, |name| format!(" of {name}"));
    format!(
        "{} ({}){on}{machine}, {how}:\n{ios} I/Os in {seconds:.3} s; in the trace \
         {trace_seconds:.3} s",
        head.traces, head.format
    )
}

fn ops(report: &Report) -> String {
    let heads = ["op", "I/Os", "%", "FUA", "failed", "MiB", "IOPS", "MiB/s"];
    let side = |head: &str| if head == "op" { Side::Left } else { Side::Right };
    let mut grid = TextGrid::new(heads.map(|head| (head, side(head))));
    let mut sum = OpReport { op: "all".into(), ..OpReport::default() };
    for op in &report.ops {
        sum.ios += op.ios;
        sum.bytes += op.bytes;
        sum.errors += op.errors;
        sum.fua += op.fua;
        sum.iops += op.iops;
        sum.bytes_per_s += op.bytes_per_s;
    }
    let total = sum.ios.max(1) as f64;
    let all = (report.ops.len() > 1).then_some(&sum);
    for op in report.ops.iter().chain(all) {
        grid.row([
            op.op.clone(),
            op.ios.to_string(),
            format!("{:.1}", op.ios as f64 * 100.0 / total),
            op.fua.to_string(),
            op.errors.to_string(),
            fitted(op.bytes as f64 / MIB, 8),
            fitted(op.iops, 8),
            fitted(op.bytes_per_s / MIB, 8),
        ]);
    }
    grid.text()
}

fn latencies(report: &Report) -> String {
    let heads = ["latency, us", "", "mean", "p50", "p99", "p99.9", "max"];
    let side = |at: usize| if at < 2 { Side::Left } else { Side::Right };
    let mut grid = TextGrid::new(heads.into_iter().enumerate().map(|(at, head)| (head, side(at))));
    for op in &report.ops {
        let rows = [
            ("from submission", op.from_submission),
            ("from its time", op.from_due),
            ("in the trace", op.traced),
        ];
        let rows = rows.into_iter().filter_map(|(name, latency)| Some((name, latency?)));
        for (index, (name, latency)) in rows.enumerate() {
            let first = if index == 0 { op.op.clone() } else { String::new() };
            grid.row([vec![first, name.to_owned()], microseconds(&latency).to_vec()].concat());
        }
    }
    grid.text()
}

fn microseconds(latency: &Latency) -> [String; 5] {
    let Latency { mean_ns, p50_ns, p99_ns, p999_ns, max_ns, .. } = *latency;
    [mean_ns, p50_ns, p99_ns, p999_ns, max_ns].map(|ns| fitted(ns as f64 / 1e3, 8))
}

/// Draws the I/Os per second over time: those in the trace, and those completed by the replay.
fn over_time(report: &Report) -> Option<String> {
    let total_ns = (report.seconds * 1e9) as u64;
    let row = |series: &ReplaySeries| series.rates(COLUMNS, total_ns);
    let done = row(&report.series);
    if done.len() < 2 {
        return None;
    }
    let due = report.due_series.as_ref().map(row);
    let rates = || done.iter().chain(due.iter().flatten()).copied();
    let most = rates().fold(0.0, f64::max);
    let mut lines = Vec::new();
    if let Some(due) = &due {
        lines.push(format!("  due   {}", bars(due, most)));
    }
    lines.push(format!("  done  {}", bars(&done, most)));
    let span = report.seconds / done.len().max(1) as f64;
    Some(format!(
        "IOPS over time ({} s per column; the highest bar is {} IOPS):\n{}",
        fitted(span, 6),
        fitted(most, 8),
        lines.join("\n")
    ))
}

fn bars(numbers: &[f64], most: f64) -> String {
    const BARS: [char; 9] = [
        ' ', '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}',
        '\u{2588}',
    ];
    let bar = |number: &f64| {
        let height = (number / most.max(f64::MIN_POSITIVE) * 8.0).ceil();
        BARS[(height as usize).min(8)]
    };
    numbers.iter().map(bar).collect::<String>().trim_end().to_owned()
}

fn targets(report: &Report) -> String {
    let heads = [("target", Side::Left), ("I/Os", Side::Right), ("MiB", Side::Right)];
    let mut grid = TextGrid::new(heads);
    for target in &report.targets {
        let moved = fitted(target.bytes as f64 / MIB, 8);
        grid.row([target.target.clone(), target.ios.to_string(), moved]);
    }
    grid.text()
}

fn lines(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(report.lateness.as_ref().and_then(lateness));
    let list = |head: &str, parts: &[(u64, String)]| {
        let parts: Vec<_> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, text)| format!("{count} {text}"))
            .collect();
        (!parts.is_empty()).then(|| format!("{head}: {}", parts.join("; ")))
    };
    let waited = report.waited;
    let mut waits = vec![
        (waited.for_overlap, "I/Os for an earlier I/O to an overlapping range".to_owned()),
        (waited.for_writes, "flushes for writes before them".to_owned()),
    ];
    if report.speed.is_some() {
        let text = format!("because {} I/Os or 16 MiB of data were in flight", report.iodepth);
        waits.push((waited.for_room, text));
    }
    lines.extend(list("waited", &waits));
    let adapted = report.adapted;
    lines.extend(list(
        "changed",
        &[
            (adapted.moved, "moved by --fit".to_owned()),
            (adapted.aligned, "changed to whole blocks of the target".to_owned()),
            (adapted.cut, "sent in several pieces".to_owned()),
            (adapted.fua_by_flush, "FUA writes sent as a write and a flush".to_owned()),
            (adapted.fua_lost, "FUA writes sent as plain ones: the target has no flush".to_owned()),
        ],
    ));
    let skipped = &report.skipped;
    let mut left_out = vec![
        (skipped.outside, "behind the target's end".to_owned()),
        (skipped.too_long, "longer than the target".to_owned()),
        (skipped.empty, "without a length".to_owned()),
    ];
    let unsupported =
        |(op, ios): &(String, u64)| (*ios, format!("{op}: the target does not support it"));
    left_out.extend(skipped.unsupported.iter().map(unsupported));
    lines.extend(list("left out", &left_out));
    lines.extend(list(
        "not sent",
        &[(report.counts.unsent, "because the replay ended before".to_owned())],
    ));
    let unknown = "I/Os when the replay ended; the target may have completed them".to_owned();
    lines.extend(list("no answer", &[(report.counts.unanswered, unknown)]));
    lines.extend(report.stopped.as_ref().map(|stopped| match stopped {
        StopReason::Runtime => "ended by --runtime".to_owned(),
        StopReason::Limit => "ended by --limit".to_owned(),
        StopReason::Interrupted => "ended by Ctrl-C".to_owned(),
        StopReason::Target(_) => "ended when the target failed".to_owned(),
        StopReason::Undecided(_) => "ended at an I/O that the target does not support".to_owned(),
        _ => "ended where the trace cannot be read".to_owned(),
    }));
    lines
}

fn lateness(lateness: &Lateness) -> Option<String> {
    let all = lateness.all?;
    let us = |ns: u64| fitted(ns as f64 / 1e3, 8);
    let mut text = format!(
        "sent late by p50 {} us, p99 {} us, at most {} us",
        us(all.p50_ns),
        us(all.p99_ns),
        us(all.max_ns)
    );
    let steps = lateness.over.iter().zip(LATE).filter(|(count, _)| **count > 0);
    let over: Vec<_> =
        steps.map(|(count, (_, _, than))| format!("{count} by more than {than}")).collect();
    if !over.is_empty() {
        text = format!("{text};\n  {}", over.join(", "));
    }
    Some(text)
}
