//! A connection's sends and receives through TLS.
//!
//! Owns nothing; what it moves is the session's, the negotiation's and the batches of replies.
//! Called by the connection in place of its own once TLS has begun; calls the session and the ring.
//!
//! Invariants: replies are gathered as without TLS, sealed into the session's output in as few
//! records as they fit in, and sent by one operation; nothing is sealed while a send is under way
//! that would have to move what that sends.

use super::{Connection, Phase, Pool, Ring};
use crate::nbd::ring::{piece_bytes, send_now};
use crate::nbd::submit::ticket::Tickets;

impl Connection {
    /// Seals the negotiation's answers and sends, or receives.
    pub(super) fn pump_secure_negotiation(&mut self, ring: &Ring) {
        let (Some(tls), Some(negotiation)) = (&mut self.tls, &mut self.negotiation) else { return };
        if self.out.busy {
            return;
        }
        if !negotiation.out.is_empty() && tls.session.is_established() {
            // A session that failed says so when it is read; it takes nothing here.
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

    /// Starts a receive of ciphertext, unless there is some to decrypt first.
    pub(super) fn receive_secure(&mut self, ring: &Ring) {
        let Some(tls) = &mut self.tls else { return };
        if tls.has_more() {
            self.turn.has_more = true;
            return;
        }
        self.input.busy = true;
        ring.receive(self.index, self.fd, tls.session.room());
    }

    /// Seals replies as far as there is room, and sends what is sealed.
    pub(super) fn pump_secure_send(&mut self, ring: &Ring, pool: &mut Pool) {
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

    /// Seals replies as far as there is room. They count as sent, since they are copies.
    fn seal(&mut self, pool: &mut Pool) {
        let Some(tls) = &mut self.tls else { return };
        let mut took_any = false;
        loop {
            let Some(piece) = self.out.next_piece() else {
                if !self.out.has_rest() {
                    break;
                }
                // Replies that are no bytes at all.
                let freed = self.out.took(0, pool);
                self.in_flight -= freed.replies;
                continue;
            };
            let len = piece.iov_len;
            let taken = match tls.session.write(piece_bytes(&piece)) {
                Ok(taken) => taken,
                // The session failed; whoever reads it ends the connection.
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

    /// Whether the client was told that nothing more comes, or need not be told.
    pub(super) fn has_said_goodbye(&mut self, ring: &Ring) -> bool {
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

    /// Ends a connection whose TLS failed; its client is told by an alert if that goes at once.
    #[cold]
    pub(crate) fn kill_secure(&mut self, tickets: &mut Tickets, pool: &mut Pool) {
        if self.phase != Phase::Dead
            && !self.out.busy
            && let Some(tls) = &self.tls
        {
            send_now(self.fd, tls.session.output());
        }
        self.kill(tickets, pool);
    }
}
