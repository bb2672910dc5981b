//! `Pace`: how long a write's answer is held back, so that writers meet the drives' speed smoothly.
//!
//! Up to half of what may be dirty nothing is held back. From there on writes pass at a multiple of
//! the rate at which pages reach the volume, which falls to that rate halfway to the limit and
//! below it beyond: so dirty memory settles between, and nobody runs into the wall. Kernel
//! counterpart: `balance_dirty_pages`.

use millrace_machine::{Machine, Order, Word};

/// Longest that one answer is held back.
const HOLD_NS_MAX: u64 = 200_000_000;
/// What is shorter is not held back: the timer costs more.
const HOLD_NS_MIN: u64 = 20_000;

/// When writes may be answered.
pub(crate) struct Pace<M: Machine> {
    /// Bytes a second that reach the volume; 0 while that is not known.
    rate: M::Word,
    /// Until when the writes that were let through last the volume.
    until_ns: M::Word,
}

impl<M: Machine> Pace<M> {
    pub(crate) fn new() -> Pace<M> {
        Pace { rate: M::Word::new(0), until_ns: M::Word::new(0) }
    }

    /// Notes how fast pages reach the volume, in bytes a second.
    pub(crate) fn set_rate(&self, rate: u64) {
        // Relaxed: a number that nothing depends on.
        self.rate.store(rate, Order::Relaxed);
    }

    /// When a write of `len_bytes` may be answered, with so many pages dirty of at most `max`; none
    /// if at once.
    pub(crate) fn due_ns(&self, len_bytes: u64, dirty: u64, max: u64) -> Option<u64> {
        let free = max / 2;
        // Relaxed: as above.
        let rate = self.rate.load(Order::Relaxed);
        if dirty <= free || rate == 0 {
            return None;
        }
        let hold_ns = hold_ns(len_bytes, rate, (dirty - free, max - free));
        let now_ns = M::now();
        // Relaxed: threads may overtake each other here; each adds to what it found.
        let until_ns = self.until_ns.load(Order::Relaxed).max(now_ns) + hold_ns;
        let until_ns = until_ns.min(now_ns + HOLD_NS_MAX);
        self.until_ns.store(until_ns, Order::Relaxed);
        (until_ns > now_ns + HOLD_NS_MIN).then_some(until_ns)
    }
}

/// How long a write lasts at `rate` bytes a second, times the square of twice the share of the way
/// from where holding back begins to the limit.
fn hold_ns(len_bytes: u64, rate: u64, (above, most): (u64, u64)) -> u64 {
    let lasts = u128::from(len_bytes) * 1_000_000_000 / u128::from(rate);
    let (above, most) = (u128::from(2 * above), u128::from(most.max(1)));
    (lasts * above * above / (most * most)).min(u128::from(HOLD_NS_MAX)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halfway_to_the_limit_writes_pass_as_fast_as_they_reach_the_volume() {
        let second = 1_000_000;
        assert_eq!(hold_ns(1000, second, (50, 100)), 1_000_000);
        assert_eq!(hold_ns(1000, second, (25, 100)), 250_000);
        assert_eq!(hold_ns(1000, second, (100, 100)), 4_000_000);
        assert_eq!(hold_ns(u64::MAX, 1, (100, 100)), HOLD_NS_MAX);
    }
}
