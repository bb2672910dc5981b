//! `fault`: wraps any drive and injects errors, delays, stuck requests, the death of the drive, and
//! power cuts.
//!
//! `FaultControl` changes the rules at run time. With a volatile cache, the fault drive keeps the
//! content itself, in two images in memory (current and durable); it then uses only the size and
//! block size of the drive below, which holds no data. Kernel counterparts: dm-flakey,
//! dm-log-writes and the fault injection of null_blk.

mod cache;
mod control;
mod queue;
mod settings;

use std::sync::Arc;

use millrace_block::{
    Arena, Driver, DriverQueue, Error, ErrorKind, Extent, Features, HwQueues, QueueKind,
    QueueLimits, Sector, TagScope,
};
use millrace_machine::{Native, Topology, debug_fields};

use crate::common::extents::all_data;
use cache::SimulatedCache;
pub use control::{Chance, Effect, FaultControl, FaultRule, fault_controls};
use queue::FaultQueue;
pub(crate) use settings::ROW;

/// Maximum length of a discard or write-zeroes with a simulated cache, in sectors.
const MAX_CACHE_SECTORS: u32 = 64 << 11;

/// Kind of write cache that a fault drive pretends to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FaultCache {
    /// The fault drive simulates no cache and reports the cache of the wrapped drive.
    #[default]
    Inner,
    /// The fault drive simulates a volatile write cache and supports FUA writes.
    Volatile,
    /// The fault drive simulates a volatile write cache and does not support FUA writes.
    VolatileWithoutFua,
}

/// Settings of a fault drive.
#[derive(Debug, Clone, Default)]
pub struct FaultConfig {
    /// Name of the drive in [`fault_controls`].
    pub name: String,
    /// Rules for faults that apply from the start.
    pub rules: Vec<FaultRule>,
    /// Kind of write cache to pretend to have.
    pub cache: FaultCache,
    /// Seed of all random decisions.
    pub seed: u64,
}

/// A drive that wraps another one and injects faults.
pub struct FaultDriver {
    inner: Box<dyn Driver<Native>>,
    control: FaultControl,
    cache: FaultCache,
}

debug_fields!(FaultDriver, control);

impl FaultDriver {
    /// Wraps a drive.
    ///
    /// # Errors
    /// Returns `System` if there is not enough address space for the images of a volatile cache.
    pub fn new(inner: Box<dyn Driver<Native>>, config: FaultConfig) -> Result<FaultDriver, Error> {
        let images = match config.cache {
            FaultCache::Inner => None,
            _ => Some(SimulatedCache::new(inner.capacity(), config.seed)?),
        };
        let control = FaultControl::new(&config.name, config.seed, images);
        config.rules.into_iter().for_each(|rule| control.add_rule(rule));
        Ok(FaultDriver { inner, control, cache: config.cache })
    }

    /// Returns true if the fault drive may report the wrapped drive's holes. Clients do not read
    /// holes, so injected read errors would have no effect there. With a simulated cache, the data
    /// are not on the wrapped drive.
    fn vouches_for_holes(&self) -> bool {
        self.cache == FaultCache::Inner && !self.control.state.may_strike()
    }

    /// Returns a handle that controls the faults at run time.
    #[must_use]
    pub fn control(&self) -> FaultControl {
        self.control.clone()
    }
}

impl Driver<Native> for FaultDriver {
    fn capacity(&self) -> Sector {
        self.inner.capacity()
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn revalidate(&self) -> Result<Sector, Error> {
        let (old, new) = (self.inner.capacity(), self.inner.revalidate()?);
        if new > old && self.cache != FaultCache::Inner {
            let text = "a fault drive with a volatile cache holds its contents in memory, which \
                        cannot grow; start again";
            return Err(Error::new(ErrorKind::NotSupported, text));
        }
        Ok(new)
    }

    fn limits(&self) -> QueueLimits {
        let inner = self.inner.limits();
        if self.cache == FaultCache::Inner {
            return inner;
        }
        QueueLimits {
            logical_block_size: inner.logical_block_size,
            physical_block_size: inner.physical_block_size,
            max_discard_sectors: MAX_CACHE_SECTORS,
            max_write_zeroes_sectors: MAX_CACHE_SECTORS,
            features: Features {
                volatile_cache: true,
                process_cache: true,
                fua: self.cache == FaultCache::Volatile,
                read_only: inner.features.read_only,
                ..Features::default()
            },
            ..QueueLimits::default()
        }
    }

    fn hw_queues(&self, topology: &Topology) -> HwQueues {
        let inner = self.inner.hw_queues(topology);
        match self.cache {
            FaultCache::Inner => inner,
            _ => HwQueues { kind: QueueKind::AnyThread, tags: TagScope::PerQueue, ..inner },
        }
    }

    fn map(&self, ctx: usize, ctxs: usize, hctxs: usize) -> usize {
        self.inner.map(ctx, ctxs, hctxs)
    }

    /// Returns false, because a rule may delay a completion. An immediate drive would complete
    /// every request at the next `poll`.
    fn is_immediate(&self) -> bool {
        false
    }

    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        let inner = match self.cache {
            FaultCache::Inner => Some(self.inner.open_queue(index, depth)?),
            _ => None,
        };
        Ok(Box::new(FaultQueue::new(self.control.state.clone(), inner, depth)))
    }

    fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        match self.vouches_for_holes() {
            true => self.inner.extents(sector, nr_sectors),
            false => all_data(nr_sectors),
        }
    }

    fn reads_as_zeroes(&self, sector: Sector, nr_sectors: u64) -> bool {
        self.vouches_for_holes() && self.inner.reads_as_zeroes(sector, nr_sectors)
    }

    fn is_polled_idle(&self) -> bool {
        self.inner.is_polled_idle()
    }

    fn is_reconnecting(&self) -> bool {
        self.inner.is_reconnecting()
    }

    fn trouble(&self) -> Option<String> {
        self.inner.trouble()
    }

    fn flush_trouble(&self) -> Option<String> {
        self.inner.flush_trouble()
    }

    fn prepare_stop(&self) {
        self.inner.prepare_stop();
    }

    fn lend(&self, arena: &Arc<Arena>) {
        self.inner.lend(arena);
    }

    fn take_news(&self) -> Vec<String> {
        self.inner.take_news()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.inner.counts()
    }
}
