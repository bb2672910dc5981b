//! `TargetDepth`: how much of those without a latency target may be at a shared drive.
//!
//! The measure of `latency`: the others' depth shrinks while a target is missed, and grows again
//! slowly, reads and writes apart. Without any target, reads and writes have one each. Called by
//! depth.rs, which bounds everything by what keeps the drive busy. Kernel counterpart:
//! block/kyber-iosched.c, block/blk-iolatency.c.

use alloc::vec::Vec;

use crate::bio::group_id::GroupId;
use crate::group::config::LatencyTarget;
use crate::queue::scheduler::cost::REQUEST;
use crate::queue::scheduler::share::seen::Seen;
use crate::queue::scheduler::share::times::{ClassSums, LatencyCounts};

/// Requests of a group with a target between two looks at its percentile; or this time.
const TARGET_IOS: u64 = 200;
const TARGET_NS: u64 = 50_000_000;
/// Requests by which a target is known to be met, or the time after which fewer do.
const ENOUGH_IOS: u64 = 10;
const FEW_NS: u64 = 1_000_000_000;
/// No target was missed at any depth.
const NO_MISS: u64 = u64::MAX / 16;
/// How long reads and writes may take at the drive, on the average, if no group has a target.
const WAY_TARGETS_NS: [u64; 2] = [2_000_000, 10_000_000];

/// What targets leave to reads and writes of groups without one, in 16ths of a small request.
pub(crate) struct TargetDepth {
    ways: [u64; 2],
    most: u64,
    /// Where a target was missed last.
    missed_at: [u64; 2],
    /// Since the ways were last moved.
    sums: ClassSums,
    full: bool,
    targets: Vec<(GroupId, LatencyTarget, LatencyCounts)>,
    looked_ns: u64,
}

impl TargetDepth {
    /// Nothing is held back; the most that may be.
    pub(crate) fn new(most: u64) -> Self {
        TargetDepth {
            ways: [most; 2],
            most,
            missed_at: [NO_MISS; 2],
            sums: ClassSums::default(),
            full: false,
            targets: Vec::new(),
            looked_ns: 0,
        }
    }

    /// What is left to reads, and to writes.
    pub(crate) fn ways(&self) -> [u64; 2] {
        self.ways
    }

    /// Adds what queues have seen, and steers the others' depth by how far groups are from their
    /// targets.
    pub(crate) fn look(&mut self, seen: &Seen, bound: u64, now_ns: u64) {
        self.sums.add(&seen.sums);
        self.full |= seen.full;
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
        // Nothing came back in twice the time that is promised.
        let silent = most == 0 && elapsed_ns / 2 >= seen.waits_for_ns;
        let over = match silent {
            true => Some(2048),
            false => self.targets.iter().map(|(_, target, counts)| counts.over(*target)).max(),
        };
        // A few that are too slow say enough; that all is well takes more of them.
        let is_known = most >= ENOUGH_IOS || elapsed_ns >= FEW_NS;
        match over {
            Some(over) if over > 1024 || is_known => {
                [0, 1].iter().for_each(|way| self.steer(*way, bound, over));
            }
            Some(_) => return,
            None if seen.waits_for_ns != u64::MAX => return,
            None => self.look_at_ways(bound),
        }
        self.targets.clear();
        (self.looked_ns, self.full, self.sums) = (now_ns, false, ClassSums::default());
    }

    /// Moves the depth of a way, by how far somebody is above a target in 1,024ths.
    fn steer(&mut self, way: usize, bound: u64, over: u64) {
        // What the bound keeps back is none of the target's doing.
        let depth = self.ways[way].min(bound);
        if over > 1024 {
            let least = u64::from(REQUEST);
            (self.missed_at[way], self.ways[way]) = (depth, (depth * 2 / 3).max(least));
        } else if over < 870 && self.full {
            // Fast where there was no miss lately, slowly where there was.
            let missed_at = &mut self.missed_at[way];
            let near = depth * 8 > *missed_at * 7;
            *missed_at = (*missed_at + *missed_at / 512).min(NO_MISS);
            let by = if near { 1 } else { depth / 16 + 4 };
            self.ways[way] = (self.ways[way] + by).min(self.most);
        }
    }

    /// Without any target, reads and writes have one each, and too slow ones shrink the others.
    fn look_at_ways(&mut self, bound: u64) {
        let over = [0, 1].map(|way| (self.sums.of_way(way) << 10) / WAY_TARGETS_NS[way]);
        self.steer(1, bound, over[0]);
        self.steer(0, bound, over[1]);
    }
}
