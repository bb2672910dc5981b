//! `MadeLater`: a value that is made when a thread first needs it, and read without a lock.
//!
//! A disk keeps its queues in a `MadeLater`. `make` makes the value once, under a lock. The I/O
//! path then reads the value by `known`, without any check.
//!
//! Invariant: `make` has returned before `known` is called. Either the caller of `known` has called
//! `make` itself, or it has got an object that exists only after `make`. Such an object, for
//! example a bio, must come through a lock or an atomic word. Other callers use `get`.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;

use millrace_machine::{Lock, Machine, Order, Word};

pub(crate) struct MadeLater<M: Machine, T> {
    /// The value; a placeholder until `make` has written the value. `make` writes it once, under
    /// the lock in `making`.
    value: UnsafeCell<T>,
    /// Lock and flag for the call of `make`; `None` if the value existed from the start.
    making: Option<MakeState<M>>,
}

struct MakeState<M: Machine> {
    is_made: M::Word,
    lock: M::Lock<()>,
}

// SAFETY: no thread reads the value before it is made or writes it afterwards, and `T` is Sync.
unsafe impl<M: Machine, T: Send + Sync> Sync for MadeLater<M, T> {}

impl<M: Machine, T> MadeLater<M, T> {
    /// Creates an object that holds `empty` until `make` stores the value.
    pub(crate) fn later(empty: T) -> Self {
        let (is_made, lock) = (M::Word::new(0), M::Lock::new("made-later", ()));
        MadeLater { value: UnsafeCell::new(empty), making: Some(MakeState { is_made, lock }) }
    }

    pub(crate) fn made(value: T) -> Self {
        MadeLater { value: UnsafeCell::new(value), making: None }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        // Acquire pairs with the Release in `make`: a thread that reads 1 also sees the value.
        let is_made = |making: &MakeState<M>| making.is_made.load(Order::Acquire) == 1;
        // SAFETY: no thread writes the value once it is made.
        self.making.as_ref().is_none_or(is_made).then(|| unsafe { &*self.value.get() })
    }

    /// Returns the stored value without a check: the caller must know that `make` has stored it.
    #[inline(always)]
    pub(crate) fn known(&self) -> &T {
        // SAFETY: by the invariant, `make` is complete, and no thread writes the value afterwards.
        unsafe { &*self.value.get() }
    }

    #[cold]
    pub(crate) fn make(&self, make: impl FnOnce() -> T) {
        let Some(MakeState { is_made, lock }) = &self.making else { return };
        let held = lock.lock();
        // Relaxed: `is_made` changes only under `lock`, which this thread holds.
        if is_made.load(Order::Relaxed) == 0 {
            // SAFETY: no thread reads the value before the lock holder has set `is_made`.
            unsafe { *self.value.get() = make() };
            // Release pairs with the Acquire in `get` and publishes the value.
            is_made.store(1, Order::Release);
        }
        drop(held);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::sync::atomic::{AtomicU32, Ordering};

    use millrace_machine::Native;

    use super::*;

    #[test]
    fn a_value_is_made_once_by_whichever_thread_comes_first() {
        let (later, count) = (MadeLater::<Native, u32>::later(0), AtomicU32::new(0));
        assert_eq!(later.get(), None);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    later.make(|| 7 + count.fetch_add(1, Ordering::SeqCst));
                    assert_eq!((later.get(), *later.known()), (Some(&7), 7));
                });
            }
        });
        assert_eq!(count.into_inner(), 1);
    }

    #[test]
    fn a_value_that_is_there_is_not_made() {
        let made = MadeLater::<Native, &str>::made("there");
        made.make(|| "other");
        assert_eq!(made.get(), Some(&"there"));
    }
}
