//! `Seen`: what all queues of a shared drive have seen since they last agreed.
//!
//! Made by agreement.rs out of the mail; depth.rs and the searches that it asks (climb.rs,
//! target_depth.rs) decide by it how much may be at the drive.

use alloc::vec::Vec;

use crate::bio::group_id::GroupId;
use crate::group::config::LatencyTarget;
use crate::queue::scheduler::share::times::{ClassSums, LatencyCounts};

/// What all queues have seen since the last agreement.
pub(crate) struct Seen {
    pub(crate) sums: ClassSums,
    /// The depth held something back.
    pub(crate) full: bool,
    /// Which ways were used: bits.
    pub(crate) ways: u8,
    /// Cost of all that was sent.
    pub(crate) served: u64,
    /// Some group has nothing waiting, and less at the drive than its share of the depth.
    pub(crate) shallow: bool,
    /// Requests at the drive, as far as queues have posted, and how much they take of it, in 16ths
    /// of a small request.
    pub(crate) in_flight: u32,
    pub(crate) taken: u64,
    /// What may be there at least, since one group is alone, in that unit.
    pub(crate) floor: u64,
    /// Queues that have something waiting or at the drive.
    pub(crate) queues: u32,
    /// The shortest target of a group that has something waiting or at the drive.
    pub(crate) waits_for_ns: u64,
    pub(crate) targets: Vec<(GroupId, LatencyTarget, LatencyCounts)>,
}

impl Default for Seen {
    fn default() -> Self {
        Seen {
            sums: ClassSums::default(),
            full: false,
            ways: 0,
            served: 0,
            shallow: false,
            in_flight: 0,
            taken: 0,
            floor: 0,
            queues: 0,
            waits_for_ns: u64::MAX,
            targets: Vec::new(),
        }
    }
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
