//! `Shard`: the extents that hash to this part of the cache, with their frames, under one lock.
//!
//! A shard owns a share of the frames (memory of one page each), allocates them, and evicts clean
//! pages. Eviction uses the CLOCK algorithm: a hand goes round the frames, and spares a page once
//! if the page was hit since the hand last passed. The shard lists dirty extents in the order in
//! which they became dirty. For each epoch (epochs count flushes), the shard counts the extents
//! that are not on the volume yet.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use hashbrown::HashTable;
use millrace_block::Status;

use crate::memory::extent::{DirtyStamp, Extent, NO_EXTENT, NO_FRAME, YoungPages, place_of};
use crate::memory::frames::FrameMemory;
use crate::stats::CacheStats;

/// Hashes an extent's number: some bits choose the shard, others the bucket in the shard's table.
pub(crate) fn hash_of(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FrameOwner(u32);

impl FrameOwner {
    const NONE: FrameOwner = FrameOwner(u32::MAX);

    fn of(extent: u32, page: usize) -> FrameOwner {
        FrameOwner(extent << 4 | page as u32)
    }

    fn page(self) -> (u32, usize) {
        (self.0 >> 4, (self.0 & 15) as usize)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirtyPage {
    pub(crate) page: u64,
    pub(crate) frame: u32,
    pub(crate) mask: u8,
    /// True if the write is a probe, that is, tests whether a failing drive works again.
    pub(crate) is_probe: bool,
    /// True if the page's last write failed, so that it must be written without other pages.
    pub(crate) is_alone: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    Ok,
    /// Failed write over several drives. The failed drive is unknown, so the page must be written
    /// again, with one write per drive.
    Again,
    /// The drive that stores the page failed the write.
    Failed(Status),
}

impl WriteOutcome {
    pub(crate) fn and(self, other: WriteOutcome) -> WriteOutcome {
        match (self, other) {
            (WriteOutcome::Failed(_), _) | (_, WriteOutcome::Ok) => self,
            (_, WriteOutcome::Failed(_)) | (WriteOutcome::Ok, _) => other,
            (WriteOutcome::Again, WriteOutcome::Again) => self,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DuePages {
    Pages(u16),
    /// Write the pages in this bit mask now, even if two groups of the extent's pages are already
    /// in flight (`WriteEpochs`). Used while a drive is failing or stuck, or has used up its share
    /// of write-back data.
    Beside(u16),
    /// Skip this extent and continue with the next one.
    Later,
    /// Stop: this extent is not due, and neither is any later extent of the dirty list.
    NoMore,
}

/// Indexes into the arrays `Shard::listed` (first and last extent of the dirty list) and
/// `Extent::neighbours` (previous and next extent).
const FIRST: usize = 0;
const LAST: usize = 1;

pub(crate) struct Shard {
    table: HashTable<(u64, u32)>,
    extents: Vec<Extent>,
    free_extents: Vec<u32>,
    first: u32,
    owners: Vec<FrameOwner>,
    free: Vec<u32>,
    hand: usize,
    /// First and last extent of the dirty list. The first extent has been dirty longest.
    listed: [u32; 2],
    /// Pairs of an epoch and a count, oldest epoch first. Each extent in the dirty list adds 1 to
    /// the count of its epoch. Each group of pages in flight (`WriteEpochs`) also adds 1.
    epochs: VecDeque<(u64, u32)>,
    stranded: u32,
    filling: u32,
    pub(crate) stats: CacheStats,
}

impl Shard {
    pub(crate) fn new(first: u32, count: u32) -> Shard {
        Shard {
            table: HashTable::new(),
            extents: Vec::new(),
            free_extents: Vec::new(),
            first,
            owners: alloc::vec![FrameOwner::NONE; count as usize],
            free: (first..first + count).rev().collect(),
            hand: 0,
            listed: [NO_EXTENT; 2],
            epochs: VecDeque::new(),
            stranded: 0,
            filling: 0,
            stats: CacheStats::default(),
        }
    }

    #[inline]
    pub(crate) fn find(&self, number: u64) -> Option<u32> {
        self.table.find(hash_of(number), |entry| entry.0 == number).map(|entry| entry.1)
    }

    pub(crate) fn find_or_insert(&mut self, number: u64) -> u32 {
        if let Some(at) = self.find(number) {
            return at;
        }
        let extent = Extent::new(number);
        let at = match self.free_extents.pop() {
            Some(at) => {
                self.extents[at as usize] = extent;
                at
            }
            None => {
                self.extents.push(extent);
                self.extents.len() as u32 - 1
            }
        };
        self.table.insert_unique(hash_of(number), (number, at), |entry| hash_of(entry.0));
        at
    }

    #[inline]
    pub(crate) fn extent(&self, at: u32) -> &Extent {
        &self.extents[at as usize]
    }

    #[inline]
    pub(crate) fn extent_mut(&mut self, at: u32) -> &mut Extent {
        &mut self.extents[at as usize]
    }

    pub(crate) fn forget_if_empty(&mut self, at: u32) {
        let extent = &self.extents[at as usize];
        if !extent.is_empty() {
            return;
        }
        let entry = self.table.find_entry(hash_of(extent.number), |other| other.1 == at);
        entry.expect("an extent stays in the table until it is removed").remove();
        self.free_extents.push(at);
    }

    /// Returns a free frame, or evicts a clean page and returns its frame. Returns `None` if all
    /// pages are dirty or in use. The extent `keep` stays in the shard even when empty.
    pub(crate) fn take_frame(&mut self, keep: u32) -> Option<u32> {
        self.free.pop().or_else(|| self.evict(keep))
    }

    fn evict(&mut self, keep: u32) -> Option<u32> {
        // The CLOCK hand makes at most two rounds. If all hit bits are set, the first round only
        // clears them.
        for _ in 0..2 * self.owners.len() {
            let at = self.hand;
            self.hand = if at + 1 == self.owners.len() { 0 } else { at + 1 };
            if self.owners[at] == FrameOwner::NONE {
                continue;
            }
            let (extent, page) = self.owners[at].page();
            let of = &mut self.extents[extent as usize];
            if !of.may_evict(page) {
                continue;
            }
            if of.hit & 1 << page != 0 {
                of.hit &= !(1 << page);
                continue;
            }
            self.owners[at] = FrameOwner::NONE;
            (of.frames[page], of.valid[page]) = (NO_FRAME, 0);
            self.stats.evicted += 1;
            if extent != keep {
                self.forget_if_empty(extent);
            }
            return Some(self.first + at as u32);
        }
        None
    }

    pub(crate) fn give_frame(&mut self, frame: u32) {
        self.owners[(frame - self.first) as usize] = FrameOwner::NONE;
        self.free.push(frame);
    }

    /// Assigns a frame to a page. The page's previous frame, if any, then belongs to no page.
    pub(crate) fn set_frame(&mut self, at: u32, page: usize, frame: u32) {
        let extent = &mut self.extents[at as usize];
        extent.hit &= !(1 << page);
        let old = core::mem::replace(&mut extent.frames[page], frame);
        if old != NO_FRAME {
            self.owners[(old - self.first) as usize] = FrameOwner::NONE;
        }
        self.owners[(frame - self.first) as usize] = FrameOwner::of(at, page);
    }

    pub(crate) fn begin_fill(&mut self, at: u32, page: usize) {
        self.extents[at as usize].filling |= 1 << page;
        self.filling += 1;
    }

    /// Ends the read of a page into `frame`. `filled` is a mask of the eighths that were read, and
    /// is 0 after an error. Stores the data and returns the page's frame. Stores nothing and
    /// returns `None` if the read failed or its data may be outdated, for example by a discard.
    pub(crate) fn end_fill(
        &mut self,
        frames: &FrameMemory,
        page: u64,
        filled: u8,
        frame: u32,
    ) -> Option<u32> {
        let (number, place) = place_of(page);
        let at = self.find(number).expect("an extent with a fill in flight stays in the shard");
        self.filling -= 1;
        let extent = &mut self.extents[at as usize];
        let is_stale = extent.stale & 1 << place != 0;
        extent.filling &= !(1 << place);
        extent.stale &= !(1 << place);
        if is_stale || filled == 0 {
            self.give_frame(frame);
            self.forget_if_empty(at);
            return None;
        }
        let (own, missing) = (extent.frames[place], filled & !extent.valid[place]);
        extent.valid[place] |= filled;
        if own == NO_FRAME {
            self.set_frame(at, place, frame);
            return Some(frame);
        }
        frames.copy(frame, own, missing);
        self.give_frame(frame);
        Some(own)
    }

    pub(crate) fn is_crowded(&self) -> bool {
        self.filling as usize >= self.owners.len() / 2
    }

    /// Drops a page from memory, even if it is dirty. If the page is being read from the volume,
    /// the read becomes stale: its data may be older than the dropped data.
    pub(crate) fn drop_page(&mut self, at: u32, page: usize) {
        let extent = &mut self.extents[at as usize];
        extent.stale |= extent.filling & 1 << page;
        let frame = core::mem::replace(&mut extent.frames[page], NO_FRAME);
        (extent.valid[page], extent.dirty[page]) = (0, 0);
        extent.failed.pages &= !(1 << page);
        if frame != NO_FRAME {
            self.give_frame(frame);
        }
    }

    /// Returns a frame for a write to the page: the page's own frame, or a new one if the page has
    /// none or its frame is being written to a drive. Returns `None` if no memory is free.
    pub(crate) fn frame_to_write(
        &mut self,
        frames: &FrameMemory,
        at: u32,
        page: usize,
    ) -> Option<u32> {
        let extent = &self.extents[at as usize];
        let (own, is_written) = (extent.frames[page], extent.writing & 1 << page != 0);
        // If the page is being written to a drive and is also dirty, its present frame is a new
        // one. The drive reads from the old frame.
        if own != NO_FRAME && !(is_written && extent.dirty[page] == 0) {
            return Some(own);
        }
        let new = self.take_frame(at)?;
        if own != NO_FRAME {
            frames.copy(own, new, self.extents[at as usize].valid[page]);
        }
        self.set_frame(at, page, new);
        Some(new)
    }

    /// Marks eighths of a page as valid and dirty. Returns true if the page was clean before.
    pub(crate) fn note_written(&mut self, at: u32, page: usize, mask: u8, now: DirtyStamp) -> bool {
        let extent = &mut self.extents[at as usize];
        let was_clean = extent.dirty[page] == 0;
        extent.valid[page] |= mask;
        extent.dirty[page] |= mask;
        if !extent.is_listed {
            (extent.is_listed, extent.dirtied.epoch, extent.dirtied.at_ns) =
                (true, now.epoch, now.at_ns);
            extent.young = YoungPages::NONE;
            self.link(at, LAST);
            self.count_epoch(now.epoch);
        } else if was_clean && now.epoch > extent.dirtied.epoch {
            if extent.young.pages == 0 {
                let after_ms = now.at_ns.saturating_sub(extent.dirtied.at_ns) / 1_000_000;
                let after_ms = u16::try_from(after_ms).unwrap_or(u16::MAX);
                extent.young = YoungPages { epoch: now.epoch, after_ms, ..extent.young };
            }
            extent.young.pages |= 1 << page;
        }
        was_clean
    }

    fn link(&mut self, at: u32, end: usize) {
        let other = core::mem::replace(&mut self.listed[end], at);
        let mut neighbours = [NO_EXTENT; 2];
        neighbours[1 - end] = other;
        self.extents[at as usize].neighbours = neighbours;
        match other {
            NO_EXTENT => self.listed[1 - end] = at,
            other => self.extents[other as usize].neighbours[end] = at,
        }
    }

    fn unlink(&mut self, at: u32) {
        let neighbours = self.extents[at as usize].neighbours;
        for end in [FIRST, LAST] {
            let other = neighbours[1 - end];
            match neighbours[end] {
                NO_EXTENT => self.listed[end] = other,
                near => self.extents[near as usize].neighbours[1 - end] = other,
            }
        }
    }

    /// Takes dirty pages of an extent for writing to the volume. Marks the dirty pages in the mask
    /// `pages` as being written, and appends them to `items`. Does nothing if two groups of the
    /// extent's pages are already in flight: `WriteEpochs` has no room for a third group.
    pub(crate) fn collect_one(&mut self, at: u32, pages: u16, items: &mut Vec<DirtyPage>) {
        if self.extents[at as usize].batches.later == 0 {
            self.collect_beside(at, pages, items);
        }
    }

    /// Takes dirty pages like `collect_one`, even if two groups of the extent's pages are already
    /// in flight (`WriteEpochs`). In this case, the pages join the second group, and the lower of
    /// the two epochs applies to the group.
    pub(crate) fn collect_beside(&mut self, at: u32, pages: u16, items: &mut Vec<DirtyPage>) {
        let extent = &mut self.extents[at as usize];
        if !extent.is_listed {
            return;
        }
        let (dirty, before) = (extent.dirty_bits(), extent.writing);
        let taken = dirty & pages & !before;
        for (page, place) in extent.page_range().zip(0..) {
            let bit = 1 << place;
            if taken & bit != 0 {
                let (frame, mask) = (extent.frames[place], extent.dirty[place]);
                extent.dirty[place] = 0;
                let (is_probe, is_alone) =
                    (extent.stranded & bit != 0, extent.failed.pages & bit != 0);
                items.push(DirtyPage { page, frame, mask, is_probe, is_alone });
            }
        }
        let (epoch, joined) = (extent.dirtied.epoch, extent.batches.later);
        (extent.writing, extent.stranded) = (before | taken, extent.stranded & !taken);
        let joined_epoch = core::mem::replace(&mut extent.batches.later_epoch, epoch);
        match before {
            0 => extent.batches.epoch = epoch,
            _ => extent.batches.later |= taken,
        }
        let is_whole = dirty & !taken == 0;
        if is_whole {
            extent.is_listed = false;
            self.unlink(at);
        }
        if joined != 0 {
            let oldest = epoch.min(joined_epoch);
            self.extents[at as usize].batches.later_epoch = oldest;
            self.end_epoch(joined_epoch);
            self.count_epoch(oldest);
        } else if taken != 0 {
            self.count_epoch(epoch);
        }
        if is_whole {
            self.end_epoch(epoch);
            self.forget_if_empty(at);
        } else {
            self.grow_younger(at);
        }
    }

    /// If all remaining dirty pages became dirty after a flush (`YoungPages`), moves the extent to
    /// the epoch of these pages. The flush then waits only for the extent's pages in flight.
    fn grow_younger(&mut self, at: u32) {
        let extent = &mut self.extents[at as usize];
        let (epoch, young) = (extent.dirtied.epoch, extent.young);
        if young.pages == 0 || extent.dirty_bits() & !young.pages != 0 {
            return;
        }
        extent.dirtied.at_ns += u64::from(young.after_ms) * 1_000_000;
        (extent.dirtied.epoch, extent.young) =
            (young.epoch, YoungPages { is_all: true, ..YoungPages::NONE });
        self.end_epoch(epoch);
        self.count_epoch(young.epoch);
    }

    /// Appends the dirty pages of due extents to `items`, until `items` has `most` entries or more.
    /// Begins with the extent that has been dirty longest.
    pub(crate) fn collect(
        &mut self,
        most: usize,
        items: &mut Vec<DirtyPage>,
        is_due: impl Fn(&Extent) -> DuePages,
    ) {
        let mut at = self.listed[FIRST];
        while at != NO_EXTENT && items.len() < most {
            let behind = self.extents[at as usize].neighbours[LAST];
            match is_due(&self.extents[at as usize]) {
                DuePages::Pages(pages) => self.collect_one(at, pages, items),
                DuePages::Beside(pages) => self.collect_beside(at, pages, items),
                DuePages::Later => {}
                DuePages::NoMore => return,
            }
            at = behind;
        }
    }

    /// Ends the write of a page. If the write failed, the page is dirty again. Returns how many
    /// pages became clean.
    pub(crate) fn end_write(&mut self, item: &DirtyPage, ended: WriteOutcome) -> u32 {
        let is_ok = ended == WriteOutcome::Ok;
        let (number, page) = place_of(item.page);
        let at = self.find(number).expect("an extent that is being written stays in the shard");
        let extent = &mut self.extents[at as usize];
        let bit = 1 << page;
        let is_later = extent.batches.later & bit != 0;
        (extent.writing, extent.batches.later) =
            (extent.writing & !bit, extent.batches.later & !bit);
        let (is_last, epoch) = match is_later {
            true => (extent.batches.later == 0, extent.batches.later_epoch),
            false => (extent.writing == extent.batches.later, extent.batches.epoch),
        };
        if is_last && !is_later {
            (extent.batches.epoch, extent.batches.later) = (extent.batches.later_epoch, 0);
        }
        let mut clean = 1;
        extent.failed.pages &= !bit;
        if let WriteOutcome::Failed(status) = ended {
            extent.failed.pages |= bit;
            extent.failed.status = status;
        }
        self.stranded -= u32::from(item.is_probe);
        if !is_ok && extent.frames[page] != NO_FRAME {
            // If a client wrote to the page during the failed write, the page was counted as dirty
            // a second time. `clean` removes that second count.
            clean = u32::from(extent.dirty[page] != 0);
            extent.dirty[page] |= item.mask & extent.valid[page];
            extent.young.pages &= !bit;
            if !extent.is_listed {
                (extent.is_listed, extent.dirtied.epoch) = (true, epoch);
                extent.young = YoungPages::NONE;
                self.link(at, FIRST);
                self.count_epoch(epoch);
            } else if extent.dirtied.epoch > epoch {
                let newer = core::mem::replace(&mut extent.dirtied.epoch, epoch);
                extent.young.is_all = false;
                self.unlink(at);
                self.link(at, FIRST);
                self.end_epoch(newer);
                self.count_epoch(epoch);
            }
        }
        if self.extents[at as usize].frames[page] != item.frame {
            self.give_frame(item.frame);
        }
        if is_last {
            self.end_epoch(epoch);
        }
        self.forget_if_empty(at);
        clean
    }

    /// Marks a dirty page as stranded, that is, waiting for a failing drive. Returns true if the
    /// page was not marked before.
    pub(crate) fn strand(&mut self, at: u32, page: usize) -> bool {
        let extent = &mut self.extents[at as usize];
        let is_new = extent.dirty[page] != 0 && extent.stranded & 1 << page == 0;
        extent.stranded |= u16::from(is_new) << page;
        self.stranded += u32::from(is_new);
        is_new
    }

    /// Removes the mark `stranded` from a page: the page no longer waits for a failing drive.
    /// Returns true if the page had the mark.
    pub(crate) fn unstrand(&mut self, at: u32, page: usize) -> bool {
        let extent = &mut self.extents[at as usize];
        let bit = extent.stranded & 1 << page;
        extent.stranded &= !bit;
        // Not `-= u32::from(bit != 0)`: rustc 1.95 drops that subtraction where this function is
        // inlined into an `if` (rust-lang/rust#158206).
        self.stranded -= bit.count_ones();
        bit != 0
    }

    /// Returns true if pages that wait for failing drives occupy all memory of the shard, so that
    /// none will become free.
    pub(crate) fn is_stranded(&self) -> bool {
        self.stranded as usize >= self.owners.len()
    }

    pub(crate) fn listed(&self) -> impl Iterator<Item = u32> {
        let some = |at: u32| (at != NO_EXTENT).then_some(at);
        let behind = move |at: &u32| some(self.extents[*at as usize].neighbours[LAST]);
        core::iter::successors(some(self.listed[FIRST]), behind)
    }

    fn count_epoch(&mut self, epoch: u64) {
        let place = self.epochs.partition_point(|(other, _)| *other < epoch);
        match self.epochs.get_mut(place) {
            Some((other, count)) if *other == epoch => *count += 1,
            _ => self.epochs.insert(place, (epoch, 1)),
        }
    }

    fn end_epoch(&mut self, epoch: u64) {
        let place = self.epochs.partition_point(|(other, _)| *other < epoch);
        let (other, count) = &mut self.epochs[place];
        assert_eq!(*other, epoch, "an epoch that ends must be in the list of epochs");
        *count -= 1;
        if *count == 0 {
            self.epochs.remove(place);
        }
    }

    pub(crate) fn oldest_epoch(&self) -> Option<u64> {
        self.epochs.front().map(|(epoch, _)| *epoch)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Extent> {
        self.table.iter().map(|entry| self.extent(entry.1))
    }

    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        let mut is_over = false;
        let extents = self.listed().map(|at| self.extent(at));
        let old =
            extents.take_while(|extent| !core::mem::replace(&mut is_over, !extent.young.is_all));
        old.map(|extent| extent.dirtied.at_ns).min()
    }
}

#[cfg(test)]
mod tests;
