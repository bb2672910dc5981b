//! Words, lines and counters of the simulated machine.
//!
//! Each type holds its value together with the state of its cache line. Inside a simulation, an
//! access first waits until no other CPU that can run has an earlier clock. Then the CPU's clock
//! advances by the cost of the access, and the value is accessed. Outside a simulation, only the
//! value is accessed, with the given memory orderings. Counters take no virtual time: a counter has
//! a single owner, and on a real machine an update is one plain instruction on a line that the
//! owner holds.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::memory::line::{LineState, WriteKind};
use crate::world::line_queue::{AccessKind, access};
use millrace_machine::{Counter, Line, Order, Word};

/// An atomic word that is alone on its cache line.
#[derive(Debug)]
pub struct SimWord {
    value: AtomicU64,
    line: LineState,
}

impl SimWord {
    pub(crate) fn with_value(value: u64) -> Self {
        SimWord { value: AtomicU64::new(value), line: LineState::new() }
    }

    /// Replaces the value, which costs one locked instruction. Returns the old value, or `None`
    /// outside a simulation.
    #[inline]
    fn replace(&self, new: impl FnOnce(u64) -> u64) -> Option<u64> {
        access(&self.line, AccessKind::Write, |world| {
            let start_ps = world.scheduler.now_ps;
            world.write_line(&self.line, 1, WriteKind::Locked);
            let old = self.value.load(Relaxed);
            let new = new(old);
            if new != old {
                self.value.store(new, Relaxed);
                world.wake_watchers(&self.line, start_ps);
            }
            old
        })
    }
}

// SAFETY: one thread of a simulation runs at a time, so each method is one step.
// Outside a simulation each method calls the inner atomic.
unsafe impl Word for SimWord {
    fn new(value: u64) -> Self {
        SimWord::with_value(value)
    }

    #[inline]
    fn load(&self, order: Order) -> u64 {
        let inside = access(&self.line, AccessKind::Read, |world| {
            world.read_line(&self.line, 1);
            self.value.load(Relaxed)
        });
        inside.unwrap_or_else(|| self.value.load(order))
    }

    #[inline]
    fn store(&self, value: u64, order: Order) {
        let inside = access(&self.line, AccessKind::Write, |world| {
            let start_ps = world.scheduler.now_ps;
            let seq_cst = order == Order::SeqCst;
            let written = if seq_cst { WriteKind::Locked } else { WriteKind::Plain };
            world.write_line(&self.line, 1, written);
            if self.value.load(Relaxed) != value {
                self.value.store(value, Relaxed);
                world.wake_watchers(&self.line, start_ps);
            }
        });
        if inside.is_none() {
            self.value.store(value, order);
        }
    }

    #[inline]
    fn swap(&self, value: u64, order: Order) -> u64 {
        self.replace(|_| value).unwrap_or_else(|| self.value.swap(value, order))
    }

    #[inline]
    fn fetch_add(&self, value: u64, order: Order) -> u64 {
        let inside = self.replace(|old| old.wrapping_add(value));
        inside.unwrap_or_else(|| self.value.fetch_add(value, order))
    }

    #[inline]
    fn fetch_or(&self, value: u64, order: Order) -> u64 {
        self.replace(|old| old | value).unwrap_or_else(|| self.value.fetch_or(value, order))
    }

    #[inline]
    fn fetch_and(&self, value: u64, order: Order) -> u64 {
        self.replace(|old| old & value).unwrap_or_else(|| self.value.fetch_and(value, order))
    }

    #[inline]
    fn compare_exchange(&self, old: u64, new: u64, order: Order, fail: Order) -> Result<u64, u64> {
        let inside = self.replace(|found| if found == old { new } else { found });
        match inside {
            Some(found) if found == old => Ok(found),
            Some(found) => Err(found),
            None => self.value.compare_exchange(old, new, order, fail),
        }
    }
}

/// A value on cache lines of its own, all of which are transferred at each access.
#[derive(Debug)]
pub struct SimLine<T> {
    line: LineState,
    value: UnsafeCell<T>,
}

// SAFETY: a line only hands out raw pointers; their users ensure exclusive access (see `Line`).
unsafe impl<T: Send> Sync for SimLine<T> {}

impl<T> SimLine<T> {
    const LINES: u64 = size_of::<T>().div_ceil(64) as u64;
}

// SAFETY: the pointers are to the inner cell, which nothing else accesses.
unsafe impl<T: Send> Line<T> for SimLine<T> {
    fn new(value: T) -> Self {
        SimLine { line: LineState::new(), value: UnsafeCell::new(value) }
    }

    #[inline]
    fn read(&self) -> *const T {
        if Self::LINES > 0 {
            access(&self.line, AccessKind::Read, |world| world.read_line(&self.line, Self::LINES));
        }
        self.value.get()
    }

    #[inline]
    fn write(&self) -> *mut T {
        if Self::LINES > 0 {
            access(&self.line, AccessKind::Write, |world| {
                let start_ps = world.scheduler.now_ps;
                world.write_line(&self.line, Self::LINES, WriteKind::Plain);
                world.wake_watchers(&self.line, start_ps);
            });
        }
        self.value.get()
    }

    #[inline]
    fn held(&self) -> *mut T {
        self.value.get()
    }
}

/// A statistics counter whose updates cost no virtual time.
#[derive(Debug)]
pub struct SimCounter(AtomicU64);

impl Counter for SimCounter {
    fn new() -> Self {
        SimCounter(AtomicU64::new(0))
    }

    #[inline]
    fn add(&self, value: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(value), Relaxed);
    }

    #[inline]
    fn raise(&self, value: u64) {
        self.0.store(self.0.load(Relaxed).max(value), Relaxed);
    }

    #[inline]
    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
