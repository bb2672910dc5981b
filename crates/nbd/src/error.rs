//! Errors: protocol violations that end a connection, and the error numbers of replies.
//!
//! [`ProtocolError`] means that the peer violated the protocol, or that a client was refused.
//! [`Errno`] is the outcome of one request; the connection continues. All other modules of the
//! crate use this module.
//!
//! Invariant: a message names the field and the value that was found. Specification: "Error
//! values"; "Termination of the session during option haggling".

use std::fmt;

use thiserror::Error;

use crate::wire::{
    OPT_EXPORT_NAME, OPT_EXTENDED_HEADERS, OPT_GO, OPT_INFO, OPT_LIST, OPT_STARTTLS,
    OPT_STRUCTURED_REPLY, REP_ERR_BLOCK_SIZE_REQD, REP_ERR_EXT_HEADER_REQD, REP_ERR_INVALID,
    REP_ERR_PLATFORM, REP_ERR_POLICY, REP_ERR_SHUTDOWN, REP_ERR_TLS_REQD, REP_ERR_TOO_BIG,
    REP_ERR_UNKNOWN, REP_ERR_UNSUP,
};

/// Reason why a connection cannot continue; the caller closes it.
#[allow(missing_docs)] // The messages describe the variants.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    #[error("bad magic of {what}: found {found:#x}, expected {expected:#x}")]
    BadMagic { what: &'static str, found: u64, expected: u64 },
    #[error("unknown client flags in {0:#x}")]
    ClientFlags(u32),
    #[error("the server does not offer fixed newstyle negotiation (handshake flags {0:#x})")]
    NotFixedNewstyle(u16),
    #[error("option {0} needs fixed newstyle negotiation, which the client did not request")]
    OptionWithoutFixedNewstyle(u32),
    #[error("option {option} announces {length} bytes of data, more than {max}")]
    OptionTooLong { option: u32, length: u32, max: u32 },
    #[error("the client sent more than {0} options in one negotiation")]
    TooManyOptions(u32),
    #[error("the client caused more than {0} bytes of replies in one negotiation")]
    TooManyReplyBytes(usize),
    /// The server refused `OPT_EXPORT_NAME`. The protocol has no reply for a refusal, so the
    /// connection ends.
    #[error("OPT_EXPORT_NAME refused: {0}")]
    ExportName(&'static str),
    #[error("{0} bytes arrived between the client's TLS request and the server's reply")]
    BytesAfterStartTls(usize),
    #[error("{}{}", refusal(*option, *code), said(message))]
    Refused { option: u32, code: u32, message: String },
    #[error("there is no export {name:?}; {}", exports(known))]
    NoExport {
        name: String,
        /// Names of the server's exports, or the first ones of a long list. Empty if the server
        /// does not list exports.
        known: Vec<String>,
    },
    #[error("the server replied to option {found}, but option {expected} was sent")]
    WrongOption { found: u32, expected: u32 },
    #[error("bad {what}: {value:#x}")]
    BadField { what: &'static str, value: u64 },
}

impl ProtocolError {
    pub(crate) const fn check_magic(
        what: &'static str,
        found: u64,
        expected: u64,
    ) -> Result<(), ProtocolError> {
        if found == expected { Ok(()) } else { Err(Self::BadMagic { what, found, expected }) }
    }
}

fn refusal(option: u32, code: u32) -> String {
    if code == REP_ERR_TLS_REQD {
        return "the server accepts only clients with TLS".to_owned();
    }
    let asked = match option {
        OPT_GO | OPT_INFO | OPT_EXPORT_NAME => "the export",
        OPT_LIST => "the list of its exports",
        OPT_STARTTLS => "TLS",
        OPT_STRUCTURED_REPLY => "structured replies",
        OPT_EXTENDED_HEADERS => "extended headers",
        _ => return format!("the server refused option {option} with code {code:#x}"),
    };
    let why = match code {
        REP_ERR_UNSUP => "the server does not know the option",
        REP_ERR_POLICY => "its configuration forbids it",
        REP_ERR_INVALID => "the server considers the request invalid",
        REP_ERR_PLATFORM => "the server's platform does not support the option",
        REP_ERR_UNKNOWN => "there is no such export",
        REP_ERR_SHUTDOWN => "it is about to stop",
        REP_ERR_BLOCK_SIZE_REQD => "the server demands that block sizes be negotiated",
        REP_ERR_TOO_BIG => "the request is too large for the server",
        REP_ERR_EXT_HEADER_REQD => "it demands extended headers",
        _ => return format!("the server refused {asked} with code {code:#x}"),
    };
    format!("the server refused {asked}: {why}")
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" (it says: {message})") }
}

fn exports(known: &[String]) -> String {
    match known {
        [] => "the server does not list its exports".to_owned(),
        known => {
            let names: Vec<String> = known.iter().map(|name| format!("{name:?}")).collect();
            format!("there are {}", names.join(", "))
        }
    }
}

/// Error of a request. The value of each variant is the error number in NBD replies.
#[allow(missing_docs)] // Linux names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Errno {
    Eperm = 1,
    Eio = 5,
    Enomem = 12,
    Einval = 22,
    Enospc = 28,
    /// The result is too long for one chunk.
    Eoverflow = 75,
    /// The request is not supported, or a fast zeroing would need slow writes.
    Enotsup = 95,
    Eshutdown = 108,
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(*self as i32).fmt(f)
    }
}

impl Errno {
    /// All error numbers, in ascending order.
    pub const ALL: [Errno; 8] = [
        Errno::Eperm,
        Errno::Eio,
        Errno::Enomem,
        Errno::Einval,
        Errno::Enospc,
        Errno::Eoverflow,
        Errno::Enotsup,
        Errno::Eshutdown,
    ];

    /// Returns the error's number on the wire.
    pub const fn to_wire(self) -> u32 {
        self as u32
    }

    /// Returns the error for a number on the wire; `None` for 0. Numbers that the protocol does not
    /// define become [`Errno::Einval`].
    pub fn from_wire(number: u32) -> Option<Errno> {
        if number == 0 {
            return None;
        }
        let known = Errno::ALL.into_iter().find(|errno| errno.to_wire() == number);
        Some(known.unwrap_or(Errno::Einval))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_number_is_said_in_the_systems_words() {
        assert_eq!(Errno::Eio.to_string(), "Input/output error (os error 5)");
        assert_eq!(Errno::Enospc.to_string(), "No space left on device (os error 28)");
    }
}
