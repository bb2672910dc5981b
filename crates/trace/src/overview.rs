//! Prints the results of `Spans` as text for a terminal and as JSON.
//!
//! The layout follows btt's tables, with percentiles added, or is a shorter form that fits 80
//! columns. Numbers agree with btt's to the last digit, because averages are computed in the same
//! way, from seconds as floats. btt's medians and modes of seeks are left out: btt keeps every
//! distance for them, in unbounded memory.

use std::fmt::Write;

use millrace_block::blktrace::{major, minor};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::drive::STAGES;
use super::{Drive, Measure, MeasureTable, SeekDistances, Span, Spans};

/// Grouping of the tables that are printed in addition to the table of all I/Os.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanGrouping {
    /// A table for each device.
    Drive,
    /// A table for each CPU on which I/Os were queued.
    Cpu,
    /// Separate tables for reads, writes and discards.
    Op,
}

/// Columns of the tables of times between I/O steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Columns {
    /// The columns that fit 80 characters.
    Short,
    /// All columns of btt, and all percentiles.
    All,
}

const NAME_WIDTH: usize = 14;
const TITLE_WIDTH: usize = 12;

/// Converts nanoseconds to seconds as btt does, to get the same rounding.
fn seconds(ns: u64) -> f64 {
    (ns / 1_000_000_000) as f64 + (ns % 1_000_000_000) as f64 / 1e9
}

impl Spans {
    /// Returns the name and the spans of each device, CPU or kind of I/O, as `per` selects.
    #[must_use]
    pub fn groups(&self, per: SpanGrouping) -> Vec<(String, &MeasureTable)> {
        match per {
            SpanGrouping::Drive => {
                let name = |drive: &Drive| self.names.device_or_number(drive.device);
                self.drives().iter().map(|drive| (name(drive), drive.measures())).collect()
            }
            SpanGrouping::Cpu => {
                self.cpus().map(|(cpu, all)| (format!("CPU {cpu}"), all)).collect()
            }
            SpanGrouping::Op => {
                self.kinds().map(|(kind, all)| (kind.name().to_owned(), all)).collect()
            }
        }
    }

    /// Returns the report as text for a terminal, with tables of the times between I/O steps.
    #[must_use]
    pub fn text(&self, per: Option<SpanGrouping>, columns: Columns) -> String {
        let mut text = table("All", self.all(), columns);
        for (name, measures) in per.into_iter().flat_map(|per| self.groups(per)) {
            if measures.there().next().is_some() {
                text += &table(&name, measures, columns);
            }
        }
        overheads(&mut text, self);
        text += &merges(self);
        text += &depths(self);
        for (number, name) in ["Q", "D"].into_iter().enumerate() {
            text += &seeks(self, (number, name), columns);
        }
        self.notes().for_each(|note| _ = writeln!(text, "note: {note}"));
        text
    }

    /// Returns one JSON object: `{"spans": {"Q2C": {...}, ...}, "drives": {...}, ...}`, with one
    /// more member for the groups if `per` is given.
    #[must_use]
    pub fn json(&self, per: Option<SpanGrouping>) -> Value {
        let drives = self.drives().iter().filter(|drive| drive.queued > 0 || drive.issued > 0);
        let name = |drive: &Drive| self.names.device_or_number(drive.device);
        let drives = drives.map(|drive| (name(drive), drive_json(drive)));
        let mut object = json!({
            "spans": self.all(),
            "drives": drives.collect::<Map<String, Value>>(),
            "in_flight": self.in_flight(),
            "replaced": self.replaced,
            "dropped": self.dropped,
            "ignored": self.ignored,
            "dropped_events": self.names.dropped_events(),
        });
        if let Some(per) = per {
            let name = match per {
                SpanGrouping::Drive => "per_drive",
                SpanGrouping::Cpu => "per_cpu",
                SpanGrouping::Op => "per_op",
            };
            let groups = self.groups(per).into_iter();
            let groups =
                groups.map(|(name, all)| (name.replace("CPU ", ""), json!({"spans": all})));
            object[name] = groups.collect::<Map<String, Value>>().into();
        }
        object
    }

    /// Returns a sentence for each kind of event that the statistics do not include.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let all = [
            (self.in_flight() as u64, "I/Os were queued but never completed in this trace"),
            (
                self.replaced,
                "I/Os were not followed to the end: another I/O was queued at the same sector",
            ),
            (self.dropped, "I/Os were dropped: too many were in flight at the same time"),
            (self.ignored, "events were ignored: the trace has too many devices"),
            (self.names.dropped_events(), "events were dropped: the recorder could not keep up"),
        ];
        let some = all.into_iter().filter(|(count, _)| *count > 0);
        some.map(|(count, what)| format!("{count} {what}"))
    }
}

fn table(title: &str, measures: &MeasureTable, columns: Columns) -> String {
    let mut text = match columns {
        Columns::All => format!("{title:>15}"),
        Columns::Short => format!("{:>10}", shortened(title, TITLE_WIDTH)),
    };
    let heads: &[&str] = match columns {
        Columns::All => &["MIN", "AVG", "MAX", "N", "P50", "P99", "P99.9"],
        Columns::Short => &["AVG", "P50", "P99", "MAX", "N"],
    };
    let width = |head: &str| if head == "N" { 11 } else { 13 };
    let first = text.chars().count();
    heads.iter().for_each(|head| _ = write!(text, " {head:>0$}", width(head)));
    let _ = write!(text, "\n{}", "-".repeat(first));
    heads.iter().for_each(|head| _ = write!(text, " {}", "-".repeat(width(head))));
    text.push('\n');
    for (span, measure) in measures.there() {
        let _ = write!(text, "{:<first$}", span.name());
        text += &row(measure, columns);
    }
    text.push('\n');
    text
}

fn row(measure: &Measure, columns: Columns) -> String {
    let avg = seconds(measure.total) / measure.n as f64;
    let (least, most, n) = (seconds(measure.min), seconds(measure.max), measure.n);
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|fraction| seconds(measure.quantile(fraction)));
    match columns {
        Columns::All => format!(
            " {least:13.9} {avg:13.9} {most:13.9} {n:11} {p50:13.9} {p99:13.9} {p999:13.9}\n"
        ),
        Columns::Short => format!(" {avg:13.9} {p50:13.9} {p99:13.9} {most:13.9} {n:11}\n"),
    }
}

fn shortened(name: &str, width: usize) -> String {
    match name.chars().count() > width {
        true => name.chars().take(width - 1).chain(['\u{2026}']).collect(),
        false => name.to_owned(),
    }
}

/// Returns a device's name, or its major and minor number as btt prints them.
fn padded(spans: &Spans, device: u32) -> String {
    match spans.names.device(device) {
        Some(name) => shortened(name, NAME_WIDTH),
        None => format!(" ({:3},{:3})", major(device), minor(device)),
    }
}

fn device_width(spans: &Spans) -> usize {
    let names = spans.drives().iter().map(|drive| padded(spans, drive.device).chars().count());
    names.max().unwrap_or(0).max(10)
}

fn overheads(text: &mut String, spans: &Spans) {
    let rows: Vec<_> =
        spans.drives().iter().filter_map(|drive| Some((drive, drive.overhead()?))).collect();
    if rows.is_empty() {
        return;
    }
    let names = STAGES.map(|span| format!("{:>9}", span.name())).join(" ");
    let wide = device_width(spans);
    let _ = writeln!(text, "Share of Q2C\n{:>wide$} | {names}", "DEV");
    let mut put = |name: &str, shares: [f64; STAGES.len()]| {
        let shares = shares.map(|share| format!("{:8.4}%", share * 100.0)).join(" ");
        let _ = writeln!(text, "{name:>wide$} | {shares}");
    };
    for (drive, shares) in &rows {
        put(&padded(spans, drive.device), *shares);
    }
    // The sums include only devices that have a Q2C, as in btt.
    let total = |span| rows.iter().map(|(drive, _)| drive.measures().of(span).total).sum::<u64>();
    let all = total(Span::Q2C) as f64;
    put("Overall", STAGES.map(|span| total(span) as f64 / all));
    text.push('\n');
}

/// Returns a titled table of the drives for which `row` returns text, or an empty string if there
/// are none.
fn drive_rows(
    spans: &Spans,
    (title, heads): (&str, &str),
    row: impl Fn(&Drive) -> Option<String>,
) -> String {
    let wide = device_width(spans);
    let line =
        |drive: &Drive| Some(format!("{:>wide$} | {}\n", padded(spans, drive.device), row(drive)?));
    let lines: String = spans.drives().iter().filter_map(line).collect();
    if lines.is_empty() { lines } else { format!("{title}\n{:>wide$} | {heads}\n{lines}\n", "DEV") }
}

fn merges(spans: &Spans) -> String {
    let head = format!(
        "{:>8} {:>8} {:>7} | {:>8} {:>8} {:>8} {:>8}",
        "#Q", "#D", "Ratio", "BLKmin", "BLKavg", "BLKmax", "Total"
    );
    drive_rows(spans, ("Merges", &head), |drive| {
        let (queued, issued, blocks) = (drive.queued, drive.issued, &drive.blocks);
        let (min, max, total) = (blocks.min, blocks.max, blocks.total);
        (queued > 0 && issued > 0).then(|| {
            let (most, ratio, avg) = (queued.max(issued), drive.merge_ratio(), total / issued);
            format!("{most:8} {issued:8} {ratio:7.1} | {min:8} {avg:8} {max:8} {total:8}")
        })
    })
}

fn depths(spans: &Spans) -> String {
    let head = format!("{:>8} {:>8} {:>8} {:>8} {:>8}", "Avg", "P50", "P99", "Max", "Avg @ Q");
    drive_rows(
        spans,
        ("Queue depth after each issue (D): requests at the driver", &head),
        |drive| {
            let depth = &drive.depth;
            let at_q = drive.active_sum as f64 / drive.queued.max(1) as f64;
            (depth.n > 0).then(|| {
                let (avg, p50, p99) = (depth.avg(), depth.quantile(0.5), depth.quantile(0.99));
                format!("{avg:8.1} {p50:8} {p99:8} {:8} {at_q:8.1}", depth.max)
            })
        },
    )
}

fn seeks(spans: &Spans, (number, name): (usize, &str), columns: Columns) -> String {
    let (wide, digits) = if columns == Columns::All { (15, 1) } else { (12, 0) };
    let head = format!(
        "{:>wide$} {:>wide$} {:>wide$} {:>wide$} {:>10}",
        "N", "MEAN", "P50", "MAX", "SEQUENTIAL"
    );
    drive_rows(spans, (&format!("Sectors from {name} to {name}"), &head), |drive| {
        let seeks = &drive.seeks[number];
        let all = &seeks.distances;
        (all.n > 0).then(|| {
            let (n, avg, p50, max) = (all.n, all.avg(), all.quantile(0.5), all.max);
            let sequential = seeks.sequential as f64 / n as f64 * 100.0;
            format!("{n:wide$} {avg:wide$.digits$} {p50:wide$} {max:wide$} {sequential:9.1}%")
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
    let seeks = |seeks: &SeekDistances| {
        let mut object = plain(&seeks.distances);
        object["sequential"] = seeks.sequential.into();
        object
    };
    json!({
        "device": format!("{},{}", major(drive.device), minor(drive.device)),
        "queued": drive.queued,
        "issued": drive.issued,
        "merge_ratio": drive.merge_ratio(),
        "share_of_q2c": drive.overhead().map(|shares| {
            let names = STAGES.map(|span| span.name().to_lowercase());
            names.into_iter().zip(shares.map(Value::from)).collect::<Map<_, _>>()
        }),
        "sectors_completed": plain(&drive.blocks),
        "depth_at_d": plain(&drive.depth),
        "active_at_q_avg": drive.active_sum as f64 / drive.queued.max(1) as f64,
        "seek_sectors_q": seeks(&drive.seeks[0]),
        "seek_sectors_d": seeks(&drive.seeks[1]),
    })
}

/// Serializes a value as one line of JSON, with a line feed.
#[must_use]
pub fn json_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data with text keys can always be written as JSON")
        + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TraceEntry, TraceNames};
    use millrace_block::blktrace::{EventCode, Record, category, device};

    #[test]
    fn the_short_tables_fit_80_columns_and_name_devices() {
        let (mut spans, mut names) = (Spans::new(), TraceNames::default());
        for (minor, name) in [(0, "d0"), (1, "a-drive-with-a-long-name")] {
            let message = format!("{}{name}", millrace_runtime::DEVICE_NAME);
            names.add_message(device(240, minor), message.as_bytes());
        }
        spans.names = names;
        let acts = [
            EventCode::Queue,
            EventCode::GetRequest,
            EventCode::Insert,
            EventCode::Issue,
            EventCode::Complete,
        ];
        for number in 0..40 {
            for (step, act) in (0..).zip(acts) {
                let record = Record {
                    device: device(240, number % 2),
                    time_ns: u64::from(number) * 3_000_000_000 + step * 123_456_789,
                    sector: u64::from(number % 3) << 38,
                    bytes: 1 << 20,
                    action: act.with(category::WRITE),
                    ..Record::default()
                };
                let entry = TraceEntry { record, data: Vec::new(), trace: 0, cpu: 0 };
                spans.entry(&entry, &mut ());
            }
        }
        let text = spans.text(Some(SpanGrouping::Drive), Columns::Short);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for part in ["Share of", "Merges", "Sectors from", "  d0 | ", "a-drive-with-\u{2026} | "] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        let all = spans.text(None, Columns::All);
        assert!(all.contains("P99.9") && !text.contains("P99.9"), "{all}");
    }

    #[test]
    fn io_waits_for_the_scheduler_first_and_for_a_tag_from_s_on() {
        let mut spans = Spans::new();
        let mut step = |act: EventCode, time_ns: u64, sector: u64| {
            let action = act.with(category::READ);
            let record = Record { time_ns, sector, bytes: 4096, action, ..Record::default() };
            spans.entry(&TraceEntry { record, data: Vec::new(), trace: 0, cpu: 0 }, &mut ());
        };
        // The kernel's S, before G, is no part of I2D.
        for (act, time_ns) in [
            (EventCode::Queue, 0),
            (EventCode::Sleep, 5),
            (EventCode::GetRequest, 10),
            (EventCode::Insert, 20),
            (EventCode::Issue, 50),
            (EventCode::Complete, 60),
        ] {
            step(act, time_ns, 8);
        }
        for (act, time_ns) in [
            (EventCode::Queue, 100),
            (EventCode::GetRequest, 100),
            (EventCode::Insert, 120),
            (EventCode::Sleep, 150),
            (EventCode::Issue, 220),
            (EventCode::Complete, 260),
        ] {
            step(act, time_ns, 16);
        }
        let total = |span| spans.all().of(span).total;
        let waits = [Span::I2D, Span::I2S, Span::S2D].map(total);
        assert_eq!(waits, [30 + 100, 30 + 30, 70]);
        let text = spans.text(None, Columns::Short);
        assert!(text.contains("\nI2S ") && text.contains("\nS2D "), "{text}");
    }
}
