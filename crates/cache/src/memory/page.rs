//! `PageSize`: size of a cache's pages, and conversion between sectors and pages.
//!
//! A page is 4 KiB, or one logical block of the volume below if that is larger. So the drives
//! always get whole blocks. Masks of type `u8` have one bit for each eighth of a page, which is a
//! sector if pages have 4 KiB. On larger pages clients always address all eighths, because the
//! cached volume has the same logical block size as the volume below.

use core::ops::{Range, RangeInclusive};

use crate::memory::extent::{EXTENT_PAGES, WHOLE, runs};

const PAGE_BYTES_MIN: u32 = 4096;
const EIGHTHS_SHIFT: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageSize {
    /// Base-2 logarithm of the number of sectors in an eighth of a page.
    shift: u32,
}

impl PageSize {
    pub(crate) fn over(block_bytes: u32) -> PageSize {
        PageSize { shift: (block_bytes.max(PAGE_BYTES_MIN) / PAGE_BYTES_MIN).ilog2() }
    }

    #[inline]
    pub(crate) fn bytes(self) -> usize {
        (PAGE_BYTES_MIN as usize) << self.shift
    }

    #[inline]
    pub(crate) fn sectors(self) -> u64 {
        1 << (self.shift + EIGHTHS_SHIFT)
    }

    pub(crate) fn eighths_bytes(self, count: u32) -> usize {
        (count as usize * 512) << self.shift
    }

    /// Returns how many pages fit into `bytes`, at least one.
    pub(crate) fn fit(self, bytes: u64) -> u64 {
        (bytes / self.bytes() as u64).max(1)
    }

    #[inline]
    pub(crate) fn start_of(self, page: u64) -> u64 {
        page << (self.shift + EIGHTHS_SHIFT)
    }

    #[inline]
    pub(crate) fn page_at(self, sector: u64) -> u64 {
        sector >> (self.shift + EIGHTHS_SHIFT)
    }

    #[inline]
    pub(crate) fn pages_of(self, sector: u64, end: u64) -> Range<u64> {
        self.page_at(sector)..self.page_at(end + self.sectors() - 1)
    }

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

    /// Returns the mask of a page's eighths that exist on a volume of `sectors` sectors.
    pub(crate) fn whole(self, sectors: u64, page: u64) -> u8 {
        self.mask_of(page, 0, sectors)
    }

    pub(crate) fn bits_of(self, number: u64, (start, end): (u64, u64)) -> u16 {
        let first = number * EXTENT_PAGES as u64;
        let has = |page: &u64| self.mask_of(first + page, start, end) != 0;
        (0..EXTENT_PAGES as u64).filter(has).fold(0, |bits, page| bits | 1 << page)
    }

    pub(crate) fn extents_of(self, (start, end): (u64, u64)) -> RangeInclusive<u64> {
        let sectors = self.sectors() * EXTENT_PAGES as u64;
        start / sectors..=(end - 1) / sectors
    }

    /// Returns the first sector and the length of each run of page eighths that `mask` selects.
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
            assert_eq!(page.extents_of((0, 16 * page.sectors())), 0..=0, "{block}");
            assert_eq!(page.eighths_bytes(8), bytes, "{block}");
        }
        let large = PageSize::over(65_536);
        assert_eq!((large.fit(1 << 20), large.fit(1), SMALL.fit(1 << 20)), (16, 1, 256));
    }

    #[test]
    fn masks_have_bit_for_each_eighth_of_page_that_lies_in_range() {
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
