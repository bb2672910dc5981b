//! TLS configuration of a server or a client: its certificate and key, and the CAs of its peers.
//!
//! Invariants: the configuration in use was complete and valid when it was read. If new files
//! cannot be used (for example because the key was not replaced yet), the old configuration stays
//! in use until the files change again. A session never waits for a file.
//!
//! Lock order: `seen` before `in_use`.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::sign::CertifiedKey;

use crate::certificate::{CertificatePurpose, lifetime_of, unusable};
use crate::client_cas::{ClientCa, ClientCas, cas_of};
use crate::error::Error;
use crate::files::{
    CertificateLifetime, CertificateRole, ClientFiles, Identity, RefreshOutcome, ServerFiles,
};
use crate::lifetime::Lifetime;
use crate::names::PeerNames;
use crate::reasons::what_is_wrong;

impl Identity {
    /// Reads the names in the certificate file. Returns `None` if the file cannot be read.
    #[must_use]
    pub fn names(&self) -> Option<PeerNames> {
        let pem = contents(&self.certificate).ok()?;
        PeerNames::of(&CertificateDer::from_pem_slice(&pem).ok()?)
    }
}

/// Configuration of a server, shared by its sessions.
#[derive(Debug)]
pub struct ServerConfig {
    files: ServerFiles,
    in_use: Mutex<ActiveConfig>,
    /// Metadata of the certificate and key files when they were last checked. Locked while these
    /// files are checked and read.
    seen: Mutex<MetadataSnapshot>,
}

#[derive(Debug)]
struct ActiveConfig {
    config: Arc<rustls::ServerConfig>,
    lifetime: Option<Lifetime>,
    client_cas: Arc<[ClientCa]>,
}

impl ServerConfig {
    /// Reads the files of a server.
    ///
    /// # Errors
    /// `File`, naming the file and the error in it.
    pub fn load(files: ServerFiles) -> Result<ServerConfig, Error> {
        let seen = Mutex::new(files.metadata());
        let in_use = Mutex::new(read_server(&files)?);
        Ok(ServerConfig { files, in_use, seen })
    }

    /// Reloads the files if they changed since the last check. A check without a change costs a few
    /// system calls. Existing sessions keep their configuration, and new sessions do not wait for
    /// the files. A file system that does not answer blocks the caller.
    ///
    /// # Errors
    /// `File` if the files changed and cannot be used. The error is returned once for each change;
    /// the previous configuration stays in use.
    pub fn refresh(&self) -> Result<RefreshOutcome, Error> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.files.metadata();
        if *seen == now {
            return Ok(RefreshOutcome::Same);
        }
        *seen = now;
        let config = read_server(&self.files)?;
        *self.in_use() = config;
        Ok(RefreshOutcome::Reloaded)
    }

    /// Returns the validity period of the certificate that new sessions use.
    #[must_use]
    pub fn lifetime(&self) -> Option<Lifetime> {
        self.in_use().lifetime.clone()
    }

    /// Returns the validity periods of all certificates that new sessions use. A CA is left out if
    /// the file has a later-expiring certificate of the same CA.
    #[must_use]
    pub fn lifetimes(&self) -> Vec<CertificateLifetime> {
        let (in_use, files) = (self.in_use(), &self.files);
        let own = in_use.lifetime.iter().map(|lifetime| CertificateLifetime {
            name: format!("the certificate in {}", files.identity.certificate.display()),
            role: CertificateRole::Own,
            lifetime: lifetime.clone(),
        });
        let cas = in_use.client_cas.iter().filter_map(|ca| {
            let file = files.client_ca.as_ref()?.display();
            Some(CertificateLifetime {
                name: format!("the CA \"{}\" in {file}", ca.name),
                role: CertificateRole::ClientCa,
                lifetime: ca.last_lifetime(&in_use.client_cas)?.clone(),
            })
        });
        own.chain(cas).collect()
    }

    pub(crate) fn current(&self) -> Arc<rustls::ServerConfig> {
        Arc::clone(&self.in_use().config)
    }

    fn in_use(&self) -> MutexGuard<'_, ActiveConfig> {
        self.in_use.lock().expect("no thread panics while it holds this lock")
    }
}

/// Configuration of a client, shared by its sessions.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    pub(crate) config: Arc<rustls::ClientConfig>,
}

impl ClientConfig {
    /// Reads the files of a client.
    ///
    /// # Errors
    /// `File`, naming the file and the error in it.
    pub fn load(files: &ClientFiles) -> Result<ClientConfig, Error> {
        let certificates = certificates(&files.ca, CertificatePurpose::Authority)?;
        let roots = Arc::new(roots(&files.ca, &certificates)?);
        let provider = provider();
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|error| Error::file(&files.ca, error))?;
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::of_set_up(&error))?
            .with_webpki_verifier(verifier);
        let mut config = match &files.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let (chain, key) = read_identity(identity)?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| Error::file(&identity.key, key_text(&error)))?
            }
        };
        config.resumption = rustls::client::Resumption::disabled();
        config.enable_secret_extraction = true;
        Ok(ClientConfig { config: Arc::new(config) })
    }
}

/// Device, inode, length, mtime and ctime of each file that can be read. Two snapshots differ if a
/// file was replaced, written or removed in between.
type MetadataSnapshot = Vec<Option<(u64, u64, u64, [i64; 4])>>;

impl ServerFiles {
    fn metadata(&self) -> MetadataSnapshot {
        let identity = [&self.identity.certificate, &self.identity.key];
        let read = |path: &PathBuf| {
            let file = std::fs::metadata(path).ok()?;
            let times = [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()];
            Some((file.dev(), file.ino(), file.len(), times))
        };
        identity.into_iter().chain(&self.client_ca).map(read).collect()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Prefers ciphers with 128-bit keys, which take a quarter less time than those with 256-bit keys.
/// No attacker can try all keys of either length. The server's order counts, because most clients
/// offer the longer keys first.
fn with_cheap_ciphers_first() -> CryptoProvider {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    let is_aes_128 = |name: &str| name.contains("AES_128_GCM");
    provider.cipher_suites.sort_by_key(|suite| !suite.suite().as_str().is_some_and(is_aes_128));
    provider
}

fn read_server(files: &ServerFiles) -> Result<ActiveConfig, Error> {
    let (chain, key) = read_identity(&files.identity)?;
    let client_cas: Arc<[ClientCa]> = match &files.client_ca {
        None => Arc::default(),
        Some(path) => {
            let certificates = certificates(path, CertificatePurpose::Authority)?;
            cas_of(roots(path, &certificates)?, &certificates).into()
        }
    };
    let lifetime = lifetime_of(chain.iter().map(AsRef::as_ref));
    let provider = Arc::new(with_cheap_ciphers_first());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::of_set_up(&error))?;
    let builder = if files.client_ca.is_some() {
        let verifier = ClientCas::new(Arc::clone(&client_cas), provider)?;
        builder.with_client_cert_verifier(Arc::new(verifier))
    } else {
        builder.with_no_client_auth()
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| Error::file(&files.identity.key, key_text(&error)))?;
    config.ignore_client_order = true;
    // NBD clients do not resume sessions, so no state is kept for tickets.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.enable_secret_extraction = true;
    Ok(ActiveConfig { config: Arc::new(config), lifetime, client_cas })
}

fn read_identity(
    identity: &Identity,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
    let (certificate, key) = (&identity.certificate, &identity.key);
    let chain = certificates(certificate, CertificatePurpose::Own)?;
    let key = private_key(key, &contents(key)?)?;
    check_order(certificate, &chain, &key)?;
    Ok((chain, key))
}

/// Returns an error if the key belongs to a certificate other than the first in the file. If the
/// key belongs to none of the certificates, rustls reports the error.
fn check_order(
    path: &Path,
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
) -> Result<(), Error> {
    let Ok(key) = provider().key_provider.load_private_key(key.clone_key()) else { return Ok(()) };
    let belongs = |one: &CertificateDer<'static>| {
        CertifiedKey::new(vec![one.clone()], Arc::clone(&key)).keys_match().is_ok()
    };
    match chain.iter().position(belongs) {
        None | Some(0) => Ok(()),
        Some(behind) => Err(Error::file(
            path,
            format!(
                "the certificates in it are in the wrong order: the key belongs to number {}; move \
                 it to the front, before those of intermediate CAs",
                behind + 1
            ),
        )),
    }
}

fn key_text(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            "the key does not belong to the certificate; configure a certificate and key that \
             were created together"
                .to_owned()
        }
        // rustls gives no details of a key that it cannot use.
        rustls::Error::General(_) => "the key in it is damaged, or of a kind not supported for \
                                      TLS here (RSA below 2048 bits, or a curve other than \
                                      P-256, P-384 and P-521); make another with openssl \
                                      genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256"
            .to_owned(),
        other => format!("the key cannot be used: {other}"),
    }
}

fn pem_text(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            let marker = end_marker.escape_ascii();
            format!(
                "ends inside a block: the line END {marker} is missing; copy the whole file again"
            )
        }
        pem::Error::IllegalSectionStart { line } => {
            let line = line.escape_ascii();
            format!("is not PEM: the line {line} is incomplete; copy the whole file again")
        }
        pem::Error::Base64Decode(_) => {
            "is not PEM: a block in it is not base64; copy the whole file again".to_owned()
        }
        other => format!("is not PEM: {other}"),
    }
}

const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

fn contents(path: &Path) -> Result<Vec<u8>, Error> {
    let cannot = |error| Error::file(path, format!("cannot be read: {error}"));
    // Opening a pipe without a writer must not block the caller, which may be an I/O thread.
    let flags = libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(cannot)?;
    if !file.metadata().map_err(cannot)?.is_file() {
        return Err(Error::file(path, "is not a regular file, as certificates and keys must be"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::file(path, "is longer than 4 MiB, too long for a certificate or key"));
    }
    Ok(bytes)
}

fn certificates(
    path: &Path,
    purpose: CertificatePurpose,
) -> Result<Vec<CertificateDer<'static>>, Error> {
    let pem = contents(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.map_err(|error| Error::file(path, pem_text(&error)))?;
    let Some(first) = found.first() else {
        let text = "contains no certificate (a block BEGIN CERTIFICATE)";
        return Err(Error::file(path, text));
    };
    // If the file has several CAs, some may have expired; one usable CA is enough.
    let is_usable = |one: &CertificateDer<'_>| unusable(one, purpose).is_none();
    match unusable(first, purpose) {
        Some(why) if purpose == CertificatePurpose::Own || !found.iter().any(is_usable) => {
            Err(Error::file(path, format!("the certificate in it {why}")))
        }
        _ => Ok(found),
    }
}

fn roots(path: &Path, certificates: &[CertificateDer<'static>]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate.clone()).map_err(|error| {
            let why = match &error {
                rustls::Error::InvalidCertificate(why) => what_is_wrong(why),
                other => format!("cannot be used: {other}"),
            };
            Error::file(path, format!("a certificate in it {why}"))
        })?;
    }
    Ok(roots)
}

fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| {
        let text = String::from_utf8_lossy(pem);
        // Encryption is checked first, because an encrypted key in OpenSSL's older format has lines
        // that are not base64.
        let why = if text.contains("ENCRYPTED") {
            "contains an encrypted private key; decrypt it with openssl pkey -in KEY -out NEW"
        } else if !matches!(error, pem::Error::NoItemsFound) {
            return Error::file(path, pem_text(&error));
        } else if text.contains("BEGIN CERTIFICATE") {
            "contains a certificate instead of a key; the two files may be swapped"
        } else {
            "contains no private key (a block BEGIN PRIVATE KEY)"
        };
        Error::file(path, why)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use millrace_authority::{Authority, Validity};

    use super::*;

    #[test]
    fn a_session_begins_while_the_files_are_looked_at() {
        let authority = Authority::new("CA");
        let issued = authority.issue("server", &["localhost"], Validity::Now);
        let identity = Identity { certificate: issued.certificate, key: issued.key };
        let config = ServerConfig::load(ServerFiles { identity, client_ca: None }).unwrap();
        // As while a file system does not answer.
        let looking = config.seen.lock().unwrap();
        let (began, begun) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| began.send(crate::Session::server(&config).is_ok()));
            let session = begun.recv_timeout(Duration::from_secs(20));
            drop(looking);
            assert_eq!(session, Ok(true));
        });
    }
}
