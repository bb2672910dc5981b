//! Admission of clients when the limit of open connections is reached.
//!
//! At the limit a new client is refused, unless more than half of the connections are still
//! negotiating. Then the new client replaces this thread's oldest connection that has negotiated
//! for longer than [`GRACE_NS`]. So clients that connect and then send nothing, for example
//! attackers, do not keep other clients out.
//!
//! Invariant: for each connection admitted above the limit, this thread closes another.

use std::os::fd::RawFd;

use millrace_machine::{Machine, Native};

use super::Worker;
use crate::nbd::connection::client_log;

/// Minimum time, in nanoseconds, for which a connection may negotiate before a new client can
/// replace it. The time is several times longer than a negotiation takes on a slow network.
const GRACE_NS: u64 = 1_000_000_000;

impl Worker {
    /// Counts a new connection. Returns false, after logging the reason, if it must be closed.
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

    /// Closes the connection that has negotiated longest, if it has negotiated for more than
    /// [`GRACE_NS`]. Returns true if a connection was closed.
    #[cold]
    fn end_oldest_handshake(&mut self, now_ns: u64) -> bool {
        let timeout_ns = self.shared.handshake_timeout_ns;
        let had_its_time_ns = now_ns.saturating_add(timeout_ns).saturating_sub(GRACE_NS);
        let oldest = self.oldest_handshake().filter(|(at_ns, _)| *at_ns <= had_its_time_ns);
        let Some(conn) = oldest.and_then(|(_, index)| self.conns[index].as_mut()) else {
            return false;
        };
        self.handshakes.pop_front();
        self.core.counts.handshake_timeouts += 1;
        let why =
            "the client's handshake is incomplete, and a new client needs the connection slot";
        let listener = conn.negotiation.as_ref().map(|negotiation| negotiation.listener);
        let catalog = listener.and_then(|listener| self.core.exports.catalog(listener));
        if let Some(catalog) = catalog.filter(|_| self.core.secure.shows()) {
            client_log::refused(conn, &catalog.address, why);
        } else {
            client_log::ended(conn, why);
        }
        self.core.kill(conn);
        true
    }
}
