//! Groups of clients that share drives, by name, as plain structs: the weight and limits of each
//! group.
//!
//! [`open_groups`] creates the table that all drives of a program use. Kernel counterpart: cgroups
//! with `io.weight` and `io.max`.

use std::sync::Arc;

use millrace_block::{
    Error, ErrorKind, GroupId, GroupLimits, Groups, LatencyTarget, Priority, Volume,
};
use millrace_drives::nearest;
use millrace_machine::Native;

/// Name of the group of all I/O without a group. The settings of this group can be changed, too.
pub const DEFAULT_GROUP: &str = "default";

/// Configuration of a group of clients that share drives.
///
/// # Example
///
/// ```
/// use millrace::{
///     Bio, Buffer, Channel, ChannelConfig, GroupConfig, GroupLimits, Layout, VolumeOptions,
///     build_volume,
/// };
///
/// let limits = GroupLimits { iops: Some(20_000), ..GroupLimits::default() };
/// let gold = GroupConfig { weight: 400, limits, ..GroupConfig::new("gold") };
/// let options = VolumeOptions { groups: vec![gold], ..VolumeOptions::default() };
/// let drives = ["ram:size=1m".parse()?];
/// let (volume, _notes) = build_volume("v", Layout::Linear, &drives, &options)?;
/// // Whatever goes through this channel counts towards the group.
/// let mut channel = Channel::open(&volume, ChannelConfig::default())?.with_group("gold")?;
/// channel.submit(Bio::read(0, Buffer::new(4096)))?;
/// channel.wait(1, |completion| assert!(completion.status.is_ok()));
/// assert_eq!(volume.group_stats().len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Groups`](crate::Groups) works with another type of this name, which has the parent's number:
/// [`block::GroupConfig`](crate::block::GroupConfig).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupConfig {
    /// Name of the group, unique among groups. A group called `default` changes the settings of all
    /// I/O without a group.
    pub name: String,
    /// Name of the parent group, whose share this group divides with its siblings. A parent has no
    /// parent of its own.
    pub parent: Option<String>,
    /// Weight of the group's share relative to its siblings, 1 to 10,000; 100 by default.
    pub weight: u32,
    /// Priority class, which takes precedence over weights.
    pub priority: Priority,
    /// Latency target that the scheduler `latency` keeps, at the cost of other groups.
    pub latency_target: Option<LatencyTarget>,
    /// Limits on the group's I/Os and bytes per second.
    pub limits: GroupLimits,
}

impl GroupConfig {
    /// Makes a group with weight 100 and without limits.
    #[must_use]
    pub fn new(name: impl Into<String>) -> GroupConfig {
        GroupConfig::named(None, millrace_block::GroupConfig::new(name))
    }

    /// Converts the block layer's configuration of a group. `parent` is the name of the group's
    /// parent.
    pub(crate) fn named(
        parent: Option<String>,
        config: millrace_block::GroupConfig,
    ) -> GroupConfig {
        let millrace_block::GroupConfig { name, weight, priority, latency_target, limits, .. } =
            config;
        GroupConfig { name, parent, weight, priority, latency_target, limits }
    }

    /// Converts to the block layer's configuration. Fails if no group has the parent's name.
    pub(crate) fn for_layer(
        &self,
        groups: &Groups<Native>,
    ) -> Result<millrace_block::GroupConfig, Error> {
        let parent = self.parent.as_deref().map(|parent| find_group(groups, parent)).transpose();
        let parent = parent.map_err(|error| {
            let text = format!("group {}: its parent: {}", self.name, error);
            Error::new(ErrorKind::InvalidSetting, text)
        })?;
        Ok(millrace_block::GroupConfig {
            name: self.name.clone(),
            parent,
            weight: self.weight,
            priority: self.priority,
            latency_target: self.latency_target,
            limits: self.limits,
        })
    }
}

/// Makes a table of these groups and the default group. A parent may follow its children.
///
/// # Errors
/// Returns `InvalidSetting` for a value out of range, a name used twice, a missing parent, a cycle,
/// or a third level.
pub fn open_groups(configs: &[GroupConfig]) -> Result<Arc<Groups<Native>>, Error> {
    let groups = Groups::new();
    let (children, tops): (Vec<_>, Vec<_>) =
        configs.iter().partition(|config| config.parent.is_some());
    for config in tops.into_iter().chain(children) {
        let named = config.for_layer(&groups)?;
        match config.name == DEFAULT_GROUP {
            true => groups.set(GroupId::DEFAULT, named)?,
            false => drop(groups.open(named)?),
        }
    }
    Ok(groups)
}

/// Returns the group with this name. The error for an unknown name suggests the most similar one.
pub(crate) fn find_group(groups: &Groups<Native>, name: &str) -> Result<GroupId, Error> {
    groups.find(name).ok_or_else(|| {
        let names: Vec<String> = groups.list().into_iter().map(|(_, group)| group.name).collect();
        let like = nearest(name, names.iter().map(String::as_str));
        let like = like.map_or_else(String::new, |like| format!("; did you mean \"{like}\"?"));
        Error::new(ErrorKind::InvalidSetting, format!("there is no group \"{name}\"{like}"))
    })
}

pub(crate) fn group_of(volume: &Volume<Native>, name: &str) -> Result<GroupId, Error> {
    match volume.groups() {
        Some(groups) => find_group(groups, name),
        None if name == DEFAULT_GROUP => Ok(GroupId::DEFAULT),
        None => Err(Error::new(
            ErrorKind::InvalidSetting,
            format!(
                "there is no group \"{name}\": volume {} was opened without groups; name them in \
                 VolumeOptions or OpenConfig",
                volume.name()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(name: &str, parent: &str) -> GroupConfig {
        GroupConfig { parent: Some(parent.to_owned()), ..GroupConfig::new(name) }
    }

    #[test]
    fn parents_may_stand_behind_their_children_and_default_is_set() {
        let default = GroupConfig { weight: 7, ..GroupConfig::new(DEFAULT_GROUP) };
        let groups = open_groups(&[child("a", "b"), GroupConfig::new("b"), default]).unwrap();
        let list: Vec<GroupConfig> = groups
            .list()
            .into_iter()
            .map(|(_, config)| {
                let parent = config.parent.and_then(|parent| groups.config(parent));
                GroupConfig::named(parent.map(|parent| parent.name), config)
            })
            .collect();
        let names: Vec<&str> = list.iter().map(|group| group.name.as_str()).collect();
        assert_eq!((names, list[0].weight), (vec![DEFAULT_GROUP, "b", "a"], 7));
        assert_eq!(list[2], child("a", "b"));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_group() {
        let said = |configs: &[GroupConfig]| open_groups(configs).err().unwrap().to_string();
        let error = said(&[GroupConfig::new("gold"), child("a", "gol")]);
        let text = "group a: its parent: there is no group \"gol\"; did you mean \"gold\"?";
        assert_eq!(error, text);
        assert!(said(&[child("a", "b"), child("b", "a")]).contains("there is no group \"b\""));
        assert!(
            said(&[GroupConfig::new("a"), GroupConfig::new("a")]).contains("the name is taken")
        );
        assert!(said(&[GroupConfig { weight: 0, ..GroupConfig::new("a") }]).contains("weight 0"));
        assert!(said(&[child(DEFAULT_GROUP, "a"), GroupConfig::new("a")]).contains("default"));
    }
}
