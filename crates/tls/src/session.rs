//! One TLS session of a server or a client, with its received ciphertext and its ciphertext to
//! send.
//!
//! A [`Session`] owns both buffers and the state of the session. Its caller transfers the bytes of
//! the connection. The session uses rustls until the handshake is over, and records.rs afterwards
//! for TLS 1.3.
//!
//! Invariants: the output buffer never moves, so bytes of it may be in a send operation while more
//! are appended. Each call passes all ciphertext that rustls has not consumed to rustls again (see
//! engine.rs). Messages of rustls itself (handshake, alerts, new keys) keep their order with
//! records of plaintext, and are limited by [`CONTROL_BYTES_MAX`].

mod buffers;
mod engine;
mod records;

use rustls::pki_types::ServerName;

use crate::certificate::lifetime_of;
use crate::config::{ClientConfig, ServerConfig};
use crate::error::{Error, ErrorKind};
use crate::lifetime::Lifetime;
use crate::names::PeerNames;

use self::buffers::{IncomingBuffer, OutgoingBuffer};
use self::engine::{Engine, TurnOutcome, TurnResult, WriteAction};

pub use self::buffers::{INPUT_BYTES, OUTPUT_BYTES};

pub(crate) const RECORD_BYTES: usize = 16 * 1024;
/// Maximum total length of rustls's own messages that wait for space in the output, in bytes.
pub(crate) const CONTROL_BYTES_MAX: usize = 128 * 1024;

/// A TLS session of a server or a client.
pub struct Session {
    engine: Engine,
    incoming: IncomingBuffer,
    outgoing: OutgoingBuffer,
    /// Decrypted bytes that did not fit into the caller's memory, from `plain_start` on.
    plain: Vec<u8>,
    plain_start: usize,
    /// Plaintext of the next record. The record is encrypted when full, or when `finish` is called.
    open: Vec<u8>,
    progress: Progress,
    peer: Option<PeerNames>,
    peer_lifetime: Option<Lifetime>,
    /// First bytes that the peer sent. If they are not TLS, the error message shows them.
    first: Vec<u8>,
}

#[derive(Debug, Clone, Default)]
struct Progress {
    established: bool,
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
    /// Starts a server's session.
    ///
    /// # Errors
    /// `Internal` if rustls refuses the configuration.
    pub fn server(config: &ServerConfig) -> Result<Session, Error> {
        Engine::server(config.current()).map(Session::new)
    }

    /// Starts a client's session. Its first bytes must be sent at once. The server's certificate
    /// must be valid for `host`, a host name or an IP address.
    ///
    /// # Errors
    /// `Certificate` if `host` is neither a host name nor an IP address. `Internal` if rustls
    /// refuses the configuration.
    pub fn client(config: &ClientConfig, host: &str) -> Result<Session, Error> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            let text = format!("'{host}' is neither a host name nor an IP address");
            Error::new(ErrorKind::Certificate, text)
        })?;
        let mut session = Session::new(Engine::client(config, name)?);
        session.read(&mut [])?;
        Ok(session)
    }

    fn new(engine: Engine) -> Session {
        Session {
            engine,
            incoming: IncomingBuffer::new(),
            outgoing: OutgoingBuffer::new(),
            plain: Vec::new(),
            plain_start: 0,
            open: Vec::with_capacity(RECORD_BYTES),
            progress: Progress::default(),
            peer: None,
            peer_lifetime: None,
            first: Vec::new(),
        }
    }

    /// Returns the memory into which the next ciphertext must be received. The memory stays in
    /// place until [`Session::received`] is called, and is empty only if [`Session::read`] must be
    /// called first.
    pub fn room(&mut self) -> &mut [u8] {
        if self.is_waiting() { &mut [] } else { self.incoming.room() }
    }

    /// Records that `bytes` of ciphertext were received into the memory returned by
    /// [`Session::room`].
    ///
    /// # Panics
    /// If `bytes` is more than the length of that memory.
    pub fn received(&mut self, bytes: usize) {
        let came = self.incoming.received(bytes);
        if self.first.len() < 8 {
            self.first.extend_from_slice(&came[..came.len().min(8)]);
        }
    }

    /// Processes received ciphertext and writes plaintext to `into`. Returns the number of bytes
    /// written. New output may exist afterwards, even after an error.
    ///
    /// If `into` is not full afterwards, either more ciphertext is needed, or the peer has ended
    /// its stream ([`Session::peer_closed`]).
    ///
    /// # Errors
    /// The error that ended the session, on every call. Plaintext before the error was already
    /// returned.
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

    /// Reads like [`Session::read`], but returns at most one record once the handshake is over, so
    /// that the plaintext after it can be read into other memory. Returns 0 if more ciphertext is
    /// needed, or if `into` is empty.
    ///
    /// # Errors
    /// The error that ended the session, on every call.
    pub fn read_record(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        let mut filled = self.take_plain(into);
        // Continues an unfinished handshake even if `into` is empty, because reading drives the
        // handshake.
        while !self.progress.established || (filled == 0 && !into.is_empty()) {
            match self.turn(&mut into[filled..], WriteAction::Nothing)?.0 {
                TurnOutcome::Plain(bytes) => filled += bytes,
                TurnOutcome::GoOn => {}
                TurnOutcome::Blocked => break,
            }
            filled += self.take_plain(&mut into[filled..]);
        }
        self.outgoing.settle();
        Ok(filled)
    }

    /// Takes plaintext to send. Returns the number of bytes taken: none before the handshake is
    /// over, otherwise all unless the output is full. The bytes are encrypted as a record when the
    /// record is full, or when [`Session::finish`] is called.
    ///
    /// # Errors
    /// The error that ended the session.
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

    /// Encrypts the plaintext taken so far as a record, even if the record is not full.
    ///
    /// # Errors
    /// The error that ended the session.
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

    /// Returns true if the handshake is over and the output has space for a record.
    #[must_use]
    pub fn can_write(&self) -> bool {
        self.progress.established && !self.progress.closed && self.outgoing.has_room()
    }

    /// Returns the ciphertext to send. It stays in place until [`Session::sent`] is called.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        self.outgoing.bytes()
    }

    /// Records that `bytes` of the output were sent.
    ///
    /// # Panics
    /// If `bytes` is more than the output.
    pub fn sent(&mut self, bytes: usize) {
        self.outgoing.sent(bytes);
        self.outgoing.settle();
    }

    /// Adds a close notification, the last message of the output. Nothing can be written
    /// afterwards.
    pub fn close(&mut self) {
        if self.progress.established && !self.progress.closed && self.progress.failed.is_none() {
            while let Ok((step, None)) = self.turn(&mut [], WriteAction::Close)
                && step != TurnOutcome::Blocked
            {}
            self.progress.closed = true;
            self.outgoing.settle();
        }
    }

    /// Returns true if the handshake is over, and the peer's certificate was accepted if one is
    /// required.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.progress.established
    }

    /// Returns true if the peer sent a close notification. A connection that ends without one was
    /// interrupted.
    #[must_use]
    pub fn peer_closed(&self) -> bool {
        self.progress.peer_closed
    }

    /// Returns true if decrypted plaintext is left that did not fit into the caller's memory. No
    /// ciphertext can be received until that plaintext is read.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.plain_start < self.plain.len()
    }

    /// Returns the dates of the peer's certificate; `None` before the handshake is over, or if the
    /// peer sent none.
    #[must_use]
    pub fn peer_lifetime(&self) -> Option<&Lifetime> {
        self.peer_lifetime.as_ref()
    }

    /// Returns the names of the peer's certificate; `None` before the handshake is over, or if the
    /// peer sent none.
    #[must_use]
    pub fn peer(&self) -> Option<&PeerNames> {
        self.peer.as_ref()
    }

    /// Returns version and cipher of the session, for logs.
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

    /// Runs one step of the TLS engine (engine.rs). `want` asks the engine to encrypt a record or
    /// to close the session. Returns the outcome of the step, and the number of bytes that the
    /// engine wrote for `want`; `None` if the engine could not write yet.
    fn turn(
        &mut self,
        into: &mut [u8],
        want: WriteAction<'_>,
    ) -> Result<(TurnOutcome, Option<usize>), Error> {
        if let Some(error) = &self.progress.failed {
            return Err(error.clone());
        }
        let turn = self.engine.turn(&mut self.incoming, (into, &mut self.plain), want);
        self.absorb(turn)
    }

    fn absorb(&mut self, turn: TurnResult) -> Result<(TurnOutcome, Option<usize>), Error> {
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
            let text = "the peer sends TLS messages that need an answer but reads no answers";
            return Err(self.fail(Error::new(ErrorKind::Protocol, text)));
        }
        if step == TurnOutcome::Blocked && self.incoming.is_full() {
            let text = "the peer sent a TLS message longer than 64 KiB";
            return Err(self.fail(Error::new(ErrorKind::Protocol, text)));
        }
        Ok((step, turn.written))
    }

    fn fail(&mut self, error: Error) -> Error {
        self.outgoing.add_control(self.engine.last_words(&mut self.incoming));
        self.outgoing.settle();
        self.progress.failed = Some(error.clone());
        error
    }

    /// Encrypts a record. Returns false if the output has no space for the record.
    fn seal(&mut self, plain: &[u8]) -> Result<bool, Error> {
        loop {
            self.outgoing.settle();
            if !self.outgoing.has_room() {
                return Ok(false);
            }
            let want = WriteAction::Record(plain, self.outgoing.record_room());
            let turn = self.engine.turn(&mut self.incoming, (&mut [], &mut self.plain), want);
            match self.absorb(turn)? {
                (_, Some(bytes)) => {
                    self.outgoing.add_record(bytes);
                    return Ok(true);
                }
                (TurnOutcome::Blocked, None) => return Ok(false),
                (TurnOutcome::Plain(_) | TurnOutcome::GoOn, None) => {}
            }
        }
    }
}
