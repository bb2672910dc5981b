//! Warnings about settings that are allowed but probably mistakes: one line of text each.
//!
//! check.rs calls this module. All functions are pure.

use std::collections::HashSet;

use millrace::{DEFAULT_GROUP, DriveConfig, GroupConfig, LatencyTarget, VolumeConfig};
use millrace_drives::usual_times;

use super::group::members::{UsedVolume, children, volumes_by_group};
use super::group::targets::{ShareQuery, TargetQuery, by_cache, by_children, by_directory};
use super::key_lines::KeyLines;
use super::plan::{LocatedDrive, ServePlan};

pub fn of(plan: &ServePlan, unused: &[&LocatedDrive]) -> Vec<String> {
    let mut found = without_effect(plan);
    found.extend(idle_controllers(plan, unused));
    found.extend(idle_groups(plan));
    found.extend(ignored_settings(plan));
    found.extend(unused.iter().map(|(drive, lines)| {
        let text = format!("drive \"{}\" belongs to no volume, so it is not opened", drive.name);
        (lines.at("name"), text)
    }));
    found.extend(idle_volumes(plan));
    let file = &plan.file;
    found.into_iter().map(|(line, text)| format!("{file}:{line}: {text}")).collect()
}

type Warning = (usize, String);

fn without_effect(plan: &ServePlan) -> Vec<Warning> {
    let pinned = plan.lines.exports.iter().filter(|lines| lines.has("pin-memory"));
    let text = "pin-memory has no effect any more, since a balloon or virtio-mem in the guest takes \
                memory away that is pinned, and its data were corrupted; remove it";
    pinned.map(|lines| (lines.at("pin-memory"), text.to_owned())).collect()
}

fn idle<'a>(
    sections: impl Iterator<Item = (&'a String, &'a KeyLines)>,
    named: impl Iterator<Item = &'a str>,
    text: impl Fn(&str) -> String,
) -> Vec<Warning> {
    let named: HashSet<&str> = named.collect();
    let idle = sections.filter(|(name, _)| !named.contains(name.as_str()));
    idle.map(|(name, lines)| (lines.line, text(name))).collect()
}

fn idle_controllers(plan: &ServePlan, unused: &[&LocatedDrive]) -> Vec<Warning> {
    let drives = plan.config.drives().chain(unused.iter().map(|(drive, _)| drive));
    let named = drives.filter_map(|drive| drive.spec.controller.as_deref());
    let controllers = plan.config.controllers.iter().map(|one| &one.name);
    let text = |name: &str| format!("no drive names controller \"{name}\"");
    idle(controllers.zip(&plan.lines.controllers), named, text)
}

fn idle_groups(plan: &ServePlan) -> Vec<Warning> {
    let parents = plan.config.groups.iter().filter_map(|group| group.parent.as_deref());
    let exports = plan.config.exports.iter().map(|export| export.group_name());
    let groups = plan.config.groups.iter().map(|group| &group.name).zip(&plan.lines.groups);
    let text = |name: &str| format!("no export names group \"{name}\"");
    idle(groups, parents.chain(exports).chain([DEFAULT_GROUP]), text)
}

fn idle_volumes(plan: &ServePlan) -> Vec<Warning> {
    let exported = plan.config.exports.iter().map(|export| export.volume.as_str());
    let volumes = plan.config.volumes.iter().map(|volume| &volume.name).zip(&plan.lines.volumes);
    idle(volumes, exported, |name| format!("no export names volume \"{name}\""))
}

/// Returns warnings about group settings that have no effect:
///
/// - keys that a cache or scheduler ignores, of a volume or of a directory export's files
/// - keys that child groups do not inherit
/// - latency targets that a scheduler or a drive cannot keep
fn ignored_settings(plan: &ServePlan) -> Vec<Warning> {
    let (used, mut shares, mut targets) = (volumes_by_group(&plan.config), Vec::new(), Vec::new());
    for (group, lines) in plan.config.groups.iter().zip(&plan.lines.groups) {
        let children = children(&plan.config.groups, &group.name);
        shares.extend(by_children(group, &children, |_| true).map(|text| (lines.line, text)));
        for export in &plan.config.exports {
            let Some(directory) = export.directory() else { continue };
            let directly = export.group_name() == group.name;
            if directly || children.iter().any(|child| child == export.group_name()) {
                let one = UsedVolume { volume: directory, directly };
                let ignored = by_directory(&one.settings(group), (&export.name, directory));
                shares.extend(ignored.map(|text| (lines.line, text)));
            }
        }
        for one in used.get(group.name.as_str()).into_iter().flatten() {
            let (volume, name, all) = (one.volume, one.volume.name.as_str(), |_: &str| true);
            let group = &one.settings(group);
            if volume.cache.is_some() {
                shares.extend(by_cache(group, name, all).map(|text| (lines.line, text)));
                continue;
            }
            let ignored = volume.drives.iter().find_map(|one: &DriveConfig| {
                let share = ShareQuery { config: group, drive: &one.name, volume: name };
                share.by_scheduler(one.options.scheduler, all)
            });
            shares.extend(ignored.map(|text| (lines.line, text)));
            let unkept = group.latency_target.and_then(|target| unkept(group, target, volume));
            targets.extend(unkept.map(|text| (lines.at("latency-target"), text)));
        }
    }
    shares.extend(targets);
    shares
}

fn unkept(group: &GroupConfig, target: LatencyTarget, volume: &VolumeConfig) -> Option<String> {
    volume.drives.iter().find_map(|drive| {
        let (group, volume) = (group.name.as_str(), volume.name.as_str());
        let asked = TargetQuery { group, target, drive: &drive.name, volume };
        let by_model = || asked.by_model(usual_times(&drive.spec)?);
        asked.by_scheduler(drive.options.scheduler).or_else(by_model)
    })
}
