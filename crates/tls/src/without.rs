//! Replacements of configurations and sessions without the feature `rustls`. The types have no
//! values, so none of their methods ever runs.
//!
//! The types have the methods of `config.rs` and `session.rs` that servers and drives call.

use std::convert::Infallible;

use crate::error::{Error, ErrorKind};
use crate::files::{CertificateLifetime, ClientFiles, Identity, Refreshed, ServerFiles};
use crate::lifetime::Lifetime;
use crate::names::PeerNames;

fn refused<T>() -> Result<T, Error> {
    Err(Error::new(ErrorKind::Internal, crate::REFUSAL.unwrap_or_default()))
}

impl Identity {
    /// Returns `None`, because certificates cannot be read.
    #[must_use]
    pub fn names(&self) -> Option<PeerNames> {
        None
    }
}

/// Configuration of a server, which cannot exist without the feature `rustls`.
#[derive(Debug)]
pub struct ServerConfig(Infallible);

impl ServerConfig {
    /// Fails without reading the files.
    ///
    /// # Errors
    ///
    /// Always `Internal`: this program has no TLS.
    pub fn load(_files: ServerFiles) -> Result<ServerConfig, Error> {
        refused()
    }

    /// Would tell if the configuration was read from files that may change.
    #[must_use]
    pub fn is_from_files(&self) -> bool {
        match self.0 {}
    }

    /// Would reload changed files.
    ///
    /// # Errors
    ///
    /// Never: there is no configuration.
    pub fn refresh(&self) -> Result<Refreshed, Error> {
        match self.0 {}
    }

    /// Would return the validity dates of the server's certificate.
    #[must_use]
    pub fn lifetime(&self) -> Option<Lifetime> {
        match self.0 {}
    }

    /// Would return the validity dates of all certificates.
    #[must_use]
    pub fn lifetimes(&self) -> Vec<CertificateLifetime> {
        match self.0 {}
    }
}

/// Configuration of a client, which cannot exist without the feature `rustls`.
#[derive(Debug, Clone)]
pub struct ClientConfig(Infallible);

impl ClientConfig {
    /// Fails without reading the files.
    ///
    /// # Errors
    ///
    /// Always `Internal`: this program has no TLS.
    pub fn load(_files: &ClientFiles) -> Result<ClientConfig, Error> {
        refused()
    }
}

/// A TLS session, which cannot exist without the feature `rustls`.
#[derive(Debug)]
pub struct NoSession(Infallible);

impl NoSession {
    /// Would start a server's session.
    ///
    /// # Errors
    ///
    /// Never: there is no configuration.
    pub fn server(config: &ServerConfig) -> Result<NoSession, Error> {
        match config.0 {}
    }

    /// Would start a client's session.
    ///
    /// # Errors
    ///
    /// Never: there is no configuration.
    pub fn client(config: &ClientConfig, _host: &str) -> Result<NoSession, Error> {
        match config.0 {}
    }

    /// Would return the memory into which the caller receives the next ciphertext.
    pub fn room(&mut self) -> &mut [u8] {
        match self.0 {}
    }

    /// Would record that `bytes` of ciphertext were received.
    pub fn received(&mut self, _bytes: usize) {
        match self.0 {}
    }

    /// Would decrypt received bytes into `into`.
    ///
    /// # Errors
    ///
    /// Never: there is no session.
    pub fn read(&mut self, _into: &mut [u8]) -> Result<usize, Error> {
        match self.0 {}
    }

    /// Would decrypt one received record into `into`.
    ///
    /// # Errors
    ///
    /// Never: there is no session.
    pub fn read_record(&mut self, _into: &mut [u8]) -> Result<usize, Error> {
        match self.0 {}
    }

    /// Would accept plaintext to encrypt and send.
    ///
    /// # Errors
    ///
    /// Never: there is no session.
    pub fn write(&mut self, _plain: &[u8]) -> Result<usize, Error> {
        match self.0 {}
    }

    /// Would encrypt the accepted plaintext as a record.
    ///
    /// # Errors
    ///
    /// Never: there is no session.
    pub fn finish(&mut self) -> Result<(), Error> {
        match self.0 {}
    }

    /// Would return the ciphertext to send.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        match self.0 {}
    }

    /// Would record that `bytes` of ciphertext were sent.
    pub fn sent(&mut self, _bytes: usize) {
        match self.0 {}
    }

    /// Would tell the peer that the session is closed.
    pub fn close(&mut self) {
        match self.0 {}
    }

    /// Would return true if the handshake is complete.
    #[must_use]
    pub fn is_established(&self) -> bool {
        match self.0 {}
    }

    /// Would return true if the peer has closed the session.
    #[must_use]
    pub fn peer_closed(&self) -> bool {
        match self.0 {}
    }

    /// Would return true if decrypted bytes can be read.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        match self.0 {}
    }

    /// Would return the validity dates of the peer's certificate.
    #[must_use]
    pub fn peer_lifetime(&self) -> Option<&Lifetime> {
        match self.0 {}
    }

    /// Would return the names in the peer's certificate.
    #[must_use]
    pub fn peer(&self) -> Option<&PeerNames> {
        match self.0 {}
    }

    /// Would describe the session's TLS version and cipher.
    #[must_use]
    pub fn describe(&self) -> String {
        match self.0 {}
    }
}
