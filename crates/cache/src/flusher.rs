//! `Flusher`: the thread of a cache that brings dirty pages to the volume.
//!
//! One for each cache. Its `turn` collects what is due (too much is dirty, it is old, a flush or a
//! writer waits for it), sorts it and hands it to its channel of the volume; who serves the drives
//! is the volume's setting: with workers this thread only batches (\[FALCON\]). Whoever runs it
//! calls `turn` between sleeps, as with a [`Channel`]. Dropped, it leaves dirty pages where they
//! are: flush the cache's disk before. Kernel counterpart: `wb_workfn`.

use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_block::Channel;
use millrace_machine::{Doorbell, Lock, Machine, Order, Word};

use crate::cache::Cache;
use crate::extent::{Extent, PAGE_BYTES};
use crate::shard::Due;
use crate::writeout::Writeout;

/// Most pages collected for one sort.
const BATCH_PAGES: usize = 4096;
/// Pages on their way above which nothing is collected: 64 MiB.
const ON_THEIR_WAY_MAX: usize = 16_384;
/// Shortest time over which the rate is measured.
const RATE_NS: u64 = 50_000_000;
/// Pause after a write failed.
const RETRY_NS: u64 = 100_000_000;

/// The thread of a cache that brings dirty pages to the volume.
pub struct Flusher<M: Machine> {
    cache: Arc<Cache<M>>,
    below: Channel<M>,
    writeout: Writeout,
    /// The shard where collecting goes on.
    next_shard: usize,
    rate: Rate,
    /// Not before this time after a failure.
    retry_ns: u64,
    errors_seen: u64,
    /// Somebody finds no memory, and nothing was collected since.
    is_short: bool,
}

/// How fast pages reach the volume, measured while some are on their way.
#[derive(Debug, Default)]
struct Rate {
    /// The last turn, and how many pages were on their way after it.
    last: (u64, usize),
    /// Time with pages on their way since the rate was said.
    busy_ns: u64,
    /// Pages written by then.
    written: u64,
}

impl Rate {
    /// Notes a turn; gives the rate in bytes a second when it was measured for long enough.
    fn note(&mut self, now_ns: u64, written: u64, under_way: usize) -> Option<u64> {
        let (last_ns, before) = core::mem::replace(&mut self.last, (now_ns, under_way));
        if before > 0 {
            self.busy_ns += now_ns.saturating_sub(last_ns);
        }
        let pages = written.saturating_sub(self.written);
        if self.busy_ns < RATE_NS || pages == 0 {
            return None;
        }
        let bytes = u128::from(pages) * PAGE_BYTES as u128;
        let rate = bytes * 1_000_000_000 / u128::from(self.busy_ns);
        (self.busy_ns, self.written) = (0, written);
        Some(u64::try_from(rate).unwrap_or(u64::MAX).max(1))
    }
}

impl<M: Machine> Flusher<M> {
    /// The flusher of a cache. `below` is a channel of the calling thread to the cache's volume,
    /// and `bell` wakes that thread.
    pub fn new(cache: &Arc<Cache<M>>, below: Channel<M>, bell: &Arc<Doorbell<M>>) -> Self {
        cache.flusher.set_bell(Some(Arc::clone(bell)));
        Flusher {
            cache: Arc::clone(cache),
            below,
            writeout: Writeout::default(),
            next_shard: 0,
            rate: Rate::default(),
            retry_ns: 0,
            errors_seen: 0,
            is_short: false,
        }
    }

    /// Collects what is due, sends it, and takes what is written. Does not wait.
    pub fn turn(&mut self) {
        let (cache, writeout) = (&self.cache, &mut self.writeout);
        let mut ended = false;
        self.below.poll(|done| {
            writeout.ended(cache, done.user_data as usize, done.status);
            ended = true;
        });
        let (until, is_short) = self.cache.flusher.look();
        let now_ns = M::now();
        self.is_short |= is_short;
        self.note_errors(now_ns);
        self.collect(until, now_ns);
        if self.writeout.send((&self.cache, &mut self.below), |at| at as u64) {
            self.below.flush();
        }
        self.below.tick();
        // Relaxed: a number that nothing depends on.
        let written = self.cache.counts.written_back.load(Order::Relaxed);
        if let Some(rate) = self.rate.note(now_ns, written, self.writeout.pages()) {
            self.cache.pace.set_rate(rate);
        }
        if ended {
            self.cache.signals.wake();
        }
    }

    /// After a failure whoever waits is told, and the next try comes a while later.
    fn note_errors(&mut self, now_ns: u64) {
        let errors = self.cache.counts.write_errors.load(Order::Acquire);
        if errors != self.errors_seen {
            (self.errors_seen, self.retry_ns) = (errors, now_ns + RETRY_NS);
            self.cache.signals.wake();
        }
    }

    fn collect(&mut self, until: u64, now_ns: u64) {
        let cache = &self.cache;
        let dirty = cache.dirty_pages();
        let room = ON_THEIR_WAY_MAX.saturating_sub(self.writeout.pages());
        let most = BATCH_PAGES.min(room);
        if dirty == 0 || most == 0 || self.writeout.has_ready() || now_ns < self.retry_ns {
            return;
        }
        let takes_all = core::mem::take(&mut self.is_short) || dirty > cache.dirty_max_pages() / 2;
        let old_ns = now_ns.saturating_sub(cache.config.dirty_age_ns);
        let is_due = |e: &Extent| match takes_all || e.dirty_epoch < until || e.dirty_ns <= old_ns {
            true if cache.clearing.has_extent(e.number) => Due::Later,
            true => Due::Now,
            false => Due::NoMore,
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
        if self.retry_ns > M::now() && self.cache.dirty_pages() > 0 {
            wake_at(self.retry_ns);
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
        let is_drained =
            self.below.drain(|done| writeout.ended(cache, done.user_data as usize, done.status));
        if !is_drained {
            self.below.set_drain_ns(0);
            core::mem::forget(Arc::clone(&self.cache));
            core::mem::forget(core::mem::take(&mut self.writeout));
        }
        self.cache.signals.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_of_the_time_with_pages_on_their_way() {
        let mut rate = Rate::default();
        assert_eq!(rate.note(RATE_NS * 9, 0, 1), None, "it was idle until now");
        assert_eq!(rate.note(RATE_NS * 9 + RATE_NS / 2, 1, 0), None);
        assert_eq!(rate.note(RATE_NS * 20, 1, 1), None, "idle time does not count");
        let all = 50 * PAGE_BYTES as u64;
        assert_eq!(rate.note(RATE_NS * 20 + RATE_NS / 2, 50, 1), Some(all * 20));
    }
}
