//! `Native`: the machine that the process runs on.
//!
//! Each primitive is the ordinary one: std's mutex, atomics, parking on an eventfd instead of a
//! futex, and the time-stamp counter where it is invariant. Parking uses an eventfd so that the
//! same doorbell wakes a plain thread and a thread that sleeps in its io_uring. Invariant: no
//! primitive does more than its name says, except that a lock checks if lock statistics are on
//! (native_lock.rs); `cargo xtask primitives` compares the generated instructions.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::boxed::Box;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

use crate::lock_meter::NativeMeter;
use crate::native_lock::NativeLock;
use crate::{Counter, CpuId, Line, Machine, Order, Parker, Stage, Topology, Word, lock_unpoisoned};

mod thread;
pub use thread::{NativeThread, ThreadRefused, run_on_any_cpu, thread_limits};

const NS_PER_S: u64 = 1_000_000_000;
const NS_PER_MS: u64 = 1_000_000;
#[cfg(target_arch = "x86_64")]
const CACHE_LINE_BYTES: usize = 64;

/// The machine that the process runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Native;

impl Native {
    /// Returns how often the kernel preempted the calling thread in favour of another one.
    #[must_use]
    pub fn preemptions() -> u64 {
        // SAFETY: all-zero bytes are a valid rusage, and the call fills this live local.
        let usage = unsafe {
            let mut usage: libc::rusage = core::mem::zeroed();
            libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
            usage
        };
        usage.ru_nivcsw as u64
    }
}

// SAFETY: `fence` is the standard library's.
unsafe impl Machine for Native {
    type Lock<T: Send> = NativeLock<T>;
    type Word = NativeWord;
    type Line<T: Send> = NativeLine<T>;
    type Counter = NativeCounter;
    type Parker = NativeParker;
    type Thread = NativeThread;
    type Meter = NativeMeter;

    const THREADS_MOVE: bool = true;

    #[inline(always)]
    fn now() -> u64 {
        clock::now_ns()
    }

    #[inline]
    fn cpu() -> CpuId {
        // SAFETY: sched_getcpu has no preconditions.
        let cpu = unsafe { libc::sched_getcpu() };
        CpuId(u32::try_from(cpu).unwrap_or(0))
    }

    fn topology() -> Topology {
        known_topology(allowed_cpus())
    }

    #[inline]
    fn fence(order: Order) {
        fence(order);
    }

    fn spawn(name: &str, cpu: Option<CpuId>, body: Box<dyn FnOnce() + Send>) -> NativeThread {
        Native::try_spawn(name, cpu, body).expect("a thread")
    }

    fn is_panicking() -> bool {
        std::thread::panicking()
    }

    #[inline]
    fn spin_until(deadline_ns: u64, mut ready: impl FnMut() -> bool) -> bool {
        let mut turns = 0u32;
        loop {
            if ready() {
                return true;
            }
            turns += 1;
            if turns.is_multiple_of(64) {
                if Native::now() >= deadline_ns {
                    return false;
                }
                // Yields, because the awaited thread may need this CPU.
                std::thread::yield_now();
            }
            core::hint::spin_loop();
        }
    }

    #[inline]
    fn work(_stage: Stage, _units: u32) {}

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn will_read(start: *const u8, len_bytes: usize) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for at in (0..len_bytes).step_by(CACHE_LINE_BYTES) {
            // SAFETY: SSE is part of the architecture, and a hint faults at no address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(at).cast()) };
        }
    }
}

/// Returns the topology of the CPUs that the process may use. Reading sysfs takes a dozen system
/// calls, so the topology is read again only when the set of allowed CPUs has changed.
fn known_topology(allowed: Vec<CpuId>) -> Topology {
    static KNOWN: Mutex<Option<(Vec<CpuId>, Topology)>> = Mutex::new(None);
    let mut known = lock_unpoisoned(&KNOWN);
    if let Some((_, topology)) = known.as_ref().filter(|(cpus, _)| *cpus == allowed) {
        return topology.clone();
    }
    let topology = crate::topology_from(Path::new("/sys/devices/system"), &allowed);
    *known = Some((allowed, topology.clone()));
    topology
}

fn allowed_cpus() -> Vec<CpuId> {
    let set = allowed_set();
    // SAFETY: CPU_ISSET reads inside the set for numbers below CPU_SETSIZE.
    let is_set = |cpu: &u32| unsafe { libc::CPU_ISSET(*cpu as usize, &set) };
    (0..libc::CPU_SETSIZE as u32).filter(is_set).map(CpuId).collect()
}

fn allowed_set() -> libc::cpu_set_t {
    // SAFETY: cpu_set_t is plain bits; the call writes at most its size.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::sched_getaffinity(libc::getpid(), size_of::<libc::cpu_set_t>(), &raw mut set);
        set
    }
}

/// Pins the calling thread to a CPU. Does nothing if there is no such CPU.
fn pin_to(cpu: CpuId) {
    if cpu.0 >= libc::CPU_SETSIZE as u32 {
        return;
    }
    // SAFETY: the number is below CPU_SETSIZE, so CPU_SET writes inside the set.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(cpu.0 as usize, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

/// An atomic on its own pair of cache lines (the adjacent-line prefetcher fetches lines in pairs).
#[derive(Debug)]
#[repr(align(128))]
pub struct NativeWord(AtomicU64);

impl NativeWord {
    /// Creates a word with the value 0.
    #[must_use]
    pub const fn zero() -> NativeWord {
        NativeWord(AtomicU64::new(0))
    }
}

// SAFETY: each method is that of the standard library's atomic.
unsafe impl Word for NativeWord {
    #[inline]
    fn new(value: u64) -> Self {
        NativeWord(AtomicU64::new(value))
    }
    #[inline]
    fn load(&self, order: Order) -> u64 {
        self.0.load(order)
    }
    #[inline]
    fn store(&self, value: u64, order: Order) {
        self.0.store(value, order);
    }
    #[inline]
    fn swap(&self, value: u64, order: Order) -> u64 {
        self.0.swap(value, order)
    }
    #[inline]
    fn fetch_add(&self, value: u64, order: Order) -> u64 {
        self.0.fetch_add(value, order)
    }
    #[inline]
    fn fetch_or(&self, value: u64, order: Order) -> u64 {
        self.0.fetch_or(value, order)
    }
    #[inline]
    fn fetch_and(&self, value: u64, order: Order) -> u64 {
        self.0.fetch_and(value, order)
    }
    #[inline]
    fn compare_exchange(&self, old: u64, new: u64, order: Order, fail: Order) -> Result<u64, u64> {
        self.0.compare_exchange(old, new, order, fail)
    }
}

/// Data in ordinary memory that several CPUs use. A lock or atomic words must order the accesses.
#[derive(Debug)]
pub struct NativeLine<T>(UnsafeCell<T>);

// SAFETY: a line only hands out raw pointers, whose users must ensure exclusive access.
unsafe impl<T: Send> Sync for NativeLine<T> {}

// SAFETY: the pointers are to the cell inside, which nothing else touches.
unsafe impl<T: Send> Line<T> for NativeLine<T> {
    #[inline]
    fn new(value: T) -> Self {
        NativeLine(UnsafeCell::new(value))
    }
    #[inline]
    fn read(&self) -> *const T {
        self.0.get()
    }
    #[inline]
    fn write(&self) -> *mut T {
        self.0.get()
    }
    #[inline]
    fn held(&self) -> *mut T {
        self.0.get()
    }
}

/// A counter written with plain loads and stores: one writer at a time, no locked instruction.
#[derive(Debug)]
pub struct NativeCounter(AtomicU64);

impl Counter for NativeCounter {
    #[inline]
    fn new() -> Self {
        NativeCounter(AtomicU64::new(0))
    }
    #[inline]
    fn add(&self, value: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(value);
        self.0.store(sum, Ordering::Relaxed);
    }
    #[inline]
    fn raise(&self, value: u64) {
        if value > self.0.load(Ordering::Relaxed) {
            self.0.store(value, Ordering::Relaxed);
        }
    }
    #[inline]
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Sleeps on an eventfd, which an io_uring can watch as well.
#[derive(Debug, Clone)]
pub struct NativeParker(Arc<OwnedFd>);

impl NativeParker {
    /// Creates a parker that wakes its owner through `fd`; an io_uring may watch `fd` as well.
    #[must_use]
    pub fn from_eventfd(fd: Arc<OwnedFd>) -> Self {
        NativeParker(fd)
    }

    fn poll(&self, timeout_ms: i32) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd for the length of the call.
        unsafe { libc::poll(&raw mut poll, 1, timeout_ms) > 0 }
    }
}

impl Parker for NativeParker {
    fn new() -> Self {
        Self::try_new().expect("cannot create an eventfd")
    }

    fn try_new() -> Result<Self, i32> {
        // SAFETY: eventfd has no memory arguments.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
        }
        // SAFETY: the descriptor is open, and owned here alone.
        Ok(NativeParker(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    fn park(&self, deadline_ns: Option<u64>) {
        let timeout_ms = match deadline_ns {
            None => -1,
            Some(deadline) => {
                let left = deadline.saturating_sub(Native::now());
                i32::try_from(left.div_ceil(NS_PER_MS)).unwrap_or(i32::MAX)
            }
        };
        if self.poll(timeout_ms) {
            let mut count = 0u64;
            // SAFETY: eight bytes of a local; nonblocking, so losing a race to read is harmless.
            unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
        }
    }

    fn unpark(&self) {
        let one = 1u64;
        // SAFETY: eight bytes of a local. If the counter is full (EAGAIN), a wake-up is pending.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

/// Returns nanoseconds from the time-stamp counter if it is invariant, otherwise from
/// CLOCK_MONOTONIC.
mod clock {
    use core::sync::atomic::{AtomicU64, Ordering};
    use std::sync::Once;

    use super::NS_PER_S;

    struct ClockCalibration {
        /// Nanoseconds per 2^32 ticks of the time-stamp counter; 0 before the calibration, or if
        /// the counter is not invariant.
        mult: AtomicU64,
        /// Nanoseconds to add to the scaled time-stamp counter, so that the sum equals
        /// CLOCK_MONOTONIC at the time of the calibration.
        offset_ns: AtomicU64,
    }

    static CLOCK: ClockCalibration =
        ClockCalibration { mult: AtomicU64::new(0), offset_ns: AtomicU64::new(0) };

    #[inline(always)]
    pub(super) fn now_ns() -> u64 {
        // Acquire pairs with the Release in `calibrate`, which stores `offset_ns` before `mult`.
        let mult = CLOCK.mult.load(Ordering::Acquire);
        if mult == 0 {
            return uncalibrated_ns();
        }
        scaled(tsc(), mult).wrapping_add(CLOCK.offset_ns.load(Ordering::Relaxed))
    }

    #[inline]
    fn scaled(ticks: u64, mult: u64) -> u64 {
        ((u128::from(ticks) * u128::from(mult)) >> 32) as u64
    }

    #[cold]
    fn uncalibrated_ns() -> u64 {
        static ONCE: Once = Once::new();
        ONCE.call_once(calibrate);
        match CLOCK.mult.load(Ordering::Acquire) {
            0 => monotonic_ns(),
            _ => now_ns(),
        }
    }

    pub(super) fn monotonic_ns() -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes one timespec; CLOCK_MONOTONIC always exists.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
        time.tv_sec as u64 * NS_PER_S + time.tv_nsec as u64
    }

    /// Returns the result of `read`, and CLOCK_MONOTONIC at nearly the same moment. Retries up to
    /// 100 times until both are read within 2 us, because the thread may lose its CPU in between.
    pub(super) fn with_monotonic_ns(read: impl Fn() -> u64) -> (u64, u64) {
        let (mut best, mut best_gap_ns) = ((0, 0), u64::MAX);
        for _ in 0..100 {
            let before_ns = monotonic_ns();
            let value = read();
            let gap_ns = monotonic_ns() - before_ns;
            if gap_ns < best_gap_ns {
                (best, best_gap_ns) = ((value, before_ns + gap_ns / 2), gap_ns);
            }
            if best_gap_ns <= 2_000 {
                break;
            }
        }
        best
    }

    /// Measures the counter's rate for five milliseconds, with an error of about 10 ppm. The clock
    /// is therefore fit for intervals only.
    fn calibrate() {
        if !invariant() {
            return;
        }
        let (tsc_base, base_ns) = with_monotonic_ns(tsc);
        while monotonic_ns() - base_ns < 5_000_000 {
            core::hint::spin_loop();
        }
        let (tsc_end, end_ns) = with_monotonic_ns(tsc);
        let ticks = tsc_end.wrapping_sub(tsc_base).max(1);
        let elapsed_ns = end_ns - base_ns;
        let mult = ((u128::from(elapsed_ns) << 32) / u128::from(ticks)) as u64;
        CLOCK.offset_ns.store(base_ns.wrapping_sub(scaled(tsc_base, mult)), Ordering::Relaxed);
        CLOCK.mult.store(mult, Ordering::Release);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn tsc() -> u64 {
        // SAFETY: every x86_64 CPU has the instruction; Linux leaves it enabled in user mode.
        unsafe { core::arch::x86_64::_rdtsc() }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn tsc() -> u64 {
        0
    }

    /// Checks CPUID 0x8000_0007 EDX bit 8: the counter ticks at one rate in all power states.
    #[cfg(target_arch = "x86_64")]
    fn invariant() -> bool {
        use core::arch::x86_64::__cpuid;
        __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn invariant() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Doorbell, Thread};

    #[test]
    fn clock_agrees_with_clock_monotonic_within_a_percent() {
        let (start, mono) = clock::with_monotonic_ns(Native::now);
        std::thread::sleep(std::time::Duration::from_millis(50));
        let (end, mono_end) = clock::with_monotonic_ns(Native::now);
        let (ours, theirs) = (end - start, mono_end - mono);
        assert!(ours.abs_diff(theirs) < theirs / 100, "{ours} against {theirs}");
    }

    #[test]
    fn a_pinned_thread_sees_the_machine_of_its_process() {
        let whole = Native::topology();
        for cpu in whole.cpus().to_vec() {
            let whole = whole.clone();
            let look = move || assert_eq!(Native::topology().cpus(), whole.cpus());
            let thread = Native::spawn("pinned", Some(cpu.id), Box::new(look));
            assert!(thread.join(), "{cpu:?}");
        }
    }

    #[test]
    fn clocks_that_were_read_too_far_apart_are_read_again() {
        let reads = core::cell::Cell::new(0);
        let (number, _) = clock::with_monotonic_ns(|| {
            reads.set(reads.get() + 1);
            if reads.get() <= 3 {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            reads.get()
        });
        assert!((4..=100).contains(&number), "reading {number}");
    }

    #[test]
    fn ring_before_sleep_is_not_lost() {
        let bell = Doorbell::<Native>::new(NativeParker::new());
        bell.arm();
        bell.ring();
        let start = Native::now();
        bell.parker_for_test().park(Some(start + 5_000_000_000));
        assert!(Native::now() - start < 4_000_000_000);
    }

    #[test]
    fn park_returns_at_its_deadline() {
        let parker = NativeParker::new();
        let start = Native::now();
        parker.park(Some(start + 20_000_000));
        assert!(Native::now() - start >= 19_000_000);
    }

    #[test]
    fn bell_rung_by_another_thread_ends_the_sleep() {
        let bell = Arc::new(Doorbell::<Native>::new(NativeParker::new()));
        let ringer = Arc::clone(&bell);
        let thread = Native::spawn(
            "ringer",
            None,
            Box::new(move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                ringer.ring();
            }),
        );
        bell.sleep_unless(Some(Native::now() + 10_000_000_000), || false);
        assert!(thread.join());
    }
}
