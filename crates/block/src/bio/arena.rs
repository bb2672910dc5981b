//! `Arena`: memory that many requests to drives lie in over time, such as that of a cache.
//!
//! Shared by its owner, who decides who touches which part of it when, and by drives to which it
//! was lent ([`Driver::lend`](crate::Driver::lend)): it stays where it is until the last of them
//! has let go. Zeroed by the system, whose pages come as they are first used, in huge ones if it
//! can. Only ever touched by raw copies and by drives, never by references.
#![allow(unsafe_code)]

use alloc::alloc::Layout;
use core::ptr::NonNull;

use millrace_machine::payload::{alloc_zeroed, dealloc};

/// Memory that many requests lie in over time.
#[derive(Debug)]
pub struct Arena {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain bytes, to which this gives out nothing but the address.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// So many bytes with this alignment, which is a power of two. None if there is no memory, or
    /// no bytes were asked for.
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

    /// The first byte.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// How many bytes there are.
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
        assert!(Arena::new(usize::MAX / 2, 4096).is_none(), "more than there is");
    }
}
