//! `Decision`: what a drive's scheduler says of itself while somebody records a trace.
//!
//! A hardware queue's scheduler leaves them in that queue's `Decisions`, and whoever dispatches
//! takes them out under the same serve lock and has them noted (disk/scheduled.rs). Nobody leaves
//! any unless a recording visitor asked a short time before (`DriveHolds::watch`), so that a drive
//! which nobody records pays nothing. Lock order: serve, decisions.

use alloc::vec::Vec;

use millrace_machine::{Lock, Machine};

use crate::account::hold::Hold;
use crate::bio::group_id::GroupId;

/// Most that wait to be noted; more are lost.
const DECISIONS_MAX: usize = 64;

/// What a hardware queue's scheduler decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The group begins to be held by this; how many requests of those that are counted with it
    /// may be at the drive, `u32::MAX` if that has no bound.
    Held(GroupId, Hold, u32),
    /// How many requests of the queue may be at the drive: reads and writes, or two equal numbers
    /// if those count together.
    Depth([u32; 2]),
    /// The queue names nothing for so many nanoseconds, since this holds the group.
    Rests(GroupId, Hold, u64),
}

/// Decisions of a hardware queue's scheduler that are to be noted.
pub(crate) struct Decisions<M: Machine>(M::Lock<Vec<Decision>>);

impl<M: Machine> Decisions<M> {
    pub(crate) fn new() -> Self {
        Decisions(M::Lock::new("decisions", Vec::new()))
    }

    /// Leaves one, if there is room.
    pub(crate) fn leave(&self, decision: Decision) {
        let mut decisions = self.0.lock();
        if decisions.len() < DECISIONS_MAX {
            decisions.push(decision);
        }
    }

    /// Takes all out, the oldest first.
    pub(crate) fn take(&self) -> Vec<Decision> {
        core::mem::take(&mut *self.0.lock())
    }
}
