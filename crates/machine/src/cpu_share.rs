//! `CpuShare`: lets a thread poll without keeping its CPU from other threads.
//!
//! A thread that polls for another thread's result delays that thread if both are on the same CPU.
//! The kernel does not tell a thread that another one wants its CPU, so the poller yields the CPU:
//! - The first yield comes after 2 us without a result.
//! - If a yield let another thread run, the next yield follows at once.
//! - Otherwise, the next yield comes when the total wait has doubled.
//!
//! If the other thread soon gives the CPU back (a client that sends its next request and waits),
//! taking turns costs less than a sleep. If the other thread keeps the CPU, the poll ends, and the
//! next polls are skipped, twice as many each time. A poller that sleeps may be woken on another,
//! free CPU.
//!
//! CPU time that only a hypervisor took does not count, because polling and sleeping threads lose
//! it alike. Kernel counterpart: `kvm_vcpu_can_poll`.

use crate::{Machine, Native};

/// Time that a poll runs before it first yields the CPU, in nanoseconds; about the cost of a yield.
const OFFER_NS: u64 = 2_000;
/// A yield that takes longer than this, in nanoseconds, has let another thread run.
const TAKEN_NS: u64 = 3_000;
/// Longest time, in nanoseconds, that another thread may run before it counts as keeping the CPU.
/// Sleeping is then better than polling, because the sleeper's wake-up preempts the other thread.
const KEPT_NS: u64 = 30_000;
/// Number of polls that are skipped after another thread has kept the CPU. Each further loss of the
/// CPU doubles the number.
const PAUSE_MIN: u32 = 16;
/// Maximum number of polls that are skipped in a row. If a poller's CPU is always shared, the
/// poller polls once in 65,536 waits, for up to 4 ms. That costs little.
const PAUSE_MAX: u32 = 1 << 16;
/// Number of successful polls after which the next pause is short again: [`PAUSE_MIN`] skipped
/// polls. If another thread keeps the CPU before that, the count starts again from 0.
const CALM: u32 = 1024;

/// Result of a poll, in which a thread repeatedly checks for work instead of sleeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Polled {
    /// True if the poll found work.
    pub came: bool,
    /// Duration of the poll, in nanoseconds.
    pub waited_ns: u64,
}

/// A poll in progress: a thread repeatedly checks for work instead of sleeping.
#[derive(Debug)]
pub struct Poll {
    start_ns: u64,
    until_ns: u64,
    seen_ns: u64,
    offer_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PollStep {
    Look,
    Offer,
    /// The poll's time is up, or its last two checks were more than `KEPT_NS` apart. In the second
    /// case `kept` is true: another thread may have kept the CPU.
    End {
        kept: bool,
    },
}

impl Poll {
    /// Starts a poll that ends no later than `until_ns`, a time of `Native::now`.
    #[inline]
    #[must_use]
    pub fn new(until_ns: u64) -> Poll {
        Poll::at(Native::now(), until_ns)
    }

    #[inline]
    fn at(start_ns: u64, until_ns: u64) -> Poll {
        Poll { start_ns, until_ns, seen_ns: start_ns, offer_ns: start_ns + OFFER_NS }
    }

    /// Records a check for work at `now_ns`. Returns true if the last check was so long ago that
    /// another thread may have kept the CPU since then.
    #[inline]
    fn looked(&mut self, now_ns: u64) -> bool {
        let kept = now_ns - self.seen_ns > KEPT_NS;
        self.seen_ns = now_ns;
        kept
    }

    #[inline]
    fn next(&mut self, now_ns: u64) -> PollStep {
        let kept = self.looked(now_ns);
        if kept || now_ns >= self.until_ns {
            return PollStep::End { kept };
        }
        if now_ns >= self.offer_ns { PollStep::Offer } else { PollStep::Look }
    }

    fn offered(&mut self, back_ns: u64) {
        let is_taken = back_ns - self.seen_ns > TAKEN_NS;
        let pause_ns = if is_taken { 0 } else { self.seen_ns - self.start_ns };
        self.offer_ns = back_ns + pause_ns;
    }
}

/// Lets a thread poll without keeping its CPU from other threads.
#[derive(Debug)]
pub struct CpuShare {
    taken: u64,
    pauses: PollPauses,
    /// Number of the CPU that another thread last took from this thread during a poll.
    lost: u32,
    times_lost: u64,
}

impl CpuShare {
    /// Creates the state of one thread, which has not found any CPU shared with other threads yet.
    #[must_use]
    #[allow(clippy::new_without_default)] // Each thread creates its own explicitly.
    pub fn new() -> CpuShare {
        CpuShare { taken: 0, pauses: PollPauses::default(), lost: u32::MAX, times_lost: 0 }
    }

    /// Returns true if the thread should poll before its next sleep. Call it once for each sleep.
    #[inline]
    pub fn may_poll(&mut self) -> bool {
        if self.pauses.left == 0 {
            return true;
        }
        if Native::cpu().0 != self.lost {
            self.pauses.moved();
        }
        self.pauses.next()
    }

    /// Returns true if the thread skips polls now, because it shares its CPU with another thread.
    #[inline]
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.pauses.left > 0
    }

    /// Returns how often a poll found that its CPU is shared.
    #[must_use]
    pub fn times_lost(&self) -> u64 {
        self.times_lost
    }

    /// Polls until there is work, until `until_ns`, or until another thread wants the CPU.
    #[inline]
    pub fn poll(&mut self, until_ns: u64, mut ready: impl FnMut() -> bool) -> Polled {
        let mut poll = Poll::new(until_ns);
        loop {
            if ready() {
                return self.hit(&mut poll);
            }
            if let Some(polled) = self.missed(&mut poll) {
                return polled;
            }
        }
    }

    /// Ends a poll whose last check found work.
    #[inline]
    pub fn hit(&mut self, poll: &mut Poll) -> Polled {
        let now_ns = Native::now();
        if poll.looked(now_ns) && self.was_taken() {
            self.lose();
        } else {
            self.pauses.caught();
        }
        Polled { came: true, waited_ns: now_ns - poll.start_ns }
    }

    /// Continues a poll after a check that found no work. Returns the result if the poll is over.
    #[inline]
    pub fn missed(&mut self, poll: &mut Poll) -> Option<Polled> {
        let now_ns = Native::now();
        match poll.next(now_ns) {
            PollStep::Look => {}
            PollStep::Offer => {
                // The preemption counter is read before the yield. If another thread runs during
                // the yield, the counter changes, and `was_taken` returns true.
                self.taken = Native::preemptions();
                std::thread::yield_now();
                poll.offered(Native::now());
            }
            PollStep::End { kept } => {
                let kept = kept && self.was_taken();
                if kept {
                    self.lose();
                }
                if kept || now_ns >= poll.until_ns {
                    return Some(Polled { came: false, waited_ns: now_ns - poll.start_ns });
                }
            }
        }
        core::hint::spin_loop();
        None
    }

    /// Returns true if the kernel gave the CPU to another thread since the preemption counter was
    /// last read. Returns false if an interrupt or another guest of the hypervisor took the CPU.
    #[cold]
    fn was_taken(&mut self) -> bool {
        let taken = Native::preemptions();
        std::mem::replace(&mut self.taken, taken) != taken
    }

    #[cold]
    fn lose(&mut self) {
        self.lost = Native::cpu().0;
        self.times_lost += 1;
        self.pauses.lost();
    }
}

#[derive(Debug, Clone, Copy)]
struct PollPauses {
    left: u32,
    /// Number of polls to skip after the next loss of the CPU to another thread.
    next: u32,
    caught: u32,
}

impl Default for PollPauses {
    fn default() -> Self {
        PollPauses { left: 0, next: PAUSE_MIN, caught: 0 }
    }
}

impl PollPauses {
    fn lost(&mut self) {
        *self = PollPauses { left: self.next, next: (self.next * 2).min(PAUSE_MAX), caught: 0 };
    }

    #[inline]
    fn caught(&mut self) {
        self.caught += 1;
        if self.caught >= CALM {
            *self = PollPauses::default();
        }
    }

    /// Lets the thread skip at most [`PAUSE_MIN`] more polls. Called when the thread has left the
    /// CPU that it shared with another thread.
    fn moved(&mut self) {
        self.left = self.left.min(PAUSE_MIN);
    }

    /// Counts a skipped poll. Returns true if the next poll is not skipped.
    fn next(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::boxed::Box;
    use std::sync::Arc;

    use crate::Thread;

    /// Number of polls left out after a loss.
    fn left_out(pauses: &mut PollPauses) -> u32 {
        pauses.lost();
        (1..).find(|_| pauses.next()).expect("pauses end")
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_end() {
        let mut pauses = PollPauses::default();
        let found: [u32; 4] = core::array::from_fn(|_| left_out(&mut pauses));
        assert_eq!(found, [16, 32, 64, 128]);
        let most = (0..20).map(|_| left_out(&mut pauses)).max();
        assert_eq!(most, Some(PAUSE_MAX));
        assert!(pauses.next(), "nothing is left out any more");
    }

    #[test]
    fn polls_that_catch_their_work_make_the_next_pause_short_again() {
        let mut pauses = PollPauses::default();
        (0..5).for_each(|_| pauses.lost());
        (1..CALM).for_each(|_| pauses.caught());
        assert_eq!(pauses.next, 512, "not yet");
        pauses.caught();
        assert_eq!((pauses.left, left_out(&mut pauses)), (0, PAUSE_MIN));
    }

    #[test]
    fn a_thread_that_moved_tries_again_soon() {
        let mut pauses = PollPauses::default();
        (0..10).for_each(|_| pauses.lost());
        assert!(pauses.left > 1000);
        pauses.moved();
        assert_eq!(pauses.left, PAUSE_MIN);
        pauses.next();
        pauses.moved();
        assert_eq!(pauses.left, PAUSE_MIN - 1, "no pause begins anew");
    }

    /// Runs `body` on a thread that shares the first CPU with one that never sleeps.
    fn beside_a_hog(body: impl FnOnce() + Send + 'static) {
        let cpu = Native::topology().cpus()[0].id;
        let (over, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (until, count) = (Arc::clone(&over), Arc::clone(&turns));
        let burn = move || {
            while !until.load(Ordering::Relaxed) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        };
        let hog = Native::spawn("hog", Some(cpu), Box::new(burn));
        while turns.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        assert!(Native::spawn("poller", Some(cpu), Box::new(body)).join());
        over.store(true, Ordering::Relaxed);
        assert!(hog.join());
    }

    #[test]
    fn poll_on_a_shared_cpu_ends_long_before_its_deadline() {
        beside_a_hog(|| {
            let mut share = CpuShare::new();
            let deadline_ns = Native::now() + 60_000_000_000;
            let polled = share.poll(deadline_ns, || false);
            assert!(!polled.came && Native::now() < deadline_ns, "{polled:?}");
            assert!(share.is_shared() && !share.may_poll());
            assert_eq!(share.times_lost(), 1);
        });
    }

    #[test]
    fn time_that_no_other_thread_had_makes_no_shared_cpu() {
        loop {
            let (mut share, mut looks, before) = (CpuShare::new(), 0, Native::preemptions());
            share.taken = before;
            let ready = || {
                looks += 1;
                // As long as a hypervisor may keep the CPU.
                let until_ns = Native::now() + 2 * KEPT_NS;
                while Native::now() < until_ns {}
                looks == 3
            };
            let polled = share.poll(Native::now() + 60_000_000_000, ready);
            // Once more if another thread did have it.
            if Native::preemptions() == before {
                assert!(polled.came && !share.is_shared() && share.times_lost() == 0, "{polled:?}");
                return;
            }
        }
    }

    #[test]
    fn work_beside_a_busy_cpu_is_reported_and_cpus_are_shared() {
        beside_a_hog(|| {
            let mut share = CpuShare::new();
            // The work comes as late as an interruption does.
            let (start_ns, mut seen_ns) = (Native::now(), Native::now());
            let ready = || {
                let gap_ns = Native::now() - std::mem::replace(&mut seen_ns, Native::now());
                gap_ns > KEPT_NS
            };
            let polled = share.poll(start_ns + 60_000_000_000, ready);
            assert!(polled.came && share.is_shared(), "{polled:?}");
        });
    }

    #[test]
    fn cpu_is_offered_rarely_when_refused_and_at_once_when_taken() {
        let (mut poll, mut now_ns, mut offers) = (Poll::at(0, 1_000_000), 0, [0, 0]);
        for (taken, until_ns) in [(0, 500_000), (1, 900_000)] {
            while now_ns < until_ns {
                match poll.next(now_ns) {
                    PollStep::Look => now_ns += 100,
                    PollStep::Offer => {
                        offers[taken] += 1;
                        now_ns += [TAKEN_NS, KEPT_NS][taken];
                        poll.offered(now_ns);
                    }
                    end => panic!("{end:?} at {now_ns}"),
                }
            }
        }
        assert!(offers[0] < 9, "{offers:?}");
        assert!((7..=14).contains(&offers[1]), "{offers:?}: 30 us each");
        assert_eq!(poll.next(1_000_000), PollStep::End { kept: true });
    }

    #[test]
    fn whoever_keeps_cpu_for_long_ends_poll_with_or_without_work() {
        let mut poll = Poll::at(0, u64::MAX);
        assert_eq!(poll.next(OFFER_NS), PollStep::Offer);
        assert_eq!(poll.next(OFFER_NS + KEPT_NS + 1), PollStep::End { kept: true });
        let mut poll = Poll::at(0, u64::MAX);
        assert_eq!(poll.next(OFFER_NS), PollStep::Offer);
        assert!(poll.looked(OFFER_NS + KEPT_NS + 1));
        let mut poll = Poll::at(0, 50_000);
        assert_eq!(poll.next(OFFER_NS), PollStep::Offer);
        assert!(!poll.looked(OFFER_NS + KEPT_NS), "took turns");
        assert_eq!(poll.next(50_000), PollStep::End { kept: false }, "its time is over");
    }

    #[test]
    fn a_poll_that_finds_its_work_at_once_asks_nobody() {
        let mut share = CpuShare::new();
        assert!(share.may_poll());
        let polled = share.poll(u64::MAX, || true);
        assert!(polled.came && share.may_poll());
    }
}
