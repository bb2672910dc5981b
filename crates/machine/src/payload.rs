//! Payload memory, which drives, sockets and guests read and write.
//!
//! A request needs a segment for each physically contiguous range of its buffer, and a virtual
//! disk, an IOMMU or an NVMe drive's PRP list pays for each segment. Payload memory therefore comes
//! in [`Region`]s of 2 MiB, for which huge pages are requested. A [`BufferArena`] divides regions
//! into buffers. The process has one arena, from which [`alloc_zeroed`] and [`dealloc`] serve the
//! buffers of programs. Without the feature `std` these functions use the global allocator.
//!
//! Only this module maps memory for payload. If huge pages are refused, everything works with
//! ordinary ones.
#![allow(unsafe_code)]

#[cfg(feature = "std")]
mod arena;
#[cfg(feature = "std")]
mod blocks;
#[cfg(feature = "std")]
mod process_arena;
#[cfg(feature = "std")]
mod region;

#[cfg(feature = "std")]
pub use arena::{ArenaBuffer, BufferArena, ORDERS, order_bytes, order_of, region_bytes};
#[cfg(feature = "std")]
pub use region::{Region, huge_bytes};

use alloc::alloc::Layout;

/// Smallest buffer of an arena, in bytes, and the alignment of all buffers.
pub const BUFFER_BYTES_MIN: usize = 4096;
/// Size and alignment of a region, in bytes: one huge page. A buffer of up to this length lies in
/// one region.
pub const REGION_BYTES: usize = 2 << 20;

/// Allocates zeroed memory of this layout. Returns null if there is not enough memory.
///
/// # Safety
/// The layout's size must be above zero.
#[must_use]
pub unsafe fn alloc_zeroed(layout: Layout) -> *mut u8 {
    #[cfg(feature = "std")]
    if layout.align() <= REGION_BYTES {
        return process_arena::alloc_zeroed(own_bytes(layout));
    }
    // SAFETY: the caller vouches for the layout.
    unsafe { alloc::alloc::alloc_zeroed(layout) }
}

/// Frees memory from [`alloc_zeroed`].
///
/// # Safety
/// The memory must come from [`alloc_zeroed`] with the same layout, and must no longer be used.
pub unsafe fn dealloc(start: *mut u8, layout: Layout) {
    #[cfg(feature = "std")]
    if layout.align() <= REGION_BYTES {
        // SAFETY: the caller promises that the memory came from `alloc_zeroed` with this layout.
        return unsafe { process_arena::dealloc(start, own_bytes(layout)) };
    }
    // SAFETY: the caller promises that the memory came from the global allocator with this layout.
    unsafe { alloc::alloc::dealloc(start, layout) };
}

/// Returns the buffer length to allocate for `layout`: the size, or the alignment if it is larger.
/// Buffers of up to 2 MiB are aligned to their length, rounded up to a power of two. Longer buffers
/// are aligned to 2 MiB. So each buffer has at least the alignment of `layout`.
#[cfg(feature = "std")]
fn own_bytes(layout: Layout) -> usize {
    layout.size().max(layout.align())
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn memory_has_the_alignment_of_its_layout() {
        for (len, align) in
            [(512, 1), (8192, 64 << 10), (100, 2 << 20), (3 << 20, 2 << 20), (1, 4 << 20)]
        {
            let layout = Layout::from_size_align(len, align).unwrap();
            // SAFETY: a size above zero; given back with the same layout.
            unsafe {
                let start = alloc_zeroed(layout);
                assert!(!start.is_null() && start.addr().is_multiple_of(align), "{len} {align}");
                dealloc(start, layout);
            }
        }
    }
}
