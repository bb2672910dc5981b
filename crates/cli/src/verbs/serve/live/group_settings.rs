//! The daemon's part of `millrace ctl set group`, and groups in `stats`.
//!
//! daemon.rs calls this module for the control socket. A change is made completely or not at all:
//! the table of configuration keys (config/group.rs) parses the values into a copy of the settings,
//! and then the copy takes effect. The change is printed to standard output.

use std::collections::BTreeMap;

use millrace::{DEFAULT_GROUP, GroupConfig, ServeConfig, ServedGroups};
use millrace_console::{say, visible};

use crate::config::group;
use crate::config::group::members::volumes_by_group;
use crate::config::group::targets::by_cache;
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
    Ok(GroupChange { group: asked.group.clone(), settings, warnings: warn(&now) })
}

/// Returns the groups that use cached volumes, each with the name of such a volume.
pub fn cached(config: &ServeConfig) -> Vec<(String, String)> {
    let names = config.groups.iter().map(|group| group.name.as_str()).chain([DEFAULT_GROUP]);
    let used = volumes_by_group(config);
    let volumes =
        names.flat_map(|name| used.get(name).into_iter().flatten().map(move |one| (name, one)));
    let cached = volumes.filter(|(_, volume)| volume.cache.is_some());
    cached.map(|(group, volume)| (group.to_owned(), volume.name.clone())).collect()
}

pub fn ignored_by_caches(
    cached: &[(String, String)],
    config: &GroupConfig,
    sets: impl Fn(&str) -> bool,
) -> Vec<String> {
    let volumes = cached.iter().filter(|(group, _)| *group == config.name);
    volumes.filter_map(|(_, volume)| by_cache(config, volume, &sets)).collect()
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
