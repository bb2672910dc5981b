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
    /// Mean latency in nanoseconds.
    pub mean_ns: u64,
    /// Median latency in nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile of latency in nanoseconds.
    pub p99_ns: u64,
    /// 99.9th percentile of latency in nanoseconds.
    pub p999_ns: u64,
    /// Largest latency in nanoseconds.
    pub max_ns: u64,
}

impl Latency {
    /// Returns the latencies of a histogram; `None` if the histogram is empty.
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
    /// Name of the operation.
    pub op: String,
    /// Number of I/Os that ended.
    pub ios: u64,
    /// Number of bytes of these I/Os.
    pub bytes: u64,
    /// Number of these I/Os that failed.
    pub errors: u64,
    /// Number of these I/Os that were durable writes (FUA).
    pub fua: u64,
    /// I/Os a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// Latencies in the trace, of the I/Os whose latency the trace records.
    pub traced: Option<Latency>,
    /// Latencies from the submission of an I/O to its end.
    pub from_submission: Option<Latency>,
    /// Latencies from the time that the trace gives an I/O to its end; `None` with `afap`.
    pub from_due: Option<Latency>,
}

/// Delay of I/Os behind the times that the trace gives them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Lateness {
    /// Delays of all I/Os that were sent.
    pub all: Option<Latency>,
    /// Number of I/Os that were sent more than 100 us after their time.
    pub over_100us: u64,
    /// Number of I/Os that were sent more than 1 ms after their time.
    pub over_1ms: u64,
    /// Number of I/Os that were sent more than 10 ms after their time.
    pub over_10ms: u64,
    /// Number of I/Os that were sent more than 100 ms after their time.
    pub over_100ms: u64,
    /// Number of I/Os that were sent more than 1 s after their time.
    pub over_1s: u64,
}

/// Number of I/Os that waited before they were sent, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct WaitCounts {
    /// Number of I/Os that waited for an earlier I/O that they overlap.
    pub for_overlap: u64,
    /// Number of flushes that waited for earlier writes.
    pub for_writes: u64,
    /// Number of I/Os that waited because `iodepth` was reached or the target had no room; 0 with
    /// `afap`.
    pub for_room: u64,
}

/// I/Os that were changed before they were sent, by change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct AdaptedIos {
    /// Number of I/Os that were enlarged to whole blocks.
    pub aligned: u64,
    /// Number of I/Os that `--fit` moved.
    pub moved: u64,
    /// Number of I/Os that were sent in several pieces.
    pub cut: u64,
    /// Number of durable writes that were sent as a write and a flush.
    pub fua_by_flush: u64,
    /// Number of durable writes that were sent as plain writes.
    pub fua_lost: u64,
}

/// Number of I/Os of the trace that were left out, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Number of I/Os that lie behind the target's end.
    pub outside: u64,
    /// Number of I/Os that are longer than the target.
    pub too_long: u64,
    /// Number of I/Os without a length.
    pub empty: u64,
    /// Operations that the target does not accept: their names and numbers of I/Os.
    pub unsupported: Vec<(String, u64)>,
}

impl Skipped {
    /// Returns the number of all I/Os that were left out.
    #[must_use]
    pub fn total(&self) -> u64 {
        let unsupported: u64 = self.unsupported.iter().map(|(_, ios)| ios).sum();
        self.outside + self.too_long + self.empty + unsupported
    }
}

/// I/Os of one lane.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LaneReport {
    /// Name of the target.
    pub target: String,
    /// Number of I/Os that ended.
    pub ios: u64,
    /// Number of bytes of these I/Os.
    pub bytes: u64,
}

/// Reason why a replay ended before the trace did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum StopReason {
    /// The user interrupted the replay.
    Interrupted,
    /// The replay's `runtime` was over.
    Runtime,
    /// The replay has done the number of I/Os that its settings allow.
    Limit,
    /// The trace could not be read on; the text is the error.
    Trace(String),
    /// An I/O of the trace needs a decision before it can be replayed; the text names the I/O and
    /// the choices.
    Undecided(String),
    /// The target broke; the text is the error.
    Target(String),
}

/// Number of I/Os by outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Number of I/Os taken from the trace: those that ended, were left out, or were not sent or
    /// answered.
    pub traced_ios: u64,
    /// Number of I/Os that ended.
    pub ios: u64,
    /// Number of these I/Os that failed.
    pub errors: u64,
    /// Text of the first of these errors.
    pub first_error: Option<String>,
    /// Number of I/Os that were taken and not wholly sent, because the replay was stopped.
    pub unsent: u64,
    /// Number of I/Os that were sent and not answered when the replay ended; the target may have
    /// done them.
    pub unanswered: u64,
}

/// Result of a replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Divisor of the trace's times; `None` with `afap`.
    pub speed: Option<f64>,
    /// Largest number of I/Os in flight.
    pub iodepth: u32,
    /// Length of the replay in seconds, from the first I/O's time to the last one's end.
    pub seconds: f64,
    /// Time in the trace between its first I/O and the last one that was taken, in seconds.
    pub trace_seconds: f64,
    /// Number of I/Os by outcome.
    #[serde(flatten)]
    pub counts: Counts,
    /// One report for each operation that occurred.
    pub ops: Vec<OpReport>,
    /// Delay of I/Os behind their times in the trace; `None` with `afap`.
    pub lateness: Option<Lateness>,
    /// Number of I/Os that waited, by reason.
    pub waited: WaitCounts,
    /// I/Os that were changed before they were sent.
    pub adapted: AdaptedIos,
    /// I/Os of the trace that were left out.
    pub skipped: Skipped,
    /// Number of I/Os that ended, over time.
    pub series: Series,
    /// Number of these I/Os by the times that the trace gives them, divided by `speed`; `None` with
    /// `afap`.
    pub due_series: Option<Series>,
    /// One report for each target.
    pub targets: Vec<LaneReport>,
    /// Reason why the replay ended before the trace did; `None` if it did not.
    pub stopped: Option<StopReason>,
}
