//! `GroupView`: a thread's copy of the table of groups, without locks to read.
//!
//! Owned by a channel or a scheduler's queue; made anew when the table's version is another one,
//! which is one load of a word that nobody writes to ask. Numbers that were never opened stand for
//! the default group.

use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::{Lock, Machine};

use crate::bio::group_id::GroupId;
use crate::group::Groups;
use crate::group::config::{LatencyTarget, Priority};
use crate::group::gate::{Gates, Tolls};

/// What a thread needs to know of a group.
pub(crate) struct GroupRow<M: Machine> {
    pub(crate) parent: Option<GroupId>,
    pub(crate) weight: u32,
    pub(crate) priority: Priority,
    pub(crate) target: Option<LatencyTarget>,
    /// Its limits, if it has any of its own, and how often they were changed.
    pub(crate) limits: Option<(Tolls, Arc<Gates<M>>, u64)>,
}

/// A thread's copy of the table.
pub(crate) struct GroupView<M: Machine> {
    version: u64,
    rows: Vec<GroupRow<M>>,
    /// Whether any group has limits.
    pub(crate) has_limits: bool,
}

impl<M: Machine> GroupView<M> {
    /// One that is older than any table.
    pub(crate) fn new() -> Self {
        GroupView { version: 0, rows: Vec::new(), has_limits: false }
    }

    /// Whether the table has changed.
    #[inline(always)]
    pub(crate) fn is_old(&self, groups: &Groups<M>) -> bool {
        self.version != groups.version()
    }

    /// Copies the table.
    #[cold]
    pub(crate) fn renew(&mut self, groups: &Groups<M>) {
        let table = groups.table.lock();
        // Inside the lock, as it is raised: it is this table's.
        self.version = groups.version();
        self.rows.clear();
        self.rows.extend(table.entries.iter().map(|entry| {
            let config = &entry.config;
            let gates = entry.gates.as_ref().filter(|_| !config.limits.is_none());
            GroupRow {
                parent: config.parent,
                weight: config.weight,
                priority: config.priority,
                target: config.latency_target,
                limits: gates.map(|g| (Tolls::new(&config.limits), Arc::clone(g), entry.turns)),
            }
        }));
        self.has_limits = self.rows.iter().any(|row| row.limits.is_some());
    }

    /// The group that a number stands for.
    pub(crate) fn known(&self, id: GroupId) -> GroupId {
        if usize::from(id.0) < self.rows.len() { id } else { GroupId::DEFAULT }
    }

    /// Whether a group has limits, or the one that it is under.
    pub(crate) fn is_limited(&self, id: GroupId) -> bool {
        let has = |row: &GroupRow<M>| row.limits.is_some();
        let above = self.row(id).and_then(|row| row.parent).and_then(|parent| self.row(parent));
        self.row(id).is_some_and(has) || above.is_some_and(has)
    }

    /// What is known of a group.
    pub(crate) fn row(&self, id: GroupId) -> Option<&GroupRow<M>> {
        self.rows.get(usize::from(id.0)).or(self.rows.first())
    }

    /// How many groups there are.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }
}
