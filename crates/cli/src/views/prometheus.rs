//! Converts a report of counters to Prometheus's metrics.
//!
//! The metric names are defined here, in base units (seconds, bytes). metrics_page.rs adds the
//! prefix `millrace_`, and the suffix `_total` of counters. verbs/ctl.rs calls this module.

use millrace_block::{DiskCounter, Snapshot};

use super::groups::OnVolume;
use super::guests::GuestThread;
use super::metrics_page::{Labels, MetricsPage, labels, seconds};
use super::report::{Drive, OpCounts, OpStages, Report, TimeHistogram};

/// Name, help text and value of a metric.
type Metric<T> = (&'static str, &'static str, fn(&T) -> u64);

/// Stage of an I/O: its name in btt, and the function that returns its times.
type StageTimes = (&'static str, fn(&OpStages) -> &TimeHistogram);

const DRIVE_GAUGES: [Metric<Drive>; 5] = [
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

/// Counters of I/Os. The metrics of drives include all counters. The metrics of volumes, clients
/// and groups leave out `merges`, and use [`SENT_IOS`] as the help text of `ios`.
const OP_COUNTERS: [Metric<OpCounts>; 4] = [
    ("ios", "Completed I/Os, counted before merging.", |op| op.ios),
    ("bytes", "Bytes covered by completed I/Os, discards included.", |op| op.bytes),
    ("errors", "I/Os that failed.", |op| op.errors),
    ("merges", "I/Os merged into the request of another I/O.", |op| {
        op.stages.as_ref().map_or(0, |stages| stages.merges)
    }),
];

const SENT_IOS: &str = "Completed I/Os. A split I/O counts once.";

const STAGES: [StageTimes; 4] = [
    ("q2g", |op| &op.q2g),
    ("g2i", |op| &op.g2i),
    ("i2d", |op| &op.i2d),
    ("d2c", |op| &op.service),
];

pub fn render(report: &Report) -> String {
    let mut page = MetricsPage(String::new());
    let version = labels([("version", env!("CARGO_PKG_VERSION"))]);
    let help = "Version of the running daemon, as a label.";
    page.samples(("build_info", "gauge", help), [(version, 1)]);
    let time = seconds(report.uptime_ns);
    page.single(("uptime_seconds", "gauge", "How long the daemon serves."), time);
    let (ran, waited) = (report.processor.ran_ns, report.processor.waited_ns);
    page.single(("processor_ran_seconds", "counter", "CPU time of all threads."), seconds(ran));
    let help = "Time that threads were runnable without a CPU.";
    page.single(("processor_waited_seconds", "counter", help), seconds(waited));
    let help = "Idle volumes left out of this page; /metrics?all includes them.";
    page.single(("idle_volumes", "gauge", help), report.idle.volumes);
    drives(&mut page, report);
    volumes(&mut page, report);
    sent_ios(&mut page, report);
    page.counters("nbd", &[(Labels::new(), report.server.stats)]);
    let help = "Payload and cache memory that is in huge pages.";
    page.single(("nbd_huge_page_bytes", "gauge", help), report.server.huge_page_bytes);
    groups(&mut page, report);
    let of_cache = |volume: &String, mode: &String| labels([("volume", volume), ("mode", mode)]);
    let caches = report.caches.iter().map(|one| (of_cache(&one.volume, &one.mode), one.stats));
    page.counters("cache", &caches.collect::<Vec<_>>());
    let of_thread = |thread: &GuestThread| {
        labels([("export", &thread.export), ("thread", &thread.thread.to_string())])
    };
    let queues = report.guests.iter().flat_map(|one| {
        let queues = one.queues.iter();
        queues.map(move |queue| (with(&of_thread(one), "queue", queue.queue), queue.stats))
    });
    page.counters("vhost", &queues.collect::<Vec<_>>());
    let threads = report.guests.iter().map(|one| (of_thread(one), one.stats));
    page.counters("vhost", &threads.collect::<Vec<_>>());
    page.0
}

fn drives(page: &mut MetricsPage, report: &Report) {
    let of_drive = |drive: &Drive| labels([("drive", &drive.name), ("volume", &drive.volume)]);
    let drives: Vec<_> = report.drives.iter().map(|drive| (of_drive(drive), drive)).collect();
    for (name, help, value) in DRIVE_GAUGES {
        let lines = drives.iter().map(|(labels, drive)| (labels, value(drive)));
        page.samples((&format!("drive_{name}"), "gauge", help), lines);
    }
    for counter in DiskCounter::ALL {
        let lines = drives.iter().map(|(labels, drive)| (labels, drive.count(counter)));
        page.samples((&format!("drive_{}", counter.name()), "counter", counter.help()), lines);
    }
    let ops: Vec<_> =
        drives.iter().flat_map(|(labels, drive)| of_ops(labels, &drive.ops)).collect();
    for (name, help, value) in OP_COUNTERS {
        let lines = ops.iter().map(|(labels, op)| (labels, value(op)));
        page.samples((&format!("drive_{name}"), "counter", help), lines);
    }
    let totals = ops.iter().map(|(labels, op)| (labels, &op.total));
    let help = "Time of an I/O, from submission to completion.";
    page.histograms(("drive_io_duration_seconds", help), totals);
    let staged = || ops.iter().filter_map(|(labels, op)| Some((labels, op, op.stages.as_ref()?)));
    let help = "Time of an I/O before it was dispatched to the driver.";
    let queued = staged().map(|(labels, _, stages)| (labels, &stages.queue));
    page.histograms(("drive_queue_duration_seconds", help), queued);
    let served = staged().map(|(labels, _, stages)| (labels, &stages.service));
    page.histograms(("drive_service_duration_seconds", "Time of an I/O in the drive."), served);
    let help = "Time of an I/O by stage: q2g before admission, g2i in a plug, i2d in a queue, \
                d2c in the drive.";
    let stages = staged().filter(|(_, op, _)| op.ios > 0).flat_map(|(labels, _, stages)| {
        STAGES.map(|(stage, times)| (with(labels, "stage", stage), times(stages)))
    });
    page.histograms(("drive_stage_duration_seconds", help), stages);
    let queues = drives.iter().flat_map(|(labels, drive)| {
        let queues = drive.queues.iter();
        queues.map(move |queue| (with(labels, "queue", queue.queue), queue))
    });
    let queues: Vec<_> = queues.collect();
    let times = queues.iter().map(|(labels, queue)| {
        let mut all = Snapshot::default();
        queue.ops.iter().for_each(|op| all.merge(&Snapshot::from(&op.total)));
        (labels, TimeHistogram::from(&all))
    });
    let help = "Time of an I/O, by the hardware queue that it used.";
    page.histograms(("queue_io_duration_seconds", help), times);
    let help = "Requests handed to the driver in one batch.";
    page.batches(("queue_batch_requests", help), &queues);
}

/// Writes the I/Os of volumes, clients and groups, as clients sent them.
fn sent_ios(page: &mut MetricsPage, report: &Report) {
    let volumes = || report.volumes.iter().map(|one| (labels([("volume", &one.name)]), one));
    let of_volumes = volumes().map(|(labels, volume)| (labels, &volume.ops));
    let of_clients = volumes().flat_map(|(labels, volume)| {
        let number = |client: u16| with(&labels, "client", format_args!("client-{client}"));
        let clients = volume.clients.iter();
        clients.map(|one| (number(one.client), &one.ops)).collect::<Vec<_>>()
    });
    let of_groups = on_volumes(report).map(|(labels, on)| (labels, &on.ops));
    for (kind, all) in [
        ("volume", of_volumes.collect::<Vec<_>>()),
        ("client", of_clients.collect()),
        ("group", of_groups.collect()),
    ] {
        let ops: Vec<_> = all.iter().flat_map(|(labels, ops)| of_ops(labels, ops)).collect();
        for (name, help, value) in &OP_COUNTERS[..3] {
            let help = if *name == "ios" { SENT_IOS } else { help };
            let lines = ops.iter().map(|(labels, op)| (labels, value(op)));
            page.samples((&format!("{kind}_{name}"), "counter", help), lines);
        }
        let help = "Time of an I/O, from submission until its last part completed.";
        let totals = ops.iter().map(|(labels, op)| (labels, &op.total));
        page.histograms((&format!("{kind}_io_duration_seconds"), help), totals);
    }
}

fn groups(page: &mut MetricsPage, report: &Report) {
    let groups = report.group_counts.iter().map(|one| (labels([("group", &one.name)]), one));
    let (groups, on_volumes): (Vec<_>, Vec<_>) = (groups.collect(), on_volumes(report).collect());
    let help = "Weight of the group relative to its siblings.";
    let weights = groups.iter().map(|(labels, group)| (labels, group.weight));
    page.samples(("group_weight", "gauge", help), weights);
    let help = "Seconds until the group's limits allow it to issue I/O again.";
    let booked = groups.iter().map(|(labels, group)| (labels, seconds(group.booked_ns)));
    page.samples(("group_booked_seconds", "gauge", help), booked);
    let help = "Drive time of the group's I/Os in seconds, as estimated by the drives' cost model.";
    let costs = on_volumes.iter().map(|(labels, on)| (labels, seconds(on.cost_ns)));
    page.samples(("group_cost_seconds", "counter", help), costs);
    let help = "Seconds for which the group's I/Os were held back, summed over I/Os, by reason.";
    let held = on_volumes.iter().flat_map(|(labels, on)| {
        let line = move |(reason, ns): (_, &u64)| (with(labels, "reason", reason), seconds(*ns));
        on.held_ns.iter().map(line)
    });
    page.samples(("group_held_seconds", "counter", help), held);
    let help = "I/Os of the group that are held back at the moment.";
    let waiting = on_volumes.iter().map(|(labels, on)| (labels, on.waiting));
    page.samples(("group_waiting", "gauge", help), waiting);
}

fn on_volumes(report: &Report) -> impl Iterator<Item = (Labels, &OnVolume)> {
    report.group_counts.iter().flat_map(|group| {
        let volumes = group.volumes.iter();
        volumes.map(|on| (labels([("group", &group.name), ("volume", &on.volume)]), on))
    })
}

fn volumes(page: &mut MetricsPage, report: &Report) {
    let sizes = report
        .volumes
        .iter()
        .map(|one| (labels([("volume", &one.name), ("serving", &one.serving)]), one.size_bytes));
    page.samples(("volume_size_bytes", "gauge", "Size of the volume."), sizes);
    let errors = report.exports.iter().map(|one| {
        // Exports on different listeners may have the same name, so a label names the volume, too.
        let access = if one.read_only { "read-only" } else { "read-write" };
        let names = [("export", &*one.name), ("volume", &*one.volume), ("access", access)];
        (labels(names), one.errors)
    });
    let help = "Client requests that failed because of a drive.";
    page.samples(("export_errors", "counter", help), errors);
}

fn of_ops<'a>(
    labels: &Labels,
    ops: &'a [OpCounts],
) -> impl Iterator<Item = (Labels, &'a OpCounts)> {
    ops.iter().map(move |op| (with(labels, "op", &op.op), op))
}

fn with(labels: &Labels, name: &'static str, value: impl ToString) -> Labels {
    labels.iter().cloned().chain([(name, value.to_string())]).collect()
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
        let ended = |op: &str| OpCounts {
            op: op.to_owned(),
            ios,
            bytes,
            errors: 1,
            total: times.clone(),
            stages: None,
        };
        let op = |op: &str| OpCounts { stages: Some(OpStages::default()), ..ended(op) };
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
