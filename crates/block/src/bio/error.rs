//! `Error`: the reason why a queue, drive or volume could not be set up.
//!
//! Only set-up functions return it. The outcome of an I/O is a `Status` instead. Callers match on
//! the kind; the context is a message for a person.

use alloc::string::String;

/// The kind of a set-up error, for callers to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A limit or setting is out of range or contradicts another one.
    InvalidSetting,
    /// The operating system refused a call.
    System,
    /// Another user has the resource open or is changing it.
    Busy,
    /// This driver or machine does not support the operation.
    NotSupported,
}

/// A set-up error: a kind for the program and a message for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    context: String,
}

impl Error {
    /// Creates an error. `context` says what is wrong, where, and what to do.
    #[must_use]
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Error { kind, context: context.into() }
    }

    /// Returns the error's kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.context)
    }
}

impl core::error::Error for Error {}
