//! TLS for NBD drives: loads its files, and names the types of millrace-tls that connections use.
//!
//! Without the feature `tls`, a drive that asks for TLS is refused.

mod expiry;

pub(crate) use expiry::CertificateWatch;
pub(crate) use millrace_tls::{ClientConfig, Error, REFUSAL, Session};

use super::{NbdTls, TlsIdentity};

/// Loads the TLS files of a drive. Returns [`REFUSAL`] if TLS is not compiled in.
pub(crate) fn load(tls: &NbdTls) -> Result<ClientConfig, Error> {
    let own = |files: &TlsIdentity| millrace_tls::Identity {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
    };
    let files =
        millrace_tls::ClientFiles { ca: tls.ca.clone(), identity: tls.identity.as_ref().map(own) };
    ClientConfig::load(&files)
}
