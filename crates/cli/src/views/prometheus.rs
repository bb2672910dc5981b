//! Converts a report of counters to Prometheus's metrics.
//!
//! The metric names are defined here: prefix `millrace_`, base units (seconds, bytes), suffix
//! `_total` for counters. verbs/ctl.rs calls this module for the metrics page; metrics_page.rs has
//! the text format.

use millrace_block::{DiskCounter, Snapshot};

use super::groups::OnVolume;
use super::guests::GuestThread;
use super::metrics_page::{Labels, MetricsPage, seconds};
use super::report::{Drive, OpCounts, OpTotals, Report, TimeHistogram};

/// Name, help text and value of a metric.
type Metric<T, V> = (&'static str, &'static str, fn(&T) -> V);

/// Name, help text and counts of a histogram.
type Timed = (&'static str, &'static str, fn(&OpCounts) -> &TimeHistogram);

/// Stage of an I/O: its name in btt, and the function that returns its times.
type Stage = (&'static str, fn(&OpCounts) -> &TimeHistogram);

const OP_COUNTERS: [Metric<OpCounts, u64>; 4] = [
    ("ios", "Completed I/Os, counted before merging.", |op| op.ios),
    ("bytes", "Bytes that completed I/Os covered, discards included.", |op| op.bytes),
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
    ("bytes", "Bytes that completed I/Os covered, discards included.", |op| op.bytes),
    ("errors", "I/Os that failed.", |op| op.errors),
];

pub fn render(report: &Report) -> String {
    let mut page = MetricsPage(String::new());
    page.family("millrace_build_info", "gauge", "Version of the running daemon, as a label.");
    page.sample("millrace_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    let help = "How long the daemon serves.";
    page.single("millrace_uptime_seconds", "gauge", help, seconds(report.uptime_ns));
    for (name, help, ns) in [
        ("ran", "CPU time of all threads.", report.processor.ran_ns),
        ("waited", "Time that threads were runnable without a CPU.", report.processor.waited_ns),
    ] {
        let name = format!("millrace_processor_{name}_seconds_total");
        page.single(&name, "counter", help, seconds(ns));
    }
    let help = "Idle volumes left out of this page; /metrics?all includes them.";
    page.single("millrace_idle_volumes", "gauge", help, report.idle.volumes);
    drives(&mut page, report);
    volumes(&mut page, report);
    ended(&mut page, report);
    page.counters("nbd", &[(Labels::new(), report.server.stats)]);
    let (name, bytes) = ("millrace_nbd_huge_page_bytes", report.server.huge_page_bytes);
    page.single(name, "gauge", "Payload and cache memory that is in huge pages.", bytes);
    groups(&mut page, report);
    let caches = report.caches.iter().map(|cache| {
        let (volume, mode) = (cache.volume.clone(), cache.mode.clone());
        (vec![("volume", volume), ("mode", mode)], cache.stats)
    });
    page.counters("cache", &caches.collect::<Vec<_>>());
    let thread = |thread: &GuestThread| {
        vec![("export", thread.export.clone()), ("thread", thread.thread.to_string())]
    };
    let queues = report.guests.iter().flat_map(|one| {
        one.queues.iter().map(move |queue| {
            let number = ("queue", queue.queue.to_string());
            (thread(one).into_iter().chain([number]).collect(), queue.stats)
        })
    });
    page.counters("vhost", &queues.collect::<Vec<_>>());
    let threads = report.guests.iter().map(|one| (thread(one), one.stats));
    page.counters("vhost", &threads.collect::<Vec<_>>());
    page.0
}

fn drives(page: &mut MetricsPage, report: &Report) {
    for (name, help, value) in DRIVE_GAUGES {
        let lines = report.drives.iter().map(|drive| (of_drive(drive), value(drive)));
        page.samples((&format!("millrace_drive_{name}"), "gauge", help), lines);
    }
    for counter in DiskCounter::ALL {
        let name = format!("millrace_drive_{}_total", counter.name());
        let lines = report.drives.iter().map(|drive| (of_drive(drive), drive.counts[counter]));
        page.samples((&name, "counter", counter.help()), lines);
    }
    let ops = || report.drives.iter().flat_map(|drive| drive.ops.iter().map(move |op| (drive, op)));
    for (name, help, value) in OP_COUNTERS {
        let lines = ops().map(|(drive, op)| (of_op(drive, op), value(op)));
        page.samples((&format!("millrace_drive_{name}_total"), "counter", help), lines);
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

fn queues(page: &mut MetricsPage, report: &Report) {
    let drives = || report.drives.iter();
    let queues = || drives().flat_map(|drive| drive.queues.iter().map(move |queue| (drive, queue)));
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

fn ended(page: &mut MetricsPage, report: &Report) {
    let of = |labels: Labels, ops: &'_ [OpTotals]| {
        let with_op = |op: &OpTotals| {
            let op_label = ("op", op.op.clone());
            (labels.iter().cloned().chain([op_label]).collect(), op.clone())
        };
        ops.iter().map(with_op).collect::<Vec<(Labels, OpTotals)>>()
    };
    let volume = |name: &str| vec![("volume", name.to_owned())];
    let of_volumes = report.volumes.iter().flat_map(|one| of(volume(&one.name), &one.ops));
    let of_clients = report.volumes.iter().flat_map(|one| {
        one.clients.iter().flat_map(|client| {
            let number = ("client", format!("client-{}", client.client));
            of([volume(&one.name), vec![number]].concat(), &client.ops)
        })
    });
    let of_groups = report.group_counts.iter().flat_map(|group| {
        let name = vec![("group", group.name.clone())];
        let on = move |on: &OnVolume| of([name.clone(), volume(&on.volume)].concat(), &on.ops);
        group.volumes.iter().flat_map(on).collect::<Vec<_>>()
    });
    for (kind, all) in [
        ("volume", of_volumes.collect::<Vec<_>>()),
        ("client", of_clients.collect()),
        ("group", of_groups.collect()),
    ] {
        for (name, help, value) in ENDED_COUNTERS {
            let lines = all.iter().map(|(labels, op)| (labels, value(op)));
            page.samples((&format!("millrace_{kind}_{name}_total"), "counter", help), lines);
        }
        let name = format!("millrace_{kind}_io_duration_seconds");
        page.family(
            &name,
            "histogram",
            "Time of an I/O, from submission until its last part completed.",
        );
        all.iter().for_each(|(labels, op)| page.histogram(&name, labels, &op.total));
    }
}

fn groups(page: &mut MetricsPage, report: &Report) {
    let groups = &report.group_counts;
    let weights = groups.iter().map(|group| ([("group", &group.name)], group.weight));
    let help = "Weight of the group relative to its siblings.";
    page.samples(("millrace_group_weight", "gauge", help), weights);
    let booked = groups.iter().map(|group| ([("group", &group.name)], seconds(group.booked_ns)));
    let help = "Seconds from now for which the group has used up its limits.";
    page.samples(("millrace_group_booked_seconds", "gauge", help), booked);
    let mut on_volumes: Vec<([(&str, &String); 2], &OnVolume)> = Vec::new();
    for group in groups {
        let volumes = group.volumes.iter();
        on_volumes.extend(volumes.map(|on| ([("group", &group.name), ("volume", &on.volume)], on)));
    }
    let costs = on_volumes.iter().map(|(labels, on)| (labels, seconds(on.cost_ns)));
    let help = "Drive time of the group's I/Os in seconds, by the drives' cost model.";
    page.samples(("millrace_group_cost_seconds_total", "counter", help), costs);
    let held = on_volumes.iter().flat_map(|([group, volume], on)| {
        let line = |(reason, ns): (_, &u64)| ([*group, *volume, ("reason", reason)], seconds(*ns));
        on.held_ns.iter().map(line)
    });
    let help = "How long the group's I/Os were held, added up over I/Os, by reason.";
    page.samples(("millrace_group_held_seconds_total", "counter", help), held);
    let waiting = on_volumes.iter().map(|(labels, on)| (labels, on.waiting));
    let help = "I/Os of the group that are held back at the moment.";
    page.samples(("millrace_group_waiting", "gauge", help), waiting);
}

fn volumes(page: &mut MetricsPage, report: &Report) {
    let sizes = report.volumes.iter().map(|volume| {
        ([("volume", &volume.name), ("serving", &volume.serving)], volume.size_bytes)
    });
    page.samples(("millrace_volume_size_bytes", "gauge", "Size of the volume."), sizes);
    let errors = report.exports.iter().map(|export| {
        // Exports on different listeners may have the same name, so the label has the volume, too.
        let access = if export.read_only { "read-only" } else { "read-write" };
        let labels = [("export", &*export.name), ("volume", &*export.volume), ("access", access)];
        (labels, export.errors)
    });
    let help = "Client requests that failed because of a drive.";
    page.samples(("millrace_export_errors_total", "counter", help), errors);
}

fn of_drive(drive: &Drive) -> [(&str, &str); 2] {
    [("drive", &drive.name), ("volume", &drive.volume)]
}

fn of_op<'a>(drive: &'a Drive, op: &'a OpCounts) -> [(&'a str, &'a str); 3] {
    [("drive", &drive.name), ("volume", &drive.volume), ("op", &op.op)]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::views::caches::CacheCounts;
    use crate::views::groups::GroupCounts;
    use crate::views::guests::GuestQueue;
    use crate::views::metrics_page::BORDERS;
    use crate::views::report::{Client, Queue, Volume};

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
            caches: vec![CacheCounts::default()],
            guests: vec![GuestThread {
                queues: vec![GuestQueue { queue: 3, ..GuestQueue::default() }],
                ..GuestThread::default()
            }],
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
        has("millrace_group_ios_total{group=\"gold\",volume=\"v\",op=\"read\"} 15");
        has("millrace_group_cost_seconds_total{group=\"gold\",volume=\"v\"} 0.000000007");
        has("millrace_cache_written_back_pages_total{volume=\"\",mode=\"\"} 0");
        has("millrace_vhost_kicks_total{export=\"\",thread=\"0\",queue=\"3\"} 0");
        has("millrace_vhost_sleeps_total{export=\"\",thread=\"0\"} 0");
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
