//! The buffer arena of the process, from which programs allocate their buffers.
//!
//! The arena's lock is taken when a buffer is created or dropped, which programs do not do for each
//! I/O. A buffer of more than 2 MiB is a region of its own. An idle region is unmapped at once,
//! unless it is the only idle region.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ptr::{self, NonNull};
use std::sync::{LazyLock, Mutex};

use super::REGION_BYTES;
use super::arena::{ArenaBuffer, BufferArena, order_of};
use super::region::Region;
use crate::lock_unpoisoned;

#[derive(Default)]
struct HandedOut {
    arena: BufferArena<()>,
    buffers: HashMap<usize, ArenaBuffer>,
    regions: HashMap<usize, Region>,
}

static HANDED_OUT: LazyLock<Mutex<HandedOut>> = LazyLock::new(Mutex::default);

/// Allocates `len_bytes` of zeroed memory, or returns null.
pub(super) fn alloc_zeroed(len_bytes: usize) -> *mut u8 {
    let mut out = lock_unpoisoned(&HANDED_OUT);
    if len_bytes > REGION_BYTES {
        // The system has already zeroed a new region.
        let Ok(region) = Region::map(len_bytes) else { return ptr::null_mut() };
        let start = region.start();
        out.regions.insert(start.as_ptr().addr(), region);
        return start.as_ptr();
    }
    let Some(start) = out.take(len_bytes) else { return ptr::null_mut() };
    drop(out);
    // SAFETY: the buffer is at least `len_bytes` long, and belongs to this call alone.
    unsafe { ptr::write_bytes(start.as_ptr(), 0, len_bytes) };
    start.as_ptr()
}

/// # Safety
/// The memory must come from [`alloc_zeroed`] with this length, and must no longer be used.
pub(super) unsafe fn dealloc(start: *mut u8, len_bytes: usize) {
    let mut out = lock_unpoisoned(&HANDED_OUT);
    if len_bytes > REGION_BYTES {
        let region = out.regions.remove(&start.addr());
        drop(out);
        drop(region.expect("freed memory must come from alloc_zeroed"));
        return;
    }
    let buffer =
        out.buffers.remove(&start.addr()).expect("freed memory must come from alloc_zeroed");
    let region = buffer.region();
    if out.arena.give(buffer) && out.arena.idle_bytes() > REGION_BYTES {
        out.arena.unmap(region, |()| ());
    }
}

impl HandedOut {
    /// Takes a buffer of up to 2 MiB, which may hold data of its last user.
    fn take(&mut self, len_bytes: usize) -> Option<NonNull<u8>> {
        let order = order_of(len_bytes)?;
        let buffer = match self.arena.take(order) {
            Some(buffer) => buffer,
            None => {
                self.arena.map(order, |_| ()).ok()?;
                self.arena.take(order)?
            }
        };
        let start = buffer.start();
        self.buffers.insert(start.as_ptr().addr(), buffer);
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_left_is_zeroed_and_threads_share() {
        std::thread::scope(|scope| {
            for thread in 1..4_u8 {
                scope.spawn(move || {
                    for round in 0..300 {
                        let len = [512, 4096, 100_000, REGION_BYTES, REGION_BYTES + 1][round % 5];
                        let start = alloc_zeroed(len);
                        // SAFETY: handed out for as long, and nobody else's.
                        let bytes = unsafe { std::slice::from_raw_parts_mut(start, len) };
                        assert!(bytes.iter().all(|byte| *byte == 0));
                        bytes.fill(thread);
                        // SAFETY: from just above.
                        unsafe { dealloc(start, len) };
                    }
                });
            }
        });
        assert!(alloc_zeroed(1 << 60).is_null());
    }
}
