//! The `Machine` trait: the few primitives that the block layer is written in.
//!
//! Owns no state. Implemented by `Native` here, and by simulated and checking machines; used as a
//! type parameter by every structure of `crates/block`. All functions are associated functions: a
//! machine value is never passed around, so on `Native` nothing is stored and nothing dispatched.
//! Invariant: no method tells which machine it is. Kernel counterparts: `spinlock_t`, `atomic64_t`,
//! `____cacheline_aligned`, `ktime_get`, `raw_smp_processor_id`.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use core::ops::DerefMut;

use crate::Topology;
use crate::lock_row::{Hold, LockCounts, Site};

/// Memory orderings, as of the language.
pub use core::sync::atomic::Ordering as Order;

/// A CPU by its number on this machine, 0-based.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub u32);

/// A NUMA node by its number on this machine, 0-based.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// Stages of an I/O's way through the stack, for machines that charge time by stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// A program's or server's submission interface.
    Interface,
    /// The block layer before its queues, per bio: checks, remap, plug; in models of the kernel
    /// also the filling of the request.
    Submit,
    /// Insertion into a queue, per bio, inside that queue's lock.
    Insert,
    /// Removal from the queue and starting of a request, per request, inside the queue's lock.
    Dispatch,
    /// The driver's code per request.
    Driver,
    /// Ending a request; in a single-queue stack inside its lock.
    Complete,
    /// A look at one entry of a list that is searched or sorted.
    Search,
}

impl Stage {
    /// All stages, in the order of an I/O's way.
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
/// The block layer synchronises with [`Machine::fence`], and relies on it: a fence orders the
/// calling thread's accesses to [`Word`]s as `core::sync::atomic::fence` does. The associated types
/// keep the promises of their own traits.
pub unsafe trait Machine: Copy + Send + Sync + core::fmt::Debug + 'static {
    /// A mutual exclusion lock around a value.
    type Lock<T: Send>: Lock<T>;
    /// An atomic 64-bit word alone on its cache line.
    type Word: Word;
    /// Data handed between CPUs under another synchronisation.
    type Line<T: Send>: Line<T>;
    /// A statistic: one writer at a time, any number of readers, never a synchronisation.
    type Counter: Counter;
    /// Sleeps one thread until another wakes it.
    type Parker: Parker;
    /// A started thread.
    type Thread: Thread;
    /// Statistics of locks that are made of words.
    type Meter: Meter;

    /// A thread may go on on another CPU at any moment, so that its CPU says nothing of it. False
    /// where every thread stays on the CPU that it was started on.
    const THREADS_MOVE: bool;

    /// Nanoseconds since an arbitrary fixed point; never goes back on one CPU.
    fn now() -> u64;
    /// The CPU that the caller runs on at this moment.
    fn cpu() -> CpuId;
    /// The CPUs and nodes that this process may use.
    fn topology() -> Topology;
    /// A memory fence.
    fn fence(order: Order);
    /// Starts a thread, on `cpu` if one is named and the machine allows it.
    fn spawn(name: &str, cpu: Option<CpuId>, body: Box<dyn FnOnce() + Send>) -> Self::Thread;
    /// Polls `ready` until it returns true or `now()` reaches `deadline_ns`; says which.
    ///
    /// All busy waiting goes through here, so that it costs a simulated machine one event and ends
    /// in a checking one.
    fn spin_until(deadline_ns: u64, ready: impl FnMut() -> bool) -> bool;
    /// Whether the calling thread is unwinding because of a panic. Destructors that would report a
    /// bug by a panic ask first: a second panic would end the process.
    fn is_panicking() -> bool;
    /// Charges `units` items of work of a stage, where the machine charges for work.
    fn work(stage: Stage, units: u32);
    /// Says that the caller is going to read these bytes soon, so that they come into the
    /// processor's cache meanwhile, where the machine has one. Any address will do.
    #[inline(always)]
    fn will_read(start: *const u8, len_bytes: usize) {
        let _ = (start, len_bytes);
    }
}

/// A mutual exclusion lock; see [`Machine::Lock`].
pub trait Lock<T: Send>: Send + Sync {
    /// Holds the lock until dropped.
    type Guard<'a>: DerefMut<Target = T>
    where
        Self: 'a,
        T: 'a;
    /// A lock around `value`; `name` appears in lock statistics.
    fn new(name: &'static str, value: T) -> Self;
    /// Waits for the lock and takes it.
    #[track_caller]
    fn lock(&self) -> Self::Guard<'_>;
    /// Takes the lock if nobody holds it.
    #[track_caller]
    fn try_lock(&self) -> Option<Self::Guard<'_>>;
}

/// Statistics of locks that are made of words, which have to count themselves; see
/// [`Machine::Meter`].
pub trait Meter {
    /// It is told of all that such a lock does, at no cost on this machine. Otherwise, of a lock
    /// that was asked to, while [`Meter::is_on`].
    const ALWAYS: bool;
    /// Whether somebody asks at this moment; never, if it is told always.
    fn is_on() -> bool;
    /// The time of [`Machine::now`], at no cost to what is measured if it is told always.
    fn now() -> u64;
    /// Somebody had a lock of this name; after it was given up.
    fn count_hold(name: &'static str, hold: &Hold, counts: &LockCounts);
    /// Somebody went away without one after so long.
    fn count_rejection(name: &'static str, site: Site, wait_ns: u64);
}

/// An atomic 64-bit word alone on its cache line; see [`Machine::Word`].
///
/// # Safety
/// The block layer's locks are made of words. Every method is one atomic operation with the result
/// that it describes, and with at least the ordering given, as on `core::sync::atomic::AtomicU64`.
pub unsafe trait Word: Send + Sync {
    /// A word with this value.
    fn new(value: u64) -> Self;
    /// Reads it.
    fn load(&self, order: Order) -> u64;
    /// Writes it.
    fn store(&self, value: u64, order: Order);
    /// Writes it and returns what was there.
    fn swap(&self, value: u64, order: Order) -> u64;
    /// Adds, wrapping; returns what was there.
    fn fetch_add(&self, value: u64, order: Order) -> u64;
    /// Sets bits; returns what was there.
    fn fetch_or(&self, value: u64, order: Order) -> u64;
    /// Keeps only these bits; returns what was there.
    fn fetch_and(&self, value: u64, order: Order) -> u64;
    /// Writes `new` if the word is `old`: `Ok(old)`, or `Err` with what is there.
    ///
    /// # Errors
    /// The value found, if it is not `old`.
    fn compare_exchange(&self, old: u64, new: u64, order: Order, fail: Order) -> Result<u64, u64>;
}

/// Data handed between CPUs under another synchronisation; charged per 64 bytes touched.
///
/// Whoever dereferences a pointer upholds, by that other synchronisation, that nobody writes
/// meanwhile (`read`), or that nobody else touches it (`write`).
///
/// # Safety
/// The block layer dereferences the pointers. All of them are to the one value that `new` was
/// given, which the line neither moves nor touches until it is dropped itself; `write` and `held`
/// may be written through.
///
/// Safe code cannot implement it:
///
/// ```compile_fail,E0200
/// use millrace_machine::Line;
///
/// struct Wild;
/// impl<T: Send> Line<T> for Wild {
///     fn new(_: T) -> Wild {
///         Wild
///     }
///     fn read(&self) -> *const T {
///         64 as *const T
///     }
///     fn write(&self) -> *mut T {
///         64 as *mut T
///     }
///     fn held(&self) -> *mut T {
///         64 as *mut T
///     }
/// }
/// ```
pub unsafe trait Line<T: Send>: Send + Sync {
    /// A line with this value.
    fn new(value: T) -> Self;
    /// The data, charged as a read.
    fn read(&self) -> *const T;
    /// The data, charged as a write.
    fn write(&self) -> *mut T;
    /// The data again, by a CPU that has just been charged for it.
    fn held(&self) -> *mut T;
}

/// A statistic; see [`Machine::Counter`].
pub trait Counter: Send + Sync {
    /// Zero.
    fn new() -> Self;
    /// Adds; only one thread at a time may write.
    fn add(&self, value: u64);
    /// Raises to at least `value`; only one thread at a time may write.
    fn raise(&self, value: u64);
    /// The present value, perhaps a little old.
    fn get(&self) -> u64;
}

/// Sleeps one thread until another wakes it; see [`Machine::Parker`].
pub trait Parker: Clone + Send + Sync {
    /// A parker with no wake-up pending.
    fn new() -> Self;
    /// Sleeps until [`Parker::unpark`] was called or `now()` reaches `deadline_ns`; uses up the
    /// wake-up. May return early.
    fn park(&self, deadline_ns: Option<u64>);
    /// Wakes the sleeper, or lets its next `park` return at once.
    fn unpark(&self);
}

/// A started thread; see [`Machine::spawn`].
pub trait Thread: Send {
    /// Waits for its end; false if it panicked.
    fn join(self) -> bool;
}

/// Polls `ready` at most `tries` times through [`Machine::spin_until`]'s rules, then yields.
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

/// Safe code implements no word either:
///
/// ```compile_fail,E0200
/// use millrace_machine::{Order, Word};
///
/// struct Deaf;
/// impl Word for Deaf {
///     fn new(_: u64) -> Deaf {
///         Deaf
///     }
///     fn load(&self, _: Order) -> u64 {
///         0
///     }
///     fn store(&self, _: u64, _: Order) {}
///     fn swap(&self, _: u64, _: Order) -> u64 {
///         0
///     }
///     fn fetch_add(&self, _: u64, _: Order) -> u64 {
///         0
///     }
///     fn fetch_or(&self, _: u64, _: Order) -> u64 {
///         0
///     }
///     fn fetch_and(&self, _: u64, _: Order) -> u64 {
///         0
///     }
///     fn compare_exchange(&self, old: u64, _: u64, _: Order, _: Order) -> Result<u64, u64> {
///         Ok(old)
///     }
/// }
/// ```
///
/// Nor a machine, whose fences would order nothing:
///
/// ```compile_fail,E0200
/// use millrace_machine::*;
///
/// #[derive(Clone, Copy, Debug)]
/// struct Loose;
/// impl Machine for Loose {
///     type Lock<T: Send> = NativeLock<T>;
///     type Word = <Native as Machine>::Word;
///     type Line<T: Send> = <Native as Machine>::Line<T>;
///     type Counter = <Native as Machine>::Counter;
///     type Parker = NativeParker;
///     type Thread = NativeThread;
///     type Meter = NativeMeter;
///     const THREADS_MOVE: bool = true;
///     fn now() -> u64 {
///         Native::now()
///     }
///     fn cpu() -> CpuId {
///         Native::cpu()
///     }
///     fn topology() -> Topology {
///         Native::topology()
///     }
///     fn fence(_: Order) {}
///     fn spawn(name: &str, cpu: Option<CpuId>, body: Box<dyn FnOnce() + Send>) -> NativeThread {
///         Native::spawn(name, cpu, body)
///     }
///     fn spin_until(deadline_ns: u64, ready: impl FnMut() -> bool) -> bool {
///         Native::spin_until(deadline_ns, ready)
///     }
///     fn is_panicking() -> bool {
///         false
///     }
///     fn work(_: Stage, _: u32) {}
/// }
/// ```
#[cfg(all(doctest, feature = "std"))]
struct SafeCode;
