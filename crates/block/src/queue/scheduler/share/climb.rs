//! `ThroughputSearch`: finds the depth beyond which a drive's throughput hardly grows.
//!
//! The depth alternates between a base and a quarter above it, in phases of some milliseconds.
//! After each phase the base moves by how much more the drive did at the higher depth: up if the
//! gain is worth it, down if not. Drives are noisy, so one phase moves the base by a few percent
//! only. Called by depth.rs under the allocation's lock. Source: Delimitrou and Kozyrakis do the
//! same search for cores (ASPLOS 2014); Robbins and Monro, 1951 (stochastic approximation).

use crate::queue::scheduler::cost;
use crate::queue::scheduler::share::seen::QueueReports;

/// Divisor of the base that gives the extra depth of a high phase, which is at least one request.
const PART: u64 = 4;
const REQUEST: u64 = cost::REQUEST as u64;
/// Start of a phase that is not measured, because requests of the phase before still complete: in
/// nanoseconds and in I/Os.
const SETTLE_NS: u64 = 1_000_000;
const SETTLE_IOS: u64 = 32;
/// Measured length of a phase, in nanoseconds and in I/Os.
const TURN_NS: u64 = 8_000_000;
const TURN_IOS: u64 = 128;
/// Gain in throughput that makes the extra quarter worthwhile, in 1,024ths: 1 %. Where more depth
/// helps less and less, as for random I/O over several units, this reaches 95 % of the drive's
/// maximum.
const WORTH: i64 = 10;
/// Largest gain or loss that one phase counts for, and the divisor by which it moves the depth.
const MOST: i64 = 256;
const STEP: i64 = 2;
/// Smallest decrease of the depth, in 1,024ths: 1.5 %.
const LEAST: i64 = 15;

/// A phase: the drive's throughput since its start.
#[derive(Default)]
struct SearchPhase {
    since_ns: u64,
    ios: u64,
    served: u64,
    /// True if the depth held requests back.
    full: bool,
    counts: bool,
}

/// State of the search, which is off at first.
#[derive(Default)]
pub(crate) struct ThroughputSearch {
    is_on: bool,
    is_high: bool,
    turn: SearchPhase,
    /// Cost served per nanosecond in the phase before, in 65,536ths; `None` if the depth did not
    /// matter.
    other: Option<u64>,
}

impl ThroughputSearch {
    /// Returns the extra depth above the base at present, in 16ths of a small request.
    pub(crate) fn extra(&self, base: u64) -> u64 {
        if self.is_on && self.is_high { extra(base) } else { 0 }
    }

    /// Stops the search.
    pub(crate) fn stop(&mut self) {
        self.is_on = false;
    }

    /// Adds the queues' reports. Returns by how many 1,024ths the base moves.
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

/// Returns the extra depth of a high phase, in 16ths of a small request.
fn extra(base: u64) -> u64 {
    (base / PART).max(REQUEST)
}

/// Returns by how many 1,024ths the depth moves after a high and a low phase with these rates.
fn step((high, low): (u64, u64), base: u64) -> i64 {
    let gain = (high << 10) / low.max(1);
    // An extra of more than a quarter must bring a proportionally larger gain.
    let worth = WORTH * (extra(base) * PART) as i64 / base.max(1) as i64;
    let by = (gain as i64 - 1024).clamp(-MOST, MOST).saturating_sub(worth) / STEP;
    // A depth without enough gain in throughput is given up quickly, even if it nearly had it.
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

    /// Where the search ends if the drive does so much in 500 us with a depth; half of the time it
    /// does `noise` percent less.
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
        // Twenty places that requests meet at by chance do 95 % of their best at a depth of 361.
        let by_chance = |depth: u64| depth * 1_000_000 / (depth + 19);
        for from in [16, 200] {
            let depth = found(from, 0, by_chance);
            assert!(by_chance(depth) >= 900_000, "from {from}: {depth}");
        }
        // Depth^(1/2): a quarter more brings 12 % wherever it is.
        for from in [2, 3, 16] {
            assert_eq!(found(from, 0, |depth| (depth * 1_000_000).isqrt()), 256, "from {from}");
        }
    }

    #[test]
    fn a_depth_that_holds_nothing_back_stays() {
        let mut climb = ThroughputSearch::default();
        // The drive does more each time: were the depth the reason, it would rise.
        let moved = (0..1_000).map(|step| {
            let mut seen = seen(step * step);
            seen.counts.full = false;
            climb.look(&seen, 160, step * 500_000)
        });
        assert_eq!(moved.sum::<i64>(), 0);
    }
}
