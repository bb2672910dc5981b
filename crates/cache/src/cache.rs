//! `Cache`: what all queues and the flusher of a cache share.
//!
//! Owns the memory, the shards, and words that everybody reads: the epoch (how many flushes there
//! were), how many pages are dirty, up to which epoch the flusher is to write. Lock order: one
//! shard at a time, and no other lock under it. Called by queues, by the flusher, and by whoever
//! asks for statistics.

pub(crate) mod clearing;
pub(crate) mod failed_writes;
pub(crate) mod first_dirty;
pub(crate) mod pace;
pub(crate) mod signal;

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;

use millrace_block::{Error, ErrorKind, Sector, Volume};
use millrace_machine::{Doorbell, Lock, Machine, Order, Word};

use crate::cache::clearing::Clearing;
use crate::cache::failed_writes::FailedWrites;
use crate::cache::first_dirty::{DirtyCall, FirstDirty};
use crate::cache::pace::Pace;
use crate::cache::signal::Signals;
use crate::config::{CacheConfig, CacheMode, Registered};
use crate::memory::extent::DirtyStamp;
use crate::memory::frames::Frames;
use crate::memory::page::PageSize;
use crate::memory::shard::{Shard, hash_of};
use crate::stats::CacheStats;

/// Most shards, and the least frames of one.
const SHARDS_MAX: u32 = 64;
const SHARD_FRAMES_MIN: u32 = 256;
/// Chunks of a stripe that are no small ones: 32 KiB.
const CHUNK_SECTORS_MIN: u64 = 64;
/// Extents of a range above which all that the cache knows of are looked at instead.
const RANGE_EXTENTS_MAX: u64 = 4096;

/// A cache over a volume.
pub struct Cache<M: Machine> {
    pub(crate) config: CacheConfig,
    pub(crate) below: Arc<Volume<M>>,
    pub(crate) page: PageSize,
    pub(crate) frames: Frames,
    shards: Box<[M::Lock<Shard>]>,
    /// How many flushes there were.
    epoch: M::Word,
    /// Pages that are dirty, and pages that are being written.
    dirty: M::Word,
    first_dirty: FirstDirty<M>,
    pub(crate) signals: Signals<M>,
    pub(crate) pace: Pace<M>,
    pub(crate) flusher: FlusherCall<M>,
    pub(crate) clearing: Clearing<M>,
    pub(crate) failed_writes: FailedWrites<M>,
    pub(crate) counts: Counts<M>,
}

/// What queues ask the flusher for.
pub(crate) struct FlusherCall<M: Machine> {
    /// Up to and with this epoch less one all is to be written; 0 for none.
    until: M::Word,
    /// Somebody waits for memory.
    is_short: M::Word,
    /// Something has changed since the flusher looked.
    is_rung: M::Word,
    bell: M::Lock<Option<Arc<Doorbell<M>>>>,
}

/// What is counted beside the shards.
pub(crate) struct Counts<M: Machine> {
    pub(crate) written_back: M::Word,
    pub(crate) write_requests: M::Word,
    /// Writes below that failed.
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

    /// The flusher is there, or gone.
    pub(crate) fn set_bell(&self, bell: Option<Arc<Doorbell<M>>>) {
        *self.bell.lock() = bell;
    }

    /// Whether there is a flusher.
    pub(crate) fn is_there(&self) -> bool {
        self.bell.lock().is_some()
    }

    /// Has the flusher look.
    pub(crate) fn ring(&self) {
        if self.is_rung.swap(1, Order::AcqRel) == 0
            && let Some(bell) = &*self.bell.lock()
        {
            bell.ring();
        }
    }

    /// Has the flusher write all that was dirtied up to this epoch.
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

    /// Has the flusher write what it can, since somebody finds no memory.
    pub(crate) fn ask_memory(&self) {
        self.is_short.store(1, Order::Release);
        self.ring();
    }

    /// Whether something has changed since the last look.
    pub(crate) fn is_rung(&self) -> bool {
        self.is_rung.load(Order::Acquire) != 0
    }

    /// The epochs below which all is to be written, and whether somebody finds no memory; the look
    /// of the flusher.
    pub(crate) fn look(&self) -> (u64, bool) {
        // AcqRel pairs with the swap in `ring`: what was asked for before is seen.
        self.is_rung.swap(0, Order::AcqRel);
        (self.until.load(Order::Acquire), self.is_short.swap(0, Order::AcqRel) != 0)
    }
}

impl<M: Machine> Cache<M> {
    /// A cache over a volume, empty. One [`Flusher`](crate::Flusher) is to be made for it, and a
    /// disk of a [`CacheDriver`](crate::CacheDriver).
    ///
    /// # Errors
    /// `InvalidSetting` for settings that make no sense, `System` if there is no memory.
    pub fn new(below: Arc<Volume<M>>, config: CacheConfig) -> Result<Arc<Cache<M>>, Error> {
        if let Err(text) = config.validate() {
            let text = format!("cache of volume {}: {text}", below.name());
            return Err(Error::new(ErrorKind::InvalidSetting, text));
        }
        let page = PageSize::over(below.limits().logical_block_size);
        let frames = Frames::new(config.frames(page), page)?;
        if config.registered == Registered::Always {
            frames.arena().lend_to(&below);
        }
        let count = (frames.count() / SHARD_FRAMES_MIN).clamp(1, SHARDS_MAX);
        let count = 1 << count.ilog2();
        let share = frames.count() / count;
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
            signals: Signals::new(),
            pace: Pace::new(),
            flusher: FlusherCall::new(),
            clearing: Clearing::new(page),
            counts: Counts {
                written_back: M::Word::new(0),
                write_requests: M::Word::new(0),
                write_errors: M::Word::new(0),
                throttled: M::Word::new(0),
            },
        }))
    }

    /// The volume below.
    #[must_use]
    pub fn below(&self) -> &Arc<Volume<M>> {
        &self.below
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &CacheConfig {
        &self.config
    }

    /// First byte and length of its memory, for drivers that gain by knowing it beforehand.
    #[must_use]
    pub fn memory(&self) -> (*mut u8, usize) {
        (self.frames.arena().start(), self.frames.arena().len_bytes())
    }

    /// What it did so far.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        // Relaxed: numbers that nothing depends on.
        let of = |word: &M::Word| word.load(Order::Relaxed);
        let mut stats = CacheStats {
            page_bytes: self.page.bytes() as u64,
            dirty: self.dirty_pages(),
            pages: self.frames.count().into(),
            written_back: of(&self.counts.written_back),
            write_requests: of(&self.counts.write_requests),
            write_errors: of(&self.counts.write_errors),
            throttled: of(&self.counts.throttled),
            ..CacheStats::default()
        };
        self.shards.iter().for_each(|shard| stats.add(&shard.lock().stats));
        stats
    }

    /// Pages written to the volume so far: [`CacheStats::written_back`] alone, without a lock.
    #[must_use]
    pub fn written_back(&self) -> u64 {
        // Relaxed: a number that nothing depends on.
        self.counts.written_back.load(Order::Relaxed)
    }

    /// The shard of an extent.
    #[inline]
    pub(crate) fn shard(&self, extent: u64) -> &M::Lock<Shard> {
        let bits = self.shards.len().trailing_zeros();
        // The table inside takes the lower and the topmost bits.
        &self.shards[(hash_of(extent) >> 40) as usize & ((1 << bits) - 1)]
    }

    /// All shards.
    pub(crate) fn shards(&self) -> &[M::Lock<Shard>] {
        &self.shards
    }

    /// Whether drives take turns in chunks so small that the I/O of each by itself costs more than
    /// it gains.
    pub(crate) fn has_small_chunks(&self) -> bool {
        let (_, run) = self.below.drive_at(0);
        self.below.disks().len() > 1 && run < CHUNK_SECTORS_MIN
    }

    /// Whether writes wait until they are below.
    pub(crate) fn is_write_through(&self) -> bool {
        self.config.mode == CacheMode::WriteThrough
    }

    /// The present epoch and time; to be asked under the lock of a shard.
    pub(crate) fn dirtied(&self) -> DirtyStamp {
        DirtyStamp { epoch: self.epoch.load(Order::SeqCst), at_ns: M::now() }
    }

    /// Ends the present epoch: all that is dirty by now was dirtied up to the one that is given.
    pub(crate) fn end_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, Order::SeqCst)
    }

    /// Whether all that was dirtied up to an epoch is below.
    pub(crate) fn is_below(&self, epoch: u64) -> bool {
        let owes = |shard: &M::Lock<Shard>| {
            shard.lock().oldest_epoch().is_some_and(|oldest| oldest <= epoch)
        };
        !self.shards.iter().any(owes)
    }

    /// Pages that are dirty or being written. A writer counts its pages when it has let go of their
    /// shards: those that were written to the volume by then make it less than none for a moment.
    pub(crate) fn dirty_pages(&self) -> u64 {
        self.dirty.load(Order::Relaxed).cast_signed().max(0).cast_unsigned()
    }

    /// Has `call` run once the cache is about to answer its first write from memory; no such write
    /// is answered before the call has returned. Threads that serve may run it at the same time,
    /// and all of them wait for it. To be set before the cache is used.
    pub fn before_first_dirty(&self, call: DirtyCall) {
        self.first_dirty.set(call);
    }

    /// So many more pages are dirty; past the background mark the flusher is told.
    pub(crate) fn add_dirty(&self, pages: u64) {
        self.first_dirty.note();
        let before = self.dirty.fetch_add(pages, Order::AcqRel).cast_signed();
        let mark = self.dirty_max_pages() / 2 + self.failed_writes.pages();
        let (now, mark) = (before + pages.cast_signed(), mark.cast_signed());
        if before <= 0 || (before <= mark && now > mark) {
            self.flusher.ring();
        }
    }

    /// So many pages are clean, or gone.
    pub(crate) fn sub_dirty(&self, pages: u64) {
        self.dirty.fetch_add(pages.wrapping_neg(), Order::AcqRel);
    }

    /// The most pages that may be dirty.
    pub(crate) fn dirty_max_pages(&self) -> u64 {
        self.page.fit(self.config.dirty_max())
    }

    /// Sectors of the volume, which only become more.
    pub(crate) fn sectors(&self) -> Sector {
        self.below.capacity()
    }

    /// Whether something of a range of sectors is in memory only.
    pub(crate) fn owes_some(&self, sector: Sector, nr_sectors: u64) -> bool {
        let extent_sectors = self.page.extent_sectors();
        let (first, last) = (sector / extent_sectors, (sector + nr_sectors - 1) / extent_sectors);
        let owes = |shard: &Shard, number| {
            shard.find(number).is_some_and(|at| {
                let extent = shard.extent(at);
                extent.writing != 0 || extent.is_dirty()
            })
        };
        // How many pages are dirty says nothing here: see `dirty_pages`.
        if last - first < RANGE_EXTENTS_MAX {
            return (first..=last).any(|number| owes(&self.shard(number).lock(), number));
        }
        self.shards.iter().any(|shard| {
            let shard = shard.lock();
            shard.numbers().any(|it| (first..=last).contains(&it) && owes(&shard, it))
        })
    }
}
