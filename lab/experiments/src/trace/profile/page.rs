//! The figures and tables of a `TraceProfile`.
//!
//! This file selects the figures and has their titles and captions; `crate::page` draws them.

use millrace_block::Op;

use super::{ArrivalSlot, BINS, DeviceCount, PowerBins, TraceProfile};
use crate::page::{DataTable, Figure, Page, Panel, Scale, Series, Unit};

const DEVICES_SHOWN: usize = 16;
const QUANTILES: [(f64, &str); 4] = [(0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9")];

impl TraceProfile {
    pub(in crate::trace) fn add_to(&self, page: &mut Page, devices: &[String]) {
        page.figures.extend([self.rates(), self.sizes(), self.strides(), self.touched()]);
        page.figures.extend(self.has_latency().then(|| self.latencies()));
        page.tables.extend(self.tables(devices));
        page.remarks.extend(self.notes());
    }

    /// Returns the tables as text for a terminal.
    pub fn text(&self, devices: &[String]) -> String {
        Page { tables: self.tables(devices), ..Page::default() }.text()
    }

    fn rates(&self) -> Figure {
        let slots = &self.slots;
        let names = [(0, "read"), (1, "write"), (2, "other")];
        let ios =
            names.map(|(way, name)| slots.series(name, |slot| Some(slots.rate(slot.ios[way]))));
        let mib = |slot: &ArrivalSlot, way: usize| slots.rate(slot.bytes[way]) / f64::from(1 << 20);
        let bytes =
            names[..2].iter().map(|(way, name)| slots.series(*name, |slot| Some(mib(slot, *way))));
        Figure::new(
            "arrivals",
            "Arrivals over time",
            "I/Os and bytes that arrived in each time slot, on all devices together.",
            [
                slots.panel("I/Os", ("IOPS", Unit::Count), ios),
                slots.panel("bandwidth", ("MiB/s", Unit::Plain), bytes),
            ],
        )
    }

    fn sizes(&self) -> Figure {
        let lines = [("read", &self.sizes[0]), ("write", &self.sizes[1])];
        Figure::new(
            "sizes",
            "Sizes",
            "Reads and writes by length: each point counts lengths from a power of two up to the \
             next; 12 is 4 KiB, 16 is 64 KiB, 20 is 1 MiB.",
            [histogram("I/Os", &lines)],
        )
    }

    fn strides(&self) -> Figure {
        let lines = [("forward", &self.strides.forward), ("backward", &self.strides.backward)];
        let sequential = share(self.strides.sequential, self.strides.all());
        Figure::new(
            "strides",
            "Strides",
            &format!(
                "Distance of each read or write from the end of the previous one on its device, by \
                 powers of two of bytes; {sequential} are sequential (distance 0) and not shown."
            ),
            [histogram("I/Os", &lines)],
        )
    }

    fn touched(&self) -> Figure {
        let (slots, last) = (&self.slots, self.working_set());
        let x_end = slots.x(slots.slots.len().saturating_sub(1) as f64 + 0.5);
        let lines = [(0, "all"), (1, "read"), (2, "written")].map(|(which, name)| {
            let mut line = slots.series(name, |slot| slot.touched.map(|bytes| bytes[which]));
            line.points.retain(|(x, _)| *x < x_end);
            line.points.push((x_end, last[which]));
            line
        });
        Figure::new(
            "working-set",
            "Working set",
            "Distinct 4 KiB pages touched since the beginning, in bytes; the error \
             is 0.8 %.",
            [slots.panel("touched", ("bytes", Unit::Count), lines)],
        )
    }

    fn latencies(&self) -> Figure {
        let mean = |(count, sum): (u64, u64)| (count > 0).then(|| sum as f64 / count as f64);
        let lines = [("read", 0), ("write", 1)]
            .map(|(name, way)| self.slots.series(name, |slot| mean(slot.latency[way])));
        let panel = self.slots.panel("mean", ("latency", Unit::Nanoseconds), lines);
        Figure::new(
            "trace-latency",
            "Latency in the trace",
            "Mean latency recorded in the trace, by arrival time.",
            [Panel { y_scale: Scale::Log, ..panel }],
        )
    }

    fn tables(&self, devices: &[String]) -> Vec<DataTable> {
        let mut tables = vec![self.workload(devices), self.mix()];
        let caption = "number of reads and writes by length; a row covers lengths from the one \
                       given to below twice that";
        let bins = [("reads", &self.sizes[0]), ("writes", &self.sizes[1])];
        tables.push(bins_table(("size", "Sizes"), caption, bins));
        let caption = "number of strides by distance; a row covers distances from the one given to \
                       below twice that";
        let bins = [("forward", &self.strides.forward), ("backward", &self.strides.backward)];
        tables.push(bins_table(("stride", "Strides"), caption, bins));
        tables.push(self.by_device(devices));
        tables.retain(|table| !table.rows.is_empty());
        tables
    }

    fn workload(&self, devices: &[String]) -> DataTable {
        let seconds = self.last_ns() as f64 / 1e9;
        let ios = self.ios();
        let total: u64 = self.ops[..2].iter().fold(0, |sum, op| sum.saturating_add(op.bytes));
        let [all, read, written] = self.working_set();
        let rate = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let mut rows = vec![
            ("devices", devices.len().to_string()),
            ("time", format!("{seconds:.6} s")),
            ("I/Os", ios.to_string()),
            ("mean rate", format!("{:.1} IOPS, {}/s", rate(ios as f64), bytes(rate(total as f64)))),
            ("read or written", bytes(total as f64)),
            ("working set", format!("{} (+-0.8 %)", bytes(all))),
            ("of it read, written", format!("{}, {}", bytes(read), bytes(written))),
            ("sequential", share(self.strides.sequential, self.strides.all())),
        ];
        rows.extend(self.notes().map(|note| ("note", note)));
        let rows = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
        DataTable::new(("workload", "Workload"), "", ["of all I/Os", "value"], rows)
    }

    fn mix(&self) -> DataTable {
        let mut head = vec!["op", "I/Os", "share", "bytes", "mean size", "FUA"];
        if self.has_latency() {
            head.extend(["lat mean"].into_iter().chain(QUANTILES.map(|(_, name)| name)));
        }
        let width = head.len();
        let there = Op::ALL.into_iter().filter(|op| self.ops[*op as usize].ios > 0);
        let row = |op: Op| {
            let count = &self.ops[op as usize];
            let mut row = vec![
                op.name().to_owned(),
                count.ios.to_string(),
                share(count.ios, self.ios()),
                bytes(count.bytes as f64),
                bytes(count.bytes as f64 / count.ios as f64),
                count.fua.to_string(),
            ];
            if count.latency.n > 0 {
                row.push(duration(count.latency.avg()));
                let quantile = |(share, _)| duration(count.latency.quantile(share) as f64);
                row.extend(QUANTILES.map(quantile));
            }
            row.resize(width, String::new());
            row
        };
        let caption =
            "latencies are those recorded in the trace; percentiles are accurate to 12.5 %";
        let caption = if self.has_latency() { caption } else { "" };
        DataTable::new(("mix", "Operations"), caption, head, there.map(row).collect())
    }

    fn by_device(&self, devices: &[String]) -> DataTable {
        let mut all: Vec<(usize, &DeviceCount)> = self.devices.iter().enumerate().collect();
        all.sort_by_key(|(place, device)| (std::cmp::Reverse(device.ios), *place));
        let row = |(place, device): &(usize, &DeviceCount)| {
            vec![
                devices.get(*place).cloned().unwrap_or_default(),
                device.ios.to_string(),
                share(device.reads, device.ios),
                bytes(device.bytes as f64),
                share(device.sequential, device.ios),
                bytes(device.end as f64),
            ]
        };
        let rows = all.iter().take(DEVICES_SHOWN).map(row).collect();
        let caption = match all.len().saturating_sub(DEVICES_SHOWN) {
            0 => "end is the highest byte offset that was read or written".to_owned(),
            more => {
                format!("the {DEVICES_SHOWN} devices with most I/Os; {more} more are not shown")
            }
        };
        let head = ["device", "I/Os", "reads", "bytes", "sequential", "end"];
        DataTable::new(("by-device", "Devices"), &caption, head, rows)
    }
}

/// Returns a table of counts with a row for each power of two, and a column for each of `bins`.
fn bins_table(title: (&str, &str), caption: &str, bins: [(&str, &PowerBins); 2]) -> DataTable {
    let counts = |bin: usize| bins.map(|(_, bins)| bins.0[bin]);
    let row = |bin: usize| {
        let from = if bin == 0 { 0.0 } else { 2_f64.powi(bin as i32) };
        [bytes(from)].into_iter().chain(counts(bin).map(|count| count.to_string())).collect()
    };
    let some = |bin: &usize| counts(*bin).iter().any(|count| *count > 0);
    let rows = (0..BINS).filter(some).map(row).collect();
    DataTable::new(title, caption, ["from", bins[0].0, bins[1].0], rows)
}

fn histogram(title: &str, lines: &[(&str, &PowerBins); 2]) -> Panel {
    let line = |(name, bins): &(&str, &PowerBins)| {
        let points = bins.used().map(|bin| (bin as f64, bins.0[bin] as f64));
        Series::ours(*name, points.collect())
    };
    let series = lines.iter().map(line).filter(|line| !line.points.is_empty()).collect();
    Panel::new(title, "log2 of bytes", ("I/Os", Unit::Count), series)
}

fn share(part: u64, all: u64) -> String {
    if all == 0 { "-".into() } else { format!("{:.1} %", part as f64 / all as f64 * 100.0) }
}

fn bytes(bytes: f64) -> String {
    let prefixes = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut scaled = bytes;
    let mut place = 0;
    while scaled >= 1_024.0 && place + 1 < prefixes.len() {
        scaled /= 1_024.0;
        place += 1;
    }
    let digits = if scaled < 10.0 && scaled.fract() != 0.0 { 1 } else { 0 };
    format!("{scaled:.digits$} {}", prefixes[place])
}

fn duration(ns: f64) -> String {
    match ns {
        ..1e3 => format!("{ns:.0} ns"),
        ..1e6 => format!("{:.1} us", ns / 1e3),
        ..1e9 => format!("{:.1} ms", ns / 1e6),
        _ => format!("{:.1} s", ns / 1e9),
    }
}
