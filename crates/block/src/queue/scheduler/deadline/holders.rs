//! `WaitTracker`: records why the bio chains of each group wait in one queue of a `Deadline`
//! scheduler.
//!
//! Waits are counted by group and priority class. At any time, one priority class goes first. Bio
//! chains of lower classes wait because of their priority. All other chains wait for the reason
//! that the block layer sets for the whole queue (`DriveWaits::stop`), such as a lack of tags. A
//! `DeadlineQueue` (deadline.rs) owns the tracker, and uses it under the queue's serve lock, which
//! one thread at a time holds. Kernel counterpart: none.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::Machine;

use crate::account::held::{DriveWaits, WaitAccounts};
use crate::account::hold::WaitReason;
use crate::account::waits::ReportedWaits;
use crate::bio::group_id::GroupId;

/// A group, and the priority class of its I/O.
type GroupClass = (GroupId, usize);

pub(crate) struct WaitTracker<M: Machine> {
    drive: Arc<DriveWaits<M>>,
    holds: WaitAccounts<M>,
    /// Last report to the wait statistics for each group and priority class that ever had a bio
    /// chain in this queue.
    said: Vec<(GroupClass, ReportedWaits)>,
    /// Index into `said` for each group and priority class.
    places: BTreeMap<GroupClass, usize>,
    /// Priority class that goes first at present. Lower classes wait because of it.
    class: usize,
    /// Indices into `said` of the entries that began to wait after the last call of `wait_for`.
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

    /// Records the dispatch of a bio chain that waited from `since_ns` to `now_ns`. The chain's
    /// priority class `class` now goes first: chains of lower priority are reported as waiting
    /// because of their priority.
    pub(crate) fn end(&mut self, key: GroupClass, (since_ns, now_ns): (u64, u64), class: usize) {
        if let Some(at) = self.places.get(&key).copied() {
            self.say(at, now_ns, |said| said.without(since_ns));
        }
        self.wait_for(class, now_ns);
    }

    /// Records that `class` goes first from now on: lower classes wait because of their priority.
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
