//! What a hardware queue of a shared drive tells of its decisions while somebody records a trace.
//!
//! A group that begins to be held, a queue that rests, a depth that changed by a quarter: each is
//! left in `Decisions` for the trace, and none of them again within 10 ms, since a group that has
//! just its share is held and let go thousands of times a second. `Noted` remembers what was told,
//! and is there only while somebody records. Called by share.rs, under the queue's serve lock.

use alloc::collections::BTreeMap;

use millrace_machine::Machine;

use crate::account::decisions::{Decision, Decisions};
use crate::account::hold::Hold;
use crate::bio::group_id::GroupId;

/// What was told is not told again within this time.
const SAID_NS: u64 = 10_000_000;
/// A depth that is another by one is told after this time.
const STEP_NS: u64 = 100_000_000;
/// What lasts is told again after this time.
const LASTS_NS: u64 = 1_000_000_000;

/// A queue that did not look for so long begins anew: a recording may have ended meanwhile, and the
/// next one is to have the depth.
const FORGOTTEN_NS: u64 = 100_000_000;

/// What was told of a group and what holds it.
#[derive(Default)]
struct SaidOf {
    /// Number of the look at which it was held last.
    look: u64,
    held_ns: Option<u64>,
    rests_ns: Option<u64>,
}

/// What was told.
#[derive(Default)]
pub(crate) struct Noted {
    /// How often the queue looked at what it holds, and when it did so last.
    looks: u64,
    looked_ns: u64,
    of: BTreeMap<(GroupId, u8), SaidOf>,
    /// The depth, and when that was.
    said_depth: Option<([u32; 2], u64)>,
}

impl Noted {
    /// The queue looks at what it holds.
    fn look(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.looked_ns) >= FORGOTTEN_NS {
            *self = Noted::default();
        }
        (self.looks, self.looked_ns) = (self.looks + 1, now_ns);
    }

    /// Whether it is to be told that this holds a group.
    fn begins(&mut self, group: GroupId, hold: Hold, now_ns: u64) -> bool {
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

    /// Whether it is to be told that the queue rests since this holds a group.
    fn rests(&mut self, group: GroupId, hold: Hold, now_ns: u64) -> bool {
        let said = self.of.entry((group, hold as u8)).or_default();
        let tells = is_over(said.rests_ns, now_ns, SAID_NS);
        if tells {
            said.rests_ns = Some(now_ns);
        }
        tells
    }

    /// Whether a depth is to be told.
    fn changes(&mut self, depth: [u32; 2], now_ns: u64) -> bool {
        let tells = match self.said_depth {
            None => true,
            Some((said, said_ns)) => {
                let elapsed_ns = now_ns.saturating_sub(said_ns);
                // A depth of one or two goes up and down by one for ever.
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

/// Whether something told at a time, if ever, was told so long ago.
fn is_over(said_ns: Option<u64>, now_ns: u64, period_ns: u64) -> bool {
    said_ns.is_none_or(|said_ns| now_ns.saturating_sub(said_ns) >= period_ns)
}

/// A group, what holds it, and how many requests may be at the drive of those counted with it.
type HeldGroup = (GroupId, Hold, u32);

impl Noted {
    /// Tells which groups begin to be held, of those that are held now. A decision that finds no
    /// room is lost, here and below.
    #[cold]
    pub(crate) fn holds<M: Machine>(
        &mut self,
        held: impl Iterator<Item = HeldGroup>,
        now_ns: u64,
        out: &Decisions<M>,
    ) {
        self.look(now_ns);
        for (group, hold, depth) in held {
            if self.begins(group, hold, now_ns) {
                out.leave(Decision::Held(group, hold, depth));
            }
        }
    }

    /// Tells that the queue names nothing for a time, and what holds each group that waits.
    #[cold]
    pub(crate) fn rest<M: Machine>(
        &mut self,
        held: impl Iterator<Item = HeldGroup>,
        (now_ns, rest_ns): (u64, u64),
        out: &Decisions<M>,
    ) {
        for (group, hold, _) in held {
            if self.rests(group, hold, now_ns) {
                out.leave(Decision::Rests(group, hold, rest_ns));
            }
        }
    }

    /// Tells of a depth that differs by a quarter or more from the one that was told.
    #[cold]
    pub(crate) fn depth<M: Machine>(&mut self, depth: [u32; 2], now_ns: u64, out: &Decisions<M>) {
        if self.changes(depth, now_ns) {
            out.leave(Decision::Depth(depth));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_hold_is_told_when_it_begins_and_again_only_after_ten_milliseconds() {
        let mut said = Noted::default();
        let mut told = |looks, hold, now_ns| {
            said.looks = looks;
            said.begins(GroupId(1), hold, now_ns)
        };
        assert!(told(1, Hold::Weight, 0));
        assert!(!told(2, Hold::Weight, 20 * MS), "it lasts");
        assert!(told(3, Hold::Depth, 20 * MS), "another reason");
        assert!(!told(5, Hold::Depth, 29 * MS), "too soon");
        assert!(told(7, Hold::Depth, 30 * MS));
        assert!(told(8, Hold::Depth, 1_030 * MS), "a second later");
    }

    #[test]
    fn a_queue_that_was_at_rest_tells_its_depth_anew() {
        let mut said = Noted::default();
        said.look(200 * MS);
        assert!(said.changes([4; 2], 200 * MS));
        said.look(299 * MS);
        assert!(!said.changes([4; 2], 299 * MS));
        said.look(399 * MS);
        assert!(said.changes([4; 2], 399 * MS));
    }

    #[test]
    fn a_rest_of_each_group_and_reason_is_told_once_in_ten_milliseconds() {
        let mut said = Noted::default();
        assert!(said.rests(GroupId(1), Hold::Weight, MS));
        assert!(!said.rests(GroupId(1), Hold::Weight, 10 * MS));
        assert!(said.rests(GroupId(2), Hold::Weight, 10 * MS));
        assert!(said.rests(GroupId(1), Hold::Weight, 11 * MS));
    }

    #[test]
    fn a_depth_is_told_if_a_quarter_is_another() {
        let mut said = Noted::default();
        assert!(said.changes([u32::MAX; 2], 0));
        assert!(!said.changes([32; 2], 9 * MS), "too soon");
        assert!(said.changes([32; 2], 10 * MS));
        assert!(!said.changes([39, 25], 30 * MS));
        assert!(said.changes([32, 24], 30 * MS));
        assert!(said.changes([40, 24], 40 * MS));
    }
}
