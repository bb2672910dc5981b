//! Counters of a daemon on the control socket.
//!
//! Plain data for serde. Counters only grow while the daemon runs, so a reader takes the difference
//! of two reports. A histogram is a list of its non-empty buckets: pairs of a bucket's smallest
//! value in nanoseconds and its count, with eight buckets per power of two. Fields may be added:
//! readers ignore unknown ones.

use millrace_block::{
    DiskCounter, Op, OpSnapshot, SECTOR_SHIFT, Snapshot, StatsSnapshot, TenantOpSnapshot,
    TenantSnapshot,
};
use millrace_exports::nbd::ServerStats;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

use super::caches::CacheCounts;
use super::counter_json;
use super::groups::GroupCounts;
use super::guests::GuestThread;
use super::settings::GroupState;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    pub daemon: DaemonIdentity,
    pub uptime_ns: u64,
    pub drives: Vec<Drive>,
    pub volumes: Vec<Volume>,
    /// Number of idle volumes, drives and exports left out of this report, if there are many.
    #[serde(skip_serializing_if = "IdleCounts::is_none")]
    pub idle: IdleCounts,
    pub groups: Vec<GroupState>,
    /// Counters of the groups, in the order of `groups`.
    pub group_counts: Vec<GroupCounts>,
    pub caches: Vec<CacheCounts>,
    /// Volumes whose caches may have held unwritten data when an earlier daemon died. A volume is
    /// listed until a user acknowledges the loss.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unacknowledged: Vec<String>,
    pub processor: ProcessorTime,
    pub exports: Vec<Export>,
    pub server: Server,
    pub guests: Vec<GuestThread>,
}

impl Report {
    /// Returns the seconds since an earlier report, or since the daemon's start. Never returns 0.
    pub fn seconds_since(&self, before: Option<&Report>) -> f64 {
        let since_ns = before.map_or(0, |before| before.uptime_ns);
        self.uptime_ns.saturating_sub(since_ns).max(1) as f64 / 1e9
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DaemonIdentity {
    pub host: String,
    pub version: String,
    pub pid: u32,
    pub unix_ms: u64,
}

/// Number of volumes that had no I/O since the daemon's start, and number of their drives and
/// exports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdleCounts {
    pub volumes: usize,
    pub drives: usize,
    pub exports: usize,
}

impl IdleCounts {
    pub fn is_none(&self) -> bool {
        *self == IdleCounts::default()
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessorTime {
    pub ran_ns: u64,
    /// Time spent runnable without a CPU, in nanoseconds.
    pub waited_ns: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceStatus {
    pub events: u64,
    pub dropped: u64,
    pub files: Vec<PathBuf>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drive {
    pub name: String,
    pub volume: String,
    pub size_bytes: u64,
    pub in_flight: u64,
    /// Number of tags in use now. If drives share a tag set, the tags in use by all these drives.
    pub tags_in_use: u32,
    pub scheduler: String,
    /// Scheduler of the drive when the daemon was started.
    pub scheduler_configured: String,
    pub waiting: u64,
    /// Present problem of the drive as text, such as lost connections; `None` if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    pub failed_last_minute: u64,
    /// Counters of the drive's queues. The keys are names of [`DiskCounter`]s.
    pub counts: BTreeMap<String, u64>,
    pub ops: Vec<OpCounts>,
    /// Counters by hardware queue, for queues that were used.
    pub queues: Vec<Queue>,
    /// Counters of the driver by name. For file drives, `registered` counts reads and writes with
    /// memory that is registered with the kernel.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub driver: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Queue {
    pub queue: u16,
    pub requests: u64,
    /// Histogram of batch sizes: 1, 2 to 3, 4 to 7, ... 256 and more requests.
    pub batches: Vec<u64>,
    pub ops: Vec<OpCounts>,
}

/// Counters of the I/Os with one operation, such as reads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpCounts {
    pub op: String,
    pub ios: u64,
    pub bytes: u64,
    pub errors: u64,
    /// Total latency (btt's Q2C).
    pub total: TimeHistogram,
    /// Number of merges, and the times that I/Os spent in btt's stages. `None` for any object but a
    /// drive.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub stages: Option<OpStages>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpStages {
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
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimeHistogram {
    pub sum_ns: u64,
    pub max_ns: u64,
    /// Non-empty buckets: the smallest value in nanoseconds, and the count.
    pub buckets: Vec<(u64, u64)>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Volume {
    pub name: String,
    pub size_bytes: u64,
    /// Number of bytes on the volume's drives that are not part of the volume.
    pub unused_bytes: u64,
    pub serving: String,
    pub drives: Vec<String>,
    /// I/Os of the volume's clients, counted before splitting, by operation.
    pub ops: Vec<OpCounts>,
    pub clients: Vec<Client>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Client {
    /// Number of the client, as in traces. A later connection may reuse the number and continue its
    /// counters.
    pub client: u16,
    pub ops: Vec<OpCounts>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Export {
    pub name: String,
    pub volume: String,
    pub read_only: bool,
    pub errors: u64,
    pub last_error: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Server {
    #[serde(flatten, with = "counter_json")]
    pub stats: ServerStats,
    /// Number of bytes of payload memory that are in huge pages. The value may be up to ten seconds
    /// old.
    pub huge_page_bytes: u64,
}

impl OpCounts {
    fn new(op: Op, ios: u64, sectors: u64, total: &Snapshot) -> OpCounts {
        let (op, bytes, total) = (op.name().to_owned(), sectors << SECTOR_SHIFT, total.into());
        OpCounts { op, ios, bytes, total, ..OpCounts::default() }
    }

    pub fn of_drive(op: Op, stats: &OpSnapshot) -> OpCounts {
        let stages = OpStages {
            merges: stats.merges,
            q2g: TimeHistogram::from(&stats.q2g),
            g2i: TimeHistogram::from(&stats.g2i),
            i2d: TimeHistogram::from(&stats.i2d),
            queue: TimeHistogram::from(&stats.queue),
            service: TimeHistogram::from(&stats.service),
        };
        let all = OpCounts::new(op, stats.ios, stats.sectors, &stats.total);
        OpCounts { errors: stats.errors, stages: Some(stages), ..all }
    }

    /// Returns the operations that a volume, client or group has completed.
    pub fn of_tenant(stats: &TenantSnapshot) -> Vec<OpCounts> {
        let ops = Op::ALL.into_iter().zip(&stats.ops).filter(|(_, op)| op.ios > 0);
        let counts = |(op, one): (Op, &TenantOpSnapshot)| OpCounts {
            errors: one.errors,
            ..OpCounts::new(op, one.ios, one.sectors, &one.total)
        };
        ops.map(counts).collect()
    }
}

impl Queue {
    pub fn new(queue: u16, stats: &StatsSnapshot) -> Queue {
        let ops = Op::ALL.into_iter().zip(&stats.ops).filter(|(_, op)| op.ios > 0);
        let ops = ops.map(|(op, one)| OpCounts { stages: None, ..OpCounts::of_drive(op, one) });
        let (requests, batches) = (stats.requests(), stats.batches.to_vec());
        Queue { queue, requests, batches, ops: ops.collect() }
    }
}

impl Drive {
    pub fn failed(&self) -> u64 {
        self.ops.iter().map(|op| op.errors).sum()
    }

    pub fn count(&self, counter: DiskCounter) -> u64 {
        self.counts.get(counter.name()).copied().unwrap_or_default()
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
        let counts = json!({ "later": 7, "queued": 3 });
        let drive = from_value::<Drive>(json!({ "counts": counts })).unwrap();
        assert_eq!((drive.count(DiskCounter::Queued), drive.count(DiskCounter::Parts)), (3, 0));
    }

    #[test]
    fn only_ops_of_drives_have_stages_in_json() {
        let plain = OpCounts { op: "read".into(), ios: 3, ..OpCounts::default() };
        assert!(json!(plain).get("merges").is_none());
        let stages = OpStages { merges: 2, ..OpStages::default() };
        let staged = OpCounts { stages: Some(stages), ..plain };
        let text = json!(staged);
        assert_eq!((&text["merges"], &text["i2d"]["sum_ns"]), (&json!(2), &json!(0)));
        assert_eq!(from_value::<OpCounts>(text).unwrap(), staged);
    }
}
