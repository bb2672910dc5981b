//! `QueueReports`: the sum of all queues' reports since the last allocation of a shared drive, and
//! `QueueCounts`, the part of a report that is a sum.
//!
//! agreement.rs makes the sum from the mailboxes; depth.rs and target_depth.rs use the sum to
//! decide how many requests may be at the drive.

use alloc::vec::Vec;

use crate::bio::group_id::GroupId;
use crate::group::config::LatencyTarget;
use crate::queue::scheduler::share::times::{ClassSums, LatencyCounts};

/// Requests completed at one queue or at several, and the limits that held others back meanwhile.
#[derive(Default, Clone, Copy)]
pub(crate) struct QueueCounts {
    pub(crate) sums: ClassSums,
    /// Like `sums`, but only for groups without waiting requests.
    pub(crate) light: ClassSums,
    /// True if the depth limit held requests back.
    pub(crate) full: bool,
    /// True if chains waited for a tag.
    pub(crate) short: bool,
}

impl QueueCounts {
    pub(crate) fn add(&mut self, other: &QueueCounts) {
        self.sums.add(&other.sums);
        self.light.add(&other.light);
        self.full |= other.full;
        self.short |= other.short;
    }
}

/// The sum of all queues' reports since the last allocation.
#[derive(Default)]
pub(crate) struct QueueReports {
    pub(crate) counts: QueueCounts,
    /// Set of the directions that had requests, as bits.
    pub(crate) ways: u8,
    /// Cost of all dispatched requests.
    pub(crate) served: u64,
    /// True if some group without waiting requests has fewer requests at the drive, or gets less
    /// service, than its weight entitles it to.
    pub(crate) shallow: bool,
    /// Number of requests at the drive according to the reports.
    pub(crate) in_flight: u32,
    /// Depth that the requests at the drive take, in 16ths of a small request.
    pub(crate) taken: u64,
    /// Smallest depth while the drive is not shared, in 16ths of a small request; else 0.
    pub(crate) floor: u64,
    /// Number of queues with requests waiting or at the drive.
    pub(crate) queues: u32,
    /// Shortest latency target of the groups with requests waiting or at the drive, if any has one.
    pub(crate) waits_for_ns: Option<u64>,
    pub(crate) targets: Vec<(GroupId, LatencyTarget, LatencyCounts)>,
}

impl QueueReports {
    /// Adds the latencies of a group with a target.
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
