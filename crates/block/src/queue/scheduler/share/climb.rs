//! `ThroughputSearch`: finds the depth beyond which a drive's throughput hardly grows.
//!
//! The depth alternates between a base and a quarter above it, in phases of some milliseconds.
//! After each phase the base moves in proportion to the gain in throughput at the higher depth: up
//! if the gain is large enough, down if it is not. Drives are noisy, so one phase moves the base by
//! a few percent only. Called by depth.rs under the allocation's lock. Source: Delimitrou and
//! Kozyrakis do the same search for cores (ASPLOS 2014); Robbins and Monro, 1951 (stochastic
//! approximation).

use crate::queue::scheduler::cost;
use crate::queue::scheduler::share::seen::QueueReports;

/// Divisor of the base depth that gives the additional depth of every second phase.
const PART: u64 = 4;
const REQUEST: u64 = cost::REQUEST as u64;
/// Shortest unmeasured time at the start of a phase, in nanoseconds, because requests of the
/// previous phase still complete.
const SETTLE_NS: u64 = 1_000_000;
/// Smallest number of I/Os in the unmeasured time at the start of a phase.
const SETTLE_IOS: u64 = 32;
/// Minimum length of the measured part of a phase, in nanoseconds.
const TURN_NS: u64 = 8_000_000;
/// Minimum number of I/Os in the measured part of a phase.
const TURN_IOS: u64 = 128;
/// Gain in throughput, in 1,024ths, that makes a quarter more depth worthwhile: 1 %. Where
/// throughput levels off gradually, the search then reaches 95 % of the drive's maximum.
const WORTH: i64 = 10;
/// Largest gain or loss in throughput, in 1,024ths, that is counted for one phase.
const MOST: i64 = 256;
/// Divisor: the depth changes by the gain in throughput over this number.
const STEP: i64 = 2;
/// Smallest decrease of the depth, in 1,024ths of the depth: 1.5 %.
const LEAST: i64 = 15;

/// A phase of the search, with the drive's throughput since the phase began.
#[derive(Default)]
struct SearchPhase {
    since_ns: u64,
    ios: u64,
    served: u64,
    /// True if the depth limit held requests back during the phase.
    full: bool,
    counts: bool,
}

/// State of the search, which is off at first.
#[derive(Default)]
pub(crate) struct ThroughputSearch {
    is_on: bool,
    is_high: bool,
    turn: SearchPhase,
    /// Cost served per nanosecond in the previous phase, in 65,536ths of a nanosecond; `None` if
    /// the depth limit held no requests back in that phase.
    other: Option<u64>,
}

impl ThroughputSearch {
    /// Returns the depth that is added to `base` at present, in 16ths of a small request.
    pub(crate) fn extra(&self, base: u64) -> u64 {
        if self.is_on && self.is_high { extra(base) } else { 0 }
    }

    /// Stops the search.
    pub(crate) fn stop(&mut self) {
        self.is_on = false;
    }

    /// Adds the queues' reports. Returns the change of the base depth, in 1,024ths of that depth.
    pub(crate) fn look(&mut self, seen: &QueueReports, base: u64, now_ns: u64) -> i64 {
        if !self.is_on {
            *self = ThroughputSearch { is_on: true, ..ThroughputSearch::default() };
            self.turn.since_ns = now_ns;
            return 0;
        }
        let turn = &mut self.turn;
        turn.ios += seen.counts.sums.ios();
        turn.served += seen.served;
        turn.full |= seen.counts.full;
        let elapsed_ns = now_ns.saturating_sub(turn.since_ns).max(1);
        if !turn.counts {
            if elapsed_ns >= SETTLE_NS && turn.ios >= SETTLE_IOS {
                *turn = SearchPhase { since_ns: now_ns, counts: true, ..SearchPhase::default() };
            }
            return 0;
        }
        if elapsed_ns < TURN_NS || turn.ios < TURN_IOS {
            return 0;
        }
        let rate = turn.full.then_some((turn.served << 16) / elapsed_ns);
        let other = core::mem::replace(&mut self.other, rate);
        let is_high = self.is_high;
        self.is_high = !is_high;
        self.turn = SearchPhase { since_ns: now_ns, ..SearchPhase::default() };
        match (rate, other) {
            (Some(rate), Some(other)) if is_high => step((rate, other), base),
            (Some(rate), Some(other)) => step((other, rate), base),
            _ => 0,
        }
    }
}

/// Returns the depth that every second phase adds to `base`, in 16ths of a small request.
fn extra(base: u64) -> u64 {
    (base / PART).max(REQUEST)
}

/// Returns the change of the base, in 1,024ths of the base, for the throughputs of two phases.
fn step((high, low): (u64, u64), base: u64) -> i64 {
    let gain = (high << 10) / low.max(1);
    // More than a quarter of additional depth must bring a proportionally larger gain.
    let worth = WORTH * (extra(base) * PART) as i64 / base.max(1) as i64;
    let by = (gain as i64 - 1024).clamp(-MOST, MOST).saturating_sub(worth) / STEP;
    // If the gain is too small, even if only slightly, the depth drops by at least `LEAST`.
    if by < 0 { by.min(-LEAST) } else { by }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::Op;
    use crate::bio::group_id::GroupId;
    use crate::bio::status::Status;
    use crate::queue::scheduler::CompletedChain;

    /// The queues' reports after 32 completed reads whose total cost is `served`.
    fn seen(served: u64) -> QueueReports {
        let done = CompletedChain {
            op: Op::Read,
            nr_sectors: 8,
            tenant: 0,
            group: GroupId::DEFAULT,
            queued_ns: 0,
            picked_ns: 0,
            done_ns: 100_000,
            status: Some(Status::Ok),
        };
        let mut seen = QueueReports::default();
        (seen.served, seen.counts.full) = (served, true);
        (0..32).for_each(|_| seen.counts.sums.count(&done));
        seen
    }

    /// Returns the depth at which the search ends, for a drive that serves a cost of `does(depth)`
    /// in 500 us. In half of the steps the drive serves `noise` percent less.
    fn found(from: u64, noise: u64, does: impl Fn(u64) -> u64) -> u64 {
        let (mut climb, mut depth) = (ThroughputSearch::default(), from * 16);
        for step in 0..6_000u64 {
            let at = (depth + climb.extra(depth)) / 16;
            let less = if step / 37 % 2 == 0 { 0 } else { noise };
            let by = climb.look(&seen(does(at) * (100 - less) / 100), depth, step * 500_000);
            depth = ((depth as i64 * (1024 + by) + 512) / 1024).clamp(16, 16 * 256) as u64;
        }
        depth / 16
    }

    #[test]
    fn the_depth_goes_where_a_quarter_more_brings_one_percent() {
        let flat_from_32 = |depth: u64| depth.min(32) * 10_000;
        for from in [4, 16, 200] {
            let (calm, noisy) = (found(from, 0, flat_from_32), found(from, 20, flat_from_32));
            assert!((24..=36).contains(&calm), "from {from}: {calm}");
            assert!((20..=60).contains(&noisy), "from {from}, with noise: {noisy}");
        }
        // A drive with 20 units at which requests queue by chance reaches 95 % of its maximum at a
        // depth of 361.
        let by_chance = |depth: u64| depth * 1_000_000 / (depth + 19);
        for from in [16, 200] {
            let depth = found(from, 0, by_chance);
            assert!(by_chance(depth) >= 900_000, "from {from}: {depth}");
        }
        // The throughput is the square root of the depth, so a quarter more depth brings 12 % at
        // any depth.
        for from in [2, 3, 16] {
            assert_eq!(found(from, 0, |depth| (depth * 1_000_000).isqrt()), 256, "from {from}");
        }
    }

    #[test]
    fn a_depth_that_holds_nothing_back_stays() {
        let mut climb = ThroughputSearch::default();
        // The drive gets faster with each step, whatever the depth. If the search took that for an
        // effect of the depth, the depth would rise.
        let moved = (0..1_000).map(|step| {
            let mut seen = seen(step * step);
            seen.counts.full = false;
            climb.look(&seen, 160, step * 500_000)
        });
        assert_eq!(moved.sum::<i64>(), 0);
    }
}
