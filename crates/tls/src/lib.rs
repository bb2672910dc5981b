//! TLS as a sans-I/O session for clients and servers: ciphertext in, plaintext out, and vice versa.
//!
//! Order of use: [`ServerConfig::load`] or [`ClientConfig::load`], then [`Session::server`] or
//! [`Session::client`]. The caller receives into [`Session::room`], reports the length
//! ([`Session::received`]), takes plaintext with [`Session::read`], and sends [`Session::output`].
//! These calls also drive the handshake. Plaintext to send goes to [`Session::write`].
//!
//! Invariants: no function panics on bytes from a peer. A session's memory is limited, whatever the
//! peer sends. The certificates of both sides are checked before any plaintext is returned.
//!
//! rustls does the handshake, and all of TLS 1.2. After the handshake of TLS 1.3, this crate
//! decrypts and encrypts the records itself, with the ciphers of aws-lc-rs, directly to and from
//! the memory of the plaintext: rustls would copy each record again, and allocate memory for it.
//!
//! Without the feature `rustls`, configurations cannot be loaded and sessions cannot exist, so that
//! crates that use this crate need no conditional code.

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
    CertificateLifetime, CertificateRole, ClientFiles, Identity, RefreshOutcome, ServerFiles,
};
pub use lifetime::{CertificateExpiry, Lifetime};
pub use names::PeerNames;
#[cfg(feature = "rustls")]
pub use session::{INPUT_BYTES, OUTPUT_BYTES, Session};
#[cfg(not(feature = "rustls"))]
pub use without::{ClientConfig, NoSession as Session, ServerConfig};

/// Reason why this program has no TLS, and what to do; `None` if it has TLS.
pub const REFUSAL: Option<&str> = match cfg!(feature = "rustls") {
    true => None,
    false => Some(
        "this program was built without TLS; build it with the feature `tls` of millrace, or \
         configure no TLS here",
    ),
};
