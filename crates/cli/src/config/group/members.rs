//! Rules between groups, and between groups and the exports that name them.
//!
//! Second step of loading, for `[[group]]` sections and for the keys `group` and `group-each` of an
//! export. check.rs calls this module.

use std::collections::HashMap;

use millrace::{DEFAULT_GROUP, ExportConfig, GroupConfig, ServeConfig, VolumeConfig};

use crate::config::key_lines::KeyLines;
use crate::config::names::SectionNames;
use crate::config::plan::PlanLines;
use crate::config::problem::ConfigProblems;

pub struct GroupRules<'a> {
    pub config: &'a ServeConfig,
    pub lines: &'a PlanLines,
    pub names: &'a SectionNames<'a>,
}

impl<'a> GroupRules<'a> {
    fn groups(&self) -> impl Iterator<Item = (&'a GroupConfig, &'a KeyLines)> {
        self.config.groups.iter().zip(&self.lines.groups)
    }

    fn exports(&self) -> impl Iterator<Item = (&'a ExportConfig, &'a KeyLines)> {
        self.config.exports.iter().zip(&self.lines.exports)
    }

    pub fn check(&self, problems: &mut ConfigProblems) {
        for (group, lines) in self.groups() {
            let Some(parent) = &group.parent else { continue };
            if let Err(text) = self.check_parent(&group.name, parent) {
                problems.add(lines.at("parent"), format!("parent = \"{parent}\": {text}"));
            }
        }
        for (export, lines) in self.exports() {
            let wanted = export.group_name();
            if wanted != DEFAULT_GROUP
                && let Err(text) = self.names.find(wanted)
            {
                problems.add(lines.at("group"), format!("group: {text}"));
            }
            if export.group_each
                && let Err(text) = self.check_each(wanted)
            {
                problems.add(lines.at("group-each"), format!("group-each: {text}"));
            }
        }
    }

    fn find(&self, name: &str) -> Option<&'a GroupConfig> {
        self.names.find(name).ok().flatten().map(|number| &self.config.groups[number])
    }

    fn check_parent(&self, name: &str, parent: &str) -> Result<(), String> {
        if parent == DEFAULT_GROUP || name == DEFAULT_GROUP {
            return Err(
                "the default group has no parent and no children; remove this key".to_owned()
            );
        }
        if parent == name {
            return Err("a group cannot be its own parent; name another group, or none".to_owned());
        }
        let above = self.names.find(parent)?.map(|number| &self.config.groups[number]);
        let Some(top) = above.and_then(|above| above.parent.as_ref()) else { return Ok(()) };
        let (mut chain, mut next) = (vec![name, parent], Some(top.as_str()));
        while let Some(one) = next {
            if chain.contains(&one) {
                chain.push(one);
                let chain = chain.join(" -> ");
                return Err(format!(
                    "these groups form a circle: {chain}; remove one of these parents"
                ));
            }
            chain.push(one);
            next = self.find(one).and_then(|one| one.parent.as_deref());
        }
        Err(format!(
            "group \"{parent}\" already has a parent, \"{top}\", and groups can be nested only two \
             levels deep; write parent = \"{top}\""
        ))
    }

    fn check_each(&self, wanted: &str) -> Result<(), String> {
        if wanted == DEFAULT_GROUP {
            return Err(
                "clients have no groups of their own under the default group; name another \
                        with group = \"...\""
                    .to_owned(),
            );
        }
        if let Some(parent) = self.find(wanted).and_then(|group| group.parent.as_ref()) {
            return Err(format!(
                "group \"{wanted}\" has the parent \"{parent}\", and groups of its clients would be \
                 a third level; remove one of the two"
            ));
        }
        let child = self.groups().find(|(group, _)| group.parent.as_deref() == Some(wanted));
        if let Some((child, lines)) = child {
            return Err(format!(
                "group \"{wanted}\" is the parent of \"{}\" (line {}); groups of clients are under \
                 a group of their own",
                child.name, lines.line
            ));
        }
        let together = |(other, _): &(&ExportConfig, _)| {
            other.group.as_deref() == Some(wanted) && !other.group_each
        };
        match self.exports().find(together) {
            Some((_, lines)) => Err(format!(
                "clients of the export of line {} are in group \"{wanted}\" together; name another \
                 group here, or group-each there",
                lines.at("group")
            )),
            None => Ok(()),
        }
    }
}

/// A volume that a group uses.
#[derive(Debug, Clone, PartialEq)]
pub struct UsedVolume<V> {
    pub volume: V,
    /// False if only child groups of the group use the volume.
    pub directly: bool,
}

impl<V> UsedVolume<V> {
    /// Returns the settings of the group to check for warnings about this volume. If the group uses
    /// the volume directly, these are all settings. If only child groups use the volume, only the
    /// weight is returned. Child groups divide the weight among themselves, but do not inherit the
    /// priority and the latency target. The group's limits apply to child groups, too, but are left
    /// out, because no scheduler or cache ignores limits.
    pub fn settings(&self, group: &GroupConfig) -> GroupConfig {
        if self.directly {
            return group.clone();
        }
        let plain = GroupConfig::new(group.name.clone());
        GroupConfig { weight: group.weight, ..plain }
    }
}

/// Returns the volumes that each group uses: directly, or through its child groups.
pub fn volumes_by_group(config: &ServeConfig) -> HashMap<&str, Vec<UsedVolume<&VolumeConfig>>> {
    let groups = config.groups.iter().map(|group| (group.name.as_str(), group));
    let groups: HashMap<&str, &GroupConfig> = groups.collect();
    let mut users: HashMap<&str, HashMap<&str, bool>> = HashMap::new();
    for export in &config.exports {
        let (users, group) = (users.entry(&export.volume).or_default(), export.group_name());
        users.insert(group, true);
        if let Some(parent) = groups.get(group).and_then(|group| group.parent.as_deref()) {
            users.entry(parent).or_insert(false);
        }
    }
    let mut volumes: HashMap<&str, Vec<UsedVolume<&VolumeConfig>>> = HashMap::new();
    for volume in &config.volumes {
        for (group, &directly) in users.get(volume.name.as_str()).into_iter().flatten() {
            volumes.entry(group).or_default().push(UsedVolume { volume, directly });
        }
    }
    volumes
}

/// Returns the names of a group's child groups. Groups of single clients (`GROUP/1`) are left out:
/// they have the settings of their parent.
pub fn children(groups: &[GroupConfig], parent: &str) -> Vec<String> {
    let children = groups.iter().filter(|group| group.parent.as_deref() == Some(parent));
    children.map(|group| group.name.clone()).filter(|name| !name.contains('/')).collect()
}
