//! Computes how much of a bio, or of a part of a split bio, fits into one request of a drive.
//!
//! Pure functions of a bio and the drive's limits; called by submission.rs and split.rs. Kernel
//! counterpart: `bio_split_rw`.

use millrace_machine::Machine;

use crate::bio::limits::QueueLimits;
use crate::bio::{Op, SECTOR_SHIFT, SectorCount};
use crate::chain::slot::BioSlot;

/// Returns how much of `part`, from its start on, fits into one request of the drive: the number of
/// sectors and of memory segments. Returns 0 sectors if not even one block fits.
pub(crate) fn cut_to_limits<M: Machine>(
    part: &BioSlot<M>,
    limits: &QueueLimits,
) -> (SectorCount, u16) {
    let op = part.bio.op;
    let most = match op {
        Op::Read | Op::Write => limits.max_sectors,
        Op::Discard => limits.max_discard_sectors,
        Op::WriteZeroes => limits.max_write_zeroes_sectors,
        Op::Flush => return (0, 0),
    };
    let mut sectors = part.bio.nr_sectors.min(most);
    let chunk = u64::from(limits.chunk_sectors);
    if chunk != 0 && op.has_data() {
        sectors = u64::from(sectors).min(chunk - part.dev_sector % chunk) as u32;
    }
    if !op.has_data() {
        return (sectors, 0);
    }
    let (rule, bytes) = (limits.segment_rule(), sectors << SECTOR_SHIFT);
    let (mut done, mut segments) = (0, 0);
    while done < bytes && segments < limits.max_segments {
        done += rule.cut(part.piece(done)).len_bytes;
        segments += 1;
    }
    let whole = done.min(bytes) >> SECTOR_SHIFT;
    (whole - whole % limits.logical_sectors(), segments)
}

/// Faster version of [`cut_to_limits`] for reads and writes. The drive must accept any memory
/// segments and have no chunk boundaries. A part that fits into one request is not cut.
#[inline(always)]
pub(crate) fn cut_plainly<M: Machine>(
    part: &BioSlot<M>,
    limits: &QueueLimits,
) -> (SectorCount, u16) {
    let sectors = part.bio.nr_sectors;
    let pieces = part.memory_pieces(sectors);
    if sectors <= limits.max_sectors && pieces <= limits.max_segments.into() {
        return (sectors, pieces as u16);
    }
    cut_to_limits(part, limits)
}
