//! The NBD server: exports volumes over Unix and TCP sockets from a few I/O threads.
//!
//! [`Server::start`] binds every socket, starts the threads and returns when all of them listen.
//! Each thread has one ring, one channel per volume, and its share of the connections. Thread 0
//! accepts connections and distributes them round-robin. Threads share nothing on the path of a
//! request. [`Server::stop`] answers the requests in flight, flushes the volumes and joins the
//! threads.
//!
//! Path of a request: worker.rs (ring) -> receive.rs (parse) -> execute.rs (entry in the table of
//! requests in flight) -> submit.rs (bio, channel, completion) -> execute.rs (reply) -> replies.rs
//! (many replies in one send). Payload stays in the thread's buffer pool (memory.rs) and is never
//! copied, except small writes out of the receive buffer. Long reads of holes need neither a bio
//! nor payload (holes.rs).

mod changes;
mod clients;
mod config;
mod connection;
mod execute;
mod exports;
mod inherited_sockets;
mod listen;
mod memory;
mod on_demand;
mod renewal;
mod ring;
mod server_state;
mod stats;
mod submit;
#[cfg(test)]
mod tests;
mod tls;
mod visible;
mod worker;

use millrace_machine::{debug_fields, nanoseconds};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace_block::{Error, ErrorKind};
use millrace_reactor::Config;

use self::exports::ExportTable;
use self::listen::Listener;
use self::memory::Zeroes;
use self::memory::budget::MemoryBudget;
use self::renewal::CertificateWatcher;
use self::server_state::{ConnectionTable, ServedExports, ServerState, ShutdownState};
use self::worker::Worker;
use crate::counters::{CounterTable as _, PublishedCounters};
use crate::descriptors;
use crate::io_threads::{IoThreads, ThreadPlace, cpu_of};
use crate::mailbox::{Mailbox, lock};
use crate::stop::StopLimit;

pub use self::changes::{ExportChange, RemovedVolumes};
pub use self::config::{ExportConfig, ListenConfig, ServerConfig};
pub use self::inherited_sockets::{handed_over_address, handed_over_names};
pub use self::listen::Listen;
pub use self::memory::trim_heap;
pub use self::on_demand::{ExportRequest, ExportRequests, RequestedExport};
pub use self::renewal::log_expiries;
pub use self::stats::ServerStats;
pub use self::tls::ListenTls;
pub use self::worker::drain::StopReport;
pub use crate::{AllowedPeers, ExportErrors, SocketAccess, UnixSocket};

/// Time limit for a client to read replies or to send the rest of a payload, in nanoseconds.
const STALL_TIMEOUT_NS: u64 = 30_000_000_000;

/// Interval at which stopping threads are checked.
const LOOK: Duration = Duration::from_millis(100);

/// A running NBD server. Dropping it without [`Server::stop`] stops it without waiting for
/// requests.
pub struct Server {
    shared: Arc<ServerState>,
    threads: IoThreads<StopReport>,
    addresses: Vec<Listen>,
    notes: Vec<String>,
    _renewal: Option<CertificateWatcher>,
}

debug_fields!(Server, addresses, notes);

impl Server {
    /// Binds all sockets, starts all threads, and returns when they serve.
    ///
    /// # Errors
    /// `InvalidSetting` for invalid settings, `Busy` if another server uses an address,
    /// `NotFound`, `PermissionDenied` or `System` if the kernel refuses a socket, a ring or memory.
    /// Nothing is left running.
    pub fn start(config: ServerConfig) -> Result<Server, Error> {
        Server::start_on_demand(config, &ExportRequests::default())
    }

    /// Starts a server as [`Server::start`] does, and puts clients' requests for exports that are
    /// opened on demand into `requests`.
    ///
    /// # Errors
    /// The errors of [`Server::start`].
    pub fn start_on_demand(
        config: ServerConfig,
        requests: &ExportRequests,
    ) -> Result<Server, Error> {
        let wrong = |text: &str| Err(Error::new(ErrorKind::InvalidSetting, text));
        if config.threads == 0 {
            return wrong("a server needs at least one I/O thread");
        }
        if config.memory_max_bytes < 1 << 20 {
            return wrong("a server needs at least 1 MiB for payload");
        }
        if config.listeners.is_empty() {
            return wrong("a server needs at least one address to listen on");
        }
        let exports =
            Arc::new(ExportTable::new(config.exports.clone(), &config.listeners, config.threads)?);
        let listeners = config.listeners.iter().map(|one| Listener::bind(&one.listen, &one.access));
        let listeners = listeners.collect::<Result<Vec<_>, Error>>()?;
        descriptors::make_room(config.connections_max);
        let addresses = listeners.iter().map(Listener::address).collect();
        let shared = Arc::new(share(&config, (exports, requests), listeners)?);
        let places = (0..usize::from(config.threads)).map(|number| {
            let (name, shared) = (format!("millrace-io{number}"), Arc::clone(&shared));
            let place = ThreadPlace { name, cpu: cpu_of(&config.cpus, number) };
            (place, move || Worker::new(&shared, number))
        });
        let renewal = CertificateWatcher::start(&config.listeners)?;
        let (threads, notes) = IoThreads::start(&shared.ending.failed, places);
        let mut server =
            Server { threads, addresses, notes: Vec::new(), _renewal: renewal, shared };
        server.notes = notes?;
        server.notes.dedup();
        Ok(server)
    }

    /// Returns the addresses that the server listens on, in the order of the configuration, with
    /// the port that was assigned if port 0 was configured.
    #[must_use]
    pub fn addresses(&self) -> &[Listen] {
        &self.addresses
    }

    /// Returns a handle to the server's counters for another thread. The handle may outlive the
    /// server.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer(Arc::clone(&self.shared))
    }

    /// Returns the server's counters since its start.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.observer().stats()
    }

    /// Returns the I/O errors of every export so far, in the order of the configuration.
    #[must_use]
    pub fn errors(&self) -> Vec<ExportErrors> {
        self.observer().errors()
    }

    /// Returns true if an I/O thread panicked or lost its ring, so that its connections are stuck.
    /// The call is cheap.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.shared.ending.failed.is_set()
    }

    /// Sets how long the server waits for a client to read replies or to send the rest of a payload
    /// before it disconnects the client. The default is 30 s.
    pub fn set_stall_timeout(&self, timeout: Duration) {
        let timeout_ns = nanoseconds(timeout);
        self.shared.stall_timeout_ns.store(timeout_ns, Ordering::SeqCst);
        self.shared.mailboxes.iter().for_each(Mailbox::ring);
    }

    /// Returns notes for the operator, for example that io_uring was refused.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Stops the server: accepts no more connections, answers requests in flight for at most
    /// `drain_timeout`, flushes every volume, removes the Unix socket files and ends the threads.
    /// Takes up to two seconds more if drives do not answer. Waits up to eight seconds for threads
    /// that hang in a drive, and leaves them behind.
    #[must_use]
    pub fn stop(mut self, drain_timeout: Duration) -> StopReport {
        let mut report = self.halt(drain_timeout);
        report.failures.extend(self.join().err());
        report
    }

    /// Does the first part of [`Server::stop`]: everything except joining the threads, which may
    /// hang in a drive.
    #[must_use]
    pub fn halt(&mut self, drain_timeout: Duration) -> StopReport {
        self.shared.ending.stop.give(drain_timeout);
        self.shared.mailboxes.iter().for_each(Mailbox::ring);
        let exports = self.shared.exports();
        let used = exports.volumes.iter().filter(|served| served.was_used());
        let volumes = used.map(|served| Arc::clone(&served.volume));
        let mut limit = StopLimit::new(volumes, drain_timeout);
        let mut report = StopReport::default();
        loop {
            let (part, all) = self.threads.next_report(LOOK);
            part.into_iter().for_each(|part| report.add(part));
            if all {
                break;
            }
            if limit.is_over() {
                report.failures.push("an I/O thread hangs, and is left behind".to_owned());
                break;
            }
        }
        lock(&self.shared.sockets).clear();
        self.shared.requests.clear();
        report
    }

    /// Does the second part of [`Server::stop`]: waits some seconds for the threads to end.
    ///
    /// # Errors
    /// Returns a text if a thread panicked, or hangs and is left behind.
    pub fn join(&mut self) -> Result<(), String> {
        self.threads.join().in_words()
    }
}

/// Handle to the counters of a server, which may outlive it.
#[derive(Clone)]
pub struct Observer(Arc<ServerState>);

debug_fields!(Observer);

impl Observer {
    /// Returns the sum of all threads' counters.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        let mut total = ServerStats::default();
        self.0.published.iter().for_each(|thread| total.add(thread.read()));
        total.buffer_bytes = self.0.budget.mapped_bytes() as u64;
        total.memory_waiting = self.0.budget.waiting_for_memory() as u64;
        total
    }

    /// Returns the I/O errors of every export so far, in the order of the configuration.
    #[must_use]
    pub fn errors(&self) -> Vec<ExportErrors> {
        let exports = self.0.exports();
        exports.list.iter().map(|export| export.faults.report(&export.name)).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            let _ = (self.halt(Duration::ZERO), self.join());
        }
    }
}

fn share(
    config: &ServerConfig,
    (exports, requests): (Arc<ExportTable>, &ExportRequests),
    listeners: Vec<Listener>,
) -> Result<ServerState, Error> {
    let zeroes = Zeroes::new()
        .map_err(|error| Error::new(ErrorKind::System, format!("no memory for zeroes: {error}")))?;
    let threads = usize::from(config.threads);
    let memory = usize::try_from(config.memory_max_bytes).unwrap_or(usize::MAX);
    let reactor = Config { backend: config.backend, ..config.spin_config() };
    Ok(ServerState {
        served: ServedExports::new(exports, threads),
        requests: requests.clone(),
        reactor,
        budget: MemoryBudget::new(memory, config.connections_max),
        idle_bytes_max: memory / (2 * threads),
        zeroes,
        handshake_timeout_ns: nanoseconds(config.handshake_timeout),
        stall_timeout_ns: AtomicU64::new(STALL_TIMEOUT_NS),
        connections: ConnectionTable::new(config.connections_max),
        sockets: Mutex::new(listeners.into_iter().map(Some).collect()),
        mailboxes: (0..threads).map(|_| Mailbox::default()).collect(),
        published: (0..threads).map(|_| PublishedCounters::default()).collect(),
        changes: AtomicU64::new(0),
        ending: ShutdownState::default(),
    })
}
