//! `Cache`: the state that all queues and the flusher of a cache share.
//!
//! Epochs count flushes: a page belongs to the epoch in which it became dirty, and a flush waits
//! for all pages of its epoch and of earlier ones. Lock order: a thread locks one shard at a time.
//! While it holds a shard's lock, it takes no other lock than that of `DiscardRanges`.

pub(crate) mod clearing;
pub(crate) mod failed_writes;
pub(crate) mod first_dirty;
pub(crate) mod pace;
pub(crate) mod signal;

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_block::{Error, Sector, Volume};
use millrace_machine::{Doorbell, Lock, Machine, Order, Word, debug_fields};

use crate::cache::clearing::DiscardRanges;
use crate::cache::failed_writes::FailedWrites;
use crate::cache::first_dirty::{DirtyCall, FirstDirty};
use crate::cache::pace::WritePacer;
use crate::cache::signal::QueueSignals;
use crate::config::{CacheConfig, CacheMode, Registered};
use crate::memory::extent::DirtyStamp;
use crate::memory::frames::FrameMemory;
use crate::memory::page::PageSize;
use crate::memory::shard::{Shard, hash_of};
use crate::stats::CacheStats;

const SHARDS_MAX: u32 = 64;
const SHARD_FRAMES_MIN: u32 = 256;
/// Smallest chunk size of a stripe, in sectors, with which every read and write of the cache stays
/// on one drive. With smaller chunks, a read or write may span several drives.
const CHUNK_SECTORS_MIN: u64 = 64;
/// Longest range, in extents, that is looked up extent by extent. For a longer range, the cache
/// scans all extents in memory.
const RANGE_EXTENTS_MAX: u64 = 4096;

/// Page cache in memory for the data of one volume.
pub struct Cache<M: Machine> {
    pub(crate) config: CacheConfig,
    pub(crate) below: Arc<Volume<M>>,
    pub(crate) page: PageSize,
    pub(crate) frames: FrameMemory,
    pub(crate) shards: Box<[M::Lock<Shard>]>,
    /// Number of the current epoch. Each flush and each durable write ends an epoch.
    epoch: M::Word,
    dirty: M::Word,
    pub(crate) first_dirty: FirstDirty<M>,
    pub(crate) signals: QueueSignals<M>,
    pub(crate) pace: WritePacer<M>,
    pub(crate) flusher: FlusherCall<M>,
    pub(crate) clearing: DiscardRanges<M>,
    pub(crate) failed_writes: FailedWrites<M>,
    pub(crate) counts: WriteCounters<M>,
}

debug_fields!(Cache<M: Machine>, config, below);

pub(crate) struct FlusherCall<M: Machine> {
    /// Newest epoch that a flush waits for, plus one. 0 before the first flush.
    until: M::Word,
    /// 1 if a client's write waits for free cache memory.
    is_short: M::Word,
    /// Set to 1 when the flusher is woken, and to 0 when the flusher reads `until` and `is_short`.
    is_rung: M::Word,
    bell: M::Lock<Option<Arc<Doorbell<M>>>>,
}

pub(crate) struct WriteCounters<M: Machine> {
    pub(crate) written_back: M::Word,
    pub(crate) write_requests: M::Word,
    pub(crate) write_errors: M::Word,
    pub(crate) throttled: M::Word,
}

impl<M: Machine> FlusherCall<M> {
    fn new() -> Self {
        FlusherCall {
            until: M::Word::new(0),
            is_short: M::Word::new(0),
            is_rung: M::Word::new(0),
            bell: M::Lock::new("cache-flusher", None),
        }
    }

    /// Sets the doorbell that wakes the flusher's thread. `None` means that the flusher has ended.
    pub(crate) fn set_bell(&self, bell: Option<Arc<Doorbell<M>>>) {
        *self.bell.lock() = bell;
    }

    pub(crate) fn is_there(&self) -> bool {
        self.bell.lock().is_some()
    }

    pub(crate) fn ring(&self) {
        if self.is_rung.swap(1, Order::AcqRel) == 0
            && let Some(bell) = &*self.bell.lock()
        {
            bell.ring();
        }
    }

    /// Asks the flusher to write all data that became dirty in `epoch` (the time between two
    /// flushes) or earlier.
    pub(crate) fn ask_until(&self, epoch: u64) {
        let mut seen = self.until.load(Order::Relaxed);
        while seen < epoch + 1 {
            match self.until.compare_exchange(seen, epoch + 1, Order::AcqRel, Order::Relaxed) {
                Ok(_) => break,
                Err(found) => seen = found,
            }
        }
        self.ring();
    }

    pub(crate) fn ask_memory(&self) {
        self.is_short.store(1, Order::Release);
        self.ring();
    }

    pub(crate) fn is_rung(&self) -> bool {
        self.is_rung.load(Order::Acquire) != 0
    }

    /// Returns the values of `until` and `is_short`, and clears the wake-up flag and `is_short`.
    ///
    /// - `until`: the newest epoch (time between two flushes) that a flush waits for, plus one.
    /// - `is_short`: true if a write waits for memory.
    pub(crate) fn look(&self) -> (u64, bool) {
        // AcqRel pairs with the swap in `ring`. All stores to `until` and `is_short` before that
        // swap are visible.
        self.is_rung.swap(0, Order::AcqRel);
        (self.until.load(Order::Acquire), self.is_short.swap(0, Order::AcqRel) != 0)
    }
}

impl<M: Machine> Cache<M> {
    /// Creates an empty cache over a volume. The caller must create one [`Flusher`](crate::Flusher)
    /// for it, and a disk with a [`CacheDriver`](crate::CacheDriver).
    ///
    /// # Errors
    /// `InvalidSetting` if the settings are out of range, `System` if there is not enough memory.
    pub fn new(below: Arc<Volume<M>>, config: CacheConfig) -> Result<Arc<Cache<M>>, Error> {
        config.validate().map_err(|error| {
            Error::new(error.kind(), format!("cache of volume {}: {error}", below.name()))
        })?;
        let page = PageSize::over(below.limits().logical_block_size);
        let frames = FrameMemory::new(config.frames(page), page)?;
        if config.registered == Registered::Always {
            frames.arena.lend_to(&below);
        }
        let count = (frames.count / SHARD_FRAMES_MIN).clamp(1, SHARDS_MAX);
        let count = 1 << count.ilog2();
        let share = frames.count / count;
        let shard = |at| M::Lock::new("cache-shard", Shard::new(at * share, share));
        Ok(Arc::new(Cache {
            shards: (0..count).map(shard).collect(),
            page,
            frames,
            failed_writes: FailedWrites::new(below.disks().len()),
            below,
            config,
            epoch: M::Word::new(1),
            dirty: M::Word::new(0),
            first_dirty: FirstDirty::new(),
            signals: QueueSignals::new(),
            pace: WritePacer::new(),
            flusher: FlusherCall::new(),
            clearing: DiscardRanges::new(page),
            counts: WriteCounters {
                written_back: M::Word::new(0),
                write_requests: M::Word::new(0),
                write_errors: M::Word::new(0),
                throttled: M::Word::new(0),
            },
        }))
    }

    /// Returns the volume whose data the cache holds.
    #[must_use]
    pub fn below(&self) -> &Arc<Volume<M>> {
        &self.below
    }

    /// Returns the settings that the cache was created with.
    #[must_use]
    pub fn config(&self) -> &CacheConfig {
        &self.config
    }

    /// Returns the address and the length of the cache's memory, for drivers that register memory
    /// in advance.
    #[must_use]
    pub fn memory(&self) -> (*mut u8, usize) {
        (self.frames.arena.start(), self.frames.arena.len_bytes())
    }

    /// Returns the cache's counters.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        // Relaxed: these are statistics; no other memory access depends on them.
        let of = |word: &M::Word| word.load(Order::Relaxed);
        let mut stats = CacheStats {
            page_bytes: self.page.bytes() as u64,
            dirty: self.dirty_pages(),
            pages: self.frames.count.into(),
            written_back: of(&self.counts.written_back),
            write_requests: of(&self.counts.write_requests),
            write_errors: of(&self.counts.write_errors),
            throttled: of(&self.counts.throttled),
            ..CacheStats::default()
        };
        self.shards.iter().for_each(|shard| stats.add(&shard.lock().stats));
        stats
    }

    pub(crate) fn write_errors(&self) -> u64 {
        self.counts.write_errors.load(Order::SeqCst)
    }

    /// Returns the number of pages written to the volume so far, [`CacheStats::written_back`],
    /// without taking a lock.
    #[must_use]
    pub fn written_back(&self) -> u64 {
        // Relaxed: these are statistics; no other memory access depends on them.
        self.counts.written_back.load(Order::Relaxed)
    }

    #[inline]
    pub(crate) fn shard(&self, extent: u64) -> &M::Lock<Shard> {
        let bits = self.shards.len().trailing_zeros();
        // The shard's index is taken from bits 40 and up of the hash, because the hash table inside
        // the shard uses the lowest and the topmost bits.
        &self.shards[(hash_of(extent) >> 40) as usize & ((1 << bits) - 1)]
    }

    pub(crate) fn has_small_chunks(&self) -> bool {
        let (_, run) = self.below.drive_at(0);
        self.below.disks().len() > 1 && run < CHUNK_SECTORS_MIN
    }

    pub(crate) fn is_write_through(&self) -> bool {
        self.config.mode == CacheMode::WriteThrough
    }

    /// Returns the present time and the number of the current epoch (time between two flushes), for
    /// data that become dirty now. The caller must hold the shard's lock.
    pub(crate) fn dirtied(&self) -> DirtyStamp {
        DirtyStamp { epoch: self.epoch.load(Order::SeqCst), at_ns: M::now() }
    }

    /// Ends the current epoch and returns its number. All data that are dirty now belong to the
    /// ended epoch or an earlier one.
    pub(crate) fn end_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, Order::SeqCst)
    }

    /// Returns true if all data that became dirty in `epoch` or earlier are on the volume below.
    pub(crate) fn is_below(&self, epoch: u64) -> bool {
        let owes = |shard: &M::Lock<Shard>| {
            shard.lock().oldest_epoch().is_some_and(|oldest| oldest <= epoch)
        };
        !self.shards.iter().any(owes)
    }

    /// Returns the number of pages that are dirty or being written. The counter itself may briefly
    /// be negative, because writers add to it only after they have unlocked the shards.
    pub(crate) fn dirty_pages(&self) -> u64 {
        self.dirty.load(Order::Relaxed).cast_signed().max(0).cast_unsigned()
    }

    /// Registers a callback that runs before the cache answers its first write from memory. No
    /// write is answered from memory until the callback has returned. Several threads may call the
    /// callback at once; it must make the later calls wait for the first. Register the callback
    /// before using the cache.
    pub fn before_first_dirty(&self, call: DirtyCall) {
        self.first_dirty.set(call);
    }

    /// Adds newly dirty pages to the count. Wakes the flusher for the first dirty page, and when
    /// the count exceeds half of the dirty limit.
    pub(crate) fn add_dirty(&self, pages: u64) {
        self.first_dirty.note();
        let before = self.dirty.fetch_add(pages, Order::AcqRel).cast_signed();
        let mark = self.dirty_max_pages() / 2 + self.failed_writes.pages();
        let (now, mark) = (before + pages.cast_signed(), mark.cast_signed());
        if before <= 0 || (before <= mark && now > mark) {
            self.flusher.ring();
        }
    }

    pub(crate) fn sub_dirty(&self, pages: u64) {
        self.dirty.fetch_add(pages.wrapping_neg(), Order::AcqRel);
    }

    pub(crate) fn dirty_max_pages(&self) -> u64 {
        self.page.fit(self.config.dirty_max())
    }

    pub(crate) fn sectors(&self) -> Sector {
        self.below.capacity()
    }

    /// Returns true if sectors of the range may be newer in memory than on the volume.
    pub(crate) fn owes_some(&self, sector: Sector, nr_sectors: u64) -> bool {
        // The range is searched even if the cache's count of dirty pages is 0, because that count
        // may briefly be too low (see `dirty_pages`).
        self.any_extent((sector, sector + nr_sectors), |shard, at| {
            let extent = shard.extent(at);
            extent.writing != 0 || extent.is_dirty()
        })
    }

    /// Calls `f` for the extents in memory that overlap a range of sectors, with the shard locked.
    /// Stops and returns true after the first call that returns true.
    pub(crate) fn any_extent(
        &self,
        span: (Sector, Sector),
        mut f: impl FnMut(&mut Shard, u32) -> bool,
    ) -> bool {
        let mut range = self.page.extents_of(span);
        let mut visit =
            |shard: &mut Shard, number| shard.find(number).is_some_and(|at| f(shard, at));
        if range.end() - range.start() < RANGE_EXTENTS_MAX {
            return range.any(|number| visit(&mut self.shard(number).lock(), number));
        }
        self.shards.iter().any(|shard| {
            let mut shard = shard.lock();
            let numbers = shard.all().map(|extent| extent.number);
            let numbers: Vec<u64> = numbers.filter(|number| range.contains(number)).collect();
            numbers.into_iter().any(|number| visit(&mut shard, number))
        })
    }
}
