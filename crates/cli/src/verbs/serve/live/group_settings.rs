//! The daemon's part of `millrace ctl set group`, and groups as `stats` has them.
//!
//! Called by daemon.rs for the control socket, on the views' thread. A change is made as a whole
//! or not at all: words are read into a copy of the settings, by the table that configurations are
//! read by (config/group.rs), and the copy is what is set. Says on standard output what changed.

use std::collections::BTreeMap;

use millrace::{DEFAULT_GROUP, GroupConfig, ServeConfig, ServedGroups};
use millrace_console::{say, visible};

use crate::config::group;
use crate::config::group::members::volumes_by_group;
use crate::config::group::targets::by_cache;
use crate::views::settings::{Group, GroupChange, GroupSetting};
use crate::views::{Refusal, SetGroup};

/// Sets what is asked of the group of that name; `warn` says which of it has no effect.
///
/// # Errors
/// `bad-request` if there is no such group, key or word, `refused` if the group cannot have it.
pub fn set(
    groups: &ServedGroups,
    asked: &SetGroup,
    warn: impl FnOnce(&GroupConfig) -> Vec<String>,
) -> Result<GroupChange, Refusal> {
    let bad = |text: String| Refusal::new("bad-request", text);
    let before = groups.get(&asked.group).map_err(|error| bad(error.to_string()))?;
    if asked.settings.is_empty() {
        return Err(bad("set-group: nothing is to be set; write weight=400, say".to_owned()));
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

/// The groups that use volumes with a cache, each with such a volume.
pub fn cached(config: &ServeConfig) -> Vec<(String, String)> {
    let names = config.groups.iter().map(|group| group.name.as_str()).chain([DEFAULT_GROUP]);
    let used = volumes_by_group(config);
    let volumes =
        names.flat_map(|name| used.get(name).into_iter().flatten().map(move |one| (name, one)));
    let cached = volumes.filter(|(_, volume)| volume.cache.is_some());
    cached.map(|(group, volume)| (group.to_owned(), volume.name.clone())).collect()
}

/// Sentences about keys that were set just now, as `sets` says, and that caches ignore.
pub fn ignored_by_caches(
    cached: &[(String, String)],
    config: &GroupConfig,
    sets: impl Fn(&str) -> bool,
) -> Vec<String> {
    let volumes = cached.iter().filter(|(group, _)| *group == config.name);
    volumes.filter_map(|(_, volume)| by_cache(config, volume, &sets)).collect()
}

/// All groups with their settings in words, and what is to be said of them.
pub fn list(groups: &ServedGroups, mut said: BTreeMap<String, Vec<String>>) -> Vec<Group> {
    let one = |config: &GroupConfig| Group {
        name: config.name.clone(),
        settings: group::settings(config)
            .into_iter()
            .map(|(key, word)| (key.to_owned(), word))
            .collect(),
        warnings: said.remove(&config.name).unwrap_or_default(),
    };
    groups.list().iter().map(one).collect()
}
