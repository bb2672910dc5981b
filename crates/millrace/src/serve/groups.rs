//! `ServedGroups`: the groups of a running server, read and changed by name.
//!
//! With `ExportConfig::group_each`, each client of an export has a child group of its own. A change
//! of the parent group also affects all its child groups.

use std::sync::Arc;

use millrace_block::{Error, ErrorKind, GroupId, Groups};
use millrace_exports::{ClientGroup, PerClientGroups};
use millrace_machine::{Native, debug_fields};

use super::config::{ExportConfig, ServeConfig};
use crate::config::{ConfigPart, StartError};
use crate::groups::{DEFAULT_GROUP, GroupConfig, find_group};

/// Groups of a running server, by name.
#[derive(Clone)]
pub struct ServedGroups {
    groups: Arc<Groups<Native>>,
    seats: Vec<Arc<PerClientGroups>>,
}

debug_fields!(ServedGroups);

impl ServedGroups {
    /// Wraps the opened `groups`. For exports with `group_each`, prepares to open a child group for
    /// each client.
    pub(super) fn new(
        config: &ServeConfig,
        groups: &Arc<Groups<Native>>,
    ) -> Result<ServedGroups, StartError> {
        ServedGroups { groups: Arc::clone(groups), seats: Vec::new() }.followed_by(config)
    }

    pub(super) fn followed_by(&self, config: &ServeConfig) -> Result<ServedGroups, StartError> {
        let groups = &self.groups;
        let mut served = ServedGroups { groups: Arc::clone(groups), seats: Vec::new() };
        for (at, export) in config.exports.iter().enumerate().filter(|(_, one)| one.group_each) {
            let wrong = |error| StartError::new(ConfigPart::Export(at), error);
            let group = find_group(groups, export.group_name()).map_err(wrong)?;
            match self.seats_of(group) {
                _ if served.seats_of(group).is_some() => {}
                Some(seats) => served.seats.push(Arc::clone(seats)),
                None => served.seats.push(PerClientGroups::new(groups, group).map_err(wrong)?),
            }
        }
        Ok(served)
    }

    pub(super) fn of_export(&self, export: &ExportConfig) -> ClientGroup {
        let group = self.groups.find(export.group_name()).unwrap_or_default();
        match self.seats_of(group) {
            Some(seats) => ClientGroup::Each(Arc::clone(seats)),
            None => ClientGroup::Shared(group),
        }
    }

    /// Returns the name by which the configuration lists the group of a client. A child group that
    /// was made for a single client is not listed. For such a group, returns the name of its
    /// parent.
    pub(super) fn configured_name(&self, group: GroupId) -> String {
        let Some(config) = self.groups.config(group) else { return String::new() };
        let above = config.parent.filter(|parent| self.seats_of(*parent).is_some());
        above.and_then(|parent| self.groups.config(parent)).unwrap_or(config).name
    }

    pub(super) fn close(&self, name: &str) -> Result<(), Error> {
        let group = find_group(&self.groups, name)?;
        self.children(group).try_for_each(|child| self.groups.close(child))?;
        self.groups.close(group)
    }

    /// Closes child groups of clients that have left, after a reload. `self` has the groups before
    /// the reload, and `now` the groups after it. A child group stays open if its parent still
    /// gives each client a child group (`group_each`).
    pub(super) fn close_left(&self, now: &ServedGroups) {
        for seats in self.seats.iter().filter(|seats| now.seats_of(seats.group()).is_none()) {
            let left = self.children(seats.group()).filter(|child| seats.is_left(*child));
            // Closing fails if the group was closed together with its parent, or if a new client
            // uses it. Both cases are fine.
            left.for_each(|child| drop(self.groups.close(child)));
        }
    }

    fn children(&self, group: GroupId) -> impl Iterator<Item = GroupId> + use<> {
        let all = self.groups.list().into_iter();
        all.filter(move |(_, config)| config.parent == Some(group)).map(|(child, _)| child)
    }

    fn seats_of(&self, group: GroupId) -> Option<&Arc<PerClientGroups>> {
        self.seats.iter().find(|seats| seats.group() == group)
    }

    /// Returns true if the group was made for a single client, which has left.
    fn is_left(&self, group: GroupId) -> bool {
        self.seats.iter().any(|seats| seats.is_left(group))
    }

    fn find(&self, name: &str) -> Result<GroupId, Error> {
        let group = find_group(&self.groups, name)?;
        if self.is_left(group) {
            return Err(invalid(format!(
                "group {name}: its client has left, and the next client's group begins with the \
                 settings of the parent; set the parent, or wait for a client"
            )));
        }
        Ok(group)
    }

    /// Returns the table of groups that the drives use.
    #[must_use]
    pub fn table(&self) -> &Arc<Groups<Native>> {
        &self.groups
    }

    /// Returns all groups: the default group, configured groups, and groups of connected clients,
    /// which are named `GROUP/1` and so on.
    #[must_use]
    pub fn list(&self) -> Vec<GroupConfig> {
        let list = self.groups.list().into_iter().filter(|(group, _)| !self.is_left(*group));
        list.map(|(group, config)| {
            let config = self.seats_of(group).map_or(config, |seats| seats.config());
            let parent = config.parent.and_then(|parent| self.groups.config(parent));
            GroupConfig::named(parent.map(|parent| parent.name), config)
        })
        .collect()
    }

    /// Returns the settings of a group.
    ///
    /// # Errors
    /// Returns `InvalidSetting` if there is no group of that name, or its client has left. The text
    /// suggests the most similar name.
    pub fn get(&self, name: &str) -> Result<GroupConfig, Error> {
        self.find(name)?;
        let found = self.list().into_iter().find(|group| group.name == name);
        Ok(found.unwrap_or_else(|| GroupConfig::new(name)))
    }

    /// Changes the settings of a group. Each thread applies the new settings from its next batch
    /// on. For I/O that is waiting already, the new settings apply within 20 ms.
    ///
    /// # Errors
    /// Returns `InvalidSetting` if there is no such group or a setting is out of range. In that
    /// case nothing changes.
    pub fn set(&self, config: &GroupConfig) -> Result<(), Error> {
        let group = self.find(&config.name)?;
        let named = config.for_layer(&self.groups)?;
        let before = self.groups.config(group).and_then(|before| before.parent);
        let is_of_seats =
            |parent: Option<GroupId>| parent.is_some_and(|parent| self.seats_of(parent).is_some());
        if named.parent != before && (is_of_seats(named.parent) || is_of_seats(before)) {
            return Err(invalid(format!(
                "group {}: groups under one with group-each are those of its clients; leave the \
                 parent as it is",
                config.name
            )));
        }
        match self.seats_of(group) {
            Some(seats) => seats.set(named),
            None => self.groups.set(group, named),
        }
    }
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::InvalidSetting, text)
}

impl ExportConfig {
    /// Returns the name of the group for the export's clients.
    #[must_use]
    pub fn group_name(&self) -> &str {
        self.group.as_deref().unwrap_or(DEFAULT_GROUP)
    }
}

#[cfg(test)]
mod tests {
    use millrace_block::GroupLimits;

    use super::*;
    use crate::groups::open_groups;

    fn served(each: bool) -> ServedGroups {
        let limits = GroupLimits { iops: Some(500), ..GroupLimits::default() };
        let gold = GroupConfig { limits, ..GroupConfig::new("gold") };
        let groups = open_groups(&[gold, GroupConfig::new("other")]).unwrap();
        let export = |name: &str| ExportConfig {
            name: name.to_owned(),
            group: Some("gold".to_owned()),
            group_each: each,
            ..ExportConfig::default()
        };
        let exports = vec![export("a"), export("b")];
        ServedGroups::new(&ServeConfig { exports, ..ServeConfig::default() }, &groups).unwrap()
    }

    fn names(served: &ServedGroups) -> Vec<String> {
        served.list().into_iter().map(|group| group.name).collect()
    }

    #[test]
    fn clients_of_two_exports_share_a_group_that_is_set_with_it() {
        let served = served(true);
        let export = ExportConfig { group: Some("gold".to_owned()), ..ExportConfig::default() };
        let clients = [served.of_export(&export).enter(), served.of_export(&export).enter()];
        assert_eq!(names(&served), ["default", "gold", "other", "gold/1", "gold/2"]);
        let gold = served.get("gold").unwrap();
        assert_eq!(gold.limits.iops, Some(500), "as it was set");
        let limits = GroupLimits { iops: Some(900), ..gold.limits };
        served.set(&GroupConfig { limits, ..gold }).unwrap();
        let iops = |name| served.get(name).unwrap().limits.iops;
        assert_eq!([iops("gold"), iops("gold/1"), iops("gold/2")], [Some(900); 3]);
        let one = GroupConfig { parent: None, ..served.get("gold/1").unwrap() };
        assert!(served.set(&one).unwrap_err().to_string().contains("group-each"));
        let other = GroupConfig { parent: Some("gold".into()), ..GroupConfig::new("other") };
        assert!(served.set(&other).unwrap_err().to_string().contains("group-each"));
        drop(clients);
        assert_eq!(names(&served), ["default", "gold", "other"]);
        let left = served.get("gold/1").unwrap_err().to_string();
        assert!(
            left.starts_with("group gold/1: its client has left, and the next client"),
            "{left}"
        );
        assert_eq!(
            served.set(&GroupConfig::new("gold/2")).unwrap_err().to_string().len(),
            left.len()
        );
    }

    #[test]
    fn missing_group_names_the_nearest_and_wrong_values_do_nothing() {
        let served = served(false);
        let error = served.get("gol").unwrap_err().to_string();
        assert_eq!(error, "there is no group \"gol\"; did you mean \"gold\"?");
        let gold = served.get("gold").unwrap();
        assert!(served.set(&GroupConfig { weight: 0, ..gold.clone() }).is_err());
        assert_eq!((served.get("gold").unwrap(), names(&served).len()), (gold, 3));
    }
}
