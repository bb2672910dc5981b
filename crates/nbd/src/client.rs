//! The client's side: server addresses, negotiation, and replies.
//!
//! Owns no connection. Used by the drive that is an NBD client and by the measuring client; calls
//! the modules for the wire formats.

pub mod answers;
pub mod handshake;
pub mod reply;
pub mod uri;

pub use self::answers::{Answer, AnswerError, Answers, Payload};
pub use self::handshake::{ClientHandshake, ClientProgress, ClientSession, REPLY_DATA_BYTES_MAX};
pub use self::reply::{DATA_BYTES_MAX, ERROR_BYTES_MAX, ReplyParsed, ServerReply, parse_reply};
pub use self::uri::{Address, NbdUri, UriError};
