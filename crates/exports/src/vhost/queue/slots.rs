//! State of a queue's requests in flight, and of the memory that they use.
//!
//! A request uses the slot of its first descriptor. Each change of the guest's memory map begins an
//! epoch, and a slot records the epoch of its request. So memory that the frontend removed stays
//! mapped until its last request has completed.

use std::ptr::null_mut;
use std::sync::Arc;

use super::blk;
use crate::vhost::memory::GuestMemory;

/// Maximum length of a segment list whose allocation is kept for a later request.
pub(super) const PARTS_KEPT: usize = blk::SEG_MAX as usize;
/// Bit of [`RequestSlot::state`]: the request is in flight.
pub(super) const BUSY: u32 = 1 << 31;
/// Bit of [`RequestSlot::state`]: the list of segments is longer than the announced maximum.
pub(super) const LONG: u32 = 1 << 30;
/// Bit of [`RequestSlot::state`]: a write whose data are only in memory until the next flush.
pub(super) const UNFLUSHED: u32 = 1 << 29;
/// Bit of [`RequestSlot::state`]: the request is a flush that clears the record of unflushed writes
/// if it succeeds.
pub(super) const FLUSH: u32 = 1 << 28;
/// Bits of [`RequestSlot::state`]: the epoch, which is the number of the guest's memory map at the
/// time when the request was taken.
pub(super) const EPOCH: u32 = FLUSH - 1;

/// State of a request in flight. Four slots fit into a cache line.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestSlot {
    /// Address of the status byte in guest memory; null if the chain has none.
    pub(super) status: *mut u8,
    pub(super) state: u32,
    /// Number of bytes that the drive writes to guest memory.
    pub(super) read_bytes: u32,
}

const _: () = assert!(size_of::<RequestSlot>() == 16);

impl RequestSlot {
    pub(super) const FREE: RequestSlot =
        RequestSlot { status: null_mut(), state: 0, read_bytes: 0 };
}

#[derive(Debug)]
pub(super) struct MemoryVersions {
    pub(super) now: Arc<GuestMemory>,
    /// Number of changes of the guest's memory map so far, modulo (`EPOCH` + 1).
    pub(super) epoch: u32,
    /// Older memory maps, each with its epoch and the number of requests in flight that use it.
    pub(super) old: Vec<(u32, u32, Arc<GuestMemory>)>,
}

impl MemoryVersions {
    pub(super) fn leave(&mut self, epoch: u32) {
        self.old.retain_mut(|(of, count, _)| {
            *count -= u32::from(*of == epoch);
            *count > 0
        });
    }
}
