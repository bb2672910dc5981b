//! `[[group]]` sections, and the same keys for `ctl set group`: groups of clients that share
//! drives.
//!
//! This module owns the only table of a group's keys, with a parser and a formatter for each. The
//! table is used for configurations (read by sections.rs) and for changes of a running daemon.
//! group/members.rs checks the parents of groups, and the groups that exports name. All functions
//! are pure.

pub mod members;
pub mod targets;

use std::ops::RangeInclusive;
use std::time::Duration;

use millrace::{GroupConfig, LatencyTarget, Words};
use millrace_console::words::nearest;

use super::document::Section;
use super::key_lines::KeyLines;
use super::words::{self, count_text, size_text};

const BANDWIDTH_MIN: u64 = 4096;
/// Largest bandwidth limit that a group may have, in bytes per second. `IOPS_MAX` is the largest
/// IOPS limit.
const BANDWIDTH_MAX: u64 = 1 << 50;
const IOPS_MAX: u64 = 1_000_000_000;
/// Range of `burst`, the maximum time for which a group can save up its unused rate.
const BURST: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);
const TARGET: RangeInclusive<Duration> = Duration::from_micros(1)..=Duration::from_secs(60);

/// Word that removes a limit, target or parent.
const NONE: &str = "none";

type SettingRow =
    (&'static str, fn(&mut GroupConfig, &str) -> Result<(), String>, fn(&GroupConfig) -> String);

macro_rules! limit {
    ($name:literal, $field:ident, $read:ident, $write:ident) => {
        (
            $name,
            |to, text| put(&mut to.limits.$field, or_none(text, $read)),
            |of| of.limits.$field.map_or_else(none, $write),
        )
    };
}

static KEYS: [SettingRow; 11] = [
    (
        "parent",
        |to, text| put(&mut to.parent, or_none(text, |name| Ok(name.to_owned()))),
        |of| of.parent.clone().unwrap_or_else(none),
    ),
    (
        "weight",
        |to, text| put(&mut to.weight, words::number(text, 1, 10_000)),
        |of| of.weight.to_string(),
    ),
    (
        "priority",
        |to, text| put(&mut to.priority, words::setting(text)),
        |of| of.priority.word().to_owned(),
    ),
    (
        "latency-target",
        |to, text| put(&mut to.latency_target, or_none(text, latency_target)),
        |of| of.latency_target.map_or_else(none, target_text),
    ),
    limit!("iops", iops, rate, count_text),
    limit!("read-iops", read_iops, rate, count_text),
    limit!("write-iops", write_iops, rate, count_text),
    limit!("bandwidth", bandwidth, bandwidth, size_text),
    limit!("read-bandwidth", read_bandwidth, bandwidth, size_text),
    limit!("write-bandwidth", write_bandwidth, bandwidth, size_text),
    (
        "burst",
        |to, text| put(&mut to.limits.burst, words::duration(text, &BURST)),
        |of| words::duration_text(of.limits.burst),
    ),
];

fn put<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

pub fn set(group: &mut GroupConfig, key: &str, text: &str) -> Result<(), String> {
    let Some((_, read, _)) = find(key) else {
        let (like, known) = (nearest(key, keys()), keys().collect::<Vec<_>>().join(", "));
        return Err(format!("there is no setting \"{key}\" of groups{like} (known: {known})"));
    };
    read(group, text).map_err(|error| words::refusal(&format!("{key} = \"{text}\""), &error))
}

fn find(key: &str) -> Option<&'static SettingRow> {
    KEYS.iter().find(|(known, ..)| *known == key)
}

pub fn is_key(key: &str) -> bool {
    find(key).is_some()
}

/// Returns the settings of a group as keys and words: its weight, and every setting that differs
/// from the default.
pub fn settings(group: &GroupConfig) -> Vec<(&'static str, String)> {
    let usual = GroupConfig::new("");
    let is_said = |(key, _, word): &&SettingRow| *key == "weight" || word(group) != word(&usual);
    KEYS.iter().filter(is_said).map(|(key, _, word)| (*key, word(group))).collect()
}

pub fn keys() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|(key, ..)| *key)
}

pub fn word(group: &GroupConfig, key: &str) -> String {
    find(key).map_or_else(none, |(_, _, word)| word(group))
}

pub fn section(group: &GroupConfig) -> String {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let mut text = format!("[[group]]\nname = {}\n", quoted(&group.name));
    for (key, word) in settings(group) {
        let value = if word.parse::<u64>().is_ok() { word } else { quoted(&word) };
        text.push_str(&format!("{key} = {value}\n"));
    }
    text
}

fn none() -> String {
    NONE.to_owned()
}

fn or_none<T>(
    text: &str,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    if text == NONE { Ok(None) } else { read(text).map(Some) }
}

fn rate(text: &str) -> Result<u64, String> {
    match words::count(text) {
        Ok(0) => {
            Err("less than one I/O per second; write 1 or more, or \"none\" for no limit"
                .to_owned())
        }
        Ok(number) if number <= IOPS_MAX => Ok(number),
        Ok(_) => {
            Err("too high; write at most 1000m (1,000 million), or \"none\" for no limit"
                .to_owned())
        }
        Err(wrong) => Err(format!("{wrong}, or \"none\" for no limit")),
    }
}

fn bandwidth(text: &str) -> Result<u64, String> {
    match words::rate_bytes_per_s(text) {
        Ok(bytes) if bytes < BANDWIDTH_MIN => {
            Err("less than one I/O of 4k per second; write 4k or more, or \"none\" for no limit"
                .to_owned())
        }
        Ok(bytes) if bytes <= BANDWIDTH_MAX => Ok(bytes),
        Ok(_) => {
            Err("too high; write at most 1024t bytes per second, or \"none\" for no limit"
                .to_owned())
        }
        Err(wrong) => Err(format!("{wrong}, or \"none\" for no limit")),
    }
}

/// Parses a target such as `p99 2ms`, `p99.9 500us` or `mean 1ms`.
fn latency_target(text: &str) -> Result<LatencyTarget, String> {
    let wrong =
        || "write a mean or a percentile, and a time: mean 1ms, p99 2ms, p99.9 500us".to_owned();
    let (what, time) = text.trim().split_once(char::is_whitespace).ok_or_else(wrong)?;
    let latency = words::duration(time.trim(), &TARGET)?;
    if what == "mean" {
        return Ok(LatencyTarget::Mean(latency));
    }
    let percent = what.strip_prefix('p').ok_or_else(wrong)?;
    let (whole, part) = percent.split_once('.').unwrap_or((percent, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.len() != 2 || part.len() > 2 || !digits(whole) || !digits(part) {
        return Err(wrong());
    }
    let of_10_000: u16 = format!("{whole}{part:0<2}").parse().map_err(|_| wrong())?;
    match of_10_000 {
        5_000..=9_999 => Ok(LatencyTarget::Percentile(of_10_000, latency)),
        _ => Err(format!("{what}: write a percentile from p50 to p99.99")),
    }
}

fn target_text(target: LatencyTarget) -> String {
    let latency = words::duration_text(target.latency());
    match target {
        LatencyTarget::Mean(_) => format!("mean {latency}"),
        LatencyTarget::Percentile(of_10_000, _) => {
            let digits = format!("{}.{:02}", of_10_000 / 100, of_10_000 % 100);
            let digits = digits.trim_end_matches('0').trim_end_matches('.');
            format!("p{digits} {latency}")
        }
    }
}

pub fn read(mut section: Section<'_>) -> Option<(GroupConfig, KeyLines)> {
    let name = section.name();
    let mut config = GroupConfig::new("");
    for (key, read, _) in &KEYS {
        section.read_key(key, |value| match *key {
            // In a file, a group without a parent omits the key, so `none` is an ordinary group
            // name. In `ctl set group`, `none` removes the parent.
            "parent" => value.text(&mut config.parent),
            _ => value.set(|text| read(&mut config, text)),
        });
    }
    let wrong = |letter: &char| matches!(letter, '/' | '=');
    if let Some((name, wrong)) =
        name.as_ref().and_then(|name| Some((name, name.chars().find(wrong)?)))
    {
        let text = format!(
            "name = \"{name}\": a group has no {wrong} in its name; GROUP/1 is the group of a \
             client, and KEY=VALUE a setting of ctl"
        );
        section.problem("name", text);
    }
    let lines = section.finish();
    config.name = name?;
    Some((config, lines))
}

#[cfg(test)]
mod tests;
