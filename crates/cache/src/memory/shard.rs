//! `Shard`: a part of the cache's pages, with the extents that hash there, under one lock.
//!
//! Owns a share of the frames. Says of each page whether memory has it, gives frames out and takes
//! them back from clean pages (CLOCK: a page that was hit since the hand passed is spared once),
//! lists dirty extents in the order in which they became dirty, and counts by epoch what is not
//! below yet. Knows no machine and copies no payload but from frame to frame. Called by queues and
//! the flusher, which hold its lock.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use hashbrown::HashTable;
use millrace_block::Status;

use crate::memory::extent::{DirtyStamp, EXTENT_PAGES, Extent, NO_EXTENT, NO_FRAME, YoungPages};
use crate::memory::frames::Frames;
use crate::stats::ShardStats;

/// Where an extent's number leads: its upper bits choose the shard, the others the place there.
pub(crate) fn hash_of(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// The page of an extent that has a frame, or none.
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

/// A page that is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirtyPage {
    /// Number of the page in the volume.
    pub(crate) page: u64,
    /// Its frame.
    pub(crate) frame: u32,
    /// Its dirty eighths.
    pub(crate) mask: u8,
    /// It is stranded, and its drive is tried once more.
    pub(crate) is_probe: bool,
    /// The last write that carried it failed: the next one carries nothing else.
    pub(crate) is_alone: bool,
}

/// How a page's write to the volume ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// It is there.
    Ok,
    /// It is not, with pages of other drives, one of which failed: it is to be tried by itself.
    Again,
    /// Its drive failed it.
    Failed(Status),
}

impl WriteOutcome {
    /// How a page ended of which two writes carried parts.
    pub(crate) fn and(self, other: WriteOutcome) -> WriteOutcome {
        match (self, other) {
            (WriteOutcome::Failed(_), _) | (_, WriteOutcome::Ok) => self,
            (_, WriteOutcome::Failed(_)) | (WriteOutcome::Ok, _) => other,
            (WriteOutcome::Again, WriteOutcome::Again) => self,
        }
    }
}

/// Whether a dirty extent is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DuePages {
    /// These pages are, a bit each.
    Pages(u16),
    /// They are, beside others of the extent that wait for a drive.
    Beside(u16),
    /// Not now, but others behind it may be.
    Later,
    /// It is not, nor are those behind it, which became dirty later.
    NoMore,
}

/// A part of the cache's pages.
pub(crate) struct Shard {
    /// Numbers of extents, and where each is.
    table: HashTable<(u64, u32)>,
    extents: Vec<Extent>,
    free_extents: Vec<u32>,
    /// Number of the first of its frames.
    first: u32,
    owners: Vec<FrameOwner>,
    free: Vec<u32>,
    hand: usize,
    /// First and last of the dirty extents, the longest dirty first.
    listed: (u32, u32),
    /// Extents that are listed or being written, by the epoch of that, oldest first.
    epochs: VecDeque<(u64, u32)>,
    /// Pages that are stranded.
    stranded: u32,
    /// Pages that are being filled.
    filling: u32,
    pub(crate) stats: ShardStats,
}

impl Shard {
    /// A shard of these frames.
    pub(crate) fn new(first: u32, count: u32) -> Shard {
        Shard {
            table: HashTable::new(),
            extents: Vec::new(),
            free_extents: Vec::new(),
            first,
            owners: alloc::vec![FrameOwner::NONE; count as usize],
            free: (first..first + count).rev().collect(),
            hand: 0,
            listed: (NO_EXTENT, NO_EXTENT),
            epochs: VecDeque::new(),
            stranded: 0,
            filling: 0,
            stats: ShardStats::default(),
        }
    }

    /// The extent of this number, if something is known of it.
    #[inline]
    pub(crate) fn find(&self, number: u64) -> Option<u32> {
        self.table.find(hash_of(number), |entry| entry.0 == number).map(|entry| entry.1)
    }

    /// The extent of this number, made if nothing was known of it.
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

    /// An extent.
    #[inline]
    pub(crate) fn extent(&self, at: u32) -> &Extent {
        &self.extents[at as usize]
    }

    /// An extent, to change.
    #[inline]
    pub(crate) fn extent_mut(&mut self, at: u32) -> &mut Extent {
        &mut self.extents[at as usize]
    }

    /// Takes an extent out of which nothing is known any more.
    pub(crate) fn forget_if_empty(&mut self, at: u32) {
        let extent = &self.extents[at as usize];
        if !extent.is_empty() {
            return;
        }
        let entry = self.table.find_entry(hash_of(extent.number), |other| other.1 == at);
        entry.expect("an extent stands in the table until it is forgotten").remove();
        self.free_extents.push(at);
    }

    /// A frame that nobody has: a free one, or that of a clean page. The extent `keep` stays even
    /// if nothing is left of it. None if all pages are dirty or in use.
    pub(crate) fn take_frame(&mut self, keep: u32) -> Option<u32> {
        self.free.pop().or_else(|| self.evict(keep))
    }

    fn evict(&mut self, keep: u32) -> Option<u32> {
        // Twice round: the first may only take marks of hits away.
        for _ in 0..2 * self.owners.len() {
            let at = self.hand;
            self.hand = if at + 1 == self.owners.len() { 0 } else { at + 1 };
            if self.owners[at] == FrameOwner::NONE {
                continue;
            }
            let (extent, page) = self.owners[at].page();
            let of = &mut self.extents[extent as usize];
            let was_hit = of.hit & 1 << page != 0;
            if !of.may_evict(page) || was_hit {
                if of.may_evict(page) {
                    of.hit &= !(1 << page);
                }
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

    /// Gives a frame back that belongs to no page.
    pub(crate) fn give_frame(&mut self, frame: u32) {
        self.owners[(frame - self.first) as usize] = FrameOwner::NONE;
        self.free.push(frame);
    }

    /// Makes a frame that of a page; the one before, if there was one, belongs to no page now.
    pub(crate) fn set_frame(&mut self, at: u32, page: usize, frame: u32) {
        let extent = &mut self.extents[at as usize];
        extent.hit &= !(1 << page);
        let old = core::mem::replace(&mut extent.frames[page], frame);
        if old != NO_FRAME {
            self.owners[(old - self.first) as usize] = FrameOwner::NONE;
        }
        self.owners[(frame - self.first) as usize] = FrameOwner::of(at, page);
    }

    /// Notes that a page is being filled.
    pub(crate) fn begin_fill(&mut self, at: u32, page: usize) {
        self.extents[at as usize].filling |= 1 << page;
        self.filling += 1;
    }

    /// Notes that a page is being filled no longer.
    pub(crate) fn end_fill(&mut self, at: u32, page: usize) {
        let extent = &mut self.extents[at as usize];
        (extent.filling, extent.stale) =
            (extent.filling & !(1 << page), extent.stale & !(1 << page));
        self.filling -= 1;
    }

    /// Whether half of the memory is being filled.
    pub(crate) fn is_crowded(&self) -> bool {
        self.filling as usize >= self.owners.len() / 2
    }

    /// Takes a page out of memory.
    pub(crate) fn drop_page(&mut self, at: u32, page: usize) {
        let extent = &mut self.extents[at as usize];
        let frame = core::mem::replace(&mut extent.frames[page], NO_FRAME);
        (extent.valid[page], extent.dirty[page]) = (0, 0);
        extent.failed.pages &= !(1 << page);
        if frame != NO_FRAME {
            self.give_frame(frame);
        }
    }

    /// The frame into which eighths of a page may be written: its own, or a new one if it has none
    /// or a drive reads it at this moment. None if there is no memory.
    pub(crate) fn frame_to_write(&mut self, frames: &Frames, at: u32, page: usize) -> Option<u32> {
        let extent = &self.extents[at as usize];
        let (own, is_written) = (extent.frames[page], extent.writing & 1 << page != 0);
        // A page that is written has a frame of its own as soon as it was written to once more.
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

    /// Notes that eighths of a page were written in memory; whether the page was clean.
    pub(crate) fn note_written(&mut self, at: u32, page: usize, mask: u8, now: DirtyStamp) -> bool {
        let extent = &mut self.extents[at as usize];
        let was_clean = extent.dirty[page] == 0;
        extent.valid[page] |= mask;
        extent.dirty[page] |= mask;
        if !extent.is_listed {
            (extent.is_listed, extent.dirtied.epoch, extent.dirtied.at_ns) =
                (true, now.epoch, now.at_ns);
            extent.young = YoungPages::NONE;
            self.link_last(at);
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

    fn link_last(&mut self, at: u32) {
        let last = core::mem::replace(&mut self.listed.1, at);
        self.extents[at as usize].neighbours = (last, NO_EXTENT);
        match last {
            NO_EXTENT => self.listed.0 = at,
            last => self.extents[last as usize].neighbours.1 = at,
        }
    }

    fn link_first(&mut self, at: u32) {
        let first = core::mem::replace(&mut self.listed.0, at);
        self.extents[at as usize].neighbours = (NO_EXTENT, first);
        match first {
            NO_EXTENT => self.listed.1 = at,
            first => self.extents[first as usize].neighbours.0 = at,
        }
    }

    fn unlink(&mut self, at: u32) {
        let (before, behind) = self.extents[at as usize].neighbours;
        match before {
            NO_EXTENT => self.listed.0 = behind,
            before => self.extents[before as usize].neighbours.1 = behind,
        }
        match behind {
            NO_EXTENT => self.listed.1 = before,
            behind => self.extents[behind as usize].neighbours.0 = before,
        }
    }

    /// Takes what is dirty of some pages of a listed extent, a bit each: it is being written from
    /// now on. What is left stays listed: pages that are being written, and all if some were
    /// collected while others were being written and are not written yet.
    pub(crate) fn collect_one(&mut self, at: u32, pages: u16, items: &mut Vec<DirtyPage>) {
        if self.extents[at as usize].batches.later == 0 {
            self.collect_beside(at, pages, items);
        }
    }

    /// As `collect_one`, but those that were collected while others were being written are joined
    /// by more: their epoch ends with the last of these. For extents whose pages wait for a drive.
    pub(crate) fn collect_beside(&mut self, at: u32, pages: u16, items: &mut Vec<DirtyPage>) {
        let extent = &mut self.extents[at as usize];
        if !extent.is_listed {
            return;
        }
        let (dirty, before) = (extent.dirty_bits(), extent.writing);
        let taken = dirty & pages & !before;
        for page in 0..EXTENT_PAGES {
            let bit = 1 << page;
            if taken & bit != 0 {
                let mask = core::mem::take(&mut extent.dirty[page]);
                let number = extent.number * EXTENT_PAGES as u64 + page as u64;
                let (frame, is_probe) = (extent.frames[page], extent.stranded & bit != 0);
                let is_alone = extent.failed.pages & bit != 0;
                items.push(DirtyPage { page: number, frame, mask, is_probe, is_alone });
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
            // Both are in one epoch now, the older one.
            let oldest = epoch.min(joined_epoch);
            self.extents[at as usize].batches.later_epoch = oldest;
            self.end_epoch(joined_epoch);
            self.count_epoch(oldest);
        } else if taken != 0 {
            self.count_epoch(epoch);
        }
        if is_whole {
            self.end_epoch(epoch);
            // It is empty if all of it was discarded.
            self.forget_if_empty(at);
        } else {
            self.grow_younger(at);
        }
    }

    /// Has nobody wait for what is left of a listed extent who waits for what is not.
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

    /// Takes what is dirty of the extents that are due now, the longest dirty first, until `items`
    /// has `most`.
    pub(crate) fn collect(
        &mut self,
        most: usize,
        items: &mut Vec<DirtyPage>,
        is_due: impl Fn(&Extent) -> DuePages,
    ) {
        let mut at = self.listed.0;
        while at != NO_EXTENT && items.len() < most {
            let behind = self.extents[at as usize].neighbours.1;
            match is_due(&self.extents[at as usize]) {
                DuePages::Pages(pages) => self.collect_one(at, pages, items),
                DuePages::Beside(pages) => self.collect_beside(at, pages, items),
                DuePages::Later => {}
                DuePages::NoMore => return,
            }
            at = behind;
        }
    }

    /// A page was written, or not: then it is dirty as before. Gives how many pages are clean now.
    pub(crate) fn end_write(&mut self, item: &DirtyPage, ended: WriteOutcome) -> u32 {
        let is_ok = ended == WriteOutcome::Ok;
        let number = item.page / EXTENT_PAGES as u64;
        let page = (item.page % EXTENT_PAGES as u64) as usize;
        let at = self.find(number).expect("an extent that is written stays");
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
            // What was collected later is all that there is.
            (extent.batches.epoch, extent.batches.later) = (extent.batches.later_epoch, 0);
        }
        let mut clean = 1;
        extent.failed.pages &= !(1 << page);
        if let WriteOutcome::Failed(status) = ended {
            extent.failed.pages |= 1 << page;
            extent.failed.status = status;
        }
        self.stranded -= u32::from(item.is_probe);
        if !is_ok && extent.frames[page] != NO_FRAME {
            // What was written to it meanwhile is newer, and dirty anyway.
            clean = u32::from(extent.dirty[page] != 0);
            extent.dirty[page] |= item.mask & extent.valid[page];
            extent.young.pages &= !bit;
            if !extent.is_listed {
                (extent.is_listed, extent.dirtied.epoch) = (true, epoch);
                extent.young = YoungPages::NONE;
                self.link_first(at);
                self.count_epoch(epoch);
            } else if extent.dirtied.epoch > epoch {
                let newer = core::mem::replace(&mut extent.dirtied.epoch, epoch);
                extent.young.is_all = false;
                self.unlink(at);
                self.link_first(at);
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

    /// Notes that a dirty page is stranded; whether it was not before.
    pub(crate) fn strand(&mut self, at: u32, page: usize) -> bool {
        let extent = &mut self.extents[at as usize];
        let is_new = extent.dirty[page] != 0 && extent.stranded & 1 << page == 0;
        extent.stranded |= u16::from(is_new) << page;
        self.stranded += u32::from(is_new);
        is_new
    }

    /// Notes that a page is stranded no longer; whether it was.
    pub(crate) fn unstrand(&mut self, at: u32, page: usize) -> bool {
        let extent = &mut self.extents[at as usize];
        let was = extent.stranded & 1 << page != 0;
        extent.stranded &= !(1 << page);
        self.stranded -= u32::from(was);
        was
    }

    /// Whether all memory is that of stranded pages: none comes free.
    pub(crate) fn is_stranded(&self) -> bool {
        self.stranded as usize >= self.owners.len()
    }

    /// The extents that are listed, the longest dirty first.
    pub(crate) fn listed(&self) -> impl Iterator<Item = u32> {
        let some = |at: u32| (at != NO_EXTENT).then_some(at);
        let behind = move |at: &u32| some(self.extents[*at as usize].neighbours.1);
        core::iter::successors(some(self.listed.0), behind)
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
        assert_eq!(*other, epoch, "an extent is counted in its epoch");
        *count -= 1;
        if *count == 0 {
            self.epochs.remove(place);
        }
    }

    /// The oldest epoch of which something is not below yet.
    pub(crate) fn oldest_epoch(&self) -> Option<u64> {
        self.epochs.front().map(|(epoch, _)| *epoch)
    }

    /// Numbers of all extents of which something is known.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.table.iter().map(|entry| entry.0)
    }

    /// When the longest dirty extent became dirty.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        let mut oldest: Option<u64> = None;
        for extent in self.listed().map(|at| self.extent(at)) {
            oldest =
                Some(oldest.map_or(extent.dirtied.at_ns, |other| other.min(extent.dirtied.at_ns)));
            if !extent.young.is_all {
                break;
            }
        }
        oldest
    }
}

#[cfg(test)]
mod tests;
