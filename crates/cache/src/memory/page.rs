//! `PageSize`: how large the pages of a cache are, and where sectors lie in them.
//!
//! A page is 4 KiB, or a logical block of the volume below where that is larger. So whole blocks
//! reach the drives, whatever is written, joined, cut, evicted, filled or read ahead: a page that
//! is a block goes as a whole, and a block that is smaller than a page is a row of its eighths.
//! Masks have a bit for each eighth of a page, which is a sector in pages of 4 KiB. Of a larger
//! page clients ask for all eighths at a time, since the cached volume has the block of the volume
//! below. Fixed when the cache is made; copied to whoever needs it.

use core::ops::Range;

use crate::memory::extent::{EXTENT_PAGES, WHOLE, runs};

/// Bytes of a page over drives whose logical block is not larger.
const PAGE_BYTES_MIN: u32 = 4096;
/// Eighths of a page, as a power of two.
const EIGHTHS_SHIFT: u32 = 3;

/// The size of a cache's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageSize {
    /// Sectors of an eighth, as a power of two.
    shift: u32,
}

impl PageSize {
    /// Of a cache over a volume with this logical block, in bytes.
    pub(crate) fn over(block_bytes: u32) -> PageSize {
        PageSize { shift: (block_bytes.max(PAGE_BYTES_MIN) / PAGE_BYTES_MIN).ilog2() }
    }

    /// Bytes of a page.
    #[inline]
    pub(crate) fn bytes(self) -> usize {
        (PAGE_BYTES_MIN as usize) << self.shift
    }

    /// Sectors of a page.
    #[inline]
    pub(crate) fn sectors(self) -> u64 {
        1 << (self.shift + EIGHTHS_SHIFT)
    }

    /// Sectors of an extent.
    pub(crate) fn extent_sectors(self) -> u64 {
        self.sectors() * EXTENT_PAGES as u64
    }

    /// Bytes of so many eighths.
    pub(crate) fn eighths_bytes(self, count: u32) -> usize {
        (count as usize * 512) << self.shift
    }

    /// Pages that fit so many bytes; one at least.
    pub(crate) fn fit(self, bytes: u64) -> u64 {
        (bytes / self.bytes() as u64).max(1)
    }

    /// First sector of a page.
    #[inline]
    pub(crate) fn start_of(self, page: u64) -> u64 {
        page << (self.shift + EIGHTHS_SHIFT)
    }

    /// The page of a sector.
    #[inline]
    pub(crate) fn page_at(self, sector: u64) -> u64 {
        sector >> (self.shift + EIGHTHS_SHIFT)
    }

    /// The pages that the sectors from `sector` to `end` lie in.
    #[inline]
    pub(crate) fn pages_of(self, sector: u64, end: u64) -> Range<u64> {
        self.page_at(sector)..self.page_at(end + self.sectors() - 1)
    }

    /// The eighths of a page that lie in a range of sectors.
    #[inline]
    pub(crate) fn mask_of(self, page: u64, sector: u64, end: u64) -> u8 {
        let start = self.start_of(page);
        let from = (sector.max(start) - start) >> self.shift;
        let to = end.min(start + self.sectors()).saturating_sub(start) >> self.shift;
        if from >= to {
            return 0;
        }
        (((1u16 << to) - 1) & !((1u16 << from) - 1)) as u8
    }

    /// The eighths of a page that a volume of so many sectors has: all, but for the last page of
    /// some.
    pub(crate) fn whole(self, sectors: u64, page: u64) -> u8 {
        self.mask_of(page, 0, sectors)
    }

    /// The pages of an extent that sectors lie in, a bit each.
    pub(crate) fn bits_of(self, number: u64, (start, end): (u64, u64)) -> u16 {
        let first = number * EXTENT_PAGES as u64;
        let has = |page: &u64| self.mask_of(first + page, start, end) != 0;
        (0..EXTENT_PAGES as u64).filter(has).fold(0, |bits, page| bits | 1 << page)
    }

    /// The runs of sectors that some eighths of a page are: the first sector, and how many.
    pub(crate) fn sector_runs(self, page: u64, mask: u8) -> impl Iterator<Item = (u64, u64)> {
        let start = self.start_of(page);
        runs(mask).map(move |(first, len)| {
            (start + (u64::from(first) << self.shift), u64::from(len) << self.shift)
        })
    }
}

const _: () = assert!(WHOLE.count_ones() == 1 << EIGHTHS_SHIFT);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::extent::ALL_PAGES;
    use alloc::vec::Vec;

    const SMALL: PageSize = PageSize { shift: 0 };

    #[test]
    fn a_page_is_4_kib_or_the_block_below_where_that_is_larger() {
        for (block, bytes) in [(512, 4096), (4096, 4096), (8192, 8192), (65_536, 65_536)] {
            let page = PageSize::over(block);
            assert_eq!((page.bytes(), page.sectors()), (bytes, bytes as u64 / 512), "{block}");
            assert_eq!(page.extent_sectors(), 16 * page.sectors(), "{block}");
            assert_eq!(page.eighths_bytes(8), bytes, "{block}");
        }
        let large = PageSize::over(65_536);
        assert_eq!((large.fit(1 << 20), large.fit(1), SMALL.fit(1 << 20)), (16, 1, 256));
    }

    #[test]
    fn masks_have_a_bit_for_each_eighth_of_the_page_that_lies_in_the_range() {
        assert_eq!(SMALL.mask_of(0, 0, 8), WHOLE);
        assert_eq!(SMALL.mask_of(1, 0, 8), 0);
        assert_eq!(SMALL.mask_of(1, 9, 12), 0b1110);
        assert_eq!(SMALL.mask_of(1, 15, 100), 0b1000_0000);
        assert_eq!(SMALL.mask_of(2, 15, 17), 0b1);
        assert_eq!((SMALL.whole(17, 1), SMALL.whole(17, 2), SMALL.whole(17, 3)), (WHOLE, 1, 0));
        let large = PageSize::over(65_536);
        assert_eq!((large.mask_of(1, 128, 256), large.mask_of(1, 256, 1024)), (WHOLE, 0));
        assert_eq!((large.pages_of(128, 256), large.pages_of(0, 384)), (1..2, 0..3));
        assert_eq!((SMALL.pages_of(7, 9), SMALL.pages_of(8, 16)), (0..2, 1..2));
    }

    #[test]
    fn bits_of_a_range_are_the_pages_that_it_touches() {
        assert_eq!(SMALL.bits_of(0, (0, 1)), 1);
        assert_eq!(SMALL.bits_of(1, (0, 1000)), ALL_PAGES);
        assert_eq!(SMALL.bits_of(1, (128 + 15, 128 + 17)), 0b110);
        assert_eq!(SMALL.bits_of(1, (0, 128)), 0);
        assert_eq!(PageSize::over(8192).bits_of(0, (16, 48)), 0b110);
    }

    #[test]
    fn runs_of_eighths_are_whole_blocks_of_sectors() {
        for block in [512, 1024, 2048, 4096, 8192, 65_536u32] {
            let (page, sectors) = (PageSize::over(block), u64::from(block) / 512);
            for first in (0..page.sectors()).step_by(sectors as usize) {
                let start = page.start_of(5);
                let mask = page.mask_of(5, start + first, start + first + sectors);
                let runs: Vec<(u64, u64)> = page.sector_runs(5, mask).collect();
                assert_eq!(runs, [(start + first, sectors)], "block {block}");
            }
        }
    }
}
