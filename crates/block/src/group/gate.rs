//! Token buckets: the limits of a group, shared by all its threads, that say when an I/O may go.
//!
//! A word of each bucket holds the time at which the next I/O may go. Each I/O adds its cost to
//! that time, by one atomic addition. So each I/O gets a time of its own, and I/Os go in order of
//! arrival over all threads. Unused capacity accumulates for up to `burst`. Bound: in any window of
//! length W, the I/Os that start cost at most rate * (W + burst) plus one I/O. An I/O is never
//! delayed for its own cost; later I/Os wait instead. A second word holds the sum of the costs of
//! waiting I/Os. When the limit changes, waiting I/Os reserve new times. The cost of other I/Os is
//! converted to the new rate. Source: the leaky bucket as a meter (ITU-T I.371, the generic cell
//! rate algorithm). Kernel counterpart: block/blk-throttle.c, `tg_dispatch_time`.

use millrace_machine::{Machine, Order, Word, nanoseconds};

use crate::bio::{Op, SectorCount};
use crate::group::config::GroupLimits;

/// Number of fractional bits in stored times: the unit is 2^-8 ns. A limit of 3 million I/Os per
/// second is then exact to 0.001 %.
const FRACTION_BITS: u32 = 8;
/// Number of fractional bits that the cost of a sector has in addition to `FRACTION_BITS`; 24 in
/// total.
const SECTOR_BITS: u32 = 16;

/// Number of limits on an I/O: I/Os per second and bytes per second, each for the I/O's own
/// direction and for both directions together.
pub(crate) const BUCKETS_PER_BIO: usize = 4;
/// Largest number of token buckets that a bio passes: first those of its group, then those of the
/// group's parent. The index of a bucket in this order is called its place.
pub(crate) const PLACES: usize = 2 * BUCKETS_PER_BIO;

/// Cost of an I/O at a token bucket, as a time in units of 2^-`FRACTION_BITS` ns. Example: with a
/// limit of 1,000 I/Os per second, each I/O costs 1 ms.
#[derive(Debug, Clone, Copy, Default)]
struct LimitCost {
    io: u64,
    /// Cost of each sector, in units of 2^-(`FRACTION_BITS` + `SECTOR_BITS`) ns.
    sector: u64,
}

impl LimitCost {
    fn ios(rate: Option<u64>) -> LimitCost {
        LimitCost {
            io: rate.map_or(0, |rate| (1_000_000_000 << FRACTION_BITS) / rate.max(1)),
            sector: 0,
        }
    }

    fn bytes(rate: Option<u64>) -> LimitCost {
        let whole = 512_000_000_000u128 << FRACTION_BITS << SECTOR_BITS;
        LimitCost { io: 0, sector: rate.map_or(0, |rate| (whole / u128::from(rate.max(1))) as u64) }
    }

    fn is_free(self) -> bool {
        self.io == 0 && self.sector == 0
    }

    /// Converts `booked` from the rate of `old` to the rate of `self`. `booked` is the reserved
    /// time of a token bucket or, if negative, its unused time. Returns 0 if the bucket had no
    /// limit or has none now.
    fn instead_of(self, old: LimitCost, booked: i128) -> i128 {
        let rate = |toll: LimitCost| i128::from(toll.io | toll.sector);
        let (old, new) = (rate(old), rate(self));
        if old == 0 || new == 0 { 0 } else { booked.saturating_mul(new) / old }
    }

    fn of(self, sectors: SectorCount) -> u64 {
        let bytes = (u128::from(self.sector) * u128::from(sectors)) >> SECTOR_BITS;
        self.io + bytes.min(1 << 56) as u64
    }
}

#[derive(Debug, Clone, Copy)]
struct LimitCosts {
    read: [LimitCost; BUCKETS_PER_BIO],
    write: [LimitCost; BUCKETS_PER_BIO],
    /// Longest idle time for which a bucket accumulates unused capacity, in units of
    /// 2^-`FRACTION_BITS` ns.
    burst: u64,
}

impl LimitCosts {
    fn new(limits: &GroupLimits) -> LimitCosts {
        let both = [LimitCost::ios(limits.iops), LimitCost::bytes(limits.bandwidth)];
        let way = |iops, bytes| [LimitCost::ios(iops), LimitCost::bytes(bytes), both[0], both[1]];
        LimitCosts {
            read: way(limits.read_iops, limits.read_bandwidth),
            write: way(limits.write_iops, limits.write_bandwidth),
            burst: nanoseconds(limits.burst) << FRACTION_BITS,
        }
    }

    fn at(&self, stage: usize, op: Op) -> LimitCost {
        if op == Op::Read { self.read[stage] } else { self.write[stage] }
    }

    fn at_place(&self, place: usize) -> LimitCost {
        if place < BUCKETS_PER_BIO { self.read[place] } else { self.write[place - BUCKETS_PER_BIO] }
    }
}

/// Token buckets of a group: for reads, writes and both together, each for I/Os and for bytes.
pub(crate) struct TokenBuckets<M: Machine> {
    costs: LimitCosts,
    /// Time at which the next I/O may go, for each bucket, in units of 2^-`FRACTION_BITS` ns.
    next: [M::Word; BUCKETS_PER_BIO + 2],
    /// Sum of the costs of waiting I/Os at each bucket, in units of 2^-`FRACTION_BITS` ns. `next`
    /// includes this sum.
    waiting: [M::Word; BUCKETS_PER_BIO + 2],
}

/// An I/O subject to a limit, as three values: index of the limit in `LimitCosts`, operation, and
/// number of sectors.
pub(crate) type BucketIo = (usize, Op, SectorCount);

/// Returns the index of the token bucket for an I/O under the limit `stage`. The limits 0 and 1
/// apply to one direction, with a bucket for reads and one for writes. The limits 2 and 3 apply to
/// both directions together and have one bucket each.
fn place_of((stage, op, _): BucketIo) -> usize {
    if op == Op::Read || stage >= 2 { stage } else { stage + BUCKETS_PER_BIO }
}

impl<M: Machine> TokenBuckets<M> {
    pub(crate) fn new(limits: &GroupLimits, now_ns: u64) -> TokenBuckets<M> {
        TokenBuckets {
            costs: LimitCosts::new(limits),
            next: core::array::from_fn(|_| M::Word::new(now_ns << FRACTION_BITS)),
            waiting: core::array::from_fn(|_| M::Word::new(0)),
        }
    }

    /// Returns new token buckets for changed limits. Reserved times are treated as follows:
    /// - I/Os that have passed: their cost is converted from the old rate to the new one.
    /// - Waiting I/Os: their cost is dropped, because these I/Os reserve new times.
    /// - Unused capacity is kept.
    ///
    /// Threads that have not seen the change yet keep using the old buckets.
    pub(crate) fn changed(&self, limits: &GroupLimits, now_ns: u64) -> TokenBuckets<M> {
        let (costs, now) = (LimitCosts::new(limits), i128::from(now_ns) << FRACTION_BITS);
        let next = |place| {
            let (old, new) = (self.costs.at_place(place), costs.at_place(place));
            // Relaxed: no other data depends on `waiting` and `next`. `waiting` is read first, so
            // that a reservation between the two loads counts as passed, not as waiting.
            let waiting = self.waiting[place].load(Order::Relaxed);
            let booked = self.next[place].load(Order::Relaxed).saturating_sub(waiting);
            let next = now + new.instead_of(old, i128::from(booked) - now);
            M::Word::new(next.clamp(0, i128::from(u64::MAX >> 1)) as u64)
        };
        let next = core::array::from_fn(next);
        TokenBuckets { costs, next, waiting: core::array::from_fn(|_| M::Word::new(0)) }
    }

    /// Returns how long a new I/O would have to wait at `now_ns`, in nanoseconds. The result is the
    /// longest wait at any of the group's token buckets.
    pub(crate) fn ahead_ns(&self, now_ns: u64) -> u64 {
        // Relaxed: statistics need only a recent value of `next`.
        let next = self.next.iter().map(|word| word.load(Order::Relaxed)).max().unwrap_or(0);
        (next >> FRACTION_BITS).saturating_sub(now_ns)
    }

    /// Returns the token bucket of an I/O, with the cost that the I/O pays there.
    pub(crate) fn at(&self, io: BucketIo) -> IoAtBucket<'_, M> {
        let (place, cost) = (place_of(io), self.costs.at(io.0, io.1).of(io.2));
        let (next, waiting) = (&self.next[place], &self.waiting[place]);
        IoAtBucket { next, waiting, cost, burst: self.costs.burst }
    }

    /// Returns true if the limit with index `stage` applies to I/Os of this operation.
    pub(crate) fn limits(&self, stage: usize, op: Op) -> bool {
        !self.costs.at(stage, op).is_free()
    }
}

/// An I/O at a token bucket, and the cost that it pays there.
pub(crate) struct IoAtBucket<'a, M: Machine> {
    next: &'a M::Word,
    waiting: &'a M::Word,
    cost: u64,
    burst: u64,
}

impl<M: Machine> IoAtBucket<'_, M> {
    /// Reserves the cost of the I/O. Returns the time in nanoseconds at which the I/O may pass.
    pub(crate) fn reserve(&self, now_ns: u64) -> u64 {
        let earliest = (now_ns << FRACTION_BITS).saturating_sub(self.burst);
        // Relaxed: the bucket's word publishes no other data.
        let mut next = self.next.load(Order::Relaxed);
        while next < earliest {
            // Relaxed: as above.
            match self.next.compare_exchange(next, earliest, Order::Relaxed, Order::Relaxed) {
                Ok(_) => break,
                Err(found) => next = found,
            }
        }
        // Relaxed: as above.
        self.next.fetch_add(self.cost, Order::Relaxed) >> FRACTION_BITS
    }

    /// Adds the I/O's cost to the total cost of the I/Os that wait at the token bucket. The caller
    /// has called `reserve` before.
    pub(crate) fn wait(&self) {
        // Relaxed: a sum that publishes no other data. Only `changed` reads it.
        self.waiting.fetch_add(self.cost, Order::Relaxed);
    }

    /// Cancels the reservation of the waiting I/O, so that later I/Os wait less.
    pub(crate) fn give_back(&self) {
        self.leave();
        // Relaxed: a sum that publishes no other data.
        self.next.fetch_add(self.cost.wrapping_neg(), Order::Relaxed);
    }

    /// Records that the I/O no longer waits. Its cost stays reserved, so it counts against the
    /// limit. The cost must be the same as in the call of `wait`, which added it to the sum of
    /// waiting costs.
    pub(crate) fn leave(&self) {
        // Relaxed: a sum that publishes no other data. Only `changed` reads it.
        self.waiting.fetch_add(self.cost.wrapping_neg(), Order::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use core::time::Duration;
    use millrace_machine::Native;
    use proptest::prelude::*;

    fn limits(iops: u64, bandwidth: Option<u64>, burst_ns: u64) -> GroupLimits {
        GroupLimits {
            iops: Some(iops),
            bandwidth,
            burst: Duration::from_nanos(burst_ns),
            ..GroupLimits::default()
        }
    }

    #[test]
    fn reads_and_writes_have_gates_of_their_own_and_two_in_common() {
        let limits = GroupLimits {
            read_iops: Some(1000),
            write_bandwidth: Some(512_000),
            iops: Some(2000),
            burst: Duration::from_millis(1),
            ..GroupLimits::default()
        };
        let buckets = TokenBuckets::<Native>::new(&limits, 1_000_000_000);
        let reserve = |stage, op| {
            let due_ns = buckets.at((stage, op, 1)).reserve(1_000_000_000);
            due_ns as i64 - 1_000_000_000
        };
        let free = |stage, op| !buckets.limits(stage, op);
        assert!(!free(0, Op::Read) && free(0, Op::Write) && free(1, Op::Read));
        assert!(!free(1, Op::Write) && !free(2, Op::Read) && !free(2, Op::Write));
        assert_eq!([0, 1, 2].map(|_| reserve(0, Op::Read)), [0, 1_000_000, 2_000_000]);
        assert_eq!([0, 1].map(|_| reserve(1, Op::Write)), [0, 1_000_000]);
        assert_eq!(reserve(2, Op::Read), 0);
        assert_eq!([0, 1].map(|_| reserve(2, Op::Discard)), [500_000, 1_000_000]);
    }

    #[test]
    fn what_is_not_used_is_saved_up_for_the_burst_and_no_longer() {
        let buckets = TokenBuckets::<Native>::new(&limits(1000, None, 5_000_000), 0);
        let now_ns = 60_000_000_000;
        let due: Vec<u64> = (0..8).map(|_| buckets.at((2, Op::Read, 8)).reserve(now_ns)).collect();
        let at_once = due.iter().filter(|due_ns| **due_ns <= now_ns).count();
        assert_eq!((at_once, due[7] - now_ns), (6, 2_000_000));
        assert_eq!(
            [0, 1_000_000].map(|more| buckets.ahead_ns(now_ns + more)),
            [3_000_000, 2_000_000]
        );
    }

    #[test]
    fn new_rate_keeps_spent_tokens_and_drops_waiters() {
        let of = |iops| limits(iops, None, 2_000_000);
        let (slow, fast) = (of(1000), of(4000));
        let buckets = TokenBuckets::<Native>::new(&slow, 0);
        let (io, now_ns) = ((2, Op::Read, 8), 1_000_000_000);
        for after_ns in [0, 0, 0, 1_000_000] {
            let due_ns = buckets.at(io).reserve(now_ns);
            assert_eq!(due_ns.saturating_sub(now_ns), after_ns);
            if due_ns > now_ns {
                buckets.at(io).wait();
            }
        }
        let buckets = buckets.changed(&fast, now_ns);
        assert_eq!(buckets.ahead_ns(now_ns), 250_000, "a millisecond was paid ahead");
        // 500 us of unused capacity at 4000 IOPS are worth 2 ms at 1000 IOPS.
        let buckets = buckets.changed(&slow, now_ns + 750_000);
        assert_eq!(buckets.at(io).reserve(now_ns + 750_000), now_ns - 1_250_000);
        // While there is no limit, I/O is not counted, so nothing is carried over.
        let buckets = buckets.changed(&GroupLimits::default(), now_ns);
        assert_eq!(buckets.ahead_ns(now_ns), 0);
    }

    #[test]
    fn second_change_before_waiters_hear_of_the_first_is_fair() {
        let of = |rate| limits(1 << 40, Some(rate), 1_000_000);
        let (slow, fast) = (of(4_000_000), of(5_000_000));
        let buckets = TokenBuckets::<Native>::new(&slow, 0);
        let (io, now_ns) = ((3, Op::Write, 65_536), 1_000_000_000);
        assert!(buckets.at(io).reserve(now_ns) <= now_ns);
        assert!(buckets.at(io).reserve(now_ns) > now_ns + 8_000_000_000);
        buckets.at(io).wait();
        let first = buckets.changed(&fast, now_ns);
        let second = first.changed(&slow, now_ns + 1_000_000);
        // A thread that knows of neither change books a time and gives it back.
        buckets.at(io).reserve(now_ns);
        [0, 1].iter().for_each(|_| buckets.at(io).leave());
        let due_ns = second.at(io).reserve(now_ns + 1_000_000);
        assert_eq!((due_ns - now_ns) / 100_000_000, 83, "32 MiB at 4 MB a second");
    }

    #[test]
    fn a_time_that_is_given_back_is_there_for_others() {
        let buckets = TokenBuckets::<Native>::new(&limits(1000, None, 1_000_000), 0);
        let (io, now_ns) = ((2, Op::Read, 8), 1_000_000_000);
        let due = |_: &u64| buckets.at(io).reserve(now_ns).saturating_sub(now_ns);
        assert_eq!([0; 4].map(|at| due(&at)), [0, 0, 1_000_000, 2_000_000]);
        for _ in 0..2 {
            buckets.at(io).wait();
            buckets.at(io).give_back();
        }
        assert_eq!([0; 2].map(|at| due(&at)), [1_000_000, 2_000_000]);
    }

    #[test]
    fn very_long_io_goes_in_turn_and_later_ones_pay() {
        let buckets = TokenBuckets::<Native>::new(&limits(1 << 50, Some(4096), 1_000_000), 0);
        let reserve = |sectors| buckets.at((3, Op::Write, sectors)).reserve(1_000_000_000);
        assert!(reserve(1 << 20) <= 1_000_000_000);
        // 512 MiB at 4 KiB a second take 131,072 seconds.
        assert_eq!(reserve(1) / 1_000_000_000, 131_072);
    }

    proptest! {
        #[test]
        fn no_window_has_more_than_its_length_and_the_burst_allow(
            iops in prop_oneof![1u64..2000, 1_000_000u64..3_000_000],
            burst_ns in 1_000_000u64..50_000_000,
            pauses in prop::collection::vec(
                prop_oneof![4 => Just(0u64), 1 => 0u64..30_000_000], 1..300,
            ),
            window_ns in 1u64..100_000_000,
        ) {
            let buckets = TokenBuckets::<Native>::new(&limits(iops, None, burst_ns), 0);
            let mut now_ns = 1_000_000_000;
            let mut starts = Vec::new();
            for pause_ns in pauses {
                now_ns += pause_ns;
                starts.push(buckets.at((2, Op::Read, 8)).reserve(now_ns).max(now_ns));
            }
            prop_assert!(starts.is_sorted());
            let most = (window_ns + burst_ns) as f64 * iops as f64 / 1e9 * 1.0001 + 2.0;
            for (first, start_ns) in starts.iter().enumerate() {
                let end_ns = start_ns + window_ns;
                let inside = starts[first..].iter().take_while(|start| **start < end_ns).count();
                prop_assert!(inside as f64 <= most, "{inside} in a window, {most} allowed");
            }
        }

        #[test]
        fn changes_of_a_limit_let_no_more_through_than_the_limits_do(
            iops in prop::collection::vec(100u64..4000, 1..60),
            pauses in prop::collection::vec(0u64..3_000_000, 60),
            sectors in prop_oneof![Just(8u32), 8u32..4096],
            burst_ns in 1_000_000u64..5_000_000,
        ) {
            let of = |iops: u64| limits(1 << 40, Some(iops * 4096), burst_ns);
            let mut buckets = TokenBuckets::<Native>::new(&of(iops[0]), 1_000_000_000);
            let (io, mut now_ns) = ((3, Op::Read, sectors), 1_000_000_000);
            let (mut passed, mut allowed) = (0u64, 0.0);
            for (iops, pause_ns) in iops.iter().zip(&pauses) {
                buckets = buckets.changed(&of(*iops), now_ns);
                let end_ns = now_ns + pause_ns;
                // A single I/O waits until it is due or until the limit changes.
                loop {
                    let due_ns = buckets.at(io).reserve(now_ns);
                    if due_ns > end_ns {
                        buckets.at(io).wait();
                        break;
                    }
                    now_ns = now_ns.max(due_ns);
                    passed += u64::from(sectors) * 512;
                }
                now_ns = end_ns;
                allowed += *pause_ns as f64 / 1e9 * (*iops * 4096) as f64;
            }
            let most = allowed * 1.0001 + f64::from(sectors) * 512.0 + 4096.0;
            prop_assert!(passed as f64 <= most, "{passed} bytes, {most} allowed");
            // Except for the I/O that still waits, no less is let through either.
            let least = allowed * 0.999 - f64::from(sectors) * 512.0 - 4096.0;
            prop_assert!(passed as f64 >= least, "{passed} bytes, {least} are due");
        }
    }
}
