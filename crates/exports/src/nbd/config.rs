//! Settings of an NBD server as plain structs: exports, listeners and limits.
//!
//! The caller of `Server::start` fills in the settings. `Server::start` and exports.rs validate
//! them.

use std::sync::Arc;
use std::time::Duration;

use millrace_block::Volume;
use millrace_machine::{CpuId, Native, nanoseconds};
use millrace_reactor::{Backend, Config, SpinRule};

use super::listen::Listen;
use super::tls::ListenTls;
use crate::{ClientGroup, SocketAccess};

/// Default of the longest time for which an I/O thread polls before it sleeps, in nanoseconds. On
/// a virtual machine, a client may need this long to wake up and send its next request.
const SPIN_NS: u64 = 100_000;

/// Settings of one export: a volume under a name.
#[derive(Debug, Clone)]
pub struct ExportConfig {
    /// Name of the export in reports and logs, and for clients if `on_demand` is `None`.
    pub name: String,
    /// Description shown to clients; may be empty.
    pub description: String,
    /// Exported volume.
    pub volume: Arc<Volume<Native>>,
    /// If true, writes to the export are refused.
    pub read_only: bool,
    /// I/O group of the export's clients.
    pub group: ClientGroup,
    /// Certificate names of the clients that may see and use the export. `None` admits all clients.
    pub tls_allow: Option<Vec<String>>,
    /// Name by which clients ask for an export that was opened on demand. No listener lists such an
    /// export. `None` for other exports.
    pub on_demand: Option<String>,
}

impl ExportConfig {
    /// Creates a writable export for all clients.
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

/// A listening socket and its exports.
#[derive(Debug, Clone)]
pub struct ListenConfig {
    /// Address to bind.
    pub listen: Listen,
    /// Indices into [`ServerConfig::exports`]; the first is the default export.
    pub exports: Vec<usize>,
    /// If true, clients may ask for exports that are not listed, see
    /// [`ExportRequests`](super::ExportRequests).
    pub on_demand: bool,
    /// Users that may connect, for a Unix socket.
    pub access: SocketAccess,
    /// TLS settings, or `None` for plain NBD only.
    pub tls: Option<ListenTls>,
}

impl ListenConfig {
    /// Creates a listener without TLS or access rules.
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

/// Settings of an NBD server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Exports of the server.
    pub exports: Vec<ExportConfig>,
    /// Listening sockets.
    pub listeners: Vec<ListenConfig>,
    /// Number of I/O threads, at least 1. A file drive must be opened with one hardware queue for
    /// each thread.
    pub threads: u16,
    /// CPUs that threads are pinned to, round-robin. Empty if threads are not pinned.
    pub cpus: Vec<CpuId>,
    /// I/O interface to the kernel: io_uring or epoll.
    pub backend: Backend,
    /// Maximum number of connections. The server closes further ones at once.
    pub connections_max: u32,
    /// Time limit of the negotiation.
    pub handshake_timeout: Duration,
    /// Maximum payload memory of all connections in bytes, at least 1 MiB.
    pub memory_max_bytes: u64,
    /// Longest time for which an I/O thread polls before it sleeps; zero disables polling. A thread
    /// whose last waits exceeded this time does not poll. A polling thread yields its CPU to other
    /// threads. `None` means up to 100 us, as long as polling raises throughput.
    pub spin: Option<Duration>,
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
            handshake_timeout: Duration::from_secs(10),
            memory_max_bytes: 256 << 20,
            spin: None,
        }
    }
}

impl ServerConfig {
    pub(crate) fn spin_config(&self) -> Config {
        let (spin_ns, spin_rule) = match self.spin {
            Some(spin) => (nanoseconds(spin), SpinRule::Always),
            None => (SPIN_NS, SpinRule::IfItPays),
        };
        Config { spin_ns, spin_rule, ..Config::default() }
    }
}
