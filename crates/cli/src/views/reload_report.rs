//! What a reload changes, on the control socket.
//!
//! Plain data for serde, as report.rs: what the daemon answers to `reload`. Made by the daemon's
//! live/reload.rs, printed by `millrace ctl reload` and logged. Fields may be added.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The answer to `reload`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReloadReport {
    /// The configuration that was read.
    pub file: String,
    /// Nothing was changed, as was asked.
    pub dry_run: bool,
    /// What is other than before: in the order of the sections of a configuration.
    pub changes: Vec<ReloadChange>,
    /// What is allowed but hardly meant, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The answer to `configuration`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunningConfiguration {
    /// The file that it was read from last, an absolute path; none if it was never in a file.
    pub file: Option<PathBuf>,
    /// The text of that file when it was read.
    pub as_read: Option<String>,
    /// Folder below which its relative paths lie, an absolute path.
    pub folder: PathBuf,
    /// What is served now, as TOML.
    pub text: String,
}

/// The answer to `unsaved`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnsavedChanges {
    /// The configuration file; none if there is none.
    pub file: Option<String>,
    /// Differences from that file: `+` is served and not in it, `-` is in it only.
    pub changes: Vec<ReloadChange>,
    /// Reason for which nobody can tell, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

impl UnsavedChanges {
    /// Lines for a person, none if the file has all.
    pub fn text(&self) -> String {
        let Some(file) = self.file.as_ref().filter(|_| self.problem.is_empty()) else {
            return format!("not compared with the configuration file: {}\n", self.problem);
        };
        let lines: String = self.changes.iter().map(|change| format!("  {change}\n")).collect();
        match lines.is_empty() {
            true => lines,
            false => {
                format!("changed since {file}, until `millrace ctl save` or `reload`:\n{lines}")
            }
        }
    }
}

impl ReloadReport {
    /// Lines for a person: what changes, what is hardly meant, and what became of the file.
    pub fn text(&self) -> String {
        let mut text: String = self.changes.iter().map(|change| format!("{change}\n")).collect();
        text.extend(self.warnings.iter().map(|warning| format!("warning: {warning}\n")));
        let became = match (self.changes.is_empty(), self.dry_run) {
            (true, _) => "is served as it is; nothing to change",
            (false, true) => "can be served; nothing was changed",
            (false, false) => "served from now on",
        };
        format!("{text}{}: {became}\n", self.file)
    }
}

/// One part of a configuration that comes, goes or changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReloadChange {
    /// `+` for one that comes, `-` for one that goes, `~` for one that changes.
    pub change: String,
    /// Its section: drive, volume, export, group, listener, controller or server.
    pub section: String,
    /// Its name.
    pub name: String,
    /// The settings that change, with their values before and afterwards; empty if it comes or
    /// goes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

impl ReloadChange {
    /// A part that comes or goes.
    pub fn new(change: char, section: &str, name: impl Into<String>) -> ReloadChange {
        let (change, section) = (change.to_string(), section.to_owned());
        ReloadChange { change, section, name: name.into(), detail: String::new() }
    }
}

impl fmt::Display for ReloadChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReloadChange { change, section, name, detail } = self;
        write!(f, "{change} {section} {name}")?;
        if detail.is_empty() { Ok(()) } else { write!(f, " {detail}") }
    }
}
