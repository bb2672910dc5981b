//! Time that requests of groups with latency targets spend at a drive, by group.
//!
//! The statistics show whether a missed target could have been met at all: a scheduler controls
//! only the time before the drive has the request. The scheduler `latency` counts this time for
//! groups with a target, in one account for each group and hardware queue (kept by held.rs);
//! `Volume::service_by_group` reads it. Kernel counterpart: none.

use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::Machine;

use crate::account::histogram::{Histogram, Snapshot};
use crate::account::ledger::LedgerEntry;
use crate::bio::group_id::GroupId;

pub(crate) struct GroupServiceTimes<M: Machine> {
    group: GroupId,
    service: Histogram<M>,
}

impl<M: Machine> LedgerEntry for GroupServiceTimes<M> {
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
pub(crate) struct QueueServiceTimes<M: Machine>(Vec<Option<Arc<GroupServiceTimes<M>>>>);

impl<M: Machine> QueueServiceTimes<M> {
    pub(crate) fn new() -> Self {
        QueueServiceTimes(Vec::new())
    }

    pub(crate) fn count(
        &mut self,
        group: GroupId,
        service_ns: u64,
        open: impl FnOnce(GroupServiceTimes<M>) -> Arc<GroupServiceTimes<M>>,
    ) {
        let at = usize::from(group.0);
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        let account = self.0[at]
            .get_or_insert_with(|| open(GroupServiceTimes { group, service: Histogram::new() }));
        account.service.record(service_ns, 1);
    }
}
