//! What can go wrong: violations that end a connection, and the error numbers of replies.
//!
//! Owns [`ProtocolError`] (the peer broke the protocol, or a client was refused) and [`Errno`] (the
//! outcome of one request; the connection goes on). Called by every module beside it.
//!
//! Invariant: a message names the field and the value that was found.
//! Specification: "Error values"; "Termination of the session during option haggling".

use std::fmt;

use thiserror::Error;

use crate::wire::{
    OPT_EXPORT_NAME, OPT_EXTENDED_HEADERS, OPT_GO, OPT_INFO, OPT_LIST, OPT_STARTTLS,
    OPT_STRUCTURED_REPLY, REP_ERR_BLOCK_SIZE_REQD, REP_ERR_EXT_HEADER_REQD, REP_ERR_INVALID,
    REP_ERR_PLATFORM, REP_ERR_POLICY, REP_ERR_SHUTDOWN, REP_ERR_TLS_REQD, REP_ERR_TOO_BIG,
    REP_ERR_UNKNOWN, REP_ERR_UNSUP,
};

/// Why a connection cannot go on. The caller closes it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A message does not start with the number that it must start with.
    #[error("bad magic of {what}: found {found:#x}, expected {expected:#x}")]
    BadMagic {
        /// Which message.
        what: &'static str,
        /// The number in its place.
        found: u64,
        /// The number that belongs there.
        expected: u64,
    },
    /// The client set flags this server did not offer.
    #[error("unknown client flags in {flags:#x}")]
    ClientFlags {
        /// All 32 bits as received.
        flags: u32,
    },
    /// The server does not speak fixed newstyle.
    #[error("the server does not offer fixed newstyle negotiation (handshake flags {flags:#x})")]
    NotFixedNewstyle {
        /// All 16 bits as received.
        flags: u16,
    },
    /// Without fixed newstyle a client may only send `OPT_EXPORT_NAME`.
    #[error("option {option} needs fixed newstyle, which the client did not ask for")]
    OptionWithoutFixedNewstyle {
        /// The option's number.
        option: u32,
    },
    /// The data of an option, or of the reply to one, are too long even to skip.
    #[error("option {option} announces {length} bytes of data, more than {max}")]
    OptionTooLong {
        /// The option's number.
        option: u32,
        /// Length in its header, in bytes.
        length: u32,
        /// Largest length accepted in this place, in bytes.
        max: u32,
    },
    /// A client sent more options than any negotiation needs.
    #[error("more than {max} options in one negotiation")]
    TooManyOptions {
        /// The bound.
        max: u32,
    },
    /// A client made the server send more than any negotiation needs.
    #[error("more than {max} bytes of replies in one negotiation")]
    TooManyReplyBytes {
        /// The bound, in bytes.
        max: usize,
    },
    /// `OPT_EXPORT_NAME` cannot be granted, and has no way to say so.
    #[error("OPT_EXPORT_NAME refused: {why}")]
    ExportName {
        /// The reason.
        why: &'static str,
    },
    /// A client went on before it had the answer that TLS begins; somebody on the way may have.
    #[error("{bytes} bytes follow the request for TLS before its answer")]
    BytesAfterStartTls {
        /// How many.
        bytes: usize,
    },
    /// The server refused an option of ours.
    #[error("{}{}", refusal(*option, *code), said(message))]
    Refused {
        /// The option's number.
        option: u32,
        /// The type of the reply, one of `REP_ERR_*`.
        code: u32,
        /// The server's text, possibly empty.
        message: String,
    },
    /// The server has no export of the name that was asked for.
    #[error("there is no export {name:?}; {}", exports(known))]
    NoExport {
        /// What was asked for.
        name: String,
        /// The exports that there are, if the server says so; the first ones of many.
        known: Vec<String>,
    },
    /// A reply to another option than the one that is open.
    #[error("a reply to option {found} while option {expected} is open")]
    WrongOption {
        /// The option of the reply.
        found: u32,
        /// The option that was sent.
        expected: u32,
    },
    /// A field has a value that the protocol does not allow there.
    #[error("bad {what}: {value:#x}")]
    BadField {
        /// Which field of which message.
        what: &'static str,
        /// What was found.
        value: u64,
    },
}

/// What a refusal means, in words.
fn refusal(option: u32, code: u32) -> String {
    if code == REP_ERR_TLS_REQD {
        return "the server lets in only clients with TLS".to_owned();
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
        REP_ERR_UNSUP => "it does not know the option",
        REP_ERR_POLICY => "it is told not to",
        REP_ERR_INVALID => "it finds the request invalid",
        REP_ERR_PLATFORM => "its system cannot",
        REP_ERR_UNKNOWN => "there is no such export",
        REP_ERR_SHUTDOWN => "it is about to stop",
        REP_ERR_BLOCK_SIZE_REQD => "it wants block sizes to be agreed on",
        REP_ERR_TOO_BIG => "the request is too long for it",
        REP_ERR_EXT_HEADER_REQD => "it wants extended headers",
        _ => return format!("the server refused {asked} with code {code:#x}"),
    };
    format!("the server refused {asked}: {why}")
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" (it says: {message})") }
}

fn exports(known: &[String]) -> String {
    match known {
        [] => "the server does not say which there are".to_owned(),
        known => {
            let names: Vec<String> = known.iter().map(|name| format!("{name:?}")).collect();
            format!("there are {}", names.join(", "))
        }
    }
}

/// The error numbers a reply can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: a write to a read-only export.
    Eperm = 1,
    /// The medium failed.
    Eio = 5,
    /// Out of memory.
    Enomem = 12,
    /// The request makes no sense.
    Einval = 22,
    /// Beyond the end, or no space left.
    Enospc = 28,
    /// Too long for one chunk.
    Eoverflow = 75,
    /// Not possible fast.
    Enotsup = 95,
    /// The server is going down.
    Eshutdown = 108,
}

impl fmt::Display for Errno {
    /// The system's words for it, and its number: the protocol's numbers are Linux's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(*self as i32).fmt(f)
    }
}

impl Errno {
    /// Every error number, in rising order.
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

    /// The number on the wire.
    pub const fn to_wire(self) -> u32 {
        self as u32
    }

    /// The error of a reply: `None` for 0; a number the protocol does not define counts as
    /// [`Errno::Einval`].
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
