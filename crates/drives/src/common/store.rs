//! `SparseStore`: sparse content of a drive that keeps its data in memory.
//!
//! The store consists of a mapping, and a bit for each 64 KiB granule that tells whether it was
//! ever written. The bit is set after the data are written, and cleared before they are dropped, so
//! a granule with data always has its bit. All queues of a drive use the store at the same time.
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_block::{Error, Extent, Op, OpFlags, Request, Sector};
use millrace_machine::Machine;

use crate::common::extents::{DATA, HOLE, SectorExtents};
use crate::common::mapping::MemoryMapping;

const GRANULE_SHIFT: u32 = 16;

#[derive(Debug)]
pub(crate) struct SparseStore {
    data: MemoryMapping,
    written: Box<[AtomicU64]>,
}

impl SparseStore {
    pub(crate) fn new(size_bytes: u64) -> Result<SparseStore, Error> {
        let granules = size_bytes.div_ceil(1 << GRANULE_SHIFT);
        let written = (0..granules.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok(SparseStore { data: MemoryMapping::new(size_bytes)?, written })
    }

    fn bit(&self, granule: u64) -> (&AtomicU64, u64) {
        (&self.written[(granule / 64) as usize], 1 << (granule % 64))
    }

    fn is_written(&self, granule: u64) -> bool {
        let (word, bit) = self.bit(granule);
        // Acquire pairs with the Release in `note_written`: if the bit is set, the data are
        // visible.
        word.load(Ordering::Acquire) & bit != 0
    }

    /// Returns true if nothing was written to a range since it was last discarded.
    pub(crate) fn is_untouched(&self, offset: u64, len_bytes: u64) -> bool {
        let mut granules =
            offset >> GRANULE_SHIFT..(offset + len_bytes).div_ceil(1 << GRANULE_SHIFT);
        granules.all(|granule| !self.is_written(granule))
    }

    fn note_written(&self, offset: u64, len_bytes: u64) {
        for granule in offset >> GRANULE_SHIFT..=(offset + len_bytes - 1) >> GRANULE_SHIFT {
            if !self.is_written(granule) {
                let (word, bit) = self.bit(granule);
                // Release pairs with the Acquire in `is_written`.
                word.fetch_or(bit, Ordering::Release);
            }
        }
    }

    fn clear(&self, offset: u64, len_bytes: u64) {
        let first = offset.div_ceil(1 << GRANULE_SHIFT);
        for granule in first..(offset + len_bytes) >> GRANULE_SHIFT {
            let (word, bit) = self.bit(granule);
            // AcqRel: the bit is cleared before the granule's data are dropped. A write that ends
            // after this operation sets the bit again, so later data always have their bit.
            word.fetch_and(!bit, Ordering::AcqRel);
        }
        self.data.clear(offset, len_bytes);
    }

    pub(crate) fn run<M: Machine>(&self, rq: &Request<M>) {
        let (offset, len_bytes) = (rq.sector() << 9, u64::from(rq.nr_sectors()) << 9);
        match rq.op() {
            Op::Read => self.data.transfer(rq),
            Op::Write => {
                self.data.transfer(rq);
                self.note_written(offset, len_bytes);
            }
            Op::Flush => {}
            Op::WriteZeroes if rq.flags().has(OpFlags::NOUNMAP) => {
                self.data.zero(offset, len_bytes);
                self.note_written(offset, len_bytes);
            }
            Op::Discard | Op::WriteZeroes => self.clear(offset, len_bytes),
        }
    }

    pub(crate) fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        let mut list = SectorExtents::new(sector, nr_sectors);
        while !list.is_full() {
            let granule = list.at >> (GRANULE_SHIFT - 9);
            let state = if self.is_written(granule) { DATA } else { HOLE };
            list.cover((granule + 1) << (GRANULE_SHIFT - 9), state);
        }
        list.extents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_holes_until_written_and_after_whole_discards() {
        let store = SparseStore::new(1 << 30).unwrap();
        let hole = |nr_sectors| Extent { nr_sectors, hole: true, zero: true };
        let data = |nr_sectors| Extent { nr_sectors, hole: false, zero: false };
        assert_eq!(store.extents(0, 1024), [hole(1024)]);
        store.note_written(64 << 10, 512);
        assert_eq!(store.extents(0, 1024), [hole(128), data(128), hole(768)]);
        let ranges = [(0, 64 << 10), (0, (64 << 10) + 512), (127 << 10, 512), (128 << 10, 1 << 20)];
        let untouched = ranges.map(|(offset, len_bytes)| store.is_untouched(offset, len_bytes));
        assert_eq!(untouched, [true, false, false, true]);
        store.clear(0, 1 << 20);
        assert_eq!(store.extents(0, 1024), [hole(1024)]);
    }
}
