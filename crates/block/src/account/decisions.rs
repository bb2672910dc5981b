//! `SchedulerMessage`: a scheduler's decision, written to the trace during a recording.
//!
//! The scheduler of a hardware queue puts messages into the `SchedulerMessages` of that queue. The
//! thread that dispatches from the queue takes them out and writes them to the trace
//! (disk/scheduled.rs). Scheduler and thread run under the queue's serve lock, which one thread at
//! a time holds. Without a recording, the scheduler leaves no messages. A recording thread must ask
//! for them by `DriveWaits::watch`, which has an effect for 100 ms. Lock order: serve lock, then
//! the lock of the messages.

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
    /// The hardware queue dispatches nothing for some time. Fields: a group with waiting I/Os, the
    /// reason of its wait, and the length of the pause in nanoseconds.
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
