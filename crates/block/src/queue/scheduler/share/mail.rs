//! `QueueMailbox`: exchanges reports and budgets between a hardware queue and the allocation, which
//! divides a shared drive among groups.
//!
//! Each hardware queue has a mailbox, under a lock of its own. The queue posts its demand and the
//! cost that it has dispatched. The allocation posts budgets (the cost that each group may
//! dispatch) and depth limits. Called by share.rs and agreement.rs.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::account::hold::WaitReason;
use crate::bio::group_id::GroupId;
use crate::queue::scheduler::share::seen::QueueCounts;
use crate::queue::scheduler::share::times::LatencyCounts;

#[derive(Default)]
pub(crate) struct MailboxEntry {
    pub(crate) group: GroupId,
    pub(crate) way: usize,
    /// Total cost dispatched, in nanoseconds; written by the queue.
    pub(crate) served: u64,
    /// Depth that the group's waiting bio chains would take in the drive, in 16ths of a small
    /// (4 KiB) request.
    pub(crate) waiting: u32,
    /// Part of the drive's depth limit that the group's requests in flight use. A 4 KiB request
    /// counts 16; larger requests count more.
    pub(crate) in_flight: u32,
    /// True if the group always had waiting bios in this hardware queue since the last allocation
    /// of the drive.
    pub(crate) steady: bool,
    /// Value of `steady` in the queue's last report that was used to divide the drive among groups.
    pub(crate) was_steady: bool,
    pub(crate) latencies: Option<Box<LatencyCounts>>,
    /// Value of `served` (total dispatched cost) when the drive was last divided among groups.
    pub(crate) known: u64,
    pub(crate) ceiling: u64,
    /// Virtual time charged to the group for each nanosecond of dispatched cost; 0 until the drive
    /// is first divided among groups.
    pub(crate) slope: u64,
    pub(crate) has_all: bool,
}

impl MailboxEntry {
    pub(crate) fn demand(&self) -> u64 {
        u64::from(self.waiting) + u64::from(self.in_flight)
    }

    /// Returns the group's demand. Waiting bios do not count if the group has used up its budget.
    pub(crate) fn wants(&self) -> u64 {
        if self.served >= self.ceiling { self.in_flight.into() } else { self.demand() }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct DepthLimit {
    /// Maximum depth of a hardware queue's requests in flight, for reads and for other requests, in
    /// 16ths of a small (4 KiB) request. With latency targets, the limit applies only to groups
    /// without a target.
    pub(crate) depth: [u32; 2],
    /// Wait reason to report for bios that the depth limit holds back: for reads, and for other
    /// requests.
    pub(crate) held_by: [WaitReason; 2],
}

impl Default for DepthLimit {
    fn default() -> Self {
        DepthLimit { depth: [u32::MAX; 2], held_by: [WaitReason::Depth; 2] }
    }
}

/// Last report of a hardware queue, and the budgets and the depth limit that the last allocation
/// granted to the queue.
#[derive(Default)]
pub(crate) struct QueueMailbox {
    pub(crate) at_ns: u64,
    /// True if the hardware queue has become empty since it last reported its waiting and in-flight
    /// requests.
    pub(crate) is_over: bool,
    /// True if the hardware queue has reported since the drive was last divided among groups.
    pub(crate) fresh: bool,
    pub(crate) requests: u32,
    pub(crate) largest: u64,
    pub(crate) counts: QueueCounts,
    pub(crate) entries: Vec<MailboxEntry>,
    pub(crate) bound: DepthLimit,
    pub(crate) bounded: bool,
}

impl QueueMailbox {
    pub(crate) fn entry(&mut self, at: usize, (group, way): (GroupId, usize)) -> &mut MailboxEntry {
        if self.entries.len() <= at {
            self.entries.push(MailboxEntry { group, way, steady: true, ..MailboxEntry::default() });
        }
        &mut self.entries[at]
    }
}
