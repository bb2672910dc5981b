//! `Writers`: threads that write random pages through the cache. Each thread writes one page at a
//! time.
//!
//! The cache holds only a small fraction of the volume's pages. Once many pages are dirty, the
//! threads write only as fast as the flusher writes pages to the drives. The measured window begins
//! after the threads have written several times as many pages as may be dirty.

use millrace_cache::CacheConfig;
use millrace_random::SplitMix64 as Random;

use crate::simulation::Host;
use crate::simulation::program::{Access, Program};

/// Size of the cache's memory in bytes. Half of the memory may be dirty; the cache slows writers
/// down if more than a quarter is dirty.
const CACHE_BYTES: u64 = 64 << 20;
/// Number of writes in the warm-up: five times the number of pages that may be dirty.
const WARM_WRITES: u64 = 5 * (CACHE_BYTES / 2) / 4096;
const LENGTH_NS: u64 = 200_000_000;

#[derive(Debug, Clone)]
pub(super) struct Writers(pub(super) u64);

impl Program for Writers {
    fn cache(&self) -> Option<CacheConfig> {
        Some(CacheConfig { size_bytes: CACHE_BYTES, ..CacheConfig::default() })
    }

    fn measured(&self) -> (u64, u64) {
        (WARM_WRITES, LENGTH_NS)
    }

    fn run<M: Host>(&self, number: u32, access: &mut Access<'_, M>) {
        let pages = access.volume().capacity() / 8;
        let mut random = Random::new(self.0 ^ u64::from(number + 1) << 24);
        while !access.is_over() {
            access.write((random.below(pages) * 8, 8));
            access.count(1);
        }
    }
}
