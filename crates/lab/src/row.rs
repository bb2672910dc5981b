//! `Row`: one line of a benchmark's result, as printed and as `--json` gives it.
//!
//! Plain data; units are in the names.

use millrace_machine::LockRow;
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

/// What a row ran on, if that is not plainly this machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MachineRow {
    /// Name of the simulated machine, or `native`.
    pub machine: String,
    /// How programs submit: `sync`, `libaio`, `libaio-fixed`, `ring`.
    pub interface: String,
    /// Who takes interrupts: `submitter`, `core0`, `steered`.
    pub irq: String,
    /// Seed of the offsets and of the simulation.
    pub seed: u64,
    /// Accesses to lines, lock hand-overs, sleeps and wake-ups that were simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sim_events: Option<u64>,
    /// Lock statistics of the whole run, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locks: Option<Vec<LockLine>>,
}

/// What the locks of one name did in the whole run, in all or at one place.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LockLine {
    /// The locks' name.
    pub name: String,
    /// File and line that took it; none for the sum over all places.
    pub site: Option<String>,
    /// Times one was taken.
    pub acquisitions: u64,
    /// Part of them that had to wait, 0 to 1.
    pub contended_share: f64,
    /// Mean wait of those that had to.
    pub wait_ns_mean: u64,
    /// Longest wait.
    pub wait_ns_max: u64,
    /// Mean time held.
    pub hold_ns_mean: u64,
    /// Part of the CPUs' time that went by in waiting, 0 to 1.
    pub spin_share: f64,
}

impl LockLine {
    /// A line of a machine's row; `cpu_ns` is the time of all CPUs.
    #[must_use]
    pub fn new(row: &LockRow, cpu_ns: u64) -> LockLine {
        let counts = &row.counts;
        LockLine {
            name: row.name.to_owned(),
            site: row.site.map(|site| format!("{}:{}", site.file, site.line)),
            acquisitions: counts.acquisitions,
            contended_share: counts.contended as f64 / counts.acquisitions.max(1) as f64,
            wait_ns_mean: counts.wait_ns.checked_div(counts.contended).unwrap_or(0),
            wait_ns_max: counts.wait_ns_max,
            hold_ns_mean: counts.hold_ns.checked_div(counts.acquisitions).unwrap_or(0),
            spin_share: counts.wait_share(cpu_ns),
        }
    }
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
    /// The machine, if it is a simulated one or measured with lock statistics.
    #[serde(flatten)]
    pub machine: Option<MachineRow>,
}
