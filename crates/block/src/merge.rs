//! Merging: two bios that touch on the drive become one request.
//!
//! Called by the plug (with the drive's last bio, O(1)) and by `sq`. A chain of bios is headed by
//! the first in sector order, which carries the sums. Whether two fit is decided here and only
//! here; how long a request may become is in the drive's limits (`QueueLimits::merge_max`).
//! Kernel counterpart: block/blk-merge.c, `blk_attempt_bio_merge`.
#![allow(unsafe_code)]

use millrace_machine::Machine;
use millrace_machine::plant::{Plant, planted};

use crate::limits::QueueLimits;
use crate::slot::{BioRef, Slot};

/// How a bio was merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Merged {
    /// At the end: M.
    Back,
    /// In front: F.
    Front,
}

/// Whether `second`, directly behind `first` on the drive, may share its request.
#[inline]
fn fits<M: Machine>(first: &Slot<M>, second: &Slot<M>, limits: &QueueLimits) -> bool {
    let sectors = u64::from(first.chain_sectors) + u64::from(second.chain_sectors);
    let segments = u32::from(first.chain_segments) + u32::from(second.chain_segments);
    let chunk = u64::from(limits.chunk_sectors);
    if !first.op().has_data() || first.op() != second.op() {
        return false;
    }
    let crosses = chunk != 0
        && !planted(Plant::MergeAcrossChunk)
        && first.dev_sector / chunk != (second.chain_end() - 1) / chunk;
    first.bio.flags == second.bio.flags
        && sectors <= u64::from(limits.merge_max())
        && segments <= u32::from(limits.max_segments)
        && !crosses
}

/// Whether two chains lie side by side on the drive: the cheap question first.
#[inline]
pub(crate) fn touch<M: Machine>(last: &Slot<M>, bio: &Slot<M>) -> bool {
    last.chain_end() == bio.dev_sector || bio.chain_end() == last.dev_sector
}

/// Merges `bio` with the chain in `last`, or gives it back.
pub(crate) fn try_merge<M: Machine>(
    last: &mut BioRef<M>,
    bio: BioRef<M>,
    limits: &QueueLimits,
) -> Result<Merged, BioRef<M>> {
    if last.chain_end() == bio.dev_sector && fits(last, &bio, limits) {
        join(last, bio);
        return Ok(Merged::Back);
    }
    if bio.chain_end() == last.dev_sector && fits(&bio, last, limits) {
        let old = core::mem::replace(last, bio);
        join(last, old);
        return Ok(Merged::Front);
    }
    Err(bio)
}

/// Puts the chain of `second` behind that of `first`.
pub(crate) fn join<M: Machine>(first: &mut BioRef<M>, second: BioRef<M>) {
    first.chain_sectors += second.chain_sectors;
    first.chain_segments = first.chain_segments.saturating_add(second.chain_segments);
    let tail = second.tail;
    // SAFETY: `tail` is the last slot of the chain that `first` owns, itself if it is alone.
    let old = unsafe { (*first.tail).chained.replace(second) };
    core::mem::forget(old);
    first.tail = tail;
}
