//! `GuestMemory`: QEMU's map of the guest's memory, used by all I/O threads to translate addresses.
//!
//! The translation of each descriptor's address takes a mutex that the whole process shares,
//! increments the map's reference count, releases the mutex, searches, and decrements the count.
//! All I/O threads share the mutex and the count, so their cache lines move between cores at each
//! look-up. The mutex is glibc's default one, which does not spin: a thread that finds it taken
//! sleeps in a futex. `machine` owns the map, and `iothread` uses it; no other lock is held
//! meanwhile. Invariant: the mutex's word is 0 free, 1 taken, 2 taken with possible waiters.
//! Source: `vring_map` and `get_indirect` (hw/virtio/dataplane/vring.c), `memory_region_find` and
//! `address_space_get_flatview` (memory.c) of QEMU 2.1; RCU replaced them in 2.3.

use std::collections::VecDeque;
use std::sync::Mutex;

use millrace_machine::{Machine, Order, Parker, Word};
use millrace_simulator::Simulated;

use millrace_machine::lock_unpoisoned;

type SimWord = <Simulated as Machine>::Word;
type SimParker = <Simulated as Machine>::Parker;

/// Number of address translations for a request of one page. Header, data and status need two each:
/// for the entry of the indirect table, and for the buffer.
const LOOKUPS: u32 = 6;
/// Number of address translations for each further page: one for the page's entry in the indirect
/// table, and one for the page's buffer.
const PAGE_LOOKUPS: u32 = 2;

struct Futex {
    word: SimWord,
    waiting: Mutex<VecDeque<(u64, SimParker)>>,
    last: Mutex<u64>,
}

impl Futex {
    fn new() -> Futex {
        Futex { word: SimWord::new(0), waiting: Mutex::default(), last: Mutex::default() }
    }

    fn lock(&self) -> u64 {
        // Acquire: pairs with the release in `unlock`.
        if self.word.compare_exchange(0, 1, Order::Acquire, Order::Relaxed).is_ok() {
            return 0;
        }
        let mut slept = 0;
        // Acquire: pairs with the release in `unlock`.
        while self.word.swap(2, Order::Acquire) != 0 {
            Simulated::system_call();
            let number = {
                let mut last = lock_unpoisoned(&self.last);
                *last += 1;
                *last
            };
            let parker = SimParker::new();
            lock_unpoisoned(&self.waiting).push_back((number, parker.clone()));
            // Relaxed: models the kernel's check of the futex word. In the kernel, a lock orders
            // this check. The thread sleeps only if the word is still 2 (taken, with possible
            // waiters). In that case, the unlock comes after this check, so `unlock` finds this
            // thread in `waiting`.
            if self.word.load(Order::Relaxed) == 2 {
                parker.park(None);
                slept += 1;
            }
            lock_unpoisoned(&self.waiting).retain(|(other, _)| *other != number);
        }
        slept
    }

    fn unlock(&self) {
        // Release: pairs with the acquires in `lock`.
        if self.word.swap(0, Order::Release) == 2 {
            Simulated::system_call();
            let next = lock_unpoisoned(&self.waiting).pop_front();
            if let Some((_, parker)) = next {
                parker.unpark();
            }
        }
    }
}

pub(super) struct GuestMemory {
    mutex: Futex,
    references: SimWord,
}

impl GuestMemory {
    pub(super) fn new() -> GuestMemory {
        GuestMemory { mutex: Futex::new(), references: SimWord::new(1) }
    }

    /// Translates the addresses of a request of this many pages. Returns the number of times that
    /// the caller slept.
    pub(super) fn translate(&self, pages: u32) -> u64 {
        let lookups = LOOKUPS + PAGE_LOOKUPS * pages.saturating_sub(1);
        (0..lookups).map(|_| self.look_up()).sum()
    }

    fn look_up(&self) -> u64 {
        let slept = self.mutex.lock();
        // AcqRel, because QEMU's `__sync_fetch_and_add`, modelled here, is a barrier both ways.
        self.references.fetch_add(1, Order::AcqRel);
        self.mutex.unlock();
        // AcqRel, because QEMU's `__sync_fetch_and_sub`, modelled here, is a barrier both ways.
        self.references.fetch_add(u64::MAX, Order::AcqRel);
        slept
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millrace_machine::{CpuId, Thread};
    use millrace_simulator::Simulation;

    use super::*;
    use crate::simulation::machine;

    /// Time that each of some I/O threads takes for a request's translation, in nanoseconds, and
    /// how often they slept.
    fn translated(threads: u32) -> (u64, u64) {
        const TIMES: u64 = 200;
        let seen = Arc::new(Mutex::new((0, 0)));
        let inner = Arc::clone(&seen);
        let main = move || {
            let memory = Arc::new(GuestMemory::new());
            let each = (0..threads).map(|number| {
                let (memory, seen) = (Arc::clone(&memory), Arc::clone(&inner));
                let body = Box::new(move || {
                    let start_ns = Simulated::now();
                    let slept: u64 = (0..TIMES).map(|_| memory.translate(1)).sum();
                    let mut seen = lock_unpoisoned(&seen);
                    seen.0 += (Simulated::now() - start_ns) / TIMES / u64::from(threads);
                    seen.1 += slept;
                });
                Simulated::spawn("io", Some(CpuId(number * 2)), body)
            });
            let each: Vec<_> = each.collect();
            each.into_iter().for_each(|thread| assert!(thread.join()));
            assert_eq!(memory.mutex.word.load(Order::Relaxed), 0);
            assert_eq!(memory.references.load(Order::Relaxed), 1);
        };
        let model = machine("miot").expect("the machine must exist");
        Simulation::new(&model, 1)
            .expect("the model must be valid")
            .first_cpu(7)
            .run(main)
            .expect("the run must end");
        let seen = lock_unpoisoned(&seen);
        *seen
    }

    #[test]
    fn lone_thread_pays_for_atomics_and_several_wait() {
        let (alone_ns, alone_slept) = translated(1);
        // 6 look-ups of 4 atomics of 5.88 ns.
        assert!((140..200).contains(&alone_ns) && alone_slept == 0, "{alone_ns} {alone_slept}");
        let (four_ns, four_slept) = translated(4);
        assert!(four_ns > 3 * alone_ns && four_slept > 0, "{four_ns} {four_slept}");
    }
}
