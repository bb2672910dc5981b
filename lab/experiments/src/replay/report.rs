//! `Report`: what a replay did, as printed and as `--json` gives it.
//!
//! Plain data; units are in the names. Made by tally.rs.

use millrace_block::Snapshot;
use serde::Serialize;

use super::series::Series;

/// Latencies in nanoseconds. Known to an eighth (the width of a bucket), mean and maximum exactly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Number of samples.
    pub samples: u64,
    /// Mean.
    pub mean_ns: u64,
    /// Half of all were not slower.
    pub p50_ns: u64,
    /// 99 %.
    pub p99_ns: u64,
    /// 99.9 %.
    pub p999_ns: u64,
    /// The slowest.
    pub max_ns: u64,
}

impl Latency {
    /// Of a histogram; none if nothing was counted.
    #[must_use]
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

/// I/Os of one operation, and their latencies.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct OpReport {
    /// Its name.
    pub op: String,
    /// I/Os that ended.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, failed.
    pub errors: u64,
    /// Of these, durable by themselves.
    pub fua: u64,
    /// I/Os a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// Latencies in the trace, of those I/Os of which it tells.
    pub traced: Option<Latency>,
    /// From the submission of an I/O to its end.
    pub from_submission: Option<Latency>,
    /// From the time that the trace gives an I/O to its end; not with `afap`.
    pub from_due: Option<Latency>,
}

/// Delay of I/Os behind the times that the trace gives them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Lateness {
    /// Over all I/Os that were sent.
    pub all: Option<Latency>,
    /// I/Os that were sent more than 100 us after their time.
    pub over_100us: u64,
    /// More than 1 ms.
    pub over_1ms: u64,
    /// More than 10 ms.
    pub over_10ms: u64,
    /// More than 100 ms.
    pub over_100ms: u64,
    /// More than 1 s.
    pub over_1s: u64,
}

/// I/Os that waited before they were sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct WaitCounts {
    /// For one that they overlap.
    pub for_overlap: u64,
    /// Flushes: for writes before them.
    pub for_writes: u64,
    /// As many as may be were in flight, or the target had no room; not with `afap`.
    pub for_room: u64,
}

/// I/Os that were changed before they were sent, by change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct AdaptedIos {
    /// Made whole blocks.
    pub aligned: u64,
    /// Moved by `--fit`.
    pub moved: u64,
    /// Sent in several pieces.
    pub cut: u64,
    /// Durable writes that were sent as a write and a flush.
    pub fua_by_flush: u64,
    /// Durable writes that were sent as plain writes.
    pub fua_lost: u64,
}

/// I/Os of the trace that were left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// I/Os that lie behind the target's end.
    pub outside: u64,
    /// I/Os that are longer than the target.
    pub too_long: u64,
    /// I/Os without a length.
    pub empty: u64,
    /// The target takes no such operation: names, and how many.
    pub unsupported: Vec<(String, u64)>,
}

impl Skipped {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        let unsupported: u64 = self.unsupported.iter().map(|(_, ios)| ios).sum();
        self.outside + self.too_long + self.empty + unsupported
    }
}

/// I/Os of one lane.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LaneReport {
    /// The target.
    pub target: String,
    /// I/Os that ended.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Reason why a replay ended before the trace did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum StopReason {
    /// Somebody wanted it to end.
    Interrupted,
    /// The time that it was given was over.
    Runtime,
    /// The replay has done the number of I/Os that its settings allow.
    Limit,
    /// The trace could not be read on, for this reason.
    Trace(String),
    /// An I/O of the trace needs a decision before it can be replayed: which, and which choices
    /// there are.
    Undecided(String),
    /// The target broke, for this reason.
    Target(String),
}

/// Number of I/Os by outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// I/Os taken from the trace: those that ended, were left out, or were not sent or answered.
    pub traced_ios: u64,
    /// I/Os that ended.
    pub ios: u64,
    /// Of these, failed.
    pub errors: u64,
    /// Text of the first of these errors.
    pub first_error: Option<String>,
    /// I/Os that were taken and not sent, or not wholly, since the replay was stopped.
    pub unsent: u64,
    /// I/Os that were sent and not answered when the replay ended: the target may have done them,
    /// or not.
    pub unanswered: u64,
}

/// Result of a replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Times of the trace were divided by this; not given for `afap`.
    pub speed: Option<f64>,
    /// I/Os in flight at most.
    pub iodepth: u32,
    /// Length of the replay in seconds, from the first I/O's time to the last one's end.
    pub seconds: f64,
    /// Arrival of the last I/O that was taken from the trace, since its first, in the trace's time.
    pub trace_seconds: f64,
    /// Number of I/Os by outcome.
    #[serde(flatten)]
    pub counts: Counts,
    /// Each operation that there was.
    pub ops: Vec<OpReport>,
    /// Delay of I/Os behind their times in the trace; `None` with `afap`.
    pub lateness: Option<Lateness>,
    /// I/Os that waited.
    pub waited: WaitCounts,
    /// I/Os that were changed before they were sent.
    pub adapted: AdaptedIos,
    /// I/Os of the trace that were left out.
    pub skipped: Skipped,
    /// I/Os that ended, over time.
    pub series: Series,
    /// The times that the trace gives these I/Os, divided by the speed; not with `afap`.
    pub due_series: Option<Series>,
    /// Each target.
    pub targets: Vec<LaneReport>,
    /// Reason why the replay ended before the trace did; `None` if it did not.
    pub stopped: Option<StopReason>,
}
