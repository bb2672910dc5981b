//! Guest memory that is registered with a thread's ring, for those who ask for it.
//!
//! A registered region saves the kernel a look-up of pages per I/O and costs that all of it is
//! pinned: a balloon or free page reporting in the guest would then read and write pages that the
//! guest no longer has. So it is off unless the configuration says that guests have neither.
//! Called by io_thread.rs.
//!
//! Invariant: a region is unregistered only when no request in flight can lie in it.
#![allow(unsafe_code)]

use std::sync::Arc;

use millrace_reactor::Handle;

use crate::vhost::memory::{GuestMemory, Region};
use crate::vhost::queue::Queue;

/// The reactor takes regions up to this length.
const PIECE_BYTES: u64 = 1 << 30;

/// What a thread has registered.
pub(crate) struct Pinned {
    /// The ring that memory is registered with; none if none is to be.
    handle: Option<Handle>,
    /// The memory whose regions are registered.
    memory: Option<Arc<GuestMemory>>,
    regions: Vec<(Arc<Region>, Vec<u16>)>,
}

impl Pinned {
    pub(crate) fn new(handle: Option<Handle>) -> Pinned {
        Pinned { handle, memory: None, regions: Vec::new() }
    }

    /// Registers the memory of these queues, and lets go of what none of them has any more.
    pub(crate) fn follow<'a>(&mut self, queues: impl Iterator<Item = &'a Queue> + Clone) {
        let Some(handle) = &self.handle else { return };
        if queues.clone().any(Queue::has_old_memory) {
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
    let piece = |(at, bytes): (usize, usize)| {
        // SAFETY: the region stays mapped while it is in the list, which unregisters it first; the
        // ring of a thread that ends goes before its list.
        unsafe { handle.register_buffer(start.wrapping_add(at), bytes) }
    };
    pieces(len).filter_map(piece).collect()
}

/// Where the pieces of a region of so many bytes begin, and how long they are.
fn pieces(len_bytes: u64) -> impl Iterator<Item = (usize, usize)> {
    let starts = (0..len_bytes.div_ceil(PIECE_BYTES)).map(|index| index * PIECE_BYTES);
    starts.map(move |at| (at as usize, PIECE_BYTES.min(len_bytes - at) as usize))
}

#[cfg(test)]
mod tests {
    use millrace_reactor::{Backend, Config, Reactor};

    use super::*;
    use crate::vhost::tests::played::Played;

    #[test]
    fn a_region_is_registered_in_pieces_of_a_gib_and_what_is_left() {
        let all = |len| pieces(len).collect::<Vec<_>>();
        let gib = 1usize << 30;
        assert_eq!(all(4096), [(0, 4096)]);
        assert_eq!(all(1 << 30), [(0, gib)]);
        assert_eq!(all((2 << 30) + 5), [(0, gib), (gib, gib), (2 * gib, 5)]);
        assert_eq!(all(0), []);
    }

    #[test]
    fn memory_is_registered_when_all_queues_have_it_and_let_go_of_when_none_has_it_any_more() {
        for backend in [Backend::Epoll, Backend::Auto] {
            let reactor = Reactor::new(Config { backend, ..Config::default() }).unwrap();
            let (handle, played) = (reactor.handle(), Played::new());
            let (first, second) = (played.memory(), played.memory());
            let takes = |memory: &GuestMemory| register(&handle, &memory.regions()[0]);
            let probe = takes(&first);
            assert!(probe.is_empty() || backend == Backend::Auto, "none on epoll");
            // SAFETY: nothing is in flight.
            probe.iter().for_each(|index| unsafe { handle.unregister_buffer(*index) });
            let queue = |q, memory: &Arc<GuestMemory>| {
                played.queue(q, 8, |parts| {
                    (parts.ring.areas, parts.memory) =
                        (Played::areas(memory, q, 8), Arc::clone(memory));
                })
            };
            let mut queues = [queue(0, &first), queue(1, &first)];
            let mut off = Pinned::new(None);
            off.follow(queues.iter());
            assert!(off.memory.is_none() && off.regions.is_empty());
            let mut pinned = Pinned::new(Some(handle.clone()));
            let has = |pinned: &Pinned, memory: &Arc<GuestMemory>| {
                let known = pinned.memory.as_ref().is_some_and(|known| Arc::ptr_eq(known, memory));
                let [(region, pieces)] = &pinned.regions[..] else { return false };
                let is_it = Arc::ptr_eq(region, &memory.regions()[0]);
                let index = handle.fixed_buffer(region.start(), 4096);
                known && is_it && index == pieces.first().copied()
            };
            pinned.follow([].iter());
            assert!(pinned.regions.is_empty());
            // Again and again it is the same.
            for _ in 0..3 {
                pinned.follow(queues.iter());
                assert!(has(&pinned, &first));
            }
            // Not before the last of them has heard of a change.
            queues[0].change_memory(Arc::clone(&second), Some(Played::areas(&second, 0, 8)));
            pinned.follow(queues.iter());
            assert!(has(&pinned, &first));
            queues[1].change_memory(Arc::clone(&second), Some(Played::areas(&second, 1, 8)));
            pinned.follow(queues.iter());
            assert!(has(&pinned, &second));
            assert_eq!(handle.fixed_buffer(first.regions()[0].start(), 4096), None);
            pinned.follow([].iter());
            assert!(pinned.regions.is_empty() && pinned.memory.is_none());
            assert_eq!(handle.fixed_buffer(second.regions()[0].start(), 4096), None);
        }
    }
}
