//! Stand-ins for the TLS crate: types of which there is no value, so no method of them ever runs.
//!
//! Each has the methods that drives call, with the signatures of the TLS crate's. Used by
//! `secure.rs` where the feature `tls` is off.

use std::convert::Infallible;
use std::fmt;

/// Nothing to watch.
#[derive(Debug, Default)]
pub(crate) struct CertificateWatch;

impl CertificateWatch {
    pub(crate) fn connected(&mut self, session: &Session) {
        match session.0 {}
    }
    pub(crate) fn news(&mut self) -> Option<String> {
        None
    }
}

/// Settings of a client.
#[derive(Debug, Clone)]
pub(crate) struct ClientConfig(Infallible);

/// A session.
#[derive(Debug)]
pub(crate) struct Session(Infallible);

/// What is wrong with one.
#[derive(Debug)]
pub(crate) struct Error(Infallible);

impl fmt::Display for Error {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {}
    }
}

impl std::error::Error for Error {}

impl Session {
    pub(crate) fn client(config: &ClientConfig, _host: &str) -> Result<Session, Error> {
        match config.0 {}
    }
    pub(crate) fn room(&mut self) -> &mut [u8] {
        match self.0 {}
    }
    pub(crate) fn received(&mut self, _bytes: usize) {
        match self.0 {}
    }
    pub(crate) fn read(&mut self, _into: &mut [u8]) -> Result<usize, Error> {
        match self.0 {}
    }
    pub(crate) fn write(&mut self, _plain: &[u8]) -> Result<usize, Error> {
        match self.0 {}
    }
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        match self.0 {}
    }
    pub(crate) fn output(&self) -> &[u8] {
        match self.0 {}
    }
    pub(crate) fn sent(&mut self, _bytes: usize) {
        match self.0 {}
    }
    pub(crate) fn is_established(&self) -> bool {
        match self.0 {}
    }
    pub(crate) fn peer_closed(&self) -> bool {
        match self.0 {}
    }
}
