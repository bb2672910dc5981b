//! Formats a report in Prometheus's text format, version 0.0.4.
//!
//! Pure text. This module owns the metric names: prefix `millrace_`, base units (seconds, bytes),
//! suffix `_total` for counters. Every metric family has its HELP and TYPE lines and is contiguous.
//! Histogram buckets end at powers of four nanoseconds from 1.024 us to 17.2 s, which are also
//! bounds of the block layer's finer buckets, so that no count is estimated. The layer's buckets
//! exclude their upper bound while `le` includes it, a difference of one nanosecond. Source: the
//! exposition formats and naming practices of prometheus.io.

use std::fmt::{Display, Write};

use millrace_block::{DiskCounter, Snapshot};
use millrace_exports::nbd::ServerStats;

use super::report::{Client, Drive, OpCounts, OpTotals, Queue, Report, TimeHistogram, Volume};

/// Exponents of the powers of two, in nanoseconds, at which buckets end.
const BORDERS: [u32; 13] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34];

/// Name, help text and value of a metric.
type Metric<T, V> = (&'static str, &'static str, fn(&T) -> V);

/// Name, help text and counts of a histogram.
type Timed = (&'static str, &'static str, fn(&OpCounts) -> &TimeHistogram);

/// Stage of an I/O as btt names it, and its times.
type Stage = (&'static str, fn(&OpCounts) -> &TimeHistogram);

const OP_COUNTERS: [Metric<OpCounts, u64>; 4] = [
    ("ios", "Completed I/Os, counted before merging.", |op| op.ios),
    ("bytes", "Bytes of the ranges of completed I/Os.", |op| op.bytes),
    ("errors", "I/Os that failed.", |op| op.errors),
    ("merges", "I/Os merged into the request of another I/O.", |op| op.merges),
];

const DRIVE_GAUGES: [Metric<Drive, u64>; 5] = [
    ("in_flight", "I/Os queued or in the drive now.", |drive| drive.in_flight),
    ("tags_in_use", "Tags in use now, by all drives that share them.", |drive| {
        drive.tags_in_use.into()
    }),
    ("waiting", "Batches of I/Os that wait for the drive's worker now.", |drive| drive.waiting),
    ("failed_last_minute", "Requests that the drive failed in the last minute.", |drive| {
        drive.failed_last_minute
    }),
    ("size_bytes", "Size of the drive.", |drive| drive.size_bytes),
];

const HISTOGRAMS: [Timed; 3] = [
    ("io_duration_seconds", "Time of an I/O, from submission to completion.", |op| &op.total),
    ("queue_duration_seconds", "Time of an I/O before it was dispatched to the driver.", |op| {
        &op.queue
    }),
    ("service_duration_seconds", "Time of an I/O in the drive.", |op| &op.service),
];

const STAGES: [Stage; 4] = [
    ("q2g", |op| &op.q2g),
    ("g2i", |op| &op.g2i),
    ("i2d", |op| &op.i2d),
    ("d2c", |op| &op.service),
];

const ENDED_COUNTERS: [Metric<OpTotals, u64>; 3] = [
    ("ios", "Completed I/Os. A split I/O counts once.", |op| op.ios),
    ("bytes", "Bytes of the ranges of completed I/Os.", |op| op.bytes),
    ("errors", "I/Os that failed.", |op| op.errors),
];

/// Writes the lines for one operation of a volume or client.
type Put<'a> = dyn Fn(&mut MetricsPage, &[(&str, &str)], &OpTotals) + 'a;

/// Formats a report.
pub fn render(report: &Report) -> String {
    let mut page = MetricsPage(String::new());
    page.family("millrace_build_info", "gauge", "Version of the running daemon, as a label.");
    page.sample("millrace_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.family("millrace_uptime_seconds", "gauge", "Time since the daemon began to serve.");
    page.sample("millrace_uptime_seconds", &[], seconds(report.uptime_ns));
    for (name, help, ns) in [
        ("ran", "CPU time of all threads.", report.processor.ran_ns),
        ("waited", "Time that threads were runnable without a CPU.", report.processor.waited_ns),
    ] {
        let name = format!("millrace_processor_{name}_seconds_total");
        page.family(&name, "counter", help);
        page.sample(&name, &[], seconds(ns));
    }
    let name = "millrace_idle_volumes";
    page.family(
        name,
        "gauge",
        "Volumes left out because they had no I/O; /metrics?all includes them.",
    );
    page.sample(name, &[], report.idle.volumes);
    drives(&mut page, report);
    volumes(&mut page, report);
    ended(&mut page, report);
    let mut stats = report.server.stats;
    for counter in ServerStats::ROWS {
        let end = if counter.kind == "counter" { "_total" } else { "" };
        let name = format!("millrace_nbd_{}{end}", counter.name);
        page.family(&name, counter.kind, counter.help);
        page.sample(&name, &[], (counter.field)(&mut stats));
    }
    let name = "millrace_nbd_huge_page_bytes";
    page.family(name, "gauge", "Memory for payload and caches that is in huge pages.");
    page.sample(name, &[], report.server.huge_page_bytes);
    groups(&mut page, report);
    page.0.push_str(&super::caches::metrics(&report.caches, |labels| braced(labels, None)));
    page.0.push_str(&super::guests::metrics(&report.guests, |labels| braced(labels, None)));
    page.0
}

fn drives(page: &mut MetricsPage, report: &Report) {
    for (name, help, value) in DRIVE_GAUGES {
        let name = format!("millrace_drive_{name}");
        page.family(&name, "gauge", help);
        for drive in &report.drives {
            page.sample(&name, &of_drive(drive), value(drive));
        }
    }
    for counter in DiskCounter::ALL {
        let name = format!("millrace_drive_{}_total", counter.name());
        page.family(&name, "counter", counter.help());
        for drive in &report.drives {
            page.sample(&name, &of_drive(drive), drive.counts[counter]);
        }
    }
    let ops = || report.drives.iter().flat_map(|drive| drive.ops.iter().map(move |op| (drive, op)));
    for (name, help, value) in OP_COUNTERS {
        let name = format!("millrace_drive_{name}_total");
        page.family(&name, "counter", help);
        for (drive, op) in ops() {
            page.sample(&name, &of_op(drive, op), value(op));
        }
    }
    for (name, help, times) in HISTOGRAMS {
        let name = format!("millrace_drive_{name}");
        page.family(&name, "histogram", help);
        for (drive, op) in ops() {
            page.histogram(&name, &of_op(drive, op), times(op));
        }
    }
    let name = "millrace_drive_stage_duration_seconds";
    let help = "Time of an I/O by stage: q2g before admission, g2i in a plug, i2d in a queue, \
                d2c in the drive.";
    page.family(name, "histogram", help);
    for (drive, op) in ops().filter(|(_, op)| op.ios > 0) {
        for (stage, times) in STAGES {
            let [drive, volume, op_label] = of_op(drive, op);
            page.histogram(name, &[drive, volume, op_label, ("stage", stage)], times(op));
        }
    }
    queues(page, report);
}

/// Writes the metrics of hardware queues.
fn queues(page: &mut MetricsPage, report: &Report) {
    let queues = || {
        let of = |drive: &'_ Drive| drive.queues.len();
        let drives = report.drives.iter().filter(move |drive| of(drive) > 0);
        drives.flat_map(|drive| drive.queues.iter().map(move |queue| (drive, queue)))
    };
    let name = "millrace_queue_io_duration_seconds";
    page.family(name, "histogram", "Time of an I/O, by the hardware queue that it used.");
    for (drive, queue) in queues() {
        let number = queue.queue.to_string();
        let [drive, volume] = of_drive(drive);
        let mut all = Snapshot::default();
        queue.ops.iter().for_each(|op| all.merge(&Snapshot::from(&op.total)));
        page.histogram(name, &[drive, volume, ("queue", &number)], &TimeHistogram::from(&all));
    }
    let name = "millrace_queue_batch_requests";
    page.family(name, "histogram", "Requests handed to the driver in one batch.");
    for (drive, queue) in queues() {
        let number = queue.queue.to_string();
        let [drive, volume] = of_drive(drive);
        page.batches(name, &[drive, volume, ("queue", &number)], queue);
    }
}

/// Writes the metrics of volumes and their clients.
fn ended(page: &mut MetricsPage, report: &Report) {
    let volume = |volume: &Volume| vec![("volume", volume.name.clone())];
    let of_volumes: Vec<_> = report.volumes.iter().map(|v| (volume(v), v.ops.as_slice())).collect();
    let client = |of: &Volume, client: &Client| {
        vec![("volume", of.name.clone()), ("client", format!("client-{}", client.client))]
    };
    let clients = report.volumes.iter().flat_map(|of| of.clients.iter().map(move |c| (of, c)));
    let of_clients: Vec<_> = clients.map(|(of, c)| (client(of, c), c.ops.as_slice())).collect();
    for (kind, whose) in [("volume", of_volumes), ("client", of_clients)] {
        let each = |page: &mut MetricsPage, put: &Put| {
            for (labels, ops) in &whose {
                for op in *ops {
                    let mut labels: Vec<_> =
                        labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
                    labels.push(("op", &op.op));
                    put(page, &labels, op);
                }
            }
        };
        for (name, help, value) in ENDED_COUNTERS {
            let name = format!("millrace_{kind}_{name}_total");
            page.family(&name, "counter", help);
            each(page, &|page, labels, op| page.sample(&name, labels, value(op)));
        }
        let name = format!("millrace_{kind}_io_duration_seconds");
        page.family(
            &name,
            "histogram",
            "Time of an I/O, from submission until all its parts ended.",
        );
        each(page, &|page, labels, op| page.histogram(&name, labels, &op.total));
    }
}

/// Writes the metrics of groups.
fn groups(page: &mut MetricsPage, report: &Report) {
    page.0.push_str(&super::groups::metrics(&report.group_counts, |labels| braced(labels, None)));
    let name = "millrace_group_io_duration_seconds";
    page.family(
        name,
        "histogram",
        "Time of a group's I/O, from submission until all its parts ended.",
    );
    for group in &report.group_counts {
        for on in &group.volumes {
            for op in &on.ops {
                let labels = [("group", &*group.name), ("volume", &on.volume), ("op", &op.op)];
                page.histogram(name, &labels, &op.total);
            }
        }
    }
}

fn volumes(page: &mut MetricsPage, report: &Report) {
    page.family("millrace_volume_size_bytes", "gauge", "Size of the volume.");
    for volume in &report.volumes {
        let labels = [("volume", volume.name.as_str()), ("serving", volume.serving.as_str())];
        page.sample("millrace_volume_size_bytes", &labels, volume.size_bytes);
    }
    let name = "millrace_export_errors_total";
    page.family(name, "counter", "Requests of clients that failed because of a drive.");
    for export in &report.exports {
        // Exports on different listeners may have the same name.
        let access = if export.read_only { "read-only" } else { "read-write" };
        let labels = [("export", export.name.as_str()), ("volume", &export.volume)];
        page.sample(name, &[labels[0], labels[1], ("access", access)], export.errors);
    }
}

fn of_drive(drive: &Drive) -> [(&str, &str); 2] {
    [("drive", &drive.name), ("volume", &drive.volume)]
}

fn of_op<'a>(drive: &'a Drive, op: &'a OpCounts) -> [(&'a str, &'a str); 3] {
    [("drive", &drive.name), ("volume", &drive.volume), ("op", &op.op)]
}

/// Page that is being written.
struct MetricsPage(String);

impl MetricsPage {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = writeln!(self.0, "{name}{} {value}", braced(labels, None));
    }

    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], times: &TimeHistogram) {
        let (mut buckets, mut below) = (times.buckets.iter().peekable(), 0);
        for border in BORDERS.map(|power| 1u64 << power) {
            while let Some((_, count)) = buckets.next_if(|(start_ns, _)| *start_ns < border) {
                below += count;
            }
            let labels = braced(labels, Some(&seconds(border).to_string()));
            let _ = writeln!(self.0, "{name}_bucket{labels} {below}");
        }
        let count = below + buckets.map(|(_, count)| count).sum::<u64>();
        let _ = writeln!(self.0, "{name}_bucket{} {count}", braced(labels, Some("+Inf")));
        let labels = braced(labels, None);
        let _ = writeln!(self.0, "{name}_sum{labels} {}", seconds(times.sum_ns));
        let _ = writeln!(self.0, "{name}_count{labels} {count}");
    }

    /// Writes the histogram of batch sizes: 1, 2 to 3, 4 to 7, ... requests.
    fn batches(&mut self, name: &str, labels: &[(&str, &str)], queue: &Queue) {
        let mut below = 0;
        for (power, count) in queue.batches.iter().enumerate() {
            below += count;
            let last = power + 1 == queue.batches.len();
            let le = if last { "+Inf".to_owned() } else { ((2 << power) - 1).to_string() };
            let _ = writeln!(self.0, "{name}_bucket{} {below}", braced(labels, Some(&le)));
        }
        let labels = braced(labels, None);
        let _ = writeln!(self.0, "{name}_sum{labels} {}", queue.requests);
        let _ = writeln!(self.0, "{name}_count{labels} {below}");
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Formats labels in braces, with their values escaped; an empty text without labels.
fn braced(labels: &[(&str, &str)], le: Option<&str>) -> String {
    let pairs = labels.iter().copied().chain(le.map(|le| ("le", le)));
    let pairs: Vec<String> = pairs
        .map(|(name, value)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("{name}=\"{value}\"")
        })
        .collect();
    if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::views::groups::{GroupCounts, OnVolume};
    use crate::views::report::Volume;

    fn report() -> Report {
        let times = TimeHistogram {
            sum_ns: 5_000_000_000,
            max_ns: 4_000_000_000,
            // At the border, just below it, in the middle, and above all borders.
            buckets: vec![(960, 1), (1024, 2), (1 << 20, 4), (1 << 34, 8)],
        };
        let (ios, bytes) = (15, 15 << 12);
        let op = |op: &str| OpCounts {
            op: op.to_owned(),
            ios,
            bytes,
            total: times.clone(),
            ..OpCounts::default()
        };
        let ended =
            |op: &str| OpTotals { op: op.to_owned(), ios, bytes, errors: 1, total: times.clone() };
        let queue = |queue: u16| Queue {
            queue,
            requests: 40,
            batches: vec![1, 2, 0, 4, 0, 0, 0, 0, 1],
            ops: vec![ended("read")],
        };
        let drive = |name: &str| Drive {
            name: name.to_owned(),
            volume: "v".to_owned(),
            ops: vec![op("read"), op("write")],
            queues: [0, 1].map(queue).into(),
            ..Drive::default()
        };
        let client = |client: u16| Client { client, ops: vec![ended("read"), ended("write")] };
        let volume = Volume {
            name: "v".to_owned(),
            ops: vec![ended("read")],
            clients: [1, 2].map(client).into(),
            ..Volume::default()
        };
        let on = OnVolume {
            volume: "v".to_owned(),
            ops: vec![ended("read")],
            cost_ns: 7,
            held_ns: [("limit".to_owned(), 5_000_000_000)].into(),
            ..OnVolume::default()
        };
        let name = "gold".to_owned();
        let group = GroupCounts { name, volumes: vec![on], ..GroupCounts::default() };
        Report {
            drives: vec![drive("d0"), drive("a\\b\"c\nd")],
            volumes: vec![volume],
            group_counts: vec![group],
            ..Report::default()
        }
    }

    #[test]
    fn counters_have_labels_and_values() {
        let text = render(&report());
        let line = "millrace_drive_ios_total{drive=\"d0\",volume=\"v\",op=\"read\"} 15\n";
        assert!(text.contains(line), "{text}");
        let odd = "{drive=\"a\\\\b\\\"c\\nd\",volume=\"v\",op=\"write\"} 61440\n";
        assert!(text.contains(odd), "{text}");
    }

    #[test]
    fn queues_clients_and_stages_have_lines_of_their_own() {
        let text = render(&report());
        let has = |line: &str| assert!(text.contains(&format!("{line}\n")), "{line} in {text}");
        has("millrace_client_ios_total{volume=\"v\",client=\"client-2\",op=\"write\"} 15");
        has("millrace_group_held_seconds_total{group=\"gold\",volume=\"v\",reason=\"limit\"} 5");
        has("millrace_group_io_duration_seconds_count{group=\"gold\",volume=\"v\",op=\"read\"} 15");
        has("millrace_volume_io_duration_seconds_count{volume=\"v\",op=\"read\"} 15");
        has(
            "millrace_queue_batch_requests_bucket{drive=\"d0\",volume=\"v\",queue=\"1\",le=\"3\"} 3",
        );
        has(
            "millrace_queue_batch_requests_bucket{drive=\"d0\",volume=\"v\",queue=\"1\",le=\"15\"} 7",
        );
        has("millrace_queue_batch_requests_count{drive=\"d0\",volume=\"v\",queue=\"1\"} 8");
        assert!(text.contains("op=\"read\",stage=\"i2d\",le=\"+Inf\"}"), "{text}");
    }

    #[test]
    fn buckets_add_up_from_borders_of_the_layers_own() {
        let text = render(&report());
        let bucket = |le: &str| {
            let name = "millrace_drive_io_duration_seconds_bucket{drive=\"d0\",volume=\"v\"";
            let line = format!("{name},op=\"read\",le=\"{le}\"}} ");
            let at = text.find(&line).unwrap_or_else(|| panic!("no {line} in {text}"));
            text[at + line.len()..].lines().next().unwrap().parse::<u64>().unwrap()
        };
        let found = ["0.000001024", "0.000004096", "0.001048576", "0.004194304", "+Inf"];
        assert_eq!(found.map(bucket), [1, 3, 3, 7, 15]);
        for power in BORDERS {
            assert_eq!(millrace_block::bucket_start(millrace_block::bucket_of(1 << power)), {
                // The last bucket holds all that is longer.
                if power == 34 { 15 << 30 } else { 1 << power }
            });
        }
    }

    /// The grammar of the format, line by line, with what promtool demands beyond it.
    #[test]
    fn the_page_is_well_formed() {
        let text = render(&report());
        assert!(text.ends_with('\n'));
        let (mut families, mut series) = (HashSet::new(), HashSet::new());
        let (mut family, mut kind) = (String::new(), String::new());
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                family = rest.split(' ').next().unwrap().to_owned();
                assert!(rest.len() > family.len() + 1, "{line}");
                assert!(families.insert(family.clone()), "{family} stands twice");
                let of = lines.next().unwrap().strip_prefix("# TYPE ").unwrap();
                kind = of.strip_prefix(&format!("{family} ")).unwrap().to_owned();
                assert!(["counter", "gauge", "histogram"].contains(&kind.as_str()));
                assert_eq!(kind == "counter", family.ends_with("_total"), "{family}");
                continue;
            }
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let base = name.split('{').next().unwrap();
            match kind.as_str() {
                "histogram" => {
                    let end = base.strip_prefix(&family).unwrap();
                    assert!(["_bucket", "_sum", "_count"].contains(&end), "{line}");
                }
                _ => assert_eq!(base, family),
            }
            assert!(base.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{line}");
            assert!(series.insert(name.to_owned()), "{name} stands twice");
        }
        assert!(families.len() > 25);
    }
}
