//! `SectorExtents`: builds the results of `Driver::extents`.
//!
//! The drivers of files, memory, NBD servers and Ceph images use this type.

use millrace_block::{Extent, Sector};

const EXTENTS_MAX: usize = 1024;

/// Extents that cover a range of sectors from its start. Adjacent extents with the same state are
/// joined.
pub(crate) struct SectorExtents {
    pub(crate) extents: Vec<Extent>,
    pub(crate) at: Sector,
    end: Sector,
}

#[derive(Clone, Copy)]
pub(crate) struct ExtentState {
    pub(crate) hole: bool,
    pub(crate) zero: bool,
}

pub(crate) const HOLE: ExtentState = ExtentState { hole: true, zero: true };
pub(crate) const DATA: ExtentState = ExtentState { hole: false, zero: false };

impl SectorExtents {
    pub(crate) fn new(sector: Sector, nr_sectors: u64) -> SectorExtents {
        SectorExtents { extents: Vec::new(), at: sector, end: sector + nr_sectors }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.at >= self.end || self.extents.len() >= EXTENTS_MAX
    }

    /// Appends an extent in the given state (hole, zeroes or data) for the sectors from `self.at`
    /// up to `upto`. Sectors after the end of the queried range are left out.
    pub(crate) fn cover(&mut self, upto: Sector, state: ExtentState) {
        let upto = upto.min(self.end);
        if upto <= self.at {
            return;
        }
        let nr_sectors = upto - self.at;
        self.at = upto;
        let ExtentState { hole, zero } = state;
        match self.extents.last_mut() {
            Some(last) if (last.hole, last.zero) == (hole, zero) => last.nr_sectors += nr_sectors,
            _ => self.extents.push(Extent { nr_sectors, hole, zero }),
        }
    }
}

pub(crate) fn all_data(nr_sectors: u64) -> Vec<Extent> {
    vec![Extent { nr_sectors, hole: false, zero: false }]
}
