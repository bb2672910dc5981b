//! `SchedulerMessage`: a scheduler's decision, written to the trace during a recording.
//!
//! A hardware queue's scheduler leaves messages in that queue's `SchedulerMessages`. The thread
//! that dispatches from the queue takes the messages out and writes them to the trace
//! (disk/scheduled.rs). Scheduler and thread run under the queue's serve lock, which one thread at
//! a time holds to serve the queue. The scheduler leaves messages only if a recording thread asked
//! shortly before (`DriveWaits::watch`), so a drive that is not recorded pays nothing. Lock order:
//! serve lock, then the messages' lock.

use alloc::vec::Vec;

use millrace_machine::{Lock, Machine};

use crate::account::hold::WaitReason;
use crate::bio::group_id::GroupId;

const DECISIONS_MAX: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SchedulerMessage {
    /// I/Os of a group start to wait. Fields: group, reason, and the group's limit on requests at
    /// the drive (`u32::MAX` for no limit).
    Held(GroupId, WaitReason, u32),
    /// New limits on requests in flight in the drive: for reads, and for writes. The scheduler
    /// `fair` has a single limit for both together, and gives it twice.
    Depth([u32; 2]),
    /// The queue dispatches nothing for a while. Fields: waiting group, reason, and nanoseconds.
    Rests(GroupId, WaitReason, u64),
}

pub(crate) struct SchedulerMessages<M: Machine>(M::Lock<Vec<SchedulerMessage>>);

impl<M: Machine> SchedulerMessages<M> {
    pub(crate) fn new() -> Self {
        SchedulerMessages(M::Lock::new("decisions", Vec::new()))
    }

    pub(crate) fn leave(&self, decision: SchedulerMessage) {
        let mut decisions = self.0.lock();
        if decisions.len() < DECISIONS_MAX {
            decisions.push(decision);
        }
    }

    pub(crate) fn take(&self) -> Vec<SchedulerMessage> {
        core::mem::take(&mut *self.0.lock())
    }
}
