//! `ClientCas`: the CAs that a server accepts for its clients, each until the CA's certificate
//! expires.
//!
//! rustls treats a CA as a trusted key and never checks its dates. So if any CA in the file has
//! expired, a client that rustls accepts is verified once more, against only the CAs that are still
//! valid.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, RootCertStore,
    SignatureScheme,
};
use x509_cert::Certificate;
use x509_cert::der::Decode;

use crate::certificate::lifetime_of;
use crate::error::{Error, ErrorKind};
use crate::lifetime::{CertificateExpiry, Lifetime};
use crate::names::PeerNames;
use crate::reasons::ExpiredCa;

#[derive(Debug, Clone)]
pub(crate) struct ClientCa {
    anchor: TrustAnchor<'static>,
    pub(crate) name: String,
    /// Dates of the certificate; `None` if they cannot be parsed.
    pub(crate) lifetime: Option<Lifetime>,
}

#[derive(Debug)]
pub(crate) struct ClientCas {
    cas: Arc<[ClientCa]>,
    provider: Arc<CryptoProvider>,
    /// Verifier that trusts all CAs of the file, even expired ones.
    all: Arc<dyn ClientCertVerifier>,
}

pub(crate) fn cas_of(roots: RootCertStore, certificates: &[CertificateDer<'_>]) -> Vec<ClientCa> {
    let of = |(anchor, der): (TrustAnchor<'static>, &CertificateDer<'_>)| ClientCa {
        anchor,
        name: name_of(der),
        lifetime: lifetime_of([der.as_ref()]),
    };
    roots.roots.into_iter().zip(certificates).map(of).collect()
}

fn name_of(der: &[u8]) -> String {
    let common = PeerNames::of(der).and_then(|names| names.common_name);
    let whole = || Some(Certificate::from_der(der).ok()?.tbs_certificate().subject().to_string());
    common.or_else(whole).unwrap_or_default().escape_debug().to_string()
}

impl ClientCa {
    /// Returns the lifetime of this CA certificate, if known. Returns `None` if `all` has a
    /// certificate of the same CA with the same key that expires later. The expiry of this
    /// certificate then affects no client.
    pub(crate) fn last_lifetime(&self, all: &[ClientCa]) -> Option<&Lifetime> {
        let own = self.lifetime.as_ref()?;
        let is_successor = |one: &ClientCa| {
            let key = &one.anchor.subject_public_key_info;
            one.anchor.subject == self.anchor.subject
                && *key == self.anchor.subject_public_key_info
                && one.lifetime.as_ref().is_some_and(|other| other.end > own.end)
        };
        (!all.iter().any(is_successor)).then_some(own)
    }

    fn expiry(&self, now: UnixTime) -> CertificateExpiry {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs());
        self.lifetime.as_ref().map_or(CertificateExpiry::Far, |one| one.expiry(now))
    }
}

impl ClientCas {
    pub(crate) fn new(
        cas: Arc<[ClientCa]>,
        provider: Arc<CryptoProvider>,
    ) -> Result<ClientCas, Error> {
        let all = verifier(cas.iter(), &provider).map_err(|error| {
            Error::new(ErrorKind::File, format!("the client CA cannot be used: {error}"))
        })?;
        Ok(ClientCas { cas, provider, all })
    }
}

fn verifier<'a>(
    cas: impl Iterator<Item = &'a ClientCa>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, impl std::fmt::Display> {
    let roots = cas.map(|ca| ca.anchor.clone()).collect::<Vec<_>>();
    let roots = Arc::new(RootCertStore { roots });
    WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider)).build()
}

impl ClientCertVerifier for ClientCas {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.all.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        client: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.all.verify_client_cert(client, intermediates, now)?;
        let dated: Vec<_> = self.cas.iter().map(|ca| (ca, ca.expiry(now))).collect();
        let is_over = |(_, expiry): &&(&ClientCa, CertificateExpiry)| {
            matches!(expiry, CertificateExpiry::Over { .. })
        };
        let accepts = |cas: &[&ClientCa]| {
            verifier(cas.iter().copied(), &self.provider)
                .is_ok_and(|one| one.verify_client_cert(client, intermediates, now).is_ok())
        };
        let valid: Vec<_> = dated.iter().filter(|ca| !is_over(ca)).map(|(ca, _)| *ca).collect();
        if valid.len() == dated.len() || accepts(&valid) {
            return Ok(verified);
        }
        let (ca, expiry) = match dated.iter().filter(is_over).find(|(ca, _)| accepts(&[*ca])) {
            Some((ca, expiry)) => (ca.name.clone(), expiry.to_string()),
            // The client's chain needs several expired CAs, so the error names none of them.
            None => (String::new(), "is expired".to_owned()),
        };
        let why = OtherError(Arc::new(ExpiredCa { ca, expiry }));
        Err(rustls::Error::InvalidCertificate(CertificateError::Other(why)))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.all.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.all.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.all.supported_verify_schemes()
    }
}
