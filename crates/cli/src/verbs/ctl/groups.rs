//! `millrace ctl set group`, and the output of `ctl get` about groups.
//!
//! Sends settings to the daemon as written; the daemon parses them as in its configuration.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use millrace_console::words::nearest;
use millrace_console::{Side, TextGrid, shell_word, visible};

use super::set::SetArgs;
use super::{Daemon, pair};
use crate::config::group;
use crate::views::SetGroup;
use crate::views::report::Report;
use crate::views::requests::SET_GROUP;
use crate::views::settings::GroupState;

pub fn set(daemon: &Daemon, name: &str, words: &[String]) -> Result<ExitCode> {
    let mut settings = BTreeMap::new();
    for word in words {
        let (key, value) = pair(word, "weight=400; quote a space, as in latency-target='p99 1ms'")?;
        if settings.insert(key.clone(), value).is_some() {
            bail!("{key} is given twice; remove one of them");
        }
    }
    let asked = SetGroup { group: name.to_owned(), settings };
    let changed = daemon.ask(&SET_GROUP, &asked)?;
    daemon.print(&changed, || {
        let mut text = format!("{}:\n", visible(&changed.group));
        for setting in &changed.settings {
            let (now, before) = (visible(&setting.value), visible(&setting.before));
            let _ = writeln!(text, "  {}={now}, before {before}", visible(&setting.key));
        }
        text
    })?;
    // With `--json` the warnings are part of the answer, so they are not logged again.
    warn(changed.warnings.iter().filter(|_| !daemon.json));
    Ok(ExitCode::SUCCESS)
}

/// Logs warnings to standard error. Standard output contains only the answer.
pub fn warn<'a>(warnings: impl IntoIterator<Item = &'a String>) {
    warnings.into_iter().for_each(|warning| tracing::warn!("{}", visible(warning)));
}

pub fn find<'a>(report: &'a Report, name: &str) -> Result<&'a GroupState> {
    report.groups.iter().find(|group| group.name == name).ok_or_else(|| {
        let names = report.groups.iter().map(|group| group.name.as_str());
        anyhow!("there is no group {name:?}{}", nearest(name, names))
    })
}

/// Returns a suggestion if the word `group` is missing in a command, as in
/// `ctl set gold weight=400`. The correct command is `ctl set group gold weight=400`.
pub fn meant(report: &Report, args: &SetArgs, key: &str) -> Option<String> {
    let words = args.settings.iter().map(|text| shell_word(text)).collect::<Vec<_>>().join(" ");
    let (target, words) = (visible(&args.target), visible(&words).into_owned());
    let is_group = report.groups.iter().any(|group| group.name == args.target);
    if !is_group && !group::is_key(key) {
        return None;
    }
    if !is_group && report.volumes.iter().any(|volume| volume.name == args.target) {
        let names: Vec<_> = report.groups.iter().map(|group| visible(&group.name)).collect();
        return Some(format!(
            "{key:?} is a setting of groups, and {target} is a volume; write `millrace ctl set \
             group NAME {words}` with the NAME of a group: {}",
            names.join(", ")
        ));
    }
    Some(format!(
        "{key:?} is not a setting of volumes; did you mean `millrace ctl set group {target} {words}`?"
    ))
}

pub fn describe(group: &GroupState) -> String {
    let mut text = format!("{}:\n", visible(&group.name));
    for (key, word) in &group.settings {
        let _ = writeln!(text, "  {}={}", visible(key), visible(word));
    }
    text
}

pub fn table(groups: &[&GroupState]) -> String {
    let heads = ["group", "parent", "weight", "settings"];
    let mut table = TextGrid::new(heads.map(|head| (head, Side::Left)));
    for group in groups {
        let word = |key| group.settings.get(key).map_or("-".into(), |word| visible(word));
        let others =
            group.settings.iter().filter(|(key, _)| !["parent", "weight"].contains(&key.as_str()));
        let others: Vec<String> = others.map(|(key, word)| format!("{key}={word}")).collect();
        let others = if others.is_empty() { "-".to_owned() } else { others.join(" ") };
        table.row([&*visible(&group.name), &*word("parent"), &*word("weight"), &*visible(&others)]);
    }
    format!("{}\n", table.text())
}
