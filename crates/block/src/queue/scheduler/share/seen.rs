//! `QueueReports`: statistics of all hardware queues of a shared drive since the drive's service
//! was last divided among groups.
//!
//! agreement.rs adds up the queues' statistics. depth.rs and target_depth.rs use the sums to decide
//! how many requests may be in flight in the drive.

use alloc::vec::Vec;

use crate::bio::group_id::GroupId;
use crate::group::config::LatencyTarget;
use crate::queue::scheduler::share::times::{ClassSums, LatencyCounts};

/// Service times of completed requests, and the limits (depth, free tags) that made bios wait.
#[derive(Default, Clone, Copy)]
pub(crate) struct QueueCounts {
    pub(crate) sums: ClassSums,
    /// Service times, summed by request class, of requests that completed while their group had no
    /// further requests waiting in the hardware queue.
    pub(crate) light: ClassSums,
    pub(crate) full: bool,
    /// True if bios waited for a free tag when a hardware queue last reported.
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

#[derive(Default)]
pub(crate) struct QueueReports {
    pub(crate) counts: QueueCounts,
    /// Directions that had I/O since the last allocation, as bits: bit 0 for reads, bit 1 for other
    /// requests. A direction has I/O if bios wait, are in flight, or were dispatched. Under `fair`,
    /// all I/O counts as bit 0.
    pub(crate) ways: u8,
    /// Sum of the costs of the dispatched requests, by the cost model.
    pub(crate) served: u64,
    /// True if some group without waiting requests gets less than its weight entitles it to. Either
    /// it has fewer requests at the drive, or it gets less service.
    pub(crate) shallow: bool,
    pub(crate) in_flight: u32,
    /// Depth units that all requests in flight take together; a 4 KiB request takes 16.
    pub(crate) taken: u64,
    /// Lower bound of the depth limit while a single group uses the drive, in depth units (16 for a
    /// 4 KiB request). 0 while several groups use the drive.
    pub(crate) floor: u64,
    pub(crate) queues: u32,
    /// Shortest latency target of the groups with requests. `None` if no such group has a target.
    pub(crate) waits_for_ns: Option<u64>,
    pub(crate) targets: Vec<(GroupId, LatencyTarget, LatencyCounts)>,
}

impl QueueReports {
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
