//! `Writers`: threads that write random pages through the cache, one at a time each.
//!
//! The cache has far less memory than the volume has pages, so what limits them in the long run is
//! how fast the flusher's pages reach the drives. Measured from a time at which what may be dirty
//! was written several times over.

use millrace_cache::CacheConfig;
use millrace_random::SplitMix64 as Random;

use crate::simulation::Host;
use crate::simulation::program::{Access, Program};

/// Size of the cache's memory; half of it may be dirty, and from a quarter on writers are slowed
/// down.
const CACHE_BYTES: u64 = 64 << 20;
/// Number of writes before the window: five times the number of pages that may be dirty.
const WARM_WRITES: u64 = 5 * (CACHE_BYTES / 2) / 4096;
/// Virtual time that is measured, in nanoseconds.
const LENGTH_NS: u64 = 200_000_000;

/// Writers of random pages, with their seed.
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
