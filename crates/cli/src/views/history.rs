//! The daemon's past on the control socket: samples of a second each, for an hour.
//!
//! Plain data for serde, as report.rs: kept by `serve`, read back by `top` and by the dashboard,
//! which show the past at once. Fields may be added; whoever reads ignores those that it does not
//! know.

use serde::{Deserialize, Serialize};

/// Seconds that are kept.
pub const KEPT_S: usize = 3600;
/// Series of each kind that are kept: those of the busiest.
pub const SERIES_MAX: usize = 32;
/// Rows of [`Sample::heat`]; row n is of latencies from 2^n us, the first one of all below, too,
/// the last one of all above.
pub const HEAT_ROWS: usize = 22;

/// The answer to `history`: samples and series end at the same second, the newest last.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// Totals of all volumes and drives.
    pub samples: Vec<Sample>,
    /// The busiest volumes.
    pub volumes: Vec<Series>,
    /// The busiest drives.
    pub drives: Vec<Series>,
    /// The busiest groups.
    pub groups: Vec<Series>,
}

/// Totals of a second; rates are those of a whole second, however long the sample took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// End of the second, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Reads of clients that completed.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Half of the I/Os of clients took no longer, in nanoseconds; 0 if there were none.
    pub p50_ns: u64,
    /// 99 % took no longer.
    pub p99_ns: u64,
    /// Mean time by stage (q2g, g2i, i2d, d2c) of I/Os of drives, in nanoseconds.
    pub stage_ns: [u64; 4],
    /// I/Os by latency: row and count, of rows that have any.
    pub heat: Vec<(u8, u32)>,
}

/// A volume, drive or group: a value for each of the last samples; fewer if it is not known for as
/// long.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// I/Os that completed, a second.
    pub ios: Vec<u32>,
    /// I/Os in flight at the end of the second; of a group, 0.
    pub in_flight: Vec<u32>,
}
