//! Words, locks, shared data (`Line`), parkers and threads of the checked machine.
//!
//! Models use these primitives through the `Machine` trait; each operation is one indivisible step
//! of an execution. Values of lines and locks are plain memory, which is sound because only one
//! coroutine runs at a time; race.rs checks that accesses are ordered. A lock is an atomic word:
//! `lock` is an acquiring read-modify-write of the last store, `unlock` a releasing store, and
//! `try_lock` may fail because it reads an old value. Guards may be dropped while a panic unwinds,
//! because no other thread runs after a panic.
#![allow(unsafe_code)]

use core::cell::{Cell, UnsafeCell};
use core::ops::{Deref, DerefMut};
use std::format;
use std::string::ToString;

use super::session::{self, LineAccessKind, Session, WaitReason, fail, turn, with};
use millrace_machine::{
    Counter, Hold, Line, Lock, LockCounts, Meter, Order, Parker, Site, Thread, Word,
};

/// An atomic word. Every value that a load may return is explored.
#[derive(Debug)]
pub struct CheckedWord(u32);

fn add_location(value: u64) -> u32 {
    let location = with(|s| {
        let (memory, turn) = s.access();
        memory.add(turn.views, value)
    });
    location.unwrap_or_else(|| {
        fail("more than 64 atomic words and locks in one execution; use fewer".to_string());
        0
    })
}

impl CheckedWord {
    /// Runs an access to this word. Other threads may run before the access.
    #[inline]
    fn step<R>(&self, step: impl FnOnce(&mut Session) -> R) -> R {
        turn();
        with(|s| {
            s.touched |= 1 << self.0;
            s.acted();
            step(s)
        })
    }

    #[inline]
    fn update(&self, name: &str, order: Order, new: impl Fn(u64) -> u64) -> u64 {
        let at = self.0;
        self.step(|s| {
            let (memory, turn) = s.access();
            let old = memory.update(turn, at, order, &new);
            s.note(|| format!("word {at} {name} {order:?}: {old:#x} -> {:#x}", new(old)));
            old
        })
    }
}

// SAFETY: each method is one atomic step, because one thread of an exploration runs at a time.
// memory.rs lets a load return only values that the load's memory ordering allows.
unsafe impl Word for CheckedWord {
    fn new(value: u64) -> Self {
        CheckedWord(add_location(value))
    }

    fn load(&self, order: Order) -> u64 {
        assert!(!matches!(order, Order::Release | Order::AcqRel), "a load cannot release");
        let at = self.0;
        self.step(|s| {
            let (memory, turn) = s.access();
            let value = memory.load(turn, at, order);
            s.note(|| format!("word {at} load {order:?}: {value:#x}"));
            value
        })
    }

    fn store(&self, value: u64, order: Order) {
        assert!(!matches!(order, Order::Acquire | Order::AcqRel), "a store cannot acquire");
        if order == Order::SeqCst {
            turn();
        }
        let at = self.0;
        with(|s| {
            s.touched |= 1 << at;
            s.acted();
            let (memory, turn) = s.access();
            memory.store(turn, at, value, order);
            s.note(|| format!("word {at} store {order:?}: {value:#x}"));
        });
    }

    fn swap(&self, value: u64, order: Order) -> u64 {
        self.update("swap", order, |_| value)
    }

    fn fetch_add(&self, value: u64, order: Order) -> u64 {
        self.update("fetch_add", order, |old| old.wrapping_add(value))
    }

    fn fetch_or(&self, value: u64, order: Order) -> u64 {
        self.update("fetch_or", order, |old| old | value)
    }

    fn fetch_and(&self, value: u64, order: Order) -> u64 {
        self.update("fetch_and", order, |old| old & value)
    }

    fn compare_exchange(&self, old: u64, new: u64, order: Order, fail: Order) -> Result<u64, u64> {
        assert!(!matches!(fail, Order::Release | Order::AcqRel), "a failure cannot release");
        let at = self.0;
        self.step(|s| {
            let (memory, turn) = s.access();
            let result = memory.compare_exchange(turn, at, (old, new), (order, fail));
            s.note(|| {
                format!("word {at} exchange {old:#x} -> {new:#x} {order:?}/{fail:?}: {result:x?}")
            });
            result
        })
    }
}

/// A lock. The explorer tries every order in which threads can take it.
#[derive(Debug)]
pub struct CheckedLock<T> {
    at: u32,
    name: &'static str,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed through a guard only, and the session creates one guard at a time.
unsafe impl<T: Send> Sync for CheckedLock<T> {}

/// Keeps a [`CheckedLock`] locked until dropped.
#[derive(Debug)]
pub struct CheckedGuard<'a, T> {
    lock: &'a CheckedLock<T>,
}

impl<T> CheckedLock<T> {
    fn note(&self, s: &mut Session, what: &str) {
        s.note(|| format!("lock {} ({}) {what}", self.at, self.name));
    }
}

impl<T: Send> Lock<T> for CheckedLock<T> {
    type Guard<'a>
        = CheckedGuard<'a, T>
    where
        T: 'a;

    fn new(name: &'static str, value: T) -> Self {
        CheckedLock { at: add_location(0), name, value: UnsafeCell::new(value) }
    }

    fn lock(&self) -> CheckedGuard<'_, T> {
        turn();
        let at = self.at;
        if with(|s| s.memory.last(at)) != 0 {
            session::wait(WaitReason::Lock(at));
        }
        with(|s| {
            s.touched |= 1 << at;
            s.acted();
            let (memory, turn) = s.access();
            memory.take_lock(turn.views, at);
            self.note(s, "taken");
        });
        CheckedGuard { lock: self }
    }

    fn try_lock(&self) -> Option<CheckedGuard<'_, T>> {
        turn();
        let at = self.at;
        with(|s| {
            s.touched |= 1 << at;
            s.acted();
            let (memory, turn) = s.access();
            let orders = (Order::Acquire, Order::Relaxed);
            let taken = memory.compare_exchange(turn, at, (0, 1), orders).is_ok();
            self.note(s, if taken { "taken by a try" } else { "tried" });
            taken.then_some(CheckedGuard { lock: self })
        })
    }
}

impl<T> Drop for CheckedGuard<'_, T> {
    fn drop(&mut self) {
        session::try_with(|s| {
            let (memory, turn) = s.access();
            memory.give_lock(turn.views, self.lock.at);
            self.lock.note(s, "given back");
        });
    }
}

impl<T> Deref for CheckedGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the session gave the lock to this guard alone.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for CheckedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the session gave the lock to this guard alone.
        unsafe { &mut *self.lock.value.get() }
    }
}

/// Memory whose accesses other primitives must order. Unordered accesses are reported as data
/// races.
#[derive(Debug)]
pub struct CheckedLine<T> {
    line: u32,
    value: UnsafeCell<T>,
}

// SAFETY: only raw pointers are handed out, and only one thread of an exploration runs at a time.
unsafe impl<T: Send> Sync for CheckedLine<T> {}

impl<T> CheckedLine<T> {
    fn touch(&self, what: LineAccessKind) -> *mut T {
        if let Some(Some(race)) = session::try_with(|s| s.touch_line(self.line, what)) {
            fail(race);
        }
        self.value.get()
    }
}

// SAFETY: the pointers are to the inner cell, which nothing else accesses.
unsafe impl<T: Send> Line<T> for CheckedLine<T> {
    fn new(value: T) -> Self {
        CheckedLine { line: with(Session::add_line), value: UnsafeCell::new(value) }
    }
    fn read(&self) -> *const T {
        self.touch(LineAccessKind::Read)
    }
    fn write(&self) -> *mut T {
        self.touch(LineAccessKind::Write)
    }
    fn held(&self) -> *mut T {
        self.touch(LineAccessKind::Held)
    }
}

std::thread_local! {
    static METERED: Cell<bool> = const { Cell::new(false) };
}

/// Turns lock statistics on for models that the calling thread explores. Models call this at their
/// start. [`unmeter_locks`] turns the statistics off.
pub fn meter_locks() {
    METERED.set(true);
}

/// Turns lock statistics off for the models that the calling thread explores.
pub fn unmeter_locks() {
    METERED.set(false);
}

/// Lock statistics of the checker. While [`meter_locks`] turns them on, locks also run their code
/// for statistics. The results are discarded.
#[derive(Debug, Clone, Copy)]
pub struct CheckedMeter;

impl Meter for CheckedMeter {
    const ALWAYS: bool = false;
    fn is_on() -> bool {
        METERED.get()
    }
    fn now() -> u64 {
        0
    }
    fn count_hold(_name: &'static str, _hold: &Hold, _counts: &LockCounts) {}
    fn count_rejection(_name: &'static str, _site: Site, _wait_ns: u64) {}
}

/// A statistics counter that stores nothing, because counters never synchronise threads.
#[derive(Debug)]
pub struct CheckedCounter;

impl Counter for CheckedCounter {
    #[inline]
    fn new() -> Self {
        CheckedCounter
    }
    #[inline]
    fn add(&self, _: u64) {}
    #[inline]
    fn raise(&self, _: u64) {}
    #[inline]
    fn get(&self) -> u64 {
        0
    }
}

/// A parker whose `park` and `unpark` order no memory accesses, since callers must not rely on such
/// an order.
#[derive(Debug, Clone)]
pub struct CheckedParker(u32);

impl Parker for CheckedParker {
    fn new() -> Self {
        CheckedParker(with(Session::add_parker))
    }

    fn park(&self, deadline_ns: Option<u64>) {
        turn();
        with(|s| s.note(|| format!("parks at parker {}", self.0)));
        if !with(|s| s.is_unparked(self.0)) {
            session::wait(WaitReason::Park(self.0, deadline_ns));
        }
        with(|s| s.parked(self.0, deadline_ns));
    }

    fn unpark(&self) {
        turn();
        with(|s| {
            s.acted();
            s.unpark(self.0);
        });
    }
}

/// A handle of a model's thread.
#[derive(Debug)]
pub struct CheckedThread(pub(super) usize);

impl Thread for CheckedThread {
    /// Waits for the end of the thread. Always returns true, because a panic of the thread would
    /// end the whole execution.
    fn join(self) -> bool {
        if !with(|s| s.has_ended(self.0)) {
            session::wait(WaitReason::Join(self.0));
        }
        with(|s| s.joined(self.0));
        true
    }
}
