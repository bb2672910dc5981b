//! Verbs of the control socket: name, arguments, and type of the answer.
//!
//! An unknown argument is an error. The daemon has a row for each verb in verbs/ctl.rs, and
//! docs/control.md describes them. A verb used by a single file of verbs/ctl is defined in that
//! file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

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
    "`events` written and `dropped` so far; `files` once the recording has ended",
);
pub const TRACE_STOP: Verb<NoArguments, TraceStatus> =
    Verb::new("trace-stop", Access::Everybody, "ends the recording; answers as `trace-status`");
pub const LOCKS_START: Verb<NoArguments, NoAnswer> =
    Verb::new("locks-start", Access::Everybody, "starts lock statistics and answers `{}`");
pub const LOCKS_STATUS: Verb<NoArguments, LockReport> =
    Verb::new("locks-status", Access::Everybody, "returns the lock statistics so far");
pub const LOCKS_STOP: Verb<NoArguments, LockReport> =
    Verb::new("locks-stop", Access::Everybody, "ends lock statistics; answers like `locks-status`");
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
    /// Include idle volumes where there are many volumes. The field is omitted from JSON if it is
    /// false, because older daemons accept no arguments and return all counters.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

impl StatsQuery {
    pub const ALL: StatsQuery = StatsQuery { all: true };
}

/// Arguments of `trace-start`: filters of the events to record. A missing filter excludes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceStart {
    /// Absolute path of the files without the suffix `.blktrace.N`.
    pub name: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<String>,
    /// Record only events with these action letters: Q, D, C...
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<u32>,
    /// Record only I/Os that touch this range of sectors on a drive: first sector, and the one
    /// after the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sectors: Option<(u64, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<String>,
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

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reload {
    /// Absolute path of the configuration file to load; `None` for the file with which the daemon
    /// was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
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

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveSection {
    pub section: String,
    pub name: String,
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
