//! `Entry`: one mapping of those that a fault is looked up in, while others come and go.
//!
//! A handler of signals reads entries at any time and may not lock. So an entry has a state with a
//! generation: what was read of an entry counts only if the state is the same afterwards, and a
//! handler that uses an entry pins it first; whoever takes a mapping out of force waits for pins.
//! Called by sigbus.rs; generic over words, so that model.rs runs it on the checked machine.
//!
//! Invariants: start, end and page change only while the state says so, and a pinned entry keeps
//! its mapping; an entry is in force only while its mapping exists.

use millrace_machine::{Machine, Order, Word};

/// Of [`Entry::state`], lowest bits: nobody's.
const FREE: u64 = 0;
/// Somebody's, and not in force: no handler may use it.
const CHANGING: u64 = 1;
/// A handler may use it.
const IN_FORCE: u64 = 2;
/// The bits of those three; generations are counted above.
const PHASE: u64 = 3;
const GENERATION: u64 = 4;

/// A mapping, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Size of the pages that the mapping consists of.
    pub(super) page: u64,
}

/// A place for a mapping: a free one if all of its words are zero.
pub(super) struct Entry<W> {
    pub(super) state: W,
    pub(super) start: W,
    pub(super) end: W,
    pub(super) page: W,
    /// Handlers that use it.
    pub(super) pins: W,
    /// A fault in it was handled.
    pub(super) hit: W,
}

impl<W: Word> Entry<W> {
    /// Puts a mapping in force here; false if this is somebody's already.
    pub(super) fn claim(&self, mapping: Mapping) -> bool {
        // Relaxed: a hint, which the exchange checks.
        let free = self.state.load(Order::Relaxed);
        if free & PHASE != FREE {
            return false;
        }
        let changing = free.wrapping_add(GENERATION) | CHANGING;
        // Acquire on success pairs with the Release of `retire`: its last use is over.
        let order = (Order::Acquire, Order::Relaxed);
        if self.state.compare_exchange(free, changing, order.0, order.1).is_err() {
            return false;
        }
        // Release pairs with the Acquire of `pin`: whoever reads one of these sees the new state.
        self.start.store(mapping.start, Order::Release);
        self.end.store(mapping.end, Order::Release);
        self.page.store(mapping.page, Order::Release);
        // Relaxed: in force only with the Release of the state.
        self.hit.store(0, Order::Relaxed);
        // Release pairs with the Acquire of `pin`.
        self.state.store(changing - CHANGING + IN_FORCE, Order::Release);
        true
    }

    /// Takes the mapping out of force; after that no handler uses it. Only by whoever claimed it,
    /// and never in a handler.
    pub(super) fn retire<M: Machine>(&self) {
        // Relaxed: only its owner changes the state of an entry that is not free.
        let idle = self.state.load(Order::Relaxed) & !PHASE;
        // SeqCst, and of the look at pins, too: a handler sees this state, or its pin is seen here.
        self.state.store(idle | CHANGING, Order::SeqCst);
        // Pairs with the Release of `unpin`, too.
        M::spin_until(u64::MAX, || self.pins.load(Order::SeqCst) == 0);
        // Release pairs with the Acquire of `claim`.
        self.state.store(idle | FREE, Order::Release);
    }

    /// The mapping here, if it is in force and has this address: it stays so until
    /// [`Entry::unpin`]. For a handler of signals: no lock, no wait, no allocation.
    pub(super) fn pin(&self, address: u64) -> Option<Mapping> {
        // Acquire, all of these, pairs with the Release of `claim`.
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
        // SeqCst, and of the next look, too: as in `retire`.
        self.pins.fetch_add(1, Order::SeqCst);
        let now = self.state.load(Order::SeqCst);
        // What changed meanwhile has not the address: a mapping in which a thread is stays.
        if now != state {
            self.unpin();
            return None;
        }
        Some(Mapping { start, end, page })
    }

    /// Lets go of what [`Entry::pin`] returned.
    pub(super) fn unpin(&self) {
        // Release pairs with the look of `retire`.
        self.pins.fetch_add(u64::MAX, Order::Release);
    }

    /// A fault in the pinned mapping was handled.
    pub(super) fn note_hit(&self) {
        // Release pairs with the Acquire of `was_hit`.
        self.hit.store(1, Order::Release);
    }

    /// Whether a fault in its mapping was handled.
    pub(super) fn was_hit(&self) -> bool {
        // Acquire pairs with the Release of `note_hit`.
        self.hit.load(Order::Acquire) != 0
    }
}
