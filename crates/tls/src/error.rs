//! Errors, with a text for the operator of the server or the user of the client.
//!
//! All modules of this crate create these errors; `reasons.rs` converts the errors of rustls.

/// Kind of a TLS failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A certificate or key file cannot be read, or its contents cannot be used.
    File,
    /// The peer's certificate is expired, from an unknown CA, for another name, or otherwise
    /// invalid.
    Certificate,
    /// The peer sent no certificate although one is required.
    NoCertificate,
    /// The peer does not use TLS, or violated the TLS protocol.
    Protocol,
    /// The two sides have no version or cipher in common.
    Versions,
    /// The peer rejected the local side, and ended the session with an alert.
    Refused,
    /// An internal failure of the local side.
    Internal,
}

/// Failure of a TLS operation, with a text for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    kind: ErrorKind,
    text: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Error {
        Error { kind, text: text.into() }
    }

    /// Returns the kind of the failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}
