//! `Doorbell`: sleep until rung, with no lost wake-up and no system call when nobody sleeps.
//!
//! Owns one word (is the owner asleep?) and a parker. Called by channels and I/O threads that wait
//! for completions handed over by other threads. Protocol: the owner arms the bell, fences, looks
//! at its lists once more, and only then sleeps; a ringer publishes its work, fences, and looks at
//! the word. One of the two must see the other (store buffering is excluded by the two fences).
//! Kernel counterpart: `wait_event` with `prepare_to_wait`.

use crate::{Machine, Order, Parker, Word};

const AWAKE: u64 = 0;
const ARMED: u64 = 1;

/// Sleeps one owner thread until any other thread rings.
pub struct Doorbell<M: Machine> {
    state: M::Word,
    parker: M::Parker,
}

impl<M: Machine> Doorbell<M> {
    /// A bell whose owner is awake and that wakes through `parker`.
    pub fn new(parker: M::Parker) -> Self {
        Doorbell { state: M::Word::new(AWAKE), parker }
    }

    /// Announces that the owner is about to sleep. It must look for work once more after this.
    pub fn arm(&self) {
        self.state.store(ARMED, Order::Relaxed);
        // Pairs with the fence in `ring`: either the owner sees the work or the ringer sees ARMED.
        M::fence(Order::SeqCst);
    }

    /// The owner is awake again.
    pub fn disarm(&self) {
        self.state.store(AWAKE, Order::Relaxed);
    }

    /// Wakes the owner if it sleeps or is about to. Call after the work has been published.
    pub fn ring(&self) {
        M::fence(Order::SeqCst);
        if self.state.load(Order::Relaxed) == ARMED
            && self.state.swap(AWAKE, Order::Relaxed) == ARMED
        {
            self.parker.unpark();
        }
    }

    /// Arms, asks `has_work` once more, and sleeps if there is none; disarms. Returns after a ring,
    /// at the deadline, or for no reason.
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
