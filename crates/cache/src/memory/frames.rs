//! `FrameMemory`: the memory of a cache, divided into frames of one page each.
//!
//! The memory is never zeroed; shards make sure that only parts that were written are read. Only
//! raw copies and drives touch it; no Rust references to it exist.
#![allow(unsafe_code)]

use alloc::format;
use alloc::sync::Arc;

use millrace_block::{Arena, Error, ErrorKind};

use crate::memory::extent::runs;
use crate::memory::page::PageSize;

/// Alignment of the memory in bytes, so that the system can use huge pages.
const ALIGN: usize = 2 << 20;

#[derive(Debug)]
pub(crate) struct FrameMemory {
    pub(crate) arena: Arc<Arena>,
    pub(crate) count: u32,
    pub(crate) page: PageSize,
}

impl FrameMemory {
    pub(crate) fn new(count: u32, page: PageSize) -> Result<FrameMemory, Error> {
        let bytes = count.max(1) as usize * page.bytes();
        let align = if bytes >= ALIGN { ALIGN } else { page.bytes() };
        let Some(arena) = Arena::new(bytes, align) else {
            let kib = page.bytes() >> 10;
            let text = format!(
                "cache: cannot allocate {count} pages of {kib} KiB; make the cache smaller"
            );
            return Err(Error::new(ErrorKind::System, text));
        };
        Ok(FrameMemory { arena: Arc::new(arena), count, page })
    }

    #[inline]
    pub(crate) fn at(&self, frame: u32) -> *mut u8 {
        assert!(frame < self.count, "frame {frame} of {}", self.count);
        self.arena.start().wrapping_add(frame as usize * self.page.bytes())
    }

    pub(crate) fn copy(&self, from: u32, into: u32, mask: u8) {
        let (from, into) = (self.at(from), self.at(into));
        for (first, len) in runs(mask) {
            let (at, len) = (self.page.eighths_bytes(first), self.page.eighths_bytes(len));
            // SAFETY: source and destination lie inside two different frames.
            unsafe {
                core::ptr::copy_nonoverlapping(from.wrapping_add(at), into.wrapping_add(at), len);
            }
        }
    }
}
