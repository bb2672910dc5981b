//! `Depth`: how much may be at a shared drive.
//!
//! As little as keeps it busy: the rest waits where order can still be made. For `fair` the
//! measure is how long requests take compared with the shortest time that their kind (read or
//! write, by size) took lately: above some multiple the depth shrinks, below a lower one it grows
//! if it held something back. Every few seconds a handful of requests finds the drive nearly empty,
//! so that the shortest time is known. For `latency` the measure is groups' targets: the others'
//! depth shrinks while one is missed. Source: Brakmo and Peterson, 1995 (TCP Vegas); Cardwell et
//! al., 2016 (BBR's probe). Kernel counterpart: block/kyber-iosched.c, block/blk-iolatency.c.

use alloc::vec::Vec;

use crate::bio::Op;
use crate::bio::group_id::GroupId;
use crate::group::config::LatencyTarget;
use crate::queue::scheduler::Done;

/// What a drive is shared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Weights, with as much at the drive as keeps it busy.
    Weights,
    /// Latency targets of groups, with as much of the others at the drive as those allow.
    Targets,
}

/// Kinds of requests: two ways, eight sizes.
const CLASSES: usize = 16;
/// Least requests and time between two decisions.
const DECIDE_IOS: u64 = 64;
const DECIDE_NS: u64 = 1_000_000;
/// How much longer than the shortest time requests may take before the depth stops to grow, and
/// before it shrinks, as logarithms in 64ths: 1.4 and 1.7 times if some group has so little at the
/// drive that it would lose by more, else 1.6 and 1.9 times.
const SHALLOW: [u64; 2] = [31, 49];
const DEEP: [u64; 2] = [43, 60];
/// How often the shortest times are looked for, and with how many requests.
const PROBE_NS: u64 = 5_000_000_000;
const PROBE_IOS: u64 = 24;
/// And how soon after groups meet.
const FIRST_PROBE_NS: u64 = 20_000_000;
/// Time that does not count: a drive that answers at once has none to compare.
const SLACK_NS: u64 = 2_000;
/// Requests of a group with a target between two looks at its percentile; or this time.
const TARGET_IOS: u64 = 200;
const TARGET_NS: u64 = 50_000_000;
/// How long reads and writes may take at the drive, on the average, if no group has a target.
const WAY_TARGETS_NS: [u64; 2] = [2_000_000, 10_000_000];
/// Buckets of latencies: four for each power of two.
const BUCKETS: usize = 160;

/// How long requests of each kind took at the drive: how many, and the sum of the logarithms of
/// their times. A mean of those is moved little by the few that take a hundred times as long.
#[derive(Default, Clone, Copy)]
pub(crate) struct ClassSums([(u64, u64); CLASSES]);

/// The logarithm of a time to base 2, in 64ths; a time far below [`SLACK_NS`] does not count.
fn log_of(ns: u64) -> u64 {
    let ns = ns.saturating_add(SLACK_NS);
    let log = u64::from(ns.ilog2());
    // Straight between powers of two, which is off by 6 % at most.
    let part = if log >= 6 { (ns >> (log - 6)) & 63 } else { (ns << (6 - log)) & 63 };
    log * 64 + part
}

/// The time of a logarithm.
fn ns_of(log: u64) -> u64 {
    let power = 1u64 << (log / 64).min(62);
    (power + power / 64 * (log % 64)).saturating_sub(SLACK_NS)
}

impl ClassSums {
    /// Adds a request.
    #[inline]
    pub(crate) fn count(&mut self, done: &Done) {
        let size = (done.nr_sectors >> 3).checked_ilog2().map_or(0, |log| log.min(7));
        let way = if done.op == Op::Read { 0 } else { CLASSES / 2 };
        let (ios, logs) = &mut self.0[way + size as usize];
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
    fn of_way(&self, way: usize) -> u64 {
        let classes = self.0[way * CLASSES / 2..][..CLASSES / 2].iter();
        let (ios, logs) =
            classes.fold((0, 0), |(ios, logs), (more, their)| (ios + more, logs + their));
        logs.checked_div(ios).map_or(0, ns_of)
    }

    fn ios(&self) -> u64 {
        self.0.iter().map(|(ios, _)| ios).sum()
    }
}

/// How long I/Os of a group took, from their submission.
pub(crate) struct LatencyCounts {
    ios: u64,
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

    /// Takes all of another over.
    pub(crate) fn take(&mut self, other: &mut LatencyCounts) {
        self.ios += other.ios;
        self.sum_ns += other.sum_ns;
        for (own, others) in self.buckets.iter_mut().zip(&mut other.buckets) {
            *own += core::mem::take(others);
        }
        (other.ios, other.sum_ns) = (0, 0);
    }

    /// How long they took, in 1,024ths of the target.
    fn over(&self, target: LatencyTarget) -> u64 {
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

/// What all queues have seen since the last agreement.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) sums: ClassSums,
    /// The depth held something back.
    pub(crate) full: bool,
    /// Which ways were used: bits.
    pub(crate) ways: u8,
    /// Some group was active and never had anything waiting for long.
    pub(crate) shallow: bool,
    /// Requests at the drive, as far as queues have posted.
    pub(crate) in_flight: u32,
    targets: Vec<(GroupId, LatencyTarget, LatencyCounts)>,
}

impl Seen {
    /// Adds what a group with a target has seen.
    pub(crate) fn count_target(
        &mut self,
        group: GroupId,
        target: LatencyTarget,
        counts: &mut LatencyCounts,
    ) {
        if counts.ios == 0 {
            return;
        }
        if let Some((.., own)) = self.targets.iter_mut().find(|(of, ..)| *of == group) {
            return own.take(counts);
        }
        let mut own = LatencyCounts::default();
        own.take(counts);
        self.targets.push((group, target, own));
    }
}

/// A look for the shortest times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Probe {
    /// Requests that found others at the drive come back first.
    Drains,
    /// Those that are looked for come back.
    Counts,
}

/// The depth of a drive, and what it hangs on.
pub(crate) struct Depth {
    /// Requests at the drive; none: as many as there are.
    depth: Option<[u32; 2]>,
    least: u32,
    /// Where it was when it was last on, in 16ths, and the most that it may be.
    sixteenths: [u64; 2],
    most: u64,
    /// Where a target was missed last.
    missed_at: [u64; 2],
    sums: ClassSums,
    full: bool,
    decided_ns: u64,
    /// Shortest mean time of each kind, in this era and in the one before.
    shortest: [[u64; CLASSES]; 2],
    /// When the next era begins.
    probe_ns: u64,
    probing: Option<Probe>,
    targets: Vec<(GroupId, LatencyTarget, LatencyCounts)>,
    targets_ns: u64,
}

impl Depth {
    /// For a drive with so many queues, which have so many tags together.
    pub(crate) fn new(queues: usize, tags: u32) -> Self {
        let most = u64::from((tags - tags / 8).max(1)) * 16;
        Depth {
            depth: None,
            least: (queues as u32).clamp(2, 8),
            sixteenths: [most.min(16 * 16); 2],
            most,
            missed_at: [u64::MAX / 16; 2],
            sums: ClassSums::default(),
            full: false,
            decided_ns: 0,
            shortest: [[u64::MAX; CLASSES]; 2],
            probe_ns: 0,
            probing: None,
            targets: Vec::new(),
            targets_ns: 0,
        }
    }

    /// Whether nothing is held back.
    pub(crate) fn is_off(&self) -> bool {
        self.depth.is_none()
    }

    /// From now on nothing is held back.
    pub(crate) fn off(&mut self) -> [u32; 2] {
        self.depth = None;
        [u32::MAX; 2]
    }

    /// What may be at the drive from now on.
    pub(crate) fn next(&mut self, seen: &Seen, policy: Policy, now_ns: u64) -> [u32; 2] {
        self.sums.add(&seen.sums);
        self.full |= seen.full;
        if self.depth.is_none() && now_ns >= self.probe_ns {
            // What went past the scheduler while one group was alone comes back first.
            (self.probe_ns, self.probing) = (now_ns + FIRST_PROBE_NS, None);
            self.shortest = [[u64::MAX; CLASSES]; 2];
        }
        match policy {
            Policy::Targets => self.look_at_targets(seen, now_ns),
            Policy::Weights => self.look_at_times(seen, now_ns),
        }
        let depth = self.sixteenths.map(|sixteenths| match self.probing {
            Some(_) => self.least,
            None => ((sixteenths / 16) as u32).max(1),
        });
        *self.depth.insert(depth)
    }

    /// Steers by how long requests take.
    fn look_at_times(&mut self, seen: &Seen, now_ns: u64) {
        let ios = self.sums.ios();
        match self.probing {
            Some(Probe::Drains) if seen.in_flight <= self.least && ios >= PROBE_IOS => {
                self.probing = Some(Probe::Counts);
                return self.start_over(now_ns);
            }
            Some(Probe::Counts) if ios >= PROBE_IOS => {
                self.learn();
                self.probing = None;
                return self.start_over(now_ns);
            }
            Some(_) => return,
            None => {}
        }
        if ios < DECIDE_IOS || now_ns < self.decided_ns + DECIDE_NS {
            return;
        }
        if now_ns >= self.probe_ns {
            self.shortest = [[u64::MAX; CLASSES], self.shortest[0]];
            self.probe_ns = now_ns + PROBE_NS;
            self.probing = Some(Probe::Drains);
            return self.start_over(now_ns);
        }
        self.learn();
        let over = self.over();
        let [grows, shrinks] = if seen.shallow { SHALLOW } else { DEEP };
        if over > shrinks {
            self.sixteenths[0] = (self.sixteenths[0] * 4 / 5).max(u64::from(self.least) * 16);
        } else if over < grows && self.full {
            self.grow(0, self.sixteenths[0] / 8 + 8);
        }
        self.start_over(now_ns);
    }

    /// Grows, but leaves an eighth of the tags to whoever has something to do now and then.
    fn grow(&mut self, way: usize, by: u64) {
        self.sixteenths[way] = (self.sixteenths[way] + by).min(self.most);
    }

    fn start_over(&mut self, now_ns: u64) {
        (self.sums, self.full, self.decided_ns) = (ClassSums::default(), false, now_ns);
    }

    /// Notes the shortest times.
    fn learn(&mut self) {
        for ((ios, logs), shortest) in self.sums.0.iter().zip(&mut self.shortest[0]) {
            if *ios >= 8 {
                *shortest = (*shortest).min(logs / ios);
            }
        }
    }

    /// How much longer requests of the kind that suffers most took than the shortest time, as a
    /// logarithm in 64ths.
    fn over(&self) -> u64 {
        let mut most = 0;
        for (at, (ios, logs)) in self.sums.0.iter().enumerate() {
            let shortest = self.shortest[0][at].min(self.shortest[1][at]);
            if *ios >= 8 {
                most = most.max((logs / ios).saturating_sub(shortest));
            }
        }
        most
    }

    /// Steers the others' depth by how far groups are from their targets.
    fn look_at_targets(&mut self, seen: &Seen, now_ns: u64) {
        for (group, target, counts) in &seen.targets {
            let place = self.targets.iter().position(|(of, ..)| of == group);
            let at = place.unwrap_or_else(|| {
                self.targets.push((*group, *target, LatencyCounts::default()));
                self.targets.len() - 1
            });
            let (_, own_target, own) = &mut self.targets[at];
            *own_target = *target;
            own.ios += counts.ios;
            own.sum_ns += counts.sum_ns;
            own.buckets.iter_mut().zip(&counts.buckets).for_each(|(own, more)| *own += more);
        }
        let most = self.targets.iter().map(|(.., counts)| counts.ios).max().unwrap_or(0);
        if most < TARGET_IOS && now_ns < self.targets_ns + TARGET_NS {
            return;
        }
        let enough = |counts: &LatencyCounts| counts.ios >= 10;
        let overs = self.targets.iter().filter(|(.., counts)| enough(counts));
        let over = overs.map(|(_, target, counts)| counts.over(*target)).max();
        match over {
            Some(over) => [0, 1].iter().for_each(|way| self.steer(*way, over)),
            None => self.look_at_ways(),
        }
        self.targets.clear();
        (self.targets_ns, self.full, self.sums) = (now_ns, false, ClassSums::default());
    }

    /// Moves the depth of a way, by how far somebody is above a target in 1,024ths.
    fn steer(&mut self, way: usize, over: u64) {
        let depth = self.sixteenths[way];
        if over > 1024 {
            (self.missed_at[way], self.sixteenths[way]) = (depth, (depth * 2 / 3).max(16));
        } else if over < 870 && self.full {
            // Fast where there was no miss lately, slowly where there was.
            let near = depth * 8 > self.missed_at[way] * 7;
            self.grow(way, if near { 1 } else { depth / 16 + 4 });
            self.missed_at[way] += self.missed_at[way] / 512;
        }
    }

    /// Without any target, reads and writes have one each, and too slow ones shrink the others.
    fn look_at_ways(&mut self) {
        let over = [0, 1].map(|way| (self.sums.of_way(way) << 10) / WAY_TARGETS_NS[way]);
        self.steer(1, over[0]);
        self.steer(0, over[1]);
    }
}
