//! Verbs of the control socket as both of its ends know them: name, arguments, type of the answer.
//!
//! Plain data for serde; an argument that is not known is an error. The daemon has a row for each
//! verb in verbs/ctl.rs, client.rs asks; docs/control.md describes them. A verb that only one file
//! of verbs/ctl asks has its constant and its arguments there.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::history::History;
use super::locks::Locks;
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
pub const LOCKS_STATUS: Verb<NoArguments, Locks> =
    Verb::new("locks-status", Access::Everybody, "lock statistics so far");
pub const LOCKS_STOP: Verb<NoArguments, Locks> =
    Verb::new("locks-stop", Access::Everybody, "ends lock statistics; answers as `locks-status`");
pub const SET: Verb<Set, VolumeChange> =
    Verb::new("set", Access::Admins, "changes settings of a volume");
pub const SET_GROUP: Verb<SetGroup, GroupChange> =
    Verb::new("set-group", Access::Admins, "changes settings of a group");
pub const RELOAD: Verb<Reload, ReloadReport> =
    Verb::new("reload", Access::Admins, "reads the configuration again, or another file").long();
pub const ADD: Verb<AddSection, ReloadReport> =
    Verb::new("add", Access::Admins, "adds a section; answers as `reload`").long();
pub const REMOVE: Verb<RemoveSection, ReloadReport> =
    Verb::new("remove", Access::Admins, "removes a section; answers as `reload`").long();
pub const CONFIGURATION: Verb<NoArguments, RunningConfiguration> =
    Verb::new("configuration", Access::Admins, "the current configuration as TOML");

pub const UNSAVED: Verb<NoArguments, UnsavedChanges> = Verb::new(
    "unsaved",
    Access::Everybody,
    "differences between the configuration file and the current configuration",
)
.long();

/// Arguments of a verb that takes none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoArguments {}

/// The answer of a verb that has nothing to say: no fields, until some are added.
pub type NoAnswer = Map<String, Value>;

/// Counters that are asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatsQuery {
    /// Counters of idle volumes, too, where there are many volumes. Left out if false: daemons of
    /// former versions know no query, and give all counters.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

impl StatsQuery {
    /// The counters of all volumes, however many there are.
    pub const ALL: StatsQuery = StatsQuery { all: true };
}

/// What is to be recorded; what is not given excludes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceStart {
    /// The files' path, before `.blktrace.N`; absolute.
    pub name: PathBuf,
    /// One volume's drives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Drives by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<String>,
    /// Letters of events: Q, D, C...
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<String>,
    /// Operations: read, write, flush, discard.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<String>,
    /// Whom I/O is accounted to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<u32>,
    /// First and one past the last sector on a drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sectors: Option<(u64, u64)>,
    /// Which time events have: batch or event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<String>,
}

/// How parts of what is served may go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(default)]
pub struct RemovalOptions {
    /// Change nothing; say what would change and whether it can
    #[arg(long)]
    pub dry_run: bool,
    /// Disconnect clients of exports that go
    #[arg(long)]
    pub disconnect: bool,
    /// Remove a volume also if what it holds cannot be written, which is lost
    #[arg(long)]
    pub force: bool,
}

/// The configuration that is to be served from now on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reload {
    /// Its file, an absolute path; none: the file that the daemon was started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// With these options.
    #[serde(flatten)]
    pub options: RemovalOptions,
}

/// A section that comes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddSection {
    /// drive, volume, export or group.
    pub section: String,
    /// Its name.
    pub name: String,
    /// Keys and words as in a configuration; `cache.size` is a key of `[volume.cache]`.
    #[serde(default, deserialize_with = "words")]
    pub settings: BTreeMap<String, String>,
    /// Only find out whether it can be served.
    #[serde(default)]
    pub dry_run: bool,
}

/// A section that goes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveSection {
    /// drive, volume, export or group.
    pub section: String,
    /// Its name.
    pub name: String,
    /// As for `reload`.
    #[serde(flatten)]
    pub options: RemovalOptions,
}

/// Range of the samples that are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryRange {
    /// Seconds; none: two minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<usize>,
}

/// What a volume is to be set to; what is not given stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// Its name.
    pub volume: String,
    /// The scheduler of its drives, by the configuration's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
}

/// What a group is to be set to; what is not given stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetGroup {
    /// Its name.
    pub group: String,
    /// Keys and words as in a configuration: numbers may be such.
    #[serde(deserialize_with = "words")]
    pub settings: BTreeMap<String, String>,
}

/// Reads words: strings, and numbers as a file may have them.
fn words<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    let values = BTreeMap::<String, Value>::deserialize(from)?;
    let word = |(key, value): (String, Value)| match value {
        Value::String(word) => Ok((key, word)),
        Value::Number(number) => Ok((key, number.to_string())),
        other => Err(D::Error::custom(format!(
            "settings: {key} is {other}; write a word in quotes or a number, \"none\" to take it away"
        ))),
    };
    values.into_iter().map(word).collect()
}
