//! `ServeLock`: who enters serves; who comes too late leaves a flag, and the server goes round
//! again.
//!
//! Owns one word (free, held, held and flagged) and the value it protects. Called by whoever runs a
//! hardware queue. One locked operation to enter and one to leave, no fence, and no work is lost:
//! the latecomer has published its work before it flags, and the server cannot leave over a flag.
//! Kernel counterpart: the bit lock and re-run flag of `blk_mq_run_hw_queue`.
#![allow(unsafe_code)]

use core::ops::{Deref, DerefMut};

use millrace_machine::plant::{Plant, planted, weaker};
use millrace_machine::{Line, Machine, Order, Word};

const FREE: u64 = 0;
const HELD: u64 = 1;
const FLAGGED: u64 = 2;

/// A try-lock with a re-run flag around a value.
pub(crate) struct ServeLock<M: Machine, T: Send> {
    state: M::Word,
    value: M::Line<T>,
}

impl<M: Machine, T: Send> ServeLock<M, T> {
    pub(crate) fn new(value: T) -> Self {
        ServeLock { state: M::Word::new(FREE), value: M::Line::new(value) }
    }

    /// Enters if nobody is inside.
    #[inline]
    pub(crate) fn try_enter(&self) -> Option<Serving<'_, M, T>> {
        // Acquire pairs with the Release of `leave`; Relaxed: a failure reads nothing.
        let acquire = weaker(Plant::EnterRelaxed, Order::Acquire, Order::Relaxed);
        let entered = self.state.compare_exchange(FREE, HELD, acquire, Order::Relaxed);
        entered.is_ok().then(|| Serving { lock: self })
    }

    /// Enters, or makes whoever is inside go round again. Call after publishing the work.
    pub(crate) fn enter_or_flag(&self) -> Option<Serving<'_, M, T>> {
        loop {
            if let Some(serving) = self.try_enter() {
                return Some(serving);
            }
            // Release pairs with the Acquire of a failing `leave`: the server sees the work.
            let release = weaker(Plant::FlagRelaxed, Order::Release, Order::Relaxed);
            let flag = self.state.compare_exchange(HELD, FLAGGED, release, Order::Relaxed);
            match flag {
                Ok(_) => return None,
                Err(FREE) => {}
                Err(_) if planted(Plant::FlagAssumed) => return None,
                // Flagged already, but perhaps before our work: the exchange below orders it.
                Err(_) => {
                    // Release pairs with that Acquire too; Relaxed: a failure is tried again.
                    let (release, relaxed) = (Order::Release, Order::Relaxed);
                    if self.state.compare_exchange(FLAGGED, FLAGGED, release, relaxed).is_ok() {
                        return None;
                    }
                }
            }
        }
    }

    /// Enters, or gives up after a while.
    #[inline]
    pub(crate) fn enter_within(&self, wait_ns: u64) -> Option<Serving<'_, M, T>> {
        let entered = self.try_enter();
        if entered.is_some() || wait_ns == 0 { entered } else { self.wait_to_enter(wait_ns) }
    }

    #[inline(never)]
    fn wait_to_enter(&self, wait_ns: u64) -> Option<Serving<'_, M, T>> {
        let mut entered = None;
        M::spin_until(M::now() + wait_ns, || {
            // Relaxed: a look, that leaves the word's line to whoever is inside.
            if self.state.load(Order::Relaxed) == FREE {
                entered = self.try_enter();
            }
            entered.is_some()
        });
        entered
    }

    /// Waits until it can enter.
    pub(crate) fn enter(&self) -> Serving<'_, M, T> {
        let mut entered = None;
        M::spin_until(u64::MAX, || {
            entered = self.try_enter();
            entered.is_some()
        });
        entered.expect("spinning without a deadline ends inside")
    }
}

/// The right to serve; given up by [`Serving::leave`] or by dropping it.
pub(crate) struct Serving<'a, M: Machine, T: Send> {
    lock: &'a ServeLock<M, T>,
}

impl<M: Machine, T: Send> Serving<'_, M, T> {
    /// Leaves, unless somebody left a flag: then clears it and stays.
    #[inline]
    pub(crate) fn leave(self) -> Option<Self> {
        let state = &self.lock.state;
        // Release pairs with the Acquire of the next `try_enter`; Acquire with the flagger's
        // Release.
        let release = weaker(Plant::LeaveRelaxed, Order::Release, Order::Relaxed);
        if state.compare_exchange(HELD, FREE, release, Order::Acquire).is_ok() {
            core::mem::forget(self);
            return None;
        }
        // Acquire pairs with the Release of every flagger so far, also of one that found the flag
        // set: what they marked is seen by the round that follows.
        state.swap(HELD, weaker(Plant::StayRelaxed, Order::Acquire, Order::Relaxed));
        Some(self)
    }
}

impl<M: Machine, T: Send> Drop for Serving<'_, M, T> {
    fn drop(&mut self) {
        // Release pairs with the Acquire of the next `try_enter`. A flag left meanwhile is lost
        // here, so this is for owners that have no latecomers, and for panics.
        self.lock.state.store(FREE, Order::Release);
    }
}

impl<M: Machine, T: Send> Deref for Serving<'_, M, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the state word makes this the only `Serving`.
        unsafe { &*self.lock.value.held() }
    }
}

impl<M: Machine, T: Send> DerefMut for Serving<'_, M, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the state word makes this the only `Serving`.
        unsafe { &mut *self.lock.value.held() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_machine::Native;

    #[test]
    fn latecomer_makes_the_server_stay_once() {
        let lock = ServeLock::<Native, u32>::new(0);
        let serving = lock.try_enter().expect("free");
        assert!(lock.enter_or_flag().is_none());
        assert!(lock.enter_or_flag().is_none());
        let serving = serving.leave().expect("flagged");
        assert!(serving.leave().is_none());
        assert!(lock.try_enter().is_some());
    }
}
