//! `Groups`: the groups that share drives, each with a weight, priority, limits and latency target.
//!
//! A program has one table of groups and gives it to its disks. A bio carries the number of its
//! group. Settings can change at any time, so the table is behind a lock. Channels (for limits) and
//! schedulers (for the rest) keep a copy. They compare the table's version word once for each
//! batch. Lock order: no other lock is taken under the table's lock. Source: Bjorling et al.,
//! SYSTOR 2013 (\[MQ\]), which leaves scheduling in the software queues open. Kernel counterpart:
//! the `io.*` files of blk-cgroup.

pub(crate) mod config;
pub(crate) mod gate;
pub(crate) mod view;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::{Lock, Machine, Order, Word, debug_fields};

use crate::bio::error::{Error, ErrorKind};
use crate::bio::group_id::GroupId;
use crate::group::config::GroupConfig;
use crate::group::gate::TokenBuckets;

/// Largest number of groups in a program.
pub const GROUPS_MAX: usize = 16_384;

struct GroupEntry<M: Machine> {
    config: GroupConfig,
    /// Token buckets of the group, made when limits are first set and replaced when they change.
    buckets: Option<Arc<TokenBuckets<M>>>,
    is_closed: bool,
}

impl<M: Machine> GroupEntry<M> {
    fn new(config: GroupConfig) -> GroupEntry<M> {
        let has_limits = !config.limits.is_none();
        let buckets = has_limits.then(|| Arc::new(TokenBuckets::new(&config.limits, M::now())));
        GroupEntry { config, buckets, is_closed: false }
    }

    /// Returns the token buckets if the group has limits now.
    fn limiting(&self) -> Option<&Arc<TokenBuckets<M>>> {
        self.buckets.as_ref().filter(|_| !self.config.limits.is_none())
    }

    /// Changes the group's settings. If the limits change, the group gets new token buckets. The
    /// cost of I/Os that have passed the old buckets is converted to the new rate.
    fn change(&mut self, config: GroupConfig) {
        if self.config.limits != config.limits {
            let (limits, now_ns) = (&config.limits, M::now());
            self.buckets = Some(Arc::new(match &self.buckets {
                Some(buckets) => buckets.changed(limits, now_ns),
                None => TokenBuckets::new(limits, now_ns),
            }));
        }
        self.config = config;
    }
}

struct GroupTable<M: Machine> {
    entries: Vec<GroupEntry<M>>,
    by_name: BTreeMap<String, GroupId>,
}

/// The table of all groups of a program.
#[doc(alias("blkcg", "cgroup"))]
pub struct Groups<M: Machine> {
    /// Version of the group table, incremented under the table's lock with each change.
    version: M::Word,
    table: M::Lock<GroupTable<M>>,
}

debug_fields!(Groups<M: Machine>);

impl<M: Machine> Groups<M> {
    /// Creates a table with only the default group: named `default`, weight 100, no limits.
    #[must_use]
    pub fn new() -> Arc<Groups<M>> {
        let config = GroupConfig::new("default");
        let by_name = BTreeMap::from([(config.name.clone(), GroupId::DEFAULT)]);
        let table = GroupTable { entries: alloc::vec![GroupEntry::new(config)], by_name };
        Arc::new(Groups { version: M::Word::new(1), table: M::Lock::new("groups", table) })
    }

    /// Opens a new group and returns its number.
    ///
    /// # Errors
    /// `InvalidSetting` if a value is out of range, the name is taken, the parent does not exist
    /// or has a parent itself, or there are [`GROUPS_MAX`] groups.
    pub fn open(&self, config: GroupConfig) -> Result<GroupId, Error> {
        config.validate()?;
        let mut table = self.table.lock();
        if table.by_name.contains_key(&config.name) {
            return wrong(format!("group {}: the name is taken by another group", config.name));
        }
        let closed = table.entries.iter().position(|entry| entry.is_closed);
        if closed.is_none() && table.entries.len() >= GROUPS_MAX {
            return wrong(format!(
                "group {}: the limit of {GROUPS_MAX} groups is reached",
                config.name
            ));
        }
        let id = GroupId(closed.unwrap_or(table.entries.len()) as u16);
        table.check_parent(id, &config)?;
        table.by_name.insert(config.name.clone(), id);
        match closed {
            Some(at) => {
                table.entries[at].change(config);
                table.entries[at].is_closed = false;
            }
            None => table.entries.push(GroupEntry::new(config)),
        }
        self.changed();
        Ok(id)
    }

    /// Closes a group that is no longer used; a later group may get its number. I/Os of the group
    /// that are still in flight continue without limits.
    ///
    /// # Errors
    /// `InvalidSetting` if there is no such group, or if the group is the default group or the
    /// parent of another group.
    pub fn close(&self, id: GroupId) -> Result<(), Error> {
        let mut table = self.table.lock();
        let name = table.open_entry(id)?.config.name.clone();
        if id == GroupId::DEFAULT {
            return wrong(format!("group {name}: the default group cannot be removed"));
        }
        if let Some(child) = table.child_of(id) {
            return wrong(format!(
                "group {name}: it is the parent of {child}; remove {child} first"
            ));
        }
        table.by_name.remove(&name);
        let entry = &mut table.entries[usize::from(id.0)];
        entry.change(GroupConfig::new(name));
        entry.is_closed = true;
        self.changed();
        Ok(())
    }

    /// Changes the settings of a group. Each channel applies them from its next batch on. The group
    /// keeps its name. I/Os that already wait are delayed by the new limit instead. The cost of
    /// I/Os that have passed a limit is converted to the new rate.
    ///
    /// # Errors
    /// The errors of [`Groups::open`], and an error if there is no such group. Nothing changes
    /// then.
    pub fn set(&self, id: GroupId, mut config: GroupConfig) -> Result<(), Error> {
        let mut table = self.table.lock();
        config.name.clone_from(&table.open_entry(id)?.config.name);
        config.validate()?;
        table.check_parent(id, &config)?;
        table.entries[usize::from(id.0)].change(config);
        self.changed();
        Ok(())
    }

    /// Returns the number of the group `name`.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<GroupId> {
        self.table.lock().by_name.get(name).copied()
    }

    /// Returns a group's settings.
    #[must_use]
    pub fn config(&self, id: GroupId) -> Option<GroupConfig> {
        let table = self.table.lock();
        table.entries.get(usize::from(id.0)).map(|entry| entry.config.clone())
    }

    /// Returns all open groups, sorted by number. New groups get increasing numbers, but the number
    /// of a closed group is used again first.
    #[must_use]
    pub fn list(&self) -> Vec<(GroupId, GroupConfig)> {
        let table = self.table.lock();
        let open = table.entries.iter().zip(0..).filter(|(entry, _)| !entry.is_closed);
        open.map(|(entry, id)| (GroupId(id), entry.config.clone())).collect()
    }

    /// Returns for each group how many nanoseconds a new I/O would have to wait for the group's
    /// limits. Groups whose I/O would not wait are left out.
    #[must_use]
    pub fn booked(&self) -> Vec<(GroupId, u64)> {
        let (table, now_ns) = (self.table.lock(), M::now());
        let booked = |(entry, id): (&GroupEntry<M>, u16)| {
            let ahead_ns = entry.limiting()?.ahead_ns(now_ns);
            (ahead_ns > 0).then_some((GroupId(id), ahead_ns))
        };
        table.entries.iter().zip(0..).filter_map(booked).collect()
    }

    #[inline(always)]
    pub(crate) fn version(&self) -> u64 {
        // Acquire pairs with the Release in `changed`: a thread that sees the new version finds the
        // new table under the lock.
        self.version.load(Order::Acquire)
    }

    fn changed(&self) {
        // Release pairs with the Acquire in `version`.
        self.version.fetch_add(1, Order::Release);
    }
}

impl<M: Machine> GroupTable<M> {
    fn find_open(&self, id: GroupId) -> Option<&GroupEntry<M>> {
        self.entries.get(usize::from(id.0)).filter(|entry| !entry.is_closed)
    }

    fn open_entry(&self, id: GroupId) -> Result<&GroupEntry<M>, Error> {
        let text = || format!("group {}: no group has this number", id.0);
        self.find_open(id).map_or_else(|| wrong(text()), Ok)
    }

    /// Returns the name of an open group whose parent is `id`, or `None` if `id` has no children.
    fn child_of(&self, id: GroupId) -> Option<&str> {
        let mut open = self.entries.iter().filter(|entry| !entry.is_closed);
        open.find(|entry| entry.config.parent == Some(id)).map(|entry| &*entry.config.name)
    }

    /// Checks that groups have at most two levels and no cycles.
    fn check_parent(&self, id: GroupId, config: &GroupConfig) -> Result<(), Error> {
        let Some(parent) = config.parent else { return Ok(()) };
        let name = &config.name;
        let Some(above) = self.find_open(parent) else {
            return wrong(format!("group {name}: its parent, group {}, does not exist", parent.0));
        };
        if parent == id {
            return wrong(format!(
                "group {name}: a group cannot be its own parent; name another parent, or none"
            ));
        }
        if parent == GroupId::DEFAULT || id == GroupId::DEFAULT {
            return wrong(format!(
                "group {name}: the default group can have neither a parent nor children"
            ));
        }
        if above.config.parent == Some(id) {
            let above = &above.config.name;
            return wrong(format!(
                "group {name}: its parent {above} is itself a child of {name}; remove that relation first"
            ));
        }
        if let Some(grandparent) = above.config.parent {
            let (above, top) =
                (&above.config.name, &self.entries[usize::from(grandparent.0)].config.name);
            return wrong(format!(
                "group {name}: its parent {above} has the parent {top}; groups have two levels, so \
                 name {top} as the parent"
            ));
        }
        match self.child_of(id) {
            None => Ok(()),
            Some(child) => wrong(format!(
                "group {name}: it is the parent of {child}; groups have two levels, so it can have \
                 no parent itself"
            )),
        }
    }
}

fn wrong<T>(text: String) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidSetting, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::config::{GroupLimits, LatencyTarget};
    use core::time::Duration;
    use millrace_machine::Native;

    fn child(name: &str, parent: GroupId) -> GroupConfig {
        GroupConfig { parent: Some(parent), ..GroupConfig::new(name) }
    }

    fn text<T>(result: Result<T, Error>) -> String {
        result.err().map(|error| alloc::string::ToString::to_string(&error)).unwrap_or_default()
    }

    #[test]
    fn a_closed_group_gives_its_number_to_the_next_and_nothing_else() {
        let groups = Groups::<Native>::new();
        let limits = GroupLimits { iops: Some(500), ..GroupLimits::default() };
        let gold = groups.open(GroupConfig { limits, ..GroupConfig::new("gold") }).unwrap();
        let one = groups.open(child("one", gold)).unwrap();
        assert!(text(groups.close(gold)).contains("it is the parent of one; remove one first"));
        assert!(
            text(groups.close(GroupId::DEFAULT)).contains("the default group cannot be removed")
        );
        groups.close(one).unwrap();
        let version = groups.version();
        groups.close(gold).unwrap();
        assert!(groups.version() > version);
        assert_eq!((groups.find("gold"), groups.list().len()), (None, 1));
        assert!(text(groups.close(gold)).contains("no group has this number"));
        assert!(
            text(groups.set(gold, GroupConfig::new("gold"))).contains("no group has this number")
        );
        assert!(text(groups.open(child("below", gold))).contains("does not exist"));
        assert_eq!(groups.config(gold).unwrap().limits, GroupLimits::default());
        let next = groups.open(GroupConfig::new("next")).unwrap();
        assert_eq!((next, groups.find("next")), (gold, Some(gold)));
        assert_eq!(groups.open(GroupConfig::new("gold")).unwrap(), one);
        assert_eq!(groups.open(GroupConfig::new("third")).unwrap(), GroupId(3));
    }

    #[test]
    fn groups_have_two_levels_and_no_circles() {
        let groups = Groups::<Native>::new();
        let gold = groups.open(GroupConfig::new("gold")).unwrap();
        let one = groups.open(child("one", gold)).unwrap();
        assert!(text(groups.open(child("below", one))).contains("name gold as the parent"));
        assert!(text(groups.set(gold, child("", gold))).contains("its own parent"));
        assert!(text(groups.set(gold, child("", one))).contains("is itself a child of gold"));
        let other = groups.open(GroupConfig::new("other")).unwrap();
        assert!(text(groups.set(gold, child("", other))).contains("the parent of one"));
        assert!(text(groups.open(child("x", GroupId::DEFAULT))).contains("default group"));
        assert!(text(groups.open(child("x", GroupId(99)))).contains("its parent, group 99,"));
        assert!(text(groups.open(GroupConfig::new("one"))).contains("the name is taken"));
        let names: Vec<String> = groups.list().into_iter().map(|(_, c)| c.name).collect();
        assert_eq!(names, ["default", "gold", "one", "other"]);
        assert_eq!((groups.find("one"), groups.find("two")), (Some(one), None));
    }

    #[test]
    fn a_value_out_of_its_range_is_refused_and_nothing_changes() {
        let groups = Groups::<Native>::new();
        let gold = groups.open(GroupConfig::new("gold")).unwrap();
        let before = (groups.config(gold), groups.version());
        let plain = GroupConfig::new("gold");
        let limited = |limits| GroupConfig { limits, ..plain.clone() };
        let none = GroupLimits::default();
        let target = |target| GroupConfig { latency_target: Some(target), ..plain.clone() };
        for (config, part) in [
            (GroupConfig { weight: 0, ..plain.clone() }, "weight 0"),
            (GroupConfig { weight: 10_001, ..plain.clone() }, "weight 10001"),
            (limited(GroupLimits { iops: Some(0), ..none }), "iops 0 is out of range; use 1 to"),
            (limited(GroupLimits { write_bandwidth: Some(4095), ..none }), "write-bandwidth 4095"),
            (limited(GroupLimits { burst: Duration::from_nanos(10), ..none }), "burst of 10 ns"),
            (target(LatencyTarget::Mean(Duration::from_nanos(5))), "latency-target of 5 ns"),
            (
                target(LatencyTarget::Percentile(10_000, Duration::from_micros(5))),
                "latency-target p100.00 is out of range",
            ),
        ] {
            assert!(text(groups.set(gold, config)).contains(part), "{part}");
        }
        assert_eq!((groups.config(gold), groups.version()), before);
    }

    #[test]
    fn view_is_old_after_each_change_and_knows_only_what_was_opened() {
        let groups = Groups::<Native>::new();
        let mut view = view::GroupView::new();
        assert!(view.is_old(&groups));
        view.renew(&groups);
        assert!(!view.is_old(&groups) && !view.has_limits);
        let limits = GroupLimits { iops: Some(7), ..GroupLimits::default() };
        let gold = groups.open(GroupConfig { limits, ..GroupConfig::new("gold") }).unwrap();
        assert!(view.is_old(&groups));
        assert_eq!(view.known(gold), GroupId::DEFAULT);
        view.renew(&groups);
        assert_eq!((view.known(gold), view.known(GroupId(7))), (gold, GroupId::DEFAULT));
        assert!(view.has_limits && view.row(gold).is_some_and(|row| row.limits.is_some()));
        groups.set(gold, GroupConfig::new("")).unwrap();
        view.renew(&groups);
        assert!(!view.has_limits);
        assert_eq!(groups.config(gold).map(|config| config.name), Some("gold".into()));
    }
}
