//! `PendingHits`: reads of single pages whose extent is in memory. The reads wait to be copied,
//! while the CPU prefetches their data.
//!
//! An access to data in no CPU cache waits for memory. These waits overlap, because reads are
//! handled in groups. First all extents are prefetched, then all pages, and then all pages are
//! copied. The shard's lock is released between these steps, so each copy looks up the page's frame
//! again. All hits are copied before the batch ends (`commit_rqs`).
#![allow(unsafe_code)]

use alloc::vec::Vec;
use core::ops::Range;

use millrace_block::{Request, Tag};
use millrace_machine::{Lock, Machine};

use crate::cache::Cache;
use crate::memory::cursor::{CopyDirection, RequestCursor, part_of, wanted_of};
use crate::memory::extent::{Extent, place_of};
use crate::memory::page::PageSize;
use crate::memory::request_pointer::RequestPointer;
use crate::memory::shard::Shard;

const GROUP: usize = 8;
/// Number of bytes of a page to prefetch; the processor's own prefetcher continues from there.
const HINT_BYTES: usize = 512;

struct PendingHit<M: Machine> {
    rq: RequestPointer<M>,
    page: u64,
    at: u32,
}

pub(crate) struct PendingHits<M: Machine> {
    group: Vec<PendingHit<M>>,
    next: usize,
}

impl<M: Machine> PendingHit<M> {
    #[inline]
    fn frame(&self, size: PageSize, shard: &mut Shard) -> Option<u32> {
        let (number, place) = place_of(self.page);
        let extent = shard.extent_mut(self.at);
        if extent.number != number {
            return None;
        }
        let frame = extent.frame_of(place, wanted_of(size, self.rq.get(), self.page))?;
        extent.note_hit(place);
        Some(frame)
    }
}

pub(crate) enum CopyOutcome<'a, M: Machine> {
    Done(Tag),
    /// A part of the page is not in memory, so the request must be handled as a miss.
    Missed(&'a Request<M>),
}

impl<M: Machine> PendingHits<M> {
    pub(crate) fn new() -> PendingHits<M> {
        PendingHits { group: Vec::with_capacity(GROUP), next: 0 }
    }

    /// Queues a read of a single page if the shard has the page's extent. Prefetches the extent
    /// into the CPU cache. Returns true if the read was queued.
    #[inline]
    pub(crate) fn find(&mut self, cache: &Cache<M>, rq: &Request<M>, pages: &Range<u64>) -> bool {
        if pages.end - pages.start != 1 {
            return false;
        }
        let number = place_of(pages.start).0;
        let shard = cache.shard(number).lock();
        let Some(at) = shard.find(number) else { return false };
        M::will_read((&raw const *shard.extent(at)).cast(), Extent::LINES_BYTES);
        drop(shard);
        self.group.push(PendingHit { rq: RequestPointer::new(rq), page: pages.start, at });
        true
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.group.len() >= GROUP
    }

    /// Copies cached data for the next of the pending reads. After the last one, empties the list
    /// of pending reads and returns `None`.
    #[inline]
    pub(crate) fn copy_next<'a>(&mut self, cache: &Cache<M>) -> Option<CopyOutcome<'a, M>> {
        if self.next == 0 {
            self.look(cache);
        }
        let Some(hit) = self.group.get(self.next) else {
            self.group.clear();
            self.next = 0;
            return None;
        };
        self.next += 1;
        let rq = hit.rq.get();
        let mut shard = cache.shard(place_of(hit.page).0).lock();
        let Some(frame) = hit.frame(cache.page, &mut shard) else {
            return Some(CopyOutcome::Missed(rq));
        };
        let mut cursor = RequestCursor::new(rq);
        // SAFETY: the request is in flight, and the shard is locked.
        unsafe { cursor.copy_page(CopyDirection::ToRequest, &cache.frames, hit.page, frame) };
        shard.stats.read_hits += 1;
        Some(CopyOutcome::Done(rq.tag()))
    }

    /// Prefetches the pages of all pending reads. Does nothing for a single read, whose copy
    /// follows at once, so that a prefetch would save no time.
    #[inline]
    fn look(&self, cache: &Cache<M>) {
        if self.group.len() < 2 {
            return;
        }
        let mut starts = [core::ptr::null(); GROUP];
        for (start, hit) in starts.iter_mut().zip(&self.group) {
            let frame = hit.frame(cache.page, &mut cache.shard(place_of(hit.page).0).lock());
            if let Some(frame) = frame {
                let into = part_of(cache.page, hit.rq.get(), hit.page).1;
                *start = cache.frames.at(frame).wrapping_add(into).cast_const();
            }
        }
        // Prefetches one byte of every page before the rest of any page, because the first access
        // to a page may need a page table walk.
        let starts = &starts[..self.group.len().min(GROUP)];
        starts.iter().for_each(|start| M::will_read(*start, 1));
        starts.iter().for_each(|start| M::will_read(*start, HINT_BYTES));
    }
}
