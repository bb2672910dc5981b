//! Time that requests of groups with latency targets spend at a drive, by group.
//!
//! Shows whether a missed target could have been met at all: the scheduler controls only the time
//! before the drive has the request. The scheduler `latency` counts it for groups with a target, in
//! one account for each group and hardware queue (kept by held.rs); `Volume::service_by_group`
//! reads it. Kernel counterpart: none.

use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::Machine;

use crate::account::histogram::{Histogram, Snapshot};
use crate::account::ledger::Entry;
use crate::bio::group_id::GroupId;

/// Service times of one group at one hardware queue.
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

/// Service times at one hardware queue, indexed by group number.
pub(crate) struct AtDrives<M: Machine>(Vec<Option<Arc<AtDrive<M>>>>);

impl<M: Machine> AtDrives<M> {
    pub(crate) fn new() -> Self {
        AtDrives(Vec::new())
    }

    /// Counts a request of `group`. `open` registers a new account with a ledger.
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
