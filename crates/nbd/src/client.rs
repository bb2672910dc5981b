//! The client's side of NBD: server addresses, negotiation, and replies. The module owns no
//! connection.

pub mod answers;
pub mod handshake;
pub mod reply;
pub mod uri;

pub use self::answers::{Answer, AnswerError, Answers, Payload};
pub use self::handshake::{ClientHandshake, ClientProgress, ClientSession, REPLY_DATA_BYTES_MAX};
pub use self::reply::{DATA_BYTES_MAX, ERROR_BYTES_MAX, ServerReply, parse_reply};
pub use self::uri::{Address, NbdUri, UriError};
