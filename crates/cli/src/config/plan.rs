//! `ServePlan`: a checked configuration with all names resolved, and the lines of its parts.
//!
//! Plain data that check.rs creates. `serve` opens and serves the plan, and uses the lines in
//! errors.

use std::path::Path;

use millrace::{DriveConfig, ExportConfig, GuestConfig, Listen, ServeConfig, TlsConfig};

use super::key_lines::KeyLines;
use super::problem::{Position, Problems};
use super::server::DaemonConfig;

/// Drive of the configuration, with its lines.
pub type LocatedDrive = (DriveConfig, KeyLines);

/// Checked configuration, with the line numbers of its parts for messages.
#[derive(Debug)]
pub struct ServePlan {
    /// Name of the file, for messages.
    pub file: String,
    /// Settings of the library's server.
    pub config: ServeConfig,
    /// Line numbers of the sections and keys that `config` and `daemon` were read from.
    pub lines: PlanLines,
    /// NBD addresses, in the order of `ServeConfig::listeners`.
    pub listeners: Vec<ListenerPlan>,
    /// Settings of the daemon itself.
    pub daemon: DaemonConfig,
    /// Likely mistakes, with file and line.
    pub warnings: Vec<String>,
}

/// Line numbers of the parts of a configuration. Each list has the order of the parts' list in
/// `ServeConfig`.
#[derive(Debug, Default)]
pub struct PlanLines {
    /// Line numbers in the `[server]` section.
    pub server: KeyLines,
    /// Line numbers in the controllers' sections.
    pub controllers: Vec<KeyLines>,
    /// Line numbers in the groups' sections.
    pub groups: Vec<KeyLines>,
    /// Line numbers in the drives' sections, in the order in which drives are opened.
    pub drives: Vec<KeyLines>,
    /// Line numbers in the volumes' sections.
    pub volumes: Vec<KeyLines>,
    /// Line numbers in the exports' sections.
    pub exports: Vec<KeyLines>,
    /// Line numbers in the `[[listener]]` sections.
    pub listeners: Vec<KeyLines>,
}

impl PlanLines {
    /// Returns the line at which an export names an address.
    pub(super) fn at_nbd(&self, config: &ServeConfig, export: usize, address: &Listen) -> usize {
        let number = config.exports[export].nbd.iter().position(|one| one == address);
        self.exports[export].at_item("nbd", number.unwrap_or(0))
    }
}

impl ServePlan {
    /// Makes a problem of this configuration.
    pub fn problem(&self, place: impl Into<Position>, text: impl Into<String>) -> Problems {
        let mut problems = Problems::new(&self.file);
        problems.add(place, text);
        problems
    }

    /// Returns the drives with their lines, in the order in which they are opened.
    pub fn drives(&self) -> impl Iterator<Item = (&DriveConfig, &KeyLines)> {
        self.config.drives().zip(&self.lines.drives)
    }

    /// Returns the exports to virtual machines with their settings and lines.
    pub fn guests(&self) -> impl Iterator<Item = (&ExportConfig, &GuestConfig, usize)> {
        let exports = self.config.exports.iter().zip(&self.lines.exports);
        exports.filter_map(|(export, lines)| {
            Some((export, export.guests.as_ref()?, lines.at("vhost-user-blk")))
        })
    }
}

/// NBD address with its exports.
#[derive(Debug)]
pub struct ListenerPlan {
    /// Address to listen on.
    pub address: Listen,
    /// Line of the first export that names this address.
    pub line: usize,
    /// Indexes in `ServeConfig::exports` of the exports served there.
    pub exports: Vec<usize>,
    /// TLS settings of the address, if it has any.
    pub tls: Option<TlsConfig>,
    /// Line of the TLS settings.
    pub tls_line: usize,
    /// Line of the access settings, for a Unix socket.
    pub access_line: usize,
}

impl ListenerPlan {
    /// Returns the path of a Unix socket that the daemon itself binds.
    pub fn unix_path(&self) -> Option<&Path> {
        match &self.address {
            Listen::Unix(path) => Some(path),
            Listen::Abstract(_) | Listen::Tcp(_) | Listen::Inherited(_) => None,
        }
    }
}
