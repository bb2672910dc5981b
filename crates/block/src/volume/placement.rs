//! `SectorMapping`: maps the sectors of a volume to its drives, and a range to its parts.
//!
//! Each layout has one implementation (linear.rs, stripe.rs). The volume calls the implementation,
//! and channels split bios according to the results. A range of a volume is one contiguous range on
//! each drive that it touches. Sectors have 512 bytes; a member is a drive's index in the volume.

use crate::bio::{Sector, SectorCount};
use crate::chain::slot::BioStride;

pub(crate) trait SectorMapping {
    /// Returns the drive and sector of a range that is contiguous on one drive; else `None`.
    fn locate(&self, sector: Sector, nr_sectors: SectorCount) -> Option<(u16, Sector)>;

    /// Returns the first drive that a range touches, and the number of drives that it touches. The
    /// range continues on the next drive of the volume, and after the last drive on drive 0. `last`
    /// is the range's last sector.
    fn span(&self, sector: Sector, last: Sector) -> (u16, u16);

    /// Returns the first and last chunk of a range, from which [`SectorMapping::part_of`] computes
    /// the range's part on each drive. `end` is the sector after the range.
    fn range(&self, sector: Sector, end: Sector) -> VolumeRange;

    fn part_of(&self, range: &VolumeRange, member: u16) -> Option<DrivePart>;

    /// Returns how many sectors, starting with sector `at`, are contiguous on one drive.
    fn run_from(&self, at: Sector) -> u64;

    /// Finds a drive that must not grow to its new size in `sizes`, because the data of later
    /// drives would move. Returns the drive's index and present size. Sizes are in sectors and are
    /// whole blocks.
    fn moved(&self, _sizes: &[Sector]) -> Option<(usize, Sector)> {
        None
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DrivePart {
    pub(crate) member: u16,
    pub(crate) dev_sector: Sector,
    pub(crate) nr_sectors: SectorCount,
    /// Offset of this part from the start of the volume's range, in sectors.
    pub(crate) offset: SectorCount,
    pub(crate) stride: BioStride,
}

/// The first and last chunk of a range, computed once for all drives that the range touches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VolumeRange {
    pub(super) sector: Sector,
    pub(super) end: Sector,
    /// Row and drive of the first chunk; a row is one chunk of each drive.
    pub(super) first: (u64, u16),
    /// Number of sectors from the start of the first chunk to the start of the range.
    pub(super) within: u64,
    pub(super) last: (u64, u16),
    /// Number of sectors from the end of the range to the end of the last chunk.
    pub(super) short: u64,
}

impl DrivePart {
    pub(crate) fn skip(self, sectors: SectorCount) -> DrivePart {
        let chunk = 1u64 << self.stride.chunk_shift;
        let place = self.dev_sector % chunk + u64::from(sectors);
        let jumped = place / chunk * chunk * u64::from(self.stride.width - 1);
        DrivePart {
            dev_sector: self.dev_sector + u64::from(sectors),
            nr_sectors: self.nr_sectors - sectors,
            offset: self.offset + sectors + jumped as u32,
            ..self
        }
    }
}
