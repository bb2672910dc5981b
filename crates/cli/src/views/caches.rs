//! Counters of volumes' caches, for the control socket and Prometheus.
//!
//! This module owns the JSON shape of one cache's counters, and their metrics. `serve` fills them
//! from the caches; `millrace stat` reads them back.

use std::fmt::Write;

use millrace::{Cache, CacheMode, Native};
use serde::{Deserialize, Serialize};

/// Settings of a cache, and its counters since the daemon began to serve.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheCounts {
    /// Name of the volume that is cached.
    pub volume: String,
    /// Cache mode, which decides when a write is acknowledged: `write-back` or `write-through`.
    pub mode: String,
    /// Memory for pages in bytes.
    pub size_bytes: u64,
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// Limit of dirty data in bytes.
    pub dirty_max_bytes: u64,
    /// Dirty data now, in bytes of whole pages.
    pub dirty_bytes: u64,
    /// Counters of reads.
    pub reads: CacheReads,
    /// Counters of writes.
    pub writes: CacheWrites,
    /// Number of clean pages evicted.
    pub evicted: u64,
}

/// Counters of reads through a cache so far, in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheReads {
    /// Pages found in memory.
    pub hits: u64,
    /// Pages not found in memory.
    pub misses: u64,
    /// Pages read ahead.
    pub ahead: u64,
}

/// Counters of writes to a cache so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheWrites {
    /// Pages written by clients.
    pub pages: u64,
    /// Number of these pages that were dirty already.
    pub overwritten: u64,
    /// Pages written back to the drives.
    pub back: u64,
    /// Write-back requests sent to the drives.
    pub requests: u64,
    /// Write-back requests that failed.
    pub errors: u64,
    /// Writes of clients that were throttled because of too much dirty data.
    pub throttled: u64,
}

/// Returns the configuration's word for a cache mode.
pub fn mode_word(mode: CacheMode) -> &'static str {
    match mode {
        CacheMode::WriteBack => "write-back",
        CacheMode::WriteThrough => "write-through",
    }
}

impl CacheCounts {
    /// Takes the settings and counters of a cache.
    pub fn new(cache: &Cache<Native>) -> CacheCounts {
        let (config, stats) = (cache.config(), cache.stats());
        CacheCounts {
            volume: cache.below().name().to_owned(),
            mode: mode_word(config.mode).to_owned(),
            size_bytes: config.size_bytes,
            page_bytes: stats.page_bytes,
            dirty_max_bytes: config.dirty_max(),
            dirty_bytes: stats.dirty * stats.page_bytes,
            reads: CacheReads {
                hits: stats.read_hits,
                misses: stats.read_misses,
                ahead: stats.read_ahead,
            },
            writes: CacheWrites {
                pages: stats.written,
                overwritten: stats.overwritten,
                back: stats.written_back,
                requests: stats.write_requests,
                errors: stats.write_errors,
                throttled: stats.throttled,
            },
            evicted: stats.evicted,
        }
    }

    /// Returns the increase since an earlier report of the same cache.
    #[must_use]
    pub fn since(&self, before: &CacheCounts) -> CacheCounts {
        let less = |now: u64, then: u64| now.saturating_sub(then);
        let (reads, writes) = (&before.reads, &before.writes);
        CacheCounts {
            reads: CacheReads {
                hits: less(self.reads.hits, reads.hits),
                misses: less(self.reads.misses, reads.misses),
                ahead: less(self.reads.ahead, reads.ahead),
            },
            writes: CacheWrites {
                pages: less(self.writes.pages, writes.pages),
                overwritten: less(self.writes.overwritten, writes.overwritten),
                back: less(self.writes.back, writes.back),
                requests: less(self.writes.requests, writes.requests),
                errors: less(self.writes.errors, writes.errors),
                throttled: less(self.writes.throttled, writes.throttled),
            },
            evicted: less(self.evicted, before.evicted),
            ..self.clone()
        }
    }
}

/// Name, help text and value of a counter or gauge.
type Metric = (&'static str, &'static str, fn(&CacheCounts) -> u64);

const COUNTERS: [Metric; 10] = [
    ("read_hit_pages", "Pages that reads found in memory.", |c| c.reads.hits),
    ("read_miss_pages", "Pages that reads did not find in memory.", |c| c.reads.misses),
    ("read_ahead_pages", "Pages read ahead of sequential streams.", |c| c.reads.ahead),
    ("written_pages", "Pages written by clients.", |c| c.writes.pages),
    ("overwritten_pages", "Written pages that were dirty already.", |c| c.writes.overwritten),
    ("written_back_pages", "Pages written to the drives.", |c| c.writes.back),
    ("write_requests", "Requests in which pages were written to the drives.", |c| {
        c.writes.requests
    }),
    ("write_errors", "Requests to write pages that failed; the pages stay dirty.", |c| {
        c.writes.errors
    }),
    ("throttled", "Writes of clients whose completion was delayed.", |c| c.writes.throttled),
    ("evicted_pages", "Clean pages whose memory was reused for other pages.", |c| c.evicted),
];

const GAUGES: [Metric; 4] = [
    ("size_bytes", "Memory of the cache.", |c| c.size_bytes),
    ("page_bytes", "A page of the cache.", |c| c.page_bytes),
    ("dirty_max_bytes", "Most that may be dirty.", |c| c.dirty_max_bytes),
    ("dirty_bytes", "Dirty data that is not on the drives yet, in whole pages.", |c| c.dirty_bytes),
];

/// Formats the caches' metrics for Prometheus. Returns an empty text if there are no caches.
/// `braced` formats labels.
pub fn metrics(caches: &[CacheCounts], braced: impl Fn(&[(&str, &str)]) -> String) -> String {
    let mut page = String::new();
    if caches.is_empty() {
        return page;
    }
    let counters =
        COUNTERS.map(|(name, help, value)| (format!("{name}_total"), "counter", help, value));
    let gauges = GAUGES.map(|(name, help, value)| (name.to_owned(), "gauge", help, value));
    for (name, kind, help, value) in counters.into_iter().chain(gauges) {
        let name = format!("millrace_cache_{name}");
        // Writing to a string cannot fail.
        let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for cache in caches {
            let labels = braced(&[("volume", &cache.volume), ("mode", &cache.mode)]);
            let _ = writeln!(page, "{name}{labels} {}", value(cache));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_of_every_cache_has_a_line() {
        let cache = |volume: &str| CacheCounts {
            volume: volume.to_owned(),
            writes: CacheWrites { back: 7, ..CacheWrites::default() },
            ..CacheCounts::default()
        };
        let braced = |labels: &[(&str, &str)]| format!("{{{}}}", labels[0].1);
        let text = metrics(&[cache("v"), cache("w")], braced);
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 28);
        assert!(text.contains("millrace_cache_written_back_pages_total{w} 7\n"), "{text}");
        assert!(metrics(&[], braced).is_empty());
    }

    #[test]
    fn what_came_in_between_keeps_what_is_so_now() {
        let before = CacheCounts {
            dirty_bytes: 9,
            reads: CacheReads { hits: 5, ..CacheReads::default() },
            ..CacheCounts::default()
        };
        let now = CacheCounts {
            dirty_bytes: 4096,
            reads: CacheReads { hits: 8, ..CacheReads::default() },
            ..CacheCounts::default()
        };
        let since = now.since(&before);
        assert_eq!((since.reads.hits, since.dirty_bytes), (3, 4096));
    }
}
