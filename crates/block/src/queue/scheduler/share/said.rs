//! `ReportedDecisions`: limits how often a shared drive's queue writes its decisions to a trace.
//!
//! A group that starts to wait, a queue that pauses, a depth that changed by a quarter: each is put
//! into `SchedulerMessages` for the trace, and not repeated within 10 ms, because a group that uses
//! exactly its share starts and stops waiting thousands of times a second. A queue has a
//! `ReportedDecisions` only while a trace is recorded. Called by share.rs under the queue's serve
//! lock, which lets one thread at a time serve the queue.

use alloc::collections::BTreeMap;

use millrace_machine::Machine;

use crate::account::decisions::{SchedulerMessage, SchedulerMessages};
use crate::account::hold::WaitReason;
use crate::bio::group_id::GroupId;

/// Nanoseconds within which the same trace message is not repeated.
const SAID_NS: u64 = 10_000_000;
/// Nanoseconds after which even a depth that has changed by only 1 is reported again.
const STEP_NS: u64 = 100_000_000;
/// Nanoseconds after which a group that is still held back is reported again.
const LASTS_NS: u64 = 1_000_000_000;

/// Length of a pause in the checks for held-back groups, in nanoseconds, after which all trace
/// messages may be repeated. The checks run only while a trace is recorded, so a new recording may
/// have begun since.
const FORGOTTEN_NS: u64 = 100_000_000;

#[derive(Default)]
struct ReportTimes {
    /// Value of `ReportedDecisions::looks` (number of checks so far) at the last check in which the
    /// scheduler held the group back.
    look: u64,
    held_ns: Option<u64>,
    rests_ns: Option<u64>,
}

#[derive(Default)]
pub(crate) struct ReportedDecisions {
    /// Number of checks for held-back groups so far.
    looks: u64,
    looked_ns: u64,
    of: BTreeMap<(GroupId, u8), ReportTimes>,
    said_depth: Option<([u32; 2], u64)>,
}

impl ReportedDecisions {
    fn look(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.looked_ns) >= FORGOTTEN_NS {
            *self = ReportedDecisions::default();
        }
        (self.looks, self.looked_ns) = (self.looks + 1, now_ns);
    }

    fn begins(&mut self, group: GroupId, hold: WaitReason, now_ns: u64) -> bool {
        let looks = self.looks;
        let said = self.of.entry((group, hold as u8)).or_default();
        let lasts = said.look != 0 && said.look + 1 >= looks;
        said.look = looks;
        let begins = is_over(said.held_ns, now_ns, if lasts { LASTS_NS } else { SAID_NS });
        if begins {
            said.held_ns = Some(now_ns);
        }
        begins
    }

    /// Returns true if the trace should get a message that the queue pauses while `group` waits for
    /// the reason `hold`. Returns false within [`SAID_NS`] after such a message.
    fn rests(&mut self, group: GroupId, hold: WaitReason, now_ns: u64) -> bool {
        let said = self.of.entry((group, hold as u8)).or_default();
        let tells = is_over(said.rests_ns, now_ns, SAID_NS);
        if tells {
            said.rests_ns = Some(now_ns);
        }
        tells
    }

    fn changes(&mut self, depth: [u32; 2], now_ns: u64) -> bool {
        let tells = match self.said_depth {
            None => true,
            Some((said, said_ns)) => {
                let elapsed_ns = now_ns.saturating_sub(said_ns);
                // A depth limit of one or two requests often changes by 1 and back. A change by 1
                // is reported only if the last message is at least `STEP_NS` old.
                let least = if elapsed_ns >= STEP_NS { 1 } else { 2 };
                let differ = |(said, depth): (&u32, &u32)| {
                    let by = said.abs_diff(*depth);
                    by >= least && u64::from(by) * 4 >= u64::from(*said)
                };
                elapsed_ns >= SAID_NS && said.iter().zip(&depth).any(differ)
            }
        };
        if tells {
            self.said_depth = Some((depth, now_ns));
        }
        tells
    }
}

fn is_over(said_ns: Option<u64>, now_ns: u64, period_ns: u64) -> bool {
    said_ns.is_none_or(|said_ns| now_ns.saturating_sub(said_ns) >= period_ns)
}

/// A group that the scheduler holds back: its number, the reason, and the depth limit of the
/// hardware queue in 4 KiB requests; `u32::MAX` means no limit.
type WaitingGroup = (GroupId, WaitReason, u32);

impl ReportedDecisions {
    /// Puts a trace message into `out`, unless it is full, for each group that has begun to wait.
    #[cold]
    pub(crate) fn holds<M: Machine>(
        &mut self,
        held: impl Iterator<Item = WaitingGroup>,
        now_ns: u64,
        out: &SchedulerMessages<M>,
    ) {
        self.look(now_ns);
        for (group, hold, depth) in held {
            if self.begins(group, hold, now_ns) {
                out.leave(SchedulerMessage::Held(group, hold, depth));
            }
        }
    }

    #[cold]
    pub(crate) fn rest<M: Machine>(
        &mut self,
        held: impl Iterator<Item = WaitingGroup>,
        (now_ns, rest_ns): (u64, u64),
        out: &SchedulerMessages<M>,
    ) {
        for (group, hold, _) in held {
            if self.rests(group, hold, now_ns) {
                out.leave(SchedulerMessage::Rests(group, hold, rest_ns));
            }
        }
    }

    /// Reports a depth that differs from the last reported one by a quarter or more.
    #[cold]
    pub(crate) fn depth<M: Machine>(
        &mut self,
        depth: [u32; 2],
        now_ns: u64,
        out: &SchedulerMessages<M>,
    ) {
        if self.changes(depth, now_ns) {
            out.leave(SchedulerMessage::Depth(depth));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn hold_is_reported_when_it_begins_and_after_ten_milliseconds() {
        let mut said = ReportedDecisions::default();
        let mut told = |looks, hold, now_ns| {
            said.looks = looks;
            said.begins(GroupId(1), hold, now_ns)
        };
        assert!(told(1, WaitReason::Weight, 0));
        assert!(!told(2, WaitReason::Weight, 20 * MS), "it lasts");
        assert!(told(3, WaitReason::Depth, 20 * MS), "another reason");
        assert!(!told(5, WaitReason::Depth, 29 * MS), "too soon");
        assert!(told(7, WaitReason::Depth, 30 * MS));
        assert!(told(8, WaitReason::Depth, 1_030 * MS), "a second later");
    }

    #[test]
    fn a_queue_that_was_at_rest_tells_its_depth_anew() {
        let mut said = ReportedDecisions::default();
        said.look(200 * MS);
        assert!(said.changes([4; 2], 200 * MS));
        said.look(299 * MS);
        assert!(!said.changes([4; 2], 299 * MS));
        said.look(399 * MS);
        assert!(said.changes([4; 2], 399 * MS));
    }

    #[test]
    fn rest_of_a_group_and_reason_is_told_each_ten_milliseconds() {
        let mut said = ReportedDecisions::default();
        assert!(said.rests(GroupId(1), WaitReason::Weight, MS));
        assert!(!said.rests(GroupId(1), WaitReason::Weight, 10 * MS));
        assert!(said.rests(GroupId(2), WaitReason::Weight, 10 * MS));
        assert!(said.rests(GroupId(1), WaitReason::Weight, 11 * MS));
    }

    #[test]
    fn a_depth_is_told_if_a_quarter_is_another() {
        let mut said = ReportedDecisions::default();
        assert!(said.changes([u32::MAX; 2], 0));
        assert!(!said.changes([32; 2], 9 * MS), "too soon");
        assert!(said.changes([32; 2], 10 * MS));
        assert!(!said.changes([39, 25], 30 * MS));
        assert!(said.changes([32, 24], 30 * MS));
        assert!(said.changes([40, 24], 40 * MS));
    }
}
