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

/// A group at one queue, in that queue's mailbox.
#[derive(Default)]
pub(crate) struct MailboxEntry {
    pub(crate) group: GroupId,
    pub(crate) way: usize,
    /// Total cost dispatched; written by the queue.
    pub(crate) served: u64,
    /// Depth that the group's waiting chains would take, in 16ths of a small request.
    pub(crate) waiting: u32,
    /// Depth that the group's requests in flight take, in 16ths of a small request.
    pub(crate) in_flight: u32,
    /// True if chains waited all the time since the last allocation.
    pub(crate) steady: bool,
    /// Value of `steady` when the queue last posted a report.
    pub(crate) was_steady: bool,
    pub(crate) latencies: Option<Box<LatencyCounts>>,
    /// The part of `served` that the allocation has already counted; written by the allocation.
    pub(crate) known: u64,
    /// Largest value that `served` may reach before the next allocation.
    pub(crate) ceiling: u64,
    /// Slope of the group's virtual time; 0 before the first allocation.
    pub(crate) slope: u64,
    /// True if the group's demand fits into its part of the depth.
    pub(crate) has_all: bool,
}

impl MailboxEntry {
    pub(crate) fn demand(&self) -> u64 {
        u64::from(self.waiting) + u64::from(self.in_flight)
    }

    /// Returns the demand that counts for the depth. Chains that wait for their budget do not
    /// count.
    pub(crate) fn wants(&self) -> u64 {
        if self.served >= self.ceiling { self.in_flight.into() } else { self.demand() }
    }
}

/// The limit on a queue's requests in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DepthLimit {
    /// Limit by direction, in 16ths of a small request. With latency targets, the limit applies
    /// only to groups without a target.
    pub(crate) depth: [u32; 2],
    /// Wait reason, by direction, of chains that the limit holds back.
    pub(crate) held_by: [WaitReason; 2],
}

impl DepthLimit {
    /// No limit.
    pub(crate) const NONE: DepthLimit =
        DepthLimit { depth: [u32::MAX; 2], held_by: [WaitReason::Depth; 2] };
}

/// Reports of a queue and grants for it.
pub(crate) struct QueueMailbox {
    pub(crate) at_ns: u64,
    /// True if all requests of the last report have completed since that report.
    pub(crate) is_over: bool,
    /// True if the queue has posted since the last allocation.
    pub(crate) fresh: bool,
    /// Number of requests at the drive.
    pub(crate) requests: u32,
    /// Largest cost of a request of the queue.
    pub(crate) largest: u64,
    /// Counts since the last allocation.
    pub(crate) counts: QueueCounts,
    pub(crate) entries: Vec<MailboxEntry>,
    pub(crate) bound: DepthLimit,
    pub(crate) bounded: bool,
}

impl Default for QueueMailbox {
    fn default() -> Self {
        QueueMailbox {
            at_ns: 0,
            is_over: false,
            fresh: false,
            requests: 0,
            largest: 0,
            counts: QueueCounts::default(),
            entries: Vec::new(),
            bound: DepthLimit::NONE,
            bounded: false,
        }
    }
}

impl QueueMailbox {
    /// Returns the entry of the queue's flow number `at`, and makes it on first use.
    pub(crate) fn entry(&mut self, at: usize, (group, way): (GroupId, usize)) -> &mut MailboxEntry {
        if self.entries.len() <= at {
            self.entries.push(MailboxEntry { group, way, steady: true, ..MailboxEntry::default() });
        }
        &mut self.entries[at]
    }
}
