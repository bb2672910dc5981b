//! Configured certificate and key files, and results of checking them.
//!
//! Plain data, compiled with and without the feature `rustls`. `config.rs` reads it.

use std::path::{Path, PathBuf};

use crate::lifetime::Lifetime;

/// A certificate and its key, in PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// File with the certificate, followed by the certificates of intermediate CAs.
    pub certificate: PathBuf,
    /// File with the private key, which must not be encrypted.
    pub key: PathBuf,
}

/// Certificate files of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// Certificate and key of the server.
    pub identity: Identity,
    /// File with the CAs that sign clients' certificates. If set, clients need such a certificate;
    /// otherwise every client may connect.
    pub client_ca: Option<PathBuf>,
}

/// Certificate files of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// File with the CAs that may sign the server's certificate.
    pub ca: PathBuf,
    /// Certificate and key of the client, for servers that demand them.
    pub identity: Option<Identity>,
}

impl ClientFiles {
    /// Returns the files of a directory by the names of libnbd and QEMU: `ca-cert.pem` and, if it
    /// exists, `client-cert.pem` with `client-key.pem`.
    #[must_use]
    pub fn in_folder(folder: &Path) -> ClientFiles {
        let (certificate, key) = (folder.join("client-cert.pem"), folder.join("client-key.pem"));
        let identity = certificate.exists().then_some(Identity { certificate, key });
        ClientFiles { ca: folder.join("ca-cert.pem"), identity }
    }
}

/// Result of checking the files of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshOutcome {
    /// The files are unchanged.
    Same,
    /// The files changed and were reloaded.
    Reloaded,
}

/// Validity period of a certificate that a server uses for new sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateLifetime {
    /// Description for messages: `the certificate in FILE`, or `the CA "NAME" in FILE`.
    pub name: String,
    /// Use of the certificate: the server's own, or a CA of its clients.
    pub role: CertificateRole,
    /// Validity period of the certificate.
    pub lifetime: Lifetime,
}

/// Role of a certificate in a server's TLS configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateRole {
    /// Certificate of the server itself.
    Own,
    /// CA that signs clients' certificates.
    ClientCa,
}
