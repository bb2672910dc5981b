//! How groups stand to each other, and who is in them: names resolved, contradictions found.
//!
//! The second step of `[[group]]` sections and of the keys `group` and `group-each` of an export.
//! Called by sections.rs for these keys and by plan.rs for the rest.

use std::collections::HashSet;

use millrace::{DEFAULT_GROUP, ExportConfig, GroupConfig, ServeConfig, VolumeConfig};
use millrace_console::words::nearest;
use millrace_drives::usual_times;

use super::RawGroup;
use super::targets::{TargetQuery, by_cache};
use crate::config::document::Located;
use crate::config::problem::Problems;
use crate::config::sections::RawConfig;

/// Checks how groups stand to each other.
pub fn groups(raw: &RawConfig, problems: &mut Problems) -> Vec<GroupConfig> {
    for (group, parent) in
        raw.groups.iter().filter_map(|group| Some((group, group.parent.as_ref()?)))
    {
        if let Err(text) = check_parent(raw, group, &parent.value) {
            problems.add(parent.line, format!("parent = \"{}\": {text}", parent.value));
        }
    }
    raw.groups.iter().map(|group| group.config.clone()).collect()
}

/// Two levels, and no circles.
fn check_parent(raw: &RawConfig, group: &RawGroup, parent: &str) -> Result<(), String> {
    let find = |name: &str| raw.groups.iter().find(|group| group.name.value == name);
    let name = &group.name.value;
    if parent == DEFAULT_GROUP || name == DEFAULT_GROUP {
        return Err("the default group has no parent and no children; remove this".to_owned());
    }
    if parent == name {
        return Err("a group is not its own parent; name another, or none".to_owned());
    }
    let Some(above) = find(parent) else {
        return if raw.lost.iter().any(|lost| lost == parent) {
            Ok(())
        } else {
            Err(unknown(raw, parent))
        };
    };
    let Some(top) = &above.config.parent else { return Ok(()) };
    let (mut chain, mut next) = (vec![name.as_str(), parent], Some(top.as_str()));
    while let Some(one) = next {
        if chain.contains(&one) {
            chain.push(one);
            return Err(format!("a circle: {}; remove one of these parents", chain.join(" -> ")));
        }
        chain.push(one);
        next = find(one).and_then(|one| one.config.parent.as_deref());
    }
    Err(format!(
        "it has the parent \"{top}\" itself, and groups have two levels; write parent = \"{top}\""
    ))
}

fn unknown(raw: &RawConfig, wanted: &str) -> String {
    let names = raw.groups.iter().map(|group| group.name.value.as_str());
    let like = nearest(wanted, names.chain([DEFAULT_GROUP]));
    let like = if like.is_empty() { "; add [[group]] with this name" } else { &like };
    format!("there is no group \"{wanted}\"{like}")
}

/// Checks the groups that exports name.
pub fn check_exports(raw: &RawConfig, problems: &mut Problems) {
    for export in &raw.exports {
        let membership = &export.membership;
        let wanted = membership.group.as_ref().map_or(DEFAULT_GROUP, |group| &group.value);
        let found = raw.groups.iter().find(|group| group.name.value == wanted);
        if let Some(group) = &membership.group
            && found.is_none()
            && wanted != DEFAULT_GROUP
            && !raw.lost.contains(&group.value)
        {
            problems.add(group.line, format!("group: {}", unknown(raw, wanted)));
        }
        let Some(each) = membership.each.as_ref().filter(|each| each.value) else { continue };
        if let Err(text) = check_each(raw, wanted, found) {
            problems.add(each.line, format!("group-each: {text}"));
        }
    }
}

/// Whether clients can have groups of their own under a group.
fn check_each(raw: &RawConfig, wanted: &str, found: Option<&RawGroup>) -> Result<(), String> {
    if wanted == DEFAULT_GROUP {
        return Err("clients have no groups of their own under the default group; name another \
                    with group = \"...\""
            .to_owned());
    }
    if let Some(parent) = found.and_then(|group| group.config.parent.as_ref()) {
        return Err(format!(
            "group \"{wanted}\" has the parent \"{parent}\", and groups of its clients would be a \
             third level; remove one of the two"
        ));
    }
    let is_under = |group: &&RawGroup| group.config.parent.as_deref() == Some(wanted);
    if let Some(child) = raw.groups.iter().find(is_under) {
        return Err(format!(
            "group \"{wanted}\" is the parent of \"{}\" (line {}); groups of clients are under a \
             group of their own",
            child.name.value, child.name.line
        ));
    }
    let names = |group: &Option<Located<String>>| group.as_ref().is_some_and(|g| g.value == wanted);
    let other = raw
        .exports
        .iter()
        .find(|other| names(&other.membership.group) && !other.membership.is_each());
    match other.and_then(|other| other.membership.group.as_ref()) {
        Some(other) => Err(format!(
            "clients of the export of line {} are in group \"{wanted}\" together; name another \
             group here, or group-each there",
            other.line
        )),
        None => Ok(()),
    }
}

/// Warns of groups that nobody is in.
pub fn warn_of_idle(
    (file, raw): (&str, &RawConfig),
    exports: &[ExportConfig],
    warnings: &mut Vec<String>,
) {
    for group in raw.groups.iter().filter(|group| group.name.value != DEFAULT_GROUP) {
        let name = &group.name.value;
        let has_clients = |export: &ExportConfig| export.group_name() == name;
        let is_parent = raw.groups.iter().any(|other| other.config.parent.as_ref() == Some(name));
        if !is_parent && !exports.iter().any(has_clients) {
            let line = group.name.line;
            let text = format!("{file}:{line}: group \"{name}\" is named by no export");
            warnings.push(text);
        }
    }
}

/// Warns of shares and targets of groups where a cache knows no groups: a line for each cached
/// volume of the group's exports.
pub fn warn_of_caches(
    (file, raw): (&str, &RawConfig),
    config: &ServeConfig,
    warnings: &mut Vec<String>,
) {
    for group in &raw.groups {
        let cached = volumes_of(config, &group.name.value).filter(|one| one.cache.is_some());
        let said = cached.filter_map(|volume| by_cache(&group.config, &volume.name, |_| true));
        warnings.extend(said.map(|text| format!("{file}:{}: {text}", group.name.line)));
    }
}

/// The volumes that clients of a group use.
pub fn volumes_of<'a>(
    config: &'a ServeConfig,
    group: &'a str,
) -> impl Iterator<Item = &'a VolumeConfig> {
    let exports = config.exports.iter().filter(|export| export.group_name() == group);
    let used: HashSet<&str> = exports.map(|export| export.volume.as_str()).collect();
    config.volumes.iter().filter(move |volume| used.contains(volume.name.as_str()))
}

/// Warns of latency targets that nothing keeps, since a drive has another scheduler, or that a
/// modelled drive cannot keep: of those it is known before anything runs. A line for each volume of
/// the group's exports.
pub fn warn_of_targets(
    (file, raw): (&str, &RawConfig),
    config: &ServeConfig,
    warnings: &mut Vec<String>,
) {
    let targets = raw.groups.iter().filter_map(|group| {
        Some((&group.name.value, group.config.latency_target?, group.target_line?))
    });
    for (group, target, line) in targets {
        for volume in volumes_of(config, group) {
            let said = volume.drives.iter().find_map(|drive| {
                let (name, volume) = (drive.name.as_str(), volume.name.as_str());
                let asked = TargetQuery { group, target, drive: name, volume };
                let by_model = || asked.by_model(usual_times(&drive.spec)?);
                asked.by_scheduler(drive.options.scheduler).or_else(by_model)
            });
            warnings.extend(said.map(|text| format!("{file}:{line}: {text}")));
        }
    }
}
