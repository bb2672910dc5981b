//! Changes made by a reload, on the control socket.
//!
//! `millrace ctl reload` prints the daemon's answer, and the daemon logs it.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReloadReport {
    pub file: String,
    pub dry_run: bool,
    pub changes: Vec<ReloadChange>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunningConfiguration {
    /// File that the configuration was last read from; `None` if it was never in a file.
    pub file: Option<PathBuf>,
    pub as_read: Option<String>,
    pub folder: PathBuf,
    pub text: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnsavedChanges {
    pub file: Option<String>,
    /// Differences from the configuration file. `+` marks a section that is served but not in the
    /// file, `-` a section that is only in the file.
    pub changes: Vec<ReloadChange>,
    /// Reason why the differences cannot be determined, as text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

impl UnsavedChanges {
    /// Returns the unsaved changes as text for the user: a heading, then one line each. The text is
    /// empty if the file matches the served configuration. If the changes cannot be determined, the
    /// text gives the reason.
    pub fn text(&self) -> String {
        let Some(file) = self.file.as_ref().filter(|_| self.problem.is_empty()) else {
            return format!(
                "the running configuration was not compared with its file: {}\n",
                self.problem
            );
        };
        let lines: String = self.changes.iter().map(|change| format!("  {change}\n")).collect();
        match lines.is_empty() {
            true => lines,
            false => {
                format!(
                    "changed since {file} was read; `millrace ctl save` keeps these changes, \
                     `reload` discards them:\n{lines}"
                )
            }
        }
    }
}

impl ReloadReport {
    pub fn text(&self) -> String {
        let mut text: String = self.changes.iter().map(|change| format!("{change}\n")).collect();
        text.extend(self.warnings.iter().map(|warning| format!("warning: {warning}\n")));
        let became = match (self.changes.is_empty(), self.dry_run) {
            (true, _) => "no change to what the daemon serves",
            (false, true) => "valid, and can be loaded; nothing was changed (dry run)",
            (false, false) => "served from now on",
        };
        format!("{text}{}: {became}\n", self.file)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReloadChange {
    /// `+` for an added section, `-` for a removed one, `~` for a changed one.
    pub change: String,
    /// Kind of the section: drive, volume, export, group, listener, controller or server.
    pub section: String,
    pub name: String,
    /// Settings that change, with their old and new values; empty for an added or removed section.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

impl ReloadChange {
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
