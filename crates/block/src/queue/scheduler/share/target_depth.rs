//! `TargetDepth`: limits how many requests of groups without a latency target may be at a shared
//! drive.
//!
//! Part of the scheduler `latency`. The depth that is left to groups without a target shrinks while
//! a target is missed and slowly grows again, for reads and writes separately. If no group has a
//! target, built-in targets apply to reads and to writes. Called by depth.rs, which also limits the
//! total to the depth that keeps the drive busy. Kernel counterpart: block/kyber-iosched.c,
//! block/blk-iolatency.c.

use alloc::vec::Vec;

use crate::bio::group_id::GroupId;
use crate::group::config::LatencyTarget;
use crate::queue::scheduler::cost::REQUEST;
use crate::queue::scheduler::share::seen::{QueueCounts, QueueReports};
use crate::queue::scheduler::share::times::LatencyCounts;

/// Number of a group's completed requests after which its latency is compared with its target.
const TARGET_IOS: u64 = 200;
/// Nanoseconds after which a group's target is checked even if fewer than [`TARGET_IOS`] requests
/// have completed.
const TARGET_NS: u64 = 50_000_000;
/// Minimum number of completed requests of a group before its latency target can count as met.
const ENOUGH_IOS: u64 = 10;
/// Nanoseconds after which a latency target can count as met even if fewer than [`ENOUGH_IOS`]
/// requests have completed.
const FEW_NS: u64 = 1_000_000_000;
const NO_MISS: u64 = u64::MAX / 16;
/// Built-in targets for the mean service times of reads and of writes, in nanoseconds.
const WAY_TARGETS_NS: [u64; 2] = [2_000_000, 10_000_000];

/// Limit on requests in flight of groups without a latency target, so that other groups meet their
/// targets. In depth units (16 for a 4 KiB request).
pub(crate) struct TargetDepth {
    ways: [u64; 2],
    most: u64,
    /// Depth at which a group's latency target was last missed, for reads and for other requests.
    missed_at: [u64; 2],
    counts: QueueCounts,
    targets: Vec<(GroupId, LatencyTarget, LatencyCounts)>,
    looked_ns: u64,
}

impl TargetDepth {
    /// Sets the depth limits of reads and of other requests to `most`, the largest depth.
    pub(crate) fn new(most: u64) -> Self {
        TargetDepth {
            ways: [most; 2],
            most,
            missed_at: [NO_MISS; 2],
            counts: QueueCounts::default(),
            targets: Vec::new(),
            looked_ns: 0,
        }
    }

    pub(crate) fn ways(&self) -> [u64; 2] {
        self.ways
    }

    pub(crate) fn look(&mut self, seen: &QueueReports, bound: u64, now_ns: u64) {
        self.counts.add(&seen.counts);
        for (group, target, counts) in &seen.targets {
            let place = self.targets.iter().position(|(of, ..)| of == group);
            let at = place.unwrap_or_else(|| {
                self.targets.push((*group, *target, LatencyCounts::default()));
                self.targets.len() - 1
            });
            let (_, own_target, own) = &mut self.targets[at];
            *own_target = *target;
            own.add(counts);
        }
        let elapsed_ns = now_ns.saturating_sub(self.looked_ns);
        let most = self.targets.iter().map(|(.., counts)| counts.ios).max().unwrap_or(0);
        if most < TARGET_IOS && elapsed_ns < TARGET_NS {
            return;
        }
        // True if no request has completed for twice the shortest target.
        let silent = most == 0 && seen.waits_for_ns.is_some_and(|ns| elapsed_ns / 2 >= ns);
        let over = match silent {
            true => Some(2048),
            false => self.targets.iter().map(|(_, target, counts)| counts.over(*target)).max(),
        };
        // A few slow requests suffice to shrink the depth; more are needed to conclude that targets
        // are met.
        let is_known = most >= ENOUGH_IOS || elapsed_ns >= FEW_NS;
        match over {
            Some(over) if over > 1024 || is_known => {
                [0, 1].iter().for_each(|way| self.steer(*way, bound, over));
            }
            Some(_) => return,
            None if seen.waits_for_ns.is_some() => return,
            None => self.look_at_ways(bound),
        }
        self.targets.clear();
        (self.looked_ns, self.counts) = (now_ns, QueueCounts::default());
    }

    /// Adjusts the depth limit of reads (`way` 0) or of other requests (`way` 1). `over` is the
    /// ratio of measured latency to target latency, in 1,024ths.
    fn steer(&mut self, way: usize, bound: u64, over: u64) {
        // The depth limit in effect is the smaller of `ways[way]` and `bound`. Latency targets set
        // `ways[way]`; `bound` is the depth that keeps the drive busy. Reads and other requests may
        // each use all of `bound`.
        let depth = self.ways[way].min(bound);
        if over > 1024 {
            let least = u64::from(REQUEST);
            (self.missed_at[way], self.ways[way]) = (depth, (depth * 2 / 3).max(least));
        } else if over < 870 && self.counts.full {
            // The depth grows slowly near a depth at which a target was missed lately, and fast
            // otherwise.
            let missed_at = &mut self.missed_at[way];
            let near = depth * 8 > *missed_at * 7;
            *missed_at = (*missed_at + *missed_at / 512).min(NO_MISS);
            let by = if near { 1 } else { depth / 16 + 4 };
            self.ways[way] = (self.ways[way] + by).min(self.most);
        }
    }

    /// Applies the built-in targets for the mean service times of reads and of writes. Slow reads
    /// lower the depth limit of writes, and slow writes lower the depth limit of reads.
    fn look_at_ways(&mut self, bound: u64) {
        let over = [0, 1].map(|way| (self.counts.sums.of_way(way) << 10) / WAY_TARGETS_NS[way]);
        self.steer(1, bound, over[0]);
        self.steer(0, bound, over[1]);
    }
}
