//! `MemoryMapping`: a large range of memory that costs nothing until it is written.
//!
//! The memory is an anonymous mapping without reservation. Data are copied through raw pointers,
//! and no reference to the memory is ever made. If several threads write to a range at once, the
//! range holds a mixture of their bytes, as on a disk. Invariant: every access is checked to lie
//! inside the mapping.
#![allow(unsafe_code)]

use millrace_block::{Error, ErrorKind, Op, Request};
use millrace_machine::Machine;
use millrace_machine::payload::Region;

const PAGE: u64 = 4096;

#[derive(Debug)]
pub(crate) struct MemoryMapping {
    region: Region,
    len_bytes: u64,
}

impl MemoryMapping {
    pub(crate) fn new(len_bytes: u64) -> Result<MemoryMapping, Error> {
        let whole = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        let region = Region::map_sparse(whole).map_err(|error| {
            let text = format!("cannot map a memory drive of {len_bytes} bytes: {error}");
            Error::new(ErrorKind::System, text)
        })?;
        Ok(MemoryMapping { region, len_bytes })
    }

    fn at(&self, offset: u64, len_bytes: u64) -> *mut u8 {
        let fits = offset.checked_add(len_bytes).is_some_and(|end| end <= self.len_bytes);
        assert!(fits, "{len_bytes} bytes at {offset} reach past the end of the mapping");
        self.region.start().as_ptr().wrapping_add(offset as usize)
    }

    pub(crate) fn transfer<M: Machine>(&self, rq: &Request<M>) {
        let mut offset = rq.sector() << 9;
        for segment in rq.segments() {
            let here = self.at(offset, segment.len_bytes.into());
            let (from, into) = match rq.op() {
                Op::Read => (here, segment.start),
                _ => (segment.start, here),
            };
            // SAFETY: `here` was checked to lie inside the mapping.
            // The segments of a request in flight are valid memory of the request's bios. That
            // memory does not overlap this mapping.
            unsafe { std::ptr::copy_nonoverlapping(from, into, segment.len_bytes as usize) };
            offset += u64::from(segment.len_bytes);
        }
    }

    pub(crate) fn copy_from(&self, other: &MemoryMapping, offset: u64, len_bytes: u32) {
        let from = other.at(offset, len_bytes.into());
        let into = self.at(offset, len_bytes.into());
        // SAFETY: both were checked to lie inside their mappings, which are not the same.
        unsafe { std::ptr::copy_nonoverlapping(from, into, len_bytes as usize) }
    }

    /// Makes a range read as zeroes, and returns its whole pages to the system.
    pub(crate) fn clear(&self, offset: u64, len_bytes: u64) {
        let end = offset + len_bytes;
        let first = offset.next_multiple_of(PAGE).min(end);
        let last = (end - end % PAGE).max(first);
        self.zero(offset, first - offset);
        self.zero(last, end - last);
        if first < last {
            let start = self.at(first, last - first);
            // SAFETY: whole pages inside the mapping, to which no reference exists.
            let done = unsafe {
                libc::madvise(start.cast(), (last - first) as usize, libc::MADV_DONTNEED)
            };
            if done != 0 {
                self.zero(first, last - first);
            }
        }
    }

    pub(crate) fn zero(&self, offset: u64, len_bytes: u64) {
        let start = self.at(offset, len_bytes);
        // SAFETY: checked to lie inside.
        unsafe { std::ptr::write_bytes(start, 0, len_bytes as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleared_range_reads_as_zeroes_and_its_neighbours_stay() {
        let map = MemoryMapping::new(64 << 10).unwrap();
        let ones = vec![1u8; 64 << 10];
        let mut back = vec![9u8; 64 << 10];
        let start = map.at(0, 64 << 10);
        // SAFETY: a vector of the mapping's length.
        unsafe { std::ptr::copy_nonoverlapping(ones.as_ptr(), start, ones.len()) };
        map.clear(512, 20_000);
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(start, back.as_mut_ptr(), back.len()) };
        let zeroes = back.iter().enumerate().filter(|(_, b)| **b == 0).map(|(at, _)| at);
        assert_eq!((zeroes.clone().min(), zeroes.max()), (Some(512), Some(20_511)));
    }

    #[test]
    #[should_panic(expected = "past the end")]
    fn access_past_the_end_panics() {
        MemoryMapping::new(4096).unwrap().zero(4096, 1);
    }
}
