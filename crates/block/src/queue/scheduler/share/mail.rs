//! `QueueMailbox`: passes reports and budgets between one hardware queue and the code that divides
//! a shared drive among groups.
//!
//! Each hardware queue has a mailbox, under a lock of its own. The queue (share.rs) posts each
//! group's demand, and the cost of the I/O that it has dispatched for the group. The code that
//! divides the drive (agreement.rs) posts budgets and depth limits. A budget is the cost of the I/O
//! that a group may dispatch.

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
    /// Depth units that the group's waiting bio chains would take in the drive; a 4 KiB request
    /// takes 16.
    pub(crate) waiting: u32,
    /// Part of the drive's depth limit that the group's requests in flight use. A 4 KiB request
    /// counts 16; larger requests count more.
    pub(crate) in_flight: u32,
    /// True if the group's bios waited in this hardware queue all the time since agreement.rs last
    /// read a report of the queue.
    pub(crate) steady: bool,
    /// Value of `steady` (bios waited all the time) in the last report that agreement.rs has read.
    pub(crate) was_steady: bool,
    pub(crate) latencies: Option<Box<LatencyCounts>>,
    /// Value of `served` (total dispatched cost) when agreement.rs last read the mailbox.
    pub(crate) known: u64,
    pub(crate) ceiling: u64,
    /// Virtual time charged to the group for each nanosecond that its dispatched I/O costs. 0 until
    /// budgets are granted for the first time.
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
    /// Maximum depth of a hardware queue's requests in flight: for reads, and for other requests.
    /// Under `fair`, the first value is for all requests together. In depth units; a 4 KiB request
    /// takes 16. With latency targets, the limit applies only to groups without a target.
    pub(crate) depth: [u32; 2],
    /// Reasons reported for bios that wait because of the depth limit: for reads, and for other
    /// requests. Under `fair`, the first value is for all requests.
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
    /// True if the queue has posted a report since agreement.rs last read the mailbox.
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
