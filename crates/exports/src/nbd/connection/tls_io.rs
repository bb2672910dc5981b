//! Sends and receives of a connection with TLS.
//!
//! Invariants: gathered replies are encrypted into as few TLS records as possible, and one
//! operation sends these records. Replies are encrypted only while no send is outstanding.

use super::{BufferPool, Connection, ConnectionPhase, SocketRing};
use crate::nbd::ring::{piece_bytes, send_now};
use crate::nbd::submit::ticket::Tickets;

impl Connection {
    pub(super) fn pump_secure_negotiation(&mut self, ring: &SocketRing) {
        let (Some(tls), Some(negotiation)) = (&mut self.tls, &mut self.negotiation) else { return };
        if self.out.busy {
            return;
        }
        if !negotiation.out.is_empty() && tls.session.is_established() {
            // A failed TLS session accepts no bytes. The connection's next read reports the
            // failure.
            negotiation.sent +=
                tls.session.write(&negotiation.out[negotiation.sent..]).unwrap_or(0);
            if negotiation.sent == negotiation.out.len() {
                negotiation.out.clear();
                negotiation.sent = 0;
                let _ = tls.session.finish();
            }
        }
        if !tls.session.output().is_empty() {
            self.out.busy = true;
            ring.send(self.index, self.fd, tls.session.output());
        } else if negotiation.out.is_empty()
            && !self.input.busy
            && !self.turn.has_more
            && !negotiation.waits()
        {
            self.receive_secure(ring);
        }
    }

    pub(super) fn receive_secure(&mut self, ring: &SocketRing) {
        let Some(tls) = &mut self.tls else { return };
        if tls.has_more() {
            self.turn.has_more = true;
            return;
        }
        self.input.busy = true;
        ring.receive(self.index, self.fd, tls.session.room());
    }

    pub(super) fn pump_secure_send(&mut self, ring: &SocketRing, pool: &mut BufferPool) {
        if self.out.busy {
            return;
        }
        self.seal(pool);
        let Some(tls) = &self.tls else { return };
        if !tls.session.output().is_empty() {
            self.out.busy = true;
            self.history.progress.note();
            ring.send(self.index, self.fd, tls.session.output());
        }
    }

    /// Encrypts replies into the session's output while the output has free space. Encrypted
    /// replies count as sent, because their buffers are no longer needed.
    fn seal(&mut self, pool: &mut BufferPool) {
        let Some(tls) = &mut self.tls else { return };
        let mut took_any = false;
        loop {
            let Some(piece) = self.out.next_piece() else {
                if !self.out.has_rest() {
                    break;
                }
                // A reply without bytes needs no send, so it counts as sent now.
                let freed = self.out.took(0, pool);
                self.in_flight -= freed.replies;
                continue;
            };
            let len = piece.iov_len;
            let taken = match tls.session.write(piece_bytes(&piece)) {
                Ok(taken) => taken,
                // The TLS session has failed. The connection's next read reports the failure.
                Err(_) => break,
            };
            took_any |= taken > 0;
            let freed = self.out.took(taken, pool);
            self.in_flight -= freed.replies;
            self.held_bytes -= freed.bytes;
            if taken < len {
                break;
            }
        }
        if took_any {
            let _ = tls.session.finish();
        }
    }

    pub(super) fn has_said_goodbye(&mut self, ring: &SocketRing) -> bool {
        let Some(tls) = &mut self.tls else { return true };
        if self.out.busy {
            return false;
        }
        tls.session.close();
        if tls.session.output().is_empty() {
            return true;
        }
        self.out.busy = true;
        ring.send(self.index, self.fd, tls.session.output());
        false
    }

    /// Ends a connection whose TLS failed. Sends an alert if that is possible without waiting.
    #[cold]
    pub(crate) fn kill_secure(&mut self, tickets: &mut Tickets, pool: &mut BufferPool) {
        if self.phase != ConnectionPhase::Dead
            && !self.out.busy
            && let Some(tls) = &self.tls
        {
            send_now(self.fd, tls.session.output());
        }
        self.kill(tickets, pool);
    }
}
