//! `Error`: why a queue, drive or volume could not be set up.
//!
//! Returned by constructors only; never by I/O, whose outcome is a `Status`. Callers match on the
//! kind; the context is for a person.

use alloc::string::String;

/// What kind of set-up error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A limit or setting that makes no sense, alone or beside another.
    InvalidSetting,
    /// The operating system refused something.
    System,
    /// Somebody else uses it.
    Busy,
    /// This driver or machine cannot do it.
    NotSupported,
}

/// A set-up error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    context: String,
}

impl Error {
    /// An error; `context` says what is wrong, where, and what to do.
    #[must_use]
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Error { kind, context: context.into() }
    }

    /// What kind it is.
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
