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
    /// Depth that the group's requests in flight take, in 16ths of a small (4 KiB) request.
    pub(crate) in_flight: u32,
    /// True if the group's bios waited in this hardware queue all the time since an allocation last
    /// read the queue's report.
    pub(crate) steady: bool,
    /// Value of `steady` (the group's bios waited all the time) when an allocation last read a new
    /// report of the hardware queue.
    pub(crate) was_steady: bool,
    pub(crate) latencies: Option<Box<LatencyCounts>>,
    /// Value of `served` (total dispatched cost) when an allocation last read the mailbox.
    pub(crate) known: u64,
    pub(crate) ceiling: u64,
    /// Virtual time that passes for the group with each nanosecond of dispatched cost; 0 before the
    /// first allocation has set the value.
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
    /// True if the hardware queue has reported since an allocation last read this mailbox.
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
