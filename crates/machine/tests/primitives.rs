//! Every hot primitive of `Machine` on `Native`, beside the plain operation that it stands for.
//!
//! `cargo xtask primitives` compiles this file to assembly and compares `native_X` with `plain_X`,
//! instruction by instruction; the program is not meant to be run. Both functions of a pair take
//! the same arguments and do the same operation, once through the trait and once without it, and
//! return the result to keep it alive. Primitives that make system calls or loop anyway are left
//! out (`now`, `spawn`, `spin_until`, `Parker`).
#![allow(missing_docs, unsafe_code, improper_ctypes_definitions)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError, TryLockError};

use millrace_machine::{Counter, Line, Lock, Machine, Native, Stage, Word};

type NativeWord = <Native as Machine>::Word;
type NativeLine = <Native as Machine>::Line<u64>;
type NativeCounter = <Native as Machine>::Counter;
type NativeLock = <Native as Machine>::Lock<u64>;

/// Exports `native_$name` and `plain_$name`. If there are arguments, the first is the primitive, of
/// either of the two named types, and has the same name in both bodies.
macro_rules! pair {
    (
        $name:ident $(($this:ident: $native:ty | $plain:ty $(, $arg:ident)*))? $(-> $result:ty)?:
        $by_trait:expr, $by_hand:expr
    ) => {
        const _: () = {
            #[unsafe(export_name = concat!("native_", stringify!($name)))]
            #[inline(never)]
            pub extern "C" fn native($($this: &$native $(, $arg: u64)*)?) $(-> $result)? {
                $by_trait
            }
            #[unsafe(export_name = concat!("plain_", stringify!($name)))]
            #[inline(never)]
            pub extern "C" fn plain($($this: &$plain $(, $arg: u64)*)?) $(-> $result)? {
                $by_hand
            }
        };
    };
}

/// Exports both functions for a method that `Word` shares with `AtomicU64`, with these orderings.
macro_rules! word {
    ($name:ident, $method:ident($($arg:ident),*), $($order:ident),+ $(-> $result:ty)?) => {
        pair!($name(word: NativeWord | AtomicU64 $(, $arg)*) $(-> $result)?:
            Word::$method(word $(, $arg)* $(, Ordering::$order)+),
            AtomicU64::$method(word $(, $arg)* $(, Ordering::$order)+));
    };
}

word!(word_load_relaxed, load(), Relaxed -> u64);
word!(word_load_acquire, load(), Acquire -> u64);
word!(word_load_seqcst, load(), SeqCst -> u64);
word!(word_store_relaxed, store(value), Relaxed);
word!(word_store_release, store(value), Release);
word!(word_store_seqcst, store(value), SeqCst);
word!(word_swap_acqrel, swap(value), AcqRel -> u64);
word!(word_swap_seqcst, swap(value), SeqCst -> u64);
word!(word_fetch_add_relaxed, fetch_add(value), Relaxed -> u64);
word!(word_fetch_add_seqcst, fetch_add(value), SeqCst -> u64);
word!(word_fetch_or_acqrel, fetch_or(value), AcqRel -> u64);
word!(word_fetch_or_seqcst, fetch_or(value), SeqCst -> u64);
word!(word_fetch_and_release, fetch_and(value), Release -> u64);
word!(word_fetch_and_seqcst, fetch_and(value), SeqCst -> u64);

/// Returns the value found, with all bits flipped if it was not the expected value, so that the
/// compiler keeps both outcomes.
#[inline(always)]
fn either(result: Result<u64, u64>) -> u64 {
    result.unwrap_or_else(|found| !found)
}

pair!(word_compare_exchange_acquire(word: NativeWord | AtomicU64, old, new) -> u64:
    either(Word::compare_exchange(word, old, new, Ordering::Acquire, Ordering::Relaxed)),
    either(word.compare_exchange(old, new, Ordering::Acquire, Ordering::Relaxed)));
pair!(word_compare_exchange_seqcst(word: NativeWord | AtomicU64, old, new) -> u64:
    either(Word::compare_exchange(word, old, new, Ordering::SeqCst, Ordering::SeqCst)),
    either(word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)));

pair!(fence_acquire: Native::fence(Ordering::Acquire), fence(Ordering::Acquire));
pair!(fence_release: Native::fence(Ordering::Release), fence(Ordering::Release));
pair!(fence_seqcst: Native::fence(Ordering::SeqCst), fence(Ordering::SeqCst));

pair!(line_read(line: NativeLine | UnsafeCell<u64>) -> u64:
    // SAFETY: nobody calls these; a caller would hold the only reference to the line.
    unsafe { *line.read() },
    // SAFETY: as above.
    unsafe { *line.get() });
pair!(line_write(line: NativeLine | UnsafeCell<u64>, value):
    // SAFETY: nobody calls these; a caller would hold the only reference to the line.
    unsafe { *line.write() = value },
    // SAFETY: as above.
    unsafe { *line.get() = value });
pair!(line_held(line: NativeLine | UnsafeCell<u64>, value):
    // SAFETY: nobody calls these; a caller would hold the only reference to the line.
    unsafe { *line.held() ^= value },
    // SAFETY: as above.
    unsafe { *line.get() ^= value });

/// The expected code of an addition without a locked instruction: a load, an addition and a store.
#[inline(always)]
fn add_by_hand(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}

#[inline(always)]
fn raise_by_hand(counter: &AtomicU64, value: u64) {
    if value > counter.load(Ordering::Relaxed) {
        counter.store(value, Ordering::Relaxed);
    }
}

pair!(counter_add(counter: NativeCounter | AtomicU64, value):
    counter.add(value), add_by_hand(counter, value));
pair!(counter_raise(counter: NativeCounter | AtomicU64, value):
    counter.raise(value), raise_by_hand(counter, value));
pair!(counter_get(counter: NativeCounter | AtomicU64) -> u64:
    counter.get(), counter.load(Ordering::Relaxed));

#[inline(always)]
fn try_lock_by_hand(lock: &Mutex<u64>, value: u64) -> bool {
    let mut guard = match lock.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return false,
    };
    *guard = value;
    true
}

#[inline(always)]
fn try_lock_by_trait(lock: &NativeLock, value: u64) -> bool {
    let Some(mut guard) = lock.try_lock() else { return false };
    *guard = value;
    true
}

// Both functions acquire the lock, write the value and release the lock.
pair!(lock_lock(lock: NativeLock | Mutex<u64>, value):
    *Lock::lock(lock) = value,
    *lock.lock().unwrap_or_else(PoisonError::into_inner) = value);
pair!(lock_try_lock(lock: NativeLock | Mutex<u64>, value) -> bool:
    try_lock_by_trait(lock, value), try_lock_by_hand(lock, value));

pair!(work: Native::work(Stage::Submit, 3), ());

/// Returns the current CPU, or CPU 0 if the system does not know it.
#[inline(always)]
fn cpu_by_hand() -> u32 {
    // SAFETY: sched_getcpu has no preconditions.
    let cpu = unsafe { libc::sched_getcpu() };
    if cpu < 0 { 0 } else { cpu as u32 }
}

pair!(cpu -> u32: Native::cpu().0, cpu_by_hand());

fn main() {}
