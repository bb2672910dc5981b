//! Settings of a volume that may be changed while it is served, on the control socket.
//!
//! Plain data for serde, as report.rs: what the daemon answers to `millrace ctl set`. Fields may be
//! added; whoever reads ignores those that it does not know.

use serde::{Deserialize, Serialize};

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
