//! Certificates as they are read: their names and their dates.
//!
//! Owns what is taken out of X.509 beyond what rustls checks. Called by the configuration for this
//! side's files and by sessions for the peer's certificate, once rustls has verified it.

use std::time::{Duration, SystemTime};

use x509_cert::Certificate;
use x509_cert::certificate::Version;
use x509_cert::der::asn1::{Ia5StringRef, PrintableStringRef, TeletexStringRef, Utf8StringRef};
use x509_cert::der::oid::db::rfc4519::CN;
use x509_cert::der::{Any, Decode, Tagged};
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{BasicConstraints, SubjectAltName};

/// Names in a certificate: of a peer that has shown it, for lists of those who may do something, or
/// of this side's own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerNames {
    /// The common name of the subject.
    pub common_name: Option<String>,
    /// Alternative names: of hosts, addresses of mail, URIs and IP addresses.
    pub alternatives: Vec<String>,
}

impl PeerNames {
    /// The names in a certificate, DER; none when it cannot be read.
    #[must_use]
    pub fn of(der: &[u8]) -> Option<PeerNames> {
        let parsed = Certificate::from_der(der).ok()?;
        let names = common_name(&parsed);
        let alternatives = parsed.tbs_certificate().get_extension::<SubjectAltName>();
        let alternatives = alternatives.ok().flatten().map(|(_, list)| list.0).unwrap_or_default();
        let alternatives = alternatives.iter().filter_map(general_name).collect();
        Some(PeerNames { common_name: names, alternatives })
    }

    /// Whether `name` is one of its names, exactly.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.all().any(|own| own == name)
    }

    /// All of its names, the common name first.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.common_name.iter().chain(&self.alternatives).map(String::as_str)
    }
}

impl std::fmt::Display for PeerNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut names = self.all().collect::<Vec<_>>();
        names.dedup();
        if names.is_empty() {
            return f.write_str("a peer without a name");
        }
        // Names come from the peer: nothing in them may write lines of a log of its own.
        write!(f, "{}", names.join(", ").escape_debug())
    }
}

fn common_name(certificate: &Certificate) -> Option<String> {
    let subject = certificate.tbs_certificate().subject();
    let names = subject.iter().filter(|one| one.oid == CN);
    names.last().and_then(|one| text(&one.value))
}

fn text(value: &Any) -> Option<String> {
    use x509_cert::der::Tag;
    match value.tag() {
        Tag::Utf8String => value.decode_as::<Utf8StringRef<'_>>().ok().map(|s| s.as_str().into()),
        Tag::PrintableString => {
            value.decode_as::<PrintableStringRef<'_>>().ok().map(|s| s.as_str().into())
        }
        Tag::Ia5String => value.decode_as::<Ia5StringRef<'_>>().ok().map(|s| s.as_str().into()),
        Tag::TeletexString => {
            value.decode_as::<TeletexStringRef<'_>>().ok().map(|s| s.as_str().into())
        }
        _ => None,
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

/// Why a certificate of a file cannot be used now; none if it can.
pub(crate) fn unusable(der: &[u8], what: Purpose) -> Option<String> {
    let Ok(parsed) = Certificate::from_der(der) else {
        let text = "is not a certificate of X.509, or a part of it is missing; copy the file again";
        return Some(text.to_owned());
    };
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = since_epoch.unwrap_or(Duration::ZERO);
    let validity = parsed.tbs_certificate().validity();
    if validity.not_after.to_unix_duration() < now {
        return Some(format!("is expired since {}; make a new one", validity.not_after));
    }
    if validity.not_before.to_unix_duration() > now {
        let from = validity.not_before;
        return Some(format!("is not valid before {from}; compare the clock of this machine"));
    }
    if what == Purpose::Own && parsed.tbs_certificate().version() != Version::V3 {
        let text = "is of X.509 version 1, which has no names and is not taken; make one of version \
                    3, as with openssl x509 -req -extfile";
        return Some(text.to_owned());
    }
    let constraints = parsed.tbs_certificate().get_extension::<BasicConstraints>().ok().flatten();
    if what == Purpose::Authority && !constraints.is_some_and(|(_, one)| one.ca) {
        let text = "is not of a CA: its basic constraints lack CA:TRUE";
        return Some(text.to_owned());
    }
    None
}

/// What a certificate in a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It says who this side is.
    Own,
    /// It signs those of peers.
    Authority,
}
