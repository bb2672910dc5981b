//! `ServePlan`: a configuration in which every name is resolved, and where its parts stand.
//!
//! Plain data, made by check.rs. `serve` opens and serves it, and asks it for the lines of whatever
//! cannot be opened.

use millrace::{
    DriveConfig, ExportConfig, GuestConfig, Listen, ServeConfig, TlsConfig, VolumeConfig,
};

use super::key_lines::KeyLines;
use super::server::DaemonConfig;

/// A drive of the file, with its lines.
pub type LocatedDrive = (DriveConfig, KeyLines);

/// A checked configuration.
#[derive(Debug)]
pub struct ServePlan {
    /// The file, for messages.
    pub file: String,
    /// Settings of the library.
    pub config: ServeConfig,
    /// Lines of `config`, `daemon` and their keys.
    pub lines: Lines,
    /// Addresses of NBD, as `ServeConfig::listeners` has them.
    pub listeners: Vec<ListenerPlan>,
    /// Settings of the daemon itself.
    pub daemon: DaemonConfig,
    /// Settings that are allowed but perhaps not meant, with file and line.
    pub warnings: Vec<String>,
}

/// Lines of a file at which parts of the configuration stand, in the order of its lists.
#[derive(Debug, Default)]
pub struct Lines {
    /// `[server]`.
    pub server: KeyLines,
    /// Controllers.
    pub controllers: Vec<KeyLines>,
    /// Groups.
    pub groups: Vec<KeyLines>,
    /// Drives, in the order in which they are opened.
    pub drives: Vec<KeyLines>,
    /// Volumes.
    pub volumes: Vec<KeyLines>,
    /// Exports.
    pub exports: Vec<KeyLines>,
    /// Settings of addresses.
    pub listeners: Vec<KeyLines>,
}

impl Lines {
    /// The line at which an export has an address.
    pub(super) fn at_nbd(&self, config: &ServeConfig, export: usize, address: &Listen) -> usize {
        let number = config.exports[export].nbd.iter().position(|one| one == address);
        self.exports[export].at_item("nbd", number.unwrap_or(0))
    }
}

impl ServePlan {
    /// The drives, in the order in which they are opened.
    pub fn drives(&self) -> impl Iterator<Item = (&DriveConfig, &KeyLines)> {
        self.config.drives().zip(&self.lines.drives)
    }

    /// The volumes, with their lines.
    pub fn volumes(&self) -> impl Iterator<Item = (&VolumeConfig, usize)> {
        self.config.volumes.iter().zip(self.lines.volumes.iter().map(|lines| lines.line))
    }

    /// The sockets for virtual machines, with their exports and their lines.
    pub fn guests(&self) -> impl Iterator<Item = (&ExportConfig, &GuestConfig, usize)> {
        let exports = self.config.exports.iter().zip(&self.lines.exports);
        exports.filter_map(|(export, lines)| {
            Some((export, export.guests.as_ref()?, lines.at("vhost-user-blk")))
        })
    }
}

/// An address to listen on.
#[derive(Debug)]
pub struct ListenerPlan {
    /// The address.
    pub address: Listen,
    /// Where it stands in the file first.
    pub line: usize,
    /// Exports served there, by place in `ServeConfig::exports`.
    pub exports: Vec<usize>,
    /// Its TLS, if it has any.
    pub tls: Option<TlsConfig>,
    /// Where that stands.
    pub tls_line: usize,
    /// Where it stands who may connect, if it is a Unix socket.
    pub access_line: usize,
}
