//! `Row`: one line of a benchmark's result, for the printed table and for `--json`.
//!
//! The fields are plain data with units in their names. `json` defines the keys of `--json`, which
//! are fio's keys wherever fio has one with the same meaning.
#![allow(missing_docs)] // Names of most fields and variants say what they are.

mod json;

use millrace_block::{OpSnapshot, Snapshot, StatsSnapshot};
use millrace_trace::LockLine;
use serde::Serialize;

use crate::load::workload::Rw;

/// Statistics of a latency in nanoseconds. Percentiles are accurate to an eighth, the width of a
/// histogram bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LatencyNs {
    pub samples: u64,
    pub mean: u64,
    pub p50: u64,
    pub p90: u64,
    pub p95: u64,
    pub p99: u64,
    pub p999: u64,
    pub p9999: u64,
    pub max: u64,
}

impl LatencyNs {
    /// Computes mean, percentiles and maximum of a latency histogram.
    pub fn of(snapshot: &Snapshot) -> LatencyNs {
        LatencyNs {
            samples: snapshot.count(),
            mean: snapshot.mean_ns(),
            p50: snapshot.quantile_ns(0.5),
            p90: snapshot.quantile_ns(0.9),
            p95: snapshot.quantile_ns(0.95),
            p99: snapshot.quantile_ns(0.99),
            p999: snapshot.quantile_ns(0.999),
            p9999: snapshot.quantile_ns(0.9999),
            max: snapshot.max_ns(),
        }
    }
}

/// Design of the measured block layer (`stack`), its scheduler, and the placement of its queues.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Queues {
    /// Stack: `mq`, `sq` or `raw` for a volume, `nbd` for a connection, and `vhost-poll` or
    /// `vhost-events` for virtqueues whose client polls or waits for interrupts.
    pub stack: String,
    /// Scheduler of the drives, such as `none` or `deadline`; empty for a server.
    pub scheduler: String,
    /// Placement of software queues: `core`, `node` or `one`.
    pub software_queues: String,
    /// Placement of hardware queues: `core`, `node` or `one`.
    pub hardware_queues: String,
    pub cpus: u32,
    /// Assignment of threads to the drives: `inline`, `per-drive`, `per-volume`, `auto`. Empty if a
    /// server was measured, because the assignment in the server is unknown.
    pub serving: String,
}

/// Processor time and system calls of this process for each I/O.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Processor time per I/O in nanoseconds, in user and kernel mode.
    pub cpu_ns_per_io: f64,
    /// Number of system calls of the I/O threads per I/O.
    pub syscalls_per_io: f64,
    /// Notifications between client and server of a virtqueue; `None` for a measurement without
    /// virtqueues.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub notifications: Option<Notifications>,
}

/// Numbers of virtqueue notifications per I/O: kicks from the client (the driver's side) to the
/// server, and interrupts from the server to the client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Notifications {
    /// Number of kicks that the client wrote to the virtqueue, per I/O.
    pub kicks_per_io: f64,
    /// Number of interrupts that ended a sleep of the client, per I/O.
    pub interrupts_per_io: f64,
}

/// Errors in one measured configuration, number of verified blocks, and I/O counts of each drive.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Number of I/Os that failed plus number of blocks that failed verification.
    pub errors: u64,
    /// Number of blocks that passed verification; 0 without `verify`.
    pub verified: u64,
    pub first_error: Option<String>,
    /// I/O counts of each drive, in the order of the volume; empty if they were not requested.
    pub states: Vec<DriveStates>,
}

/// Number of a drive's I/Os that reached each state, and latencies before and after dispatch. The
/// states have the names of the Falcon paper (Kumar et al., ATC 2017). `start`, `split`, `merge`
/// and `complete` count bios; the other states count requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DriveStates {
    pub drive: String,
    /// Number of bios for the drive; each part of a split bio counts as a bio.
    pub start: u64,
    /// Number of the bios in `start` that are parts of split bios.
    pub split: u64,
    /// Number of the bios in `start` that were merged into another bio's request.
    pub merge: u64,
    /// Number of bios that were not merged; a request is created for each.
    pub ready: u64,
    /// Number of times that requests waited because the drive had no tag for them.
    pub wait: u64,
    /// Number of requests offered to the driver; a request counts again if the driver was busy.
    pub insert: u64,
    /// Number of requests that the driver accepted.
    pub dispatch: u64,
    pub complete: u64,
    /// Latency of each stage from the submission of a bio to its dispatch to the driver.
    pub stages: StackStages,
    /// Latency from start to dispatch.
    pub stack_ns: LatencyNs,
    /// Latency from dispatch to completion.
    pub device_ns: LatencyNs,
}

/// Latencies of a bio's stages between queueing and the driver. The names are btt's.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct StackStages {
    /// Time from the submission of the bio until the block layer had a bio slot for the bio.
    pub q2g_ns: LatencyNs,
    /// Time that the bio was held back in a plug.
    pub g2i_ns: LatencyNs,
    /// Time that the bio spent in a software queue, or waiting for a tag.
    pub i2d_ns: LatencyNs,
}

impl DriveStates {
    /// Returns a drive's I/O counts by state, and its latencies, from the block layer's accounting.
    pub fn new(drive: &str, stats: &StatsSnapshot) -> DriveStates {
        let sum = |part: fn(&OpSnapshot) -> &Snapshot| {
            let mut sum = Snapshot::default();
            stats.ops.iter().for_each(|op| sum.merge(part(op)));
            LatencyNs::of(&sum)
        };
        let merge = stats.ops.iter().map(|op| op.merges).sum();
        DriveStates {
            drive: drive.to_owned(),
            start: stats.queued(),
            split: stats.parts(),
            merge,
            ready: stats.queued().saturating_sub(merge),
            wait: stats.tag_waits(),
            insert: stats.requests() + stats.requeues(),
            dispatch: stats.requests(),
            complete: stats.ios(),
            stages: StackStages {
                q2g_ns: sum(|op| &op.q2g),
                g2i_ns: sum(|op| &op.g2i),
                i2d_ns: sum(|op| &op.i2d),
            },
            stack_ns: sum(|op| &op.queue),
            device_ns: sum(|op| &op.service),
        }
    }

    /// Returns the slowest drive's mean latency in the block layer, divided by the fastest drive's;
    /// `None` for fewer than two drives.
    pub fn unfairness(drives: &[DriveStates]) -> Option<f64> {
        let means = || drives.iter().map(|drive| drive.stack_ns.mean.max(1) as f64);
        (drives.len() > 1).then(|| means().fold(0.0, f64::max) / means().fold(f64::MAX, f64::min))
    }
}

/// Machine on which a configuration was measured: a simulated machine, or this machine if lock
/// statistics were collected.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MachineRow {
    /// Name of the simulated machine, or `native`.
    pub machine: String,
    /// Interface by which programs submit: `sync`, `libaio`, `libaio-fixed`, `ring`.
    pub interface: String,
    /// CPU that handled the drives' interrupts: `submitter`, `core0` or `steered`. Empty on a real
    /// machine.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub irq: String,
    /// Limit on the I/Os that a job submits together; `None` if the user set no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// Values of bench's options `--inside` and `--kernel`, and of bench's options for raw I/O of
    /// Linux 2.4.
    #[serde(flatten)]
    pub history: Linux24Row,
    /// Seed of the offsets and of the simulation.
    pub seed: u64,
    /// Number of simulated events: accesses to cache lines, lock hand-overs, sleeps, wake-ups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sim_events: Option<u64>,
    /// Lock statistics of the whole run, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locks: Option<Vec<LockLine>>,
}

/// Values of bench's options `--inside` and `--kernel`, and of bench's options for raw I/O of Linux
/// 2.4.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Linux24Row {
    /// Threads that could dispatch from a hardware queue at a time: `one`, or `each` (all that had
    /// work for the queue).
    pub inside: String,
    /// Size of the bios into which each I/O was split: `512`, `page` or `whole`; `none` without raw
    /// I/O.
    pub unit: String,
    /// Number of elements of an I/O's vector.
    pub iovecs: u32,
    /// Submission of the elements of an I/O's vector: `whole` (together) or `serial` (one after the
    /// other).
    pub readv: String,
    /// Use of bounce buffers: `never` or `always`.
    pub bounce: String,
    /// Scope of the request queue lock of the design `sq`: `queue`, `adapter` or `global`.
    pub request_lock: String,
    /// Place where the design `sq` holds back (plugs) a batch's bios: `task` or `queue`.
    pub queue_plug: String,
    /// Size in bytes of the state that each job keeps for its open drive.
    pub descriptor: u32,
    /// Shared counters that were simulated: `own` for those that every simulation has (the block
    /// layer's, and the inode's for `libaio`), `linux-3` if those of Linux 3.13 were added.
    pub kernel: String,
}

/// Settings and results of one measured configuration: a row of the result table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    pub queues: Queues,
    /// Drive specs joined by `+`, or the URI of a server.
    pub drives: String,
    /// Number of submitting threads.
    pub jobs: u32,
    /// Number of I/Os in flight for each thread.
    pub iodepth: u32,
    /// Size of an I/O in bytes.
    pub bs: u32,
    pub rw: Rw,
    /// Granularity of the timestamps: `batch` or `io`.
    pub stamp: String,
    pub ios: u64,
    pub seconds: f64,
    pub iops: f64,
    pub bw_bytes_per_s: f64,
    pub cost: Cost,
    pub lat_ns: LatencyNs,
    pub outcome: Outcome,
    /// Machine on which the row was measured. `None` for a run on the real machine without lock
    /// statistics.
    pub machine: Option<MachineRow>,
}

impl Row {
    /// Returns a name that identifies the row, such as `mq-randread-4096-32x1`. The last two
    /// numbers are the I/Os in flight and the jobs.
    pub fn job_name(&self) -> String {
        let Row { rw, bs, iodepth, jobs, .. } = self;
        format!("{}-{rw}-{bs}-{iodepth}x{jobs}", self.queues.stack)
    }
}
