//! `QueueMailbox`: exchanges reports and grants between a hardware queue and the shared allocation.
//!
//! Each queue has a mailbox, under a lock of its own. The queue posts the cost that it served and
//! its demand; the allocation posts budgets and depths. Called by share.rs and agreement.rs.

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
    /// Depth that the group's waiting chains would take, in 16ths of a small request.
    pub(crate) waiting: u32,
    /// Depth that the group's requests in flight take, in 16ths of a small request.
    pub(crate) in_flight: u32,
    /// True if chains waited all the time since the last allocation.
    pub(crate) steady: bool,
    /// Value of `steady` in the last report that an allocation has read.
    pub(crate) was_steady: bool,
    pub(crate) latencies: Option<Box<LatencyCounts>>,
    /// Value of `served` at the last allocation.
    pub(crate) known: u64,
    pub(crate) ceiling: u64,
    /// Virtual time that a nanosecond of cost takes; 0 before the first allocation.
    pub(crate) slope: u64,
    pub(crate) has_all: bool,
}

impl MailboxEntry {
    pub(crate) fn demand(&self) -> u64 {
        u64::from(self.waiting) + u64::from(self.in_flight)
    }

    /// Returns the demand without chains that wait only for their group's budget.
    pub(crate) fn wants(&self) -> u64 {
        if self.served >= self.ceiling { self.in_flight.into() } else { self.demand() }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct DepthLimit {
    /// Limit by direction, in 16ths of a small request. With latency targets, the limit applies
    /// only to groups without a target.
    pub(crate) depth: [u32; 2],
    /// Wait reason, by direction, of chains that the limit holds back.
    pub(crate) held_by: [WaitReason; 2],
}

impl Default for DepthLimit {
    fn default() -> Self {
        DepthLimit { depth: [u32::MAX; 2], held_by: [WaitReason::Depth; 2] }
    }
}

/// A queue's last report, and the budgets and depth that the queue gets.
#[derive(Default)]
pub(crate) struct QueueMailbox {
    pub(crate) at_ns: u64,
    /// True if the queue has become empty since its last report.
    pub(crate) is_over: bool,
    /// True if the last report is newer than the last allocation.
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
