//! A CA of a test, with certificates in a folder of its own.

use std::path::{Path, PathBuf};

use millrace_tls::Identity;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose,
};
use rcgen::{IsCa, KeyPair};
use time::{Duration, OffsetDateTime};

/// When a certificate is valid.
#[derive(Clone, Copy)]
pub enum Validity {
    Past,
    Now,
    Future,
}

/// A CA and its folder.
pub struct Authority {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        Authority::valid(name, Validity::Now)
    }

    pub fn expired(name: &str) -> Authority {
        Authority::valid(name, Validity::Past)
    }

    fn valid(name: &str, validity: Validity) -> Authority {
        let mut params = params(name, &[], validity);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca-cert.pem"), issuer.pem()).unwrap();
        Authority { folder, issuer }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn ca(&self) -> PathBuf {
        self.folder().join("ca-cert.pem")
    }

    /// A certificate of this name for both sides.
    pub fn issue(&self, name: &str, alternatives: &[&str], validity: Validity) -> Identity {
        self.sign(name, params(name, alternatives, validity))
    }

    /// A certificate that no client may use.
    pub fn issue_for_servers(&self, name: &str, alternatives: &[&str]) -> Identity {
        let mut params = params(name, alternatives, Validity::Now);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(name, params)
    }

    fn sign(&self, name: &str, params: CertificateParams) -> Identity {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let at = |what: &str| self.folder().join(format!("{name}-{what}.pem"));
        let identity = Identity { certificate: at("cert"), key: at("key") };
        std::fs::write(&identity.certificate, certificate.pem()).unwrap();
        std::fs::write(&identity.key, key.serialize_pem()).unwrap();
        identity
    }
}

fn params(name: &str, alternatives: &[&str], validity: Validity) -> CertificateParams {
    let alternatives: Vec<String> = alternatives.iter().map(|&one| one.to_owned()).collect();
    let mut params = CertificateParams::new(alternatives).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let (now, day) = (OffsetDateTime::now_utc(), Duration::days(1));
    (params.not_before, params.not_after) = match validity {
        Validity::Past => (now - day * 2, now - day),
        Validity::Now => (now - day, now + day),
        Validity::Future => (now + day, now + day * 2),
    };
    params
}
