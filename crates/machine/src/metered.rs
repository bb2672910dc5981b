//! `Metered`: the native machine with lock statistics.
//!
//! The third implementation of `Machine`: all but the locks is `Native`'s own, so that `Native`
//! itself pays nothing for statistics that are not asked for. Each thread counts for itself, by
//! lock name and place; [`take_lock_rows`] adds the threads up. The clock is read once where a lock
//! is free, twice where it is not, and once when it is given up. Kernel counterpart: lockmeter.

use core::ops::{Deref, DerefMut};
use core::panic::Location;
use std::boxed::Box;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::vec::Vec;

use crate::lock_row::{CallSite, LockCounts, LockRow, table};
use crate::{CpuId, Lock, Machine, Native, Order, Stage, Topology};

/// The native machine with lock statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metered;

impl Machine for Metered {
    type Lock<T: Send> = MeteredLock<T>;
    type Word = <Native as Machine>::Word;
    type Line<T: Send> = <Native as Machine>::Line<T>;
    type Counter = <Native as Machine>::Counter;
    type Parker = <Native as Machine>::Parker;
    type Thread = <Native as Machine>::Thread;

    #[inline]
    fn now() -> u64 {
        Native::now()
    }

    #[inline]
    fn cpu() -> CpuId {
        Native::cpu()
    }

    fn topology() -> Topology {
        Native::topology()
    }

    #[inline]
    fn fence(order: Order) {
        Native::fence(order);
    }

    fn spawn(name: &str, cpu: Option<CpuId>, body: Box<dyn FnOnce() + Send>) -> Self::Thread {
        Native::spawn(name, cpu, body)
    }

    #[inline]
    fn spin_until(deadline_ns: u64, ready: impl FnMut() -> bool) -> bool {
        Native::spin_until(deadline_ns, ready)
    }

    #[inline]
    fn work(_stage: Stage, _units: u32) {}
}

/// Counts of one thread, by lock name and place; walked only to be sorted.
type Rows = HashMap<(&'static str, CallSite), LockCounts>;

/// Counts of all threads that have taken a metered lock.
static THREADS: Mutex<Vec<Arc<Mutex<Rows>>>> = Mutex::new(Vec::new());

std::thread_local! {
    static ROWS: Arc<Mutex<Rows>> = {
        let rows = Arc::new(Mutex::new(Rows::new()));
        THREADS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&rows));
        rows
    };
}

/// What all metered locks of the process did since the last call, in order of their names; locks
/// held at this moment are counted when they are given up.
#[must_use]
pub fn take_lock_rows() -> Vec<LockRow> {
    let mut all = Vec::new();
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    threads.retain(|thread| {
        let mut rows = thread.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(rows.drain().map(|((name, site), counts)| (name, site, counts)));
        // The other owner is the thread itself, if it still runs.
        Arc::strong_count(thread) > 1
    });
    drop(threads);
    table(all.into_iter())
}

/// A mutex that counts.
#[derive(Debug)]
pub struct MeteredLock<T> {
    name: &'static str,
    value: Mutex<T>,
}

/// Holds a [`MeteredLock`].
#[derive(Debug)]
pub struct MeteredGuard<'a, T> {
    /// Until it is dropped.
    value: Option<MutexGuard<'a, T>>,
    name: &'static str,
    site: &'static Location<'static>,
    since_ns: u64,
    /// Nanoseconds waited, if it was not free.
    waited_ns: Option<u64>,
}

impl<T> MeteredLock<T> {
    fn try_value(&self) -> Option<MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(value) => Some(value),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<T: Send> Lock<T> for MeteredLock<T> {
    type Guard<'a>
        = MeteredGuard<'a, T>
    where
        T: 'a;

    fn new(name: &'static str, value: T) -> Self {
        MeteredLock { name, value: Mutex::new(value) }
    }

    #[track_caller]
    fn lock(&self) -> MeteredGuard<'_, T> {
        let site = Location::caller();
        if let Some(value) = self.try_value() {
            let since_ns = Native::now();
            return MeteredGuard {
                value: Some(value),
                name: self.name,
                site,
                since_ns,
                waited_ns: None,
            };
        }
        let start_ns = Native::now();
        let value = Some(self.value.lock().unwrap_or_else(PoisonError::into_inner));
        let since_ns = Native::now();
        let waited_ns = Some(since_ns.saturating_sub(start_ns));
        MeteredGuard { value, name: self.name, site, since_ns, waited_ns }
    }

    #[track_caller]
    fn try_lock(&self) -> Option<MeteredGuard<'_, T>> {
        let site = Location::caller();
        let value = Some(self.try_value()?);
        let since_ns = Native::now();
        Some(MeteredGuard { value, name: self.name, site, since_ns, waited_ns: None })
    }
}

impl<T> Deref for MeteredGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.value.as_ref().expect("taken out only by drop")
    }
}

impl<T> DerefMut for MeteredGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("taken out only by drop")
    }
}

impl<T> Drop for MeteredGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        let waited_ns = self.waited_ns.unwrap_or(0);
        let counts = LockCounts {
            acquisitions: 1,
            contended: self.waited_ns.is_some().into(),
            wait_ns: waited_ns,
            wait_ns_max: waited_ns,
            hold_ns: Native::now().saturating_sub(self.since_ns),
        };
        // A thread whose locals are gone already counts no more.
        let _ = ROWS.try_with(|rows| {
            let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
            rows.entry((self.name, self.site.into())).or_default().add(&counts);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Thread;

    #[test]
    fn rows_tell_names_places_waits_and_holds_of_all_threads() {
        let lock = Arc::new(<Metered as Machine>::Lock::new("metered-test", 0u32));
        let guard = lock.lock();
        let other = Arc::clone(&lock);
        let body = Box::new(move || *other.lock() += 1);
        let thread = Metered::spawn("waiter", None, body);
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(guard);
        assert!(thread.join());
        assert_eq!(*lock.lock(), 1);
        let rows: Vec<_> =
            take_lock_rows().into_iter().filter(|row| row.name == "metered-test").collect();
        assert_eq!(rows.len(), 4, "the sum and three places: {rows:?}");
        let sum = rows[0];
        assert_eq!((sum.site, sum.counts.acquisitions, sum.counts.contended), (None, 3, 1));
        assert!(sum.counts.wait_ns >= 20_000_000 && sum.counts.hold_ns >= 40_000_000, "{sum:?}");
        assert_eq!(rows[2].counts.contended, 1, "the thread's place is the second: {rows:?}");
        assert!(take_lock_rows().iter().all(|row| row.name != "metered-test"));
    }
}
