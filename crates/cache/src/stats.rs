//! `CacheStats`: counters of a cache, and `AtRisk`: its acknowledged data that are only in memory.
//!
//! Shards count under their locks, and a reader of the counters adds up the counts of all shards.

use alloc::vec::Vec;

use millrace_block::Status;

/// Counters of a cache since it was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Page size in bytes: 4 KiB, or one logical block of the volume below if that is larger.
    pub page_bytes: u64,
    /// Pages that reads found in memory.
    pub read_hits: u64,
    /// Pages that reads did not find in memory.
    pub read_misses: u64,
    /// Pages that were read ahead.
    pub read_ahead: u64,
    /// Pages written by clients.
    pub written: u64,
    /// Pages written while they were already dirty, which saves a write to the drives.
    pub overwritten: u64,
    /// Clean pages whose frames were reused for other pages.
    pub evicted: u64,
    /// Pages that are dirty or being written now.
    pub dirty: u64,
    /// Number of pages that fit into the cache's memory.
    pub pages: u64,
    /// Pages written to the volume below.
    pub written_back: u64,
    /// Write I/Os that carried the pages counted in `written_back`.
    pub write_requests: u64,
    /// Failed writes to the volume below. Their pages stay dirty.
    pub write_errors: u64,
    /// Writes whose completion was delayed, because dirty data had reached more than half of the
    /// dirty limit.
    pub throttled: u64,
}

/// Acknowledged data that are only in memory, and are lost if the daemon ends now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtRisk {
    /// Number of bytes that are only in memory. Until the cache has noted that a page's write is
    /// complete, all data of the page in memory count. There is one exception: if the drive has no
    /// I/O in flight and has never failed a write, the page's write has succeeded, and its data do
    /// not count.
    pub bytes: u64,
    /// First contiguous range of bytes that are only in memory: byte offset in the volume, and
    /// length.
    pub first: (u64, u64),
    /// For each drive that has data at risk, the drive and the amount of data.
    pub drives: Vec<DriveAtRisk>,
}

/// Drive with acknowledged data that are only in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveAtRisk {
    /// Index of the drive in its volume.
    pub drive: usize,
    /// Number of bytes of the drive that are only in memory.
    pub bytes: u64,
    /// Status of the last failed write, if the drive is failing writes.
    pub failed: Option<Status>,
}

impl CacheStats {
    pub(crate) fn add(&mut self, shard: &CacheStats) {
        self.read_hits += shard.read_hits;
        self.read_misses += shard.read_misses;
        self.read_ahead += shard.read_ahead;
        self.written += shard.written;
        self.overwritten += shard.overwritten;
        self.evicted += shard.evicted;
    }
}
