//! What goes wrong, in words for whoever runs the server or the client.
//!
//! Owns the error type. Made by everything here; `reasons.rs` makes it of rustls's errors.

/// What kind of failure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file cannot be read, or what is in it cannot be used.
    File,
    /// The peer's certificate is expired, of an unknown CA, for another name, or otherwise bad.
    Certificate,
    /// The peer sent no certificate though one is needed.
    NoCertificate,
    /// The peer does not speak TLS, or broke its rules.
    Protocol,
    /// The two sides have no version or cipher in common.
    Versions,
    /// The peer ended the session with an alert: it does not accept this side.
    Refused,
    /// This side failed.
    Internal,
}

/// A failure with its reason in words.
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

    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}
