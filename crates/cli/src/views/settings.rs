//! Settings of volumes and groups that can change at runtime, on the control socket.
//!
//! Plain data for serde, as in report.rs: the daemon's answers to `millrace ctl set`, and the
//! groups in `stats`. Fields may be added: readers ignore unknown ones.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Answer to `set`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeChange {
    /// Name of the volume.
    pub volume: String,
    /// Drives of the volume, in the volume's order.
    pub drives: Vec<Drive>,
}

/// Change of a drive's scheduler.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drive {
    /// Name of the drive.
    pub name: String,
    /// New scheduler.
    pub scheduler: String,
    /// Former scheduler.
    pub before: String,
}

/// Answer to `set-group`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupChange {
    /// Name of the group.
    pub group: String,
    /// Changed settings, in the order of the keys.
    pub settings: Vec<GroupSetting>,
    /// Likely mistakes, as text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Change of a group's setting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupSetting {
    /// Key of the setting.
    pub key: String,
    /// New value.
    pub value: String,
    /// Former value.
    pub before: String,
}

/// Current settings of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupState {
    /// Name of the group; `GROUP/1` and so on are groups of single clients.
    pub name: String,
    /// Weight, and the settings that differ from the default, with the configuration's keys and
    /// values.
    pub settings: BTreeMap<String, String>,
    /// Latency targets that cannot be kept, as text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}
