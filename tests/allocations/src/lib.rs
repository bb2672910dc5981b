//! An allocator for test binaries that counts its calls and records the backtrace of the first.
//!
//! A test binary makes a [`Counting`] its global allocator. Calls count while
//! [`Counting::calls_in`] runs its body, on the threads that the allocator was made for: the caller
//! of `calls_in`, or the threads that a function selects. The first counted call keeps its
//! backtrace, so a failure names the function. One measurement runs at a time; others wait. Bytes
//! that the process holds are always counted. Used by the `allocation` tests of block, drives and
//! exports.

#![allow(unsafe_code)] // Whatever implements `GlobalAlloc` is unsafe.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

static MEASURING: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);
/// Bytes that the process holds.
static HELD: AtomicI64 = AtomicI64::new(0);
/// Where the first counted call came from.
static FIRST: Mutex<Option<Backtrace>> = Mutex::new(None);
/// Held by the one measurement that runs.
static TURN: Mutex<()> = Mutex::new(());

thread_local! {
    /// Do this thread's calls count? `None` until decided.
    static COUNTED: Cell<Option<bool>> = const { Cell::new(None) };
}

/// The system's allocator, with a count of its calls.
#[derive(Debug)]
pub struct Counting {
    /// Selects the threads that count; without it, only the caller of `calls_in` counts.
    is_counted: Option<fn() -> bool>,
}

impl Counting {
    /// Counts calls of the thread that calls [`calls_in`](Self::calls_in).
    #[must_use]
    pub const fn of_caller() -> Counting {
        Counting { is_counted: None }
    }

    /// Counts calls of the threads for which `is_counted` returns true. It is called once on each
    /// thread, and must not allocate.
    #[must_use]
    pub const fn of_threads(is_counted: fn() -> bool) -> Counting {
        Counting { is_counted: Some(is_counted) }
    }

    /// Counted calls during `body`, and the backtrace of the first.
    pub fn calls_in(&self, body: impl FnOnce()) -> (u64, String) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        CALLS.store(0, Ordering::SeqCst);
        *first() = None;
        MEASURING.store(true, Ordering::SeqCst);
        let measured = Measured(COUNTED.get());
        if self.is_counted.is_none() {
            COUNTED.set(Some(true));
        }
        body();
        drop(measured);
        let text = first().take().map_or_else(String::new, |first| first.to_string());
        (CALLS.load(Ordering::SeqCst), text)
    }

    fn count(&self) {
        if !MEASURING.load(Ordering::SeqCst) {
            return;
        }
        let decide = || {
            let counted = self.is_counted.is_some_and(|is_counted| is_counted());
            // A thread that only another measurement counts is asked again.
            COUNTED.set(self.is_counted.map(|_| counted));
            counted
        };
        if COUNTED.get().unwrap_or_else(decide) && CALLS.fetch_add(1, Ordering::SeqCst) == 0 {
            // Taking a backtrace allocates.
            uncounted(|| *first() = Some(Backtrace::force_capture()));
        }
    }
}

/// A running measurement; holds its caller's earlier value of `COUNTED`.
struct Measured(Option<bool>);

impl Drop for Measured {
    fn drop(&mut self) {
        COUNTED.set(self.0);
        MEASURING.store(false, Ordering::SeqCst);
    }
}

/// Runs `body` without counting this thread's calls.
pub fn uncounted<R>(body: impl FnOnce() -> R) -> R {
    let before = COUNTED.replace(Some(false));
    let result = body();
    COUNTED.set(before);
    result
}

/// Bytes that the process holds now.
#[must_use]
pub fn held_bytes() -> i64 {
    HELD.load(Ordering::SeqCst)
}

/// Notes the bytes that a call took and gave back.
fn hold(taken: usize, given: usize) {
    // Relaxed: the sum is read only while no counted thread runs.
    HELD.fetch_add(taken as i64 - given as i64, Ordering::Relaxed);
}

fn first() -> MutexGuard<'static, Option<Backtrace>> {
    FIRST.lock().unwrap_or_else(PoisonError::into_inner)
}

// SAFETY: hands every call to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count();
        hold(layout.size(), 0);
        // SAFETY: the caller upholds what the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.count();
        hold(layout.size(), 0);
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.count();
        hold(size, layout.size());
        // SAFETY: as for `alloc`; `old` came from there.
        unsafe { System.realloc(old, layout, size) }
    }
    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        self.count();
        hold(0, layout.size());
        // SAFETY: as for `realloc`.
        unsafe { System.dealloc(old, layout) }
    }
}
