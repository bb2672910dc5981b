//! `Extent`: what the cache knows of 16 consecutive pages of the volume.
//!
//! Owned by a shard, under its lock. A page has a frame of memory or none; of a page in memory each
//! eighth (page.rs) is valid or not, and dirty or not. Invariants: dirty eighths are valid; a page
//! that is being written or filled keeps its extent in the shard; a frame that a drive reads is not
//! changed in its dirty eighths, since writes to it get a new frame; stranded pages are dirty.

use millrace_block::Status;

/// Pages of an extent.
pub(crate) const EXTENT_PAGES: usize = 16;
/// No frame.
pub(crate) const NO_FRAME: u32 = u32::MAX;
/// No extent.
pub(crate) const NO_EXTENT: u32 = u32::MAX;
/// All eighths of a page.
pub(crate) const WHOLE: u8 = 0xff;
/// All pages of an extent.
pub(crate) const ALL_PAGES: u16 = u16::MAX;

/// 16 consecutive pages. What a hit asks for lies in the first two lines of the processor's cache
/// ([`Extent::LINES_BYTES`]).
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(crate) struct Extent {
    /// The frame of each page.
    pub(crate) frames: [u32; EXTENT_PAGES],
    /// Which one of the volume.
    pub(crate) number: u64,
    /// Eighths of each page that memory has.
    pub(crate) valid: [u8; EXTENT_PAGES],
    /// Eighths of each page that the volume below has not.
    pub(crate) dirty: [u8; EXTENT_PAGES],
    /// Pages that were hit since the hand passed, a bit each.
    pub(crate) hit: u16,
    /// Pages that are being written, a bit each.
    pub(crate) writing: u16,
    /// Pages that are being read from below, a bit each.
    pub(crate) filling: u16,
    /// Of these, pages whose contents change below meanwhile: what is read is not kept.
    pub(crate) stale: u16,
    /// Dirty pages of drives that fail, a bit each: counted apart (failed_writes.rs).
    pub(crate) stranded: u16,
    pub(crate) failed: FailedPages,
    /// It stands in the shard's list of dirty extents.
    pub(crate) is_listed: bool,
    /// The extents before and behind it in the list of dirty ones.
    pub(crate) neighbours: (u32, u32),
    /// When it was listed.
    pub(crate) dirtied: DirtyStamp,
    pub(crate) young: YoungPages,
    pub(crate) batches: WriteEpochs,
}

/// When something became dirty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirtyStamp {
    /// The epoch: how many flushes came before.
    pub(crate) epoch: u64,
    /// The time.
    pub(crate) at_ns: u64,
}

/// Pages of a listed extent that became dirty in a later epoch: whoever waits for the one in which
/// it was listed does not wait for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct YoungPages {
    /// The epoch of the first of them.
    pub(crate) epoch: u64,
    /// A bit each; some may be clean again.
    pub(crate) pages: u16,
    /// Milliseconds from when the extent was listed to the first of them, as far as they go.
    pub(crate) after_ms: u16,
    /// What the extent was listed for is written, or being written: it is younger than its place in
    /// the list says.
    pub(crate) is_all: bool,
}

/// In which epochs the pages of an extent that are being written were listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriteEpochs {
    /// The epoch of all but `later`.
    pub(crate) epoch: u64,
    /// Pages that were collected while others were being written, which may be of a drive that is
    /// stuck, a bit each.
    pub(crate) later: u16,
    /// Their epoch.
    pub(crate) later_epoch: u64,
}

/// Writes of an extent's pages to the volume that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FailedPages {
    /// Pages of which the last write did, a bit each.
    pub(crate) pages: u16,
    /// How the last one ended.
    pub(crate) status: Status,
    /// Writes of a cache that writes through which have written to the extent in memory and are
    /// not answered. Pages that failed are dropped when there is none: each was told by then.
    pub(crate) claims: u32,
}

impl YoungPages {
    /// None.
    pub(crate) const NONE: YoungPages =
        YoungPages { epoch: 0, pages: 0, after_ms: 0, is_all: false };
}

impl Extent {
    /// Bytes of the lines that a hit needs.
    pub(crate) const LINES_BYTES: usize = 128;

    /// An extent of which nothing is in memory.
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
            neighbours: (NO_EXTENT, NO_EXTENT),
        }
    }

    /// Whether nothing is known of it: it need not stand in the shard.
    pub(crate) fn is_empty(&self) -> bool {
        self.writing == 0
            && self.filling == 0
            && self.failed.claims == 0
            && !self.is_listed
            && self.frames.iter().all(|frame| *frame == NO_FRAME)
    }

    /// The frame that has these eighths of a page, if memory has them.
    #[inline]
    pub(crate) fn frame_of(&self, page: usize, wanted: u8) -> Option<u32> {
        (self.valid[page] & wanted == wanted).then_some(self.frames[page])
    }

    /// Notes that a page in memory was hit.
    #[inline]
    pub(crate) fn note_hit(&mut self, page: usize) {
        // Mostly it is set: then its line is not written.
        if self.hit & 1 << page == 0 {
            self.hit |= 1 << page;
        }
    }

    /// Whether a page's frame may be taken for another page.
    pub(crate) fn may_evict(&self, page: usize) -> bool {
        self.dirty[page] == 0 && (self.writing | self.filling) & 1 << page == 0
    }

    /// Whether something of it is dirty.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty != [0; EXTENT_PAGES]
    }

    /// Dirty pages, a bit each.
    pub(crate) fn dirty_bits(&self) -> u16 {
        self.dirty.iter().rev().fold(0, |bits, mask| bits << 1 | u16::from(*mask != 0))
    }

    /// Whether something that was dirtied in an epoch up to `epoch` is not below yet.
    pub(crate) fn owes(&self, epoch: u64) -> bool {
        self.is_listed && self.dirtied.epoch <= epoch
            || self.writing != self.batches.later && self.batches.epoch <= epoch
            || self.batches.later != 0 && self.batches.later_epoch <= epoch
    }
}

/// Extent and place in it of a page.
pub(crate) fn place_of(page: u64) -> (u64, usize) {
    (page / EXTENT_PAGES as u64, (page % EXTENT_PAGES as u64) as usize)
}

/// Runs of set bits: first bit and how many.
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
