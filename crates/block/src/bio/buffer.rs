//! `Buffer`: owned, aligned, zeroed memory for one I/O of a program.
//!
//! The program owns it before submission, the bio from submission to completion, and the program
//! again afterwards, so a program never holds memory that a drive may still write. On a real
//! machine a buffer of up to 2 MiB lies in one huge page if the system has one free. New buffers
//! are zeroed so that no program reads another's bytes. Kernel counterpart: the pages of a bio.
#![allow(unsafe_code)]

use alloc::alloc::{Layout, handle_alloc_error};
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use millrace_machine::payload::{alloc_zeroed, dealloc};

/// Alignment that every drive accepts, in bytes.
pub const BUFFER_ALIGN: usize = 4096;

/// Owned, zeroed memory aligned to [`BUFFER_ALIGN`].
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: a buffer is the only owner of plain bytes.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates a zeroed buffer of `len_bytes` bytes: a multiple of 512 between 512 and 1 GiB.
    ///
    /// # Panics
    /// If the length is out of that range. Aborts if there is no memory.
    #[must_use]
    pub fn new(len_bytes: usize) -> Self {
        let sane = len_bytes > 0 && len_bytes.is_multiple_of(512) && len_bytes <= 1 << 30;
        assert!(
            sane,
            "a buffer of {len_bytes} bytes is not a multiple of 512 between 512 and 1 GiB"
        );
        let layout = Self::layout(len_bytes);
        // SAFETY: the layout has a size above zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Buffer { start, len_bytes }
    }

    fn layout(len_bytes: usize) -> Layout {
        Layout::from_size_align(len_bytes, BUFFER_ALIGN).expect("at most 1 GiB, power of two")
    }

    pub(crate) fn into_raw(self) -> (NonNull<u8>, usize) {
        let raw = (self.start, self.len_bytes);
        core::mem::forget(self);
        raw
    }

    /// Takes back the memory that [`Buffer::into_raw`] gave up.
    ///
    /// # Safety
    /// `start` and `len_bytes` come from one call of `into_raw`, and are passed to `from_raw` only
    /// once.
    pub(crate) unsafe fn from_raw(start: NonNull<u8>, len_bytes: usize) -> Self {
        Buffer { start, len_bytes }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout, owned by nobody else.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len_bytes)) }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len_bytes` initialised bytes, owned by self.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len_bytes` initialised bytes, owned by self, borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_bytes) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_buffer_is_zeroed_and_aligned() {
        let buffer = Buffer::new(8192);
        assert!(buffer.iter().all(|byte| *byte == 0));
        assert_eq!(buffer.as_ptr() as usize % BUFFER_ALIGN, 0);
    }

    #[test]
    fn a_buffer_is_as_long_as_asked_and_keeps_what_is_put_in() {
        for len in [512, 1024, 1 << 20] {
            let mut buffer = Buffer::new(len);
            assert_eq!(buffer.len(), len);
            buffer.fill(0);
            buffer[len - 1] = 7;
            let (start, raw_len) = buffer.into_raw();
            assert_eq!(raw_len, len);
            // SAFETY: given up just above.
            let buffer = unsafe { Buffer::from_raw(start, raw_len) };
            assert_eq!((buffer[0], buffer[len - 1]), (0, 7));
        }
    }

    #[test]
    fn lengths_out_of_bounds_panic() {
        extern crate std;
        for len in [0, 511, (1 << 30) + 512] {
            assert!(std::panic::catch_unwind(|| Buffer::new(len)).is_err(), "{len}");
        }
    }

    #[test]
    #[should_panic(expected = "multiple of 512")]
    fn length_that_is_no_multiple_of_a_sector_panics() {
        let _ = Buffer::new(1000);
    }
}
