//! What the I/O threads of a server share: limits, mailboxes, counters, the order to stop.
//!
//! Made by start-up; read by all threads. A connection that thread 0 accepted for another thread
//! goes into that thread's mailbox, and its doorbell is rung. The list of exports is replaced as a
//! whole (changes.rs); each thread takes the new one when it is rung.
//!
//! Lock order: all locks are taken alone, and for a few instructions. Invariant: a
//! connection counts against the limit from [`ServerState::admit`] to [`ServerState::dismiss`].

use std::fmt;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use super::exports::Exports;
use super::listen::Listener;
use super::memory::Zeroes;
use super::memory::budget::MemoryBudget;
use super::on_demand::{Demand, ExportRequests};
use super::stats;
use crate::ClientReport;
use crate::counters::PublishedCounters;
use crate::io_threads::Failed;
use crate::mailbox::{Mailbox, lock};
use crate::stop::StopOrder;

/// How far the end of the server is.
#[derive(Default)]
pub(crate) struct ShutdownState {
    pub(crate) stop: StopOrder,
    pub(crate) failed: Failed,
    /// Threads whose flushes are answered, while the server stops.
    pub(crate) flushed: AtomicUsize,
}

/// A thread's part in the flush at the end. Dropped when the thread has flushed, or when it ends
/// in any other way, so that the other threads do not wait for it any longer.
pub(crate) struct FlushPart(pub(crate) Arc<ServerState>);

impl Drop for FlushPart {
    fn drop(&mut self) {
        self.0.flush_ended();
    }
}

/// How many connections there are.
pub(crate) struct Connections {
    /// How many there may be.
    pub(crate) max: u32,
    pub(crate) open: AtomicU32,
    /// Of those, the ones that have no export yet.
    pub(crate) negotiating: AtomicU32,
}

impl Connections {
    /// None yet, of so many.
    pub(crate) fn new(max: u32) -> Connections {
        Connections { max, open: AtomicU32::new(0), negotiating: AtomicU32::new(0) }
    }
}

/// A connection without an export, which is counted as such until this is dropped.
pub(crate) struct Negotiating(Arc<ServerState>);

impl Negotiating {
    pub(crate) fn new(shared: &Arc<ServerState>) -> Negotiating {
        // Relaxed: a counter that guards no other memory.
        shared.connections.negotiating.fetch_add(1, Ordering::Relaxed);
        Negotiating(Arc::clone(shared))
    }
}

impl Drop for Negotiating {
    fn drop(&mut self) {
        // Relaxed: as in `new`.
        self.0.connections.negotiating.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Negotiating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Negotiating")
    }
}

/// The exports of a server, which are replaced as a whole, and the threads that serve them.
pub(crate) struct ServedExports {
    current: Mutex<Arc<Exports>>,
    /// How often they were replaced.
    version: AtomicU64,
    /// The version that each thread serves.
    by_thread: Vec<AtomicU64>,
}

impl ServedExports {
    /// The first ones, of so many threads.
    pub(crate) fn new(exports: Arc<Exports>, threads: usize) -> ServedExports {
        let by_thread = (0..threads).map(|_| AtomicU64::new(0)).collect();
        ServedExports { current: Mutex::new(exports), version: AtomicU64::new(0), by_thread }
    }

    /// The exports of this moment.
    pub(crate) fn current(&self) -> Arc<Exports> {
        Arc::clone(&lock(&self.current))
    }

    /// Replaces the exports; returns their version. Threads have to be rung.
    pub(crate) fn replace(&self, exports: Arc<Exports>) -> u64 {
        let mut current = lock(&self.current);
        *current = exports;
        // Under the lock: the version that a thread reads is that of the exports that it takes.
        self.version.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The exports and their version, if a thread does not serve these yet.
    pub(crate) fn newer(&self, thread: usize) -> Option<(Arc<Exports>, u64)> {
        let served = self.by_thread[thread].load(Ordering::SeqCst);
        if self.version.load(Ordering::SeqCst) == served {
            return None;
        }
        let current = lock(&self.current);
        Some((Arc::clone(&current), self.version.load(Ordering::SeqCst)))
    }

    /// A thread has done all that serving this version takes.
    pub(crate) fn note_served(&self, thread: usize, version: u64) {
        self.by_thread[thread].store(version, Ordering::SeqCst);
    }

    /// Returns true if all threads serve this version, or a later one.
    pub(crate) fn is_served(&self, version: u64) -> bool {
        self.by_thread.iter().all(|served| served.load(Ordering::SeqCst) >= version)
    }
}

/// A message to an I/O thread.
pub(crate) enum ThreadMessage {
    /// A connection that thread 0 accepted on the listener of this number.
    Connection(RawFd, usize),
    /// Report all clients.
    Report(Sender<ClientReport>),
    /// Disconnect the client of this number, and report it.
    Disconnect(u16, Sender<ClientReport>),
    /// The connection of this place and serial has what it asked for.
    Answer { connection: usize, serial: u64, demand: Demand },
}

/// What the I/O threads of a server share.
pub(crate) struct ServerState {
    pub(crate) served: ServedExports,
    pub(crate) requests: ExportRequests,
    pub(crate) reactor: millrace_reactor::Config,
    pub(crate) budget: Arc<MemoryBudget>,
    pub(crate) idle_bytes_max: usize,
    pub(crate) zeroes: Arc<Zeroes>,
    pub(crate) handshake_timeout_ns: u64,
    /// How long a client may neither read nor send while it has to.
    pub(crate) stall_timeout_ns: AtomicU64,
    pub(crate) connections: Connections,
    /// By the listener's number. Dropped, a socket is closed and its file removed.
    pub(crate) sockets: Mutex<Vec<Option<Listener>>>,
    pub(crate) failed_accepts: Mutex<Vec<usize>>,
    pub(crate) mailboxes: Vec<Mailbox<ThreadMessage>>,
    pub(crate) published: Vec<PublishedCounters<{ stats::FIELDS }>>,
    /// Raised whenever something changed that other threads are to look at: a wait for memory or
    /// for a range, or that some was given back.
    pub(crate) changes: AtomicU64,
    pub(crate) ending: ShutdownState,
}

impl ServerState {
    /// The exports of this moment.
    pub(crate) fn exports(&self) -> Arc<Exports> {
        self.served.current()
    }

    /// The socket of a listener, unless it is closed.
    pub(crate) fn socket(&self, listener: usize) -> Option<RawFd> {
        lock(&self.sockets).get(listener)?.as_ref().map(Listener::fd)
    }

    /// Counts a new connection; false if there are too many.
    pub(crate) fn admit(&self) -> bool {
        // Relaxed: a counter that guards no other memory.
        let before = self.connections.open.fetch_add(1, Ordering::Relaxed);
        if before >= self.connections.max {
            self.dismiss();
            return false;
        }
        true
    }

    /// Counts a new connection above the limit, in the place of one that is being closed.
    pub(crate) fn admit_instead(&self) {
        // Relaxed: as in `admit`.
        self.connections.open.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether more than half of the connections that there may be have no export yet.
    pub(crate) fn is_full_of_handshakes(&self) -> bool {
        // Relaxed: as in `admit`.
        self.connections.negotiating.load(Ordering::Relaxed) > self.connections.max / 2
    }

    /// Counts a connection that is gone.
    pub(crate) fn dismiss(&self) {
        // Relaxed: as in `admit`.
        self.connections.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts an I/O thread that has flushed, or never will.
    pub(crate) fn flush_ended(&self) {
        self.ending.flushed.fetch_add(1, Ordering::SeqCst);
        self.mailboxes.iter().for_each(Mailbox::ring);
    }

    /// Whether no thread has a flush to wait for any more.
    pub(crate) fn all_flushed(&self) -> bool {
        self.ending.flushed.load(Ordering::SeqCst) >= self.mailboxes.len()
    }

    /// How long a client may stand still, in nanoseconds.
    pub(crate) fn stall_timeout(&self) -> u64 {
        // Relaxed: a setting that orders nothing.
        self.stall_timeout_ns.load(Ordering::Relaxed)
    }

    /// Tells threads that are awake, or about to sleep, that there is something to look at.
    /// SeqCst: whoever arms its doorbell looks at it afterwards.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// How often [`ServerState::note_change`] was called.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Notes a listener on which accepting is to be tried again.
    pub(crate) fn accept_failed(&self, listener: usize) {
        lock(&self.failed_accepts).push(listener);
    }

    pub(crate) fn take_failed_accepts(&self) -> Vec<usize> {
        std::mem::take(&mut *lock(&self.failed_accepts))
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
    fn listeners_that_could_not_accept_are_taken_once() {
        let rig = Rig::new(&["null:size=1m"], |_| ());
        [1, 0].into_iter().for_each(|listener| rig.shared.accept_failed(listener));
        assert_eq!(rig.shared.take_failed_accepts(), [1, 0]);
        assert!(rig.shared.take_failed_accepts().is_empty());
        let before = rig.shared.changes();
        rig.shared.note_change();
        assert_eq!(rig.shared.changes(), before + 1);
    }
}
