//! Groups as plain structs, by name: who shares drives, and what each is promised.
//!
//! A program fills [`GroupConfig`] in and has drives opened with it; [`open_groups`] makes the
//! table that all drives of the program are given. Kernel counterpart: the cgroups whose files
//! `io.weight` and `io.max` a program writes.

use std::sync::Arc;

use millrace_block::{
    Error, ErrorKind, GroupId, GroupLimits, Groups, LatencyTarget, Priority, Volume,
};
use millrace_drives::nearest;
use millrace_machine::Native;

/// The group of all that names none, whose settings may be given as any other's.
pub const DEFAULT_GROUP: &str = "default";

/// A group of those who share drives, and what it is promised.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupConfig {
    /// Its name, which no other group has; `default` sets what all have that name none.
    pub name: String,
    /// The name of the group that it shares with its siblings; groups have two levels.
    pub parent: Option<String>,
    /// Its share beside its siblings', 1 to 10,000; 100.
    pub weight: u32,
    /// Whether it goes before others, whatever the weights.
    pub priority: Priority,
    /// What the scheduler `latency` keeps for it at others' cost.
    pub latency_target: Option<LatencyTarget>,
    /// How much it may do.
    pub limits: GroupLimits,
}

impl GroupConfig {
    /// Weight 100, no limits.
    #[must_use]
    pub fn new(name: impl Into<String>) -> GroupConfig {
        let millrace_block::GroupConfig {
            name,
            parent: _,
            weight,
            priority,
            latency_target,
            limits,
        } = millrace_block::GroupConfig::new(name);
        GroupConfig { name, parent: None, weight, priority, latency_target, limits }
    }

    /// A group of a table.
    #[must_use]
    pub fn of(groups: &Groups<Native>, config: millrace_block::GroupConfig) -> GroupConfig {
        let parent = config.parent.and_then(|parent| groups.config(parent));
        GroupConfig {
            name: config.name,
            parent: parent.map(|parent| parent.name),
            weight: config.weight,
            priority: config.priority,
            latency_target: config.latency_target,
            limits: config.limits,
        }
    }

    /// What the block layer takes of it.
    ///
    /// # Errors
    /// `InvalidSetting` if there is no such parent.
    pub fn for_layer(&self, groups: &Groups<Native>) -> Result<millrace_block::GroupConfig, Error> {
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

/// A table of these groups and of the default one; parents need not stand before their children.
///
/// # Errors
/// `InvalidSetting` for a value out of its range, two groups of one name, a parent that is not
/// there, a circle or a third level.
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

/// The group of a name.
///
/// # Errors
/// `InvalidSetting` if there is none; the text names the one that is most like it.
pub fn find_group(groups: &Groups<Native>, name: &str) -> Result<GroupId, Error> {
    groups.find(name).ok_or_else(|| {
        let names: Vec<String> = groups.list().into_iter().map(|(_, group)| group.name).collect();
        let like = nearest(name, names.iter().map(String::as_str));
        let like = like.map_or_else(String::new, |like| format!("; did you mean \"{like}\"?"));
        Error::new(ErrorKind::InvalidSetting, format!("there is no group \"{name}\"{like}"))
    })
}

/// The group of a name among those that a volume's drives know.
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
        let list: Vec<GroupConfig> =
            groups.list().into_iter().map(|(_, config)| GroupConfig::of(&groups, config)).collect();
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
        assert!(said(&[GroupConfig::new("a"), GroupConfig::new("a")]).contains("one of that name"));
        assert!(said(&[GroupConfig { weight: 0, ..GroupConfig::new("a") }]).contains("weight 0"));
        assert!(said(&[child(DEFAULT_GROUP, "a"), GroupConfig::new("a")]).contains("default"));
    }
}
