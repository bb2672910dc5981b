//! Configurations and sessions for builds without the feature `rustls`. The types have no values,
//! so none of their methods ever runs.
//!
//! The types have the methods of `config.rs` and `session.rs` that servers and drives call.
#![allow(missing_docs)] // `config.rs` and `session.rs` describe what these methods stand for.

use crate::error::{Error, ErrorKind};
use crate::files::{CertificateLifetime, ClientFiles, Identity, RefreshOutcome, ServerFiles};
use crate::lifetime::Lifetime;
use crate::names::PeerNames;

/// Declares the methods of a type for builds without TLS. The type has no values, so the methods
/// never run; they only let callers compile.
macro_rules! methods {
    ($($name:ident($($argument:tt)*) -> $result:ty;)*) => {
        $(pub fn $name($($argument)*) -> $result {
            unreachable!("the type has no values")
        })*
    };
}

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

#[derive(Debug)]
pub enum ServerConfig {}

impl ServerConfig {
    pub fn load(_files: ServerFiles) -> Result<ServerConfig, Error> {
        refused()
    }

    methods! {
        refresh(&self) -> Result<RefreshOutcome, Error>;
        lifetime(&self) -> Option<Lifetime>;
        lifetimes(&self) -> Vec<CertificateLifetime>;
    }
}

#[derive(Debug, Clone)]
pub enum ClientConfig {}

impl ClientConfig {
    pub fn load(_files: &ClientFiles) -> Result<ClientConfig, Error> {
        refused()
    }
}

#[derive(Debug)]
/// Replaces a session in builds without TLS, and has no values. Its field is private, so that the
/// compiler does not report the session code of other crates as unreachable.
pub struct NoSession(std::convert::Infallible);

impl NoSession {
    methods! {
        server(_config: &ServerConfig) -> Result<NoSession, Error>;
        client(_config: &ClientConfig, _host: &str) -> Result<NoSession, Error>;
        room(&mut self) -> &mut [u8];
        received(&mut self, _bytes: usize) -> ();
        read(&mut self, _into: &mut [u8]) -> Result<usize, Error>;
        read_record(&mut self, _into: &mut [u8]) -> Result<usize, Error>;
        write(&mut self, _plain: &[u8]) -> Result<usize, Error>;
        finish(&mut self) -> Result<(), Error>;
        output(&self) -> &[u8];
        sent(&mut self, _bytes: usize) -> ();
        close(&mut self) -> ();
        is_established(&self) -> bool;
        peer_closed(&self) -> bool;
        is_waiting(&self) -> bool;
        peer_lifetime(&self) -> Option<&Lifetime>;
        peer(&self) -> Option<&PeerNames>;
        describe(&self) -> String;
    }
}
