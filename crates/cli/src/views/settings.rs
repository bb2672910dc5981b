//! Settings of volumes and groups that may be changed while they are served, on the control socket.
//!
//! Plain data for serde, as report.rs: what the daemon answers to `millrace ctl set`, and groups as
//! `stats` has them. Fields may be
//! added; whoever reads ignores those that it does not know.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The answer to `set`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeChange {
    /// The volume.
    pub volume: String,
    /// Its drives, in their order.
    pub drives: Vec<Drive>,
}

/// A drive of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drive {
    /// Its name.
    pub name: String,
    /// Its scheduler from now on.
    pub scheduler: String,
    /// Its scheduler before.
    pub before: String,
}

/// The answer to `set-group`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupChange {
    /// The group.
    pub group: String,
    /// What was asked for, in the order of the keys.
    pub settings: Vec<GroupSetting>,
    /// What is allowed but hardly meant, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A setting of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupSetting {
    /// Its key.
    pub key: String,
    /// Its word from now on.
    pub value: String,
    /// Its word before.
    pub before: String,
}

/// A group as it is now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    /// Its name; `GROUP/1` and so on are those of clients.
    pub name: String,
    /// Its weight, and what is not as it is without being set, in the configuration's words.
    pub settings: BTreeMap<String, String>,
    /// What it is promised and cannot have, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}
