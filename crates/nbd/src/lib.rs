//! NBD as a sans-I/O protocol library: bytes in, bytes out, for servers and clients.
//!
//! This crate has the wire format and the negotiation of servers and clients. For requests and
//! replies, it has encoders, and checks of untrusted input. It opens no socket, starts no thread
//! and reads no clock. The servers of `millrace-exports`, the drive that is an NBD client
//! (`millrace-drives`) and the measuring client (`millrace-clients`) use it.
//!
//! Invariants: no function panics on bytes from a peer, or consumes more bytes than it was passed.
//! Nothing is allocated during transmission. A length from a peer is checked against a limit before
//! it is used.
//!
//! Order of use on a server: [`Handshake::greeting`] and [`Handshake::feed`] until
//! [`Progress::Ready`], then [`parse`], [`check`] and a [`Reply`] for each request. On a client:
//! [`client::ClientHandshake::feed`], then [`encode_request`] and [`client::parse_reply`].
//! Specification: `doc/proto.md` of the NetworkBlockDevice project, and its branch
//! `extension-ext-header` for extended headers.

pub mod client;
pub mod error;
pub mod export;
pub mod handshake;
#[doc(hidden)] // Public for tests only.
pub mod option;
pub mod reply;
pub mod status;
pub mod transmission;
pub mod wire;

pub use error::{Errno, ProtocolError};
pub use export::{ExportCatalog, ExportInfo, ReplyStyle, Session, TransmissionFlags, WantedExport};
pub use handshake::{Handshake, Progress, TlsMode};
pub use reply::{Position, REPLY_BYTES_MAX, Reply, ReplyBuffer};
pub use status::{DescriptorWidth, Extent, StatusError, StatusQuery};
pub use transmission::{
    Command, Request, RequestLimits, RequestVerdict, check, encode_request, parse,
};
