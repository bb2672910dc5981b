//! The linear layout: drives one after the other.
//!
//! The last drive may grow. Growth of any other drive would move the data of the drives behind it.
//! Kernel counterpart: md's linear.

use alloc::vec::Vec;

use crate::bio::{Sector, SectorCount};
use crate::chain::slot::BioStride;
use crate::volume::placement::{DrivePart, SectorMapping, VolumeRange};

pub(crate) struct Linear {
    /// First sector of each drive, followed by `Sector::MAX` as the end of the last drive, which
    /// may grow.
    starts: Vec<Sector>,
}

impl Linear {
    pub(crate) fn new(sizes: &[Sector]) -> Self {
        let mut end = 0;
        let start = |size: &Sector| {
            end += size;
            end - size
        };
        let mut starts: Vec<Sector> = sizes.iter().map(start).collect();
        starts.push(Sector::MAX);
        Linear { starts }
    }

    /// Returns the size of a linear volume in sectors. The size of each drive is rounded down to
    /// whole blocks.
    pub(crate) fn capacity(sizes: &[Sector], block_sectors: u64) -> Sector {
        sizes.iter().map(|size| size / block_sectors * block_sectors).sum()
    }

    fn member_of(&self, sector: Sector) -> usize {
        self.starts.partition_point(|start| *start <= sector) - 1
    }
}

impl SectorMapping for Linear {
    #[inline]
    fn locate(&self, sector: Sector, nr_sectors: SectorCount) -> Option<(u16, Sector)> {
        let member = self.member_of(sector);
        let place = sector - self.starts[member];
        let fits = sector + u64::from(nr_sectors) <= self.starts[member + 1];
        fits.then_some((member as u16, place))
    }

    fn span(&self, sector: Sector, last: Sector) -> (u16, u16) {
        let (first, last) = (self.member_of(sector), self.member_of(last));
        (first as u16, (last - first + 1) as u16)
    }

    fn range(&self, sector: Sector, end: Sector) -> VolumeRange {
        VolumeRange { sector, end, first: (0, 0), within: 0, last: (0, 0), short: 0 }
    }

    fn part_of(&self, range: &VolumeRange, member: u16) -> Option<DrivePart> {
        let start = self.starts[usize::from(member)];
        let drive_end = self.starts[usize::from(member) + 1];
        let (from, to) = (range.sector.max(start), range.end.min(drive_end));
        (from < to).then(|| DrivePart {
            member,
            dev_sector: from - start,
            nr_sectors: (to - from) as u32,
            offset: (from - range.sector) as u32,
            stride: BioStride::NONE,
        })
    }

    fn run_from(&self, at: Sector) -> u64 {
        self.starts[self.member_of(at) + 1] - at
    }

    fn moved(&self, sizes: &[Sector]) -> Option<(usize, Sector)> {
        let ahead = self.starts.windows(2).zip(sizes).enumerate().rev().skip(1);
        let has_moved =
            |(_, (ends, size)): &(usize, (&[Sector], &Sector))| ends[1] - ends[0] != **size;
        ahead.filter(has_moved).map(|(at, (ends, _))| (at, ends[1] - ends[0])).next()
    }
}
