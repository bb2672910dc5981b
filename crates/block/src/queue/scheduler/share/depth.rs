//! `DriveDepth`: decides how many requests may be at a shared drive.
//!
//! The depth is the smallest that keeps the drive busy; further requests wait in queues, where they
//! can still be reordered. For `fair` the depth follows two measurements: the service time relative
//! to the shortest one lately seen for the same size class and direction, and the throughput
//! relative to the drive's capacity. While some group has less at the drive than its share of the
//! depth, the service times of that group decide: the depth falls until these service times are
//! near the shortest ones, unless that costs the drive throughput. Otherwise the depth falls as
//! long as the drive keeps its throughput. Every few seconds a probe measures the capacity at a
//! large depth, and then the shortest times at a small one. For `latency`, the groups' targets
//! limit the other groups as well (target_depth.rs). Source: Brakmo and Peterson, 1995 (TCP Vegas);
//! Cardwell et al., 2016 (BBR's probes). Kernel counterpart: block/kyber-iosched.c,
//! block/blk-iolatency.c.

use crate::bio::Op;
use crate::queue::scheduler::DriveTags;
use crate::queue::scheduler::cost::REQUEST;
use crate::queue::scheduler::share::seen::{QueueCounts, QueueReports};
use crate::queue::scheduler::share::target_depth::TargetDepth;
use crate::queue::scheduler::share::times::{CLASSES, ClassSums, class_of, ns_of};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The drive is shared by weights, with just enough requests at the drive to keep it busy.
    Weights,
    /// The drive is shared by latency targets, with as many requests of groups without a target at
    /// the drive as the targets allow.
    Targets,
}

/// Number of requests after which the depth is decided.
const DECIDE_IOS: u64 = 64;
/// Number of requests after which groups without waiting requests decide the depth.
const LIGHT_IOS: u64 = 8;
/// Minimum time between two decisions about the depth, in nanoseconds.
const DECIDE_NS: u64 = 1_000_000;
/// Limits of the relative service time while some group has less than its share, in 64ths of log2:
/// usually (1.4 times), and while the drive would lose throughput (2.04 times).
const SHALLOW: [i64; 2] = [31, 66];
/// [`SHALLOW`] if requests are larger than two small ones on average, because even a few large
/// requests delay others: 2 and 2.86 times.
const SHALLOW_BESIDE_LARGE: [i64; 2] = [64, 97];
/// Relative service time (1.6 times, in 64ths of log2) up to which the depth grows in any case
/// while no group has less than its share.
const DEEP: i64 = 43;
/// Relative service time (16 times, in 64ths of log2) assumed for groups without waiting requests
/// if the shortest time is unknown.
const UNKNOWN: u64 = 256;
/// A difference of service times, in 64ths of log2, over this divisor is the relative change of the
/// depth. A decision lowers the depth by at most a fifth, and raises it by at most an eighth.
const SLOWNESS: i64 = 192;
/// Part of the drive's capacity, in 1,024ths, that a decision keeps. First two: some group has less
/// than its share, and requests are small or large. Last: no group has less than its share.
const KEPT: [u64; 3] = [980, 1000, 1004];
/// Range, in requests, of the minimum depth, which is otherwise the number of active queues.
const LEAST: (u32, u32) = (2, 8);
/// Initial depth: 16 small requests.
const FIRST: u64 = 16 * REQUEST as u64;
/// Largest mean size of requests that raises `bound_max`, in small requests.
const HEAVIEST: u64 = 1 << 10;
const PROBE_NS: u64 = 5_000_000_000;
/// Number of requests after which the phases `Drains` and `Counts` of a probe end.
const PROBE_IOS: u64 = 24;
/// Longest phase of a probe, in nanoseconds, even if a request is stuck at the drive. `Counts` may
/// take this long for each of [`LIGHT_IOS`] requests of groups without waiting requests, because
/// such a request may wait for a long one of another group.
const PROBE_HALF_NS: u64 = 100_000_000;
/// Nanoseconds until the first probe after several groups became active.
const FIRST_PROBE_NS: u64 = 20_000_000;
/// Multiple of the usual depth while a probe measures the drive's capacity.
const LOAD: u64 = 4;
/// Number of requests after which the phases `Fills` and `Loads` end. If [`PROBE_HALF_NS`] ends
/// `Loads` early, its result counts from [`DECIDE_IOS`] requests on.
const LOAD_IOS: [u64; 2] = [32, 256];
/// Nanoseconds until the capacity is measured again, if it has changed little.
const LOAD_AGAIN_NS: u64 = 4 * PROBE_NS - PROBE_NS / 2;
const LOAD_NS: u64 = 8_000_000;

/// Phase of a probe. `Fills` and `Loads` measure the drive's capacity, and are left out if the
/// drive is too slow. `Drains` and `Counts` measure the shortest service times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbePhase {
    /// The drive is filled with more requests than usual.
    Fills,
    Loads,
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
    least: u32,
    /// The depth that keeps the drive busy, up to `bound_max`, which is `most` for requests of the
    /// present mean size.
    bound: u64,
    bound_max: u64,
    /// Largest depth while all requests are small; an eighth of the tags stays free.
    most: u64,
    targets: TargetDepth,
    counts: QueueCounts,
    /// Cost, in nanoseconds, of the I/O dispatched since the last decision.
    served: u64,
    decided_ns: u64,
    /// Start of the time that `counts.sums` covers.
    since_ns: u64,
    /// Cost served per nanosecond at a large depth, in 65,536ths; 0 if unknown.
    capacity: u64,
    load_ns: u64,
    /// Shortest mean service time of each class, in 64ths of log2: since the last probe, and
    /// between the last two probes.
    shortest: [[u64; CLASSES]; 2],
    probe_ns: u64,
    probing: Option<ProbePhase>,
}

impl DriveDepth {
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
            served: 0,
            decided_ns: 0,
            since_ns: 0,
            capacity: 0,
            load_ns: 0,
            shortest: [[u64::MAX; CLASSES]; 2],
            probe_ns: 0,
            probing: None,
        }
    }

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

    pub(crate) fn off(&mut self) -> [u32; 2] {
        self.depth = None;
        [u32::MAX; 2]
    }

    /// Returns true if the depth is limited and no latency probe is running.
    pub(crate) fn is_usual(&self) -> bool {
        let probes = matches!(self.probing, Some(ProbePhase::Drains | ProbePhase::Counts));
        self.depth.is_some() && !probes
    }

    /// Returns, by direction, true if latency targets allow less depth than keeps the drive busy.
    pub(crate) fn by_targets(&self) -> [bool; 2] {
        self.targets.ways().map(|way| way < self.bound)
    }

    pub(crate) fn look_soon(&mut self, now_ns: u64) {
        self.probe_ns = self.probe_ns.min(now_ns + FIRST_PROBE_NS);
    }

    /// Forgets the drive's capacity, which was measured with other settings, and schedules a probe.
    pub(crate) fn forget(&mut self, now_ns: u64) {
        (self.capacity, self.load_ns) = (0, 0);
        self.look_soon(now_ns);
    }

    pub(crate) fn next(&mut self, seen: &QueueReports, policy: Policy, now_ns: u64) -> [u32; 2] {
        let most = (self.most / u64::from(REQUEST)) as u32;
        self.least = seen.queues.clamp(LEAST.0, LEAST.1).min(most);
        if let Some(weight) = seen.taken.checked_div(seen.in_flight.into()) {
            let weight = weight.clamp(REQUEST.into(), HEAVIEST * u64::from(REQUEST));
            self.bound_max = self.most * weight / u64::from(REQUEST);
        }
        self.counts.add(&seen.counts);
        self.served += seen.served;
        if self.depth.is_none() && now_ns >= self.probe_ns {
            // The first probe waits until I/O has completed that bypassed the scheduler while only
            // one group was active.
            (self.probe_ns, self.probing) = (now_ns + FIRST_PROBE_NS, None);
            self.shortest = [[u64::MAX; CLASSES]; 2];
            (self.capacity, self.load_ns) = (0, 0);
        }
        if policy == Policy::Targets {
            self.targets.look(seen, self.bound, now_ns);
        }
        self.look_at_times(seen, now_ns);
        // `room` is at least a few requests of the present mean size.
        let room = self.bound.max(u64::from(self.least * REQUEST) * self.bound_max / self.most);
        let usual = if seen.shallow || self.capacity == 0 { self.bound } else { room };
        let limit = |depth: u64, way| depth.max(seen.floor).min(way).min(self.bound_max) as u32;
        let depth = self.targets.ways().map(|way| match self.probing {
            Some(ProbePhase::Drains | ProbePhase::Counts) => self.least * REQUEST,
            Some(_) => limit(room * LOAD, way),
            None => limit(usual, way).max(REQUEST),
        });
        *self.depth.insert(depth)
    }

    fn look_at_times(&mut self, seen: &QueueReports, now_ns: u64) {
        if let Some(phase) = self.probing {
            return self.look_at_probe(phase, seen, now_ns);
        }
        let ios = self.counts.sums.ios();
        let light = if seen.shallow { self.counts.light.ios() } else { 0 };
        let elapsed_ns = self.elapsed_ns(now_ns);
        let is_known = ios >= DECIDE_IOS;
        // Groups with many requests do not count, because such a group delays only itself.
        let is_light = light >= LIGHT_IOS;
        let is_enough = is_light || is_known && (light == 0 || elapsed_ns >= PROBE_HALF_NS);
        if !is_enough || elapsed_ns < DECIDE_NS {
            return;
        }
        if is_known && now_ns >= self.probe_ns {
            self.shortest = [[u64::MAX; CLASSES], self.shortest[0]];
            self.probe_ns = now_ns + PROBE_NS;
            // `needs_ns` is the time in which enough requests complete to measure the capacity.
            let needs_ns = now_ns.saturating_sub(self.since_ns) * DECIDE_IOS / ios;
            let is_measurable = needs_ns <= PROBE_HALF_NS;
            self.capacity = if is_measurable { self.capacity } else { 0 };
            let is_due = is_measurable && now_ns >= self.load_ns;
            self.probing = Some(if is_due { ProbePhase::Fills } else { ProbePhase::Drains });
            self.load_ns = if is_due { self.probe_ns } else { self.load_ns };
            return self.start_over(now_ns);
        }
        if is_known {
            self.learn();
        }
        let over = match is_light {
            true => self.over(&self.counts.light, UNKNOWN),
            false => self.over(&self.counts.sums, 0),
        };
        let by = self.step(seen, over as i64, elapsed_ns);
        if by < 0 || self.counts.full {
            let bound = self.bound as i64;
            let by = by.clamp(-SLOWNESS / 5, SLOWNESS / 8);
            self.set_bound((bound + (bound + 64 * i64::from(by > 0)) * by / SLOWNESS) as u64);
        }
        let counted = (self.counts.sums, self.since_ns);
        self.start_over(now_ns);
        if !is_known {
            (self.counts.sums, self.since_ns) = counted;
        }
    }

    /// Returns by how much the service time may grow, in 64ths of log2; negative if it must shrink.
    /// `over` is the present excess over the shortest time, in the same unit.
    fn step(&self, seen: &QueueReports, over: i64, elapsed_ns: u64) -> i64 {
        let is_large = seen.taken > u64::from(2 * REQUEST * seen.in_flight);
        let [usual, longest] = if is_large { SHALLOW_BESIDE_LARGE } else { SHALLOW };
        let kept = KEPT[if seen.shallow { usize::from(is_large) } else { 2 }];
        // Throughput grows with the depth to a power of about a quarter.
        let kept = self.capacity * kept / 1024 * 64 * 4;
        let lack = (kept / self.rate(elapsed_ns).max(1)) as i64 - 64 * 4;
        match seen.shallow {
            true => lack.max(usual - over).min(longest - over),
            false if self.capacity == 0 => (DEEP - over).max(0),
            false => lack.max(DEEP - over),
        }
    }

    fn look_at_probe(&mut self, phase: ProbePhase, seen: &QueueReports, now_ns: u64) {
        let (ios, light) = (self.counts.sums.ios(), self.counts.light.ios());
        let elapsed_ns = self.elapsed_ns(now_ns);
        // Each queue may always have one request in flight.
        let few = seen.in_flight <= self.least.max(seen.queues);
        let is_over = match phase {
            ProbePhase::Fills => ios >= LOAD_IOS[0],
            ProbePhase::Loads => ios >= LOAD_IOS[1] && elapsed_ns >= LOAD_NS,
            ProbePhase::Drains => few && ios >= PROBE_IOS,
            ProbePhase::Counts => {
                let waits_for_light = seen.shallow && (light > 0 || elapsed_ns < LOAD_NS);
                ios >= PROBE_IOS && (light >= LIGHT_IOS || !waits_for_light)
            }
        };
        let is_counting = phase == ProbePhase::Counts && light < LIGHT_IOS;
        let extended_by = if is_counting { light } else { 0 };
        if !is_over && elapsed_ns < PROBE_HALF_NS * (1 + extended_by) {
            return;
        }
        self.probing = match phase {
            ProbePhase::Fills => Some(ProbePhase::Loads),
            ProbePhase::Loads => {
                let rate = self.rate(elapsed_ns);
                let is_known = ios >= DECIDE_IOS;
                // A very different rate comes from different I/O, and replaces the old capacity.
                let is_near = is_known && self.capacity.abs_diff(rate) < rate / 16;
                self.capacity = match is_near {
                    true => self.capacity.max(rate),
                    false if is_known => rate,
                    false => 0,
                };
                if is_near {
                    self.load_ns = now_ns + LOAD_AGAIN_NS;
                }
                Some(ProbePhase::Drains)
            }
            ProbePhase::Drains => Some(ProbePhase::Counts),
            ProbePhase::Counts => {
                self.learn();
                None
            }
        };
        self.start_over(now_ns);
    }

    fn elapsed_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.decided_ns)
    }

    /// Returns the cost served per nanosecond since the last decision, in 65,536ths.
    fn rate(&self, elapsed_ns: u64) -> u64 {
        (self.served << 16) / elapsed_ns.max(1)
    }

    fn set_bound(&mut self, bound: u64) {
        self.bound = bound.clamp(u64::from(self.least * REQUEST), self.bound_max);
    }

    fn start_over(&mut self, now_ns: u64) {
        (self.counts, self.served) = (QueueCounts::default(), 0);
        (self.decided_ns, self.since_ns) = (now_ns, now_ns);
    }

    fn learn(&mut self) {
        for (class, log) in self.counts.sums.means() {
            self.shortest[0][class] = self.shortest[0][class].min(log);
        }
    }

    /// Returns the largest excess of a class's mean service time over its shortest one, in 64ths of
    /// log2; `unknown` for a class without a shortest time.
    fn over(&self, sums: &ClassSums, unknown: u64) -> u64 {
        let over = |(class, log): (usize, u64)| {
            let shortest = self.shortest[0][class].min(self.shortest[1][class]);
            if shortest == u64::MAX { unknown } else { log.saturating_sub(shortest) }
        };
        sums.means().map(over).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
