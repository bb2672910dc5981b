//! Flushes, durable writes, discards and writes of zeroes of a cache queue.
//!
//! A flush ends an epoch (epochs count flushes). All data that became dirty in that epoch or
//! earlier are written to the volume. The queue itself writes small amounts, and the flusher writes
//! large amounts. Then the volume below is flushed.
//!
//! FUA writes, and all writes of a write-through cache, write the pages of their range to the
//! volume. Writes without FUA also write other dirty pages of the same extents. A FUA write ends
//! with a flush of the drives of its range. The flush is left out if the request has written all
//! its pages with FUA and no write has failed.
//!
//! A discard waits until no page of its range's extents is being written. Then the discard is
//! executed on the volume below, and the range is dropped from memory. Reads of the range that are
//! in flight are repeated, because their data may be older than the discard.

use alloc::vec::Vec;

use millrace_block::{Bio, Op, OpFlags, Request, Status};
use millrace_machine::{Lock, Machine};

use crate::front::queue::CacheQueue;
use crate::front::write::write_rest;
use crate::memory::cursor::span_of;
use crate::memory::extent::{ALL_PAGES, Extent};
use crate::memory::shard::DuePages;

/// Maximum amount of dirty data, in bytes, that a queue itself writes for a flush. The flusher
/// writes larger amounts.
const OWN_BYTES_MAX: u64 = 1 << 20;

impl<M: Machine> CacheQueue<M> {
    pub(crate) fn advance_sync_all(&mut self, at: usize, epoch: u64) {
        // In a write-through cache, a page is dirty only during an unanswered write or after a
        // failed one, so a flush has nothing to write.
        if self.cache.is_write_through() || self.sync_all(epoch) {
            return self.start_last(at, Bio::flush());
        }
        match self.cache.write_errors() != self.jobs[at].errors_before {
            true => self.end_job(at, self.cache.failed_writes.last_status()),
            false => self.block(at),
        }
    }

    pub(crate) fn advance_sync_range(&mut self, at: usize, epoch: u64) {
        let rq = self.jobs[at].rq();
        if let Some(status) = self.range_failure(rq) {
            return self.end_job(at, status);
        }
        if !self.sync_range(at, epoch) {
            return self.block(at);
        }
        if !write_rest(self, at) {
            let job = &self.jobs[at];
            // A final flush is not needed if this request itself wrote all its pages with FUA, and
            // no write of the cache has failed meanwhile.
            let is_durable = job.todo.is_empty() && job.errors_before == self.cache.write_errors();
            match rq.flags().has(OpFlags::FUA) && !is_durable {
                true => self.start_last(at, Bio::flush_range(rq.sector(), rq.nr_sectors())),
                false => self.end_job(at, Status::Ok),
            }
        }
    }

    fn range_failure(&self, rq: &Request<M>) -> Option<Status> {
        let (page, span, mut status) = (self.cache.page, span_of(rq), None);
        self.cache.any_extent(span, |shard, at| {
            let extent = shard.extent(at);
            let has_failed = extent.failed.pages & page.bits_of(extent.number, span) != 0;
            status = has_failed.then_some(extent.failed.status);
            has_failed
        });
        status
    }

    pub(crate) fn forget_failures(&self, rq: &Request<M>) {
        let (page, span) = (self.cache.page, span_of(rq));
        self.cache.any_extent(span, |shard, at| {
            let extent = shard.extent_mut(at);
            extent.failed.pages &= !page.bits_of(extent.number, span);
            false
        });
    }

    /// Returns true if all data that became dirty in `epoch` or earlier are on the volume.
    /// Otherwise starts writing these data.
    fn sync_all(&mut self, epoch: u64) -> bool {
        let cache = &self.cache;
        if cache.is_below(epoch) {
            return true;
        }
        if cache.dirty_pages() > cache.page.fit(OWN_BYTES_MAX) && cache.flusher.is_there() {
            cache.flusher.ask_until(epoch);
            return false;
        }
        let mut items = Vec::new();
        for shard in &cache.shards {
            let mut shard = shard.lock();
            shard.collect(usize::MAX, &mut items, |extent| match extent.dirtied.epoch <= epoch {
                true if cache.clearing.has_extent(extent.number) => DuePages::Later,
                true => DuePages::Pages(ALL_PAGES),
                false if extent.young.is_all => DuePages::Later,
                false => DuePages::NoMore,
            });
        }
        let started = !items.is_empty();
        self.writeout.start(&self.cache, items);
        // If no write was started, a discard may have dropped the last dirty data of `epoch` in the
        // meantime. So `is_below` is called again.
        !started && self.cache.is_below(epoch)
    }

    /// Writes some dirty pages to the volume, in a cache without a flusher. Pages that wait for a
    /// failing drive are written only by flushes.
    pub(crate) fn write_some_back(&mut self) {
        if self.writeout.pages > 0 {
            return;
        }
        if self.cache.settle(M::now()) {
            self.cache.signals.wake();
        }
        let (cache, mut items) = (&self.cache, Vec::new());
        let most = cache.page.fit(OWN_BYTES_MAX) as usize;
        for shard in &cache.shards {
            let is_due = |extent: &Extent| match cache.clearing.has_extent(extent.number) {
                true => DuePages::Later,
                false => DuePages::Pages(!extent.stranded),
            };
            shard.lock().collect(most, &mut items, is_due);
        }
        self.writeout.start(&self.cache, items);
    }

    /// Returns true if all data of the request's range that became dirty in `epoch` or earlier are
    /// on the volume. Otherwise starts writing these data.
    fn sync_range(&mut self, job: usize, epoch: u64) -> bool {
        let (mut items, mut is_below) = (Vec::new(), true);
        let rq = self.jobs[job].rq();
        let by = if rq.flags().has(OpFlags::FUA) { OpFlags::FUA } else { OpFlags::NONE };
        let (start, end) = span_of(rq);
        for number in self.cache.page.extents_of(span_of(rq)) {
            let bits = self.cache.page.bits_of(number, span_of(rq));
            let mut shard = self.cache.shard(number).lock();
            let Some(at) = shard.find(number) else { continue };
            let owes = |extent: &Extent| {
                (extent.dirty_bits() | extent.writing) & bits != 0 && extent.owes(epoch)
            };
            if owes(shard.extent(at)) {
                if !self.cache.clearing.has_extent(number) {
                    // `todo` lists the pages for which the drives must be flushed at the end. A
                    // page leaves `todo` if the request's whole part of the page is written here
                    // with FUA, and `is_awaited` is true. The request then waits for the write,
                    // because the extent became dirty in `epoch` or earlier.
                    let is_awaited = shard.extent(at).dirtied.epoch <= epoch;
                    let first = items.len();
                    // A FUA request writes only its own pages of this extent (16 consecutive
                    // pages). A request without FUA also writes the extent's other dirty pages,
                    // except pages that wait for a failing drive.
                    let is_fua = by == OpFlags::FUA;
                    let neighbours = if is_fua { 0 } else { !shard.extent(at).stranded };
                    match self.cache.failed_writes.has_failing() {
                        true => shard.collect_beside(at, bits | neighbours, &mut items),
                        false => shard.collect_one(at, bits | neighbours, &mut items),
                    }
                    for item in items[first..].iter().filter(|_| is_awaited) {
                        let own = self.cache.page.mask_of(item.page, start, end);
                        if item.mask & own == own {
                            self.jobs[job].forget_page(item.page);
                        }
                    }
                }
                is_below &= shard.find(number).is_none_or(|at| !owes(shard.extent(at)));
            }
        }
        self.writeout.start_with(&self.cache, items, by);
        is_below
    }

    pub(crate) fn advance_clear(&mut self, at: usize) {
        let rq = self.jobs[at].rq();
        if !core::mem::replace(&mut self.jobs[at].is_clearing, true) {
            self.cache.clearing.join(span_of(rq));
        }
        if self.cache.any_extent(span_of(rq), |shard, at| shard.extent(at).writing != 0) {
            return self.block(at);
        }
        let bio = match rq.op() {
            Op::Discard => Bio::discard(rq.sector(), rq.nr_sectors()),
            _ => Bio::write_zeroes(rq.sector(), rq.nr_sectors()),
        };
        self.start_last(at, bio.with_flags(rq.flags().without(OpFlags::FUA)));
    }

    pub(crate) fn end_last(&mut self, at: usize, status: Status) {
        let rq = self.jobs[at].rq();
        if matches!(rq.op(), Op::Discard | Op::WriteZeroes) {
            self.drop_range(rq, status);
            self.cache.clearing.leave(span_of(rq));
        }
        self.end_job(at, status);
    }

    /// Drops the sectors of a discard or write-zeroes from memory, and marks reads in flight as
    /// stale. If the request has failed, dirty data stay in memory. Clean data are dropped in any
    /// case, because some drives may have executed the failed request.
    fn drop_range(&mut self, rq: &Request<M>, status: Status) {
        let (cache, span, mut clean) = (&self.cache, span_of(rq), 0);
        cache.any_extent(span, |shard, at| {
            for (page, place) in shard.extent(at).page_range().zip(0..) {
                let extent = shard.extent_mut(at);
                let kept = if status.is_ok() { 0 } else { extent.dirty[place] };
                let mask = cache.page.mask_of(page, span.0, span.1) & !kept;
                let bit = 1u16 << place;
                if mask == 0 {
                    continue;
                }
                extent.stale |= extent.filling & bit;
                let was_dirty = extent.dirty[place] != 0;
                extent.dirty[place] &= !mask;
                extent.valid[place] &= !mask;
                let (is_clean, is_gone) = (extent.dirty[place] == 0, extent.valid[place] == 0);
                let is_written = extent.writing & bit != 0;
                clean += u64::from(was_dirty && is_clean);
                if is_clean {
                    cache.unstrand(shard, at, page);
                }
                if is_gone && !is_written {
                    shard.drop_page(at, place);
                }
            }
            shard.forget_if_empty(at);
            false
        });
        if clean > 0 {
            cache.sub_dirty(clean);
        }
    }
}
