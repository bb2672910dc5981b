//! Guest memory that is registered with a thread's ring, for those who ask for it.
//!
//! A registered region saves the kernel a look-up of pages per I/O and costs that all of it is
//! pinned: a balloon or free page reporting in the guest would then read and write pages that the
//! guest no longer has. So it is off unless the configuration says that guests have neither.
//! Called by thread.rs.
//!
//! Invariant: a region is unregistered only when no request in flight can lie in it.
#![allow(unsafe_code)]

use std::sync::Arc;

use millrace_reactor::Handle;

use super::memory::{GuestMemory, Region};
use super::queue::Queue;

/// The reactor takes regions up to this length.
const PIECE_BYTES: u64 = 1 << 30;

/// What a thread has registered.
pub(crate) struct Pinned {
    handle: Handle,
    wanted: bool,
    /// The memory whose regions are registered.
    memory: Option<Arc<GuestMemory>>,
    regions: Vec<(Arc<Region>, Vec<u16>)>,
}

impl Pinned {
    pub(crate) fn new(handle: Handle, wanted: bool) -> Pinned {
        Pinned { handle, wanted, memory: None, regions: Vec::new() }
    }

    /// Registers the memory of these queues, and lets go of what none of them has any more.
    pub(crate) fn follow<'a>(&mut self, queues: impl Iterator<Item = &'a Queue> + Clone) {
        if !self.wanted || queues.clone().any(Queue::has_old_memory) {
            return;
        }
        let now = queues.clone().map(Queue::memory).next();
        // Not before the last of them has heard of a change.
        if queues.map(Queue::memory).any(|one| now.is_some_and(|now| !Arc::ptr_eq(one, now))) {
            return;
        }
        match (now, &self.memory) {
            (None, None) => return,
            (Some(now), Some(known)) if Arc::ptr_eq(now, known) => return,
            _ => {}
        }
        let now = now.map(Arc::clone);
        let has = |region: &Arc<Region>| {
            let regions = now.iter().flat_map(|memory| memory.regions());
            regions.into_iter().any(|other| Arc::ptr_eq(other, region))
        };
        let handle = &self.handle;
        self.regions.retain(|(region, pieces)| {
            let stays = has(region);
            if !stays {
                // SAFETY: no queue has it, and none has requests in flight in older memory.
                pieces.iter().for_each(|index| unsafe { handle.unregister_buffer(*index) });
            }
            stays
        });
        for region in now.iter().flat_map(|memory| memory.regions()) {
            if !self.regions.iter().any(|(known, _)| Arc::ptr_eq(known, region)) {
                self.regions.push((Arc::clone(region), register(handle, region)));
            }
        }
        self.memory = now;
    }
}

/// Registers a region in pieces; what the kernel refuses is used as it is.
fn register(handle: &Handle, region: &Region) -> Vec<u16> {
    let (len, start) = (region.address().len_bytes, region.start());
    let piece = |at: u64| {
        let bytes = PIECE_BYTES.min(len - at) as usize;
        // SAFETY: the region stays mapped while it is in the list, which unregisters it first; the
        // ring of a thread that ends goes before its list.
        unsafe { handle.register_buffer(start.wrapping_add(at as usize), bytes) }
    };
    (0..len.div_ceil(PIECE_BYTES)).filter_map(|index| piece(index * PIECE_BYTES)).collect()
}
