//! `QueueLimits`: what a drive or volume takes in one request, validated and stacked in one place.
//!
//! Filled by drivers, completed and checked by `validate`, stacked by volumes, read by `split` and
//! by exports that tell their clients. Names are those of the kernel's `struct queue_limits`; units
//! are in the names. Invariant of a validated value: every field is usable as it stands (no zero
//! that means "none" except where said).

use alloc::format;

use crate::bio::Segment;
use crate::bio::error::{Error, ErrorKind};

/// Longest read or write in sectors: lengths in bytes fit 32 bits.
pub(crate) const MAX_DATA_SECTORS: u32 = (1 << 23) - 1;

/// Limits of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Smallest addressable unit in bytes: a power of two, 512 to 65,536.
    pub logical_block_size: u32,
    /// Smallest unit written without read-modify-write, in bytes; at least the logical one.
    pub physical_block_size: u32,
    /// Preferred smallest I/O in bytes.
    pub io_min: u32,
    /// Preferred I/O in bytes; 0 if the device has no preference.
    pub io_opt: u32,
    /// Longest read or write in sectors.
    pub max_sectors: u32,
    /// Longest read or write that merging makes, in sectors: up to this length one request costs
    /// the device less than its parts, beyond it parts that are in flight side by side are faster.
    /// `max_sectors` or more for a device of which nothing is known: merging goes as far as it can.
    pub merge_sectors: u32,
    /// Most pieces of memory in a request.
    pub max_segments: u16,
    /// Longest piece of memory in bytes.
    pub max_segment_size: u32,
    /// No piece of memory crosses a multiple of this mask plus one; `u64::MAX` for no boundary.
    pub seg_boundary_mask: u64,
    /// Memory addresses are multiples of this mask plus one.
    pub dma_alignment: u32,
    /// Longest discard in sectors; 0 if the device cannot discard.
    pub max_discard_sectors: u32,
    /// Discards start and end best at multiples of this, in bytes.
    pub discard_granularity: u32,
    /// Longest write-zeroes in sectors; 0 if the device cannot.
    pub max_write_zeroes_sectors: u32,
    /// Boundary in sectors that no request crosses; 0 for none.
    pub chunk_sectors: u32,
    /// Yes/no properties.
    pub features: Features,
}

/// Yes/no properties of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// Completed writes may be lost until a flush.
    pub volatile_cache: bool,
    /// Completed writes may be lost with this process until a flush: it has that cache in memory.
    pub process_cache: bool,
    /// Takes FUA writes itself.
    pub fua: bool,
    /// Never touches payload: reads leave the memory as it is.
    pub no_payload: bool,
    /// Takes no writes.
    pub read_only: bool,
}

impl Default for QueueLimits {
    fn default() -> Self {
        QueueLimits {
            logical_block_size: 512,
            physical_block_size: 512,
            io_min: 512,
            io_opt: 0,
            max_sectors: 2048,
            merge_sectors: u32::MAX,
            max_segments: 128,
            max_segment_size: u32::MAX,
            seg_boundary_mask: u64::MAX,
            dma_alignment: 0,
            max_discard_sectors: 0,
            discard_granularity: 512,
            max_write_zeroes_sectors: 0,
            chunk_sectors: 0,
            features: Features::default(),
        }
    }
}

impl QueueLimits {
    /// Sectors of one logical block.
    #[must_use]
    pub fn logical_sectors(&self) -> u32 {
        self.logical_block_size >> 9
    }

    /// Longest read or write that merging makes, in sectors.
    #[inline]
    pub(crate) fn merge_max(&self) -> u32 {
        self.merge_sectors.min(self.max_sectors)
    }

    /// Checks that the fields make sense alone and together, and rounds what must be whole blocks.
    ///
    /// # Errors
    /// `InvalidSetting`, naming the field and its value.
    pub fn validate(mut self) -> Result<QueueLimits, Error> {
        let block = self.logical_block_size;
        check(
            block.is_power_of_two() && (512..=65_536).contains(&block),
            "logical_block_size",
            block,
        )?;
        let physical = self.physical_block_size.max(block);
        check(physical.is_power_of_two(), "physical_block_size", physical)?;
        self.physical_block_size = physical;
        self.io_min = self.io_min.max(block);
        check(self.io_opt.is_multiple_of(block), "io_opt", self.io_opt)?;
        self.max_sectors = self.max_sectors.min(MAX_DATA_SECTORS);
        self.max_sectors -= self.max_sectors % self.logical_sectors();
        check(self.max_sectors > 0, "max_sectors", self.max_sectors)?;
        check(self.max_segments > 0, "max_segments", self.max_segments.into())?;
        check(self.max_segment_size >= block, "max_segment_size", self.max_segment_size)?;
        let boundary = self.seg_boundary_mask;
        let whole = boundary == u64::MAX || (boundary + 1).is_power_of_two();
        check(whole && boundary >= u64::from(block) - 1, "seg_boundary_mask", boundary as u32)?;
        let align = self.dma_alignment;
        check(align <= 65_535 && (align + 1).is_power_of_two(), "dma_alignment", align)?;
        self.max_discard_sectors -= self.max_discard_sectors % self.logical_sectors();
        self.max_write_zeroes_sectors -= self.max_write_zeroes_sectors % self.logical_sectors();
        let chunk = self.chunk_sectors;
        check(chunk.is_multiple_of(self.logical_sectors()), "chunk_sectors", chunk)?;
        Ok(self)
    }

    /// Limits of a device that passes I/O on to both: the stricter of each.
    #[must_use]
    pub fn stack(self, other: QueueLimits) -> QueueLimits {
        QueueLimits {
            logical_block_size: self.logical_block_size.max(other.logical_block_size),
            physical_block_size: self.physical_block_size.max(other.physical_block_size),
            io_min: self.io_min.max(other.io_min),
            io_opt: self.io_opt.max(other.io_opt),
            max_sectors: self.max_sectors.min(other.max_sectors),
            merge_sectors: self.merge_sectors.min(other.merge_sectors),
            max_segments: self.max_segments.min(other.max_segments),
            max_segment_size: self.max_segment_size.min(other.max_segment_size),
            seg_boundary_mask: self.seg_boundary_mask.min(other.seg_boundary_mask),
            dma_alignment: self.dma_alignment.max(other.dma_alignment),
            max_discard_sectors: self.max_discard_sectors.min(other.max_discard_sectors),
            discard_granularity: self.discard_granularity.max(other.discard_granularity),
            max_write_zeroes_sectors: self
                .max_write_zeroes_sectors
                .min(other.max_write_zeroes_sectors),
            chunk_sectors: nonzero_min(self.chunk_sectors, other.chunk_sectors),
            features: Features {
                volatile_cache: self.features.volatile_cache || other.features.volatile_cache,
                process_cache: self.features.process_cache || other.features.process_cache,
                fua: self.features.fua && other.features.fua,
                no_payload: self.features.no_payload && other.features.no_payload,
                read_only: self.features.read_only || other.features.read_only,
            },
        }
    }
}

/// What a piece of memory may be: the two limits that cut pieces, in a form that is cheap to apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentRule {
    max_bytes: u32,
    boundary_mask: u64,
}

impl SegmentRule {
    pub(crate) const NONE: SegmentRule =
        SegmentRule { max_bytes: u32::MAX, boundary_mask: u64::MAX };

    /// The longest start of a piece that keeps the rule.
    #[inline]
    pub(crate) fn cut(self, piece: Segment) -> Segment {
        let to_boundary = self.boundary_mask - (piece.start as u64 & self.boundary_mask);
        let most = u64::from(self.max_bytes).min(to_boundary.saturating_add(1));
        Segment { len_bytes: u64::from(piece.len_bytes).min(most) as u32, ..piece }
    }
}

impl QueueLimits {
    #[inline]
    pub(crate) fn segment_rule(&self) -> SegmentRule {
        SegmentRule { max_bytes: self.max_segment_size, boundary_mask: self.seg_boundary_mask }
    }

    /// Whether one piece of memory of any length is one segment.
    pub(crate) fn takes_any_segment(&self) -> bool {
        self.segment_rule() == SegmentRule::NONE
    }
}

fn nonzero_min(a: u32, b: u32) -> u32 {
    if a == 0 || b == 0 { a.max(b) } else { a.min(b) }
}

fn check(holds: bool, field: &str, value: u32) -> Result<(), Error> {
    let text = || format!("queue limit {field} = {value} makes no sense");
    if holds { Ok(()) } else { Err(Error::new(ErrorKind::InvalidSetting, text())) }
}

#[cfg(test)]
mod tests;
