//! A CA of a test, with certificates in a directory of its own that goes with it.
//!
//! Owns the directory and the CA's key. Called by the tests of TLS; calls rcgen. Everything here
//! panics on failure: it is only ever run by a test.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType};
use rcgen::{ExtendedKeyUsagePurpose, IsCa, KeyPair};
use time::{Duration, OffsetDateTime};

/// When a certificate is valid.
#[derive(Debug, Clone, Copy)]
pub enum Validity {
    /// Expired yesterday.
    Past,
    /// Valid from yesterday to tomorrow.
    Now,
    /// Valid from tomorrow on.
    Future,
    /// Valid from yesterday until this many seconds from now.
    Seconds(i64),
}

/// Files of a certificate.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: PathBuf,
    /// The certificate's key.
    pub key: PathBuf,
}

/// A CA and its directory.
#[derive(Debug)]
pub struct Authority {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// A CA of this name.
    ///
    /// # Panics
    ///
    /// When the directory cannot be written.
    #[must_use]
    pub fn new(name: &str) -> Authority {
        Authority::valid(name, Validity::Now)
    }

    /// A CA whose own certificate has run out.
    ///
    /// # Panics
    ///
    /// When the directory cannot be written.
    #[must_use]
    pub fn expired(name: &str) -> Authority {
        Authority::valid(name, Validity::Past)
    }

    /// A CA whose own certificate is valid then.
    ///
    /// # Panics
    ///
    /// When the directory cannot be written.
    #[must_use]
    pub fn valid(name: &str, validity: Validity) -> Authority {
        let mut params = params(name, &[], validity);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("random numbers");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a CA of plain names");
        let folder = tempfile::Builder::new().prefix("mr-ca-").tempdir().expect("a directory");
        write(&folder.path().join("ca-cert.pem"), &issuer.pem());
        Authority { folder, issuer }
    }

    /// The directory with everything in it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The CA's certificate.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.folder().join("ca-cert.pem")
    }

    /// A certificate of this name for both sides, in `NAME-cert.pem` and `NAME-key.pem`.
    ///
    /// # Panics
    ///
    /// When a name is none that a certificate can have.
    #[must_use]
    pub fn issue(&self, name: &str, alternatives: &[&str], validity: Validity) -> Issued {
        self.sign(self.folder(), name, params(name, alternatives, validity))
    }

    /// A certificate that no client may use.
    ///
    /// # Panics
    ///
    /// When a name is none that a certificate can have.
    #[must_use]
    pub fn issue_for_servers(&self, name: &str, alternatives: &[&str]) -> Issued {
        let mut params = params(name, alternatives, Validity::Now);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(self.folder(), name, params)
    }

    /// A certificate that no server may use.
    ///
    /// # Panics
    ///
    /// When a name is none that a certificate can have.
    #[must_use]
    pub fn issue_for_clients(&self, name: &str, alternatives: &[&str]) -> Issued {
        let mut params = params(name, alternatives, Validity::Now);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(self.folder(), name, params)
    }

    /// A certificate that another one signed, which is not of a CA and follows in the same file.
    ///
    /// # Panics
    ///
    /// When a name is none that a certificate can have.
    #[must_use]
    pub fn issue_by_a_leaf(&self, name: &str) -> Issued {
        let leaf_key = KeyPair::generate().expect("random numbers");
        let leaf = params("leaf", &["leaf"], Validity::Now);
        let leaf = CertifiedIssuer::signed_by(leaf, leaf_key, &self.issuer).expect("a leaf");
        let key = KeyPair::generate().expect("random numbers");
        let signed = params(name, &[name], Validity::Now).signed_by(&key, &leaf).expect("signed");
        let at = |what: &str| self.folder().join(format!("{name}-{what}.pem"));
        let issued = Issued { certificate: at("cert"), key: at("key") };
        write(&issued.certificate, &(signed.pem() + &leaf.pem()));
        write(&issued.key, &key.serialize_pem());
        issued
    }

    /// A directory of a client's files, named as libnbd and QEMU expect: the CA certificate of
    /// `trusted`, and a certificate for `name` issued by this CA.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    #[must_use]
    pub fn client_folder(&self, trusted: &Authority, name: &str, validity: Validity) -> PathBuf {
        let folder = self.folder().join(format!("{name}-folder"));
        fs::create_dir_all(&folder).expect("a directory");
        fs::copy(trusted.ca(), folder.join("ca-cert.pem")).expect("a copy");
        let issued = self.sign(&folder, "client", params(name, &[], validity));
        assert!(issued.key.starts_with(&folder));
        folder
    }

    fn sign(&self, folder: &Path, file: &str, params: CertificateParams) -> Issued {
        let key = KeyPair::generate().expect("random numbers");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let at = |what: &str| folder.join(format!("{file}-{what}.pem"));
        let issued = Issued { certificate: at("cert"), key: at("key") };
        write(&issued.certificate, &certificate.pem());
        write(&issued.key, &key.serialize_pem());
        issued
    }
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn params(name: &str, alternatives: &[&str], validity: Validity) -> CertificateParams {
    let alternatives: Vec<String> = alternatives.iter().map(|&one| one.to_owned()).collect();
    let mut params = CertificateParams::new(alternatives).expect("names of hosts");
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let (now, day) = (OffsetDateTime::now_utc(), Duration::days(1));
    (params.not_before, params.not_after) = match validity {
        Validity::Past => (now - day * 2, now - day),
        Validity::Now => (now - day, now + day),
        Validity::Future => (now + day, now + day * 2),
        Validity::Seconds(seconds) => (now - day, now + Duration::seconds(seconds)),
    };
    params
}
