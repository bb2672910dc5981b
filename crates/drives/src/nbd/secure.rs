//! TLS, as far as an NBD drive has to do with it: its files, and the types of millrace-tls that
//! whoever sends and receives uses.
//!
//! Without the feature `tls`, a drive that asks for TLS is refused. Called by `settings.rs` and
//! `nbd.rs`.

mod expiry;

pub(crate) use expiry::CertificateWatch;
pub(crate) use millrace_tls::{ClientConfig, Error, REFUSAL, Session};

use super::{NbdTls, TlsIdentity};

/// Reads the files of a drive's TLS.
///
/// # Errors
/// What is wrong with them, or [`REFUSAL`].
pub(crate) fn load(tls: &NbdTls) -> Result<ClientConfig, Error> {
    let own = |files: &TlsIdentity| millrace_tls::Identity {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
    };
    let files =
        millrace_tls::ClientFiles { ca: tls.ca.clone(), identity: tls.identity.as_ref().map(own) };
    ClientConfig::load(&files)
}
