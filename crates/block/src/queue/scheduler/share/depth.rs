//! `DriveDepth`: decides how many requests may be in flight in a shared drive.
//!
//! The depth is the smallest that keeps the drive busy; further requests wait in queues, where they
//! can still be reordered. For `fair` the depth follows two measurements. The first is the service
//! time relative to the shortest one lately seen for the same size class and direction. The second
//! is the throughput relative to the drive's capacity. While some group has fewer requests in
//! flight than its share of the depth, the service times of that group decide: the depth falls
//! until these service times are near the shortest ones, unless the drive loses throughput.
//! Otherwise the depth falls as long as the drive keeps its throughput. Every few seconds a probe
//! changes the depth for a moment: a large depth shows the drive's capacity, then a small depth
//! shows the shortest service times. For `latency`, the groups' targets limit the other groups as
//! well (target_depth.rs). Source: Brakmo and Peterson, 1995 (TCP Vegas); Cardwell et al., 2016
//! (BBR's probes). Kernel counterpart: block/kyber-iosched.c, block/blk-iolatency.c.

use crate::bio::Op;
use crate::queue::scheduler::DriveTags;
use crate::queue::scheduler::cost::REQUEST;
use crate::queue::scheduler::share::seen::{QueueCounts, QueueReports};
use crate::queue::scheduler::share::target_depth::TargetDepth;
use crate::queue::scheduler::share::times::{CLASSES, ClassSums, class_of, ns_of};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The drive is shared by weights, with just enough requests in flight to keep the drive busy.
    Weights,
    /// Latency targets decide how the drive is shared. The limit on the requests in flight of
    /// groups without a target falls while a target of another group is missed.
    Targets,
}

/// Number of requests that complete between two adjustments of the depth limit.
const DECIDE_IOS: u64 = 64;
/// Number of completed requests that suffices to adjust the depth limit while some group gets less
/// than its share. A request counts only if its group has no further requests waiting in the
/// hardware queue.
const LIGHT_IOS: u64 = 8;
/// Minimum time between two adjustments of the depth limit, in nanoseconds.
const DECIDE_NS: u64 = 1_000_000;
/// Thresholds of the service time while some group gets less than its share, relative to the
/// shortest known service time. Above the first threshold (1.4 times), the depth falls unless the
/// drive would lose throughput. Above the second (2.04 times), the depth falls in any case. Stored
/// as 64 * log2(ratio).
const SHALLOW: [i64; 2] = [31, 66];
/// Thresholds that replace [`SHALLOW`] while requests are large: 2 and 2.86 times the shortest
/// known service time. Requests are large if they take more than twice the depth of 4 KiB requests
/// on average. The thresholds are higher, because even a few large requests delay others.
const SHALLOW_BESIDE_LARGE: [i64; 2] = [64, 97];
/// Threshold of the service time while no group gets less than its share: 1.6 times the shortest
/// known service time. Below it, the depth may grow regardless of throughput. Stored as
/// 64 * log2(ratio).
const DEEP: i64 = 43;
/// Ratio of mean to shortest service time that is assumed for a request class without a known
/// shortest time. The ratio, 16, exceeds all thresholds, so that the depth falls. Used only for
/// requests of groups without waiting requests. Stored as 64 * log2(ratio).
const UNKNOWN: u64 = 256;
/// Divisor that turns a step into a relative change of the depth. A step is 64 times log2 of a
/// ratio of service times, or a lack of throughput on a similar scale. One step lowers the depth by
/// at most a fifth, or raises it by at most about an eighth. Slow start is an exception: it doubles
/// the depth.
const SLOWNESS: i64 = 192;
/// Throughput that the drive must keep, in 1,024ths of its capacity, for three cases:
/// - Some group gets less than its share, and requests are small.
/// - Some group gets less than its share, and requests are large.
/// - No group gets less than its share.
const KEPT: [u64; 3] = [980, 1000, 1004];
/// Bounds of the minimum depth, in requests. The minimum depth is the number of active hardware
/// queues, clamped to these bounds.
const LEAST: (u32, u32) = (2, 8);
/// Initial depth: 16 small requests.
const FIRST: u64 = 16 * REQUEST as u64;
/// Largest factor by which large requests raise the maximum depth. The factor is the mean depth
/// that a request takes, in units of a 4 KiB request.
const HEAVIEST: u64 = 1 << 10;
const PROBE_NS: u64 = 5_000_000_000;
/// Number of requests that must complete before the probe phase `Drains`, or the phase `Counts`,
/// ends. After [`PROBE_HALF_NS`], a phase ends with fewer requests, too.
const PROBE_IOS: u64 = 24;
/// Longest duration of a [`ProbePhase`], in nanoseconds, in case a request is stuck in the drive.
/// The phase `Counts` may last longer: it is extended by this time for each completed request of a
/// group that has no waiting requests.
const PROBE_HALF_NS: u64 = 100_000_000;
/// Time from when a drive gets a depth limit to its first probe, in nanoseconds. A probe is also
/// due within this time after a change of group settings or of the maximum request length. A probe
/// is a short measurement of the drive's capacity and of its shortest service times.
const FIRST_PROBE_NS: u64 = 20_000_000;
/// Factor by which a probe multiplies the depth limit to measure the drive's capacity.
const LOAD: u64 = 4;
/// Number of requests that must complete before the probe phases `Fills` and `Loads` end. After
/// [`PROBE_HALF_NS`], a phase ends with fewer requests, too. In that case, [`DECIDE_IOS`] requests
/// suffice to measure the capacity.
const LOAD_IOS: [u64; 2] = [32, 256];
/// Nanoseconds until the drive's capacity is measured again, after a measurement that confirmed it.
const LOAD_AGAIN_NS: u64 = 4 * PROBE_NS - PROBE_NS / 2;
const LOAD_NS: u64 = 8_000_000;

/// Phase of a probe, in order of time. `Fills` and `Loads` measure the drive's capacity at a large
/// depth, unless the drive is too slow or its capacity was measured lately. `Drains` and `Counts`
/// then measure the shortest service times at a small depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbePhase {
    /// Raises the depth limit, and waits until the drive is full.
    Fills,
    Loads,
    /// Lowers the depth limit, and waits until the requests queued up in the drive are completed.
    Drains,
    /// Measures the service times of requests while only a few requests are in flight.
    Counts,
}

/// Times at which probes are due, in nanoseconds. From `probe_ns` on, the next probe may start.
/// From `load_ns` on, a probe also measures the drive's capacity.
#[derive(Default)]
struct ProbesDue {
    probe_ns: u64,
    load_ns: u64,
}

/// Depth limit of a drive (requests that may be in flight), and the measurements that decide the
/// limit. Depths are in 16ths of a small (4 KiB) request; larger requests count more
/// ([`DepthWeights`](crate::queue::scheduler::cost::DepthWeights)).
pub(crate) struct DriveDepth {
    /// Present depth limits of reads and of other requests; `None` if the drive has no limit.
    depth: Option<[u32; 2]>,
    least: u32,
    /// Depth that keeps the drive busy. Each change limits the depth to the present `bound_max`.
    bound: u64,
    /// Maximum of `bound`: `most` for 4 KiB requests. If requests take `n` times the depth of a 4
    /// KiB request on average, the maximum is `n` times `most`.
    bound_max: u64,
    /// Largest depth while all requests are small; an eighth of the tags stays free.
    most: u64,
    targets: TargetDepth,
    counts: QueueCounts,
    /// Cost, in nanoseconds, of the I/O dispatched since the depth was last decided.
    served: u64,
    decided_ns: u64,
    /// Start, in nanoseconds, of the period in which the requests in `counts.sums` completed.
    since_ns: u64,
    /// Highest measured cost that the drive serves per nanosecond, times 65,536; 0 if unknown.
    capacity: u64,
    /// Depth and throughput at the last decision.
    last: (u64, u64),
    /// Shortest mean service time of each request class (direction and size), in the present and in
    /// the previous interval between probes. Stored as 64 * log2(nanoseconds); `u64::MAX` if
    /// unknown.
    shortest: [[u64; CLASSES]; 2],
    due: ProbesDue,
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
            last: (0, 0),
            shortest: [[u64::MAX; CLASSES]; 2],
            due: ProbesDue::default(),
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

    /// Returns the shortest known service time of reads of `sectors` sectors, or of writes of that
    /// length if there were no reads.
    pub(crate) fn shortest_ns(&self, sectors: u32) -> Option<u64> {
        let known = |op| {
            let class = class_of(op, sectors);
            self.shortest.iter().map(|era| era[class]).min().filter(|log| *log != u64::MAX)
        };
        known(Op::Read).or_else(|| known(Op::Write)).map(ns_of)
    }

    /// Starts the depth limit at its initial value, for a drive that was found slow. The depth that
    /// was found while the drive was fast (its write buffer had room, for example) would let the
    /// I/O of a newcomer wait for seconds.
    pub(crate) fn restart(&mut self) {
        self.set_bound(FIRST);
    }

    pub(crate) fn off(&mut self) -> [u32; 2] {
        self.depth = None;
        [u32::MAX; 2]
    }

    /// Returns true if the drive has a depth limit, and no probe lowers the depth at present.
    pub(crate) fn is_usual(&self) -> bool {
        let probes = matches!(self.probing, Some(ProbePhase::Drains | ProbePhase::Counts));
        self.depth.is_some() && !probes
    }

    /// Returns one value for reads and one for other requests. A value is true if latency targets
    /// set a limit below `bound`, the depth that keeps the drive busy.
    pub(crate) fn by_targets(&self) -> [bool; 2] {
        self.targets.ways().map(|way| way < self.bound)
    }

    /// Returns true if the depth limit is as high as the number of tags allows. With more tags, the
    /// limit would be higher.
    pub(crate) fn by_tags(&self) -> bool {
        self.depth.is_some_and(|[depth, _]| u64::from(depth) >= self.bound_max)
    }

    pub(crate) fn look_soon(&mut self, now_ns: u64) {
        self.due.probe_ns = self.due.probe_ns.min(now_ns + FIRST_PROBE_NS);
    }

    /// Forgets the drive's capacity after a change of group settings, and schedules a probe (a
    /// short measurement).
    pub(crate) fn forget(&mut self, now_ns: u64) {
        (self.capacity, self.due.load_ns) = (0, 0);
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
        if self.depth.is_none() && now_ns >= self.due.probe_ns {
            // Without a depth limit, the I/O of a single group bypasses the scheduler, which does
            // not see the completions. So the first probe waits until that I/O has probably
            // completed.
            (self.due.probe_ns, self.probing) = (now_ns + FIRST_PROBE_NS, None);
            self.shortest = [[u64::MAX; CLASSES]; 2];
            (self.capacity, self.due.load_ns) = (0, 0);
        }
        if policy == Policy::Targets {
            self.targets.look(seen, self.bound, now_ns);
        }
        self.look_at_times(seen, now_ns);
        // `room` is the depth limit or, if that is more, `least` requests of the present mean size.
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
        // While groups get less than their share, `LIGHT_IOS` requests of groups without waiting
        // requests suffice to adjust the depth. The service times of other requests are then
        // ignored: a group with waiting requests delays mainly itself.
        let is_light = light >= LIGHT_IOS;
        let is_enough = is_light || is_known && (light == 0 || elapsed_ns >= PROBE_HALF_NS);
        if !is_enough || elapsed_ns < DECIDE_NS {
            return;
        }
        if is_known && now_ns >= self.due.probe_ns {
            self.shortest = [[u64::MAX; CLASSES], self.shortest[0]];
            self.due.probe_ns = now_ns + PROBE_NS;
            // Time in which `DECIDE_IOS` requests complete at the present rate. The capacity can be
            // measured only if a probe phase has time for that many requests.
            let needs_ns = now_ns.saturating_sub(self.since_ns) * DECIDE_IOS / ios;
            let is_measurable = needs_ns <= PROBE_HALF_NS;
            self.capacity = if is_measurable { self.capacity } else { 0 };
            let is_due = is_measurable && now_ns >= self.due.load_ns;
            self.probing = Some(if is_due { ProbePhase::Fills } else { ProbePhase::Drains });
            self.due.load_ns = if is_due { self.due.probe_ns } else { self.due.load_ns };
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
        self.last = (self.bound, self.rate(elapsed_ns));
        if by < 0 || self.counts.full {
            let bound = self.bound as i64;
            let by = by.clamp(-SLOWNESS / 5, SLOWNESS);
            self.set_bound((bound + (bound + 64 * i64::from(by > 0)) * by / SLOWNESS) as u64);
        }
        let counted = (self.counts.sums, self.since_ns);
        self.start_over(now_ns);
        if !is_known {
            (self.counts.sums, self.since_ns) = counted;
        }
    }

    /// Returns the change of the depth, positive to raise the depth; the caller divides it by
    /// [`SLOWNESS`]. `over` is 64 times log2 of the ratio of present to shortest service time.
    fn step(&self, seen: &QueueReports, over: i64, elapsed_ns: u64) -> i64 {
        let is_large = seen.taken > u64::from(2 * REQUEST * seen.in_flight);
        let [usual, longest] = if is_large { SHALLOW_BESIDE_LARGE } else { SHALLOW };
        let kept = KEPT[if seen.shallow { usize::from(is_large) } else { 2 }];
        // Throughput is about proportional to the fourth root of the depth: 1 % more throughput
        // needs about 4 % more depth. Hence the factor of 4.
        let kept = self.capacity * kept / 1024 * 64 * 4;
        let lack = (kept / self.rate(elapsed_ns).max(1)) as i64 - 64 * 4;
        let by = match seen.shallow {
            true => lack.max(usual - over).min(longest - over),
            // The depth doubles, as in TCP's slow start, as long as the throughput grows with the
            // depth. A drive behind a network may serve hundreds of requests in the time of one.
            false if self.grows_with_depth(elapsed_ns) && over * 2 < DEEP => return SLOWNESS,
            false if self.capacity == 0 => (DEEP - over).max(0),
            false => lack.max(DEEP - over),
        };
        by.min(SLOWNESS / 8)
    }

    /// Returns true if the depth was raised by the last decision, and the throughput has grown with
    /// it. If the depth grew by 4 %, the throughput must have grown by at least 3 %. Always false
    /// if the drive's capacity is known.
    fn grows_with_depth(&self, elapsed_ns: u64) -> bool {
        let (bound, rate) = self.last;
        let grown = |now: u64, before: u64| (now * 64).checked_div(before).unwrap_or(64);
        let (depth, rate) = (grown(self.bound, bound), grown(self.rate(elapsed_ns), rate));
        self.capacity == 0 && depth > 64 && rate * 8 >= 64 * 8 + (depth - 64) * 6
    }

    fn look_at_probe(&mut self, phase: ProbePhase, seen: &QueueReports, now_ns: u64) {
        let (ios, light) = (self.counts.sums.ios(), self.counts.light.ios());
        let elapsed_ns = self.elapsed_ns(now_ns);
        // Each queue may always send one request, whatever the depth limit. So the drive counts as
        // nearly empty if it has at most `least` requests in flight, or at most one per queue.
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
                // A measured throughput that differs from the known capacity by 1/16 or more comes
                // from a different kind of I/O. It replaces the capacity. A closer throughput can
                // only raise the capacity.
                let is_near = is_known && self.capacity.abs_diff(rate) < rate / 16;
                self.capacity = match is_near {
                    true => self.capacity.max(rate),
                    false if is_known => rate,
                    false => 0,
                };
                if is_near {
                    self.due.load_ns = now_ns + LOAD_AGAIN_NS;
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

    /// Returns the cost dispatched per nanosecond since the counts were last reset, times 65,536.
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

    /// Returns the largest ratio of mean to shortest service time among the request classes
    /// (direction and size), as 64 * log2(ratio). `unknown` stands for the ratio of a class if its
    /// shortest time is not known.
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
