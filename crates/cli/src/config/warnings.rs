//! What a configuration says that is allowed but perhaps not meant: one line of text for each.
//!
//! Called by check.rs. Pure.

use std::collections::HashSet;

use millrace::DEFAULT_GROUP;
use millrace_drives::usual_times;

use super::group::members::volumes_of;
use super::group::targets::{TargetQuery, by_cache};
use super::key_lines::KeyLines;
use super::plan::{LocatedDrive, ServePlan};

/// The warnings of a plan. `unused` are drives that no volume names.
pub fn of(plan: &ServePlan, unused: &[&LocatedDrive]) -> Vec<String> {
    let mut found = without_effect(plan);
    found.extend(idle_controllers(plan, unused));
    found.extend(idle_groups(plan));
    found.extend(shares_of_caches(plan));
    found.extend(targets(plan));
    found.extend(unused.iter().map(|(drive, lines)| {
        let text = format!("drive \"{}\" is in no volume; it is not opened", drive.name);
        (lines.at("name"), text)
    }));
    found.extend(idle_volumes(plan));
    let file = &plan.file;
    found.into_iter().map(|(line, text)| format!("{file}:{line}: {text}")).collect()
}

type Warning = (usize, String);

/// Keys of older files.
fn without_effect(plan: &ServePlan) -> Vec<Warning> {
    let pinned = plan.lines.exports.iter().filter(|lines| lines.has("pin-memory"));
    let text = "pin-memory has no effect any more, since a balloon or virtio-mem in the guest takes \
                memory away that is pinned, and its data were corrupted; remove it";
    pinned.map(|lines| (lines.at("pin-memory"), text.to_owned())).collect()
}

/// Sections that nobody names.
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
    let text = |name: &str| format!("controller \"{name}\" is named by no drive");
    idle(controllers.zip(&plan.lines.controllers), named, text)
}

fn idle_groups(plan: &ServePlan) -> Vec<Warning> {
    let parents = plan.config.groups.iter().filter_map(|group| group.parent.as_deref());
    let exports = plan.config.exports.iter().map(|export| export.group_name());
    let groups = plan.config.groups.iter().map(|group| &group.name).zip(&plan.lines.groups);
    let text = |name: &str| format!("group \"{name}\" is named by no export");
    idle(groups, parents.chain(exports).chain([DEFAULT_GROUP]), text)
}

fn idle_volumes(plan: &ServePlan) -> Vec<Warning> {
    let exported = plan.config.exports.iter().map(|export| export.volume.as_str());
    let volumes = plan.config.volumes.iter().map(|volume| &volume.name).zip(&plan.lines.volumes);
    idle(volumes, exported, |name| format!("volume \"{name}\" is not exported"))
}

/// Shares and targets of groups where a cache knows no groups: a line for each cached volume of the
/// group's exports.
fn shares_of_caches(plan: &ServePlan) -> impl Iterator<Item = Warning> {
    let groups = plan.config.groups.iter().zip(&plan.lines.groups);
    groups.flat_map(|(group, lines)| {
        let cached = volumes_of(&plan.config, &group.name).filter(|one| one.cache.is_some());
        let said = cached.filter_map(|volume| by_cache(group, &volume.name, |_| true));
        said.map(|text| (lines.line, text))
    })
}

/// Latency targets that nothing keeps, since a drive has another scheduler, or that a modelled
/// drive cannot keep: of those it is known before anything runs. A line for each volume of the
/// group's exports.
fn targets(plan: &ServePlan) -> impl Iterator<Item = Warning> {
    let groups = plan.config.groups.iter().zip(&plan.lines.groups);
    let targets = groups.filter_map(|(group, lines)| Some((group, group.latency_target?, lines)));
    targets.flat_map(|(group, target, lines)| {
        volumes_of(&plan.config, &group.name).filter_map(move |volume| {
            let said = volume.drives.iter().find_map(|drive| {
                let (drive_name, volume) = (drive.name.as_str(), volume.name.as_str());
                let asked = TargetQuery { group: &group.name, target, drive: drive_name, volume };
                let by_model = || asked.by_model(usual_times(&drive.spec)?);
                asked.by_scheduler(drive.options.scheduler).or_else(by_model)
            });
            said.map(|text| (lines.at("latency-target"), text))
        })
    })
}
