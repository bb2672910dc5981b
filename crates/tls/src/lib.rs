//! TLS as a sans-I/O session of either side: ciphertext in, plaintext out, and the other way round.
//!
//! Owns sessions with their buffers, configurations read from PEM files, the names of a peer, and
//! the words for what goes wrong; opens no socket, starts no thread. Called by the NBD server
//! (`millrace-exports`) and by the drive that is an NBD export elsewhere; calls rustls and
//! aws-lc-rs.
//!
//! Order of use: [`ServerConfig::load`] or [`ClientConfig::load`], then [`Session::server`] or
//! [`Session::client`]. A caller receives into [`Session::room`], says how much came
//! ([`Session::received`]), takes plaintext with [`Session::read`], and sends [`Session::output`].
//! That drives the handshake, too. Plaintext goes out by [`Session::write`].
//!
//! Invariants: no function panics on bytes from a peer; a session's memory is bounded, whatever the
//! peer sends; certificates of both sides are checked before a byte of plaintext is handed out.
//!
//! Rustls does the handshake, and all of TLS 1.2. Records of TLS 1.3 are opened and sealed here
//! once the handshake is over, with the ciphers of aws-lc-rs, which decrypt to where the plaintext
//! is wanted: rustls decrypts in place, copies each record once more, and allocates for it.

mod certificate;
mod client_cas;
mod config;
mod error;
mod lifetime;
mod session;

pub use certificate::PeerNames;
pub use config::{
    CertificateLifetime, CertificateRole, ClientConfig, ClientFiles, Identity, Refreshed,
    ServerConfig, ServerFiles,
};
pub use error::{Error, ErrorKind};
pub use lifetime::{Expiry, Lifetime};
pub use session::{INPUT_BYTES, OUTPUT_BYTES, Session};
