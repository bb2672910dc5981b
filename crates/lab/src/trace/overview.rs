//! What `Spans` found, as text for a terminal and as JSON.
//!
//! Owns the layout: btt's tables and digits where btt has them, with percentiles beside. Numbers
//! agree with btt's to the last digit: its averages are made the same way, from seconds as floats.
//! btt's medians and modes of seeks are left out: it keeps every distance for them, without bound.
//! Called by `millrace trace spans` and by the page of `trace report`.

use std::fmt::Write;

use millrace_block::blktrace::{major, minor};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{Drive, Measure, Measures, Seeks, Span, Spans};

/// What is shown beside the spans of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Per {
    /// Each device.
    Drive,
    /// Each CPU on which I/Os were queued.
    Cpu,
    /// Reads, writes and discards.
    Op,
}

/// A device as people and JSON name it.
#[must_use]
pub fn device_name(device: u32) -> String {
    format!("{},{}", major(device), minor(device))
}

/// Nanoseconds as btt makes seconds of them.
fn seconds(ns: u64) -> f64 {
    (ns / 1_000_000_000) as f64 + (ns % 1_000_000_000) as f64 / 1e9
}

impl Spans {
    /// Spans by what `per` names, each with its name.
    #[must_use]
    pub fn groups(&self, per: Per) -> Vec<(String, &Measures)> {
        match per {
            Per::Drive => {
                let name = |drive: &Drive| device_name(drive.device);
                self.drives().iter().map(|drive| (name(drive), drive.measures())).collect()
            }
            Per::Cpu => self.cpus().map(|(cpu, all)| (format!("CPU {cpu}"), all)).collect(),
            Per::Op => self.kinds().map(|(kind, all)| (kind.name().to_owned(), all)).collect(),
        }
    }

    /// Tables for a terminal.
    #[must_use]
    pub fn text(&self, per: Option<Per>) -> String {
        let mut text = table("All", self.all());
        for (name, measures) in per.into_iter().flat_map(|per| self.groups(per)) {
            if measures.there().next().is_some() {
                text += &table(&name, measures);
            }
        }
        overheads(&mut text, self);
        text += &merges(self);
        text += &depths(self);
        for (number, name) in ["Q", "D"].into_iter().enumerate() {
            text += &seeks(self, number, name);
        }
        for (count, what) in self.notes() {
            let _ = writeln!(text, "note: {count} {what}");
        }
        text
    }

    /// One JSON object: `{"spans": {"Q2C": {...}, ...}, "drives": {...}, ...}`, and by what `per`
    /// names.
    #[must_use]
    pub fn json(&self, per: Option<Per>) -> Value {
        let drives = self.drives().iter().filter(|drive| drive.queued > 0 || drive.issued > 0);
        let drives = drives.map(|drive| (device_name(drive.device), drive_json(drive)));
        let mut object = json!({
            "spans": self.all(),
            "drives": drives.collect::<Map<String, Value>>(),
            "in_flight": self.in_flight(),
            "replaced": self.replaced(),
            "dropped": self.dropped(),
            "ignored": self.ignored(),
        });
        if let Some(per) = per {
            let name = match per {
                Per::Drive => "per_drive",
                Per::Cpu => "per_cpu",
                Per::Op => "per_op",
            };
            let groups = self.groups(per).into_iter();
            let groups =
                groups.map(|(name, all)| (name.replace("CPU ", ""), json!({"spans": all})));
            object[name] = groups.collect::<Map<String, Value>>().into();
        }
        object
    }

    /// What makes the numbers less than whole.
    pub(super) fn notes(&self) -> impl Iterator<Item = (u64, &'static str)> {
        let all = [
            (self.in_flight() as u64, "I/Os were queued and no completion covers them"),
            (self.replaced(), "I/Os were not followed: a later one took their first sector"),
            (self.dropped(), "I/Os were dropped: more were on their way than are kept"),
            (self.ignored(), "events were ignored: more devices than are kept"),
        ];
        all.into_iter().filter(|(count, _)| *count > 0)
    }
}

/// btt's table with percentiles.
fn table(title: &str, measures: &Measures) -> String {
    let mut text = format!("{title:>15}");
    for head in ["MIN", "AVG", "MAX"] {
        let _ = write!(text, " {head:>13}");
    }
    let _ = writeln!(text, " {:>11} {:>13} {:>13} {:>13}", "N", "P50", "P99", "P99.9");
    text += &"-".repeat(15);
    for width in [13, 13, 13, 11, 13, 13, 13] {
        let _ = write!(text, " {}", "-".repeat(width));
    }
    text.push('\n');
    for (span, measure) in measures.there() {
        text += &row(span.name(), measure);
    }
    text.push('\n');
    text
}

fn row(name: &str, measure: &Measure) -> String {
    let avg = seconds(measure.total) / measure.n as f64;
    let quantile = |fraction| seconds(measure.quantile(fraction));
    format!(
        "{name:<15} {:13.9} {avg:13.9} {:13.9} {:11} {:13.9} {:13.9} {:13.9}\n",
        seconds(measure.min),
        seconds(measure.max),
        measure.n,
        quantile(0.5),
        quantile(0.99),
        quantile(0.999)
    )
}

/// `(major, minor)` in ten places, as btt has it.
fn padded(device: u32) -> String {
    format!(" ({:3},{:3})", major(device), minor(device))
}

fn overheads(text: &mut String, spans: &Spans) {
    let rows: Vec<_> =
        spans.drives().iter().filter_map(|drive| Some((drive, drive.overhead()?))).collect();
    if rows.is_empty() {
        return;
    }
    let names = rows[0].1.shares().map(|(name, _)| format!("{name:>9}")).join(" ");
    let _ = writeln!(text, "Share of Q2C\n{:>10} | {names}", "DEV");
    let mut put = |name: &str, shares: [(&str, f64); 5]| {
        let shares = shares.map(|(_, share)| format!("{:8.4}%", share * 100.0)).join(" ");
        let _ = writeln!(text, "{name:>10} | {shares}");
    };
    for (drive, overhead) in &rows {
        put(&padded(drive.device), overhead.shares());
    }
    // As btt: only of devices that have a Q2C.
    let total = |span| rows.iter().map(|(drive, _)| drive.measures().of(span).total).sum::<u64>();
    let all = total(Span::Q2C) as f64;
    let shares = [Span::Q2G, Span::G2I, Span::Q2M, Span::I2D, Span::D2C];
    put("Overall", shares.map(|span| (span.name(), total(span) as f64 / all)));
    text.push('\n');
}

/// The lines of those drives that have one, below what says what it is; nothing without any.
fn drive_rows(spans: &Spans, head: &str, row: impl Fn(&Drive) -> Option<String>) -> String {
    let line = |drive: &Drive| Some(format!("{:>10} | {}\n", padded(drive.device), row(drive)?));
    let lines: String = spans.drives().iter().filter_map(line).collect();
    if lines.is_empty() { lines } else { format!("{head}\n{lines}\n") }
}

fn merges(spans: &Spans) -> String {
    let head = format!(
        "Merges\n{:>10} | {:>8} {:>8} {:>7} | {:>8} {:>8} {:>8} {:>8}",
        "DEV", "#Q", "#D", "Ratio", "BLKmin", "BLKavg", "BLKmax", "Total"
    );
    drive_rows(spans, &head, |drive| {
        let (queued, issued, blocks) = (drive.queued, drive.issued, &drive.blocks);
        let (min, max, total) = (blocks.min, blocks.max, blocks.total);
        (queued > 0 && issued > 0).then(|| {
            let (most, ratio, avg) = (queued.max(issued), drive.merge_ratio(), total / issued);
            format!("{most:8} {issued:8} {ratio:7.1} | {min:8} {avg:8} {max:8} {total:8}")
        })
    })
}

fn depths(spans: &Spans) -> String {
    let head = format!(
        "Requests at the driver at D, that one too\n{:>10} | {:>8} {:>8} {:>8} {:>8} {:>8}",
        "DEV", "Avg", "P50", "P99", "Max", "Avg @ Q"
    );
    drive_rows(spans, &head, |drive| {
        let depth = &drive.depth;
        let at_q = drive.active_sum as f64 / drive.queued.max(1) as f64;
        (depth.n > 0).then(|| {
            let (avg, p50, p99) = (depth.avg(), depth.quantile(0.5), depth.quantile(0.99));
            format!("{avg:8.1} {p50:8} {p99:8} {:8} {at_q:8.1}", depth.max)
        })
    })
}

fn seeks(spans: &Spans, number: usize, name: &str) -> String {
    let head = format!(
        "Sectors from {name} to {name}\n{:>10} | {:>15} {:>15} {:>15} {:>15} {:>10}",
        "DEV", "N", "MEAN", "P50", "MAX", "SEQUENTIAL"
    );
    drive_rows(spans, &head, |drive| {
        let seeks = &drive.seeks[number];
        let all = &seeks.distances;
        (all.n > 0).then(|| {
            let (n, avg, p50, max) = (all.n, all.avg(), all.quantile(0.5), all.max);
            let sequential = seeks.sequential as f64 / n as f64 * 100.0;
            format!("{n:15} {avg:15.1} {p50:15} {max:15} {sequential:9.1}%")
        })
    })
}

fn drive_json(drive: &Drive) -> Value {
    let plain = |measure: &Measure| {
        json!({
            "min": measure.min, "avg": measure.avg(), "max": measure.max, "n": measure.n,
            "p50": measure.quantile(0.5), "p99": measure.quantile(0.99),
        })
    };
    let seeks = |seeks: &Seeks| {
        let mut object = plain(&seeks.distances);
        object["sequential"] = seeks.sequential.into();
        object
    };
    json!({
        "queued": drive.queued,
        "issued": drive.issued,
        "merge_ratio": drive.merge_ratio(),
        "share_of_q2c": drive.overhead().map(|overhead| json!(overhead)),
        "sectors_completed": plain(&drive.blocks),
        "depth_at_d": plain(&drive.depth),
        "active_at_q_avg": drive.active_sum as f64 / drive.queued.max(1) as f64,
        "seek_sectors_q": seeks(&drive.seeks[0]),
        "seek_sectors_d": seeks(&drive.seeks[1]),
    })
}

/// A JSON value on one line with its end.
#[must_use]
pub fn json_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data with text for keys is always JSON") + "\n"
}
