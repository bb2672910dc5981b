//! Admission of clients while as many connections are open as there may be.
//!
//! Called by the thread that accepts, for each client. Above the limit a new one is turned away,
//! unless more than half of the connections have no export yet: then the new one takes the place of
//! the oldest of those on this thread that had its time. So whoever connects and does no more, for
//! want of a certificate or of good will, does not keep others out.
//!
//! Invariant: each connection above the limit is paired with one that this thread closes.

use std::os::fd::RawFd;

use millrace_machine::{Machine, Native};

use super::Worker;
use crate::nbd::connection::{Phase, client_log};

/// How long a connection may negotiate whatever others want, in nanoseconds: several times what it
/// takes over a slow network.
const GRACE_NS: u64 = 1_000_000_000;

impl Worker {
    /// Counts a new connection of a listener; false, with a line of the log, if it is to be closed.
    pub(super) fn admit(&mut self, fd: RawFd, listener: usize) -> bool {
        if self.shared.admit() {
            return true;
        }
        if self.shared.is_full_of_handshakes() && self.end_oldest_handshake(Native::now()) {
            self.shared.admit_instead();
            return true;
        }
        if let Some(catalog) = self.core.exports.catalog(listener) {
            self.core.secure.crowded(&catalog.address, fd, self.shared.connections.max);
        }
        false
    }

    /// Closes the connection that has negotiated longest, if that is longer than [`GRACE_NS`];
    /// whether there was one.
    #[cold]
    fn end_oldest_handshake(&mut self, now_ns: u64) -> bool {
        let timeout_ns = self.shared.handshake_timeout_ns;
        let had_its_time_ns = now_ns.saturating_add(timeout_ns).saturating_sub(GRACE_NS);
        while let Some((deadline_ns, index, serial)) = self.handshakes.front().copied() {
            if deadline_ns > had_its_time_ns {
                return false;
            }
            self.handshakes.pop_front();
            let conn = self.conns[index].as_mut().filter(|conn| conn.serial == serial);
            let Some(conn) = conn.filter(|conn| conn.phase == Phase::Handshake) else { continue };
            self.core.counts.handshake_timeouts += 1;
            let why = "its handshake is not over, and its place is needed for a new client";
            let listener = conn.negotiation.as_ref().map(|negotiation| negotiation.listener);
            let catalog = listener.and_then(|listener| self.core.exports.catalog(listener));
            if let Some(catalog) = catalog.filter(|_| self.core.secure.shows()) {
                client_log::refused(self.number, conn, &catalog.address, why);
            } else {
                client_log::ended(self.number, conn, why);
            }
            conn.kill(&mut self.core.submitter.tickets, &mut self.core.pool);
            conn.touch(&mut self.touched);
            return true;
        }
        false
    }
}
