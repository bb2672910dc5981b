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

//!
//! Without the feature `rustls`, which is on by default, there is no TLS: files cannot be loaded,
//! and nothing else has a value. Whoever depends on this crate is the same code in both cases.

#[cfg(feature = "rustls")]
mod certificate;
#[cfg(feature = "rustls")]
mod client_cas;
#[cfg(feature = "rustls")]
mod config;
mod error;
mod files;
mod lifetime;
mod names;
#[cfg(feature = "rustls")]
mod reasons;
#[cfg(feature = "rustls")]
mod session;
#[cfg(not(feature = "rustls"))]
mod without;

#[cfg(feature = "rustls")]
pub use config::{ClientConfig, ServerConfig};
pub use error::{Error, ErrorKind};
pub use files::{
    CertificateLifetime, CertificateRole, ClientFiles, Identity, Refreshed, ServerFiles,
};
pub use lifetime::{Expiry, Lifetime};
pub use names::PeerNames;
#[cfg(feature = "rustls")]
pub use session::{INPUT_BYTES, OUTPUT_BYTES, Session};
#[cfg(not(feature = "rustls"))]
pub use without::{ClientConfig, NoSession as Session, ServerConfig};

/// Why this program has no TLS, and what to do; none if it has.
pub const REFUSAL: Option<&str> = match cfg!(feature = "rustls") {
    true => None,
    false => Some(
        "this program was built without TLS; build it with the feature `tls` of millrace, or use \
         no TLS here",
    ),
};
