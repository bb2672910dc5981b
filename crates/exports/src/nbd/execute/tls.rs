//! Receive path through TLS: runs handshakes, and decrypts bytes to where they are needed.
//!
//! Invariants: payload of a write is decrypted into the drive's buffer, everything else into the
//! receive buffer. One iteration of a thread's event loop does at most [`HANDSHAKES_PER_TURN`]
//! handshake steps, so that a flood of handshakes does not stop active clients: a step may take as
//! long as a hundred requests.

use std::fmt::Display;
use std::os::fd::RawFd;
use std::time::{Duration, Instant, SystemTime};

use millrace_tls::CertificateExpiry;

use super::WorkerContext;
use crate::nbd::connection::client_log;
use crate::nbd::connection::{Connection, ConnectionPhase};
use crate::nbd::ring::peer_of;
use crate::nbd::tls::{ListenTls, TlsSession};

/// Maximum number of handshake steps in one iteration of a thread's event loop. A signature takes
/// 50 to 1000 us.
const HANDSHAKES_PER_TURN: u32 = 2;
/// Number of refused clients that are logged as warnings within [`SHOWN_WITHIN`]. Further refusals
/// are logged only with `-v`.
const SHOWN_MAX: u32 = 10;
const SHOWN_WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct TlsTurnLimits {
    handshakes: u32,
    refusals: FailureLogLimit,
    /// Limits warnings about failed calls of `accept`, for example if no file descriptor is free.
    waits: FailureLogLimit,
}

#[derive(Debug, Default)]
struct FailureLogLimit {
    shown: u32,
    since: Option<Instant>,
}

impl FailureLogLimit {
    /// Counts an event. Returns true if the event may be logged: at most `max` are logged within
    /// [`SHOWN_WITHIN`].
    fn may_show(&mut self, now: Instant, max: u32) -> bool {
        if self.since.is_none_or(|since| now.duration_since(since) > SHOWN_WITHIN) {
            (self.since, self.shown) = (Some(now), 0);
        }
        self.shown += 1;
        self.shown <= max
    }
}

impl TlsTurnLimits {
    #[inline]
    pub(crate) fn start_turn(&mut self) {
        self.handshakes = 0;
    }

    fn may_shake(&mut self) -> bool {
        self.handshakes += 1;
        self.handshakes <= HANDSHAKES_PER_TURN
    }

    /// Counts a refused client. Returns true if its refusal may be logged as a warning.
    #[cold]
    pub(crate) fn shows(&mut self) -> bool {
        self.refusals.may_show(Instant::now(), SHOWN_MAX)
    }

    #[cold]
    pub(crate) fn stranger(&mut self, address: &str, who: &str) {
        if self.shows() {
            tracing::warn!(address, "{address}: refused a client that may not connect: {who}");
        }
    }

    #[cold]
    pub(crate) fn not_accepted(&mut self, address: &str, errno: i32) {
        // The server retries a failed `accept` ten times a second, so the warnings are limited.
        if self.waits.may_show(Instant::now(), 1) {
            let error = std::io::Error::from_raw_os_error(errno);
            let remedy = match errno {
                libc::EMFILE => "; raise the limit on open files (`ulimit -n`, LimitNOFILE=)",
                libc::ENFILE => "; raise fs.file-max",
                _ => "",
            };
            tracing::warn!(
                address,
                "{address}: clients must wait, because accept failed: {error}{remedy}"
            );
        }
    }

    #[cold]
    pub(crate) fn crowded(&mut self, address: &str, fd: RawFd, connections_max: u32) {
        if self.shows() {
            let from = peer_of(fd).map_or_else(String::new, |peer| format!(" from {peer}"));
            tracing::warn!(
                address,
                connections_max,
                "{address}: refused a client{from}: all {connections_max} connections are in \
                 use; raise connections-max to allow more"
            );
        }
    }

    #[cold]
    pub(crate) fn not_allowed(&mut self, conn: &Connection, why: &str) {
        if self.shows() {
            client_log::not_allowed(conn, why);
        }
    }
}

impl WorkerContext {
    #[cold]
    pub(super) fn start_tls(&mut self, conn: &mut Connection) {
        let Some(negotiation) = &conn.negotiation else { return };
        let catalog = self.exports.catalog(negotiation.listener);
        let Some(tls) = catalog.and_then(|catalog| catalog.tls.as_ref()) else { return };
        match tls.session() {
            Ok(session) => conn.tls = Some(Box::new(TlsSession::new(session))),
            Err(error) => self.refuse_secure(conn, &error),
        }
    }

    /// Decrypts and processes received bytes until none are left, or until the connection can take
    /// no further requests.
    pub(super) fn take_secure_input(&mut self, conn: &mut Connection) {
        if conn.phase == ConnectionPhase::Handshake {
            // `has_more` means that received bytes are left for the next loop iteration. The flag
            // is cleared here during the negotiation, and by receive.rs in a session.
            conn.turn.has_more = false;
        }
        while self.decrypt(conn) {
            self.take_plain_input(conn);
        }
        // TLS's close notification arrives after all data, so it is handled only after all data
        // were read.
        if conn.tls.as_ref().is_some_and(|tls| tls.is_over()) && !conn.input.busy {
            self.drain(conn);
        }
    }

    /// Decrypts some received bytes. Returns true if there is plaintext.
    fn decrypt(&mut self, conn: &mut Connection) -> bool {
        let takes =
            matches!(conn.phase, ConnectionPhase::Handshake | ConnectionPhase::Transmission);
        let Some(tls) = &mut conn.tls else { return false };
        if !takes || conn.input.busy || !tls.has_more() {
            return false;
        }
        if !tls.told && !self.secure.may_shake() {
            conn.turn.has_more = true;
            return false;
        }
        let payload = conn.incoming.as_mut().and_then(|incoming| {
            let room = incoming.room(&mut self.submitter.tickets)?;
            Some((room, &mut incoming.filled))
        });
        let read = if let Some((room, filled)) = payload {
            tls.read(room).inspect(|bytes| *filled += *bytes as u64)
        } else {
            let room = conn.input.room();
            if room.is_empty() {
                return false;
            }
            tls.read_record(room).inspect(|bytes| conn.input.received(*bytes))
        };
        match read {
            Err(error) => {
                self.refuse_secure(conn, &error);
                false
            }
            Ok(bytes) => {
                self.is_secured(conn);
                bytes > 0
            }
        }
    }

    /// Once per connection, logs that TLS is established and informs the NBD negotiation
    /// (`Handshake`).
    fn is_secured(&mut self, conn: &mut Connection) {
        let (Some(tls), Some(negotiation)) = (&mut conn.tls, &mut conn.negotiation) else { return };
        if tls.told || !tls.session.is_established() {
            return;
        }
        tls.told = true;
        negotiation.handshake.secured();
        let who = tls.session.peer().map(ToString::to_string);
        let how = tls.session.describe();
        client_log::secured(conn, &how, who.as_deref());
    }

    /// Logs that a client left during the handshake. GnuTLS clients do so if they reject the
    /// server.
    #[cold]
    pub(super) fn note_hang_up(&mut self, conn: &Connection) {
        let (Some(tls), Some(negotiation)) = (&conn.tls, &conn.negotiation) else { return };
        if !tls.told
            && let Some(catalog) = self.exports.catalog(negotiation.listener)
            && self.secure.shows()
        {
            let why = "the client hung up during the TLS handshake; it may reject the server's \
                       certificate";
            let why = blamed(catalog.tls.as_ref(), &why);
            client_log::refused(conn, &catalog.address, why);
        }
    }

    #[cold]
    pub(super) fn refuse_secure(&mut self, conn: &mut Connection, error: &dyn Display) {
        self.counts.protocol_errors += 1;
        let listener = conn.negotiation.as_ref().map(|negotiation| negotiation.listener);
        let catalog = listener.and_then(|listener| self.exports.catalog(listener));
        match catalog {
            Some(catalog) if self.secure.shows() => {
                let why = blamed(catalog.tls.as_ref(), error);
                client_log::refused(conn, &catalog.address, why);
            }
            None if self.secure.shows() => {
                client_log::broken(conn, error);
            }
            _ => client_log::ended(conn, error),
        }
        conn.kill_secure(&mut self.submitter.tickets, &mut self.pool);
    }
}

fn blamed(tls: Option<&ListenTls>, error: &dyn Display) -> String {
    let expiry = tls.and_then(|tls| tls.config.lifetime()).map(|one| one.expiry(SystemTime::now()));
    match expiry {
        Some(expiry @ CertificateExpiry::Over { .. }) => {
            format!("the server's own certificate {expiry}; replace it ({error})")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use millrace_authority::{Authority, Validity};
    use millrace_nbd::TlsMode;
    use millrace_tls::{Identity, ServerConfig, ServerFiles};

    use super::*;

    #[test]
    fn failed_handshake_is_put_down_to_an_expired_certificate() {
        let authority = Authority::new("CA");
        let issued = authority.issue("server", &["localhost"], Validity::Seconds(2));
        let identity = Identity { certificate: issued.certificate, key: issued.key };
        let config = ServerConfig::load(ServerFiles { identity, client_ca: None }).unwrap();
        let tls = ListenTls { config: config.into(), mode: TlsMode::Required };
        assert_eq!(blamed(Some(&tls), &"why"), "why");
        std::thread::sleep(std::time::Duration::from_secs(3));
        let why = blamed(Some(&tls), &"why");
        assert!(why.starts_with("the server's own certificate expired at "), "{why}");
        assert!(why.ends_with(" (why)"), "{why}");
        assert_eq!(blamed(None, &"why"), "why");
    }

    #[test]
    fn turn_does_few_steps_of_handshakes_and_log_shows_few_refusals() {
        let mut turn = TlsTurnLimits::default();
        assert_eq!([(); 4].map(|()| turn.may_shake()), [true, true, false, false]);
        turn.start_turn();
        assert!(turn.may_shake());
        let start = Instant::now();
        for max in [SHOWN_MAX, 1] {
            let mut limit = FailureLogLimit::default();
            assert_eq!((0..100).filter(|_| limit.may_show(start, max)).count(), max as usize);
            assert!(limit.may_show(start + SHOWN_WITHIN * 2, max));
        }
    }
}
