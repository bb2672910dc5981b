//! State shared by a server's I/O threads: the connection limit, a mailbox for messages to each
//! thread, counters, and the order to stop the server.
//!
//! Lock order: all locks are taken alone and briefly. Invariant: a connection counts against the
//! limit from [`ServerState::admit`] to [`ServerState::dismiss`].

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use millrace_machine::debug_fields;

use super::exports::ExportTable;
use super::listen::Listener;
use super::memory::Zeroes;
use super::memory::budget::MemoryBudget;
use super::on_demand::{ExportRequests, OnDemandState};
use super::stats::ServerStats;
use crate::ClientReport;
use crate::counters::PublishedCounters;
use crate::io_threads::FailedFlag;
use crate::mailbox::{Mailbox, lock};
use crate::stop::StopOrder;

/// Number of client numbers for each I/O thread. Thread 0 has the numbers 1 to 1000, thread 1 the
/// numbers 1001 to 2000, and so on. A thread with more clients also uses numbers of the next
/// thread.
const CLIENTS_PER_THREAD: u16 = 1000;

/// Returns the number of the client with this index on its I/O thread. The block layer counts the
/// client's I/Os under this number (the tenant), which also appears in logs, counters and traces.
/// After the client has left, another client may get the number.
pub(crate) fn client_number(thread: usize, index: usize) -> u16 {
    (thread as u16).wrapping_mul(CLIENTS_PER_THREAD).wrapping_add(1).wrapping_add(index as u16)
}

#[derive(Default)]
pub(crate) struct ShutdownState {
    pub(crate) stop: StopOrder,
    pub(crate) failed: FailedFlag,
    pub(crate) flushed: AtomicUsize,
}

/// Guard of a thread's final flush: other threads wait for the flush until the guard is dropped.
pub(crate) struct FlushPart(pub(crate) Arc<ServerState>);

impl Drop for FlushPart {
    fn drop(&mut self) {
        self.0.flush_ended();
    }
}

pub(crate) struct ConnectionTable {
    pub(crate) max: u32,
    pub(crate) open: AtomicU32,
    pub(crate) negotiating: AtomicU32,
}

impl ConnectionTable {
    pub(crate) fn new(max: u32) -> ConnectionTable {
        ConnectionTable { max, open: AtomicU32::new(0), negotiating: AtomicU32::new(0) }
    }
}

/// Guard that counts a connection as negotiating until the guard is dropped.
pub(crate) struct NegotiationCount(Arc<ServerState>);

impl NegotiationCount {
    pub(crate) fn new(shared: &Arc<ServerState>) -> NegotiationCount {
        shared.connections.negotiating.fetch_add(1, Ordering::SeqCst);
        NegotiationCount(Arc::clone(shared))
    }
}

impl Drop for NegotiationCount {
    fn drop(&mut self) {
        self.0.connections.negotiating.fetch_sub(1, Ordering::SeqCst);
    }
}

debug_fields!(NegotiationCount);

pub(crate) struct ServedExports {
    current: Mutex<Arc<ExportTable>>,
    version: AtomicU64,
    by_thread: Vec<AtomicU64>,
}

impl ServedExports {
    pub(crate) fn new(exports: Arc<ExportTable>, threads: usize) -> ServedExports {
        let by_thread = (0..threads).map(|_| AtomicU64::new(0)).collect();
        ServedExports { current: Mutex::new(exports), version: AtomicU64::new(0), by_thread }
    }

    pub(crate) fn current(&self) -> Arc<ExportTable> {
        Arc::clone(&lock(&self.current))
    }

    /// Replaces the exports and returns their version. The caller must wake the I/O threads.
    pub(crate) fn replace(&self, exports: Arc<ExportTable>) -> u64 {
        let mut current = lock(&self.current);
        *current = exports;
        // The version changes under the lock, so that a thread reads exports and version together.
        self.version.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn newer(&self, thread: usize) -> Option<(Arc<ExportTable>, u64)> {
        let served = self.by_thread[thread].load(Ordering::SeqCst);
        if self.version.load(Ordering::SeqCst) == served {
            return None;
        }
        let current = lock(&self.current);
        Some((Arc::clone(&current), self.version.load(Ordering::SeqCst)))
    }

    pub(crate) fn note_served(&self, thread: usize, version: u64) {
        self.by_thread[thread].store(version, Ordering::SeqCst);
    }

    pub(crate) fn is_served(&self, version: u64) -> bool {
        self.by_thread.iter().all(|served| served.load(Ordering::SeqCst) >= version)
    }
}

pub(crate) enum ThreadMessage {
    Connection(RawFd, usize),
    Report(Sender<ClientReport>),
    Disconnect(u16, Sender<ClientReport>),
    /// Answer to an on-demand request of the connection with this index and serial number.
    Answer {
        connection: usize,
        serial: u64,
        demand: OnDemandState,
    },
}

pub(crate) struct ServerState {
    pub(crate) served: ServedExports,
    pub(crate) requests: ExportRequests,
    pub(crate) reactor: millrace_reactor::Config,
    pub(crate) budget: Arc<MemoryBudget>,
    pub(crate) idle_bytes_max: usize,
    pub(crate) zeroes: Arc<Zeroes>,
    pub(crate) handshake_timeout_ns: u64,
    /// Longest time, in nanoseconds, that the server waits for a client to read replies or to send
    /// the rest of a payload.
    pub(crate) stall_timeout_ns: AtomicU64,
    pub(crate) connections: ConnectionTable,
    /// The sockets, indexed by listener number. Dropping a listener closes its socket and removes
    /// the socket's file.
    pub(crate) sockets: Mutex<Vec<Option<Listener>>>,
    pub(crate) mailboxes: Vec<Mailbox<ThreadMessage>>,
    pub(crate) published: Vec<PublishedCounters<{ ServerStats::COUNT }>>,
    /// Count of changes that concern every I/O thread, such as freed memory or new exports. If the
    /// count differs from the value that a thread saw last, the thread runs another iteration of
    /// its event loop.
    pub(crate) changes: AtomicU64,
    pub(crate) ending: ShutdownState,
}

impl ServerState {
    pub(crate) fn exports(&self) -> Arc<ExportTable> {
        self.served.current()
    }

    pub(crate) fn socket(&self, listener: usize) -> Option<RawFd> {
        lock(&self.sockets).get(listener)?.as_ref().map(Listener::fd)
    }

    /// Counts a new connection. Returns false, and does not count it, if the limit is reached.
    pub(crate) fn admit(&self) -> bool {
        let fits = self.connections.open.fetch_add(1, Ordering::SeqCst) < self.connections.max;
        if !fits {
            self.dismiss();
        }
        fits
    }

    /// Counts a new connection although the limit is reached. The caller is closing another
    /// connection, which counts until it is closed.
    pub(crate) fn admit_instead(&self) {
        self.connections.open.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn is_full_of_handshakes(&self) -> bool {
        self.connections.negotiating.load(Ordering::SeqCst) > self.connections.max / 2
    }

    pub(crate) fn dismiss(&self) {
        self.connections.open.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts an I/O thread that has ended its final flush, or has ended without one.
    pub(crate) fn flush_ended(&self) {
        self.ending.flushed.fetch_add(1, Ordering::SeqCst);
        self.mailboxes.iter().for_each(Mailbox::ring);
    }

    pub(crate) fn all_flushed(&self) -> bool {
        self.ending.flushed.load(Ordering::SeqCst) >= self.mailboxes.len()
    }

    pub(crate) fn stall_timeout(&self) -> u64 {
        self.stall_timeout_ns.load(Ordering::SeqCst)
    }

    /// Makes each I/O thread run another loop iteration before it sleeps. SeqCst: a thread that
    /// prepares to sleep arms its doorbell first and then reads `changes`.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use crate::nbd::tests::Rig;

    #[test]
    fn as_many_connections_are_admitted_as_there_may_be() {
        let rig = Rig::new(&["null:size=1m"], |config| config.connections_max = 2);
        let shared = &rig.shared;
        assert_eq!([(); 4].map(|()| shared.admit()), [true, true, false, false]);
        shared.dismiss();
        assert_eq!([(); 2].map(|()| shared.admit()), [true, false]);
        shared.dismiss();
        shared.dismiss();
    }

    #[test]
    fn the_end_waits_for_every_threads_flush() {
        let rig = Rig::new(&["null:size=1m"], |config| config.threads = 2);
        let ended = [(); 3].map(|()| {
            let all = rig.shared.all_flushed();
            rig.shared.flush_ended();
            all
        });
        assert_eq!(ended, [false, false, true]);
    }

    #[test]
    fn changes_are_counted() {
        let rig = Rig::new(&["null:size=1m"], |_| ());
        let before = rig.shared.changes();
        rig.shared.note_change();
        assert_eq!(rig.shared.changes(), before + 1);
    }
}
