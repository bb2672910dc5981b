//! Columns of `stat`, as iostat -x prints them, from the difference of two reports.
//!
//! A row is a drive, a hardware queue, a volume or a client. Rates of drives count I/Os after
//! merging, as iostat does; times are of I/Os as submitted, before merging. `HELP` defines each
//! column by the events that the block layer counts. The column names follow sysstat 12.

use std::collections::{BTreeMap, HashMap};

use millrace_block::{Op, Snapshot};
use serde::Serialize;

use crate::views::report::{self, Drive, OpCounts, Report, Volume};

pub const HELP: &str = "\
Columns, over the interval (in the first report: since the daemon began to serve); those marked * \
come with -x:
  r/s w/s d/s* f/s*   reads, writes, discards and flushes that completed, a second, after merging;
                      d counts discards and writes of zeroes together
  rMiB/s wMiB/s dMiB/s*  MiB that they moved, per second
  rrqm/s %rrqm ... *  I/Os that were merged into another's request, a second, and their share
  r_await w_await     milliseconds from submission to completion, on average (d_await* f_await*);
                      a merged I/O counts its own time, where iostat counts its request's
  rareq-sz ... *      KiB of a request, on average
  aqu-sz              I/Os waiting or in the drive, on average: the time that all I/Os which
                      completed took together, divided by the interval
  %util               the time that I/Os spent in the drive, divided by the interval, 100 at
                      most. With one I/O in the drive at a time that is how long the drive was
                      busy; with several it is an upper bound, as they overlap
  r_p99 w_p99 *       milliseconds that 99 % of reads and writes did not exceed, to an eighth

Times run from when the daemon has read a request until it has the answer. They do not include \
the transfer through a socket, or the time that a client takes to read the answer, so a client \
measures more.

I/Os that failed are counted with the others, as the kernel does; a line below the table names each \
volume and drive with failures in the interval, and the daemon's log has the reasons.

The row of a volume or client counts I/Os as clients sent them: an I/O that was split counts once \
there, and once on each drive that it touched. A volume's %util is that of its busiest drive. The row \
of a hardware queue counts the I/Os that completed through it, as they were before merging.";

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatRow {
    /// Name of the drive or volume; `DRIVE:N` for a queue, `client-N` for a client.
    pub name: String,
    /// Kind of the row: `volume`, `drive`, `queue` or `client`.
    pub kind: &'static str,
    pub volume: String,
    pub seconds: f64,
    pub read: Columns,
    pub write: Columns,
    pub discard: Columns,
    pub flush: Columns,
    pub aqu_sz: f64,
    pub util: f64,
    pub in_flight: u64,
    pub tags_in_use: u32,
    /// I/Os that failed since the daemon began to serve.
    pub failed: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub driver: BTreeMap<String, u64>,
}

impl StatRow {
    pub fn is_busy(&self) -> bool {
        let ops = [&self.read, &self.write, &self.discard, &self.flush];
        self.in_flight > 0 || ops.iter().any(|op| op.ios > 0 || op.merges > 0)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Columns {
    /// Number of completed I/Os; merged I/Os are counted one by one.
    pub ios: u64,
    pub bytes: u64,
    pub merges: u64,
    pub errors: u64,
    /// Requests per second, after merging.
    pub per_second: f64,
    pub kib_per_second: f64,
    pub merged_per_second: f64,
    pub merged_percent: f64,
    pub await_ms: f64,
    pub request_kib: f64,
    pub p99_ms: f64,
}

#[derive(Debug, Default)]
struct OpSums {
    ios: u64,
    bytes: u64,
    merges: u64,
    errors: u64,
    total: Snapshot,
    service_ns: u64,
}

/// Returns the statistics for the time between two reports of a daemon, as rows. The row of each
/// volume is followed by the rows of its drives, their queues, and its clients. Without an earlier
/// report, the rows cover the time since the daemon's start.
pub fn rows(now: &Report, before: Option<&Report>) -> Vec<StatRow> {
    let seconds = now.seconds_since(before);
    let mut rows = Vec::new();
    let mut drives_of: HashMap<&str, Vec<&Drive>> = HashMap::new();
    now.drives.iter().for_each(|drive| drives_of.entry(&drive.volume).or_default().push(drive));
    let earlier_drives = before.iter().flat_map(|before| &before.drives);
    let earlier_drives: HashMap<&str, &Drive> =
        earlier_drives.map(|drive| (drive.name.as_str(), drive)).collect();
    let earlier_volumes = before.iter().flat_map(|before| &before.volumes);
    let earlier_volumes: HashMap<&str, &Volume> =
        earlier_volumes.map(|volume| (volume.name.as_str(), volume)).collect();
    for volume in &now.volumes {
        let row = |kind, name: &str, now: &[OpCounts], before: Option<&Vec<OpCounts>>| {
            let before = before.map_or(&[][..], |ops| ops);
            RowOps { now, before, seconds }.row(kind, &volume.name, name)
        };
        let drives = drives_of.remove(volume.name.as_str()).unwrap_or_default();
        let earlier_of = |drive: &Drive| earlier_drives.get(drive.name.as_str()).copied();
        let of_drive = |drive: &&Drive| {
            let earlier = earlier_of(drive);
            StatRow {
                in_flight: drive.in_flight,
                tags_in_use: drive.tags_in_use,
                driver: driver_since(drive, earlier),
                ..row("drive", &drive.name, &drive.ops, earlier.map(|earlier| &earlier.ops))
            }
        };
        let of_drives: Vec<StatRow> = drives.iter().map(of_drive).collect();
        let earlier = earlier_volumes.get(volume.name.as_str()).copied();
        rows.push(StatRow {
            util: of_drives.iter().map(|row| row.util).fold(0.0, f64::max),
            in_flight: of_drives.iter().map(|row| row.in_flight).sum(),
            tags_in_use: of_drives.iter().map(|row| row.tags_in_use).sum(),
            ..row("volume", &volume.name, &volume.ops, earlier.map(|earlier| &earlier.ops))
        });
        rows.extend(of_drives);
        for drive in drives {
            let earlier = earlier_of(drive);
            for queue in &drive.queues {
                let of = |earlier: &&report::Queue| earlier.queue == queue.queue;
                let earlier = earlier.and_then(|e| e.queues.iter().find(of)).map(|e| &e.ops);
                let name = format!("{}:{}", drive.name, queue.queue);
                rows.push(row("queue", &name, &queue.ops, earlier));
            }
        }
        for client in &volume.clients {
            let of = |earlier: &&report::Client| earlier.client == client.client;
            let earlier = earlier.and_then(|e| e.clients.iter().find(of)).map(|e| &e.ops);
            let name = format!("client-{}", client.client);
            rows.push(row("client", &name, &client.ops, earlier));
        }
    }
    rows
}

/// Operation counters of one row's volume, drive, queue or client, now and in the earlier report.
struct RowOps<'a> {
    now: &'a [OpCounts],
    before: &'a [OpCounts],
    seconds: f64,
}

impl RowOps<'_> {
    fn row(&self, kind: &'static str, volume: &str, name: &str) -> StatRow {
        let seconds = self.seconds;
        let (read, write) = (self.sum(&[Op::Read]), self.sum(&[Op::Write]));
        let (discard, flush) = (self.sum(&[Op::Discard, Op::WriteZeroes]), self.sum(&[Op::Flush]));
        let all = [&read, &write, &discard, &flush];
        let total_ns: u64 = all.iter().map(|sum| sum.total.sum_ns()).sum();
        let service_ns: u64 = all.iter().map(|sum| sum.service_ns).sum();
        StatRow {
            name: name.to_owned(),
            kind,
            volume: volume.to_owned(),
            seconds,
            aqu_sz: total_ns as f64 / 1e9 / seconds,
            util: (service_ns as f64 / 1e7 / seconds).min(100.0),
            in_flight: 0,
            tags_in_use: 0,
            failed: self.now.iter().map(|op| op.errors).sum(),
            read: read.columns(seconds),
            write: write.columns(seconds),
            discard: discard.columns(seconds),
            flush: flush.columns(seconds),
            driver: BTreeMap::new(),
        }
    }

    fn sum(&self, wanted: &[Op]) -> OpSums {
        let mut sum = OpSums::default();
        for op in self.now.iter().filter(|op| wanted.iter().any(|one| one.name() == op.op)) {
            let earlier = self.before.iter().find(|earlier| earlier.op == op.op);
            sum.add(op, earlier.unwrap_or(&OpCounts::default()));
        }
        sum
    }
}

fn driver_since(drive: &Drive, earlier: Option<&Drive>) -> BTreeMap<String, u64> {
    let before =
        |name: &str| earlier.and_then(|drive| drive.driver.get(name)).copied().unwrap_or(0);
    let since = |(name, now): (&String, &u64)| (name.clone(), now.saturating_sub(before(name)));
    drive.driver.iter().map(since).collect()
}

impl OpSums {
    fn add(&mut self, now: &OpCounts, before: &OpCounts) {
        let grown = |of: fn(&OpCounts) -> u64| of(now).saturating_sub(of(before));
        self.ios += grown(|op| op.ios);
        self.bytes += grown(|op| op.bytes);
        self.merges += grown(|op| op.stages.as_ref().map_or(0, |stages| stages.merges));
        self.errors += grown(|op| op.errors);
        let since = Snapshot::from(&now.total).since(&Snapshot::from(&before.total));
        self.total.merge(&since);
        self.service_ns += grown(|op| op.stages.as_ref().map_or(0, |stages| stages.service.sum_ns));
    }

    fn columns(&self, seconds: f64) -> Columns {
        // A merge is counted when it happens and an I/O when it ends, so an interval may have more
        // merges than I/Os.
        let requests = self.ios.saturating_sub(self.merges);
        let kib = self.bytes as f64 / 1024.0;
        let share = |part: f64, whole: u64| if whole == 0 { 0.0 } else { part / whole as f64 };
        Columns {
            ios: self.ios,
            bytes: self.bytes,
            merges: self.merges,
            errors: self.errors,
            per_second: requests as f64 / seconds,
            kib_per_second: kib / seconds,
            merged_per_second: self.merges as f64 / seconds,
            merged_percent: share(self.merges as f64 * 100.0, requests + self.merges),
            await_ms: share(self.total.sum_ns() as f64 / 1e6, self.total.count()),
            request_kib: share(kib, requests),
            p99_ms: self.total.quantile_ns(0.99) as f64 / 1e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::report::{OpStages, TimeHistogram, Volume};

    fn op(name: &str, ios: u64, merges: u64, sum_ns: u64) -> OpCounts {
        let times =
            |sum_ns| TimeHistogram { sum_ns, max_ns: 1 << 30, buckets: vec![(1 << 20, ios)] };
        OpCounts {
            op: name.to_owned(),
            ios,
            bytes: ios * 4096,
            errors: 0,
            total: times(sum_ns),
            stages: Some(OpStages { merges, service: times(sum_ns / 2), ..OpStages::default() }),
        }
    }

    fn report(uptime_s: u64, ops: &[Vec<OpCounts>]) -> Report {
        let names = ["d0", "d1"];
        let drive = |(name, ops): (&&str, &Vec<OpCounts>)| Drive {
            name: (*name).to_owned(),
            volume: "v".to_owned(),
            ops: ops.clone(),
            ..Drive::default()
        };
        Report {
            uptime_ns: uptime_s * 1_000_000_000,
            drives: names.iter().zip(ops).map(drive).collect(),
            volumes: vec![Volume { name: "v".to_owned(), ..Volume::default() }],
            ..Report::default()
        }
    }

    #[test]
    fn an_interval_is_the_difference_of_two_reports() {
        let before = report(10, &[vec![op("read", 100, 0, 1_000_000)]]);
        let now = report(12, &[vec![op("read", 300, 50, 1_001_000_000)]]);
        let rows = rows(&now, Some(&before));
        assert_eq!((rows.len(), rows[0].kind, rows[1].kind), (2, "volume", "drive"));
        let read = &rows[1].read;
        assert_eq!((read.ios, read.bytes, read.merges), (200, 200 * 4096, 50));
        assert_eq!((read.per_second, read.merged_per_second), (75.0, 25.0));
        assert_eq!((read.merged_percent, read.kib_per_second), (25.0, 400.0));
        assert_eq!((read.await_ms, read.request_kib), (5.0, 800.0 / 150.0));
        assert!((read.p99_ms - 1.1).abs() < 0.1, "{}", read.p99_ms);
        assert_eq!((rows[1].aqu_sz, rows[1].util), (0.5, 25.0));
    }

    #[test]
    fn volume_is_its_clients_and_as_busy_as_its_busiest_drive() {
        let ended = |op: OpCounts| OpCounts { stages: None, ..op };
        let ops = [vec![op("write", 10, 0, 1_000)], vec![op("write", 30, 0, 8_000_000_000)]];
        let mut now = report(1, &ops);
        now.volumes[0].ops = vec![ended(op("write", 20, 0, 8_000_000_000))];
        now.volumes[0].clients = vec![
            report::Client { client: 1, ops: vec![ended(op("write", 5, 0, 1))] },
            report::Client { client: 7, ops: vec![ended(op("write", 15, 0, 1))] },
        ];
        now.drives[1].queues = vec![report::Queue {
            queue: 3,
            ops: vec![ended(op("write", 30, 0, 1))],
            ..report::Queue::default()
        }];
        let rows = rows(&now, None);
        let found: Vec<_> = rows
            .iter()
            .map(|row| (row.kind, row.name.as_str(), row.volume.as_str(), row.write.ios))
            .collect();
        assert_eq!(
            found,
            [
                ("volume", "v", "v", 20),
                ("drive", "d0", "v", 10),
                ("drive", "d1", "v", 30),
                ("queue", "d1:3", "v", 30),
                ("client", "client-1", "v", 5),
                ("client", "client-7", "v", 15),
            ]
        );
        assert_eq!((rows[0].util, rows[1].util < 1.0), (100.0, true));
        assert!((rows[0].aqu_sz - 8.0).abs() < 0.01);
        let mut later = now.clone();
        later.uptime_ns *= 2;
        later.volumes[0].clients[1].ops[0].ios += 4;
        let rows = super::rows(&later, Some(&now));
        assert_eq!((rows[0].write.ios, rows[4].write.ios, rows[5].write.ios), (0, 0, 4));
    }

    #[test]
    fn an_idle_interval_is_all_zeroes() {
        let same = report(5, &[vec![op("read", 7, 1, 9)]]);
        let rows = rows(&same, Some(&same));
        assert_eq!(rows[0].read, Columns::default());
        assert_eq!((rows[0].aqu_sz, rows[0].util), (0.0, 0.0));
    }
}
