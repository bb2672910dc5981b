//! `Row`: one line of a benchmark's result, as printed and as `--json` gives it.
//!
//! Plain data; units are in the names.

use serde::Serialize;

/// Latencies of one row in nanoseconds, from Q to C. Known to an eighth (the width of a bucket).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LatencyNs {
    /// Mean.
    pub mean: u64,
    /// Half of all I/Os were not slower.
    pub p50: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p999: u64,
    /// The slowest.
    pub max: u64,
}

/// Which queues a row went through.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Queues {
    /// `mq`, `sq` or `raw`; `nbd` for a connection.
    pub stack: String,
    /// Software queues: `core`, `node` or `one`.
    pub software_queues: String,
    /// Hardware queues.
    pub hardware_queues: String,
    /// CPUs used.
    pub cpus: u32,
}

/// What it cost this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Processor time for one I/O, user and system.
    pub cpu_ns_per_io: f64,
    /// System calls of the I/O threads for one I/O.
    pub syscalls_per_io: f64,
}

/// What went wrong, and what was checked.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// I/Os that failed, and blocks that did not verify.
    pub errors: u64,
    /// Blocks read back and found right; 0 without `verify`.
    pub verified: u64,
    /// What the first of the errors was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
}

/// One line of a result. JSON has all fields side by side.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Row {
    /// Design and queues.
    #[serde(flatten)]
    pub queues: Queues,
    /// Drive specs joined by `+`, or the URI.
    pub drives: String,
    /// Submitting threads.
    pub jobs: u32,
    /// I/Os in flight for each.
    pub iodepth: u32,
    /// Bytes of one I/O.
    pub bs: u32,
    /// Kind of I/O.
    pub rw: String,
    /// When times were taken: `batch` or `io`.
    pub stamp: String,
    /// I/Os done.
    pub ios: u64,
    /// Time measured.
    pub seconds: f64,
    /// I/Os a second.
    pub iops: f64,
    /// Bytes a second.
    pub bw_bytes_per_s: f64,
    /// Processor time and system calls.
    #[serde(flatten)]
    pub cost: Cost,
    /// Latencies.
    pub lat_ns: LatencyNs,
    /// Errors.
    #[serde(flatten)]
    pub outcome: Outcome,
}
