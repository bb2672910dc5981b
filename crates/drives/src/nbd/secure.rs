//! TLS, as far as an NBD drive has to do with it; with the feature `tls`, the TLS crate's.
//!
//! Without that feature everything here is a stand-in that nobody can make (`secure/without.rs`),
//! so that the code around it is the same, and a drive that asks for TLS is refused. Called by
//! `settings.rs` and `nbd.rs`; the types are used by whoever sends and receives.

#[cfg(feature = "tls")]
mod expiry;
#[cfg(not(feature = "tls"))]
mod without;

#[cfg(feature = "tls")]
pub(crate) use expiry::CertificateWatch;
#[cfg(feature = "tls")]
pub(crate) use millrace_tls::{ClientConfig, Error, Session};
#[cfg(not(feature = "tls"))]
pub(crate) use without::{CertificateWatch, ClientConfig, Error, Session};

use super::NbdTls;

/// Why no drive can have TLS; none if drives can.
pub(crate) const REFUSAL: Option<&str> = match cfg!(feature = "tls") {
    true => None,
    false => Some(
        "this program was built without the feature `tls` (of millrace or millrace-drives); build \
         it with that, or write a uri= of nbd: or nbd+unix: and no key of TLS",
    ),
};

/// Reads the files of a drive's TLS.
///
/// # Errors
/// What is wrong with them, or `REFUSAL`.
#[cfg(feature = "tls")]
pub(crate) fn load(tls: &NbdTls) -> Result<ClientConfig, String> {
    let own = |files: &super::TlsIdentity| millrace_tls::Identity {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
    };
    let files =
        millrace_tls::ClientFiles { ca: tls.ca.clone(), identity: tls.identity.as_ref().map(own) };
    ClientConfig::load(&files).map_err(|error| error.to_string())
}

/// Reads no files.
///
/// # Errors
/// Always `REFUSAL`.
#[cfg(not(feature = "tls"))]
pub(crate) fn load(_tls: &NbdTls) -> Result<ClientConfig, String> {
    Err(REFUSAL.unwrap_or_default().to_owned())
}
