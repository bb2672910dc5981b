//! Files of certificates and keys as a configuration names them, and what is said of them.
//!
//! Plain data, which is here with and without the feature `rustls`. Read by `config.rs`.

use std::path::{Path, PathBuf};

use crate::lifetime::Lifetime;

/// A certificate and the key that belongs to it, in PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, first, and those of intermediate CAs behind it.
    pub certificate: PathBuf,
    /// Its private key, not encrypted.
    pub key: PathBuf,
}

/// The files of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// The server's certificate and key.
    pub identity: Identity,
    /// Certificates of the CAs that sign clients' certificates. Where it is given, a client needs
    /// one; else every client may connect.
    pub client_ca: Option<PathBuf>,
}

/// The files of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// Certificates of the CAs that may have signed the server's.
    pub ca: PathBuf,
    /// Certificate and key, for servers that ask for them.
    pub identity: Option<Identity>,
}

impl ClientFiles {
    /// The files in a folder as libnbd and QEMU name them: `ca-cert.pem`, and where they exist
    /// `client-cert.pem` and `client-key.pem`.
    #[must_use]
    pub fn in_folder(folder: &Path) -> ClientFiles {
        let (certificate, key) = (folder.join("client-cert.pem"), folder.join("client-key.pem"));
        let identity = certificate.exists().then_some(Identity { certificate, key });
        ClientFiles { ca: folder.join("ca-cert.pem"), identity }
    }
}

/// What a look at the files of a server found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refreshed {
    /// The files are those in use.
    Same,
    /// They changed and were read.
    Reloaded,
}

/// When a certificate expires that new sessions of a server use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateLifetime {
    /// What it is of, and its file if it was read from one: `the certificate in FILE`, or `the CA
    /// "NAME" in FILE`.
    pub name: String,
    /// What it is used for.
    pub role: CertificateRole,
    /// Its dates.
    pub lifetime: Lifetime,
}

/// What a server uses a certificate for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateRole {
    /// Clients know the server by it.
    Own,
    /// It is of a CA of clients.
    ClientCa,
}
