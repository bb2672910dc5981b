//! `ServePlan`: a checked configuration with all names resolved, and the line numbers of its keys.
//!
//! Plain data that check.rs creates. `serve` opens and serves the plan, and gives the line numbers
//! in errors.

use std::path::Path;

use millrace::{DriveConfig, ExportConfig, GuestConfig, Listen, ServeConfig, TlsConfig};

use super::key_lines::KeyLines;
use super::problem::{ConfigProblems, Position};
use super::server::DaemonConfig;

pub type LocatedDrive = (DriveConfig, KeyLines);

#[derive(Debug)]
pub struct ServePlan {
    pub file: String,
    pub config: ServeConfig,
    pub lines: PlanLines,
    /// NBD addresses, in the order of `ServeConfig::listeners`.
    pub listeners: Vec<ListenerPlan>,
    pub daemon: DaemonConfig,
    pub warnings: Vec<String>,
}

/// Line numbers of a configuration's sections and keys. Lists are in the order of `ServeConfig`.
#[derive(Debug, Default)]
pub struct PlanLines {
    pub server: KeyLines,
    pub controllers: Vec<KeyLines>,
    pub groups: Vec<KeyLines>,
    pub drives: Vec<KeyLines>,
    pub volumes: Vec<KeyLines>,
    pub exports: Vec<KeyLines>,
    pub listeners: Vec<KeyLines>,
}

impl PlanLines {
    pub(super) fn at_nbd(&self, config: &ServeConfig, export: usize, address: &Listen) -> usize {
        let number = config.exports[export].nbd.iter().position(|one| one == address);
        self.exports[export].at_item("nbd", number.unwrap_or(0))
    }
}

impl ServePlan {
    pub fn problem(&self, place: impl Into<Position>, text: impl Into<String>) -> ConfigProblems {
        let mut problems = ConfigProblems::new(&self.file);
        problems.add(place, text);
        problems
    }

    pub fn drives(&self) -> impl Iterator<Item = (&DriveConfig, &KeyLines)> {
        self.config.drives().zip(&self.lines.drives)
    }

    pub fn guests(&self) -> impl Iterator<Item = (&ExportConfig, &GuestConfig, usize)> {
        let exports = self.config.exports.iter().zip(&self.lines.exports);
        exports.filter_map(|(export, lines)| {
            Some((export, export.guests.as_ref()?, lines.at("vhost-user-blk")))
        })
    }
}

#[derive(Debug)]
pub struct ListenerPlan {
    pub address: Listen,
    /// Line of the first export that names the listener's address.
    pub line: usize,
    /// Indexes in `ServeConfig::exports` of the exports served at the listener's address.
    pub exports: Vec<usize>,
    pub tls: Option<TlsConfig>,
    pub tls_line: usize,
    /// Line of the first key that controls access to the Unix socket, such as `mode` or
    /// `allow-users`; `line` if there is no such key.
    pub access_line: usize,
}

impl ListenerPlan {
    /// Returns the path if the address is a Unix socket that the daemon itself binds.
    pub fn unix_path(&self) -> Option<&Path> {
        match &self.address {
            Listen::Unix(path) => Some(path),
            Listen::Abstract(_) | Listen::Tcp(_) | Listen::Inherited(_) => None,
        }
    }
}
