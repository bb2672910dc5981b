//! `NativeLock`: std's mutex, with statistics while a `LockMeter` exists.
//!
//! The mutex protects the value and, while statistics are on, the call site and time of the current
//! acquisition. So a guard is as small as std's. While statistics are off, an acquisition and a
//! release each make one additional check; all other code for statistics is out of line. A panic
//! while the lock is held does not poison the lock, because other threads must still complete their
//! requests.
#![allow(unsafe_code)]

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::lock_meter::NativeMeter;
use crate::lock_row::{Hold, Site};
use crate::{Lock, Machine, Meter, Native};

/// A mutex that can count its use.
#[derive(Debug)]
pub struct NativeLock<T> {
    name: &'static str,
    inner: Mutex<LockContent<T>>,
}

#[derive(Debug)]
struct LockContent<T> {
    /// Lock name, call site and time of the current acquisition, for statistics. `None` if the lock
    /// is free, or statistics were off when it was acquired.
    hold: Option<CountedHold>,
    value: T,
}

#[derive(Debug, Clone, Copy)]
struct CountedHold {
    name: &'static str,
    hold: Hold,
}

/// Guard of a [`NativeLock`].
#[derive(Debug)]
pub struct NativeGuard<'a, T>(ManuallyDrop<MutexGuard<'a, LockContent<T>>>);

impl<T> NativeLock<T> {
    #[inline]
    fn take(&self) -> NativeGuard<'_, T> {
        NativeGuard(ManuallyDrop::new(lock_unpoisoned(&self.inner)))
    }

    #[inline]
    fn try_take(&self) -> Option<NativeGuard<'_, T>> {
        match self.inner.try_lock() {
            Ok(guard) => Some(NativeGuard(ManuallyDrop::new(guard))),
            Err(TryLockError::Poisoned(poisoned)) => {
                Some(NativeGuard(ManuallyDrop::new(poisoned.into_inner())))
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[cold]
    #[inline(never)]
    fn lock_counting(&self, site: Site) -> NativeGuard<'_, T> {
        let (mut guard, tried_ns) = match self.try_take() {
            Some(guard) => (guard, None),
            None => {
                let tried_ns = Native::now();
                (self.take(), Some(tried_ns))
            }
        };
        let hold = Hold::begin(site, Native::now(), tried_ns);
        guard.0.hold = Some(CountedHold { name: self.name, hold });
        guard
    }

    #[cold]
    #[inline(never)]
    fn try_lock_counting(&self, site: Site) -> Option<NativeGuard<'_, T>> {
        let Some(mut guard) = self.try_take() else {
            NativeMeter::count_rejection(self.name, site, 0);
            return None;
        };
        let hold = Hold::begin(site, Native::now(), None);
        guard.0.hold = Some(CountedHold { name: self.name, hold });
        Some(guard)
    }
}

impl<T: Send> Lock<T> for NativeLock<T> {
    type Guard<'a>
        = NativeGuard<'a, T>
    where
        T: 'a;

    fn new(name: &'static str, value: T) -> Self {
        NativeLock { name, inner: Mutex::new(LockContent { hold: None, value }) }
    }

    #[inline]
    #[track_caller]
    fn lock(&self) -> NativeGuard<'_, T> {
        if NativeMeter::is_on() { self.lock_counting(Location::caller()) } else { self.take() }
    }

    #[inline]
    #[track_caller]
    fn try_lock(&self) -> Option<NativeGuard<'_, T>> {
        if NativeMeter::is_on() {
            self.try_lock_counting(Location::caller())
        } else {
            self.try_take()
        }
    }
}

/// Releases a lock, and then adds the hold to the statistics.
#[cold]
#[inline(never)]
fn give_up_counting<T>(mut guard: MutexGuard<'_, LockContent<T>>) {
    let held = guard.hold.take();
    let counts = held.map(|CountedHold { name, hold }| (name, hold, hold.counts(Native::now())));
    drop(guard);
    if let Some((name, hold, counts)) = counts {
        NativeMeter::count_hold(name, &hold, &counts);
    }
}

/// Locks a mutex whose value is consistent even if a thread panicked while it held the lock.
pub fn lock_unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Drop for NativeGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard is not used after this.
        let guard = unsafe { ManuallyDrop::take(&mut self.0) };
        if guard.hold.is_some() {
            give_up_counting(guard);
        }
    }
}

impl<T> Deref for NativeGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> DerefMut for NativeGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.value
    }
}
