//! `WaitTracker`: the reasons why each group's chains wait in a `Deadline`'s queue.
//!
//! Chains of a lower priority than the chain dispatched last wait because of priority; all other
//! chains wait for the reason that stops the whole queue. Counted by group and priority class;
//! owned by a queue's part of a `Deadline` (deadline.rs), under the queue's serve lock. Kernel
//! counterpart: none.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::Machine;

use crate::account::held::{DriveWaits, WaitAccounts};
use crate::account::hold::WaitReason;
use crate::account::waits::ReportedWaits;
use crate::bio::group_id::GroupId;

/// A group and the priority class of its chains.
type GroupClass = (GroupId, usize);

pub(crate) struct WaitTracker<M: Machine> {
    drive: Arc<DriveWaits<M>>,
    holds: WaitAccounts<M>,
    /// The last reported wait of each group and class that ever had a chain in this queue.
    said: Vec<(GroupClass, ReportedWaits)>,
    /// Index in `said` of each group and class.
    places: BTreeMap<GroupClass, usize>,
    /// Class of the chain dispatched last; chains of lower classes wait because of priority.
    class: usize,
    /// Indices into `said` of groups and classes that began to wait after the last dispatch.
    fresh: Vec<usize>,
}

impl<M: Machine> WaitTracker<M> {
    pub(crate) fn new(drive: &Arc<DriveWaits<M>>, hctx: usize) -> Self {
        let holds = WaitAccounts::at(drive, hctx);
        let (said, places) = (Vec::new(), BTreeMap::new());
        let (class, fresh) = (usize::MAX, Vec::new());
        WaitTracker { drive: Arc::clone(drive), holds, said, places, class, fresh }
    }

    pub(crate) fn begin(&mut self, key: GroupClass, since_ns: u64) {
        let next = self.said.len();
        let at = *self.places.entry(key).or_insert(next);
        if at == next {
            self.said.push((key, ReportedWaits::default()));
        }
        if self.said[at].1.waiting() == 0 {
            self.said[at].1 = ReportedWaits::default();
            self.fresh.push(at);
        }
        self.say(at, since_ns, |said| said.with(since_ns));
    }

    /// Records that a chain of `class`, which waited from `since_ns` to `now_ns`, is dispatched.
    /// Chains of lower priorities now wait because of `class`.
    pub(crate) fn end(&mut self, key: GroupClass, (since_ns, now_ns): (u64, u64), class: usize) {
        if let Some(at) = self.places.get(&key).copied() {
            self.say(at, now_ns, |said| said.without(since_ns));
        }
        self.wait_for(class, now_ns);
    }

    /// Records that chains of lower priorities than `class` wait because of `class` from now on.
    pub(crate) fn wait_for(&mut self, class: usize, now_ns: u64) {
        let mut fresh = core::mem::take(&mut self.fresh);
        match core::mem::replace(&mut self.class, class) == class {
            true => fresh.drain(..).for_each(|at| self.hold(at, now_ns)),
            false => {
                fresh.clear();
                (0..self.said.len()).for_each(|at| self.hold(at, now_ns));
            }
        }
        self.fresh = fresh;
    }

    fn hold(&mut self, at: usize, now_ns: u64) {
        let ((_, class), said) = self.said[at];
        let next = said.by((class > self.class).then_some(WaitReason::Priority));
        if said.waiting() > 0 && next != said {
            self.say(at, now_ns, |_| next);
        }
    }

    pub(crate) fn drain(&mut self) {
        for at in 0..self.said.len() {
            if self.said[at].1.waiting() > 0 {
                self.say(at, M::now(), |said| ReportedWaits::all(said.hold, 0, 0));
            }
        }
    }

    fn say(&mut self, at: usize, now_ns: u64, next: impl FnOnce(ReportedWaits) -> ReportedWaits) {
        let ((group, _), said) = &mut self.said[at];
        let drive = &self.drive;
        let account = self.holds.of(*group, |account| drive.open(account));
        account.settle(now_ns);
        account.say(said, next(*said), now_ns);
    }
}
