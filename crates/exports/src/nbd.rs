//! NBD: the protocol as a sans-I/O core (bytes in, bytes out), and the [`server`] that drives it.
//!
//! The core is all modules but `server`. It owns the wire format, the server's negotiation, the
//! checks on untrusted requests and the encoders of replies; it opens no socket, starts no thread,
//! reads no clock. The clients of `millrace-clients` build on its formats, too.
//!
//! Invariants of the core: no function panics on bytes from a peer or consumes more than it was
//! given; nothing allocates during transmission; a length from a peer is never trusted before it
//! was bounded.
//!
//! Order of use on a server: [`Handshake::greeting`] and [`Handshake::feed`] until
//! [`Progress::Ready`], then for every request [`parse`], [`check`] and a [`Reply`].
//! Specification: `doc/proto.md` of the NetworkBlockDevice project, and its branch
//! `extension-ext-header` for extended headers.

pub mod error;
pub mod export;
pub mod handshake;
pub mod option;
pub mod reply;
pub mod server;
pub mod status;
pub mod transmission;
pub mod wire;

pub use error::{Errno, ProtocolError};
pub use export::{Catalog, ExportInfo, ReplyStyle, Session, TransmissionFlags};
pub use handshake::{Handshake, Progress};
pub use reply::{Position, REPLY_BYTES_MAX, Reply, ReplyBuffer};
pub use status::{DescriptorWidth, Extent, StatusError, StatusQuery};
pub use transmission::{Command, Parsed, Request, Rules, Verdict, check, encode_request, parse};
