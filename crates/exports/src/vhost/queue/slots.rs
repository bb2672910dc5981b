//! What a queue knows of each request in flight, and of the memory that requests lie in.
//!
//! A slot for each descriptor, under the head of the request that has it. Memory that the frontend
//! took back stays mapped until the last request has ended that was translated by it: a change of
//! memory begins an epoch, and a slot says of which one its request is. Plain data of queue.rs.

use std::ptr::null_mut;
use std::sync::Arc;

use super::blk;
use crate::vhost::memory::GuestMemory;

/// Pieces for which a slot keeps its memory; guests were told to make no more of a request.
pub(super) const PARTS_KEPT: usize = blk::SEG_MAX as usize;
/// Bit of [`Slot::state`]: the request is in flight.
pub(super) const BUSY: u32 = 1 << 31;
/// Bit of [`Slot::state`]: the list of pieces is longer than guests were told to make them.
pub(super) const LONG: u32 = 1 << 30;
/// Bit of [`Slot::state`]: a write that would be lost with this process until a flush.
pub(super) const UNFLUSHED: u32 = 1 << 29;
/// Bit of [`Slot::state`]: a flush with a ticket.
pub(super) const FLUSH: u32 = 1 << 28;
/// Bits of [`Slot::state`]: the epoch of [`Memory`] when the request was taken.
pub(super) const EPOCH: u32 = FLUSH - 1;

/// A request in flight; four to a cache line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    /// Where the request's outcome goes, in guest memory; null if nowhere.
    pub(super) status: *mut u8,
    pub(super) state: u32,
    /// Bytes that the drive writes to its memory.
    pub(super) read_bytes: u32,
}

const _: () = assert!(size_of::<Slot>() == 16);

impl Slot {
    pub(super) const FREE: Slot = Slot { status: null_mut(), state: 0, read_bytes: 0 };
}

/// The memory that its requests lie in.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) now: Arc<GuestMemory>,
    /// Counts changes, up to [`EPOCH`].
    pub(super) epoch: u32,
    /// Memory of earlier epochs: the epoch, its requests in flight, and the memory.
    pub(super) old: Vec<(u32, u32, Arc<GuestMemory>)>,
}

impl Memory {
    /// A request of an earlier epoch is done.
    pub(super) fn leave(&mut self, epoch: u32) {
        self.old.retain_mut(|(of, count, _)| {
            *count -= u32::from(*of == epoch);
            *count > 0
        });
    }
}
