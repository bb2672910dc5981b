//! Service times of requests by size class (`ClassSums`), and latencies of groups
//! (`LatencyCounts`).
//!
//! The hardware queues measure these times, and depth.rs uses them to choose the depth limit of the
//! drive. For each size class, the mean of the logarithms is kept: a few very slow requests hardly
//! change it. For each group with a latency target, a histogram of latencies is kept.

use crate::bio::Op;
use crate::group::config::LatencyTarget;
use crate::queue::scheduler::CompletedChain;

/// Number of request classes: two directions, eight sizes.
pub(crate) const CLASSES: usize = 16;
/// Nanoseconds added to each service time before its logarithm is taken. Otherwise tiny differences
/// between very short times would count as large ratios.
const SLACK_NS: u64 = 2_000;
/// Latency buckets: four for each power of two.
const BUCKETS: usize = 160;

/// Number of requests of each class (direction and size), and sum of the logarithms of their
/// service times. 32 bits suffice for a million requests of a class.
#[derive(Default, Clone, Copy)]
pub(crate) struct ClassSums(pub(crate) [(u32, u32); CLASSES]);

#[inline]
pub(crate) fn class_of(op: Op, sectors: u32) -> usize {
    let size = (sectors >> 3).checked_ilog2().map_or(0, |log| log.min(7));
    let way = if op == Op::Read { 0 } else { CLASSES / 2 };
    way + size as usize
}

/// Returns log2(`ns` + [`SLACK_NS`]), in 64ths.
fn log_of(ns: u64) -> u64 {
    let ns = ns.saturating_add(SLACK_NS);
    let log = u64::from(ns.ilog2());
    // The logarithm is interpolated linearly between powers of two. The represented time is off by
    // at most 6 %.
    let part = if log >= 6 { (ns >> (log - 6)) & 63 } else { (ns << (6 - log)) & 63 };
    log * 64 + part
}

pub(crate) fn ns_of(log: u64) -> u64 {
    let power = 1u64 << (log / 64).min(62);
    (power + power / 64 * (log % 64)).saturating_sub(SLACK_NS)
}

impl ClassSums {
    #[inline]
    pub(crate) fn count(&mut self, done: &CompletedChain) {
        let log = log_of(done.done_ns.saturating_sub(done.picked_ns)) as u32;
        let (ios, logs) = &mut self.0[class_of(done.op, done.nr_sectors)];
        if let Some(sum) = logs.checked_add(log) {
            (*ios, *logs) = (*ios + 1, sum);
        }
    }

    pub(crate) fn add(&mut self, other: &ClassSums) {
        for (sum, (ios, logs)) in self.0.iter_mut().zip(&other.0) {
            if let Some(logs) = sum.1.checked_add(*logs) {
                *sum = (sum.0 + ios, logs);
            }
        }
    }

    /// Returns the typical (geometric mean) service time of one direction, in nanoseconds.
    pub(crate) fn of_way(&self, way: usize) -> u64 {
        usual_ns(&self.0[way * CLASSES / 2..][..CLASSES / 2])
    }

    pub(crate) fn usual_ns(&self) -> u64 {
        usual_ns(&self.0)
    }

    /// Returns each request class (direction and size) with at least eight requests, and the mean
    /// logarithm of its service times.
    pub(crate) fn means(&self) -> impl Iterator<Item = (usize, u64)> {
        let known = self.0.iter().enumerate().filter(|(_, (ios, _))| *ios >= 8);
        known.map(|(class, (ios, logs))| (class, u64::from(logs / ios)))
    }

    pub(crate) fn ios(&self) -> u64 {
        self.0.iter().map(|(ios, _)| u64::from(*ios)).sum()
    }
}

fn usual_ns(classes: &[(u32, u32)]) -> u64 {
    let add = |(ios, logs), (more, their): &(u32, u32)| {
        (ios + u64::from(*more), logs + u64::from(*their))
    };
    let (ios, logs) = classes.iter().fold((0, 0), add);
    logs.checked_div(ios).map_or(0, ns_of)
}

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
    pub(crate) fn count(&mut self, ns: u64) {
        self.ios += 1;
        self.sum_ns += ns;
        self.buckets[bucket(ns)] += 1;
    }

    pub(crate) fn add(&mut self, other: &LatencyCounts) {
        self.ios += other.ios;
        self.sum_ns += other.sum_ns;
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(own, more)| *own += more);
    }

    /// Moves the latencies counted in `other` to `self`, so that `other` is empty afterwards.
    pub(crate) fn take(&mut self, other: &mut LatencyCounts) {
        self.add(other);
        *other = LatencyCounts::default();
    }

    /// Returns the mean or percentile latency in 1,024ths of the target.
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
                // A latency counts as the middle of its bucket.
                let place = place.unwrap_or(0) as u64;
                let start = (4 + (place & 3)) << (place / 4) >> 2;
                start + (1 << (place / 4)) / 8
            }
        };
        (ns << 10) / target.ns().max(1)
    }
}
