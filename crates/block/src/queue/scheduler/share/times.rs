//! `ClassSums` and `LatencyCounts`: how long requests took, by kind and by group.
//!
//! What queues count and post, and depth.rs decides by. A mean of logarithms for each kind of
//! request: the few that take a hundred times as long hardly move it. A histogram for each group
//! that has a latency target.

use crate::bio::Op;
use crate::group::config::LatencyTarget;
use crate::queue::scheduler::Done;

/// Kinds of requests: two ways, eight sizes.
pub(crate) const CLASSES: usize = 16;
/// Time that does not count: a drive that answers at once has none to compare.
const SLACK_NS: u64 = 2_000;
/// Buckets of latencies: four for each power of two.
const BUCKETS: usize = 160;

/// How long requests of each kind took at the drive: how many, and the sum of the logarithms of
/// their times. A mean of those is moved little by the few that take a hundred times as long.
#[derive(Default, Clone, Copy)]
pub(crate) struct ClassSums(pub(crate) [(u64, u64); CLASSES]);

/// The kind of a request.
#[inline]
pub(crate) fn class_of(op: Op, sectors: u32) -> usize {
    let size = (sectors >> 3).checked_ilog2().map_or(0, |log| log.min(7));
    let way = if op == Op::Read { 0 } else { CLASSES / 2 };
    way + size as usize
}

/// The logarithm of a time to base 2, in 64ths; a time far below [`SLACK_NS`] does not count.
fn log_of(ns: u64) -> u64 {
    let ns = ns.saturating_add(SLACK_NS);
    let log = u64::from(ns.ilog2());
    // Straight between powers of two, which is off by 6 % at most.
    let part = if log >= 6 { (ns >> (log - 6)) & 63 } else { (ns << (6 - log)) & 63 };
    log * 64 + part
}

/// The time of a logarithm.
pub(crate) fn ns_of(log: u64) -> u64 {
    let power = 1u64 << (log / 64).min(62);
    (power + power / 64 * (log % 64)).saturating_sub(SLACK_NS)
}

impl ClassSums {
    /// Adds a request.
    #[inline]
    pub(crate) fn count(&mut self, done: &Done) {
        let (ios, logs) = &mut self.0[class_of(done.op, done.nr_sectors)];
        *ios += 1;
        *logs += log_of(done.done_ns.saturating_sub(done.picked_ns));
    }

    /// Adds those of somebody else.
    pub(crate) fn add(&mut self, other: &ClassSums) {
        for (sum, (ios, logs)) in self.0.iter_mut().zip(&other.0) {
            *sum = (sum.0 + ios, sum.1 + logs);
        }
    }

    /// How long I/Os of a way usually took, in nanoseconds.
    pub(crate) fn of_way(&self, way: usize) -> u64 {
        let classes = self.0[way * CLASSES / 2..][..CLASSES / 2].iter();
        let (ios, logs) =
            classes.fold((0, 0), |(ios, logs), (more, their)| (ios + more, logs + their));
        logs.checked_div(ios).map_or(0, ns_of)
    }

    /// How long I/Os of any kind usually took, in nanoseconds.
    pub(crate) fn usual_ns(&self) -> u64 {
        let logs = self.0.iter().map(|(_, logs)| logs).sum::<u64>();
        logs.checked_div(self.ios()).map_or(0, ns_of)
    }

    pub(crate) fn ios(&self) -> u64 {
        self.0.iter().map(|(ios, _)| ios).sum()
    }
}

/// How long I/Os of a group took, from their submission.
pub(crate) struct LatencyCounts {
    pub(crate) ios: u64,
    sum_ns: u64,
    buckets: [u32; BUCKETS],
}

impl Default for LatencyCounts {
    fn default() -> Self {
        LatencyCounts { ios: 0, sum_ns: 0, buckets: [0; BUCKETS] }
    }
}

fn bucket(ns: u64) -> usize {
    let log = (ns | 4).ilog2();
    ((log as usize) * 4 + ((ns >> (log - 2)) & 3) as usize).min(BUCKETS - 1)
}

impl LatencyCounts {
    /// Adds one.
    pub(crate) fn count(&mut self, ns: u64) {
        self.ios += 1;
        self.sum_ns += ns;
        self.buckets[bucket(ns)] += 1;
    }

    /// Adds all of another.
    pub(crate) fn add(&mut self, other: &LatencyCounts) {
        self.ios += other.ios;
        self.sum_ns += other.sum_ns;
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(own, more)| *own += more);
    }

    /// Takes all of another over, which is empty then.
    pub(crate) fn take(&mut self, other: &mut LatencyCounts) {
        self.add(other);
        *other = LatencyCounts::default();
    }

    /// How long they took, in 1,024ths of the target.
    pub(crate) fn over(&self, target: LatencyTarget) -> u64 {
        let ns = match target {
            LatencyTarget::Mean(_) => self.sum_ns / self.ios.max(1),
            LatencyTarget::Percentile(of, _) => {
                let above = self.ios - self.ios * u64::from(of) / 10_000;
                let mut left = above.max(1);
                let place = self.buckets.iter().rposition(|count| {
                    let count = u64::from(*count);
                    let found = count >= left;
                    left -= count.min(left);
                    found
                });
                // The middle of the bucket.
                let place = place.unwrap_or(0) as u64;
                let start = (4 + (place & 3)) << (place / 4) >> 2;
                start + (1 << (place / 4)) / 8
            }
        };
        (ns << 10) / target.ns().max(1)
    }
}
