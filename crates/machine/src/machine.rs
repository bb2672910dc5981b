//! The `Machine` trait: the primitives on which the block layer is built, such as locks, atomic
//! words, the clock and threads.
//!
//! `Native` in this crate implements the trait, and so do simulated and checking machines; every
//! structure of `crates/block` uses it as a type parameter. All functions are associated functions,
//! so no machine value is ever passed around, and on `Native` nothing is stored and nothing is
//! dispatched dynamically. Invariant: no method reveals which machine implements it. Kernel
//! counterparts: `spinlock_t`, `atomic64_t`, `____cacheline_aligned`, `ktime_get`,
//! `raw_smp_processor_id`.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use core::ops::DerefMut;

use crate::Topology;
use crate::lock_row::{Hold, LockCounts, Site};

/// Memory orderings, as in `core::sync::atomic`.
pub use core::sync::atomic::Ordering as Order;

/// Number of a CPU on this machine, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub u32);

/// Number of a NUMA node on this machine, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// Stage of the processing of an I/O. Simulated machines have a cost in time for each stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// I/O stage: a program or server submits an I/O through its interface.
    Interface,
    /// I/O stage: one bio is checked, remapped and plugged, before it enters a queue. In models of
    /// the kernel, this stage includes setting up the request.
    Submit,
    /// I/O stage: a bio is inserted into a queue, under the queue's lock.
    Insert,
    /// I/O stage: one request is removed from its queue and started, under the queue's lock.
    Dispatch,
    /// I/O stage: the driver's code runs for one request.
    Driver,
    /// I/O stage: one request is completed. A single-queue stack holds the queue's lock meanwhile.
    Complete,
    /// I/O stage: one entry of a list is visited, while the list is searched or sorted.
    Search,
}

impl Stage {
    /// All stages, in the order in which an I/O passes them.
    pub const ALL: [Stage; 7] = [
        Stage::Interface,
        Stage::Submit,
        Stage::Insert,
        Stage::Dispatch,
        Stage::Driver,
        Stage::Complete,
        Stage::Search,
    ];
}

/// The machine that code runs on.
///
/// # Safety
/// The block layer synchronises with [`Machine::fence`] and relies on it: a fence must order the
/// calling thread's accesses to [`Word`]s as `core::sync::atomic::fence` does. The associated types
/// must keep the promises of their own traits.
pub unsafe trait Machine: Copy + Send + Sync + core::fmt::Debug + 'static {
    /// A mutual exclusion lock around a value.
    type Lock<T: Send>: Lock<T>;
    /// An atomic 64-bit word, alone on its cache line.
    type Word: Word;
    /// Data that CPUs share, protected by a lock or by atomic operations. A simulated machine adds
    /// the cost of each access.
    type Line<T: Send>: Line<T>;
    /// A statistical counter with one writer at a time and any number of readers. Threads must not
    /// synchronise through a counter.
    type Counter: Counter;
    /// Puts one thread to sleep until another wakes it.
    type Parker: Parker;
    /// A started thread.
    type Thread: Thread;
    /// Statistics of the locks that the block layer builds from [`Machine::Word`]s.
    type Meter: Meter;

    /// True if a thread may move to another CPU at any moment; else it stays where it started.
    const THREADS_MOVE: bool;

    /// Returns nanoseconds since an arbitrary fixed time. Never goes back on one CPU.
    fn now() -> u64;
    /// Returns the CPU that the caller is running on.
    fn cpu() -> CpuId;
    /// Returns the CPUs and nodes that this process may use.
    fn topology() -> Topology;
    /// Executes a memory fence.
    fn fence(order: Order);
    /// Starts a thread, on `cpu` if given and allowed by the machine.
    ///
    /// # Panics
    /// On `Native`, if the system refuses the thread; `Native::try_spawn` returns the error.
    fn spawn(name: &str, cpu: Option<CpuId>, body: Box<dyn FnOnce() + Send>) -> Self::Thread;
    /// Polls `ready` until it returns true or `now()` reaches `deadline_ns`. Returns true in the
    /// first case.
    ///
    /// All busy waiting must use this function: a simulated machine treats it as one event, and a
    /// checking machine can end it.
    fn spin_until(deadline_ns: u64, ready: impl FnMut() -> bool) -> bool;
    /// Returns true if the calling thread is unwinding because of a panic. A destructor must check
    /// this before it reports a bug by a panic, because a second panic would abort the process.
    fn is_panicking() -> bool;
    /// Advances a simulated clock by the cost of `units` items of work in stage `stage`.
    fn work(stage: Stage, units: u32);
    /// Hints that the caller will soon read these bytes, at any address.
    #[inline(always)]
    fn will_read(start: *const u8, len_bytes: usize) {
        let _ = (start, len_bytes);
    }
}

/// A mutual exclusion lock; see [`Machine::Lock`].
pub trait Lock<T: Send>: Send + Sync {
    /// Guard that holds the lock until it is dropped.
    type Guard<'a>: DerefMut<Target = T>
    where
        Self: 'a,
        T: 'a;
    /// Creates a lock around `value`. `name` appears in lock statistics.
    fn new(name: &'static str, value: T) -> Self;
    /// Waits for the lock and acquires it.
    #[track_caller]
    fn lock(&self) -> Self::Guard<'_>;
    /// Acquires the lock if it is free.
    #[track_caller]
    fn try_lock(&self) -> Option<Self::Guard<'_>>;
}

/// Statistics of the locks that the block layer builds from words; see [`Machine::Meter`]. Each
/// such lock reports its own holds and failed attempts.
pub trait Meter {
    /// True if this machine always collects statistics of all locks that are built from words,
    /// because collecting costs nothing. If false, a lock is counted only while [`Meter::is_on`]
    /// returns true, and only if the lock's statistics are enabled.
    const ALWAYS: bool;
    /// Returns true if lock statistics are switched on. If [`Meter::ALWAYS`] is true, statistics
    /// cannot be switched off, and this function always returns false.
    fn is_on() -> bool;
    /// Returns the time of [`Machine::now`]. On a simulated machine, the call itself takes no
    /// simulated time, so that the statistics do not change the result.
    fn now() -> u64;
    /// Counts a completed hold of a lock with this name. Call it after the release.
    fn count_hold(name: &'static str, hold: &Hold, counts: &LockCounts);
    /// Counts a failed attempt to acquire a lock: the caller gave up after a wait of `wait_ns`
    /// nanoseconds.
    fn count_rejection(name: &'static str, site: Site, wait_ns: u64);
}

/// An atomic 64-bit word, alone on its cache line; see [`Machine::Word`].
///
/// # Safety
/// The block layer's locks are made of words. Every method must be one atomic operation with the
/// result that it describes, and with at least the given ordering, as on
/// `core::sync::atomic::AtomicU64`.
pub unsafe trait Word: Send + Sync {
    /// Creates a word with this value.
    fn new(value: u64) -> Self;
    /// Returns the value.
    fn load(&self, order: Order) -> u64;
    /// Sets the value.
    fn store(&self, value: u64, order: Order);
    /// Sets the value and returns the previous one.
    fn swap(&self, value: u64, order: Order) -> u64;
    /// Adds to the value, wrapping, and returns the previous one.
    fn fetch_add(&self, value: u64, order: Order) -> u64;
    /// Sets the bits of `value` and returns the previous value of the word.
    fn fetch_or(&self, value: u64, order: Order) -> u64;
    /// Clears all bits that are not in `value` and returns the previous value of the word.
    fn fetch_and(&self, value: u64, order: Order) -> u64;
    /// Sets the word to `new` if it is `old`, and then returns `Ok(old)`.
    ///
    /// # Errors
    /// Returns the value found, if it is not `old`.
    fn compare_exchange(&self, old: u64, new: u64, order: Order, fail: Order) -> Result<u64, u64>;
}

/// Data that CPUs hand to each other under a lock or another synchronisation. A simulated machine
/// adds the cost of an access for every 64 bytes.
///
/// Code that dereferences a pointer must hold the lock that protects the data. While it uses a
/// pointer from `read`, nobody may write the data; while it uses a pointer from `write`, nobody
/// else may use the data.
///
/// # Safety
/// All pointers must lead to the one value given to `new`, and the implementation must neither move
/// nor access the value until it drops it. The pointers from `write` and `held` must be writable.
/// The block layer dereferences them.
///
/// Safe code cannot implement `Line`:
///
/// ```compile_fail,E0200
/// struct Wild;
/// impl<T: Send> millrace_machine::Line<T> for Wild {}
/// ```
pub unsafe trait Line<T: Send>: Send + Sync {
    /// Creates the shared data with the initial value `value`.
    fn new(value: T) -> Self;
    /// Returns a pointer for reading the shared data. A simulated machine adds the cost of a read.
    fn read(&self) -> *const T;
    /// Returns a pointer for changing the shared data. A simulated machine adds the cost of a
    /// write.
    fn write(&self) -> *mut T;
    /// Returns a pointer to the shared data without a simulated cost. The caller's CPU must have
    /// just called `read` or `write`, which added the cost.
    fn held(&self) -> *mut T;
}

/// A statistical counter; see [`Machine::Counter`].
pub trait Counter: Send + Sync {
    /// Creates a counter with value 0.
    fn new() -> Self;
    /// Adds `value` to the counter. Only one thread may write at a time.
    fn add(&self, value: u64);
    /// Raises the counter to at least `value`. Only one thread may write at a time.
    fn raise(&self, value: u64);
    /// Returns the counter's value, which may be slightly out of date.
    fn get(&self) -> u64;
}

/// Puts one thread to sleep until another wakes it; see [`Machine::Parker`].
pub trait Parker: Clone + Send + Sync {
    /// Creates a parker without a pending wake-up.
    ///
    /// # Panics
    /// On `Native`, if no file descriptor is free; see [`Parker::try_new`].
    fn new() -> Self;
    /// Creates a parker as [`Parker::new`] does, but does not panic.
    ///
    /// # Errors
    /// Returns the system's errno if no file descriptor is free. Simulated machines never fail.
    fn try_new() -> Result<Self, i32> {
        Ok(Self::new())
    }
    /// Sleeps until [`Parker::unpark`] is called or `now()` reaches `deadline_ns`, and consumes the
    /// wake-up. May return early.
    fn park(&self, deadline_ns: Option<u64>);
    /// Wakes the sleeping thread, or makes its next `park` return at once.
    fn unpark(&self);
}

/// A started thread; see [`Machine::spawn`].
pub trait Thread: Send {
    /// Waits for the thread's end. Returns false if it panicked.
    fn join(self) -> bool;
}

/// Polls `ready` at most `tries` times through [`Machine::spin_until`], which yields as needed.
/// Returns true if `ready` returned true.
pub fn spin_backoff<M: Machine>(tries: u32, mut ready: impl FnMut() -> bool) -> bool {
    let mut left = tries;
    let mut hit = false;
    M::spin_until(u64::MAX, || {
        left = left.saturating_sub(1);
        hit = ready();
        hit || left == 0
    });
    hit
}

/// Safe code cannot implement `Word`, because the methods of such a type might not be atomic:
///
/// ```compile_fail,E0200
/// struct Deaf;
/// impl millrace_machine::Word for Deaf {}
/// ```
///
/// Safe code cannot implement `Machine`, because the fences of such a type might order nothing:
///
/// ```compile_fail,E0200
/// #[derive(Clone, Copy, Debug)]
/// struct Loose;
/// impl millrace_machine::Machine for Loose {}
/// ```
#[cfg(all(doctest, feature = "std"))]
struct SafeCode;
