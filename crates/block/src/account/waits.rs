//! `WaitCounter`: a count of waiting I/Os and a sum of waiting times, packed into one word.
//!
//! One thread writes the counter without a lock, and any thread reads it at any time. Both values
//! are in one word, so a reader always sees a consistent pair. The stored sum is the end times of
//! all ended waits minus the start times of all waits. A reader adds the present time for each I/O
//! that still waits: `ends + waiting * now - starts`. When the sum gets large, a part of it moves
//! to a second word. Used by held.rs. Kernel counterpart: none.

use millrace_machine::{Counter, Machine};

use crate::account::hold::WaitReason;

/// Number of low bits of `WaitCounter::now` that hold a sum of times. The upper 16 bits hold a
/// number of I/Os.
const SUM_BITS: u32 = 48;
const SUM_MASK: u64 = (1 << SUM_BITS) - 1;
/// log2 of the unit of waiting times in nanoseconds: all sums are in units of 1,024 ns.
const UNIT_BITS: u32 = 10;
/// Limit on the sum in `WaitCounter::now`, in units of 1,024 ns (about 2 years). `spill` moves a
/// sum of this size to `WaitCounter::over`, before the sum overflows.
const FULL: u64 = 1 << (SUM_BITS - 2);
/// Largest number of waiting I/Os in one `ReportedWaits`. A group may have up to four reports, for
/// example one for each priority class. A 16-bit counter adds up all reports of the group, so each
/// report gets a quarter of the range.
const WAITING_MAX: u32 = (1 << 14) - 1;

pub(crate) fn units(ns: u64) -> u64 {
    ns >> UNIT_BITS
}

pub(crate) struct WaitCounter<M: Machine> {
    now: M::Counter,
    /// Sum of waiting times that `spill` has moved from the field `now` to this field, in units of
    /// 1,024 ns.
    over: M::Counter,
}

impl<M: Machine> WaitCounter<M> {
    pub(crate) fn new() -> Self {
        WaitCounter { now: M::Counter::new(), over: M::Counter::new() }
    }

    /// Adds `more` to the number of waiting I/Os, and `sum` to the sum of their waiting times.
    /// `sum` is in units of 1,024 ns. Both may be negative (`sum` in two's complement).
    pub(crate) fn change(&self, more: i64, sum: u64) {
        let old = self.now.get();
        let count = (old >> SUM_BITS).wrapping_add_signed(more);
        let sum = old.wrapping_add(sum) & SUM_MASK;
        self.now.add((count << SUM_BITS | sum).wrapping_sub(old));
    }

    /// Adds the time of waits that have ended, in units of 1,024 ns.
    pub(crate) fn add(&self, sum: u64) {
        self.change(0, sum);
        if self.now.get() >> SUM_BITS == 0 {
            self.spill(0);
        }
    }

    /// Moves the sum of waiting times to the word `over` if the sum is at least `FULL`, before it
    /// overflows. `now` is the present time in units of 1,024 ns.
    pub(crate) fn spill(&self, now: u64) {
        let (_, sum) = read(self.now.get(), now);
        if sum >= FULL {
            self.change(0, sum.wrapping_neg());
            self.over.add(sum);
        }
    }

    /// Returns the number of waiting I/Os, and the sum of waiting times in nanoseconds. `now` is
    /// the present time in units of 1,024 ns. If another thread runs `spill` meanwhile, the sum may
    /// be too small.
    pub(crate) fn at(&self, now: u64) -> (u64, u64) {
        loop {
            let over = self.over.get();
            let (count, sum) = read(self.now.get(), now);
            if self.over.get() == over {
                return (count, (over + sum) << UNIT_BITS);
            }
        }
    }
}

/// Returns the number of waiting I/Os, and the sum of waiting times at `now`, in units of 1,024 ns.
fn read(word: u64, now: u64) -> (u64, u64) {
    let count = word >> SUM_BITS;
    let sum = word.wrapping_add(count.wrapping_mul(now)) & SUM_MASK;
    // The sum may be negative, because the reader's clock may be behind the writer's. It then
    // counts as 0.
    let is_negative = sum >> (SUM_BITS - 1) != 0;
    (count, if is_negative { 0 } else { sum })
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReportedWaits {
    /// Reason of the wait; `None` if the I/Os wait because the hardware queue is stopped.
    pub(crate) hold: Option<WaitReason>,
    waiting: u32,
    /// Sum of the start times of all waits, in units of 1,024 ns.
    since: u64,
}

impl ReportedWaits {
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Reports `waiting` I/Os; `since_ns` is the mean time at which their waits began.
    pub(crate) fn all(hold: Option<WaitReason>, waiting: u32, since_ns: u64) -> ReportedWaits {
        let waiting = waiting.min(WAITING_MAX);
        ReportedWaits { hold, waiting, since: u64::from(waiting).wrapping_mul(units(since_ns)) }
    }

    pub(crate) fn by(self, hold: Option<WaitReason>) -> ReportedWaits {
        ReportedWaits { hold, ..self }
    }

    pub(crate) fn with(self, since_ns: u64) -> ReportedWaits {
        let since = self.since.wrapping_add(units(since_ns));
        ReportedWaits { waiting: self.waiting + 1, since, ..self }
    }

    pub(crate) fn without(self, since_ns: u64) -> ReportedWaits {
        let since = self.since.wrapping_sub(units(since_ns));
        ReportedWaits { waiting: self.waiting.saturating_sub(1), since, ..self }
    }

    /// Returns the changes since `old` of the number of waiting I/Os and of their total time.
    pub(crate) fn ages_since(self, old: ReportedWaits) -> (i64, u64) {
        (i64::from(self.waiting) - i64::from(old.waiting), old.since.wrapping_sub(self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_machine::Native;

    const MS: u64 = 1 << 20;

    #[test]
    fn what_waits_adds_the_present_and_what_has_ended_stays() {
        let waits = WaitCounter::<Native>::new();
        waits.change(1, units(10 * MS).wrapping_neg());
        waits.change(1, units(20 * MS).wrapping_neg());
        assert_eq!(waits.at(units(25 * MS)), (2, 20 * MS));
        waits.change(-1, units(30 * MS));
        assert_eq!(waits.at(units(40 * MS)), (1, 40 * MS));
        waits.change(-1, units(40 * MS));
        assert_eq!(waits.at(units(90 * MS)), (0, 40 * MS));
    }

    #[test]
    fn a_reader_whose_clock_is_behind_sees_no_time() {
        let waits = WaitCounter::<Native>::new();
        waits.change(1, units(10 * MS).wrapping_neg());
        assert_eq!(waits.at(units(9 * MS)), (1, 0));
    }

    #[test]
    fn ages_are_those_of_what_is_still_there() {
        let ages = WaitCounter::<Native>::new();
        let mut said = ReportedWaits::default();
        for next in [said.with(10 * MS), said.with(10 * MS).with(30 * MS), said.with(30 * MS)] {
            let (more, sum) = next.ages_since(said);
            ages.change(more, sum);
            said = next;
        }
        assert_eq!((said.waiting(), ages.at(units(40 * MS))), (1, (1, 10 * MS)));
    }

    #[test]
    fn many_that_always_wait_are_counted_for_years() {
        let waits = WaitCounter::<Native>::new();
        let hour = units(3_600_000_000_000);
        let mut last = 0;
        for at in 0..24 * 365u64 {
            (0..256).for_each(|_| waits.change(1, (at * hour).wrapping_neg()));
            (0..256).for_each(|_| waits.change(-1, (at + 1) * hour));
            waits.spill((at + 1) * hour);
            let (waiting, ns) = waits.at((at + 1) * hour);
            assert!(waiting == 0 && ns > last, "after {} hours: {ns} ns", at + 1);
            last = ns;
        }
    }
}
