//! How long requests of groups with latency targets were at a drive, by group.
//!
//! Says whether a target that is missed could be kept at all: what a scheduler holds is before the
//! drive has a request, and what comes after that is the drive's own. Counted by the scheduler
//! `latency` for groups that have a target, one account for each group and hardware queue (held.rs
//! keeps them); read by `Volume::service_by_group`. Kernel counterpart: none.

use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::Machine;

use crate::account::histogram::{Histogram, Snapshot};
use crate::account::ledger::Entry;
use crate::bio::group_id::GroupId;

/// What one hardware queue counted of a group.
pub(crate) struct AtDrive<M: Machine> {
    group: GroupId,
    service: Histogram<M>,
}

impl<M: Machine> Entry for AtDrive<M> {
    type Key = GroupId;
    type Sum = Snapshot;

    fn key(&self) -> GroupId {
        self.group
    }

    fn add_to(&self, sum: &mut Snapshot) {
        sum.merge(&self.service.snapshot());
    }
}

/// A hardware queue's accounts, by number of the group.
pub(crate) struct AtDrives<M: Machine>(Vec<Option<Arc<AtDrive<M>>>>);

impl<M: Machine> AtDrives<M> {
    pub(crate) fn new() -> Self {
        AtDrives(Vec::new())
    }

    /// Counts a request of a group; `open` has a ledger take a new account in.
    pub(crate) fn count(
        &mut self,
        group: GroupId,
        service_ns: u64,
        open: impl FnOnce(AtDrive<M>) -> Arc<AtDrive<M>>,
    ) {
        let at = usize::from(group.0);
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        let account =
            self.0[at].get_or_insert_with(|| open(AtDrive { group, service: Histogram::new() }));
        account.service.record(service_ns, 1);
    }
}
