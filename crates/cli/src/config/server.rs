//! `[server]`: threads and limits of the library's server, and the daemon's own sockets and files.
//!
//! Owns both tables of keys, which sections.rs reads. Names of users and groups become numbers here.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use millrace::{ServerConfig, SocketAccess};
use millrace_reactor::Backend;

use super::document::{Key, key, list};
use super::listener;
use super::words::{self, ControlWord, MILLISECOND_NS, SECOND_NS};

/// How long a client may take to say what it wants.
const HANDSHAKES_NS: RangeInclusive<u64> = MILLISECOND_NS..=3600 * SECOND_NS;

/// Settings of the daemon that the library's server has no use for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DaemonConfig {
    /// The control socket, if it is said where, or that there is none.
    pub control: Option<ControlWord>,
    /// Mode, owner and group of the control socket's file, as far as they are said.
    pub control_access: SocketAccess,
    /// The group whose members may change anything over the control socket.
    pub control_admin_group: Option<u32>,
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
    /// Folder of marks of dirty caches.
    pub state: Option<PathBuf>,
}

pub const SERVER: [Key<ServerConfig>; 8] = [
    list("cpus", |server, value| value.list(&mut server.cpus, words::cpu)),
    key("threads", |server, value| value.word(&mut server.threads, words::whole::<u16>(1..=1024))),
    key("backend", |server, value| value.word(&mut server.backend, words::setting::<Backend>)),
    key("connections-max", |server, value| {
        value.word(&mut server.connections_max, |text| words::number(text, 1, 1 << 20));
    }),
    key("memory-max", |server, value| {
        value.word(&mut server.memory_max_bytes, words::memory_max);
    }),
    key("handshake-timeout", |server, value| {
        let time = |text: &str| words::duration(text, &HANDSHAKES_NS);
        value.word(&mut server.handshake_timeout_ns, time);
    }),
    key("spin", |server, value| value.word(&mut server.spin_ns, words::spin)),
    key("tls", |server, value| server.tls = listener::tls(value)),
];

pub const DAEMON: [Key<DaemonConfig>; 7] = [
    key("control", |daemon, value| value.path(&mut daemon.control, words::control)),
    key("control-mode", |daemon, value| {
        value.digits(&mut daemon.control_access.mode, listener::mode);
    }),
    key("control-owner", |daemon, value| {
        value.word(&mut daemon.control_access.owner, listener::user);
    }),
    key("control-group", |daemon, value| {
        value.word(&mut daemon.control_access.group, listener::group);
    }),
    key("control-admin-group", |daemon, value| {
        value.word(&mut daemon.control_admin_group, listener::group);
    }),
    key("metrics", |daemon, value| value.word(&mut daemon.metrics, words::metrics)),
    key("state", |daemon, value| value.path(&mut daemon.state, words::folder)),
];
