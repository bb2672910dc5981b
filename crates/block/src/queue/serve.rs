//! `ServeLock`: a try-lock whose holder serves a hardware queue. A thread that finds the lock held
//! sets a flag and leaves, and the holder then serves the queue once more.
//!
//! The lock consists of one word (free, held, held and flagged) and the value that it protects.
//! Threads that run a hardware queue take the lock. Entering and leaving take one atomic operation
//! each, and no fence. No work is lost: a thread that finds the lock held publishes its work before
//! it sets the flag, and the holder cannot leave while the flag is set. Lock statistics cost
//! nothing while they are off: while they are on, another bit in the word makes both atomic
//! operations fail, and only the failure path checks for statistics. The thread that enables
//! statistics sets the bit, and the first thread to enter after they are disabled clears it; while
//! it is clear, `hold` is empty. Kernel counterpart: the bit lock and re-run flag of
//! `blk_mq_run_hw_queue`.
#![allow(unsafe_code)]

use core::ops::{Deref, DerefMut};
use core::panic::Location;

use millrace_machine::{Hold, Line, LockCounts, Machine, Meter, Order, Site, Word};

const FREE: u64 = 0;
const HELD: u64 = 1;
/// Bit that is set in addition to `HELD` if a thread found the lock held and left work for its
/// holder.
const FLAG: u64 = 2;
/// Bit that is set while the lock's statistics are on, alone or together with `HELD` and `FLAG`.
const METERED: u64 = 4;

const NAME: &str = "serve";

pub(crate) struct ServeLock<M: Machine, T: Send> {
    state: M::Word,
    value: M::Line<T>,
    /// Call site and time at which the lock was taken, if statistics were on.
    hold: M::Line<Option<Hold>>,
}

impl<M: Machine, T: Send> ServeLock<M, T> {
    pub(crate) fn new(value: T) -> Self {
        let (value, hold) = (M::Line::new(value), M::Line::new(None));
        ServeLock { state: M::Word::new(FREE), value, hold }
    }

    #[inline(always)]
    #[track_caller]
    pub(crate) fn try_enter(&self) -> Option<ServeGuard<'_, M, T>> {
        let entered = self.attempt(Location::caller(), None);
        if entered.is_none() {
            Self::count_rejection(Location::caller(), None);
        }
        entered
    }

    pub(crate) fn is_held(&self) -> bool {
        // Relaxed: callers check again before they rely on the answer.
        self.state.load(Order::Relaxed) & HELD != 0
    }

    /// Takes the lock, or sets the flag that makes its holder serve again. The caller must publish
    /// its work before this call.
    #[track_caller]
    pub(crate) fn enter_or_flag(&self) -> Option<ServeGuard<'_, M, T>> {
        let site = Location::caller();
        loop {
            let entered = self.attempt(site, None);
            if entered.is_some() {
                return entered;
            }
            if self.flag() {
                Self::count_rejection(site, None);
                return None;
            }
        }
    }

    #[inline]
    #[track_caller]
    pub(crate) fn enter_within(&self, wait_ns: u64) -> Option<ServeGuard<'_, M, T>> {
        let entered = self.attempt(Location::caller(), None);
        if entered.is_some() { entered } else { self.wait_to_enter(wait_ns, Location::caller()) }
    }

    /// Takes the lock; spins until it is free.
    #[track_caller]
    pub(crate) fn enter(&self) -> ServeGuard<'_, M, T> {
        let (site, mut tried_ns, mut entered) = (Location::caller(), None, None);
        M::spin_until(u64::MAX, || {
            entered = self.attempt(site, tried_ns);
            if entered.is_none() && tried_ns.is_none() && Self::counts() {
                tried_ns = Some(M::Meter::now());
            }
            entered.is_some()
        });
        entered.expect("a spin without a deadline must end with the lock taken")
    }

    #[inline(never)]
    fn wait_to_enter(&self, wait_ns: u64, site: Site) -> Option<ServeGuard<'_, M, T>> {
        let (mut entered, tried_ns) = (None, Self::counts().then(M::Meter::now));
        if wait_ns > 0 {
            M::spin_until(M::now().saturating_add(wait_ns), || {
                // Relaxed: a plain read does not take the word's cache line away from the holder.
                if self.state.load(Order::Relaxed) & HELD == 0 {
                    entered = self.attempt(site, tried_ns);
                }
                entered.is_some()
            });
        }
        if entered.is_none() {
            Self::count_rejection(site, tried_ns);
        }
        entered
    }

    /// Takes the lock if it is free. For statistics, `tried_ns` is the time of the caller's first
    /// failed attempt, if any.
    #[inline(always)]
    fn attempt(&self, site: Site, tried_ns: Option<u64>) -> Option<ServeGuard<'_, M, T>> {
        // Acquire pairs with the Release of `leave`. Relaxed: if the exchange fails, no data is
        // read.
        match self.state.compare_exchange(FREE, HELD, Order::Acquire, Order::Relaxed) {
            Ok(_) => {
                if M::Meter::ALWAYS {
                    self.set_hold(Some(Hold::begin(site, M::Meter::now(), tried_ns)));
                }
                Some(ServeGuard { lock: self })
            }
            Err(METERED) => self.attempt_counting(site, tried_ns),
            Err(_) => None,
        }
    }

    #[cold]
    #[inline(never)]
    fn attempt_counting(&self, site: Site, tried_ns: Option<u64>) -> Option<ServeGuard<'_, M, T>> {
        let counts = M::Meter::is_on();
        let held = if counts { HELD | METERED } else { HELD };
        // Acquire pairs with the Release of `leave`. Relaxed: if the exchange fails, no data is
        // read.
        self.state.compare_exchange(METERED, held, Order::Acquire, Order::Relaxed).ok()?;
        self.set_hold(counts.then(|| Hold::begin(site, M::Meter::now(), tried_ns)));
        if !counts && M::Meter::is_on() {
            // If another thread has turned lock statistics on since the call of `is_on`, the
            // exchange above has cleared the `METERED` bit. So set the bit again.
            self.meter();
        }
        Some(ServeGuard { lock: self })
    }

    /// Sets `FLAG`, so that the lock's holder runs another dispatch round. Returns false if the
    /// lock is free, or if another thread changed `state` meanwhile.
    fn flag(&self) -> bool {
        // Release pairs with the Acquire in `leave`, which fails while `FLAG` is set. So the lock's
        // holder sees the work that this thread has queued.
        match self.state.compare_exchange(HELD, HELD | FLAG, Order::Release, Order::Relaxed) {
            Ok(_) => true,
            Err(found) if found & HELD == 0 => false,
            // The lock is held, and `FLAG` or `METERED` is set. `FLAG` must be written even if it
            // is set: only a Release store by this thread publishes the work of this thread.
            Err(found) => {
                // Release pairs with the Acquire in `ServeGuard::leave` and `ServeGuard::stay`.
                // Relaxed: after a failed exchange, the caller tries again.
                let (release, relaxed) = (Order::Release, Order::Relaxed);
                self.state.compare_exchange(found, found | FLAG, release, relaxed).is_ok()
            }
        }
    }

    /// Enables the lock's statistics for as long as [`Meter::is_on`] returns true. The present
    /// holder's time is not counted.
    pub(crate) fn meter(&self) {
        // Relaxed: this bit publishes no data; taking and releasing the lock does.
        self.state.fetch_or(METERED, Order::Relaxed);
    }

    /// Returns true if failed attempts to take the lock are counted.
    #[inline]
    fn counts() -> bool {
        M::Meter::ALWAYS || M::Meter::is_on()
    }

    #[inline]
    fn count_rejection(site: Site, tried_ns: Option<u64>) {
        if Self::counts() {
            let wait_ns = tried_ns.map_or(0, |tried| M::Meter::now().saturating_sub(tried));
            M::Meter::count_rejection(NAME, site, wait_ns);
        }
    }

    /// Stores the call site and the time at which the lock was taken, for statistics. Only the
    /// holder may call this function.
    fn set_hold(&self, hold: Option<Hold>) {
        // SAFETY: only the holder calls this, so no other thread accesses the value.
        unsafe { *self.hold.held() = hold };
    }

    /// Returns the call site and the time at which the holder took the lock, and the counts of this
    /// hold for lock statistics. Returns `None` if statistics were off when the lock was taken.
    /// Only the holder may call this function.
    fn ended(&self) -> Option<(Hold, LockCounts)> {
        // SAFETY: only the holder calls this, so no other thread accesses the value.
        let hold = unsafe { *self.hold.held() }?;
        Some((hold, hold.counts(M::Meter::now())))
    }
}

fn count<M: Machine>(ended: Option<(Hold, LockCounts)>) {
    if let Some((hold, counts)) = ended {
        M::Meter::count_hold(NAME, &hold, &counts);
    }
}

pub(crate) struct ServeGuard<'a, M: Machine, T: Send> {
    lock: &'a ServeLock<M, T>,
}

impl<M: Machine, T: Send> ServeGuard<'_, M, T> {
    /// Releases the lock. If another thread has set `FLAG` because it left work, clears `FLAG` and
    /// keeps the lock instead, so that the holder serves the queue again.
    #[inline]
    pub(crate) fn leave(self) -> Option<Self> {
        let state = &self.lock.state;
        let ended = if M::Meter::ALWAYS { self.lock.ended() } else { None };
        // On success, Release pairs with the Acquire of the thread that takes the lock next
        // (`try_enter`). On failure, Acquire pairs with the Release of the thread that has set
        // `FLAG`. So the lock's holder sees the work that the other thread has queued.
        match state.compare_exchange(HELD, FREE, Order::Release, Order::Acquire) {
            Ok(_) => {
                core::mem::forget(self);
                if M::Meter::ALWAYS {
                    count::<M>(ended);
                }
                None
            }
            Err(found) if found & METERED != 0 => self.leave_counting(),
            Err(_) => Some(self.stay()),
        }
    }

    #[cold]
    #[inline(never)]
    fn leave_counting(self) -> Option<Self> {
        let (lock, ended) = (self.lock, self.lock.ended());
        let free = if M::Meter::is_on() { METERED } else { FREE };
        if free == FREE {
            lock.set_hold(None);
        }
        // Release pairs with the Acquire of the next holder, who sees all changes to the value.
        let held = HELD | METERED;
        if lock.state.compare_exchange(held, free, Order::Release, Order::Acquire).is_err() {
            return Some(self.stay());
        }
        core::mem::forget(self);
        count::<M>(ended);
        if free == FREE && M::Meter::is_on() {
            // Another thread enabled statistics while this thread released the lock. The release
            // has cleared that thread's `METERED` bit, so set the bit again.
            lock.meter();
        }
        None
    }

    /// Clears `FLAG` and keeps the lock, because a thread has left work for the lock's holder.
    #[inline]
    fn stay(self) -> Self {
        // Acquire pairs with the Release of each thread that has set `FLAG` after queueing work.
        // The next dispatch round of the lock's holder sees that work.
        self.lock.state.fetch_and(!FLAG, Order::Acquire);
        self
    }
}

impl<M: Machine, T: Send> Drop for ServeGuard<'_, M, T> {
    fn drop(&mut self) {
        let (state, ended) = (&self.lock.state, self.lock.ended());
        self.lock.set_hold(None);
        // Release pairs with the Acquire of the next `try_enter`. Unlike `leave`, this store clears
        // a `FLAG` that another thread has set, and the holder does not do the work that the other
        // thread left. So a `ServeGuard` is dropped only in three cases:
        // - No thread sets `FLAG`.
        // - The other threads check for pending work before they sleep (`QueueContext::serve`).
        // - The holder panics.
        if M::Meter::ALWAYS {
            state.store(FREE, Order::Release);
        } else {
            state.fetch_and(METERED, Order::Release);
        }
        count::<M>(ended);
    }
}

impl<M: Machine, T: Send> Deref for ServeGuard<'_, M, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the state word makes this the only `ServeGuard`.
        unsafe { &*self.lock.value.held() }
    }
}

impl<M: Machine, T: Send> DerefMut for ServeGuard<'_, M, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the state word makes this the only `ServeGuard`.
        unsafe { &mut *self.lock.value.held() }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use alloc::vec::Vec;
    use millrace_machine::{LockMeter, LockRow, Native};

    #[test]
    fn latecomer_makes_the_server_stay_once() {
        let lock = ServeLock::<Native, u32>::new(0);
        let serving = lock.try_enter().expect("free");
        assert!(lock.enter_or_flag().is_none());
        assert!(lock.enter_or_flag().is_none());
        let serving = serving.leave().expect("flagged");
        assert!(serving.leave().is_none());
        assert!(lock.try_enter().is_some());
    }

    #[test]
    fn only_whoever_is_inside_can_be_made_to_go_round_again() {
        let lock = ServeLock::<Native, u32>::new(0);
        for metered in [false, true] {
            assert!(!lock.flag(), "the lock is free");
            let serving = lock.try_enter().expect("the failed flag leaves the lock free");
            assert!(lock.flag() && lock.flag());
            drop(serving);
            if !metered {
                lock.meter();
            }
        }
        assert!(!lock.flag());
        assert!(lock.try_enter().is_some());
    }

    #[test]
    fn who_waits_a_while_enters_when_the_server_leaves_meanwhile() {
        use core::sync::atomic::{AtomicBool, Ordering};
        for _ in 0..50 {
            let (lock, late) = (ServeLock::<Native, u32>::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let serving = lock.try_enter().expect("free");
                let late = &late;
                scope.spawn(move || {
                    while !late.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    drop(serving);
                });
                late.store(true, Ordering::SeqCst);
                *lock.enter_within(60_000_000_000).expect("the holder leaves at once") += 1;
            });
            assert_eq!(*lock.try_enter().expect("free"), 1);
        }
    }

    const ROUND_FIRST: u32 = line!();

    /// Enters and leaves once, while a second thread leaves a flag or tries to enter.
    fn round(lock: &ServeLock<Native, u32>) {
        let serving = lock.enter_within(1_000).expect("free");
        assert!(lock.try_enter().is_none());
        assert!(lock.enter_within(2_000).is_none());
        assert!(lock.enter_or_flag().is_none());
        assert!(serving.leave().expect("flagged").leave().is_none());
        drop(lock.enter());
    }

    const ROUND_LAST: u32 = line!();

    #[test]
    fn asker_is_told_of_holds_and_latecomers_until_it_stops() {
        let meter = loop {
            match LockMeter::start() {
                Some(meter) => break meter,
                None => std::thread::yield_now(),
            }
        };
        // Statistics of locks in other tests, which may run at the same time, are ignored.
        let is_own = |line: u32| (ROUND_FIRST..ROUND_LAST).contains(&line);
        let own = |row: &LockRow| {
            row.site.is_some_and(|site| site.file.ends_with("serve.rs") && is_own(site.line))
        };
        let rows = || meter.rows().into_iter().filter(own).collect::<Vec<_>>();
        let lock = ServeLock::<Native, u32>::new(0);
        let inside = lock.try_enter().expect("free");
        lock.meter();
        assert!(inside.leave().is_none(), "entered before, so not counted");
        assert_eq!(rows(), []);
        round(&lock);
        let counts: Vec<_> = rows().iter().map(|row| row.counts).collect();
        let numbers: Vec<_> =
            counts.iter().map(|one| (one.acquisitions, one.contended, one.rejected)).collect();
        assert_eq!(numbers, [(1, 0, 0), (0, 1, 1), (0, 1, 1), (0, 1, 1), (1, 0, 0)]);
        assert!(counts[0].hold_ns >= 2_000 && counts[2].wait_ns >= 2_000, "{counts:?}");
        assert_eq!((counts[1].wait_ns, counts[3].wait_ns), (0, 0));
        let inside = lock.try_enter().expect("free");
        drop(meter);
        assert!(inside.leave().is_none());
        assert_eq!(lock.state.load(Order::Relaxed), FREE, "the lock no longer counts statistics");
        round(&lock);
    }
}
