//! `MappingEntry`: one slot of the table in which a SIGBUS handler looks up mappings.
//!
//! A signal handler reads entries at any time and may not lock. So an entry has a state with a
//! generation: values read from the entry are valid only if the state is unchanged afterwards. A
//! handler that uses an entry pins it first, and a thread that retires a mapping waits until no pin
//! is left. The type is generic over its atomic words, so that model.rs can run it in the model
//! checker.
//!
//! Invariants: start, end and page change only in the state `CHANGING`. A pinned entry keeps its
//! mapping.

use millrace_machine::{Machine, Order, Word};

/// Value of the low bits of [`MappingEntry::state`]: the entry is free.
const FREE: u64 = 0;
/// A thread has claimed the entry, but no handler may use the entry yet.
const CHANGING: u64 = 1;
/// The mapping is in force: signal handlers may use the entry.
const IN_FORCE: u64 = 2;
/// Mask of the phase: `FREE`, `CHANGING` or `IN_FORCE`. The bits above count how often the entry
/// was claimed.
const PHASE: u64 = 3;
const GENERATION: u64 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) page: u64,
}

/// A slot for one mapping. All words of an unused slot are zero.
pub(super) struct MappingEntry<W> {
    pub(super) state: W,
    pub(super) start: W,
    pub(super) end: W,
    pub(super) page: W,
    /// Number of signal handlers that use the entry.
    pub(super) pins: W,
    /// 1 if a fault in the mapping was handled.
    pub(super) hit: W,
}

impl<W: Word> MappingEntry<W> {
    /// Records a mapping in this free entry, so that signal handlers use it from now on. Returns
    /// false if the entry is in use.
    pub(super) fn claim(&self, mapping: Mapping) -> bool {
        // Relaxed: the value is a hint, which the following compare-exchange verifies.
        let free = self.state.load(Order::Relaxed);
        if free & PHASE != FREE {
            return false;
        }
        let changing = free.wrapping_add(GENERATION) | CHANGING;
        // Acquire on success pairs with the Release of `retire`, after which no handler uses the
        // entry.
        let order = (Order::Acquire, Order::Relaxed);
        if self.state.compare_exchange(free, changing, order.0, order.1).is_err() {
            return false;
        }
        // Release pairs with the Acquire loads in `pin`: a handler that reads the new `start`,
        // `end` or `page` sees at its next load of `state` that the entry has changed.
        self.start.store(mapping.start, Order::Release);
        self.end.store(mapping.end, Order::Release);
        self.page.store(mapping.page, Order::Release);
        // Relaxed: the following Release store of `state` publishes the cleared `hit`.
        self.hit.store(0, Order::Relaxed);
        // Release pairs with the Acquire of `pin`.
        self.state.store(changing - CHANGING + IN_FORCE, Order::Release);
        true
    }

    /// Retires the mapping. Afterwards no handler uses the mapping. Only the thread that claimed
    /// the entry may call this, and never in a signal handler.
    pub(super) fn retire<M: Machine>(&self) {
        // Relaxed: only the owner changes the state of a claimed entry.
        let idle = self.state.load(Order::Relaxed) & !PHASE;
        // SeqCst for this store of `state` and the load of `pins`: either a handler sees that the
        // mapping is retired, or `retire` sees in `pins` that a handler uses the entry, and waits.
        self.state.store(idle | CHANGING, Order::SeqCst);
        // SeqCst: the load of `pins` must not move before the store of `state`. A load of 0 pairs
        // with the Release of `unpin`: all handlers have then finished with the mapping.
        M::spin_until(u64::MAX, || self.pins.load(Order::SeqCst) == 0);
        // Release pairs with the Acquire of `claim`.
        self.state.store(idle | FREE, Order::Release);
    }

    /// Returns the mapping if it is in force and contains `address`, and keeps it in force until
    /// [`MappingEntry::unpin`]. Signal handlers call this, so it takes no lock, never waits and
    /// allocates nothing.
    pub(super) fn pin(&self, address: u64) -> Option<Mapping> {
        // The Acquire loads of `state`, `end`, `start` and `page` pair with the Release stores of
        // `claim`.
        let state = self.state.load(Order::Acquire);
        if state & PHASE != IN_FORCE {
            return None;
        }
        let end = self.end.load(Order::Acquire);
        let start = self.start.load(Order::Acquire);
        let page = self.page.load(Order::Acquire);
        if !(start..end).contains(&address) {
            return None;
        }
        // SeqCst for the pin and the load of the state: either `retire` sees this pin, or this load
        // sees the state that `retire` stored.
        self.pins.fetch_add(1, Order::SeqCst);
        let now = self.state.load(Order::SeqCst);
        // If `state` has changed since the first load, the mapping was retired meanwhile. No thread
        // accesses a retired mapping, so the fault at `address` did not occur in this mapping.
        if now != state {
            self.unpin();
            return None;
        }
        Some(Mapping { start, end, page })
    }

    pub(super) fn unpin(&self) {
        // Release pairs with the load of `pins` in `retire`: the handler's use of the mapping ends
        // before `retire` returns.
        self.pins.fetch_add(u64::MAX, Order::Release);
    }

    pub(super) fn note_hit(&self) {
        // Release pairs with the Acquire of `was_hit`.
        self.hit.store(1, Order::Release);
    }

    pub(super) fn was_hit(&self) -> bool {
        // Acquire pairs with the Release of `note_hit`.
        self.hit.load(Order::Acquire) != 0
    }
}
