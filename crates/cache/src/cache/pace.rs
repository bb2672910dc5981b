//! `WritePacer`: delays the completion of writes, so that writers slow down smoothly to the speed
//! of the drives.
//!
//! Below half of the dirty limit nothing is delayed. Above it, writes pass at a multiple of the
//! rate at which pages reach the volume. The multiple falls to 1 halfway between that point and the
//! limit, and below 1 beyond. So the amount of dirty memory settles in between, and writers rarely
//! reach the limit. Kernel counterpart: `balance_dirty_pages`.

use millrace_machine::{Machine, Order, Word};

/// Maximum delay of one completion, in nanoseconds.
const HOLD_NS_MAX: u64 = 200_000_000;
/// Shorter delays are skipped, because the timer would cost more. In nanoseconds.
const HOLD_NS_MIN: u64 = 20_000;

pub(crate) struct WritePacer<M: Machine> {
    /// Write-back rate in bytes per second; 0 while it is unknown.
    rate: M::Word,
    /// Time until which the writes completed so far keep the volume busy.
    until_ns: M::Word,
}

impl<M: Machine> WritePacer<M> {
    pub(crate) fn new() -> WritePacer<M> {
        WritePacer { rate: M::Word::new(0), until_ns: M::Word::new(0) }
    }

    pub(crate) fn set_rate(&self, rate: u64) {
        // Relaxed: no other memory access depends on this number.
        self.rate.store(rate, Order::Relaxed);
    }

    /// Returns when a write of `len_bytes` may be completed, given the number of dirty pages and
    /// its limit; `None` means at once.
    pub(crate) fn due_ns(&self, len_bytes: u64, dirty: u64, max: u64) -> Option<u64> {
        let free = max / 2;
        // Relaxed: no other memory access depends on this number.
        let rate = self.rate.load(Order::Relaxed);
        if dirty <= free || rate == 0 {
            return None;
        }
        let hold_ns = hold_ns(len_bytes, rate, (dirty - free, max - free));
        let now_ns = M::now();
        // Relaxed: threads may race here. Each adds its delay to the value that it read.
        let until_ns = self.until_ns.load(Order::Relaxed).max(now_ns) + hold_ns;
        let until_ns = until_ns.min(now_ns + HOLD_NS_MAX);
        self.until_ns.store(until_ns, Order::Relaxed);
        (until_ns > now_ns + HOLD_NS_MIN).then_some(until_ns)
    }
}

/// Returns the time that a write takes at `rate` bytes per second, multiplied by the square of (2 x
/// the distance above the threshold / the distance from the threshold to the limit).
fn hold_ns(len_bytes: u64, rate: u64, (above, most): (u64, u64)) -> u64 {
    let lasts = u128::from(len_bytes) * 1_000_000_000 / u128::from(rate);
    let (above, most) = (u128::from(2 * above), u128::from(most.max(1)));
    (lasts * above * above / (most * most)).min(u128::from(HOLD_NS_MAX)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halfway_to_limit_writes_pass_as_fast_as_they_reach_volume() {
        let second = 1_000_000;
        assert_eq!(hold_ns(1000, second, (50, 100)), 1_000_000);
        assert_eq!(hold_ns(1000, second, (25, 100)), 250_000);
        assert_eq!(hold_ns(1000, second, (100, 100)), 4_000_000);
        assert_eq!(hold_ns(u64::MAX, 1, (100, 100)), HOLD_NS_MAX);
    }
}
