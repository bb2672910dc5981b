//! Busy polling: decides when a reactor's thread polls before it sleeps, and for how long.
//!
//! A sleep costs two wake-ups of a CPU. On a virtual machine, they may take longer than the request
//! itself. To avoid them, a thread spins (polls) before it sleeps, by these rules:
//! - A thread spins only after [`STREAK`] short waits in a row, so an idle thread sleeps at once. A
//!   wait is short if it takes at most twice the longest spin. The factor of two allows for the
//!   wake-ups of a wait with a sleep.
//! - A spin yields to other threads that wait for the CPU. One of them may be the client that sends
//!   the next request.
//! - A spin ends at once if another thread took the CPU and nothing completed in the meantime.
//! - Spinning pauses for some waits after [`VAIN`] spins in a row without a completion. It also
//!   pauses if another thread had the CPU for longer than a whole spin.
//! - CPU time that a hypervisor took does not count, because spinning and sleeping threads lose it
//!   alike.
//!
//! Kernel counterpart: `halt_poll_ns` of KVM.

mod worth;

use millrace_machine::Native;

use crate::config::SpinRule;
use crate::sys;

use self::worth::SpinTrial;

/// Number of short waits in a row before the first busy poll (spin).
const STREAK: u32 = 4;
/// Number of consecutive spins without a completion after which spinning pauses.
const VAIN: u32 = 4;
const YIELD_NS: u64 = 5_000;
/// Duration of a yield, in nanoseconds, above which another thread must have run.
const ALONE_NS: u64 = 3_000;
/// Time between two polls, in nanoseconds, above which another thread must have had the CPU.
const GAP_NS: u64 = 20_000;
/// Length of the first pause from spinning. For this number of waits, the thread sleeps without a
/// spin. Each further pause is twice as long as the pause before.
const PAUSE_MIN: u32 = 64;
/// Maximum length of a pause from spinning, as a number of waits. If more than `PAUSE_MAX` waits
/// pass between two pauses, the second pause has the length `PAUSE_MIN`.
const PAUSE_MAX: u32 = 8192;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpinStep {
    Look,
    Yield,
    Sleep,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BusyPoll {
    longest_ns: u64,
    /// Number of consecutive short waits. A wait is short if it takes at most `2 * longest_ns`.
    short: u32,
    vain: u32,
    /// Number of further waits without a spin, because spinning is paused; 0 if spinning is not
    /// paused. `pause_next` is the number of waits in the next pause.
    pause: u32,
    pause_next: u32,
    /// Number of waits for completions since spinning was last paused.
    unhurt: u32,
    /// Times of the current wait: its start, the end of its spin, the last poll, and the next
    /// yield.
    start_ns: u64,
    end_ns: u64,
    seen_ns: u64,
    yield_ns: u64,
    /// Duration of the last yield if another thread ran during it, otherwise 0.
    away_ns: u64,
    taken: u64,
    worth: Option<SpinTrial>,
}

impl BusyPoll {
    /// Creates the state of a thread that spins for at most `longest_ns`; 0 means never.
    pub(crate) fn new(longest_ns: u64, rule: SpinRule) -> BusyPoll {
        BusyPoll {
            longest_ns,
            pause_next: PAUSE_MIN,
            worth: (rule == SpinRule::IfItPays).then(SpinTrial::new),
            ..BusyPoll::default()
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.longest_ns > 0
    }

    /// Begins a wait of at most `limit_ns`. Returns true if the wait should begin with a spin.
    pub(crate) fn start(&mut self, now_ns: u64, limit_ns: Option<u64>) -> bool {
        let spin_ns = limit_ns.map_or(self.longest_ns, |limit_ns| limit_ns.min(self.longest_ns));
        (self.start_ns, self.seen_ns, self.yield_ns) = (now_ns, now_ns, now_ns);
        self.end_ns = now_ns.saturating_add(spin_ns);
        self.away_ns = 0;
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        self.unhurt += 1;
        if self.unhurt > PAUSE_MAX {
            (self.unhurt, self.pause_next) = (0, PAUSE_MIN);
        }
        self.short >= STREAK && self.worth.is_none_or(|worth| worth.spins)
    }

    /// Ends a wait for completions. `bytes` is the reactor's total of bytes transferred so far.
    pub(crate) fn end(&mut self, now_ns: u64, bytes: u64) {
        let waited_ns = now_ns.saturating_sub(self.start_ns);
        let is_short = waited_ns <= self.longest_ns.saturating_mul(2);
        self.short = if is_short { self.short.saturating_add(1) } else { 0 };
        if waited_ns <= self.longest_ns {
            self.vain = 0;
        }
        match &mut self.worth {
            Some(worth) if is_short => worth.waited(now_ns, bytes),
            Some(worth) => worth.paused(now_ns, bytes),
            None => {}
        }
    }

    /// Returns true if the spin should poll once more, and false if it should end. Yields to other
    /// threads in between.
    pub(crate) fn go_on(&mut self) -> bool {
        match self.next(sys::now_ns(), Native::preemptions) {
            SpinStep::Look => std::hint::spin_loop(),
            SpinStep::Yield => {
                self.taken = Native::preemptions();
                std::thread::yield_now();
                self.yielded(sys::now_ns());
            }
            SpinStep::Sleep => return false,
        }
        true
    }

    fn next(&mut self, now_ns: u64, preemptions: impl FnOnce() -> u64) -> SpinStep {
        let gap_ns = now_ns.saturating_sub(self.seen_ns);
        self.seen_ns = now_ns;
        let away_ns = std::mem::take(&mut self.away_ns);
        let is_lost = (away_ns > 0 || gap_ns > GAP_NS) && self.was_taken(preemptions());
        // Pauses spinning if another thread had the CPU for longer than the longest spin. During a
        // pause, the thread sleeps without a spin.
        if is_lost && gap_ns.max(away_ns) > self.longest_ns {
            self.rest();
        }
        if now_ns >= self.end_ns {
            self.vain += 1;
            if self.vain >= VAIN {
                self.rest();
            }
        }
        if is_lost || now_ns >= self.end_ns {
            return SpinStep::Sleep;
        }
        if now_ns >= self.yield_ns { SpinStep::Yield } else { SpinStep::Look }
    }

    fn was_taken(&mut self, preemptions: u64) -> bool {
        std::mem::replace(&mut self.taken, preemptions) != preemptions
    }

    fn yielded(&mut self, now_ns: u64) {
        let away_ns = now_ns.saturating_sub(self.seen_ns);
        (self.seen_ns, self.yield_ns) = (now_ns, now_ns.saturating_add(YIELD_NS));
        self.away_ns = if away_ns > ALONE_NS { away_ns } else { 0 };
    }

    fn rest(&mut self) {
        (self.pause, self.unhurt, self.vain) = (self.pause_next, 0, 0);
        self.pause_next = (2 * self.pause_next).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST_NS: u64 = 100_000;

    /// No other thread had the CPU.
    fn undisturbed() -> u64 {
        0
    }

    /// A thread whose last waits were short.
    fn warm() -> BusyPoll {
        let mut spin = BusyPoll::new(LONGEST_NS, SpinRule::Always);
        for at_ns in 0..u64::from(STREAK) {
            assert!(!spin.start(at_ns, None), "too early");
            spin.end(at_ns + LONGEST_NS, 0);
        }
        spin
    }

    #[test]
    fn spins_after_short_waits_and_stops_after_one_long_one() {
        let mut spin = warm();
        assert!(spin.start(0, None));
        spin.end(2 * LONGEST_NS + 1, 0);
        assert!(!spin.start(0, None), "whoever is idle sleeps at once");
    }

    #[test]
    fn spins_that_do_not_pay_end_where_that_is_the_rule() {
        // As much is moved either way.
        for (rule, spun) in [(SpinRule::Always, 1900..2000), (SpinRule::IfItPays, 100..400)] {
            let mut spin = BusyPoll::new(LONGEST_NS, rule);
            let spins = (0..2000u64).filter(|at| {
                let spins = spin.start(at * 50_000, None);
                spin.end(at * 50_000 + 40_000, at * 4096);
                spins
            });
            let spins = spins.count();
            assert!(spun.contains(&spins), "{rule:?}: {spins}");
        }
    }

    #[test]
    fn spins_in_vain_end_with_waits_that_go_without() {
        let mut spin = warm();
        for vain in 1..=VAIN {
            assert!(spin.start(0, None), "in vain {vain} times");
            assert_eq!(spin.next(LONGEST_NS, undisturbed), SpinStep::Sleep);
            spin.end(LONGEST_NS + 50_000, 0);
        }
        let slept = (0..).take_while(|_| !spin.start(0, None)).count();
        assert_eq!(slept, PAUSE_MIN as usize);
        // A spin that brought something in between counts.
        for _ in 0..3 * VAIN {
            assert_eq!(spin.next(LONGEST_NS, undisturbed), SpinStep::Sleep);
            spin.end(LONGEST_NS + 50_000, 0);
            assert!(spin.start(0, None));
            spin.end(10, 0);
            assert!(spin.start(0, None));
        }
    }

    #[test]
    fn never_spins_past_its_bound_or_the_wait_s_own_end() {
        for (limit_ns, end_ns) in [(None, LONGEST_NS), (Some(7_000), 7_000)] {
            let mut spin = warm();
            assert!(spin.start(0, limit_ns));
            let (mut at_ns, mut yields) = (0, 0);
            loop {
                match spin.next(at_ns, undisturbed) {
                    SpinStep::Sleep => break,
                    SpinStep::Look => at_ns += 1_000,
                    SpinStep::Yield => {
                        yields += 1;
                        at_ns += 1_000;
                        spin.yielded(at_ns);
                    }
                }
            }
            assert_eq!(at_ns, end_ns);
            assert_eq!(yields, end_ns.div_ceil(YIELD_NS + 1_000), "the first one at once");
        }
    }

    #[test]
    fn looks_once_after_somebody_else_ran_then_sleeps() {
        let mut spin = warm();
        assert!(spin.start(0, None));
        assert_eq!(spin.next(0, undisturbed), SpinStep::Yield);
        spin.yielded(ALONE_NS + 1);
        assert_eq!(
            spin.next(ALONE_NS + 2, || 1),
            SpinStep::Sleep,
            "news would have ended the spin"
        );
        spin.end(ALONE_NS + 3, 0);
        assert!(spin.start(0, None), "the next wait may be for the client that ran");
    }

    #[test]
    fn sleeps_when_it_was_preempted_between_two_looks() {
        let mut spin = warm();
        assert!(spin.start(0, None));
        assert_eq!(spin.next(0, undisturbed), SpinStep::Yield);
        spin.yielded(1_000);
        assert_eq!(spin.next(1_000 + GAP_NS + 1, || 1), SpinStep::Sleep);
        assert!(spin.start(0, None), "it was away for a moment only");
        assert_eq!(spin.next(LONGEST_NS + 1, || 2), SpinStep::Sleep);
        assert!(!spin.start(0, None));
    }

    #[test]
    fn time_without_other_threads_neither_ends_nor_slows_spins() {
        let mut spin = warm();
        for _ in 1..VAIN {
            assert!(spin.start(0, None));
            assert_eq!(spin.next(0, undisturbed), SpinStep::Yield);
            spin.yielded(30_000);
            assert_eq!(spin.next(30_001, undisturbed), SpinStep::Look);
            assert_eq!(spin.next(30_002 + GAP_NS, undisturbed), SpinStep::Yield);
            assert_eq!(spin.next(3 * LONGEST_NS, undisturbed), SpinStep::Sleep, "its end, no loss");
            spin.end(2 * LONGEST_NS, 0);
        }
    }

    #[test]
    fn a_cpu_lent_to_whoever_brought_news_is_not_lost() {
        let mut spin = warm();
        for _ in 0..100 {
            assert!(spin.start(0, None));
            assert_eq!(spin.next(0, undisturbed), SpinStep::Yield);
            // The client ran on this CPU, and there are news: nobody asks any more.
            spin.yielded(LONGEST_NS + 1);
            spin.end(LONGEST_NS + 2, 0);
        }
    }

    #[test]
    fn a_cpu_lost_for_long_costs_ever_more_waits_without_a_spin() {
        let mut spin = warm();
        for expected in [PAUSE_MIN, 2 * PAUSE_MIN] {
            assert!(spin.start(0, None));
            assert_eq!(spin.next(0, undisturbed), SpinStep::Yield);
            spin.yielded(LONGEST_NS + 1);
            assert_eq!(spin.next(LONGEST_NS + 1, || expected.into()), SpinStep::Sleep);
            let slept = (0..).take_while(|_| !spin.start(0, None)).count();
            assert_eq!(slept, expected as usize);
        }
        (0..=PAUSE_MAX).for_each(|_| assert!(spin.start(0, None)));
        assert_eq!(spin.pause_next, PAUSE_MIN, "it has had its CPU for long");
    }
}
