//! Counters of a daemon on the control socket.
//!
//! Plain data for serde: `serve` fills it from the block layer's snapshots; the client verbs read
//! it back. Counters only grow while the daemon runs, so a reader takes the difference of two
//! reports. A histogram is a list of its non-empty buckets: pairs of a bucket's smallest value in
//! nanoseconds and its count, with eight buckets per power of two. Fields may be added: readers
//! ignore unknown ones.

use millrace_block::{
    DiskCounter, Op, OpSnapshot, SECTOR_SHIFT, Snapshot, StatsSnapshot, TenantSnapshot,
};
use millrace_exports::nbd::ServerStats;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::ops::Index;
use std::path::PathBuf;

use super::caches::CacheCounts;
use super::counter_json;
use super::groups::GroupCounts;
use super::guests::GuestThread;
use super::settings::GroupState;

/// Answer to `stats`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Identity of the daemon.
    pub daemon: DaemonIdentity,
    /// Time since the daemon began to serve, in nanoseconds.
    pub uptime_ns: u64,
    /// Drives, in the order of the volumes.
    pub drives: Vec<Drive>,
    /// Volumes.
    pub volumes: Vec<Volume>,
    /// Number of idle volumes, drives and exports left out of this report, if there are many.
    #[serde(skip_serializing_if = "IdleCounts::is_none")]
    pub idle: IdleCounts,
    /// Groups: the default one, those of the configuration, and those of clients.
    pub groups: Vec<GroupState>,
    /// Counters of the groups, in the same order.
    pub group_counts: Vec<GroupCounts>,
    /// Caches of the volumes that have one.
    pub caches: Vec<CacheCounts>,
    /// Volumes whose caches were dirty when an earlier daemon died, until a user acknowledges the
    /// loss.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unacknowledged: Vec<String>,
    /// CPU time of all threads.
    pub processor: ProcessorTime,
    /// Exports in the order of the configuration.
    pub exports: Vec<Export>,
    /// Counters of the NBD server.
    pub server: Server,
    /// I/O threads of exports to virtual machines.
    pub guests: Vec<GuestThread>,
}

impl Report {
    /// Returns the time since an earlier report, or since the daemon's start, which is never 0.
    pub fn seconds_since(&self, before: Option<&Report>) -> f64 {
        let since_ns = before.map_or(0, |before| before.uptime_ns);
        self.uptime_ns.saturating_sub(since_ns).max(1) as f64 / 1e9
    }
}

/// Daemon that answers, and the time of its answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DaemonIdentity {
    /// Name of the host that it runs on.
    pub host: String,
    /// Version of its program.
    pub version: String,
    /// Process ID of the daemon.
    pub pid: u32,
    /// Time of day on the host, in milliseconds since 1970.
    pub unix_ms: u64,
}

/// Number of volumes that had no I/O since the daemon's start, and number of their drives and
/// exports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdleCounts {
    /// Number of idle volumes.
    pub volumes: usize,
    /// Number of drives of these volumes.
    pub drives: usize,
    /// Number of exports of these volumes without errors.
    pub exports: usize,
}

impl IdleCounts {
    /// Returns true if nothing is left out.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == IdleCounts::default()
    }
}

/// CPU time of the daemon's current threads, summed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessorTime {
    /// Time spent running, in nanoseconds.
    pub ran_ns: u64,
    /// Time spent runnable without a CPU, in nanoseconds.
    pub waited_ns: u64,
}

/// Answer to `trace-status` and `trace-stop`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceStatus {
    /// Number of events written to the files.
    pub events: u64,
    /// Number of events dropped for lack of space in a ring.
    pub dropped: u64,
    /// Paths of the trace files, once the recording has ended.
    pub files: Vec<PathBuf>,
}

/// State and counters of a drive.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drive {
    /// Name of the drive.
    pub name: String,
    /// Name of its volume.
    pub volume: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Number of I/Os in the drive's queues or in the drive now.
    pub in_flight: u64,
    /// Number of tags in use now. If drives share a tag set, number of tags in use by all of them.
    pub tags_in_use: u32,
    /// Current scheduler, by its name in the configuration.
    pub scheduler: String,
    /// Scheduler at the start.
    pub scheduler_configured: String,
    /// Number of batches that wait for the drive's worker now.
    pub waiting: u64,
    /// Current trouble as text, such as lost connections to its server; `None` if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Number of requests that failed at the drive in the last minute.
    pub failed_last_minute: u64,
    /// Counters of its queues.
    pub counts: Counts,
    /// Counters by operation.
    pub ops: Vec<OpCounts>,
    /// Counters by hardware queue, for queues that were used.
    pub queues: Vec<Queue>,
    /// Counters of its driver by name, such as `registered` of file drives: reads and writes with
    /// memory registered with the kernel.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub driver: BTreeMap<String, u64>,
}

/// Counters of a hardware queue of a drive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Queue {
    /// Number of the queue.
    pub queue: u16,
    /// Number of requests passed to the driver through the queue.
    pub requests: u64,
    /// Histogram of batch sizes: 1, 2 to 3, 4 to 7, ... 256 and more requests.
    pub batches: Vec<u64>,
    /// I/Os completed through the queue, by operation.
    pub ops: Vec<OpTotals>,
}

/// Counters of ended I/Os of one operation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpTotals {
    /// Name of the operation.
    pub op: String,
    /// Number of I/Os.
    pub ios: u64,
    /// Total length in bytes of the ranges of these I/Os.
    pub bytes: u64,
    /// Number of I/Os that failed.
    pub errors: u64,
    /// Latency from submission to completion.
    pub total: TimeHistogram,
}

/// Counters of a drive's queues, with a key for each counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "BTreeMap<String, u64>")]
pub struct Counts(pub [u64; DiskCounter::ALL.len()]);

/// Counters of one operation on a drive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpCounts {
    /// Name of the operation.
    pub op: String,
    /// Number of I/Os completed.
    pub ios: u64,
    /// Total length in bytes of the ranges of these I/Os.
    pub bytes: u64,
    /// Number of I/Os that failed.
    pub errors: u64,
    /// Number of I/Os merged into another I/O's request.
    pub merges: u64,
    /// Time until the I/O gets a request (btt's Q2G).
    pub q2g: TimeHistogram,
    /// Time in a plug (btt's G2I).
    pub g2i: TimeHistogram,
    /// Time in a software queue or scheduler, or waiting for a tag (btt's I2D).
    pub i2d: TimeHistogram,
    /// Time in the block layer before dispatch to the driver: the sum of q2g, g2i and i2d.
    pub queue: TimeHistogram,
    /// Time in the drive (btt's D2C).
    pub service: TimeHistogram,
    /// Total latency (btt's Q2C).
    pub total: TimeHistogram,
}

/// Histogram of times.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimeHistogram {
    /// Sum of all times in nanoseconds.
    pub sum_ns: u64,
    /// Longest time in nanoseconds.
    pub max_ns: u64,
    /// Non-empty buckets: the smallest value in nanoseconds, and the count.
    pub buckets: Vec<(u64, u64)>,
}

/// State and counters of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Volume {
    /// Name of the volume.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Number of bytes of its drives that the volume does not use.
    pub unused_bytes: u64,
    /// Serving mode, by its name in the configuration.
    pub serving: String,
    /// Names of its drives.
    pub drives: Vec<String>,
    /// I/Os of the volume's clients, counted before splitting, by operation.
    pub ops: Vec<OpTotals>,
    /// I/Os of each client, counted before splitting.
    pub clients: Vec<Client>,
}

/// I/Os of a client on a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Client {
    /// Number of the client, as in traces. A later connection may reuse the number and continue its
    /// counters.
    pub client: u16,
    /// Counters of the operations that it used.
    pub ops: Vec<OpTotals>,
}

/// State and counters of an export.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Export {
    /// Name of the export.
    pub name: String,
    /// Name of its volume.
    pub volume: String,
    /// True if clients may not write.
    pub read_only: bool,
    /// Requests that failed because of its drives.
    pub errors: u64,
    /// Text of the last of these failures.
    pub last_error: String,
}

/// Counters of the NBD server, as one JSON object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Server {
    /// Counters of the server's threads and connections.
    #[serde(flatten, with = "counter_json")]
    pub stats: ServerStats,
    /// Payload memory in huge pages in bytes, measured in the last ten seconds.
    pub huge_page_bytes: u64,
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(DiskCounter::ALL.map(|counter| (counter.name(), self[counter])))
    }
}

impl From<BTreeMap<String, u64>> for Counts {
    fn from(counts: BTreeMap<String, u64>) -> Counts {
        let of = |counter: DiskCounter| counts.get(counter.name()).copied();
        Counts(DiskCounter::ALL.map(|counter| of(counter).unwrap_or_default()))
    }
}

impl Index<DiskCounter> for Counts {
    type Output = u64;

    fn index(&self, counter: DiskCounter) -> &u64 {
        &self.0[counter as usize]
    }
}

impl OpCounts {
    /// Converts the layer's snapshot of an operation.
    pub fn new(op: Op, stats: &OpSnapshot) -> OpCounts {
        OpCounts {
            op: op.name().to_owned(),
            ios: stats.ios,
            bytes: stats.sectors << SECTOR_SHIFT,
            errors: stats.errors,
            merges: stats.merges,
            q2g: TimeHistogram::from(&stats.q2g),
            g2i: TimeHistogram::from(&stats.g2i),
            i2d: TimeHistogram::from(&stats.i2d),
            queue: TimeHistogram::from(&stats.queue),
            service: TimeHistogram::from(&stats.service),
            total: TimeHistogram::from(&stats.total),
        }
    }
}

impl Queue {
    /// Converts the layer's snapshot of a hardware queue.
    pub fn new(queue: u16, stats: &StatsSnapshot) -> Queue {
        let ops = Op::ALL.into_iter().zip(&stats.ops).filter(|(_, op)| op.ios > 0);
        let ops =
            ops.map(|(op, one)| OpTotals::new(op, (one.ios, one.sectors, one.errors), &one.total));
        let (requests, batches) = (stats.requests(), stats.batches.to_vec());
        Queue { queue, requests, batches, ops: ops.collect() }
    }
}

impl Drive {
    /// Returns the number of I/Os that failed so far.
    pub fn failed(&self) -> u64 {
        self.ops.iter().map(|op| op.errors).sum()
    }
}

impl OpTotals {
    /// Converts the layer's counters of the operations that were used.
    pub fn all(stats: &TenantSnapshot) -> Vec<OpTotals> {
        let ops = Op::ALL.into_iter().zip(&stats.ops).filter(|(_, op)| op.ios > 0);
        ops.map(|(op, one)| OpTotals::new(op, (one.ios, one.sectors, one.errors), &one.total))
            .collect()
    }
    fn new(op: Op, (ios, sectors, errors): (u64, u64, u64), total: &Snapshot) -> OpTotals {
        let (op, bytes) = (op.name().to_owned(), sectors << SECTOR_SHIFT);
        OpTotals { op, ios, bytes, errors, total: TimeHistogram::from(total) }
    }
}

impl From<&OpTotals> for OpCounts {
    /// Leaves the times of the stages empty, because only drives measure them.
    fn from(ended: &OpTotals) -> OpCounts {
        OpCounts {
            op: ended.op.clone(),
            ios: ended.ios,
            bytes: ended.bytes,
            errors: ended.errors,
            total: ended.total.clone(),
            ..OpCounts::default()
        }
    }
}

impl From<&Snapshot> for TimeHistogram {
    fn from(snapshot: &Snapshot) -> TimeHistogram {
        let buckets = snapshot.buckets().collect();
        TimeHistogram { sum_ns: snapshot.sum_ns(), max_ns: snapshot.max_ns(), buckets }
    }
}

impl From<&TimeHistogram> for Snapshot {
    fn from(times: &TimeHistogram) -> Snapshot {
        Snapshot::from_parts(&times.buckets, times.sum_ns, times.max_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_exports::CounterTable as _;
    use serde_json::{from_value, json};

    #[test]
    fn counters_of_the_server_are_read_from_where_they_are_written() {
        let mut server = Server { huge_page_bytes: 99, ..Server::default() };
        for (number, counter) in (1..).zip(server.stats.fields()) {
            *counter = number;
        }
        let json = json!(server);
        assert_eq!((&json["connections"]["refused"], &json["requests"]), (&json!(2), &json!(6)));
        assert_eq!(from_value::<Server>(json).unwrap(), server);
        assert_eq!(from_value::<Server>(json!({})).unwrap(), Server::default());
    }

    #[test]
    fn counts_of_another_version_are_read_by_known_names() {
        let mut counts = Counts(std::array::from_fn(|counter| counter as u64 + 1));
        let mut text = json!(counts);
        assert_eq!(from_value::<Counts>(text.clone()).unwrap(), counts);
        text["later"] = json!(7);
        text.as_object_mut().unwrap().remove("parts");
        counts.0[DiskCounter::Parts as usize] = 0;
        assert_eq!(from_value::<Counts>(text).unwrap(), counts);
    }
}
