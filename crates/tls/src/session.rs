//! One TLS session of either side, with the ciphertext that came in and that is to go out.
//!
//! Owns both buffers and the state of the session. Called by a connection, which moves the bytes;
//! calls rustls until the handshake is over, and for TLS 1.3 records.rs from there on.
//!
//! Invariants: the buffer of output never moves, so bytes of it may be on their way to the system
//! while more are added behind; ciphertext is shown to rustls until it has used it up, at the same
//! place relative to what came before; what rustls itself has to say (handshake, alerts, new keys)
//! keeps its order with records of plaintext, and is bounded by [`CONTROL_BYTES_MAX`].

mod buffers;
mod engine;
mod records;

use rustls::pki_types::ServerName;

use crate::certificate::lifetime_of;
use crate::config::{ClientConfig, ServerConfig};
use crate::error::{Error, ErrorKind};
use crate::lifetime::Lifetime;
use crate::names::PeerNames;

use self::buffers::{Incoming, Outgoing};
use self::engine::{Engine, Step, Turn, Want};

pub use self::buffers::{INPUT_BYTES, OUTPUT_BYTES};

/// Plaintext of a full record.
pub(crate) const RECORD_BYTES: usize = 16 * 1024;
/// What rustls may have to say while the caller sends nothing, in bytes.
pub(crate) const CONTROL_BYTES_MAX: usize = 128 * 1024;

/// A TLS session.
pub struct Session {
    engine: Engine,
    incoming: Incoming,
    outgoing: Outgoing,
    /// Decrypted bytes that no caller had room for, from `plain_start` on.
    plain: Vec<u8>,
    plain_start: usize,
    /// Plaintext of the record that is not sealed yet.
    open: Vec<u8>,
    progress: Progress,
    peer: Option<PeerNames>,
    peer_lifetime: Option<Lifetime>,
    /// The first bytes that the peer sent, for the message when they are no TLS.
    first: Vec<u8>,
}

/// How far a session is.
#[derive(Debug, Clone, Default)]
struct Progress {
    established: bool,
    /// The peer said that it sends nothing more.
    peer_closed: bool,
    closed: bool,
    failed: Option<Error>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("progress", &self.progress).finish_non_exhaustive()
    }
}

impl Session {
    /// A server's session before its first byte.
    ///
    /// # Errors
    ///
    /// `Internal` when rustls refuses the configuration.
    pub fn server(config: &ServerConfig) -> Result<Session, Error> {
        Engine::server(config.current()).map(Session::new)
    }

    /// A client's session, whose first bytes are to be sent at once. `host` is the name or the IP
    /// address that the server's certificate must have.
    ///
    /// # Errors
    ///
    /// `Certificate` when `host` is no name that a certificate may have.
    pub fn client(config: &ClientConfig, host: &str) -> Result<Session, Error> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            let text = format!("'{host}' is neither the name nor the IP address of a host");
            Error::new(ErrorKind::Certificate, text)
        })?;
        let mut session = Session::new(Engine::client(config, name)?);
        session.read(&mut [])?;
        Ok(session)
    }

    fn new(engine: Engine) -> Session {
        Session {
            engine,
            incoming: Incoming::new(),
            outgoing: Outgoing::new(),
            plain: Vec::new(),
            plain_start: 0,
            open: Vec::with_capacity(RECORD_BYTES),
            progress: Progress::default(),
            peer: None,
            peer_lifetime: None,
            first: Vec::new(),
        }
    }

    /// Where the next ciphertext is received to. Empty only when [`Session::read`] has to be called
    /// first. It keeps its place until [`Session::received`].
    pub fn room(&mut self) -> &mut [u8] {
        if self.is_waiting() { &mut [] } else { self.incoming.room() }
    }

    /// So many bytes were received into the room.
    ///
    /// # Panics
    ///
    /// When the room was not that large.
    pub fn received(&mut self, bytes: usize) {
        let came = self.incoming.received(bytes);
        if self.first.len() < 8 {
            self.first.extend_from_slice(&came[..came.len().min(8)]);
        }
    }

    /// Goes on with what was received, and hands out plaintext: how many bytes of `into` are
    /// filled. Less than its length means that more ciphertext is needed, or that the peer sends
    /// no more ([`Session::peer_closed`]). There may be new output afterwards, after an error too.
    ///
    /// # Errors
    ///
    /// What ended the session, again each time. Plaintext before it was handed out.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        let mut filled = 0;
        while filled < into.len() || !self.progress.established {
            match self.read_record(&mut into[filled..])? {
                0 => break,
                bytes => filled += bytes,
            }
        }
        Ok(filled)
    }

    /// As [`Session::read`], but hands out one record at most once the handshake is over, so that
    /// what follows it may be wanted elsewhere: 0 means that more ciphertext is needed, or that
    /// there was no room.
    ///
    /// # Errors
    ///
    /// What ended the session, again each time.
    pub fn read_record(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        let mut filled = self.take_plain(into);
        // A handshake goes on, wanted or not.
        while !self.progress.established || (filled == 0 && !into.is_empty()) {
            match self.turn(&mut into[filled..], Want::Nothing)?.0 {
                Step::Plain(bytes) => filled += bytes,
                Step::GoOn => {}
                Step::Blocked => break,
            }
            filled += self.take_plain(&mut into[filled..]);
        }
        self.outgoing.settle();
        Ok(filled)
    }

    /// Takes plaintext to be sent: how many bytes, none before the handshake is over, all of them
    /// unless the output has no room for more. They are in a record once that is full, or
    /// [`Session::finish`] is called.
    ///
    /// # Errors
    ///
    /// What ended the session.
    pub fn write(&mut self, plain: &[u8]) -> Result<usize, Error> {
        if let Some(error) = &self.progress.failed {
            return Err(error.clone());
        }
        let mut taken = 0;
        while taken < plain.len() && self.can_write() {
            let rest = &plain[taken..];
            if self.open.is_empty() && rest.len() >= RECORD_BYTES {
                if !self.seal(&rest[..RECORD_BYTES])? {
                    break;
                }
                taken += RECORD_BYTES;
                continue;
            }
            let bytes = rest.len().min(RECORD_BYTES - self.open.len());
            self.open.extend_from_slice(&rest[..bytes]);
            taken += bytes;
            if self.open.len() == RECORD_BYTES {
                self.finish()?;
            }
        }
        Ok(taken)
    }

    /// Puts plaintext that was taken into a record, even if that is short.
    ///
    /// # Errors
    ///
    /// What ended the session.
    pub fn finish(&mut self) -> Result<(), Error> {
        if self.open.is_empty() {
            return Ok(());
        }
        let open = std::mem::take(&mut self.open);
        let sealed = self.seal(&open);
        self.open = open;
        if sealed? {
            self.open.clear();
        }
        Ok(())
    }

    /// Whether the handshake is over and the output has room for a record.
    #[must_use]
    pub fn can_write(&self) -> bool {
        self.progress.established && !self.progress.closed && self.outgoing.has_room()
    }

    /// Ciphertext to be sent. Its place is kept while [`Session::sent`] is not called.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        self.outgoing.bytes()
    }

    /// So many bytes of the output were sent.
    ///
    /// # Panics
    ///
    /// When there were not that many.
    pub fn sent(&mut self, bytes: usize) {
        self.outgoing.sent(bytes);
        self.outgoing.settle();
    }

    /// Tells the peer that nothing more is sent: the last of the output. Nothing is written
    /// afterwards.
    pub fn close(&mut self) {
        if self.progress.established && !self.progress.closed && self.progress.failed.is_none() {
            while let Ok((step, None)) = self.turn(&mut [], Want::Close)
                && step != Step::Blocked
            {}
            self.progress.closed = true;
            self.outgoing.settle();
        }
    }

    /// Whether the handshake is over: the peer's certificate, if one is needed, was accepted.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.progress.established
    }

    /// Whether the peer said that it sends nothing more. A connection that ends without that was
    /// cut off.
    #[must_use]
    pub fn peer_closed(&self) -> bool {
        self.progress.peer_closed
    }

    /// Whether plaintext is decrypted that no caller had room for; then there is no room for
    /// ciphertext.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.plain_start < self.plain.len()
    }

    /// When the peer's certificate runs out; none before the handshake is over, or if it sent none.
    #[must_use]
    pub fn peer_lifetime(&self) -> Option<&Lifetime> {
        self.peer_lifetime.as_ref()
    }

    /// The names of the peer's certificate; none before the handshake is over, or if it sent none.
    #[must_use]
    pub fn peer(&self) -> Option<&PeerNames> {
        self.peer.as_ref()
    }

    /// Version and cipher of the session, for a log.
    #[must_use]
    pub fn describe(&self) -> String {
        self.engine.describe()
    }

    fn take_plain(&mut self, into: &mut [u8]) -> usize {
        let waiting = &self.plain[self.plain_start..];
        let bytes = waiting.len().min(into.len());
        into[..bytes].copy_from_slice(&waiting[..bytes]);
        self.plain_start += bytes;
        if self.plain_start == self.plain.len() {
            self.plain.clear();
            self.plain_start = 0;
        }
        bytes
    }

    /// One turn of rustls: what it came to, and what was written for `want`.
    fn turn(&mut self, into: &mut [u8], want: Want<'_>) -> Result<(Step, Option<usize>), Error> {
        if let Some(error) = &self.progress.failed {
            return Err(error.clone());
        }
        let turn = self.engine.turn(&mut self.incoming, (into, &mut self.plain), want);
        self.absorb(turn)
    }

    /// Notes what a turn means for the session.
    fn absorb(&mut self, turn: Turn) -> Result<(Step, Option<usize>), Error> {
        self.outgoing.add_control(turn.control);
        self.progress.peer_closed |= turn.peer_closed;
        let step = match turn.step {
            Ok(step) => step,
            Err(error) => return Err(self.fail(Error::of_session(&error, &self.first))),
        };
        if turn.can_write && !self.progress.established {
            self.progress.established = true;
            self.peer = self.engine.peer_certificate().and_then(PeerNames::of);
            self.peer_lifetime = lifetime_of(self.engine.peer_certificate());
            self.engine.take_over();
        }
        if self.outgoing.control_bytes() > CONTROL_BYTES_MAX {
            let text = "the peer asks for more answers of TLS than it takes";
            return Err(self.fail(Error::new(ErrorKind::Protocol, text)));
        }
        if step == Step::Blocked && self.incoming.is_full() {
            let text = "the peer sent a message of TLS that is longer than 64 KiB";
            return Err(self.fail(Error::new(ErrorKind::Protocol, text)));
        }
        Ok((step, turn.written))
    }

    /// Ends the session; what rustls tells the peer of it goes to the output.
    fn fail(&mut self, error: Error) -> Error {
        self.outgoing.add_control(self.engine.last_words(&mut self.incoming));
        self.outgoing.settle();
        self.progress.failed = Some(error.clone());
        error
    }

    /// Makes a record; false when the output has no room.
    fn seal(&mut self, plain: &[u8]) -> Result<bool, Error> {
        loop {
            self.outgoing.settle();
            if !self.outgoing.has_room() {
                return Ok(false);
            }
            let want = Want::Record(plain, self.outgoing.record_room());
            let turn = self.engine.turn(&mut self.incoming, (&mut [], &mut self.plain), want);
            match self.absorb(turn)? {
                (_, Some(bytes)) => {
                    self.outgoing.add_record(bytes);
                    return Ok(true);
                }
                (Step::Blocked, None) => return Ok(false),
                (Step::Plain(_) | Step::GoOn, None) => {}
            }
        }
    }
}
