//! `Placement`: where the sectors of a volume lie on its drives, and the parts of a range.
//!
//! One implementation for each layout (linear.rs, stripe.rs); the volume asks, and channels split
//! by the answers. A range of a volume is one contiguous range on each drive that it touches.
//! Sectors are in units of 512 bytes, members are numbered as the volume's drives.

use crate::bio::{Sector, SectorCount};
use crate::chain::slot::Stride;

/// Where the sectors of a volume lie.
pub(crate) trait Placement {
    /// Drive and place on it, if the whole range lies on one drive in one piece.
    fn locate(&self, sector: Sector, nr_sectors: SectorCount) -> Option<(u16, Sector)>;

    /// The first drive that a range touches, and how many drives from there on, round robin; `last`
    /// is the range's last sector.
    fn span(&self, sector: Sector, last: Sector) -> (u16, u16);

    /// What [`Placement::part_of`] must know of the range from `sector` to before `end`.
    fn range(&self, sector: Sector, end: Sector) -> Range;

    /// What of a range lies on drive `member`; none if nothing does.
    fn part_of(&self, range: &Range, member: u16) -> Option<Part>;

    /// How many sectors from `at` on lie on the drive of `at` in one piece.
    fn run_from(&self, at: Sector) -> u64;

    /// The first drive whose growth to `sizes` (in whole blocks) would move what others hold, with
    /// its size as the layout has it.
    fn moved(&self, sizes: &[Sector]) -> Option<(usize, Sector)>;
}

/// What of a range lies on one drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) member: u16,
    pub(crate) dev_sector: Sector,
    pub(crate) nr_sectors: SectorCount,
    /// How far into the range its first sector lies.
    pub(crate) offset: SectorCount,
    pub(crate) stride: Stride,
}

/// Where a range begins and ends, for all drives that it touches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(super) sector: Sector,
    pub(super) end: Sector,
    /// Row and drive of the first chunk, and how far into it the range begins.
    pub(super) first: (u64, u16),
    pub(super) within: u64,
    /// Row and drive of the last chunk, and how much of it is left out.
    pub(super) last: (u64, u16),
    pub(super) short: u64,
}

impl Part {
    /// The part without its first `sectors`.
    pub(crate) fn skip(self, sectors: SectorCount) -> Part {
        let chunk = 1u64 << self.stride.chunk_shift;
        let place = self.dev_sector % chunk + u64::from(sectors);
        let jumped = place / chunk * chunk * u64::from(self.stride.width - 1);
        Part {
            dev_sector: self.dev_sector + u64::from(sectors),
            nr_sectors: self.nr_sectors - sectors,
            offset: self.offset + sectors + jumped as u32,
            ..self
        }
    }
}
