//! `GroupView`: a thread's copy of the group table, read without locks.
//!
//! A channel or a scheduler's queue owns it. The copy is renewed when the table's version has
//! changed, which takes one load of a word that is rarely written. Group numbers that were never
//! opened map to the default group.

use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::{Lock, Machine};

use crate::bio::group_id::GroupId;
use crate::group::Groups;
use crate::group::config::{LatencyTarget, Priority};
use crate::group::gate::{LimitCosts, TokenBuckets};

pub(crate) struct GroupRow<M: Machine> {
    pub(crate) parent: Option<GroupId>,
    pub(crate) weight: u32,
    pub(crate) priority: Priority,
    pub(crate) target: Option<LatencyTarget>,
    /// Costs and token buckets of the group's own limits, and the number of times that these limits
    /// were changed, which tells old limits from new ones. `None` without limits.
    pub(crate) limits: Option<(LimitCosts, Arc<TokenBuckets<M>>, u64)>,
}

pub(crate) struct GroupView<M: Machine> {
    version: u64,
    rows: Vec<GroupRow<M>>,
    pub(crate) has_limits: bool,
}

impl<M: Machine> GroupView<M> {
    /// Creates an empty view. Its version 0 is older than any version of the group table.
    pub(crate) fn new() -> Self {
        GroupView { version: 0, rows: Vec::new(), has_limits: false }
    }

    #[inline(always)]
    pub(crate) fn is_old(&self, groups: &Groups<M>) -> bool {
        self.version != groups.version()
    }

    #[cold]
    pub(crate) fn renew(&mut self, groups: &Groups<M>) {
        let table = groups.table.lock();
        // The version is read under the table's lock, so it belongs to the copied table.
        self.version = groups.version();
        self.rows.clear();
        self.rows.extend(table.entries.iter().map(|entry| {
            let config = &entry.config;
            let buckets = entry.buckets.as_ref().filter(|_| !config.limits.is_none());
            GroupRow {
                parent: config.parent,
                weight: config.weight,
                priority: config.priority,
                target: config.latency_target,
                limits: buckets
                    .map(|g| (LimitCosts::new(&config.limits), Arc::clone(g), entry.turns)),
            }
        }));
        self.has_limits = self.rows.iter().any(|row| row.limits.is_some());
    }

    /// Gives groups of idle priority that have a latency target the usual priority, for a scheduler
    /// that keeps targets: it would hold others back for a group that it does not serve.
    pub(crate) fn serve_targets(&mut self) {
        let is_idle =
            |row: &&mut GroupRow<M>| row.target.is_some() && row.priority == Priority::Idle;
        self.rows.iter_mut().filter(is_idle).for_each(|row| row.priority = Priority::BestEffort);
    }

    /// Returns `id`, or the default group if `id` was never opened.
    pub(crate) fn known(&self, id: GroupId) -> GroupId {
        if usize::from(id.0) < self.rows.len() { id } else { GroupId::DEFAULT }
    }

    /// Returns true if the group or its parent has limits.
    pub(crate) fn is_limited(&self, id: GroupId) -> bool {
        let has = |row: &GroupRow<M>| row.limits.is_some();
        let above = self.row(id).and_then(|row| row.parent).and_then(|parent| self.row(parent));
        self.row(id).is_some_and(has) || above.is_some_and(has)
    }

    /// Returns the group's settings, or those of the default group for an unknown number.
    pub(crate) fn row(&self, id: GroupId) -> Option<&GroupRow<M>> {
        self.rows.get(usize::from(id.0)).or(self.rows.first())
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }
}
