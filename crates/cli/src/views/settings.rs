//! Settings of volumes and groups that can change at runtime, on the control socket.
//!
//! Plain data for serde, as in report.rs: the daemon's answers to `millrace ctl set`, and the
//! groups in `stats`. Fields may be added: readers ignore unknown ones.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeChange {
    pub volume: String,
    pub drives: Vec<Drive>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drive {
    pub name: String,
    pub scheduler: String,
    pub before: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupChange {
    pub group: String,
    pub settings: Vec<GroupSetting>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupSetting {
    pub key: String,
    pub value: String,
    pub before: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupState {
    /// Name of the group; `GROUP/1` and so on are groups of single clients.
    pub name: String,
    /// Weight, and the settings that differ from the default, with the configuration's keys and
    /// values.
    pub settings: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}
