//! Settings of a server, as plain structs: what is exported, where, and with which limits.
//!
//! Filled in by whoever starts a server; checked by `Server::start` and by exports.rs. Calls
//! nothing.

use std::sync::Arc;

use millrace_block::Volume;
use millrace_machine::Native;
use millrace_reactor::{Backend, Config, SpinRule};

use super::listen::Listen;
use super::tls::ListenTls;
use crate::{ClientGroup, SocketAccess};

/// Longest busy poll before a thread sleeps, in nanoseconds: what it may take on a virtual machine
/// to wake the client that is to send the next request, and its own work.
const SPIN_NS: u64 = 100_000;

/// A volume under a name.
#[derive(Clone)]
pub struct ExportConfig {
    /// Its name in reports and logs, and the name that clients ask for unless `on_demand` has
    /// another one.
    pub name: String,
    /// Text for people, possibly empty.
    pub description: String,
    /// What is exported.
    pub volume: Arc<Volume<Native>>,
    /// Clients may not write.
    pub read_only: bool,
    /// The group of its clients.
    pub group: ClientGroup,
    /// Names in certificates of the clients that may see and use it; none: all clients may.
    pub tls_allow: Option<Vec<String>>,
    /// The name that clients ask for, of an export that was opened because one did: no listener
    /// lists it.
    pub on_demand: Option<String>,
}

impl ExportConfig {
    /// An export that everybody may read and write.
    #[must_use]
    pub fn new(name: impl Into<String>, volume: Arc<Volume<Native>>) -> ExportConfig {
        ExportConfig {
            name: name.into(),
            description: String::new(),
            volume,
            read_only: false,
            group: ClientGroup::default(),
            tls_allow: None,
            on_demand: None,
        }
    }
}

/// A socket and the exports that are offered on it.
#[derive(Debug, Clone)]
pub struct ListenConfig {
    /// The address.
    pub listen: Listen,
    /// Indices into [`ServerConfig::exports`]; the first is the default export.
    pub exports: Vec<usize>,
    /// Clients may ask for exports that are not on the list, see
    /// [`ExportRequests`](super::ExportRequests).
    pub on_demand: bool,
    /// Users that may connect, if it is a Unix socket.
    pub access: SocketAccess,
    /// TLS for its clients, if there is any.
    pub tls: Option<ListenTls>,
}

impl ListenConfig {
    /// A socket for everybody who reaches it, without TLS.
    #[must_use]
    pub fn new(listen: Listen, exports: Vec<usize>) -> ListenConfig {
        ListenConfig {
            listen,
            exports,
            on_demand: false,
            access: SocketAccess::default(),
            tls: None,
        }
    }
}

/// Settings of a server.
#[derive(Clone)]
pub struct ServerConfig {
    /// What is exported.
    pub exports: Vec<ExportConfig>,
    /// The address.
    pub listeners: Vec<ListenConfig>,
    /// I/O threads, at least 1. File drives need as many in their disk's settings.
    pub threads: u16,
    /// Thread `i` is pinned to `cpus[i % len]`; empty: threads are not pinned.
    pub cpus: Vec<u32>,
    /// How the threads talk to the kernel.
    pub backend: Backend,
    /// Most connections at a time; above it new ones are closed at once.
    pub connections_max: u32,
    /// Longest negotiation in nanoseconds.
    pub handshake_timeout_ns: u64,
    /// Most memory for payload, of all connections, in bytes; at least 1 MiB.
    pub memory_max_bytes: u64,
    /// Longest busy poll before a thread sleeps, in nanoseconds. A thread polls only while its
    /// waits are that short, and lets others have its CPU; 0: never; none: for 100 us, as long as
    /// more is done that way.
    pub spin_ns: Option<u64>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            exports: Vec::new(),
            listeners: Vec::new(),
            threads: 1,
            cpus: Vec::new(),
            backend: Backend::Auto,
            connections_max: 1024,
            handshake_timeout_ns: 10_000_000_000,
            memory_max_bytes: 256 << 20,
            spin_ns: None,
        }
    }
}

impl ServerConfig {
    /// A reactor's settings, as far as they are about spinning.
    pub(crate) fn spin_config(&self) -> Config {
        let (spin_ns, spin_rule) = match self.spin_ns {
            Some(spin_ns) => (spin_ns, SpinRule::Always),
            None => (SPIN_NS, SpinRule::IfItPays),
        };
        Config { spin_ns, spin_rule, ..Config::default() }
    }
}
