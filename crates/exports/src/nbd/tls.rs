//! TLS of a listener: its certificates, and the sessions of its clients.
//!
//! Owns what a listener needs for TLS and what a connection keeps of its session. Called by
//! start-up, the negotiation and the connection's sends and receives; calls `millrace-tls`.
//!
//! Invariants: a session is read only while nothing of it waits in memory that a receive may be
//! writing to; a receive is started only when everything that came before it was decrypted, so that
//! no request lies here unseen while its client waits for the answer.

use std::sync::Arc;

use millrace_nbd::TlsMode;
use millrace_tls::{Error, ServerConfig, Session};

/// TLS of a listener.
#[derive(Debug, Clone)]
pub struct ListenTls {
    /// Certificates; files that change are read again within a second.
    pub config: Arc<ServerConfig>,
    /// Whether clients may or must use it; `None` is as good as no TLS.
    pub mode: TlsMode,
}

impl ListenTls {
    /// The session of a client that begins, with the certificates of this moment. Reads no file.
    pub(crate) fn session(&self) -> Result<Session, Error> {
        Session::server(&self.config)
    }
}

/// TLS of a connection.
#[derive(Debug)]
pub(crate) struct TlsSession {
    pub(crate) session: Session,
    /// All that was received is decrypted and was handed out.
    drained: bool,
    /// The negotiation knows that it is encrypted.
    pub(crate) told: bool,
}

impl TlsSession {
    pub(crate) fn new(session: Session) -> TlsSession {
        TlsSession { session, drained: true, told: false }
    }

    /// So many bytes of ciphertext came in.
    pub(crate) fn received(&mut self, bytes: usize) {
        self.session.received(bytes);
        self.drained = false;
    }

    /// Decrypts one record into this memory, so that payload behind a request is not decrypted to
    /// where requests go; how many bytes.
    pub(crate) fn read_record(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        let read = self.session.read_record(into)?;
        self.drained = read == 0;
        Ok(read)
    }

    /// Decrypts into this memory; how many bytes.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        let read = self.session.read(into)?;
        self.drained = read < into.len();
        Ok(read)
    }

    /// Whether the peer said that it sends nothing more, and all before that was handed out.
    pub(crate) fn is_over(&self) -> bool {
        self.session.peer_closed() && !self.has_more()
    }

    /// Whether ciphertext came in that is not decrypted and handed out.
    pub(crate) fn has_more(&self) -> bool {
        !self.drained || self.session.is_waiting()
    }
}
