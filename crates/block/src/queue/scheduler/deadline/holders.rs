//! `Holders`: what holds each group's chains in a `Deadline`'s queue.
//!
//! Chains of a lower priority than the one that went out last are held by priority, all others by
//! whatever stops the queue. Counted per group and class; owned by a queue's part of a `Deadline`
//! (deadline.rs), under the queue's serve lock. Kernel counterpart: none.

use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::Machine;

use crate::account::held::{DriveHolds, Holds};
use crate::account::hold::Hold;
use crate::account::waits::Said;
use crate::bio::group_id::GroupId;

/// A group, and the class that its chains are in.
type Key = (GroupId, usize);

/// What a queue's part of a `Deadline` counts.
pub(crate) struct Holders<M: Machine> {
    drive: Arc<DriveHolds<M>>,
    holds: Holds<M>,
    /// In no order: those that ever had a chain here.
    said: Vec<(Key, Said)>,
}

impl<M: Machine> Holders<M> {
    pub(crate) fn new(drive: &Arc<DriveHolds<M>>, hctx: usize) -> Self {
        let holds = Holds::at(drive, hctx);
        Holders { drive: Arc::clone(drive), holds, said: Vec::new() }
    }

    /// A chain waits since a time.
    pub(crate) fn begin(&mut self, key: Key, since_ns: u64) {
        let known = self.said.iter().position(|(other, _)| *other == key);
        let at = known.unwrap_or_else(|| {
            self.said.push((key, Said::default()));
            self.said.len() - 1
        });
        self.say(at, since_ns, |said| match said.waiting() {
            0 => Said::default().with(since_ns),
            _ => said.with(since_ns),
        });
    }

    /// A chain of a class goes out that has waited from one time to another: what is of a lower
    /// priority waits for it.
    pub(crate) fn end(&mut self, key: Key, (since_ns, now_ns): (u64, u64), class: usize) {
        for at in 0..self.said.len() {
            let (other, said) = self.said[at];
            if said.waiting() == 0 {
                continue;
            }
            let hold = (other.1 > class).then_some(Hold::Priority);
            let next = if other == key { said.without(since_ns) } else { said };
            self.say(at, now_ns, |_| next.by(hold));
        }
    }

    /// Nothing waits any more.
    pub(crate) fn drain(&mut self) {
        for at in 0..self.said.len() {
            if self.said[at].1.waiting() > 0 {
                self.say(at, M::now(), |said| Said::all(said.hold, 0, 0));
            }
        }
    }

    fn say(&mut self, at: usize, now_ns: u64, next: impl FnOnce(Said) -> Said) {
        let ((group, _), said) = &mut self.said[at];
        let drive = &self.drive;
        let account = self.holds.of(*group, |account| drive.open(account));
        account.settle(now_ns);
        account.say(said, next(*said), now_ns);
    }
}
