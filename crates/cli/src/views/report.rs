//! What the counters of a daemon look like on the control socket.
//!
//! Plain data for serde, made by `serve` from the layer's snapshots and read back by the client
//! verbs. Counters only grow while the daemon runs, so a reader takes the difference of two reports
//! for what came in between. Histograms are sent as the buckets that hold something: pairs of the
//! smallest value of a bucket in nanoseconds and its count, eight buckets an octave.
//! Fields may be added; whoever reads ignores those that it does not know.

use millrace_block::{
    DiskCounter, Op, OpSnapshot, SECTOR_SHIFT, Snapshot, StatsSnapshot, TenantSnapshot,
};
use millrace_exports::nbd::ServerStats;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Index;
use std::path::PathBuf;

use super::caches::CacheCounts;
use super::groups::GroupCounts;
use super::guests::GuestThread;
use super::settings::Group;

/// The answer to `stats`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// The daemon itself.
    pub daemon: DaemonIdentity,
    /// How long the daemon serves, in nanoseconds.
    pub uptime_ns: u64,
    /// Drives, in the order of the volumes.
    pub drives: Vec<Drive>,
    /// Volumes.
    pub volumes: Vec<Volume>,
    /// Numbers of idle volumes, drives and exports that are left out, where there are many.
    #[serde(skip_serializing_if = "IdleCounts::is_none")]
    pub idle: IdleCounts,
    /// Groups: the default one, those of the configuration, those of clients.
    pub groups: Vec<Group>,
    /// What they did, in the same order.
    pub group_counts: Vec<GroupCounts>,
    /// The caches of volumes that have one.
    pub caches: Vec<CacheCounts>,
    /// Volumes whose caches were dirty when an earlier daemon ended, until that is acknowledged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unacknowledged: Vec<String>,
    /// Processor time of all threads.
    pub processor: ProcessorTime,
    /// Exports.
    pub exports: Vec<Export>,
    /// The NBD server.
    pub server: Server,
    /// I/O threads of exports to virtual machines.
    pub guests: Vec<GuestThread>,
}

/// The daemon that answers, and when.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DaemonIdentity {
    /// Name of its host.
    pub host: String,
    /// Version of its program.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Time of day there, in milliseconds since 1970.
    pub unix_ms: u64,
}

/// Volumes that have done nothing since the daemon began, with their drives and exports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdleCounts {
    /// Volumes.
    pub volumes: usize,
    /// Their drives.
    pub drives: usize,
    /// Exports of them that had no errors.
    pub exports: usize,
}

impl IdleCounts {
    /// Returns true if nothing is left out.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == IdleCounts::default()
    }
}

/// Processor time of the daemon's threads that run now, added up, so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessorTime {
    /// Time on a processor, in nanoseconds.
    pub ran_ns: u64,
    /// Time in which a thread was ready to run and had no processor, in nanoseconds.
    pub waited_ns: u64,
}

/// The answer to `trace-status` and `trace-stop`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceStatus {
    /// Events in the files.
    pub events: u64,
    /// Events for which there was no room.
    pub dropped: u64,
    /// The files, once it has ended.
    pub files: Vec<PathBuf>,
}

/// A drive.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drive {
    /// Its name.
    pub name: String,
    /// The volume that it belongs to.
    pub volume: String,
    /// Its size.
    pub size_bytes: u64,
    /// I/Os in its queues or in the drive now.
    pub in_flight: u64,
    /// Tags in use now; of a set that it shares with other drives, by all of them.
    pub tags_in_use: u32,
    /// The order in which what waits goes to it: `none` or `deadline`.
    pub scheduler: String,
    /// What it was at the start.
    pub scheduler_configured: String,
    /// Lists of I/Os that wait for the drive's worker now.
    pub waiting: u64,
    /// Why it is not whole now, in words; such as connections to its server that are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Requests that it failed in the last minute.
    pub failed_last_minute: u64,
    /// What it did so far.
    pub counts: Counts,
    /// By operation.
    pub ops: Vec<OpCounts>,
    /// By hardware queue: those through which anything went.
    pub queues: Vec<Queue>,
    /// What its driver counts of its own, by name; such as `registered` of file drives, reads and
    /// writes of memory that was registered with the kernel.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub driver: BTreeMap<String, u64>,
}

/// A hardware queue of a drive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Queue {
    /// Its number.
    pub queue: u16,
    /// Requests handed to the driver through it.
    pub requests: u64,
    /// Batches in which they were: those of 1, 2 to 3, 4 to 7, ... 256 and more.
    pub batches: Vec<u64>,
    /// I/Os that came back through it, by operation.
    pub ops: Vec<OpTotals>,
}

/// I/Os of one operation that ended, so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpTotals {
    /// Its name.
    pub op: String,
    /// I/Os.
    pub ios: u64,
    /// Bytes of their ranges.
    pub bytes: u64,
    /// Those that failed.
    pub errors: u64,
    /// From submission to completion.
    pub total: Times,
}

/// What happened in a drive's queues so far: a key for each counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "BTreeMap<String, u64>")]
pub struct Counts(pub [u64; DiskCounter::ALL.len()]);

/// One operation on a drive, so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpCounts {
    /// Its name.
    pub op: String,
    /// I/Os completed.
    pub ios: u64,
    /// Bytes of their ranges.
    pub bytes: u64,
    /// Those that failed.
    pub errors: u64,
    /// Those that were merged into the request of another.
    pub merges: u64,
    /// Time before they had a place in the layer (btt's Q2G).
    pub q2g: Times,
    /// Time in a plug (G2I).
    pub g2i: Times,
    /// Time in a software queue, or waiting for a tag (I2D).
    pub i2d: Times,
    /// Time in the layer before the driver had them: the three together.
    pub queue: Times,
    /// Time in the drive (D2C).
    pub service: Times,
    /// All of it (Q2C).
    pub total: Times,
}

/// A histogram.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Times {
    /// All added up.
    pub sum_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Smallest value and count of each bucket that holds something.
    pub buckets: Vec<(u64, u64)>,
}

/// A volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes of its drives that it does not have.
    pub unused_bytes: u64,
    /// Which threads serve its drives, as configurations name the mode.
    pub serving: String,
    /// Its drives by name.
    pub drives: Vec<String>,
    /// I/Os of its clients, as they saw them: before splitting.
    pub ops: Vec<OpTotals>,
    /// I/Os by client, before splitting, too.
    pub clients: Vec<Client>,
}

/// What a client of a volume got.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Client {
    /// Its number, as in traces. A connection may get that of one that is gone, whose counts it
    /// continues.
    pub client: u16,
    /// By operation: those that it used.
    pub ops: Vec<OpTotals>,
}

/// An export.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// Its volume.
    pub volume: String,
    /// Nobody may write.
    pub read_only: bool,
    /// Requests that failed because of its drives.
    pub errors: u64,
    /// The last of these failures, in words.
    pub last_error: String,
}

/// The NBD server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Value", into = "Value")]
pub struct Server {
    /// Its counters.
    pub stats: ServerStats,
    /// Bytes of payload memory of all kinds that lay in huge pages in the last ten seconds.
    pub huge_page_bytes: u64,
}

impl From<Server> for Value {
    fn from(mut server: Server) -> Value {
        let mut json = json!({"huge_page_bytes": server.huge_page_bytes});
        for counter in ServerStats::ROWS {
            let keys = counter.pointer.split('/').skip(1);
            *keys.fold(&mut json, |at, key| &mut at[key]) =
                json!((counter.field)(&mut server.stats));
        }
        json
    }
}

impl From<Value> for Server {
    fn from(json: Value) -> Server {
        let at = |pointer| json.pointer(pointer).and_then(Value::as_u64).unwrap_or_default();
        let huge_page_bytes = at("/huge_page_bytes");
        let mut stats = ServerStats::default();
        ServerStats::ROWS.iter().for_each(|one| *(one.field)(&mut stats) = at(one.pointer));
        Server { stats, huge_page_bytes }
    }
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
    /// What a snapshot says of an operation.
    pub fn new(op: Op, stats: &OpSnapshot) -> OpCounts {
        OpCounts {
            op: op.name().to_owned(),
            ios: stats.ios,
            bytes: stats.sectors << SECTOR_SHIFT,
            errors: stats.errors,
            merges: stats.merges,
            q2g: Times::from(&stats.q2g),
            g2i: Times::from(&stats.g2i),
            i2d: Times::from(&stats.i2d),
            queue: Times::from(&stats.queue),
            service: Times::from(&stats.service),
            total: Times::from(&stats.total),
        }
    }
}

impl Queue {
    /// What a snapshot says of a queue.
    pub fn new(queue: u16, stats: &StatsSnapshot) -> Queue {
        let ops = Op::ALL.into_iter().zip(&stats.ops).filter(|(_, op)| op.ios > 0);
        let ended = |(op, stats): (Op, &OpSnapshot)| OpTotals {
            op: op.name().to_owned(),
            ios: stats.ios,
            bytes: stats.sectors << SECTOR_SHIFT,
            errors: stats.errors,
            total: Times::from(&stats.total),
        };
        let ops = ops.map(ended).collect();
        Queue { queue, requests: stats.requests(), batches: stats.batches.to_vec(), ops }
    }
}

impl Drive {
    /// I/Os that failed so far.
    pub fn failed(&self) -> u64 {
        self.ops.iter().map(|op| op.errors).sum()
    }
}

impl OpTotals {
    /// What a snapshot says of the operations that were used.
    pub fn all(stats: &TenantSnapshot) -> Vec<OpTotals> {
        let ops = Op::ALL.into_iter().zip(&stats.ops).filter(|(_, op)| op.ios > 0);
        ops.map(|(op, stats)| OpTotals {
            op: op.name().to_owned(),
            ios: stats.ios,
            bytes: stats.sectors << SECTOR_SHIFT,
            errors: stats.errors,
            total: Times::from(&stats.total),
        })
        .collect()
    }
}

impl From<&OpTotals> for OpCounts {
    /// What is known of it.
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

impl From<&Snapshot> for Times {
    fn from(snapshot: &Snapshot) -> Times {
        let buckets = snapshot.buckets().collect();
        Times { sum_ns: snapshot.sum_ns(), max_ns: snapshot.max_ns(), buckets }
    }
}

impl From<&Times> for Snapshot {
    fn from(times: &Times) -> Snapshot {
        Snapshot::from_parts(&times.buckets, times.sum_ns, times.max_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_value;

    #[test]
    fn counters_of_the_server_are_read_from_where_they_are_written() {
        let mut server = Server { huge_page_bytes: 99, ..Server::default() };
        for (number, counter) in (1..).zip(ServerStats::ROWS) {
            *(counter.field)(&mut server.stats) = number;
        }
        let json = json!(server);
        assert_eq!((&json["connections"]["refused"], &json["requests"]), (&json!(2), &json!(6)));
        assert_eq!(from_value::<Server>(json).unwrap(), server);
        assert_eq!(from_value::<Server>(json!({})).unwrap(), Server::default());
    }

    #[test]
    fn counts_of_another_version_are_read_as_far_as_their_names_are_known() {
        let mut counts = Counts(std::array::from_fn(|counter| counter as u64 + 1));
        let mut text = json!(counts);
        assert_eq!(from_value::<Counts>(text.clone()).unwrap(), counts);
        text["later"] = json!(7);
        text.as_object_mut().unwrap().remove("parts");
        counts.0[DiskCounter::Parts as usize] = 0;
        assert_eq!(from_value::<Counts>(text).unwrap(), counts);
    }
}
