//! `Depth`: how much may be at a shared drive.
//!
//! As little as keeps it busy: the rest waits where order can still be made. For `fair` there are
//! two measures. While some group has less at the drive than its share of the depth, it is how long
//! requests take compared with the shortest time that their kind (read or write, by size) took
//! lately: above some multiple the depth shrinks, below a lower one it grows if it held something
//! back. Every few seconds a handful of requests finds the drive nearly empty, so that the shortest
//! time is known. While all groups have more than their share, the order in which they go out makes
//! the shares, and the depth may grow as long as the drive does more with it (climb.rs). For
//! `latency` groups' targets bound the others, too (target_depth.rs). Source: Brakmo and Peterson,
//! 1995 (TCP Vegas); Cardwell et al., 2016 (BBR's probe). Kernel counterpart:
//! block/kyber-iosched.c, block/blk-iolatency.c.

use crate::bio::Op;
use crate::queue::scheduler::DriveTags;
use crate::queue::scheduler::cost::REQUEST;
use crate::queue::scheduler::share::climb::Climb;
use crate::queue::scheduler::share::seen::Seen;
use crate::queue::scheduler::share::target_depth::TargetDepth;
use crate::queue::scheduler::share::times::{CLASSES, ClassSums, class_of, ns_of};

/// What a drive is shared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Weights, with as much at the drive as keeps it busy.
    Weights,
    /// Latency targets of groups, with as much of the others at the drive as those allow.
    Targets,
}

/// Least requests and time between two decisions.
const DECIDE_IOS: u64 = 64;
const DECIDE_NS: u64 = 1_000_000;
/// How much longer than the shortest time requests may take before the depth stops to grow, and
/// before it shrinks, as logarithms in 64ths: 1.3 and 1.5 times.
const SHALLOW: [u64; 2] = [24, 37];
/// Up to how much longer the depth grows at once while all groups have more than their share: 1.6
/// times.
const DEEP: u64 = 43;
/// The least depth: a request for each queue that has something to do, within these bounds.
const LEAST: (u32, u32) = (2, 8);
/// The depth before anything is known: 16 small requests.
const FIRST: u64 = 16 * REQUEST as u64;
/// Requests may weigh so many times as much as a small one, as far as the depth is concerned.
const HEAVIEST: u64 = 1 << 10;
/// How often the shortest times are looked for, and with how many requests.
const PROBE_NS: u64 = 5_000_000_000;
const PROBE_IOS: u64 = 24;
/// How long each half of such a look may take: what hangs at the drive does not end it.
const PROBE_HALF_NS: u64 = 100_000_000;
/// And how soon after groups meet.
const FIRST_PROBE_NS: u64 = 20_000_000;

/// A look for the shortest times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Probe {
    /// Requests that found others at the drive come back first.
    Drains,
    /// Those that are looked for come back.
    Counts,
}

/// The depth of a drive, and what it hangs on; in 16ths of what a small request takes of it
/// ([`Weights`](crate::queue::scheduler::cost::Weights)).
pub(crate) struct Depth {
    /// What may be at the drive, by way; none: as much as there is.
    depth: Option<[u32; 2]>,
    /// The least, in requests.
    least: u32,
    /// What keeps the drive busy, and the most that it may be: as many requests as `most`, of the
    /// weight that they have now.
    bound: u64,
    bound_max: u64,
    /// The most requests, each as if it were small.
    most: u64,
    targets: TargetDepth,
    /// Since the bound was last moved.
    sums: ClassSums,
    full: bool,
    decided_ns: u64,
    /// Shortest mean time of each kind, in this era and in the one before.
    shortest: [[u64; CLASSES]; 2],
    /// When the next era begins.
    probe_ns: u64,
    probing: Option<Probe>,
    climb: Climb,
}

impl Depth {
    /// The depth of a drive with these tags.
    pub(crate) fn new(DriveTags { tags, .. }: DriveTags) -> Self {
        let most = u64::from((tags - tags / 8).max(1)) * u64::from(REQUEST);
        Depth {
            depth: None,
            least: LEAST.0.min((most / u64::from(REQUEST)) as u32),
            bound: most.min(FIRST),
            bound_max: most,
            most,
            targets: TargetDepth::new(most * HEAVIEST),
            sums: ClassSums::default(),
            full: false,
            decided_ns: 0,
            shortest: [[u64::MAX; CLASSES]; 2],
            probe_ns: 0,
            probing: None,
            climb: Climb::default(),
        }
    }

    /// Whether nothing is held back.
    pub(crate) fn is_off(&self) -> bool {
        self.depth.is_none()
    }

    /// What may be at the drive; none: as much as there is.
    pub(crate) fn bound(&self) -> Option<u64> {
        self.depth.map(|_| self.bound.min(self.targets.ways()[0]))
    }

    /// The shortest time of reads of so many sectors, or of writes where there were no reads, if it
    /// is known.
    pub(crate) fn shortest_ns(&self, sectors: u32) -> Option<u64> {
        let known = |op| {
            let class = class_of(op, sectors);
            self.shortest.iter().map(|era| era[class]).min().filter(|log| *log != u64::MAX)
        };
        known(Op::Read).or_else(|| known(Op::Write)).map(ns_of)
    }

    /// From now on nothing is held back.
    pub(crate) fn off(&mut self) -> [u32; 2] {
        self.depth = None;
        [u32::MAX; 2]
    }

    /// Whether the drive has all that it is to have: nothing holds it back for a look.
    pub(crate) fn is_usual(&self) -> bool {
        self.depth.is_some() && self.probing.is_none()
    }

    /// Whether targets leave less than keeps the drive busy, to reads and to writes.
    pub(crate) fn by_targets(&self) -> [bool; 2] {
        self.targets.ways().map(|way| way < self.bound)
    }

    /// Looks for the shortest times before long.
    pub(crate) fn look_soon(&mut self, now_ns: u64) {
        self.probe_ns = self.probe_ns.min(now_ns + FIRST_PROBE_NS);
    }

    /// What may be at the drive from now on.
    pub(crate) fn next(&mut self, seen: &Seen, policy: Policy, now_ns: u64) -> [u32; 2] {
        let most = (self.most / u64::from(REQUEST)) as u32;
        self.least = seen.queues.clamp(LEAST.0, LEAST.1).min(most);
        if let Some(weight) = seen.taken.checked_div(seen.in_flight.into()) {
            let weight = weight.clamp(REQUEST.into(), HEAVIEST * u64::from(REQUEST));
            self.bound_max = self.most * weight / u64::from(REQUEST);
        }
        self.sums.add(&seen.sums);
        self.full |= seen.full;
        if self.depth.is_none() && now_ns >= self.probe_ns {
            // What went past the scheduler while one group was alone comes back first.
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

    /// Steers by how long requests take.
    fn look_at_times(&mut self, seen: &Seen, now_ns: u64) {
        let ios = self.sums.ios();
        let lasts = now_ns.saturating_sub(self.decided_ns) >= PROBE_HALF_NS;
        // Each queue may have one at least.
        let few = seen.in_flight <= self.least.max(seen.queues);
        match self.probing {
            Some(Probe::Drains) if few && ios >= PROBE_IOS || lasts => {
                self.probing = Some(Probe::Counts);
                return self.start_over(now_ns);
            }
            Some(Probe::Counts) if ios >= PROBE_IOS || lasts => {
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
        let grows = if seen.shallow { SHALLOW[0] } else { DEEP };
        if seen.shallow && over > SHALLOW[1] {
            self.set_bound(self.bound * 4 / 5);
        } else if over < grows && self.full {
            self.set_bound(self.bound + self.bound / 8 + 8);
        }
        self.start_over(now_ns);
    }

    /// Sets what keeps the drive busy. An eighth of the tags is left to whoever has something to do
    /// now and then.
    fn set_bound(&mut self, bound: u64) {
        self.bound = bound.clamp(u64::from(self.least * REQUEST), self.bound_max);
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
}

#[cfg(test)]
mod tests;
