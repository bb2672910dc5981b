//! `Flusher`: the thread of a cache that brings dirty pages to the volume.
//!
//! One for each cache. Its `turn` collects what is due (too much is dirty, it is old, a flush or a
//! writer waits for it), sorts it and hands it to its channel of the volume; who serves the drives
//! is the volume's setting: with workers this thread only batches (\[FALCON\]). Whoever runs it
//! calls `turn` between sleeps, as with a [`Channel`]. Dropped, it leaves dirty pages where they
//! are: flush the cache's disk before. Kernel counterpart: `wb_workfn`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;

use millrace_block::{Bio, Channel};
use millrace_machine::{Doorbell, Lock, Machine, Order, Word};

use crate::cache::Cache;
use crate::cache::failed_writes::RETRY_NS;
use crate::memory::extent::{ALL_PAGES, Extent};
use crate::memory::shard::{DuePages, Shard};
use crate::write_back::write_queues::FlusherConfig;
use crate::write_back::writeout::Writeout;

/// Most bytes collected for one sort.
const BATCH_BYTES: u64 = 16 << 20;
/// Bytes on their way above which nothing is collected, and the part of them that drives share: all
/// drives but one that take nothing leave room for that one.
const ON_THEIR_WAY_BYTES: u64 = 64 << 20;
const SHARES_BYTES: u64 = ON_THEIR_WAY_BYTES - BATCH_BYTES;
/// Time until pages are looked for once more where a drive has its share and nothing else is due;
/// and at the latest where drives have lists of their own, since one that had nothing may get some.
const LOOK_NS: u64 = 10_000_000;
/// How much older pages get while a flush waits for others.
const HURRY_NS: u64 = 500_000_000;
/// Shortest time over which the rate is measured, and the longest without a write that counts.
const RATE_NS: u64 = 50_000_000;
const PAUSE_NS: u64 = 1_000_000_000;
/// Bytes over which it is measured if they are written far faster than it says: after a pause of
/// the drives what was measured is far too low, and writers that are held for it give little to do.
const FASTER_BYTES: u64 = 1 << 20;
/// Extents with which a drive that fails is tried once more.
const PROBE_EXTENTS: usize = 8;

/// Number of the flush at the end among the writes, of which none has it.
const FLUSH: u64 = u64::MAX;

/// The thread of a cache that brings dirty pages to the volume.
pub struct Flusher<M: Machine> {
    cache: Arc<Cache<M>>,
    below: Channel<M>,
    writeout: Writeout,
    /// The shard where collecting goes on.
    next_shard: usize,
    rate: WriteRate,
    errors_seen: u64,
    /// Stranded extents that the next probe leaves out, so that each is tried at some time.
    probe_at: usize,
    /// Somebody finds no memory, and nothing was collected since.
    is_short: bool,
    /// When to look for pages at the earliest, and when they were looked for last.
    look_ns: u64,
    collected_ns: u64,
    /// The flush at the end is under way.
    is_flushing: bool,
}

/// How fast pages reach the volume, measured while some are on their way.
#[derive(Debug, Default)]
struct WriteRate {
    /// The last turn, and how many pages were on their way after it.
    last: (u64, usize),
    /// Time with pages on their way since the rate was said.
    busy_ns: u64,
    /// Bytes written by then.
    written: u64,
    /// The rate that was said.
    said: u64,
}

impl WriteRate {
    /// Notes a turn, with the bytes written so far and the pages that are on their way; gives the
    /// rate in bytes a second when it was measured for long enough.
    fn note(&mut self, now_ns: u64, written: u64, under_way: usize) -> Option<u64> {
        let (last_ns, before) = core::mem::replace(&mut self.last, (now_ns, under_way));
        if before > 0 {
            self.busy_ns += now_ns.saturating_sub(last_ns);
        }
        let bytes = written.saturating_sub(self.written);
        if bytes == 0 {
            self.busy_ns = self.busy_ns.min(PAUSE_NS);
            return None;
        }
        let rate = u128::from(bytes) * 1_000_000_000 / u128::from(self.busy_ns.max(1));
        let rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
        let is_faster = self.said > 0 && bytes >= FASTER_BYTES && rate / 4 > self.said;
        if self.busy_ns < RATE_NS && !is_faster {
            return None;
        }
        (self.busy_ns, self.written, self.said) = (0, written, rate);
        Some(rate)
    }
}

impl<M: Machine> Flusher<M> {
    /// The flusher of a cache. `below` is a channel of the calling thread to the cache's volume, of
    /// the depth that `FlusherConfig::channel_depth` says, and `bell` wakes that thread.
    pub fn new(
        cache: &Arc<Cache<M>>,
        (below, config): (Channel<M>, FlusherConfig),
        bell: &Arc<Doorbell<M>>,
    ) -> Self {
        cache.flusher.set_bell(Some(Arc::clone(bell)));
        Flusher {
            writeout: Writeout::new(cache, config),
            cache: Arc::clone(cache),
            below,
            next_shard: 0,
            rate: WriteRate::default(),
            errors_seen: 0,
            probe_at: 0,
            is_short: false,
            look_ns: 0,
            collected_ns: 0,
            is_flushing: false,
        }
    }

    /// Collects what is due, sends it, and takes what is written. Does not wait.
    pub fn turn(&mut self) {
        let (cache, writeout) = (&self.cache, &mut self.writeout);
        let (mut ended, is_flushing) = (false, &mut self.is_flushing);
        self.below.poll(|done| match done.user_data {
            FLUSH => *is_flushing = false,
            at => {
                writeout.ended(cache, at as usize, done.status);
                ended = true;
            }
        });
        let (until, is_short) = self.cache.flusher.look();
        let now_ns = M::now();
        self.is_short |= is_short;
        self.note_errors(now_ns);
        self.collect(until, now_ns);
        self.probe(now_ns);
        if self.writeout.send((&self.cache, &mut self.below), |at| at as u64) {
            self.below.flush();
        }
        self.below.tick();
        // Relaxed: a number that nothing depends on.
        let written = self.cache.counts.written_back.load(Order::Relaxed);
        let written = written * self.cache.page.bytes() as u64;
        if let Some(rate) = self.rate.note(now_ns, written, self.writeout.pages()) {
            self.cache.pace.set_rate(rate);
        }
        if ended {
            self.cache.signals.wake();
        }
    }

    /// Flushes the drives, if the cache still owes them something: what they took of it is there
    /// for good, although no flush of the cache can succeed.
    pub fn begin_last_flush(&mut self) {
        if self.cache.dirty_pages() > 0 && !self.is_flushing {
            let flush = Bio::flush().with_user_data(FLUSH);
            self.is_flushing = self.below.submit(flush).is_ok();
            self.below.flush();
        }
    }

    /// Whether the flush at the end is under way.
    #[must_use]
    pub fn is_flushing(&self) -> bool {
        self.is_flushing
    }

    /// After a failure, and when a drive fails no longer, whoever waits is told.
    fn note_errors(&mut self, now_ns: u64) {
        let errors = self.cache.counts.write_errors.load(Order::Acquire)
            + self.cache.failed_writes.stuck_changes();
        let is_new = core::mem::replace(&mut self.errors_seen, errors) != errors;
        let is_watched = is_new || self.cache.failed_writes.has_failing();
        let has_settled = is_watched && self.cache.settle(now_ns);
        if is_new || has_settled {
            self.cache.signals.wake();
        }
    }

    /// Tries drives that fail with a few of the pages that wait for them.
    fn probe(&mut self, now_ns: u64) {
        let cache = &self.cache;
        if !cache.failed_writes.has_failing() {
            return;
        }
        for member in cache.probes_due(now_ns) {
            if self.writeout.write_queues.has_waiting(member) {
                continue;
            }
            let is_its = |e: &Extent| {
                e.stranded != 0 && e.stranded & cache.pages_on(e.number, |it| it == member) != 0
            };
            let (seen, mut items) = (Cell::new(0), Vec::new());
            let count = |e: &Extent| {
                seen.set(seen.get() + usize::from(is_its(e)));
                DuePages::Later
            };
            let shards = cache.shards();
            shards.iter().for_each(|shard| shard.lock().collect(usize::MAX, &mut items, count));
            let (first, at) = (self.probe_at % seen.get().max(1), Cell::new(0));
            let is_due = |e: &Extent| {
                if !is_its(e) || cache.clearing.has_extent(e.number) {
                    return DuePages::Later;
                }
                let place = at.replace(at.get() + 1);
                match (first..first + PROBE_EXTENTS).contains(&place) {
                    true => DuePages::Pages(ALL_PAGES),
                    false => DuePages::Later,
                }
            };
            shards.iter().for_each(|shard| shard.lock().collect(usize::MAX, &mut items, is_due));
            self.probe_at = first + PROBE_EXTENTS;
            self.writeout.start(cache, items);
        }
    }

    fn collect(&mut self, until: u64, now_ns: u64) {
        let cache = &self.cache;
        let dirty = cache.live_pages(0);
        let fit = |bytes| cache.page.fit(bytes) as usize;
        let room = fit(ON_THEIR_WAY_BYTES).saturating_sub(self.writeout.pages());
        let (most, shares) = (fit(BATCH_BYTES).min(room), fit(SHARES_BYTES));
        let write_queues = &self.writeout.write_queues;
        let is_overdue = write_queues.is_divided() && now_ns >= self.collected_ns + LOOK_NS;
        if dirty == 0
            || most == 0
            || now_ns < self.look_ns
            || !(is_overdue || write_queues.wants_more())
        {
            return;
        }
        let (has_full, waits) = (write_queues.has_full(shares), cache.failed_writes.has_failing());
        let takes_all = core::mem::take(&mut self.is_short) || dirty > cache.dirty_max_pages() / 2;
        let old_ns = now_ns.saturating_sub(cache.config.dirty_age_ns);
        // What a flush waits for goes before what is merely old, for a while, and unless a drive
        // keeps it waiting.
        let is_owed = |shard: &M::Lock<Shard>| {
            shard.lock().oldest_epoch().is_some_and(|oldest| oldest < until)
        };
        let is_hurried = !waits && !has_full && cache.shards().iter().any(is_owed);
        let old_ns = old_ns.saturating_sub(if is_hurried { HURRY_NS } else { 0 });
        let is_due =
            |e: &Extent| match takes_all || e.dirtied.epoch < until || e.dirtied.at_ns <= old_ns {
                true if cache.clearing.has_extent(e.number) => DuePages::Later,
                true if has_full => {
                    let of_full =
                        cache.pages_on(e.number, |drive| write_queues.is_full(drive, shares));
                    DuePages::Beside(!e.stranded & !of_full)
                }
                true if waits => DuePages::Beside(!e.stranded),
                true => DuePages::Pages(!e.stranded),
                // Stranded ones keep their place, and their time; younger ones their place.
                false if e.stranded != 0 || e.young.is_all => DuePages::Later,
                false => DuePages::NoMore,
            };
        let mut items = Vec::with_capacity(most.min(dirty as usize));
        let shards = cache.shards();
        for _ in 0..shards.len() {
            if items.len() >= most {
                break;
            }
            shards[self.next_shard].lock().collect(most, &mut items, is_due);
            self.next_shard = (self.next_shard + 1) % shards.len();
        }
        if items.is_empty() && has_full {
            self.look_ns = now_ns + LOOK_NS;
        }
        self.collected_ns = now_ns;
        self.writeout.write_queues.begin();
        self.writeout.start(cache, items);
    }

    /// Whether there is something to do without sleeping: for a last look after arming the bell.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.cache.flusher.is_rung() || self.below.has_work()
    }

    /// When to turn again at the latest, if there is such a time.
    pub fn sleep_until(&mut self) -> Option<u64> {
        let mut next = self.below.sleep_until();
        let mut wake_at = |ns: u64| next = Some(next.map_or(ns, |other| other.min(ns)));
        if self.look_ns > M::now() {
            wake_at(self.look_ns);
        }
        if let Some(stuck_ns) = self.writeout.look_at_ns() {
            wake_at(stuck_ns);
        }
        if self.cache.failed_writes.has_failing() {
            wake_at(M::now() + RETRY_NS / 10);
        } else if self.cache.dirty_pages() > 0 {
            let oldest = self.cache.shards().iter().filter_map(|shard| shard.lock().oldest_ns());
            if let Some(oldest_ns) = oldest.min() {
                // What is due and could not be collected is being written, which rings.
                let due_ns = oldest_ns + self.cache.config.dirty_age_ns;
                wake_at(due_ns.max(M::now() + 1_000_000));
            }
        }
        next
    }

    /// Whether nothing is on its way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.writeout.pages() == 0
    }
}

impl<M: Machine> Drop for Flusher<M> {
    /// What is on its way is waited for, as long as a channel that is dropped waits; then the
    /// cache's memory is given up for lost, since a drive may still read it.
    fn drop(&mut self) {
        self.cache.flusher.set_bell(None);
        let (cache, writeout) = (&self.cache, &mut self.writeout);
        let is_drained = self.below.drain(|done| {
            if done.user_data != FLUSH {
                writeout.ended(cache, done.user_data as usize, done.status);
            }
        });
        if !is_drained {
            self.below.set_drain_ns(0);
            core::mem::forget(Arc::clone(&self.cache));
            self.writeout.forget();
        }
        self.cache.signals.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_of_the_time_with_pages_on_their_way() {
        let mut rate = WriteRate::default();
        assert_eq!(rate.note(RATE_NS * 9, 0, 1), None, "it was idle until now");
        assert_eq!(rate.note(RATE_NS * 9 + RATE_NS / 2, 4096, 0), None);
        assert_eq!(rate.note(RATE_NS * 20, 4096, 1), None, "idle time does not count");
        let all = 50 * 4096;
        assert_eq!(rate.note(RATE_NS * 20 + RATE_NS / 2, all, 1), Some(all * 20));
    }

    #[test]
    fn a_pause_makes_the_rate_low_for_no_longer_than_the_next_mebibyte() {
        let mut rate = WriteRate::default();
        assert_eq!(rate.note(0, 0, 1), None);
        for second in 1..100 {
            assert_eq!(rate.note(second * 1_000_000_000, 0, 1), None, "nothing is written");
        }
        let after_pause = rate.note(99_000_001_000, 40_960, 1);
        assert!(after_pause.is_some_and(|rate| rate.abs_diff(40_960) < 4096), "{after_pause:?}");
        assert_eq!(rate.note(99_000_002_000, 40_959 + FASTER_BYTES, 1), None);
        let rate = rate.note(99_000_003_000, 40_960 + FASTER_BYTES, 1);
        assert_eq!(rate, Some(FASTER_BYTES * 500_000));
    }
}
