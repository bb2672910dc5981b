//! `WritePacer`: delays the completion of writes, so that writers slow down smoothly to the speed
//! of the drives.
//!
//! Below half of the dirty limit, no write is delayed. Above half, writes complete at a multiple of
//! the write-back rate. The multiple falls to 1 at three quarters of the limit, and below 1 beyond.
//! So the amount of dirty memory settles near three quarters, and writers rarely reach the limit.
//! Kernel counterpart: `balance_dirty_pages`.

use millrace_machine::{Machine, Order, Word};

const HOLD_NS_MAX: u64 = 200_000_000;
/// Minimum delay of a completion, in nanoseconds. Shorter delays are skipped, because a timer would
/// cost more.
const HOLD_NS_MIN: u64 = 20_000;

pub(crate) struct WritePacer<M: Machine> {
    /// Write-back rate in bytes per second; 0 while it is unknown.
    rate: M::Word,
    /// Completion time of the last delayed write. The next write completes after this time.
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

    /// Returns the time at which a write of `len_bytes` may be completed, given the number of dirty
    /// pages and the dirty limit. `None` means at once.
    pub(crate) fn due_ns(&self, len_bytes: u64, dirty: u64, max: u64) -> Option<u64> {
        let free = max / 2;
        // Relaxed: no other memory access depends on this number.
        let rate = self.rate.load(Order::Relaxed);
        if dirty <= free || rate == 0 {
            return None;
        }
        let hold_ns = hold_ns(len_bytes, rate, (dirty - free, max - free));
        let now_ns = M::now();
        // Relaxed: if two threads read the same value, `until_ns` grows by only one of their two
        // delays, which is harmless.
        let until_ns = self.until_ns.load(Order::Relaxed).max(now_ns) + hold_ns;
        let until_ns = until_ns.min(now_ns + HOLD_NS_MAX);
        self.until_ns.store(until_ns, Order::Relaxed);
        (until_ns > now_ns + HOLD_NS_MIN).then_some(until_ns)
    }
}

/// Returns how long to delay a write: its transfer time at `rate` bytes per second, multiplied by
/// (2 x `above` / `most`) squared. `above` is the number of dirty pages beyond half of the dirty
/// limit, and `most` is that half, in pages.
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
