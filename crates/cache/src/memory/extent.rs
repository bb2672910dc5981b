//! `Extent`: the cache's state of 16 consecutive pages of the volume.
//!
//! A page may have a frame (memory of one page). Data are tracked in eighths of a page (see
//! page.rs). An eighth is valid if it is in memory, and dirty if it is newer in memory than on the
//! volume. Bit masks of type `u16` have a bit for each page. Invariants:
//! - Dirty eighths are valid.
//! - An extent stays in its shard while any of its pages is being read or written.
//! - Data do not change while they are written to a drive, because new writes get a new frame.
//! - Pages that wait for a failing or stuck drive (`stranded`) are dirty.

use core::ops::Range;

use millrace_block::Status;

pub(crate) const EXTENT_PAGES: usize = 16;
pub(crate) const NO_FRAME: u32 = u32::MAX;
pub(crate) const NO_EXTENT: u32 = u32::MAX;
pub(crate) const WHOLE: u8 = 0xff;
pub(crate) const ALL_PAGES: u16 = u16::MAX;

/// State of 16 consecutive pages. A cache hit needs only the fields in the first two CPU cache
/// lines ([`Extent::LINES_BYTES`]).
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(crate) struct Extent {
    pub(crate) frames: [u32; EXTENT_PAGES],
    pub(crate) number: u64,
    /// For each page, a mask of its eighths that are in memory.
    pub(crate) valid: [u8; EXTENT_PAGES],
    /// For each page, a mask of the eighths that are newer in memory than on the volume below. The
    /// mask is cleared when the page's write to the volume begins, and set again if the write
    /// fails.
    pub(crate) dirty: [u8; EXTENT_PAGES],
    /// One bit for each page, set by an access and cleared when the CLOCK eviction passes the page.
    pub(crate) hit: u16,
    pub(crate) writing: u16,
    pub(crate) filling: u16,
    /// Pages in `filling` that have changed since their read began, so that the data read must be
    /// discarded.
    pub(crate) stale: u16,
    pub(crate) stranded: u16,
    pub(crate) failed: FailedPages,
    pub(crate) is_listed: bool,
    /// Previous and next extent in the dirty list, or `NO_EXTENT`.
    pub(crate) neighbours: [u32; 2],
    pub(crate) dirtied: DirtyStamp,
    pub(crate) young: YoungPages,
    pub(crate) batches: WriteEpochs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirtyStamp {
    pub(crate) epoch: u64,
    pub(crate) at_ns: u64,
}

/// Pages of an extent that became dirty after a flush, while the extent still had dirty pages from
/// before the flush. The flush need not wait for these pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct YoungPages {
    /// Epoch (interval between two flushes) in which a bit of `pages` was first set.
    pub(crate) epoch: u64,
    /// One bit for each of the extent's 16 pages, set if the page became dirty after the epoch in
    /// `Extent::dirtied`. A page may have become clean again since.
    pub(crate) pages: u16,
    /// Milliseconds from `Extent::dirtied` until the first page in `pages` became dirty; at most
    /// `u16::MAX`.
    pub(crate) after_ms: u16,
    /// True if no page from before the flush is dirty any more; such pages may still be in
    /// `Extent::writing`. `Extent::dirtied` then holds the time of the first page after the flush.
    /// The extent keeps its old position in the dirty list.
    pub(crate) is_all: bool,
}

/// Epochs (numbers of intervals between flushes) of the extent's pages that are being written to
/// the volume. The pages form two groups:
///
/// - First group: its write began while no page of the extent was being written.
/// - Second group (`later`): pages whose write begins while the first group is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriteEpochs {
    /// Epoch of the first group: the pages that are in `Extent::writing` but not in `later`.
    pub(crate) epoch: u64,
    pub(crate) later: u16,
    pub(crate) later_epoch: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FailedPages {
    pub(crate) pages: u16,
    pub(crate) status: Status,
    /// Number of unanswered write requests that have written to the extent and wait for these data
    /// to reach the volume; only for a write-through cache. Once the number is 0, all writers of
    /// failed pages have received the error, so the failed pages are dropped.
    pub(crate) claims: u32,
}

impl YoungPages {
    pub(crate) const NONE: YoungPages =
        YoungPages { epoch: 0, pages: 0, after_ms: 0, is_all: false };
}

impl Extent {
    /// Size of the part of an extent that a cache hit accesses, in bytes: two CPU cache lines.
    pub(crate) const LINES_BYTES: usize = 128;

    pub(crate) fn new(number: u64) -> Extent {
        Extent {
            number,
            frames: [NO_FRAME; EXTENT_PAGES],
            valid: [0; EXTENT_PAGES],
            dirty: [0; EXTENT_PAGES],
            hit: 0,
            writing: 0,
            filling: 0,
            stale: 0,
            is_listed: false,
            dirtied: DirtyStamp { epoch: 0, at_ns: 0 },
            young: YoungPages::NONE,
            batches: WriteEpochs { epoch: 0, later: 0, later_epoch: 0 },
            failed: FailedPages { pages: 0, status: Status::Ok, claims: 0 },
            stranded: 0,
            neighbours: [NO_EXTENT; 2],
        }
    }

    /// Returns true if the extent has no page in memory and is not in use, so that the shard can
    /// drop it.
    pub(crate) fn is_empty(&self) -> bool {
        self.writing == 0
            && self.filling == 0
            && self.failed.claims == 0
            && !self.is_listed
            && self.frames.iter().all(|frame| *frame == NO_FRAME)
    }

    #[inline]
    pub(crate) fn frame_of(&self, page: usize, wanted: u8) -> Option<u32> {
        (self.valid[page] & wanted == wanted).then_some(self.frames[page])
    }

    #[inline]
    pub(crate) fn note_hit(&mut self, page: usize) {
        // The hit bit is stored only if it is not set yet, because a store would make the CPU cache
        // line dirty.
        if self.hit & 1 << page == 0 {
            self.hit |= 1 << page;
        }
    }

    /// Returns true if the frame of a page may be reused: the page is clean and idle.
    pub(crate) fn may_evict(&self, page: usize) -> bool {
        self.dirty[page] == 0 && (self.writing | self.filling) & 1 << page == 0
    }

    pub(crate) fn page_range(&self) -> Range<u64> {
        let first = self.number * EXTENT_PAGES as u64;
        first..first + EXTENT_PAGES as u64
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty != [0; EXTENT_PAGES]
    }

    pub(crate) fn dirty_bits(&self) -> u16 {
        self.dirty.iter().rev().fold(0, |bits, mask| bits << 1 | u16::from(*mask != 0))
    }

    /// Returns true if data of the extent that became dirty in `epoch` or earlier are not on the
    /// volume yet.
    pub(crate) fn owes(&self, epoch: u64) -> bool {
        self.is_listed && self.dirtied.epoch <= epoch
            || self.writing != self.batches.later && self.batches.epoch <= epoch
            || self.batches.later != 0 && self.batches.later_epoch <= epoch
    }
}

/// Returns the number of a page's extent, and the index of the page in that extent.
pub(crate) fn place_of(page: u64) -> (u64, usize) {
    (page / EXTENT_PAGES as u64, (page % EXTENT_PAGES as u64) as usize)
}

/// Returns the runs of set bits of a mask: first bit and length.
pub(crate) fn runs(mut mask: u8) -> impl Iterator<Item = (u32, u32)> {
    let mut at = 0;
    core::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let skipped = mask.trailing_zeros();
        let rest = u32::from(mask) >> skipped;
        let len = (!rest).trailing_zeros();
        let first = at + skipped;
        at = first + len;
        mask = (rest >> len) as u8;
        Some((first, len))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn what_a_hit_needs_lies_in_the_first_two_lines_of_an_extent() {
        use core::mem::offset_of;
        let (hit, valid) = (offset_of!(Extent, hit), offset_of!(Extent, valid));
        assert!(hit + 2 <= Extent::LINES_BYTES && valid + EXTENT_PAGES <= Extent::LINES_BYTES);
        assert_eq!((align_of::<Extent>(), size_of::<Extent>()), (64, 192));
    }

    #[test]
    fn runs_of_all_masks_give_the_mask_back() {
        for mask in 0..=u8::MAX {
            let found: Vec<(u32, u32)> = runs(mask).collect();
            let bits = |(first, len): &(u32, u32)| ((1u32 << len) - 1) << first;
            assert_eq!(found.iter().map(bits).sum::<u32>(), u32::from(mask), "{mask:#b}");
            assert!(found.windows(2).all(|two| two[0].0 + two[0].1 < two[1].0), "{mask:#b}");
        }
    }
}
