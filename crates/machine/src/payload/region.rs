//! `Region`: an anonymous mapping that starts at a multiple of 2 MiB, in huge pages if the system
//! provides them.
//!
//! The system provides zeroed pages on first use. The addresses of all regions for which huge pages
//! were requested are recorded, so that [`huge_bytes`] can tell how much memory really is in huge
//! pages. Invariant: the mapping exists as long as the value.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::vec::Vec;

use super::REGION_BYTES;
use crate::lock_unpoisoned;

/// Address and length of each region for which huge pages were requested.
static ADVISED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// An anonymous mapping for payload.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: a mapping is plain memory; its owner settles which thread may touch it.
unsafe impl Send for Region {}
// SAFETY: a shared reference gives out nothing but the address.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len_bytes`, rounded up to whole pages. Requests huge pages if the length is 2 MiB or
    /// more.
    ///
    /// # Errors
    /// Returns the error of `mmap`. For example, the address space is used up, or the process has
    /// too many mappings.
    pub fn map(len_bytes: usize) -> io::Result<Region> {
        let region = Region::map_with(len_bytes, 0)?;
        if region.len_bytes >= REGION_BYTES {
            // SAFETY: advice, which changes no byte; without huge pages it fails, and nothing else.
            unsafe {
                libc::madvise(region.start.as_ptr().cast(), region.len_bytes, libc::MADV_HUGEPAGE)
            };
            let mut advised = lock_unpoisoned(&ADVISED);
            advised.insert(region.start.as_ptr().addr(), region.len_bytes);
        }
        Ok(region)
    }

    /// Maps `len_bytes` without huge pages. The length may exceed the system's memory, because a
    /// page costs nothing until it is used.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Region::map`].
    pub fn map_sparse(len_bytes: usize) -> io::Result<Region> {
        Region::map_with(len_bytes, libc::MAP_NORESERVE)
    }

    fn map_with(len_bytes: usize, flags: i32) -> io::Result<Region> {
        let too_long = || io::Error::from_raw_os_error(libc::ENOMEM);
        let len_bytes = len_bytes.max(1).checked_next_multiple_of(4096).ok_or_else(too_long)?;
        // Maps more than needed, so that the region can start at a multiple of 2 MiB.
        let spare_bytes = if len_bytes < REGION_BYTES { 0 } else { REGION_BYTES };
        let mapped_bytes = len_bytes.checked_add(spare_bytes).ok_or_else(too_long)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let mapped =
            unsafe { libc::mmap(std::ptr::null_mut(), mapped_bytes, protection, flags, -1, 0) };
        let (Some(first), true) = (NonNull::new(mapped.cast::<u8>()), mapped != libc::MAP_FAILED)
        else {
            return Err(io::Error::last_os_error());
        };
        let head_bytes = match spare_bytes {
            0 => 0,
            _ => first.as_ptr().align_offset(REGION_BYTES),
        };
        let tail_bytes = spare_bytes - head_bytes;
        // SAFETY: `head_bytes` is at most `spare_bytes`, so this stays inside the mapping.
        let start = unsafe { first.add(head_bytes) };
        for (at, cut_bytes) in
            [(first.as_ptr(), head_bytes), (start.as_ptr().wrapping_add(len_bytes), tail_bytes)]
        {
            if cut_bytes > 0 {
                // SAFETY: these are the unused ends of the new mapping. No pointer to them exists.
                unsafe { libc::munmap(at.cast(), cut_bytes) };
            }
        }
        Ok(Region { start, len_bytes })
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // The record of the address is removed before the region is unmapped, because another
        // region may get the address afterwards.
        if self.len_bytes >= REGION_BYTES {
            let mut advised = lock_unpoisoned(&ADVISED);
            advised.remove(&self.start.as_ptr().addr());
        }
        // SAFETY: mapped in `map_with`; the owner gave out no address that is still in use.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len_bytes) };
    }
}

/// Returns how many bytes of all regions are in huge pages. Reads /proc/self/smaps, for which the
/// kernel walks the page tables, so call it rarely.
///
/// # Errors
/// Returns the system's error if that file cannot be read.
pub fn huge_bytes() -> io::Result<usize> {
    let smaps = std::fs::read_to_string("/proc/self/smaps")?;
    let advised: Vec<(usize, usize)> = {
        let regions = lock_unpoisoned(&ADVISED);
        regions.iter().map(|(start, len)| (*start, *len)).collect()
    };
    Ok(huge_in(&smaps, &advised))
}

/// Returns how many bytes of the regions are in huge pages, according to `smaps`, the text of
/// /proc/self/smaps. Adds up `AnonHugePages` of all mappings in which a region starts. The kernel
/// merges two mappings only if huge pages were requested for both, so the sum covers no other
/// memory.
fn huge_in(smaps: &str, regions: &[(usize, usize)]) -> usize {
    let (mut sum, mut counts) = (0, false);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some((start, end)) = first.split_once('-') {
            let number = |text| usize::from_str_radix(text, 16).unwrap_or(0);
            let range = number(start)..number(end);
            counts = regions.iter().any(|(start, _)| range.contains(start));
        } else if first == "AnonHugePages:" && counts {
            let kib: usize = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            sum += kib << 10;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_aligned_whole_pages_that_read_as_zeroes() {
        for (len, expected) in [
            (1, 4096),
            (4097, 8192),
            (REGION_BYTES, REGION_BYTES),
            (REGION_BYTES + 1, REGION_BYTES + 4096),
        ] {
            let region = Region::map(len).unwrap();
            assert_eq!(region.len_bytes(), expected, "{len}");
            let align = if len < REGION_BYTES { 4096 } else { REGION_BYTES };
            assert_eq!(region.start().as_ptr().addr() % align, 0, "{len}");
            // SAFETY: mapped for as long, and nobody else has it.
            let bytes =
                unsafe { std::slice::from_raw_parts_mut(region.start().as_ptr(), expected) };
            assert!(bytes.iter().all(|byte| *byte == 0), "{len}");
            bytes.fill(1);
        }
    }

    #[test]
    fn what_there_is_no_room_for_is_refused_by_the_system() {
        for len in [usize::MAX, usize::MAX - 8191, 1 << 60] {
            assert_eq!(Region::map(len).unwrap_err().raw_os_error(), Some(libc::ENOMEM), "{len}");
        }
    }

    #[test]
    fn huge_pages_are_counted_in_mappings_that_hold_regions() {
        let smaps = "7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n\
                     Size:               4096 kB\n\
                     AnonHugePages:      2048 kB\n\
                     7f0000600000-7f0000800000 rw-p 00000000 00:00 0 [heap]\n\
                     AnonHugePages:      4096 kB\n";
        let regions = [(0x7f00_0020_0000, REGION_BYTES)];
        assert_eq!(huge_in(smaps, &regions), 2 << 20);
        assert_eq!(huge_in(smaps, &[(0x7f00_0060_0000, REGION_BYTES)]), 4 << 20);
        assert_eq!(huge_in(smaps, &[]), 0);
    }
}
