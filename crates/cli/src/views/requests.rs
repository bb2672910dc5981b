//! Verbs of the control socket: name, arguments, and type of the answer.
//!
//! An unknown argument is an error. The table in verbs/ctl.rs has a row for each verb of the
//! daemon, and docs/control.md describes the verbs. If one file of verbs/ctl both sends a verb and
//! computes the daemon's answer, that file defines the verb.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::config::edit::SECTIONS;
use crate::config::words::whole;

use super::history::History;
use super::locks::LockReport;
use super::protocol::{Access, Verb};
use super::reload_report::{ReloadReport, RunningConfiguration, UnsavedChanges};
use super::report::{Report, TraceStatus};
use super::settings::{GroupChange, VolumeChange};

pub const VERSION: Verb<NoArguments, Value> =
    Verb::new("version", Access::Everybody, "the greeting again");
pub const STATS: Verb<StatsQuery, Report> =
    Verb::new("stats", Access::Everybody, "counters; with `\"all\":true`, including idle volumes");
pub const HISTORY: Verb<HistoryRange, History> = Verb::new(
    "history",
    Access::Everybody,
    "samples of the last `seconds` (default 120, at most 3600)",
);
pub const TRACE_START: Verb<TraceStart, NoAnswer> =
    Verb::new("trace-start", Access::Everybody, "starts a recording and answers `{}`");
pub const TRACE_STATUS: Verb<NoArguments, TraceStatus> = Verb::new(
    "trace-status",
    Access::Everybody,
    "returns counts of `events` and `dropped` ones so far; `files` once the recording has ended",
);
pub const TRACE_STOP: Verb<NoArguments, TraceStatus> = Verb::new(
    "trace-stop",
    Access::Everybody,
    "ends the recording; returns the same as `trace-status`",
);
pub const LOCKS_START: Verb<NoArguments, NoAnswer> =
    Verb::new("locks-start", Access::Everybody, "starts lock statistics and answers `{}`");
pub const LOCKS_STATUS: Verb<NoArguments, LockReport> =
    Verb::new("locks-status", Access::Everybody, "returns the lock statistics so far");
pub const LOCKS_STOP: Verb<NoArguments, LockReport> = Verb::new(
    "locks-stop",
    Access::Everybody,
    "ends lock statistics; returns the same as `locks-status`",
);
pub const SET: Verb<SetVolume, VolumeChange> =
    Verb::new("set", Access::Admins, "changes settings of a volume");
pub const SET_GROUP: Verb<SetGroup, GroupChange> =
    Verb::new("set-group", Access::Admins, "changes settings of a group");
pub const RELOAD: Verb<Reload, ReloadReport> =
    Verb::new("reload", Access::Admins, "loads the configuration file again, or another one")
        .long();
pub const ADD: Verb<AddSection, ReloadReport> =
    Verb::new("add", Access::Admins, "adds a configuration section; answers like `reload`").long();
pub const REMOVE: Verb<RemoveSection, ReloadReport> =
    Verb::new("remove", Access::Admins, "removes a configuration section; answers like `reload`")
        .long();
pub const CONFIGURATION: Verb<NoArguments, RunningConfiguration> =
    Verb::new("configuration", Access::Admins, "the current configuration as TOML");

pub const UNSAVED: Verb<NoArguments, UnsavedChanges> = Verb::new(
    "unsaved",
    Access::Everybody,
    "differences between the configuration file and the current configuration",
)
.long();

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoArguments {}

/// Answer of a verb without results: a JSON object that has no fields yet.
pub type NoAnswer = Map<String, Value>;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatsQuery {
    /// True to include idle volumes in a report of many volumes. If the field is false, it is
    /// omitted from JSON, because older daemons accept no arguments. Older daemons always include
    /// all volumes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

impl StatsQuery {
    pub const ALL: StatsQuery = StatsQuery { all: true };
}

/// Arguments of `trace-start`, and of `millrace trace record`: filters of the events to record. A
/// missing filter excludes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct TraceStart {
    /// Absolute path of the files without the suffix `.blktrace.N`.
    #[arg(skip)]
    pub name: PathBuf,
    /// Record only the drives of this volume
    #[arg(long, value_name = "NAME")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Record only these drives
    #[arg(long = "drive", value_delimiter = ',', value_name = "NAME")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<String>,
    /// Record only these actions, which `millrace trace show --help` explains: Q, G, I, D, C, P, U,
    /// UT, M, F, X, A, R, B, S
    #[arg(long = "action", value_delimiter = ',', value_name = "LETTER")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<String>,
    /// Record only I/Os of these kinds: read, write, flush, discard, sync, fua
    #[arg(long = "op", value_delimiter = ',', value_name = "OP")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<String>,
    /// Record only I/Os of one client, by the number that `millrace stat --clients` shows
    #[arg(long, value_name = "N", value_parser = whole::<u32>(0..=u32::MAX.into()))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<u32>,
    /// Record only I/Os that touch the sectors A to B-1 of their drive
    #[arg(long, value_name = "A-B", value_parser = sector_range)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sectors: Option<(u64, u64)>,
    /// Precision of timestamps: batch (once for all events of a batch) or event (for each event,
    /// which costs 50 ns per I/O instead of 9)
    #[arg(long, value_name = "WHEN", default_value = "batch")]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(["batch", "event"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<String>,
}

fn sector_range(text: &str) -> Result<(u64, u64), String> {
    let numbers = text.split_once('-').and_then(|(a, b)| a.parse().ok().zip(b.parse().ok()));
    let numbers = numbers.filter(|(a, b)| a < b);
    numbers.ok_or_else(|| "write a range of sectors, such as 0-2048".to_owned())
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(default)]
pub struct RemovalOptions {
    /// Print the changes and whether they are possible, but change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Disconnect clients of removed exports
    #[arg(long)]
    pub disconnect: bool,
    /// Remove a volume even if its cached data cannot be written and is lost
    #[arg(long)]
    pub force: bool,
}

/// Arguments of the verb `reload` on the socket, and of the command `millrace ctl reload`. On the
/// socket, the path must be absolute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct Reload {
    /// Configuration file [default: the file that the daemon loaded last]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    pub options: RemovalOptions,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddSection {
    pub section: String,
    pub name: String,
    /// Keys and values as in a configuration; `cache.size` is a key of `[volume.cache]`.
    #[serde(default, deserialize_with = "words")]
    pub settings: BTreeMap<String, String>,
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct RemoveSection {
    /// Kind of section: drive, volume, export or group
    #[arg(value_parser = SECTIONS)]
    pub section: String,
    /// Name of the section
    pub name: String,
    #[command(flatten)]
    #[serde(flatten)]
    pub options: RemovalOptions,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryRange {
    /// Number of past seconds to report; `None` for two minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<usize>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetVolume {
    pub volume: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetGroup {
    pub group: String,
    /// Keys and values as in a configuration. A value may be a JSON number.
    #[serde(deserialize_with = "words")]
    pub settings: BTreeMap<String, String>,
}

fn words<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    let values = BTreeMap::<String, Value>::deserialize(from)?;
    let word = |(key, value): (String, Value)| match value {
        Value::String(word) => Ok((key, word)),
        Value::Number(number) => Ok((key, number.to_string())),
        other => Err(D::Error::custom(format!(
            "settings: {key} is {other}; write a string or a number, or \"none\" to remove the \
             setting"
        ))),
    };
    values.into_iter().map(word).collect()
}
