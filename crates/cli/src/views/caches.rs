//! Counters of volumes' caches, for the control socket and Prometheus.
//!
//! This module owns the table of a cache's counters, and their JSON form. `serve` fills the table
//! from the caches; `millrace stat` reads it back.

use millrace::{Cache, Native};
use millrace_console::cache::mode_word;
use millrace_exports::CounterTable as _;
use serde::{Deserialize, Serialize};

use super::counter_json;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheCounts {
    pub volume: String,
    /// Cache mode, which decides when a write is acknowledged: `write-back` or `write-through`.
    pub mode: String,
    #[serde(flatten, with = "counter_json")]
    pub stats: CacheNumbers,
}

millrace_exports::counter_table! {
pub struct CacheNumbers {
    read_hits counter "read_hit_pages" "/reads/hits" "Pages that reads found in memory.",
    read_misses counter "read_miss_pages" "/reads/misses"
        "Pages that reads did not find in memory.",
    read_ahead counter "read_ahead_pages" "/reads/ahead" "Pages read ahead of sequential streams.",
    written counter "written_pages" "/writes/pages" "Pages written by clients.",
    overwritten counter "overwritten_pages" "/writes/overwritten"
        "Pages written by clients while they were dirty already.",
    written_back counter "written_back_pages" "/writes/back" "Pages written to the drives.",
    write_requests counter "write_requests" "/writes/requests"
        "Requests that wrote pages to the drives.",
    write_errors counter "write_errors" "/writes/errors"
        "Failed requests to write pages to the drives; the pages stay dirty.",
    throttled counter "throttled" "/writes/throttled"
        "Client writes delayed to limit the amount of dirty data.",
    evicted counter "evicted_pages" "/evicted" "Clean pages evicted to make room for others.",
    size_bytes gauge "size_bytes" "/size_bytes" "Memory of the cache.",
    page_bytes gauge "page_bytes" "/page_bytes" "Size of a page of the cache.",
    dirty_max_bytes gauge "dirty_max_bytes" "/dirty_max_bytes" "Maximum amount of dirty data.",
    dirty_bytes gauge "dirty_bytes" "/dirty_bytes"
        "Data not yet written to the drives, in whole pages.",
}
}

impl CacheCounts {
    pub fn new(cache: &Cache<Native>) -> CacheCounts {
        let (config, stats) = (cache.config(), cache.stats());
        CacheCounts {
            volume: cache.below().name().to_owned(),
            mode: mode_word(config.mode).to_owned(),
            stats: CacheNumbers {
                read_hits: stats.read_hits,
                read_misses: stats.read_misses,
                read_ahead: stats.read_ahead,
                written: stats.written,
                overwritten: stats.overwritten,
                written_back: stats.written_back,
                write_requests: stats.write_requests,
                write_errors: stats.write_errors,
                throttled: stats.throttled,
                evicted: stats.evicted,
                size_bytes: config.size_bytes,
                page_bytes: stats.page_bytes,
                dirty_max_bytes: config.dirty_max(),
                dirty_bytes: stats.dirty * stats.page_bytes,
            },
        }
    }

    pub fn since(&self, before: &CacheCounts) -> CacheCounts {
        CacheCounts { stats: self.stats.since(before.stats), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_of_a_cache_groups_its_counters_and_is_read_back() {
        let stats = CacheNumbers { written_back: 7, dirty_bytes: 4096, ..CacheNumbers::default() };
        let cache = CacheCounts { volume: "v".to_owned(), stats, ..CacheCounts::default() };
        let json = serde_json::json!(cache);
        assert_eq!((&json["writes"]["back"], &json["dirty_bytes"]), (&7.into(), &4096.into()));
        assert_eq!(serde_json::from_value::<CacheCounts>(json).unwrap(), cache);
        let empty = serde_json::from_str::<CacheCounts>("{}").unwrap();
        assert_eq!(empty, CacheCounts::default(), "of another version");
    }

    #[test]
    fn what_came_in_between_keeps_what_is_so_now() {
        let before = CacheNumbers { dirty_bytes: 9, read_hits: 5, ..CacheNumbers::default() };
        let now = CacheNumbers { dirty_bytes: 4096, read_hits: 8, ..CacheNumbers::default() };
        let since = now.since(before);
        assert_eq!((since.read_hits, since.dirty_bytes), (3, 4096));
    }
}
