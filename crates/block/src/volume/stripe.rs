//! The striped layout: chunks round robin over the drives (RAID-0).
//!
//! A row is one chunk of each drive. A range of the volume has one contiguous part on each drive,
//! because the range's chunks on a drive are adjacent. The data of such a part are not contiguous
//! in memory; a `BioStride` describes the gaps. Source: Kumar et al., ATC 2017, the Falcon paper
//! (volume, stripe). Kernel counterpart: md's raid0.

use crate::bio::{Sector, SectorCount};
use crate::chain::slot::BioStride;
use crate::volume::placement::{DrivePart, SectorMapping, VolumeRange};

pub(crate) struct Stripe {
    /// log2 of the chunk size in sectors.
    chunk_shift: u32,
    width: u64,
    /// log2 of the number of drives, if that is a power of two.
    width_shift: Option<u32>,
}

impl Stripe {
    /// Creates the layout for `width` drives; `chunk_sectors` is a power of two.
    pub(crate) fn new(chunk_sectors: u32, width: usize) -> Self {
        Stripe {
            chunk_shift: chunk_sectors.trailing_zeros(),
            width: width as u64,
            width_shift: width.is_power_of_two().then(|| width.trailing_zeros()),
        }
    }

    /// Returns the size in sectors of a stripe over drives of these sizes: each drive contributes
    /// as many whole chunks as the smallest drive has.
    pub(crate) fn capacity(sizes: &[Sector], chunk_sectors: u32) -> Sector {
        let chunk = u64::from(chunk_sectors.max(1));
        let smallest = sizes.iter().min().copied().unwrap_or(0);
        smallest / chunk * chunk * sizes.len() as u64
    }

    fn mask(&self) -> u64 {
        (1 << self.chunk_shift) - 1
    }

    #[inline]
    fn row_of(&self, chunk: u64) -> (u64, u16) {
        match self.width_shift {
            Some(shift) => (chunk >> shift, (chunk & ((1 << shift) - 1)) as u16),
            None => (chunk / self.width, (chunk % self.width) as u16),
        }
    }
}

impl SectorMapping for Stripe {
    #[inline(always)]
    fn locate(&self, sector: Sector, nr_sectors: SectorCount) -> Option<(u16, Sector)> {
        let within = sector & self.mask();
        if within + u64::from(nr_sectors) > 1 << self.chunk_shift {
            return None;
        }
        let (row, member) = self.row_of(sector >> self.chunk_shift);
        Some((member, (row << self.chunk_shift) + within))
    }

    fn span(&self, sector: Sector, last: Sector) -> (u16, u16) {
        let (first, last) = (sector >> self.chunk_shift, last >> self.chunk_shift);
        (self.row_of(first).1, (last - first + 1).min(self.width) as u16)
    }

    fn range(&self, sector: Sector, end: Sector) -> VolumeRange {
        let (shift, mask) = (self.chunk_shift, self.mask());
        let (first, last) = (self.row_of(sector >> shift), self.row_of((end - 1) >> shift));
        let (within, short) = (sector & mask, mask - ((end - 1) & mask));
        VolumeRange { sector, end, first, within, last, short }
    }

    fn part_of(&self, range: &VolumeRange, member: u16) -> Option<DrivePart> {
        let (shift, width) = (self.chunk_shift, self.width);
        let ((first_row, first), (last_row, last)) = (range.first, range.last);
        // A row is one chunk of each drive. In the first row, the range has no chunk on drives
        // before the first chunk's drive. In the last row, the range has no chunk on drives after
        // the last chunk's drive.
        let row = first_row + u64::from(member < first);
        let end_row = last_row + u64::from(member <= last);
        if row >= end_row {
            return None;
        }
        let within = if member == first { range.within } else { 0 };
        let short = if member == last { range.short } else { 0 };
        let dev_sector = (row << shift) + within;
        let start = ((row * width + u64::from(member)) << shift) + within;
        Some(DrivePart {
            member,
            dev_sector,
            nr_sectors: ((end_row << shift) - short - dev_sector) as u32,
            offset: (start - range.sector) as u32,
            stride: BioStride { chunk_shift: shift as u16, width: width as u16 },
        })
    }

    fn run_from(&self, at: Sector) -> u64 {
        (1 << self.chunk_shift) - (at & self.mask())
    }
}
