//! `Hits`: reads that memory has, found and not copied yet, while the first lines of their pages
//! come into the processor's cache.
//!
//! Owned by a queue. A copy from a page that no processor cache has waits for the page's address
//! to be translated and for its first lines, and the next copy waits behind it; so does the look at
//! what is known of the page. So a group of reads is found, then looked at, then copied, and each
//! step asks for what the next one needs of all of them: waits overlap. Between steps the shard's
//! lock is given up: whoever copies looks once more which frame the page has. All are copied before
//! the batch ends (`commit_rqs`).
#![allow(unsafe_code)]

use alloc::vec::Vec;
use core::ops::Range;
use core::ptr::NonNull;

use millrace_block::{Request, Tag};
use millrace_machine::{Lock, Machine};

use crate::cache::Cache;
use crate::memory::cursor::{CopyDirection, Cursor, part_of, wanted_of};
use crate::memory::extent::{Extent, place_of};
use crate::memory::page::PageSize;
use crate::memory::shard::Shard;

/// Reads of a group.
const GROUP: usize = 8;
/// Bytes of a page that are asked for; the processor itself goes on from there.
const HINT_BYTES: usize = 512;

/// A read of one page whose extent memory had when it was handed over.
struct Hit<M: Machine> {
    rq: NonNull<Request<M>>,
    page: u64,
    /// The extent's place in its shard.
    at: u32,
}

// SAFETY: the request is the driver's until its tag is named, and is only read.
unsafe impl<M: Machine> Send for Hit<M> {}

/// The reads of a queue that were found and not copied yet, the oldest first.
pub(crate) struct Hits<M: Machine> {
    group: Vec<Hit<M>>,
    /// The next one to be copied, if some are copied already.
    next: usize,
}

impl<M: Machine> Hits<M> {
    pub(crate) fn new() -> Hits<M> {
        Hits { group: Vec::with_capacity(GROUP), next: 0 }
    }
}

impl<M: Machine> Hit<M> {
    fn rq<'a>(&self) -> &'a Request<M> {
        // SAFETY: a request lies in its tag set, which outlives the queue, and nobody else has it
        // until the queue names its tag, which ends the hit. The lifetime is that of a turn.
        unsafe { self.rq.as_ref() }
    }

    /// The frame of the page that is read, if memory has it; under the lock of the page's shard.
    #[inline]
    fn frame(&self, size: PageSize, shard: &mut Shard) -> Option<u32> {
        let (number, place) = place_of(self.page);
        let extent = shard.extent_mut(self.at);
        if extent.number != number {
            return None;
        }
        let frame = extent.frame_of(place, wanted_of(size, self.rq(), self.page))?;
        extent.note_hit(place);
        Some(frame)
    }
}

/// What came of a read that was found.
pub(crate) enum CopyOutcome<'a, M: Machine> {
    /// It is done.
    Done(Tag),
    /// Memory has its page no more, or never had.
    Missed(&'a Request<M>),
}

impl<M: Machine> Hits<M> {
    /// Keeps a read of one page for a moment if memory has its extent, whose lines come meanwhile;
    /// whether it is one.
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
        self.group.push(Hit { rq: NonNull::from(rq), page: pages.start, at });
        true
    }

    /// Whether the group is to be copied before another one is found.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.group.len() >= GROUP
    }

    /// Copies the next one of the group, which is empty after the last.
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
        let rq = hit.rq();
        let mut shard = cache.shard(place_of(hit.page).0).lock();
        let Some(frame) = hit.frame(cache.page, &mut shard) else {
            return Some(CopyOutcome::Missed(rq));
        };
        let (from, into, len) = part_of(cache.page, rq, hit.page);
        let memory = cache.frames.at(frame).wrapping_add(into);
        // SAFETY: the request is in flight, and the shard's lock keeps the frame.
        unsafe { Cursor::new(rq).copy(CopyDirection::ToRequest, from, memory, len) };
        shard.stats.read_hits += 1;
        Some(CopyOutcome::Done(rq.tag()))
    }

    /// Asks for the pages of a group; a single read would only wait here instead of there.
    #[inline]
    fn look(&self, cache: &Cache<M>) {
        if self.group.len() < 2 {
            return;
        }
        let mut starts = [core::ptr::null(); GROUP];
        for (start, hit) in starts.iter_mut().zip(&self.group) {
            let frame = hit.frame(cache.page, &mut cache.shard(place_of(hit.page).0).lock());
            if let Some(frame) = frame {
                let into = part_of(cache.page, hit.rq(), hit.page).1;
                *start = cache.frames.at(frame).wrapping_add(into).cast_const();
            }
        }
        // All addresses first: each may take a walk through page tables.
        let starts = &starts[..self.group.len().min(GROUP)];
        starts.iter().for_each(|start| M::will_read(*start, 1));
        starts.iter().for_each(|start| M::will_read(*start, HINT_BYTES));
    }
}
