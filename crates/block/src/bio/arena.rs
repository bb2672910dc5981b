//! `Arena`: one block of memory, such as a cache's, that many I/Os to drives read and write.
//!
//! The owner lends the block to drives ([`Driver::lend`](crate::Driver::lend)) and decides which
//! I/O uses which part. The memory keeps its address until the last reference is dropped. The
//! operating system provides it zeroed, page by page at first use, in huge pages where it can. Only
//! raw copies and drives access it, never Rust references.
#![allow(unsafe_code)]

use alloc::alloc::Layout;
use core::ptr::NonNull;

use millrace_machine::payload::{alloc_zeroed, dealloc};

/// A block of memory at a fixed address, shared by its owner and drives for many I/Os.
#[derive(Debug)]
pub struct Arena {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the type holds plain bytes and gives out nothing but their address.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Allocates `len_bytes` zeroed bytes, aligned to `align`, a power of two. Returns `None` if
    /// memory is short, `len_bytes` is 0 or `align` is not a power of two.
    #[must_use]
    pub fn new(len_bytes: usize, align: usize) -> Option<Arena> {
        let layout = Layout::from_size_align(len_bytes, align).ok()?;
        if len_bytes == 0 {
            return None;
        }
        // SAFETY: the layout has a size above zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Arena { start, layout })
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the size of the memory in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_has_the_length_and_alignment_asked_for_or_is_none() {
        let arena = Arena::new(3 << 20, 2 << 20).unwrap();
        assert_eq!((arena.start() as usize % (2 << 20), arena.len_bytes()), (0, 3 << 20));
        assert!(Arena::new(0, 4096).is_none() && Arena::new(4096, 3).is_none());
        assert!(
            Arena::new(usize::MAX / 2, 4096).is_none(),
            "the system does not have that much memory"
        );
    }
}
