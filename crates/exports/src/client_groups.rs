//! `ClientGroup`: one I/O group for all clients of an export, or one for each client.
//!
//! With a group for each client, [`PerClientGroups`] creates child groups of the export's group on
//! demand and reuses those of clients that have left. The limits and the latency target of the
//! export's group then apply to each client; its weight and priority apply to all clients together.
//! Lock order: the lock of a `PerClientGroups`, then the table of groups.

use std::sync::{Arc, Mutex};

use millrace_block::{Error, ErrorKind, GroupConfig, GroupId, GroupLimits, Groups};
use millrace_machine::{Native, debug_fields};

use crate::mailbox::lock;

/// I/O group of an export's clients.
#[derive(Debug, Clone)]
pub enum ClientGroup {
    /// All clients share this group.
    Shared(GroupId),
    /// Each client gets a child group of its own.
    Each(Arc<PerClientGroups>),
}

impl Default for ClientGroup {
    fn default() -> ClientGroup {
        ClientGroup::Shared(GroupId::DEFAULT)
    }
}

impl ClientGroup {
    /// Assigns a group to a new client. The client keeps the group until the returned value is
    /// dropped.
    #[must_use]
    pub fn enter(&self) -> GroupMembership {
        match self {
            ClientGroup::Shared(group) => GroupMembership { group: *group, seats: None },
            ClientGroup::Each(seats) => seats.enter(),
        }
    }
}

/// A client's use of an I/O group, which ends when the value is dropped.
#[derive(Debug)]
pub struct GroupMembership {
    group: GroupId,
    seats: Option<Arc<PerClientGroups>>,
}

impl GroupMembership {
    /// Returns the client's group.
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.group
    }
}

impl Drop for GroupMembership {
    fn drop(&mut self) {
        if let Some(seats) = &self.seats {
            seats.leave(self.group);
        }
    }
}

/// Child groups of one group, each for a single client, named `GROUP/1`, `GROUP/2` and so on.
pub struct PerClientGroups {
    groups: Arc<Groups<Native>>,
    group: GroupId,
    state: Mutex<MembershipTable>,
}

struct MembershipTable {
    /// Configured settings of the parent group. The limits and the latency target apply to each
    /// child group separately.
    config: GroupConfig,
    /// Each child group with the number of clients that use it at present.
    seats: Vec<(GroupId, u32)>,
}

debug_fields!(PerClientGroups, group);

impl PerClientGroups {
    /// Creates child groups of `group` on demand. The limits and the latency target of `group` then
    /// apply to each client.
    ///
    /// # Errors
    /// `InvalidSetting` if there is no such group, or if it has a parent: groups have two levels
    /// only.
    pub fn new(
        groups: &Arc<Groups<Native>>,
        group: GroupId,
    ) -> Result<Arc<PerClientGroups>, Error> {
        let Some(config) = groups.config(group) else {
            let text = format!("group {}: no group has this number", group.0);
            return Err(Error::new(ErrorKind::InvalidSetting, text));
        };
        let state = Mutex::new(MembershipTable { config: config.clone(), seats: Vec::new() });
        let seats = Arc::new(PerClientGroups { groups: Arc::clone(groups), group, state });
        seats.set(config)?;
        Ok(seats)
    }

    /// Returns the parent group. Its child groups are the groups of the clients.
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// Returns the configured settings of the parent group, including the limits of each client.
    #[must_use]
    pub fn config(&self) -> GroupConfig {
        lock(&self.state).config.clone()
    }

    /// Changes the settings of the parent group and of its clients' groups.
    ///
    /// # Errors
    /// The errors of [`Groups::set`], and an error if `config` names a parent. Nothing changes on
    /// an error.
    pub fn set(&self, config: GroupConfig) -> Result<(), Error> {
        if config.parent.is_some() || self.group == GroupId::DEFAULT {
            let name = &config.name;
            let text = format!(
                "group {name}: its clients have groups of their own under it (group-each), and \
                 groups have two levels; it can have no parent, and not be the default group"
            );
            return Err(Error::new(ErrorKind::InvalidSetting, text));
        }
        config.validate()?;
        let mut state = lock(&self.state);
        let (limits, latency_target) = (GroupLimits::default(), None);
        self.groups.set(self.group, GroupConfig { limits, latency_target, ..config.clone() })?;
        state.config = config;
        for (seat, _) in &state.seats {
            self.groups.set(*seat, self.of_client(&state, String::new()))?;
        }
        Ok(())
    }

    fn of_client(&self, state: &MembershipTable, name: String) -> GroupConfig {
        let weight = GroupConfig::new("").weight;
        GroupConfig { name, parent: Some(self.group), weight, ..state.config.clone() }
    }

    fn enter(self: &Arc<Self>) -> GroupMembership {
        let mut state = lock(&self.state);
        let free = state.seats.iter().position(|(_, clients)| *clients == 0);
        let at = free.or_else(|| self.open(&mut state));
        // If no more groups can be opened, new clients share the group that has the fewest clients.
        let fewest = || (0..state.seats.len()).min_by_key(|at| state.seats[*at].1);
        let Some(at) = at.or_else(fewest) else {
            return GroupMembership { group: self.group, seats: None };
        };
        let group = state.seats[at].0;
        if free.is_some() {
            // An operator may have changed the settings of this group for its previous client. So
            // the settings are reset for the new client. `Groups::set` cannot fail, because
            // `PerClientGroups::set` has already checked the settings.
            let _ = self.groups.set(group, self.of_client(&state, String::new()));
        }
        state.seats[at].1 += 1;
        GroupMembership { group, seats: Some(Arc::clone(self)) }
    }

    /// Opens another child group; returns its index, or `None` if the table of groups is full.
    fn open(&self, state: &mut MembershipTable) -> Option<usize> {
        let name = format!("{}/{}", state.config.name, state.seats.len() + 1);
        let group = self.groups.open(self.of_client(state, name)).ok()?;
        state.seats.push((group, 0));
        Some(state.seats.len() - 1)
    }

    /// Returns true if the child group `group` has no client at present.
    #[must_use]
    pub fn is_left(&self, group: GroupId) -> bool {
        lock(&self.state).seats.iter().any(|(seat, clients)| *seat == group && *clients == 0)
    }

    fn leave(&self, group: GroupId) {
        let mut state = lock(&self.state);
        if let Some((_, clients)) = state.seats.iter_mut().find(|(seat, _)| *seat == group) {
            *clients -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gold(iops: u64) -> GroupConfig {
        let limits = GroupLimits { iops: Some(iops), ..GroupLimits::default() };
        GroupConfig { weight: 400, limits, ..GroupConfig::new("gold") }
    }

    fn seats() -> (Arc<Groups<Native>>, ClientGroup, Arc<PerClientGroups>) {
        let groups = Groups::<Native>::new();
        let group = groups.open(gold(500)).unwrap();
        let seats = PerClientGroups::new(&groups, group).unwrap();
        (groups, ClientGroup::Each(Arc::clone(&seats)), seats)
    }

    #[test]
    fn client_has_group_of_its_own_and_leaves_it_to_next_one() {
        let (groups, clients, seats) = seats();
        let name = |seat: &GroupMembership| groups.config(seat.group()).unwrap().name;
        let (one, two) = (clients.enter(), clients.enter());
        assert_eq!((name(&one), name(&two)), ("gold/1".to_owned(), "gold/2".to_owned()));
        assert!(!seats.is_left(one.group()) && !seats.is_left(seats.group()));
        let left = one.group();
        drop(one);
        assert!(seats.is_left(left) && !seats.is_left(two.group()));
        let (again, three) = (clients.enter(), clients.enter());
        assert_eq!((name(&again), name(&three)), ("gold/1".to_owned(), "gold/3".to_owned()));
        assert_eq!(groups.list().len(), 5, "default, gold and three clients");
    }

    #[test]
    fn limits_are_each_clients_own_and_change_with_the_group() {
        let (groups, clients, seats) = seats();
        let iops = |group| groups.config(group).unwrap().limits.iops;
        let (one, two) = (clients.enter(), clients.enter());
        assert_eq!((iops(seats.group()), iops(one.group())), (None, Some(500)));
        let weight = |group| groups.config(group).unwrap().weight;
        assert_eq!((weight(seats.group()), weight(one.group())), (400, 100));
        let own = GroupLimits { iops: Some(7), ..GroupLimits::default() };
        let config = groups.config(two.group()).unwrap();
        groups.set(two.group(), GroupConfig { limits: own, ..config }).unwrap();
        assert_eq!((iops(one.group()), iops(two.group())), (Some(500), Some(7)));
        drop(two);
        assert_eq!(iops(clients.enter().group()), Some(500), "it went with the client");
        seats.set(gold(900)).unwrap();
        assert_eq!((iops(one.group()), seats.config().limits.iops), (Some(900), Some(900)));
    }

    #[test]
    fn what_the_group_cannot_have_changes_nothing() {
        let (groups, clients, seats) = seats();
        let one = clients.enter();
        let parent = groups.open(GroupConfig::new("silver")).unwrap();
        let config = GroupConfig { parent: Some(parent), ..gold(900) };
        let error = seats.set(config).unwrap_err().to_string();
        assert!(error.contains("group gold: its clients have groups of their own"), "{error}");
        assert!(seats.set(GroupConfig { weight: 0, ..gold(900) }).is_err());
        assert_eq!(seats.config(), gold(500));
        assert_eq!(groups.config(one.group()).unwrap().limits.iops, Some(500));
    }

    #[test]
    fn clients_share_groups_where_there_can_be_no_more() {
        let (groups, clients, _) = seats();
        let one = clients.enter();
        let opens = |name: &u32| groups.open(GroupConfig::new(name.to_string())).is_ok();
        assert!((0..).take_while(opens).count() > 0);
        let (two, three) = (clients.enter(), clients.enter());
        assert_eq!((two.group(), three.group()), (one.group(), one.group()));
    }
}
