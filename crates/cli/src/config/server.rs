//! `[server]`: threads and limits of the library's server, and sockets and files of the daemon.
//!
//! This module owns two tables of keys, one for the library's settings and one for the daemon's.
//! sections.rs reads the section with both.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use millrace::{ServerConfig, SocketAccess};

use super::document::{KeyReader, key, list};
use super::listener;
use super::words::{self, ControlWord};

/// Settings of the daemon that the library's server does not know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DaemonConfig {
    /// Path of the control socket, or `Off` for none. `None` stands for the default path.
    pub control: Option<ControlWord>,
    pub control_access: SocketAccess,
    pub control_admin_group: Option<u32>,
    pub metrics: Option<SocketAddr>,
    /// Directory of the file that records which caches are dirty.
    pub state: Option<PathBuf>,
}

pub const SERVER: &[KeyReader<ServerConfig>] = &[
    list("cpus", |to, at| at.list(&mut to.cpus, words::cpu)),
    key("threads", |to, at| at.word(&mut to.threads, words::whole(1..=1024))),
    key("backend", |to, at| at.word(&mut to.backend, words::setting)),
    key("connections-max", |to, at| at.word(&mut to.connections_max, words::whole(1..=1 << 20))),
    key("memory-max", |to, at| at.word(&mut to.memory_max_bytes, words::memory_max)),
    key("handshake-timeout", |to, at| at.word(&mut to.handshake_timeout, handshake)),
    key("spin", |to, at| at.word(&mut to.spin, words::spin)),
    key("tls", |to, at| to.tls = listener::tls(at)),
];

pub const DAEMON: &[KeyReader<DaemonConfig>] = &[
    key("control", |to, at| at.path(&mut to.control, words::control)),
    key("control-mode", |to, at| at.digits(&mut to.control_access.mode, listener::mode)),
    key("control-owner", |to, at| at.some(&mut to.control_access.owner, listener::user)),
    key("control-group", |to, at| at.some(&mut to.control_access.group, listener::group)),
    key("control-admin-group", |to, at| at.some(&mut to.control_admin_group, listener::group)),
    key("metrics", |to, at| at.some(&mut to.metrics, words::metrics)),
    key("state", |to, at| at.path(&mut to.state, words::folder)),
];

fn handshake(text: &str) -> Result<Duration, String> {
    words::duration(text, &(Duration::from_millis(1)..=Duration::from_secs(3600)))
}
