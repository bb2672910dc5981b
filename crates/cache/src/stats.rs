//! `CacheStats`: what a cache did so far, for people and for metrics.
//!
//! Counted by shards, under their locks, and added up for whoever asks.

use alloc::vec::Vec;

use millrace_block::Status;

/// What one shard counts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ShardStats {
    pub(crate) read_hits: u64,
    pub(crate) read_misses: u64,
    pub(crate) read_ahead: u64,
    pub(crate) written: u64,
    pub(crate) overwritten: u64,
    pub(crate) evicted: u64,
}

/// Counters of a cache since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Bytes of a page: 4 KiB, or a logical block of the volume below where that is larger.
    pub page_bytes: u64,
    /// Pages that reads found in memory.
    pub read_hits: u64,
    /// Pages that reads did not find.
    pub read_misses: u64,
    /// Pages read ahead of sequential streams.
    pub read_ahead: u64,
    /// Pages written to by clients.
    pub written: u64,
    /// Of these, pages that were dirty already: writes that the drives are spared.
    pub overwritten: u64,
    /// Clean pages whose memory went to others.
    pub evicted: u64,
    /// Pages that are dirty or being written at this moment.
    pub dirty: u64,
    /// Pages that memory has room for.
    pub pages: u64,
    /// Pages written to the volume below.
    pub written_back: u64,
    /// Writes that carried these pages.
    pub write_requests: u64,
    /// Writes to the volume below that failed; their pages stay dirty.
    pub write_errors: u64,
    /// Writes whose answer was held back, since too much was dirty.
    pub throttled: u64,
}

/// What is in memory only, which is lost if the daemon ends now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtRisk {
    /// Bytes of it; of pages that are being written, all of the page, unless its drive has answered
    /// all that it was asked.
    pub bytes: u64,
    /// First byte of the first range of sectors that follow each other, and the range's length.
    pub first: (u64, u64),
    /// The drives that it is of.
    pub drives: Vec<DriveAtRisk>,
}

/// What is in memory only of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveAtRisk {
    /// The number of the drive in its volume.
    pub drive: usize,
    /// Bytes of it.
    pub bytes: u64,
    /// How the last write failed, if the drive fails writes.
    pub failed: Option<Status>,
}

impl CacheStats {
    pub(crate) fn add(&mut self, shard: &ShardStats) {
        self.read_hits += shard.read_hits;
        self.read_misses += shard.read_misses;
        self.read_ahead += shard.read_ahead;
        self.written += shard.written;
        self.overwritten += shard.overwritten;
        self.evicted += shard.evicted;
    }
}
