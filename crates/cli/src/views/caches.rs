//! What the caches of volumes did, on the control socket and for Prometheus.
//!
//! Owns the shape of one cache's counters and their metrics. Made by `serve` from the caches'
//! counters; read back by `millrace stat`.

use std::fmt::Write;

use millrace::{Cache, CacheMode, Native};
use serde::{Deserialize, Serialize};

/// A cache: its settings, and what it did so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheCounts {
    /// The volume that it is over.
    pub volume: String,
    /// When a write is acknowledged: `write-back` or `write-through`.
    pub mode: String,
    /// Memory for pages.
    pub size_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Most of it that may be dirty.
    pub dirty_max_bytes: u64,
    /// Bytes that are not on the drives yet, in whole pages.
    pub dirty_bytes: u64,
    /// What reads did.
    pub reads: Reads,
    /// What writes did.
    pub writes: Writes,
    /// Clean pages whose memory went to others.
    pub evicted: u64,
}

/// Reads of a cache, in pages, so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reads {
    /// Pages found in memory.
    pub hits: u64,
    /// Pages not found there.
    pub misses: u64,
    /// Pages read ahead.
    pub ahead: u64,
}

/// Writes of a cache, so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Writes {
    /// Pages written by clients.
    pub pages: u64,
    /// Of these, pages that were dirty already.
    pub overwritten: u64,
    /// Pages written to the drives.
    pub back: u64,
    /// Requests in which they were.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Writes of clients whose answer was held back.
    pub throttled: u64,
}

/// The word of a mode.
pub fn mode_word(mode: CacheMode) -> &'static str {
    match mode {
        CacheMode::WriteBack => "write-back",
        CacheMode::WriteThrough => "write-through",
    }
}

impl CacheCounts {
    /// A cache's settings and counters.
    pub fn new(cache: &Cache<Native>) -> CacheCounts {
        let (config, stats) = (cache.config(), cache.stats());
        CacheCounts {
            volume: cache.below().name().to_owned(),
            mode: mode_word(config.mode).to_owned(),
            size_bytes: config.size_bytes,
            page_bytes: stats.page_bytes,
            dirty_max_bytes: config.dirty_max(),
            dirty_bytes: stats.dirty * stats.page_bytes,
            reads: Reads {
                hits: stats.read_hits,
                misses: stats.read_misses,
                ahead: stats.read_ahead,
            },
            writes: Writes {
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

    /// The difference to an earlier report of the same cache.
    #[must_use]
    pub fn since(&self, before: &CacheCounts) -> CacheCounts {
        let less = |now: u64, then: u64| now.saturating_sub(then);
        let (reads, writes) = (&before.reads, &before.writes);
        CacheCounts {
            reads: Reads {
                hits: less(self.reads.hits, reads.hits),
                misses: less(self.reads.misses, reads.misses),
                ahead: less(self.reads.ahead, reads.ahead),
            },
            writes: Writes {
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

/// A counter or gauge: its name, what it is, its value.
type Metric = (&'static str, &'static str, fn(&CacheCounts) -> u64);

const COUNTERS: [Metric; 10] = [
    ("read_hit_pages", "Pages that reads found in memory.", |c| c.reads.hits),
    ("read_miss_pages", "Pages that reads did not find in memory.", |c| c.reads.misses),
    ("read_ahead_pages", "Pages read ahead of sequential streams.", |c| c.reads.ahead),
    ("written_pages", "Pages written by clients.", |c| c.writes.pages),
    ("overwritten_pages", "Of these, pages that were dirty already.", |c| c.writes.overwritten),
    ("written_back_pages", "Pages written to the drives.", |c| c.writes.back),
    ("write_requests", "Requests in which pages were written to the drives.", |c| {
        c.writes.requests
    }),
    ("write_errors", "Requests to write pages that failed; the pages stay dirty.", |c| {
        c.writes.errors
    }),
    ("throttled", "Writes of clients whose answer was held back.", |c| c.writes.throttled),
    ("evicted_pages", "Clean pages whose memory went to others.", |c| c.evicted),
];

const GAUGES: [Metric; 4] = [
    ("size_bytes", "Memory of the cache.", |c| c.size_bytes),
    ("page_bytes", "A page of the cache.", |c| c.page_bytes),
    ("dirty_max_bytes", "Most that may be dirty.", |c| c.dirty_max_bytes),
    ("dirty_bytes", "What is not on the drives yet, in whole pages.", |c| c.dirty_bytes),
];

/// The lines for Prometheus; none without a cache. `braced` makes text of labels.
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
            writes: Writes { back: 7, ..Writes::default() },
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
            reads: Reads { hits: 5, ..Reads::default() },
            ..CacheCounts::default()
        };
        let now = CacheCounts {
            dirty_bytes: 4096,
            reads: Reads { hits: 8, ..Reads::default() },
            ..CacheCounts::default()
        };
        let since = now.since(&before);
        assert_eq!((since.reads.hits, since.dirty_bytes), (3, 4096));
    }
}
