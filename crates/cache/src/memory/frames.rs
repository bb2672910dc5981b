//! `Frames`: the memory of a cache, cut into frames of a page each.
//!
//! One arena for the life of the cache; pages of the system come as frames are first used. Never
//! zeroed, and never read but in parts that were written before: shards keep that. Only
//! ever touched by raw copies and by drives, never by references.
#![allow(unsafe_code)]

use alloc::format;
use alloc::sync::Arc;

use millrace_block::{Arena, Error, ErrorKind};

use crate::memory::extent::runs;
use crate::memory::page::PageSize;

/// Alignment of the memory: the system may then use huge pages for it.
const ALIGN: usize = 2 << 20;

/// The memory of a cache.
#[derive(Debug)]
pub(crate) struct Frames {
    arena: Arc<Arena>,
    count: u32,
    page: PageSize,
}

impl Frames {
    /// So many frames, each of a page of this size.
    ///
    /// # Errors
    /// `System` if there is no memory for them.
    pub(crate) fn new(count: u32, page: PageSize) -> Result<Frames, Error> {
        let bytes = count.max(1) as usize * page.bytes();
        let align = if bytes >= ALIGN { ALIGN } else { page.bytes() };
        let Some(arena) = Arena::new(bytes, align) else {
            let kib = page.bytes() >> 10;
            let text = format!("cache: no memory for {count} pages of {kib} KiB; make it smaller");
            return Err(Error::new(ErrorKind::System, text));
        };
        Ok(Frames { arena: Arc::new(arena), count, page })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// All of it.
    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// The address of a frame.
    #[inline]
    pub(crate) fn at(&self, frame: u32) -> *mut u8 {
        assert!(frame < self.count, "frame {frame} of {}", self.count);
        self.arena.start().wrapping_add(frame as usize * self.page.bytes())
    }

    /// Copies eighths of one frame to the same place of another.
    pub(crate) fn copy(&self, from: u32, into: u32, mask: u8) {
        let (from, into) = (self.at(from), self.at(into));
        for (first, len) in runs(mask) {
            let (at, len) = (self.page.eighths_bytes(first), self.page.eighths_bytes(len));
            // SAFETY: both lie inside their frames, which are different ones.
            unsafe {
                core::ptr::copy_nonoverlapping(from.wrapping_add(at), into.wrapping_add(at), len);
            }
        }
    }
}
