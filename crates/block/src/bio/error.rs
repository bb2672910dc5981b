//! `Error`: the reason why a queue, drive or volume could not be set up.
//!
//! Only set-up functions return it. The outcome of an I/O is a `Status` instead. Callers match on
//! the kind; the context is a message for a person.

use alloc::string::String;

/// The kind of a set-up error, for callers to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A limit or setting is out of range or contradicts another one.
    InvalidSetting,
    /// A file, directory, socket or export is not there.
    NotFound,
    /// The operating system refuses access.
    PermissionDenied,
    /// The operating system or a server reported an error that no other kind covers.
    System,
    /// Another user has the resource open or is changing it.
    Busy,
    /// The driver or machine does not support the operation.
    NotSupported,
}

/// An error of a set-up function, with a kind for programs and a message for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    errno: Option<i32>,
}

const ENOENT: i32 = 2;
const DENIED: [i32; 2] = [1, 13];

impl Error {
    /// Creates an error. `context` says what is wrong, where, and what to do.
    #[must_use]
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Error { kind, context: context.into(), errno: None }
    }

    /// Creates an error that the operating system reported. `errno` is the error's Linux number, if
    /// it has one, and decides the kind: `NotFound`, `PermissionDenied` or `System`.
    #[must_use]
    pub fn system(context: impl Into<String>, errno: Option<i32>) -> Self {
        let kind = match errno {
            Some(ENOENT) => ErrorKind::NotFound,
            Some(errno) if DENIED.contains(&errno) => ErrorKind::PermissionDenied,
            _ => ErrorKind::System,
        };
        Error { kind, context: context.into(), errno }
    }

    /// Returns the error's kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the Linux errno that the operating system gave, if any.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.errno
    }
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.context)
    }
}

impl core::error::Error for Error {}
