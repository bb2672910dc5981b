//! Settings of a volume that may be changed while it is served, on the control socket.
//!
//! Plain data for serde, as report.rs: `millrace ctl set` asks with [`Set`], the daemon answers
//! with [`Changed`]. Fields may be added; whoever reads ignores those that it does not know.

use serde::{Deserialize, Serialize};

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

/// The answer to `set`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Changed {
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
