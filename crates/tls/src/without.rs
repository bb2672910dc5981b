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

    /// Stands in for the check whether files may change.
    #[must_use]
    pub fn is_from_files(&self) -> bool {
        match self.0 {}
    }

    /// Stands in for the reload of changed files.
    ///
    /// # Errors
    ///
    /// Never: there is no configuration.
    pub fn refresh(&self) -> Result<Refreshed, Error> {
        match self.0 {}
    }

    /// Stands in for the dates of the certificate.
    #[must_use]
    pub fn lifetime(&self) -> Option<Lifetime> {
        match self.0 {}
    }

    /// Stands in for the dates of all certificates.
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
    /// Stands in for the start of a server's session.
    ///
    /// # Errors
    ///
    /// Never: there is no configuration.
    pub fn server(config: &ServerConfig) -> Result<NoSession, Error> {
        match config.0 {}
    }

    /// Stands in for the start of a client's session.
    ///
    /// # Errors
    ///
    /// Never: there is no configuration.
    pub fn client(config: &ClientConfig, _host: &str) -> Result<NoSession, Error> {
        match config.0 {}
    }

    /// Stands in for the memory for the next ciphertext.
    pub fn room(&mut self) -> &mut [u8] {
        match self.0 {}
    }

    /// Stands in for recording received ciphertext.
    pub fn received(&mut self, _bytes: usize) {
        match self.0 {}
    }

    /// Stands in for handing out plaintext.
    ///
    /// # Errors
    ///
    /// Never: there is no session.
    pub fn read(&mut self, _into: &mut [u8]) -> Result<usize, Error> {
        match self.0 {}
    }

    /// Stands in for handing out the plaintext of one record.
    ///
    /// # Errors
    ///
    /// Never: there is no session.
    pub fn read_record(&mut self, _into: &mut [u8]) -> Result<usize, Error> {
        match self.0 {}
    }

    /// Stands in for taking plaintext to send.
    ///
    /// # Errors
    ///
    /// Never: there is no session.
    pub fn write(&mut self, _plain: &[u8]) -> Result<usize, Error> {
        match self.0 {}
    }

    /// Stands in for putting plaintext into a record.
    ///
    /// # Errors
    ///
    /// Never: there is no session.
    pub fn finish(&mut self) -> Result<(), Error> {
        match self.0 {}
    }

    /// Stands in for the ciphertext to send.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        match self.0 {}
    }

    /// Stands in for recording sent ciphertext.
    pub fn sent(&mut self, _bytes: usize) {
        match self.0 {}
    }

    /// Stands in for the close notification.
    pub fn close(&mut self) {
        match self.0 {}
    }

    /// Stands in for the check that the handshake is over.
    #[must_use]
    pub fn is_established(&self) -> bool {
        match self.0 {}
    }

    /// Stands in for the check of the peer's close notification.
    #[must_use]
    pub fn peer_closed(&self) -> bool {
        match self.0 {}
    }

    /// Stands in for the check for waiting plaintext.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        match self.0 {}
    }

    /// Stands in for the dates of the peer's certificate.
    #[must_use]
    pub fn peer_lifetime(&self) -> Option<&Lifetime> {
        match self.0 {}
    }

    /// Stands in for the names of the peer's certificate.
    #[must_use]
    pub fn peer(&self) -> Option<&PeerNames> {
        match self.0 {}
    }

    /// Stands in for version and cipher of the session.
    #[must_use]
    pub fn describe(&self) -> String {
        match self.0 {}
    }
}
