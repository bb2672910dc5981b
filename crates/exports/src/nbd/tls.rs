//! TLS of a listener: its certificates, and the sessions of its clients.
//!
//! Invariants: no received bytes are decrypted while a receive may write to their memory. A receive
//! is started only when all earlier bytes were decrypted, so that no request stays unseen while its
//! client waits for the reply.

use std::sync::Arc;

use millrace_nbd::TlsMode;
use millrace_tls::{Error, ServerConfig, Session};

/// TLS settings of a listener.
#[derive(Debug, Clone)]
pub struct ListenTls {
    /// Certificates and key. Changed files are reloaded within a second.
    pub config: Arc<ServerConfig>,
    /// Determines whether clients may or must use TLS. `TlsMode::None` disables TLS.
    pub mode: TlsMode,
}

impl ListenTls {
    /// Starts the session of a client with the certificates loaded last. Reads no file.
    pub(crate) fn session(&self) -> Result<Session, Error> {
        Session::server(&self.config)
    }
}

#[derive(Debug)]
pub(crate) struct TlsSession {
    pub(crate) session: Session,
    drained: bool,
    pub(crate) told: bool,
}

impl TlsSession {
    pub(crate) fn new(session: Session) -> TlsSession {
        TlsSession { session, drained: true, told: false }
    }

    pub(crate) fn received(&mut self, bytes: usize) {
        self.session.received(bytes);
        self.drained = false;
    }

    /// Decrypts a single record into `into` and returns its length. The next record may be payload,
    /// which belongs in another buffer.
    pub(crate) fn read_record(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        let read = self.session.read_record(into)?;
        self.drained = read == 0;
        Ok(read)
    }

    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        let read = self.session.read(into)?;
        self.drained = read < into.len();
        Ok(read)
    }

    /// Returns true if the peer has closed its side, and all data that it sent before were read.
    pub(crate) fn is_over(&self) -> bool {
        self.session.peer_closed() && !self.has_more()
    }

    /// Returns true if received bytes were not decrypted yet, or decrypted bytes were not read yet.
    pub(crate) fn has_more(&self) -> bool {
        !self.drained || self.session.is_waiting()
    }
}
