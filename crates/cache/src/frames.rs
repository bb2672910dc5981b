//! `Frames`: the memory of a cache, cut into frames of a page each.
//!
//! One allocation for the life of the cache; pages of the system come as frames are first used.
//! Never zeroed, and never read but in sectors that were written before: shards keep that. Only
//! ever touched by raw copies and by drives, never by references.
#![allow(unsafe_code)]

use alloc::alloc::{Layout, alloc, dealloc};
use alloc::format;
use core::ptr::NonNull;

use millrace_block::{Error, ErrorKind};

use crate::extent::PAGE_BYTES;

/// Alignment of the memory: the system may then use huge pages for it.
const ALIGN: usize = 2 << 20;

/// The memory of a cache.
#[derive(Debug)]
pub(crate) struct Frames {
    start: NonNull<u8>,
    count: u32,
}

// SAFETY: plain bytes, only ever touched by raw copies, never by references.
unsafe impl Send for Frames {}
// SAFETY: as above; who may touch which frame when is decided under locks of shards.
unsafe impl Sync for Frames {}

impl Frames {
    /// So many frames.
    ///
    /// # Errors
    /// `System` if there is no memory for them.
    pub(crate) fn new(count: u32) -> Result<Frames, Error> {
        // SAFETY: the layout has a size above zero.
        let start = unsafe { alloc(Self::layout(count)) };
        let Some(start) = NonNull::new(start) else {
            let text = format!("cache: no memory for {count} pages of 4 KiB; make it smaller");
            return Err(Error::new(ErrorKind::System, text));
        };
        Ok(Frames { start, count })
    }

    fn layout(count: u32) -> Layout {
        let bytes = count.max(1) as usize * PAGE_BYTES;
        let align = if bytes >= ALIGN { ALIGN } else { PAGE_BYTES };
        Layout::from_size_align(bytes, align).expect("at most 1 TiB, a power of two")
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The first byte of all, and how many there are.
    pub(crate) fn region(&self) -> (*mut u8, usize) {
        (self.start.as_ptr(), self.count as usize * PAGE_BYTES)
    }

    /// The address of a frame.
    #[inline]
    pub(crate) fn at(&self, frame: u32) -> *mut u8 {
        assert!(frame < self.count, "frame {frame} of {}", self.count);
        self.start.as_ptr().wrapping_add(frame as usize * PAGE_BYTES)
    }

    /// Copies sectors of one frame to the same place of another.
    pub(crate) fn copy(&self, from: u32, into: u32, mask: u8) {
        let (from, into) = (self.at(from), self.at(into));
        for (first, len) in crate::extent::runs(mask) {
            let (at, len) = (first as usize * 512, len as usize * 512);
            // SAFETY: both lie inside their frames, which are different ones.
            unsafe {
                core::ptr::copy_nonoverlapping(from.wrapping_add(at), into.wrapping_add(at), len);
            }
        }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.count)) };
    }
}
