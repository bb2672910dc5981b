//! `CacheSpec`: the page cache of a scenario, as plain data.
//!
//! caching.rs draws it and holds its effect on checks; flusher.rs puts the cache over the volume.

use std::time::Duration;

use millrace_cache::{CacheConfig, CacheMode};
use serde::{Deserialize, Serialize};

/// Longest time that a write may wait beside a drive that hangs, in nanoseconds: the cache needs
/// one to two seconds to notice the drive, and one more for pages given to it meanwhile.
const HELD_NS: u64 = 4_000_000_000;
/// Flushes at the end of a channel's workload. Each may report an earlier failure.
const CLOSING_FLUSHES: u32 = 3;

/// Settings of the page cache between the channels and the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheSpec {
    /// Memory for pages, in KiB.
    pub size_kib: u32,
    /// Most dirty data, in KiB.
    pub dirty_kib: u32,
    /// Age at which the flusher writes a dirty page, in microseconds.
    pub dirty_age_us: u32,
    /// Longest read-ahead, in KiB.
    pub read_ahead_kib: u32,
    /// If true, writes are acknowledged when they are on the volume.
    pub through: bool,
    /// CPU that the flusher runs on.
    pub cpu: u32,
}

impl CacheSpec {
    pub(super) fn config(&self) -> CacheConfig {
        CacheConfig {
            size_bytes: u64::from(self.size_kib) << 10,
            dirty_max_bytes: Some(u64::from(self.dirty_kib) << 10),
            dirty_age: Duration::from_micros(self.dirty_age_us.into()),
            read_ahead_bytes: u64::from(self.read_ahead_kib) << 10,
            mode: if self.through { CacheMode::WriteThrough } else { CacheMode::WriteBack },
            ..CacheConfig::default()
        }
    }

    /// Returns how much longer an I/O may take because of the cache, in nanoseconds.
    pub(super) fn holds_ns(cache: Option<CacheSpec>) -> u64 {
        cache.map_or(0, |_| HELD_NS)
    }

    /// Returns the number of flushes at the end of each channel's workload.
    pub(super) fn closing_flushes(cache: Option<CacheSpec>) -> u32 {
        cache.map_or(0, |_| CLOSING_FLUSHES)
    }

    /// Checks the settings, and that the machine has the flusher's CPU.
    pub(super) fn check(&self, cpus: u32) -> Result<(), String> {
        self.config().validate().map_err(|text| format!("scenario: cache: {text}"))?;
        match self.cpu < cpus {
            true => Ok(()),
            false => Err(String::from("scenario: the flusher's cpu is on no CPU of the machine")),
        }
    }
}
