//! `Report`: results of a replay, for the printed report and for `--json`.
//!
//! The fields are plain data with units in their names. tally.rs fills them.
#![allow(missing_docs)] // Names of most fields and variants say what they are.

use millrace_block::Snapshot;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::series::ReplaySeries;

/// Latencies in nanoseconds. Percentiles are accurate to an eighth, the width of a histogram
/// bucket; mean and maximum are exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    pub samples: u64,
    pub mean_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
}

impl Latency {
    /// Computes mean, percentiles and maximum of a latency histogram; `None` if it is empty.
    pub fn of(snapshot: &Snapshot) -> Option<Latency> {
        (snapshot.count() > 0).then(|| Latency {
            samples: snapshot.count(),
            mean_ns: snapshot.mean_ns(),
            p50_ns: snapshot.quantile_ns(0.5),
            p99_ns: snapshot.quantile_ns(0.99),
            p999_ns: snapshot.quantile_ns(0.999),
            max_ns: snapshot.max_ns(),
        })
    }
}

/// Results of one kind of operation.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct OpReport {
    pub op: String,
    /// Number of I/Os that ended.
    pub ios: u64,
    pub bytes: u64,
    pub errors: u64,
    pub fua: u64,
    pub iops: f64,
    pub bytes_per_s: f64,
    /// Latencies recorded in the trace. I/Os without a recorded latency are left out.
    pub traced: Option<Latency>,
    /// Latencies from an I/O's submission to its completion.
    pub from_submission: Option<Latency>,
    /// Latencies from an I/O's due time to its completion. `None` for a replay as fast as possible,
    /// which has no due times.
    pub from_due: Option<Latency>,
}

/// Thresholds for late I/Os. Each entry has the threshold in nanoseconds, its key in JSON reports,
/// and its text in reports for users.
pub const LATE: [(u64, &str, &str); 5] = [
    (100_000, "over_100us", "100 us"),
    (1_000_000, "over_1ms", "1 ms"),
    (10_000_000, "over_10ms", "10 ms"),
    (100_000_000, "over_100ms", "100 ms"),
    (1_000_000_000, "over_1s", "1 s"),
];

/// Delays of I/Os: times from an I/O's due time to its submission.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Statistics of the delay from due time to submission, over all I/Os that were sent.
    pub all: Option<Latency>,
    /// Number of I/Os that were sent later than each threshold in [`LATE`].
    pub over: [u64; LATE.len()],
}

impl Serialize for Lateness {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1 + LATE.len()))?;
        map.serialize_entry("all", &self.all)?;
        for ((_, key, _), count) in LATE.iter().zip(&self.over) {
            map.serialize_entry(key, count)?;
        }
        map.end()
    }
}

/// Numbers of I/Os that waited before they were sent, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct WaitCounts {
    /// Number of I/Os that waited for an earlier I/O that they overlap.
    pub for_overlap: u64,
    /// Number of flushes that waited for writes before them.
    pub for_writes: u64,
    /// Number of I/Os that waited because the I/O depth was reached, or because the volume or
    /// server accepted no more. 0 for a replay as fast as possible.
    pub for_room: u64,
}

/// Numbers of I/Os that were changed before they were sent, by kind of change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct AdaptedIos {
    /// Number of I/Os that were extended to whole blocks of the target.
    pub aligned: u64,
    /// Number of I/Os whose address `--fit` changed.
    pub moved: u64,
    /// Number of I/Os sent in several pieces.
    pub cut: u64,
    /// Number of FUA writes that were sent as a write and a flush.
    pub fua_by_flush: u64,
    /// Number of FUA writes that were sent as plain writes, because the target cannot make them
    /// durable.
    pub fua_lost: u64,
}

/// Numbers of I/Os in the trace that were not replayed, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Number of I/Os that lie past the target's end.
    pub outside: u64,
    /// Number of I/Os whose length in bytes exceeds the target's size.
    pub too_long: u64,
    /// Number of I/Os without a length.
    pub empty: u64,
    /// Operations that the target does not support: name and number of I/Os.
    pub unsupported: Vec<(String, u64)>,
}

/// Results of one lane (a volume or server).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LaneReport {
    pub target: String,
    pub ios: u64,
    pub bytes: u64,
}

/// Reason why a replay ended before the end of its trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum StopReason {
    Interrupted,
    /// The replay's time limit was reached.
    Runtime,
    /// The replay's limit on the number of I/Os was reached.
    Limit,
    /// The rest of the trace could not be read. The field is the reason.
    Trace(String),
    /// An I/O of the trace cannot be replayed until the user decides how. The field is a text that
    /// names the I/O and the choices.
    Undecided(String),
    /// The target failed. The field is the reason.
    Target(String),
}

/// Counts of a replay's I/Os.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Number of I/Os taken from the trace. Includes I/Os that were skipped, not sent or not
    /// answered.
    pub traced_ios: u64,
    /// Number of I/Os that completed, with or without an error.
    pub ios: u64,
    /// Number of I/Os that completed with an error.
    pub errors: u64,
    pub first_error: Option<String>,
    /// Number of I/Os that were not yet sent, or only in part, when the replay was stopped.
    pub unsent: u64,
    /// Number of I/Os that the target had not answered when the replay ended. The target may or may
    /// not have done them.
    pub unanswered: u64,
}

/// Results of a replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Factor by which the replay is faster than the trace; `None` if as fast as possible.
    pub speed: Option<f64>,
    pub iodepth: u32,
    /// Length of the replay in seconds, from the due time of the first I/O to the last completion.
    pub seconds: f64,
    /// Time between the first and the last I/O taken from the trace, in seconds of the trace's
    /// clock.
    pub trace_seconds: f64,
    #[serde(flatten)]
    pub counts: Counts,
    /// Results of each kind of operation in the trace.
    pub ops: Vec<OpReport>,
    /// Delays of I/Os; `None` for a replay as fast as possible.
    pub lateness: Option<Lateness>,
    pub waited: WaitCounts,
    pub adapted: AdaptedIos,
    pub skipped: Skipped,
    /// Number of I/Os that ended, over time.
    pub series: ReplaySeries,
    /// Number of I/Os that ended, by the interval in which they became due. `None` for a replay as
    /// fast as possible.
    pub due_series: Option<ReplaySeries>,
    pub targets: Vec<LaneReport>,
    /// Reason why the replay ended before the trace; `None` if the whole trace was replayed.
    pub stopped: Option<StopReason>,
}
