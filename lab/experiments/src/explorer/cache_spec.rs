//! `CacheSpec`: settings of the page cache in a scenario of the explorer, as plain data.
//!
//! caching.rs draws the settings at random and adapts the scenario's checks to the cache.
//! flusher.rs creates the cache on top of the volume.
#![allow(missing_docs)] // Names of most fields and variants say what they are.

use std::time::Duration;

use millrace_cache::{CacheConfig, CacheMode};
use serde::{Deserialize, Serialize};

/// Number of flushes at the end of each channel's workload, if the volume has a page cache. One is
/// too few: the first flush may fail because of an earlier write.
const CLOSING_FLUSHES: u32 = 3;

/// Settings of the page cache between the channels and the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheSpec {
    pub size_kib: u32,
    /// Largest amount of dirty data, in KiB.
    pub dirty_kib: u32,
    /// Age at which the flusher writes a dirty page, in microseconds.
    pub dirty_age_us: u32,
    pub read_ahead_kib: u32,
    /// If true, writes are acknowledged after their completion by the volume (write-through).
    pub through: bool,
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

    pub(super) fn closing_flushes(cache: Option<CacheSpec>) -> u32 {
        cache.map_or(0, |_| CLOSING_FLUSHES)
    }

    pub(super) fn check(&self, cpus: u32) -> Result<(), String> {
        self.config().validate().map_err(|text| format!("scenario: cache: {text}"))?;
        match self.cpu < cpus {
            true => Ok(()),
            false => Err(String::from("scenario: the flusher's cpu must be a CPU of the machine")),
        }
    }
}
