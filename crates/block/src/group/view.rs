//! `GroupView`: a thread's copy of the group table, read without locks.
//!
//! A channel or a scheduler's queue owns it. The copy is renewed when the table's version has
//! changed, which takes one load of a word that is rarely written. Group numbers that were never
//! opened map to the default group.

use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::{Lock, Machine};

use crate::bio::group_id::GroupId;
use crate::bio::{Bio, Op};
use crate::group::Groups;
use crate::group::config::{LatencyTarget, Priority};
use crate::group::gate::{BUCKETS_PER_BIO, IoAtBucket, TokenBuckets};

pub(crate) struct GroupRow<M: Machine> {
    pub(crate) parent: Option<GroupId>,
    pub(crate) weight: u32,
    pub(crate) priority: Priority,
    pub(crate) target: Option<LatencyTarget>,
    /// Token buckets for the group's own limits; `None` if the group has no limits.
    pub(crate) limits: Option<Arc<TokenBuckets<M>>>,
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
            GroupRow {
                parent: config.parent,
                weight: config.weight,
                priority: config.priority,
                target: config.latency_target,
                limits: entry.limiting().cloned(),
            }
        }));
        self.has_limits = self.rows.iter().any(|row| row.limits.is_some());
    }

    /// Raises groups of idle priority that have a latency target to best-effort priority. I/O of
    /// idle priority waits while other groups have I/O. So slowing these groups down for a target
    /// would not help an idle group.
    pub(crate) fn serve_targets(&mut self) {
        let is_idle =
            |row: &&mut GroupRow<M>| row.target.is_some() && row.priority == Priority::Idle;
        self.rows.iter_mut().filter(is_idle).for_each(|row| row.priority = Priority::BestEffort);
    }

    /// Returns `id`, or the default group if `id` was never opened.
    pub(crate) fn known(&self, id: GroupId) -> GroupId {
        if usize::from(id.0) < self.rows.len() { id } else { GroupId::DEFAULT }
    }

    /// Returns the group whose limits apply at `level`: the group itself at 0, its parent at 1.
    pub(crate) fn at_level(&self, group: GroupId, level: usize) -> Option<GroupId> {
        let id = self.known(group);
        match level {
            0 => Some(id),
            1 => self.row(id)?.parent,
            _ => None,
        }
    }

    /// Returns true if the group or its parent has limits.
    pub(crate) fn is_limited(&self, group: GroupId) -> bool {
        let mut rows = (0..2).filter_map(|level| self.row(self.at_level(group, level)?));
        rows.any(|row| row.limits.is_some())
    }

    /// Returns the token buckets for the limit with index `place`, if that limit exists and applies
    /// to operation `op`. Indices below [`BUCKETS_PER_BIO`] are limits of the group; later ones are
    /// limits of its parent.
    pub(crate) fn buckets_at(
        &self,
        group: GroupId,
        op: Op,
        place: usize,
    ) -> Option<&TokenBuckets<M>> {
        let row = self.row(self.at_level(group, place / BUCKETS_PER_BIO)?)?;
        row.limits.as_deref().filter(|buckets| buckets.limits(place % BUCKETS_PER_BIO, op))
    }

    /// Returns the token bucket with index `place` for `bio`, with the cost of `bio` at that
    /// bucket; `None` if there is no limit with this index.
    pub(crate) fn bucket_of(&self, bio: &Bio, place: usize) -> Option<IoAtBucket<'_, M>> {
        let buckets = self.buckets_at(bio.account_key.group, bio.op, place)?;
        let sectors = if bio.op.has_data() { bio.nr_sectors } else { 0 };
        Some(buckets.at((place % BUCKETS_PER_BIO, bio.op, sectors)))
    }

    /// Returns the group's settings, or those of the default group for an unknown number.
    pub(crate) fn row(&self, id: GroupId) -> Option<&GroupRow<M>> {
        self.rows.get(usize::from(id.0)).or(self.rows.first())
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }
}
