//! `DriveDepth`: decides how many requests may be at a shared drive.
//!
//! The depth is the smallest that keeps the drive busy; further requests wait in queues, where they
//! can still be reordered. For `fair` there are two rules. While some group has less at the drive
//! than its share of the depth, the rule compares service times with the shortest ones lately seen
//! for the same size class and direction: above some multiple of these the depth shrinks, and below
//! a lower multiple it grows if it held requests back. Every few seconds a few requests run on a
//! nearly empty drive to measure the shortest time. While all groups have more than their share,
//! the dispatch order alone determines the shares, and the depth grows as long as throughput grows
//! with it (climb.rs). For `latency`, the groups' targets limit the other groups as well
//! (target_depth.rs). Source: Brakmo and Peterson, 1995 (TCP Vegas); Cardwell et al., 2016 (BBR's
//! probe). Kernel counterpart: block/kyber-iosched.c, block/blk-iolatency.c.

use crate::bio::Op;
use crate::queue::scheduler::DriveTags;
use crate::queue::scheduler::cost::REQUEST;
use crate::queue::scheduler::share::climb::ThroughputSearch;
use crate::queue::scheduler::share::seen::{QueueCounts, QueueReports};
use crate::queue::scheduler::share::target_depth::TargetDepth;
use crate::queue::scheduler::share::times::{CLASSES, ClassSums, class_of, ns_of};

/// The rule by which a drive is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The drive is shared by weights, with just enough requests at the drive to keep it busy.
    Weights,
    /// The drive is shared by latency targets, with as many requests of groups without a target at
    /// the drive as the targets allow.
    Targets,
}

/// Number of requests that suffice for a decision about the depth.
const DECIDE_IOS: u64 = 64;
/// Number of requests that suffice if only groups without waiting requests are counted.
const LIGHT_IOS: u64 = 8;
/// Minimum time between two decisions about the depth, in nanoseconds.
const DECIDE_NS: u64 = 1_000_000;
/// Service times relative to the shortest one, as base-2 logarithms in 64ths: above 1.3 times, the
/// depth stops growing; above 1.5 times, the depth shrinks.
const SHALLOW: [u64; 2] = [24, 37];
/// Like [`SHALLOW`], but 1.7 and 2.25 times: for requests larger than two small ones on average,
/// because even a few large requests delay others.
const SHALLOW_BESIDE_LARGE: [u64; 2] = [48, 75];
/// Like the first value of [`SHALLOW`], but 1.6 times: while no group has less than its share.
const DEEP: u64 = 43;
/// Smallest and largest value of the minimum depth, which is otherwise the number of active queues.
const LEAST: (u32, u32) = (2, 8);
/// Initial depth: 16 small requests.
const FIRST: u64 = 16 * REQUEST as u64;
/// Largest mean size of requests that is counted, as a multiple of a small request.
const HEAVIEST: u64 = 1 << 10;
/// Nanoseconds between two latency probes.
const PROBE_NS: u64 = 5_000_000_000;
/// Number of requests in each half of a latency probe.
const PROBE_IOS: u64 = 24;
/// Nanoseconds that each half of a probe may take, so that a request stuck at the drive cannot
/// extend it. The second half may take this long for each of [`LIGHT_IOS`] requests of groups
/// without waiting requests, because such a request may wait for a long one of another group.
const PROBE_HALF_NS: u64 = 100_000_000;
/// Nanoseconds until the first probe after several groups became active.
const FIRST_PROBE_NS: u64 = 20_000_000;

/// Phase of a latency probe, which measures the shortest service times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbePhase {
    /// The probe waits for requests that were dispatched earlier, while the drive was busy.
    Drains,
    /// The probe measures the service times of requests dispatched to the nearly empty drive.
    Counts,
}

/// The depth limit of a drive, and the measurements that decide it. Depths are in 16ths of a small
/// request ([`DepthWeights`](crate::queue::scheduler::cost::DepthWeights)).
pub(crate) struct DriveDepth {
    /// Depth by direction; `None` if unlimited.
    depth: Option<[u32; 2]>,
    /// Smallest depth that the drive may get, in requests.
    least: u32,
    /// The depth that keeps the drive busy. Its maximum `bound_max` is `most`, scaled to the mean
    /// size of the requests at the drive.
    bound: u64,
    bound_max: u64,
    /// Largest depth while all requests are small; an eighth of the tags stays free.
    most: u64,
    targets: TargetDepth,
    /// Requests completed since the last decision.
    counts: QueueCounts,
    decided_ns: u64,
    /// Shortest mean service times by class, as logarithms: since the last probe, and between the
    /// last two probes.
    shortest: [[u64; CLASSES]; 2],
    probe_ns: u64,
    probing: Option<ProbePhase>,
    climb: ThroughputSearch,
}

impl DriveDepth {
    /// Creates the depth of a drive with these tags.
    pub(crate) fn new(DriveTags { tags, .. }: DriveTags) -> Self {
        let most = u64::from((tags - tags / 8).max(1)) * u64::from(REQUEST);
        DriveDepth {
            depth: None,
            least: LEAST.0.min((most / u64::from(REQUEST)) as u32),
            bound: most.min(FIRST),
            bound_max: most,
            most,
            targets: TargetDepth::new(most * HEAVIEST),
            counts: QueueCounts::default(),
            decided_ns: 0,
            shortest: [[u64::MAX; CLASSES]; 2],
            probe_ns: 0,
            probing: None,
            climb: ThroughputSearch::default(),
        }
    }

    /// Returns true if the depth is unlimited.
    pub(crate) fn is_off(&self) -> bool {
        self.depth.is_none()
    }

    /// Returns the depth for reads; `None` if unlimited.
    pub(crate) fn bound(&self) -> Option<u64> {
        self.depth.map(|_| self.bound.min(self.targets.ways()[0]))
    }

    /// Returns the shortest known service time of reads of this size, or of writes if there were no
    /// reads.
    pub(crate) fn shortest_ns(&self, sectors: u32) -> Option<u64> {
        let known = |op| {
            let class = class_of(op, sectors);
            self.shortest.iter().map(|era| era[class]).min().filter(|log| *log != u64::MAX)
        };
        known(Op::Read).or_else(|| known(Op::Write)).map(ns_of)
    }

    /// Removes the limit.
    pub(crate) fn off(&mut self) -> [u32; 2] {
        self.depth = None;
        [u32::MAX; 2]
    }

    /// Returns true if the depth is limited and no latency probe is running.
    pub(crate) fn is_usual(&self) -> bool {
        self.depth.is_some() && self.probing.is_none()
    }

    /// Returns, for reads and for writes, true if latency targets limit the depth below `bound`.
    pub(crate) fn by_targets(&self) -> [bool; 2] {
        self.targets.ways().map(|way| way < self.bound)
    }

    /// Schedules a latency probe soon.
    pub(crate) fn look_soon(&mut self, now_ns: u64) {
        self.probe_ns = self.probe_ns.min(now_ns + FIRST_PROBE_NS);
    }

    /// Computes the depth from now on, for reads and for writes.
    pub(crate) fn next(&mut self, seen: &QueueReports, policy: Policy, now_ns: u64) -> [u32; 2] {
        let most = (self.most / u64::from(REQUEST)) as u32;
        self.least = seen.queues.clamp(LEAST.0, LEAST.1).min(most);
        if let Some(weight) = seen.taken.checked_div(seen.in_flight.into()) {
            let weight = weight.clamp(REQUEST.into(), HEAVIEST * u64::from(REQUEST));
            self.bound_max = self.most * weight / u64::from(REQUEST);
        }
        self.counts.add(&seen.counts);
        if self.depth.is_none() && now_ns >= self.probe_ns {
            // Until the first probe, I/O completes that bypassed the scheduler while only one group
            // was active.
            (self.probe_ns, self.probing) = (now_ns + FIRST_PROBE_NS, None);
            self.shortest = [[u64::MAX; CLASSES]; 2];
        }
        if policy == Policy::Targets {
            self.targets.look(seen, self.bound, now_ns);
        }
        self.look_at_times(seen, now_ns);
        let extra = self.climb.extra(self.bound);
        let depth = self.targets.ways().map(|way| match self.probing {
            Some(_) => self.least * REQUEST,
            None => ((self.bound + extra).max(seen.floor).min(way).min(self.bound_max) as u32)
                .max(REQUEST),
        });
        *self.depth.insert(depth)
    }

    /// Adjusts the depth by service times.
    fn look_at_times(&mut self, seen: &QueueReports, now_ns: u64) {
        let (ios, light) = (self.counts.sums.ios(), self.counts.light.ios());
        let elapsed_ns = now_ns.saturating_sub(self.decided_ns);
        let lasts = elapsed_ns >= PROBE_HALF_NS;
        let waits_for_light =
            (1..LIGHT_IOS).contains(&light) && elapsed_ns < PROBE_HALF_NS * (1 + light);
        // Each queue may always have one request in flight.
        let few = seen.in_flight <= self.least.max(seen.queues);
        match self.probing {
            Some(ProbePhase::Drains) if few && ios >= PROBE_IOS || lasts => {
                self.probing = Some(ProbePhase::Counts);
                return self.start_over(now_ns);
            }
            Some(ProbePhase::Counts) if (ios >= PROBE_IOS || lasts) && !waits_for_light => {
                self.learn();
                self.probing = None;
                return self.start_over(now_ns);
            }
            Some(_) => return self.climb.stop(),
            None => {}
        }
        match seen.shallow {
            true => self.climb.stop(),
            false => {
                let base = self.bound;
                let by = self.climb.look(seen, base, now_ns);
                self.set_bound((base as i64 * (1024 + by) + 512) as u64 / 1024);
            }
        }
        let is_light = seen.shallow && light >= LIGHT_IOS;
        let is_known = ios >= DECIDE_IOS;
        if !(is_known || is_light) || now_ns < self.decided_ns + DECIDE_NS {
            return;
        }
        if is_known && now_ns >= self.probe_ns {
            self.shortest = [[u64::MAX; CLASSES], self.shortest[0]];
            self.probe_ns = now_ns + PROBE_NS;
            self.probing = Some(ProbePhase::Drains);
            return self.start_over(now_ns);
        }
        if is_known {
            self.learn();
        }
        // If `is_light`, only groups without waiting requests count: a group with many requests
        // delays only itself.
        let over = self.over(if is_light { &self.counts.light } else { &self.counts.sums });
        let [grows, most] = match seen.shallow {
            true if seen.taken > u64::from(2 * REQUEST * seen.in_flight) => SHALLOW_BESIDE_LARGE,
            true => SHALLOW,
            false => [DEEP, u64::MAX],
        };
        if over > most {
            self.set_bound(self.bound * 4 / 5);
        } else if over < grows && self.counts.full {
            self.set_bound(self.bound + self.bound / 8 + 8);
        }
        let sums = if is_known { ClassSums::default() } else { self.counts.sums };
        self.start_over(now_ns);
        self.counts.sums = sums;
    }

    /// Sets the depth that keeps the drive busy, within its limits.
    fn set_bound(&mut self, bound: u64) {
        self.bound = bound.clamp(u64::from(self.least * REQUEST), self.bound_max);
    }

    fn start_over(&mut self, now_ns: u64) {
        (self.counts, self.decided_ns) = (QueueCounts::default(), now_ns);
    }

    /// Updates the shortest service times.
    fn learn(&mut self) {
        for (class, log) in self.counts.sums.means() {
            self.shortest[0][class] = self.shortest[0][class].min(log);
        }
    }

    /// Returns the largest ratio of mean to shortest service time of a class, as log2 in 64ths.
    fn over(&self, sums: &ClassSums) -> u64 {
        let shortest = |class: usize| self.shortest[0][class].min(self.shortest[1][class]);
        sums.means().map(|(class, log)| log.saturating_sub(shortest(class))).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
