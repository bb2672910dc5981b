//! The daemon's part of `millrace ctl set group`, and groups in `stats`.
//!
//! A change is made completely or not at all: the values are parsed into a copy of the settings,
//! and then the copy takes effect.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use millrace::{GroupConfig, Priority, ServedGroups};
use millrace_block::{GroupId, TenantSnapshot, Volume, WaitSnapshot};
use millrace_console::{say, visible};
use millrace_machine::Native;

use crate::config::group;
use crate::views::groups::{GroupCounts, OnVolume};
use crate::views::settings::{GroupChange, GroupSetting, GroupState};
use crate::views::{Refusal, SetGroup};

pub fn set(
    groups: &ServedGroups,
    asked: &SetGroup,
    warn: impl FnOnce(&GroupConfig) -> Vec<String>,
) -> Result<GroupChange, Refusal> {
    let bad = |text: String| Refusal::new("bad-request", text);
    let before = groups.get(&asked.group).map_err(|error| bad(error.to_string()))?;
    if asked.settings.is_empty() {
        return Err(bad(
            "set-group: there is no setting in the request; add one, as in weight=400".to_owned(),
        ));
    }
    let mut now = before.clone();
    for (key, word) in &asked.settings {
        let nothing = |text| bad(format!("group {}: {text}; nothing has changed", asked.group));
        group::set(&mut now, key, word).map_err(nothing)?;
    }
    groups
        .set(&now)
        .map_err(|error| Refusal::new("refused", format!("{error}; nothing has changed")))?;
    let setting = |key: &String| GroupSetting {
        key: key.clone(),
        value: group::word(&now, key),
        before: group::word(&before, key),
    };
    let settings: Vec<GroupSetting> = asked.settings.keys().map(setting).collect();
    let words: Vec<String> =
        settings.iter().map(|one| format!("{}={}", one.key, one.value)).collect();
    let (name, words) = (visible(&asked.group), words.join(" "));
    say(&format!("group {name}: {} from now on\n", visible(&words)));
    let warnings = warn(&now);
    warnings.iter().for_each(|warning| tracing::warn!("{}", visible(warning)));
    Ok(GroupChange { group: asked.group.clone(), settings, warnings })
}

pub fn list(groups: &ServedGroups, mut said: BTreeMap<String, Vec<String>>) -> Vec<GroupState> {
    let one = |config: &GroupConfig| GroupState {
        name: config.name.clone(),
        settings: group::settings(config)
            .into_iter()
            .map(|(key, word)| (key.to_owned(), word))
            .collect(),
        warnings: said.remove(&config.name).unwrap_or_default(),
    };
    groups.list().iter().map(one).collect()
}

pub fn counts(groups: &ServedGroups, volumes: &[Arc<Volume<Native>>]) -> Vec<GroupCounts> {
    let table = groups.table();
    let listed = table.list();
    // A group's id is its index in `listed`.
    let name_of = |id: GroupId| listed.get(usize::from(id.0)).map(|(_, group)| group.name.clone());
    let booked: HashMap<GroupId, u64> = table.booked().into_iter().collect();
    let mut counts: HashMap<GroupId, Vec<OnVolume>> = HashMap::new();
    for volume in volumes {
        for (group, on) in on_volume(volume) {
            counts.entry(group).or_default().push(on);
        }
    }
    let one = |(id, config): &(GroupId, millrace_block::GroupConfig)| GroupCounts {
        name: config.name.clone(),
        parent: config.parent.and_then(name_of),
        weight: config.weight,
        idle: config.priority == Priority::Idle,
        booked_ns: booked.get(id).copied().unwrap_or(0),
        volumes: counts.remove(id).unwrap_or_default(),
    };
    listed.iter().map(one).collect()
}

fn on_volume(volume: &Volume<Native>) -> Vec<(GroupId, OnVolume)> {
    let mut held: HashMap<GroupId, WaitSnapshot> = volume.held().into_iter().collect();
    let mut stats: HashMap<GroupId, TenantSnapshot> = volume.group_stats().into_iter().collect();
    // A group whose first I/O still waits has no counters of completed I/Os yet.
    held.keys().for_each(|group| {
        stats.entry(*group).or_default();
    });
    let on = |(group, stats): (GroupId, TenantSnapshot)| {
        let held = held.remove(&group).unwrap_or_default();
        OnVolume::new(volume.name(), &stats, &held, volume.cost()).map(|on| (group, on))
    };
    stats.into_iter().filter_map(on).collect()
}
