//! Reads and checks names, dates and purposes of X.509 certificates, in addition to the checks of
//! rustls.
//!
//! The configuration uses these functions to check its own certificate files. Sessions use them for
//! the peer's certificate once rustls has verified that certificate.

use std::time::{Duration, SystemTime};

use x509_cert::Certificate;
use x509_cert::certificate::Version;
use x509_cert::der::Decode;
use x509_cert::der::asn1::Ia5StringRef;
use x509_cert::der::oid::db::rfc4519::CN;
use x509_cert::ext::pkix::name::{DirectoryString, GeneralName};
use x509_cert::ext::pkix::{BasicConstraints, SubjectAltName};

use crate::lifetime::Lifetime;
use crate::names::PeerNames;

impl PeerNames {
    /// Reads the names of a DER certificate. Returns `None` if it cannot be parsed.
    #[must_use]
    pub fn of(der: &[u8]) -> Option<PeerNames> {
        let parsed = Certificate::from_der(der).ok()?;
        let common_name = common_name(&parsed);
        let alternatives = parsed.tbs_certificate().get_extension::<SubjectAltName>();
        let alternatives = alternatives.ok().flatten().map(|(_, list)| list.0).unwrap_or_default();
        let alternatives = alternatives.iter().filter_map(general_name).collect();
        Some(PeerNames { common_name, alternatives })
    }
}

/// Returns the validity period of the certificate that expires first in `chain`. Skips certificates
/// that cannot be parsed. Returns `None` if no certificate is left.
pub(crate) fn lifetime_of<'a>(chain: impl IntoIterator<Item = &'a [u8]>) -> Option<Lifetime> {
    let read = |der: &[u8]| {
        let parsed = Certificate::from_der(der).ok()?;
        let validity = parsed.tbs_certificate().validity();
        let (begin, end) = (validity.not_before, validity.not_after);
        let end_text = end.to_string();
        let (begin, end) = (begin.to_unix_duration(), end.to_unix_duration());
        Some(Lifetime { begin, end, end_text })
    };
    chain.into_iter().filter_map(read).min_by_key(|one| one.end)
}

fn common_name(certificate: &Certificate) -> Option<String> {
    let subject = certificate.tbs_certificate().subject();
    let value = &subject.iter().filter(|one| one.oid == CN).last()?.value;
    // Some certificates have a name of the type IA5String, which X.520 does not allow here.
    if let Ok(name) = value.decode_as::<Ia5StringRef<'_>>() {
        return Some(name.as_str().to_owned());
    }
    match value.decode_as::<DirectoryString>().ok()? {
        DirectoryString::BmpString(_) => None,
        name => Some(name.into()),
    }
}

fn general_name(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_owned()),
        GeneralName::Rfc822Name(name) => Some(name.as_str().to_owned()),
        GeneralName::UniformResourceIdentifier(uri) => Some(uri.as_str().to_owned()),
        GeneralName::IpAddress(bytes) => {
            let bytes = bytes.as_bytes();
            let v4 = <[u8; 4]>::try_from(bytes).map(std::net::IpAddr::from);
            let v6 = || <[u8; 16]>::try_from(bytes).map(std::net::IpAddr::from);
            v4.or_else(|_| v6()).ok().map(|ip| ip.to_string())
        }
        _ => None,
    }
}

/// Returns the reason why a certificate in a file cannot be used now, or `None` if it can.
pub(crate) fn unusable(der: &[u8], what: CertificatePurpose) -> Option<String> {
    let Ok(parsed) = Certificate::from_der(der) else {
        return Some(
            "is not an X.509 certificate, or is incomplete; copy the file again".to_owned(),
        );
    };
    let parsed = parsed.tbs_certificate();
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = since_epoch.unwrap_or(Duration::ZERO);
    let (from, until) = (parsed.validity().not_before, parsed.validity().not_after);
    if until.to_unix_duration() < now {
        return Some(format!("expired at {until}; create a new one"));
    }
    if from.to_unix_duration() > now {
        return Some(format!("is not valid before {from}; check this machine's clock"));
    }
    let constraints = parsed.get_extension::<BasicConstraints>().ok().flatten();
    let text = match what {
        CertificatePurpose::Own if parsed.version() != Version::V3 => {
            "is X.509 version 1, which has no names and is not accepted; make one of version 3, for \
             example with openssl x509 -req -extfile"
        }
        CertificatePurpose::Authority if !constraints.is_some_and(|(_, one)| one.ca) => {
            "is not a CA certificate: its basic constraints lack CA:TRUE"
        }
        CertificatePurpose::Own | CertificatePurpose::Authority => return None,
    };
    Some(text.to_owned())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CertificatePurpose {
    Own,
    Authority,
}
