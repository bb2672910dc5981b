//! What the I/O threads of a server share: limits, mailboxes, counters, the order to stop.
//!
//! Made by start-up; read by all threads. A connection that thread 0 accepted for another thread
//! goes into that thread's mailbox, and its doorbell is rung.
//!
//! Lock order: mailbox and bell locks are taken alone, and for a few instructions. Invariant: a
//! connection counts against the limit from [`ServerState::admit`] to [`ServerState::dismiss`].

use std::fmt;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::exports::Exports;
use super::memory::Zeroes;
use super::memory::budget::Budget;
use super::stats;
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

/// What the I/O threads of a server share.
pub(crate) struct ServerState {
    pub(crate) exports: Arc<Exports>,
    pub(crate) reactor: millrace_reactor::Config,
    pub(crate) budget: Arc<Budget>,
    pub(crate) idle_bytes_max: usize,
    pub(crate) zeroes: Arc<Zeroes>,
    pub(crate) handshake_timeout_ns: u64,
    /// How long a client may neither read nor send while it has to.
    pub(crate) stall_timeout_ns: AtomicU64,
    pub(crate) connections: Connections,
    pub(crate) listeners: Vec<RawFd>,
    pub(crate) failed_accepts: Mutex<Vec<usize>>,
    pub(crate) mailboxes: Vec<Mailbox<(RawFd, usize)>>,
    pub(crate) published: Vec<PublishedCounters<{ stats::FIELDS }>>,
    /// Raised whenever something changed that other threads are to look at: a wait for memory or
    /// for a range, or that some was given back.
    pub(crate) changes: AtomicU64,
    pub(crate) ending: ShutdownState,
}

impl ServerState {
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
