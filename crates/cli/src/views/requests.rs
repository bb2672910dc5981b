//! Arguments of the control socket's verbs, as both of its ends know them.
//!
//! Plain data for serde; a field that is not known is an error. Read by protocol.rs, written by
//! client.rs; docs/control.md describes them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Counters that are asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatsQuery {
    /// Counters of idle volumes, too, where there are many volumes.
    #[serde(default)]
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

/// Which volume is to grow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Its name.
    pub volume: String,
}

/// Which volume was checked after a daemon ended with a dirty cache of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acknowledge {
    /// Its name.
    pub volume: String,
}

/// The client that is to be disconnected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disconnect {
    /// Its number.
    pub client: u16,
}

/// The configuration that is to be served from now on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reload {
    /// Its file, an absolute path; none: the file that the daemon was started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Only find out whether it can be served, and what would change.
    #[serde(default)]
    pub dry_run: bool,
    /// Disconnect clients of exports that it does not have.
    #[serde(default)]
    pub disconnect: bool,
    /// Remove volumes also if what they hold cannot be written: it is lost.
    #[serde(default)]
    pub force: bool,
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
    #[serde(default)]
    pub dry_run: bool,
    /// As for `reload`.
    #[serde(default)]
    pub disconnect: bool,
    /// As for `reload`.
    #[serde(default)]
    pub force: bool,
}

/// Range of the samples that are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryRange {
    /// Seconds; none: two minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<usize>,
}

/// Level of the log from now on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLevel {
    /// A level, or modules with theirs, as `MILLRACE_LOG` has them; none: only tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
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
