//! The NBD protocol as a sans-I/O core: bytes in, bytes out.
//!
//! Owns the wire format, the server's negotiation, the checks on untrusted requests, the encoders
//! of replies and a client's codec. It opens no socket, starts no thread, reads no clock; the
//! server's connection and the benchmark client drive it.
//!
//! Invariants: no function panics on bytes from a peer or consumes more than it was given; nothing
//! allocates during transmission; a length from a peer is never trusted before it was bounded.
//!
//! Order of use on a server: [`Handshake::greeting`] and [`Handshake::feed`] until
//! [`Progress::Ready`], then for every request [`parse`], [`check`] and a [`Reply`].
//! Specification: `doc/proto.md` of the NetworkBlockDevice project, and its branch
//! `extension-ext-header` for extended headers; URIs follow `doc/uri.md`.

pub mod client;
pub mod error;
pub mod export;
pub mod handshake;
pub mod option;
pub mod reply;
pub mod server;
pub mod server_reply;
pub mod status;
pub mod transmission;
pub mod uri;
pub mod wire;

pub use client::{ClientHandshake, ClientProgress, ClientSession, encode_request};
pub use error::{Errno, ProtocolError};
pub use export::{Catalog, ExportInfo, ReplyStyle, Session, TransmissionFlags};
pub use handshake::{Handshake, Progress};
pub use reply::{Position, REPLY_BYTES_MAX, Reply, ReplyBuffer};
pub use server_reply::{ReplyParsed, ServerReply, parse_reply};
pub use status::{Extent, StatusError, StatusQuery};
pub use transmission::{Command, Parsed, Request, Rules, Verdict, check, parse};
pub use uri::{Address, NbdUri, UriError};

#[cfg(test)]
mod tests;
