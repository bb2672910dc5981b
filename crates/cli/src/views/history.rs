//! Samples of the last hour, one per second, on the control socket.
//!
//! `serve` keeps the samples; `top` and the dashboard read them, so that they can show past seconds
//! at once.

use serde::{Deserialize, Serialize};

pub const KEPT_S: usize = 3600;
/// Maximum number of series of each kind (volumes, drives, groups). The busiest ones are kept.
pub const SERIES_MAX: usize = 32;
/// Number of rows of [`Sample::heat`]. Row n counts latencies from 2^n us on; the first row also
/// counts shorter latencies, the last row also longer ones.
pub const HEAT_ROWS: usize = 22;

/// Answer to `history`: totals of each second, and I/O rates of each busy volume, drive and group.
/// All lists are in order of time, and end with the same second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    pub samples: Vec<Sample>,
    pub volumes: Vec<Series>,
    pub drives: Vec<Series>,
    pub groups: Vec<Series>,
}

/// I/O of the whole daemon in one second. Rates are scaled to a full second, however long the
/// measurement took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    pub unix_ms: u64,
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
    /// Median latency of clients' I/Os in nanoseconds; 0 if there were none.
    pub p50_ns: u64,
    pub p99_ns: u64,
    /// Mean time of the drives' I/Os in each stage (q2g, g2i, i2d, d2c), in nanoseconds.
    pub stage_ns: [u64; 4],
    /// Latency histogram: pairs of a row and the number of I/Os per second in that row. Row n
    /// begins at 2^n microseconds. Rows without I/Os are left out.
    pub heat: Vec<(u8, u32)>,
}

/// Values of a volume, drive or group, one for each sample. A series has fewer values if it began
/// later than the samples.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Series {
    pub name: String,
    pub ios: Vec<u32>,
    /// I/Os in flight at the end of the second; 0 for a group.
    pub in_flight: Vec<u32>,
}
