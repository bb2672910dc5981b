//! `QueueLimits`: sizes, alignment and operations of the requests that a device accepts.
//!
//! Drivers fill in the limits, `validate` checks them, volumes combine the limits of their drives,
//! and the splitter and the servers read them. Names are those of the kernel's `struct
//! queue_limits`; units are in the names. After validation, every field can be used as it is: 0
//! means "no limit" or "not supported" only where the field's comment says so.

use alloc::format;

use crate::bio::Segment;
use crate::bio::error::{Error, ErrorKind};

/// Longest read or write in sectors, so that a length in bytes fits 32 bits.
pub(crate) const MAX_DATA_SECTORS: u32 = (1 << 23) - 1;

/// The I/O limits of a device, in the kernel's names.
#[doc(alias = "queue_limits")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Smallest addressable unit in bytes: a power of two, 512 to 65,536.
    pub logical_block_size: u32,
    /// Smallest unit in bytes written without read-modify-write; at least `logical_block_size`.
    pub physical_block_size: u32,
    /// Preferred smallest I/O in bytes.
    pub io_min: u32,
    /// Preferred I/O in bytes; 0 if the device has no preference.
    pub io_opt: u32,
    /// Longest read or write that the device accepts, in sectors.
    pub max_sectors: u32,
    /// Length up to which bios are merged into one read or write, in sectors. Useful for devices
    /// that handle several short requests faster than a long one. A value of `max_sectors` or more
    /// has no effect.
    pub merge_sectors: u32,
    /// Largest number of memory segments in one request.
    pub max_segments: u16,
    /// Longest memory segment in bytes.
    pub max_segment_size: u32,
    /// No memory segment crosses a multiple of (mask + 1) bytes; `u64::MAX` for no boundary.
    pub seg_boundary_mask: u64,
    /// Memory addresses must be multiples of (mask + 1) bytes.
    pub dma_alignment: u32,
    /// Longest discard in sectors; 0 if the device cannot discard.
    pub max_discard_sectors: u32,
    /// Recommended alignment of discards, in bytes.
    pub discard_granularity: u32,
    /// Longest write-zeroes in sectors; 0 if the device does not support it.
    pub max_write_zeroes_sectors: u32,
    /// Boundary in sectors that no request may cross; 0 for none.
    pub chunk_sectors: u32,
    /// Boolean properties of the device.
    pub features: Features,
}

/// Boolean properties of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// The device has a volatile cache: a completed write may be lost if no flush followed.
    pub volatile_cache: bool,
    /// The volatile cache is memory of this process. If the process crashes, completed writes that
    /// were not flushed are lost.
    pub process_cache: bool,
    /// The device executes FUA writes itself. Otherwise the block layer flushes after the write.
    pub fua: bool,
    /// The device never touches payload: reads leave memory unchanged.
    pub no_payload: bool,
    /// The device accepts no writes.
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
    /// Returns the number of sectors in one logical block.
    #[must_use]
    pub fn logical_sectors(&self) -> u32 {
        self.logical_block_size >> 9
    }

    /// Returns the longest read or write that merging builds, in sectors.
    #[inline]
    pub(crate) fn merge_max(&self) -> u32 {
        self.merge_sectors.min(self.max_sectors)
    }

    /// Checks the fields and the relations between them. Changes some values instead of refusing
    /// them: rounds lengths down to whole blocks, lowers `max_sectors` to the longest supported
    /// length, and raises `physical_block_size` and `io_min` to the size of a logical block.
    ///
    /// # Errors
    /// `InvalidSetting`, with the name and value of the wrong field.
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

    /// Combines the limits of two devices, `self` and `other`. Returns the limits of a device that
    /// stores its data on these two devices: the stricter value of each field.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentRule {
    max_bytes: u32,
    boundary_mask: u64,
}

impl SegmentRule {
    pub(crate) const NONE: SegmentRule =
        SegmentRule { max_bytes: u32::MAX, boundary_mask: u64::MAX };

    /// Returns the longest leading part of `piece` within the limits on length and boundary.
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

    pub(crate) fn takes_any_segment(&self) -> bool {
        self.segment_rule() == SegmentRule::NONE
    }
}

fn nonzero_min(a: u32, b: u32) -> u32 {
    if a == 0 || b == 0 { a.max(b) } else { a.min(b) }
}

fn check(holds: bool, field: &str, value: u32) -> Result<(), Error> {
    let text = || format!("queue limit {field} = {value} is out of range");
    if holds { Ok(()) } else { Err(Error::new(ErrorKind::InvalidSetting, text())) }
}

#[cfg(test)]
mod tests;
