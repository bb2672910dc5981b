//! NBD as a sans-I/O core: bytes in, bytes out, of both sides.
//!
//! Owns the wire format, a server's and a client's negotiation, the checks on untrusted requests
//! and replies, and the encoders of both; it opens no socket, starts no thread, reads no clock.
//! Called by the servers of `millrace-exports`, by the drive that is an NBD export elsewhere
//! (`millrace-drives`), and by the client for measuring (`millrace-clients`).
//!
//! Invariants: no function panics on bytes from a peer or consumes more than it was given; nothing
//! allocates during transmission; a length from a peer is never trusted before it was bounded.
//!
//! Order of use on a server: [`Handshake::greeting`] and [`Handshake::feed`] until
//! [`Progress::Ready`], then for every request [`parse`], [`check`] and a [`Reply`]. On a client:
//! [`client::ClientHandshake::feed`], then [`encode_request`] and [`client::parse_reply`].
//! Specification: `doc/proto.md` of the NetworkBlockDevice project, and its branch
//! `extension-ext-header` for extended headers.

pub mod client;
pub mod error;
pub mod export;
pub mod handshake;
pub mod option;
pub mod reply;
pub mod status;
pub mod transmission;
pub mod wire;

pub use error::{Errno, ProtocolError};
pub use export::{Catalog, ExportInfo, ReplyStyle, Session, TransmissionFlags, Wanted};
pub use handshake::{Handshake, Progress, TlsMode};
pub use reply::{Position, REPLY_BYTES_MAX, Reply, ReplyBuffer};
pub use status::{DescriptorWidth, Extent, StatusError, StatusQuery};
pub use transmission::{Command, Parsed, Request, Rules, Verdict, check, encode_request, parse};
