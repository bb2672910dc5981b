//! `Flusher`: the thread of a cache that writes dirty pages to the volume.
//!
//! `turn` collects the dirty pages that are due, sorts them and submits them on the flusher's
//! channel to the volume. A page is due if it is old, if too much data are dirty, or if a flush or
//! write waits. If worker threads serve the volume's drives, the flusher's thread only builds the
//! writes. Source: Kumar and Huang, ATC 2017, the Falcon paper. A flusher that is dropped leaves
//! dirty pages unwritten, so flush the cache's disk first. Kernel counterpart: `wb_workfn`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use millrace_block::{Bio, Channel};
use millrace_machine::{Doorbell, Lock, Machine, Order, Word, debug_fields, nanoseconds};

use crate::cache::Cache;
use crate::cache::failed_writes::RETRY_NS;
use crate::memory::extent::{ALL_PAGES, Extent};
use crate::memory::shard::{DuePages, Shard};
use crate::write_back::write_queues::FlusherConfig;
use crate::write_back::writeout::Writeout;

const BATCH_BYTES: u64 = 16 << 20;
const IN_FLIGHT_BYTES: u64 = 64 << 20;
/// Part of `IN_FLIGHT_BYTES` that is divided equally among the drives. The rest is a reserve: even
/// if all other drives are stuck, a working drive still gets writes.
const SHARES_BYTES: u64 = IN_FLIGHT_BYTES - BATCH_BYTES;
/// Time in nanoseconds after which the flusher searches for dirty pages again even if writes are
/// waiting. Applies only if the volume has several drives, each with its own list of writes. Also
/// the pause after a search that found no pages while a drive had used up its share of
/// `SHARES_BYTES`.
const LOOK_NS: u64 = 10_000_000;
/// Additional age in nanoseconds. While a flush waits, pages that the flush does not need become
/// due only when they are older by this time.
const HURRY_NS: u64 = 500_000_000;
const RATE_NS: u64 = 50_000_000;
/// Maximum of `WriteRate::busy_ns` while no write completes, in nanoseconds. Without the maximum, a
/// long pause of the drives would lower the next rate too much.
const PAUSE_NS: u64 = 1_000_000_000;
/// Number of bytes that must be written before a new write-back rate may replace the last rate
/// early, within `RATE_NS`. The new rate must also be more than four times the last one. This helps
/// after a pause of the drives, when the last rate is far too low and slows down writers.
const FASTER_BYTES: u64 = 1 << 20;
const PROBE_EXTENTS: usize = 8;

/// `user_data` of the flush at shutdown. No write has this number.
const FLUSH: u64 = u64::MAX;

/// Write-back thread of a cache.
pub struct Flusher<M: Machine> {
    cache: Arc<Cache<M>>,
    below: Channel<M>,
    writeout: Writeout,
    next_shard: usize,
    rate: WriteRate,
    errors_seen: u64,
    /// Number of extents of a failing drive that the next probe (trial write) skips, because their
    /// pages were tried by earlier probes.
    probe_at: usize,
    /// Set when a client's write waits for memory; cleared by the next search for dirty pages.
    is_short: bool,
    /// Time before which the flusher does not look for dirty pages to write.
    look_ns: u64,
    collected_ns: u64,
    is_flushing: bool,
}

debug_fields!(Flusher<M: Machine>, cache);

#[derive(Debug, Default)]
struct WriteRate {
    /// Time of the last call of `note`, and the number of pages in flight at that time.
    last: (u64, usize),
    /// Time in nanoseconds with pages in flight, since the rate was last measured.
    busy_ns: u64,
    written: u64,
    said: u64,
}

impl WriteRate {
    /// Returns the new write-back rate in bytes per second, or `None` if it is too early for one.
    /// `written` is the number of bytes written so far, `under_way` the number of pages in flight.
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
    /// Creates the flusher of a cache. `below` is the calling thread's channel to the cache's
    /// volume, with the depth from `FlusherConfig::channel_depth`. `bell` is the doorbell that
    /// wakes the calling thread, on which the flusher runs.
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

    /// Collects due pages, submits writes, and processes completions. Does not block.
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
        let written = self.cache.written_back() * self.cache.page.bytes() as u64;
        if let Some(rate) = self.rate.note(now_ns, written, self.writeout.pages) {
            self.cache.pace.set_rate(rate);
        }
        if ended {
            self.cache.signals.wake();
        }
    }

    /// Flushes the drives at shutdown if dirty pages remain, so that the data already written
    /// become durable. A flush of the cache itself would fail because of the remaining pages.
    pub fn begin_last_flush(&mut self) {
        if self.cache.dirty_pages() > 0 && !self.is_flushing {
            let flush = Bio::flush().with_user_data(FLUSH);
            self.is_flushing = self.below.submit(flush).is_ok();
            self.below.flush();
        }
    }

    /// Returns true while the flush at shutdown is in flight.
    #[must_use]
    pub fn is_flushing(&self) -> bool {
        self.is_flushing
    }

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
            let (mut numbers, mut items) = (Vec::new(), Vec::new());
            for shard in &cache.shards {
                let shard = shard.lock();
                let extents = shard.listed().map(|at| shard.extent(at)).filter(|e| is_its(e));
                numbers.extend(extents.map(|extent| extent.number));
            }
            let first = self.probe_at % numbers.len().max(1);
            for number in numbers.into_iter().skip(first).take(PROBE_EXTENTS) {
                let mut shard = cache.shard(number).lock();
                if let Some(at) = shard.find(number)
                    && !cache.clearing.has_extent(number)
                {
                    shard.collect_one(at, ALL_PAGES, &mut items);
                }
            }
            self.probe_at = first + PROBE_EXTENTS;
            self.writeout.start(cache, items);
        }
    }

    fn collect(&mut self, until: u64, now_ns: u64) {
        let cache = &self.cache;
        let dirty = cache.live_pages(0);
        let fit = |bytes| cache.page.fit(bytes) as usize;
        let room = fit(IN_FLIGHT_BYTES).saturating_sub(self.writeout.pages);
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
        let old_ns = now_ns.saturating_sub(nanoseconds(cache.config.dirty_age));
        // While a flush waits, pages that the flush does not need become due only `HURRY_NS` later.
        let is_owed = |shard: &M::Lock<Shard>| {
            shard.lock().oldest_epoch().is_some_and(|oldest| oldest < until)
        };
        let is_hurried = !waits && !has_full && cache.shards.iter().any(is_owed);
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
                // The dirty list is sorted by age, but older extents may follow after two kinds of
                // extents: extents with pages that wait for a failing drive (`stranded`), and
                // extents whose oldest pages are no longer dirty (`young.is_all`). So the search
                // continues after these extents.
                false if e.stranded != 0 || e.young.is_all => DuePages::Later,
                false => DuePages::NoMore,
            };
        let mut items = Vec::with_capacity(most.min(dirty as usize));
        let shards = &cache.shards;
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

    /// Returns true if there is work for `turn`. Call `has_work` again after arming the doorbell
    /// and before sleeping: work that arrived before the arming does not wake the thread.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.cache.flusher.is_rung() || self.below.has_work()
    }

    /// Returns the time by which `turn` must be called again, or `None` if there is no deadline.
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
            let oldest = self.cache.shards.iter().filter_map(|shard| shard.lock().oldest_ns());
            if let Some(oldest_ns) = oldest.min() {
                // Overdue pages wait for writes in flight, whose completions ring the doorbell. The
                // thread sleeps for at least 1 ms, because the due time has passed already and the
                // thread would otherwise loop until the pages are written.
                let due_ns = oldest_ns.saturating_add(nanoseconds(self.cache.config.dirty_age));
                wake_at(due_ns.max(M::now() + 1_000_000));
            }
        }
        next
    }

    /// Returns true if no pages are in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.writeout.pages == 0
    }
}

impl<M: Machine> Drop for Flusher<M> {
    /// Waits for writes in flight, up to the channel's time limit. If any are left after that,
    /// leaks the cache's memory, because a drive may still read it.
    fn drop(&mut self) {
        self.cache.flusher.set_bell(None);
        let (cache, writeout) = (&self.cache, &mut self.writeout);
        let is_drained = self.below.drain(|done| {
            if done.user_data != FLUSH {
                writeout.ended(cache, done.user_data as usize, done.status);
            }
        });
        if !is_drained {
            self.below.set_drain_timeout(Duration::ZERO);
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
    fn pause_makes_rate_low_for_no_longer_than_next_mebibyte() {
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
