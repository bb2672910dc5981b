//! Stand-ins for configurations and sessions, where the feature `rustls` is off: types of which
//! there is no value, so that no method of them ever runs.
//!
//! Each has the methods that servers and drives call, as `config.rs` and `session.rs` have them.

use std::convert::Infallible;

use crate::error::{Error, ErrorKind};
use crate::files::{CertificateLifetime, ClientFiles, Identity, Refreshed, ServerFiles};
use crate::lifetime::Lifetime;
use crate::names::PeerNames;

fn refused<T>() -> Result<T, Error> {
    Err(Error::new(ErrorKind::Internal, crate::REFUSAL.unwrap_or_default()))
}

impl Identity {
    /// No names: certificates cannot be read.
    #[must_use]
    pub fn names(&self) -> Option<PeerNames> {
        None
    }
}

/// The configuration of a server.
#[derive(Debug)]
pub struct ServerConfig(Infallible);

impl ServerConfig {
    /// Reads no file.
    ///
    /// # Errors
    ///
    /// Always `Internal`: this program has no TLS.
    pub fn load(_files: ServerFiles) -> Result<ServerConfig, Error> {
        refused()
    }

    /// Whether it was read from files.
    #[must_use]
    pub fn is_from_files(&self) -> bool {
        match self.0 {}
    }

    /// Reads the files again if they changed.
    ///
    /// # Errors
    ///
    /// None.
    pub fn refresh(&self) -> Result<Refreshed, Error> {
        match self.0 {}
    }

    /// When the certificate runs out.
    #[must_use]
    pub fn lifetime(&self) -> Option<Lifetime> {
        match self.0 {}
    }

    /// When each certificate runs out.
    #[must_use]
    pub fn lifetimes(&self) -> Vec<CertificateLifetime> {
        match self.0 {}
    }
}

/// The configuration of a client.
#[derive(Debug, Clone)]
pub struct ClientConfig(Infallible);

impl ClientConfig {
    /// Reads no file.
    ///
    /// # Errors
    ///
    /// Always `Internal`: this program has no TLS.
    pub fn load(_files: &ClientFiles) -> Result<ClientConfig, Error> {
        refused()
    }
}

/// A TLS session.
#[derive(Debug)]
pub struct NoSession(Infallible);

impl NoSession {
    /// A server's session.
    ///
    /// # Errors
    ///
    /// None: there is no configuration.
    pub fn server(config: &ServerConfig) -> Result<NoSession, Error> {
        match config.0 {}
    }

    /// A client's session.
    ///
    /// # Errors
    ///
    /// None: there is no configuration.
    pub fn client(config: &ClientConfig, _host: &str) -> Result<NoSession, Error> {
        match config.0 {}
    }

    /// Bytes that the next ciphertext is received to.
    pub fn room(&mut self) -> &mut [u8] {
        match self.0 {}
    }

    /// So many bytes were received.
    pub fn received(&mut self, _bytes: usize) {
        match self.0 {}
    }

    /// Hands out plaintext.
    ///
    /// # Errors
    ///
    /// None: there is no session.
    pub fn read(&mut self, _into: &mut [u8]) -> Result<usize, Error> {
        match self.0 {}
    }

    /// Hands out the plaintext of one record.
    ///
    /// # Errors
    ///
    /// None: there is no session.
    pub fn read_record(&mut self, _into: &mut [u8]) -> Result<usize, Error> {
        match self.0 {}
    }

    /// Takes plaintext to be sent.
    ///
    /// # Errors
    ///
    /// None: there is no session.
    pub fn write(&mut self, _plain: &[u8]) -> Result<usize, Error> {
        match self.0 {}
    }

    /// Puts plaintext that was taken into a record.
    ///
    /// # Errors
    ///
    /// None: there is no session.
    pub fn finish(&mut self) -> Result<(), Error> {
        match self.0 {}
    }

    /// Ciphertext to be sent.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        match self.0 {}
    }

    /// So many bytes of the output were sent.
    pub fn sent(&mut self, _bytes: usize) {
        match self.0 {}
    }

    /// Tells the peer that nothing more is sent.
    pub fn close(&mut self) {
        match self.0 {}
    }

    /// Whether the handshake is over.
    #[must_use]
    pub fn is_established(&self) -> bool {
        match self.0 {}
    }

    /// Whether the peer said that it sends nothing more.
    #[must_use]
    pub fn peer_closed(&self) -> bool {
        match self.0 {}
    }

    /// Whether plaintext waits that no caller had room for.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        match self.0 {}
    }

    /// When the peer's certificate runs out.
    #[must_use]
    pub fn peer_lifetime(&self) -> Option<&Lifetime> {
        match self.0 {}
    }

    /// The names of the peer's certificate.
    #[must_use]
    pub fn peer(&self) -> Option<&PeerNames> {
        match self.0 {}
    }

    /// Version and cipher of the session.
    #[must_use]
    pub fn describe(&self) -> String {
        match self.0 {}
    }
}
