//! `Writeout`: dirty pages on their way to the volume: sorted, merged to large writes, accounted.
//!
//! Owned by the flusher and, for small flushes and writes through, by queues. Takes what shards
//! gave out, sorts it by sector, makes one write of each run of sectors up to 512 KiB, and gives
//! each page back to its shard when the writes that carry it have ended. Frames that lie side by
//! side become one segment.
#![allow(unsafe_code)]

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use millrace_block::{Bio, Channel, Op, Reject, Rejected, Segment, Status};
use millrace_machine::{Lock, Machine, Order, Word};
use slab::Slab;

use crate::cache::Cache;
use crate::extent::{EXTENT_PAGES, PAGE_SECTORS, runs};
use crate::shard::Item;

/// Most sectors of one write.
const SECTORS_MAX: u32 = 1024;
/// Most segments of one write.
const SEGMENTS_MAX: usize = 256;

/// Pages that were collected together.
struct Batch {
    items: Vec<Item>,
    /// For each page, writes that carry it and have not ended, and whether one failed.
    states: Vec<(u8, bool)>,
    left: usize,
}

/// One write.
struct WriteBio {
    batch: usize,
    /// First and last page of the batch that it carries.
    pages: (usize, usize),
    sector: u64,
    segments: Vec<Segment>,
}

// SAFETY: the pointers of the segments are into the frames of the cache, which any thread may use.
unsafe impl Send for WriteBio {}

/// Dirty pages on their way.
#[derive(Default)]
pub(crate) struct Writeout {
    batches: Slab<Batch>,
    bios: Slab<WriteBio>,
    ready: VecDeque<usize>,
    /// Pages on their way.
    pages: usize,
}

impl Writeout {
    /// Pages on their way.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Whether there is something to be sent.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes pages that shards have given out.
    pub(crate) fn start<M: Machine>(&mut self, cache: &Cache<M>, mut items: Vec<Item>) {
        if items.is_empty() {
            return;
        }
        items.sort_unstable_by_key(|item| item.page);
        self.pages += items.len();
        let states = alloc::vec![(0, false); items.len()];
        let batch = self.batches.insert(Batch { left: items.len(), states, items });
        let mut open: Option<WriteBio> = None;
        for at in 0..self.batches[batch].items.len() {
            let item = self.batches[batch].items[at];
            for (first, len) in runs(item.mask) {
                let sector = item.page * PAGE_SECTORS + u64::from(first);
                let start = cache.frames.at(item.frame).wrapping_add(first as usize * 512);
                let piece = Segment { start, len_bytes: len * 512 };
                self.batches[batch].states[at].0 += 1;
                if !open.as_mut().is_some_and(|bio| bio.append(sector, piece, at)) {
                    let segments = alloc::vec![piece];
                    let new = WriteBio { batch, pages: (at, at), sector, segments };
                    self.push(open.replace(new));
                }
            }
        }
        self.push(open);
    }

    fn push(&mut self, bio: Option<WriteBio>) {
        if let Some(bio) = bio {
            self.ready.push_back(self.bios.insert(bio));
        }
    }

    /// Hands writes to a channel of the volume, as long as it takes them; `user_data` makes the
    /// number of a bio of that of a write. Gives whether any went.
    pub(crate) fn send<M: Machine>(
        &mut self,
        (cache, below): (&Cache<M>, &mut Channel<M>),
        user_data: impl Fn(usize) -> u64,
    ) -> bool {
        let mut sent = false;
        while let Some(at) = self.ready.pop_front() {
            let bio = &self.bios[at];
            let list = &raw const bio.segments[..];
            // SAFETY: the list stays in its slot, and frames that are written stay as they are,
            // until `ended` is told of this write.
            let bio = unsafe { Bio::foreign_vectored(Op::Write, bio.sector, list) };
            match below.submit(bio.with_user_data(user_data(at))) {
                Ok(()) => {
                    // Relaxed: a number that nothing depends on.
                    cache.counts.write_requests.fetch_add(1, Order::Relaxed);
                    sent = true;
                }
                Err(Rejected { reason: Reject::Full, .. }) => {
                    self.ready.push_front(at);
                    break;
                }
                Err(Rejected { reason: Reject::Invalid(status), .. }) => {
                    self.ended(cache, at, status);
                }
            }
        }
        sent
    }

    /// A write has ended: its pages go back to their shards with the last write that carries them.
    pub(crate) fn ended<M: Machine>(&mut self, cache: &Cache<M>, at: usize, status: Status) {
        let bio = self.bios.remove(at);
        let batch = &mut self.batches[bio.batch];
        if !status.is_ok() {
            // SeqCst: before the look who waits, in `Signals::wake`.
            cache.counts.write_errors.fetch_add(1, Order::SeqCst);
        }
        let mut clean = 0;
        for page in bio.pages.0..=bio.pages.1 {
            let (left, failed) = &mut batch.states[page];
            *left -= 1;
            *failed |= !status.is_ok();
            let status = if *failed { Status::IoError } else { Status::Ok };
            if *left == 0 {
                let item = &batch.items[page];
                let shard = cache.shard(item.page / EXTENT_PAGES as u64);
                clean += u64::from(shard.lock().end_write(item, status));
                (batch.left, self.pages) = (batch.left - 1, self.pages - 1);
            }
        }
        if status.is_ok() {
            cache.counts.written_back.fetch_add(clean, Order::Relaxed);
        }
        if batch.left == 0 {
            self.batches.remove(bio.batch);
        }
        if clean > 0 {
            cache.sub_dirty(clean);
        }
    }
}

impl WriteBio {
    /// Adds the next sectors of a batch; false if they do not follow, or the write is full.
    fn append(&mut self, sector: u64, piece: Segment, page: usize) -> bool {
        let bytes: u32 = self.segments.iter().map(|piece| piece.len_bytes).sum();
        let follows = self.sector + u64::from(bytes / 512) == sector;
        if !follows || (bytes + piece.len_bytes) / 512 > SECTORS_MAX {
            return false;
        }
        let last = self.segments.last_mut().expect("a write has memory");
        if last.start.wrapping_add(last.len_bytes as usize) == piece.start {
            last.len_bytes += piece.len_bytes;
        } else if self.segments.len() < SEGMENTS_MAX {
            self.segments.push(piece);
        } else {
            return false;
        }
        self.pages.1 = page;
        true
    }
}
