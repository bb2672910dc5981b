//! `Doorbell`: lets a thread sleep until it is rung, without lost wake-ups, and without a system
//! call if nobody sleeps.
//!
//! Protocol: the owner arms the doorbell, executes a fence, checks its lists once more, and only
//! then sleeps; a ringer publishes its work, executes a fence, and reads the doorbell's state. The
//! two fences exclude store buffering, so either the owner sees the work, or the ringer sees that
//! the doorbell is armed. Kernel counterpart: `wait_event` with `prepare_to_wait`.

use crate::{Machine, Order, Parker, Word, debug_fields};

const AWAKE: u64 = 0;
const ARMED: u64 = 1;

/// Puts one owner thread to sleep until any other thread rings.
pub struct Doorbell<M: Machine> {
    state: M::Word,
    parker: M::Parker,
}

debug_fields!(Doorbell<M: Machine>);

impl<M: Machine> Doorbell<M> {
    /// Creates a doorbell that wakes its owner through `parker`. The owner counts as awake.
    pub fn new(parker: M::Parker) -> Self {
        Doorbell { state: M::Word::new(AWAKE), parker }
    }

    /// Announces that the owner is about to sleep. The owner must then check for work again.
    pub fn arm(&self) {
        self.state.store(ARMED, Order::Relaxed);
        // Pairs with the fence in `ring`: either the owner sees the work or the ringer sees ARMED.
        M::fence(Order::SeqCst);
    }

    /// Announces that the owner is awake.
    pub fn disarm(&self) {
        self.state.store(AWAKE, Order::Relaxed);
    }

    /// Wakes the owner if it sleeps or is about to. Call it after the work has been published.
    pub fn ring(&self) {
        M::fence(Order::SeqCst);
        if self.state.load(Order::Relaxed) == ARMED
            && self.state.swap(AWAKE, Order::Relaxed) == ARMED
        {
            self.parker.unpark();
        }
    }

    /// Arms the doorbell, calls `has_work` once more, sleeps if there is no work, and disarms.
    /// Returns after a ring, at the deadline, or spuriously.
    pub fn sleep_unless(&self, deadline_ns: Option<u64>, has_work: impl FnOnce() -> bool) {
        self.arm();
        if !has_work() {
            self.parker.park(deadline_ns);
        }
        self.disarm();
    }

    #[cfg(test)]
    pub(crate) fn parker_for_test(&self) -> &M::Parker {
        &self.parker
    }
}
