//! `Waits`: how many I/Os wait, and a sum of times with them, in one word.
//!
//! One thread writes it without a lock, others read it at any moment: since both are in one word,
//! nobody sees one of them without the other. The sum is that of ends less that of beginnings, so
//! that whoever reads adds the present for each that still waits: `ended + waiting * now - sum of
//! beginnings`. What is too much for that word goes over to a second one. Used by held.rs. Kernel
//! counterpart: none.

use millrace_machine::{Counter, Machine};

use crate::account::hold::Hold;

/// Bits of the sum. A count of 16 bits stands above them.
const SUM_BITS: u32 = 48;
const SUM_MASK: u64 = (1 << SUM_BITS) - 1;
/// The sum counts units of 1024 ns, so that it is full after 4 years of waiting, all I/Os together:
/// a week of 256 that always wait. Half of that goes over to the second word.
const UNIT_BITS: u32 = 10;
const FULL: u64 = 1 << (SUM_BITS - 2);
/// Most that one writer says wait at one place, so that several places fit into the count.
const WAITING_MAX: u32 = (1 << 14) - 1;

/// Time in the units of a sum.
pub(crate) fn units(ns: u64) -> u64 {
    ns >> UNIT_BITS
}

/// How many wait, and the sum.
pub(crate) struct Waits<M: Machine> {
    now: M::Counter,
    /// Units that went over.
    over: M::Counter,
}

impl<M: Machine> Waits<M> {
    pub(crate) fn new() -> Self {
        Waits { now: M::Counter::new(), over: M::Counter::new() }
    }

    /// So many more wait, or fewer if it is negative, and the sum grows by so much.
    pub(crate) fn change(&self, more: i64, sum: u64) {
        let old = self.now.get();
        let count = (old >> SUM_BITS).wrapping_add_signed(more);
        let sum = old.wrapping_add(sum) & SUM_MASK;
        self.now.add((count << SUM_BITS | sum).wrapping_sub(old));
    }

    /// Adds time that is over, in units.
    pub(crate) fn add(&self, sum: u64) {
        self.change(0, sum);
        if self.now.get() >> SUM_BITS == 0 {
            self.spill(0);
        }
    }

    /// For the writer, now and then: what the sum is at a time in units goes over if it is much.
    pub(crate) fn spill(&self, now: u64) {
        let (_, sum) = read(self.now.get(), now);
        if sum >= FULL {
            self.change(0, sum.wrapping_neg());
            self.over.add(sum);
        }
    }

    /// How many wait at a time in units, and the sum at that time in nanoseconds; less for a moment
    /// if the sum is just going over.
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

/// How many wait at a time, and the sum, by a word.
fn read(word: u64, now: u64) -> (u64, u64) {
    let count = word >> SUM_BITS;
    let sum = word.wrapping_add(count.wrapping_mul(now)) & SUM_MASK;
    // A reader's clock may be behind the writer's: less than nothing is nothing.
    let is_negative = sum >> (SUM_BITS - 1) != 0;
    (count, if is_negative { 0 } else { sum })
}

/// What a writer said last of I/Os that wait at one of its places, so that it can take that back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Said {
    /// What holds them; none: whatever stops the hardware queue.
    pub(crate) hold: Option<Hold>,
    waiting: u32,
    /// Sum of the times since when, in units.
    since: u64,
}

impl Said {
    /// How many wait.
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// That so many wait, and since when each of them does, on average.
    pub(crate) fn all(hold: Option<Hold>, waiting: u32, since_ns: u64) -> Said {
        let waiting = waiting.min(WAITING_MAX);
        Said { hold, waiting, since: u64::from(waiting).wrapping_mul(units(since_ns)) }
    }

    /// Held by something else.
    pub(crate) fn by(self, hold: Option<Hold>) -> Said {
        Said { hold, ..self }
    }

    /// With one more, which waits since a time.
    pub(crate) fn with(self, since_ns: u64) -> Said {
        let since = self.since.wrapping_add(units(since_ns));
        Said { waiting: self.waiting + 1, since, ..self }
    }

    /// With one less, which waited since a time.
    pub(crate) fn without(self, since_ns: u64) -> Said {
        let since = self.since.wrapping_sub(units(since_ns));
        Said { waiting: self.waiting.saturating_sub(1), since, ..self }
    }

    /// How many of them wait more than in `old`, and how much the sum of their ages grows by.
    pub(crate) fn ages_since(self, old: Said) -> (i64, u64) {
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
        let waits = Waits::<Native>::new();
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
        let waits = Waits::<Native>::new();
        waits.change(1, units(10 * MS).wrapping_neg());
        assert_eq!(waits.at(units(9 * MS)), (1, 0));
    }

    #[test]
    fn ages_are_those_of_what_is_still_there() {
        let ages = Waits::<Native>::new();
        let mut said = Said::default();
        for next in [said.with(10 * MS), said.with(10 * MS).with(30 * MS), said.with(30 * MS)] {
            let (more, sum) = next.ages_since(said);
            ages.change(more, sum);
            said = next;
        }
        assert_eq!((said.waiting(), ages.at(units(40 * MS))), (1, (1, 10 * MS)));
    }

    #[test]
    fn many_that_always_wait_are_counted_for_years() {
        let waits = Waits::<Native>::new();
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
