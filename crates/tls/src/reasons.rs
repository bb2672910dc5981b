//! Readable texts for rustls's errors.
//!
//! Sessions and the configuration call this module.

use std::path::Path;

use rustls::{AlertDescription, CertificateError, ExtendedKeyPurpose, PeerIncompatible};

use crate::error::{Error, ErrorKind};

impl Error {
    pub(crate) fn file(path: &Path, what: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::File, format!("{}: {what}", path.display()))
    }

    pub(crate) fn of_set_up(error: &rustls::Error) -> Error {
        Error::new(ErrorKind::Internal, format!("TLS cannot be set up: {error}"))
    }

    /// Describes an error of rustls for the user. `first` has the first bytes that the peer sent,
    /// which show if the peer does not use TLS at all.
    pub(crate) fn of_session(error: &rustls::Error, first: &[u8]) -> Error {
        use rustls::Error as Tls;
        let certificate = |text: String| Error::new(ErrorKind::Certificate, text);
        match error {
            Tls::InvalidCertificate(why) => certificate(certificate_text(why)),
            Tls::NoCertificatesPresented => Error::new(
                ErrorKind::NoCertificate,
                "the peer sent no certificate, but one is required; give it one from a CA that this side \
                 accepts (many clients do not send one from another CA)",
            ),
            Tls::PeerIncompatible(why) => Error::new(ErrorKind::Versions, incompatible(why)),
            Tls::AlertReceived(alert) => Error::new(ErrorKind::Refused, alert_text(*alert)),
            Tls::InvalidMessage(_) if !is_tls(first) => {
                Error::new(ErrorKind::Protocol, not_tls(first))
            }
            Tls::DecryptError => Error::new(
                ErrorKind::Protocol,
                "a record cannot be decrypted: it was altered in transit, or belongs to another session",
            ),
            Tls::General(_) | Tls::FailedToGetCurrentTime | Tls::FailedToGetRandomBytes => {
                Error::new(ErrorKind::Internal, format!("TLS failed on this side: {error}"))
            }
            other => Error::new(
                ErrorKind::Protocol,
                format!("the peer violated the TLS protocol: {other}"),
            ),
        }
    }
}

/// Error for a client's certificate that is valid, but was signed by an expired CA.
#[derive(Debug, thiserror::Error)]
#[error(
    "is good, but the CA \"{ca}\" of client-ca that signed it {expiry}; replace \
     the CA's certificate"
)]
pub(crate) struct ExpiredCa {
    pub(crate) ca: String,
    pub(crate) expiry: String,
}

fn is_tls(first: &[u8]) -> bool {
    matches!(first, [] | [0x15 | 0x16] | [0x15 | 0x16, 3, ..])
}

fn not_tls(first: &[u8]) -> String {
    let shown = &first[..first.len().min(8)];
    format!(
        "the peer does not use TLS: it sent \"{}\" instead of a handshake",
        shown.escape_ascii()
    )
}

fn certificate_text(error: &CertificateError) -> String {
    if let CertificateError::NotValidForNameContext { expected, presented } = error {
        let (expected, names) = (expected.to_str(), presented_names(presented));
        return match names.is_empty() {
            true => format!(
                "the peer's certificate is for another name: '{expected}' was expected, but it \
                 has no subjectAltName, which must list the host names; make one that has it"
            ),
            false => format!(
                "the peer's certificate is for another name: '{expected}' was expected, but it \
                 has {names}; use one of these names, or make a certificate with the expected name"
            ),
        };
    }
    format!("the peer's certificate {}", what_is_wrong(error))
}

pub(crate) fn what_is_wrong(error: &CertificateError) -> String {
    use CertificateError as C;
    let why = match error {
        C::Expired | C::ExpiredContext { .. } => "is expired; create a new one",
        C::NotValidYet | C::NotValidYetContext { .. } => {
            "is not valid yet; check the clocks of both machines"
        }
        C::UnknownIssuer => "is from an unknown CA: its issuer must be in this side's CA file",
        C::BadSignature => {
            "is not signed by the CA that it names, or by a key that is not accepted (RSA below \
             2048 bits); compare the CA files of both sides, or make new ones"
        }
        C::Revoked => "was revoked",
        C::BadEncoding => "cannot be decoded: it is damaged, or is not X.509; create a new one",
        C::InvalidPurposeContext { required: ExtendedKeyPurpose::ServerAuth, .. } => {
            "is not made for servers: its extended key usage lacks serverAuth; create one that \
             has it"
        }
        C::InvalidPurposeContext { required: ExtendedKeyPurpose::ClientAuth, .. } => {
            "is not made for clients: its extended key usage lacks clientAuth; create one that \
             has it"
        }
        C::InvalidPurpose | C::InvalidPurposeContext { .. } => {
            "is not made for this purpose: its extended key usage lacks serverAuth or clientAuth"
        }
        C::NotValidForName | C::NotValidForNameContext { .. } => "is for another name",
        C::UnhandledCriticalExtension => {
            "has a critical extension that this program does not support; create one without it"
        }
        C::UnsupportedSignatureAlgorithmContext { .. }
        | C::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "has a signature that this side does not support: use a CA key of RSA, ECDSA on P-256, \
             P-384 or P-521, or Ed25519, with a SHA-2 hash"
        }
        C::Other(other) => {
            let ca = other.0.downcast_ref::<ExpiredCa>().map(ToString::to_string);
            return ca.unwrap_or_else(|| path_text(&format!("{other:?}")));
        }
        other => return format!("is not accepted: {other}"),
    };
    why.to_owned()
}

/// Describes errors of the verifier for which rustls has no variant. The errors are recognised by
/// name, because rustls does not export their type.
fn path_text(name: &str) -> String {
    let has = |what: &str| name.contains(what);
    let why = if has("EndEntityUsedAsCa") {
        "is signed by a certificate that is not a CA (it lacks CA:TRUE); sign it with the CA's key"
    } else if has("UnsupportedCertVersion") {
        "is X.509 version 1, which has no names; make one of version 3 with openssl x509 -req \
         -extfile"
    } else if has("CaUsedAsEndEntity") {
        "is a CA certificate; use an end-entity certificate signed by the CA instead"
    } else if has("PathLenConstraintViolated") {
        "has too many CAs in its chain: one of them has a path length that forbids further CAs"
    } else if has("NameConstraintViolation") {
        "has a name that its CA may not sign; check the name constraints of the CA"
    } else {
        return format!("is not accepted: {name}");
    };
    why.to_owned()
}

/// Extracts the names from rustls's debug text: `DnsName("localhost")`. The names are escaped,
/// because they come from the peer and must not look like lines of the log.
fn presented_names(presented: &[String]) -> String {
    let bare = |name: &String| {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        let inner = inner.unwrap_or(name).trim_matches('"');
        inner.escape_debug().to_string()
    };
    presented.iter().map(bare).collect::<Vec<_>>().join(", ")
}

fn incompatible(why: &PeerIncompatible) -> String {
    use PeerIncompatible as P;
    let what = match why {
        // Clients with TLS 1.1 or older send no list of signature schemes.
        P::SupportedVersionsExtensionRequired
        | P::SignatureAlgorithmsExtensionRequired
        | P::ServerDoesNotSupportTls12Or13
        | P::Tls12NotOffered
        | P::Tls12NotOfferedOrEnabled
        | P::Tls13RequiredForQuic
        | P::ServerTlsVersionIsDisabledByOurConfig => "the peer's TLS is older than 1.2",
        P::NoCipherSuitesInCommon | P::NoKxGroupsInCommon | P::NoSignatureSchemesInCommon => {
            "the peer has no cipher, key exchange or signature in common with this side"
        }
        _ => {
            return format!("the peer is incompatible with this side: {why:?}");
        }
    };
    format!("the peer is incompatible with this side: {what}")
}

fn alert_text(alert: AlertDescription) -> String {
    use AlertDescription as A;
    let why = match alert {
        A::CertificateExpired => "this side's certificate is expired",
        A::UnknownCA => "the peer does not know the CA of this side's certificate",
        A::BadCertificate | A::CertificateUnknown | A::UnsupportedCertificate => {
            "the peer does not accept this side's certificate (expired, wrong CA, or for another \
             name)"
        }
        A::CertificateRevoked => "this side's certificate was revoked",
        A::CertificateRequired => {
            "it demands a certificate, but this side sent none; configure one with \
             tls-certificate and tls-key"
        }
        A::AccessDenied => "the peer denies this side access",
        A::ProtocolVersion => "the peer has no version of TLS in common with this side",
        A::HandshakeFailure | A::InsufficientSecurity => {
            "the peer has no cipher in common with this side, or needs a certificate"
        }
        A::UnrecognisedName => "the peer does not know the host name that this side used",
        A::InternalError => "the peer had an internal error (internal_error); see its log",
        A::UserCanceled => "the peer's user cancelled (user_canceled); see its log",
        other => return format!("the peer ended the session with the alert {other:?}"),
    };
    format!("the peer refused the session: {why}")
}

#[cfg(test)]
mod tests {
    use rustls::InvalidMessage;

    use super::*;

    #[test]
    fn plaintext_in_place_of_a_handshake_is_shown() {
        let error = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
        let error = Error::of_session(&error, b"IHAVEOPT\0\0");
        assert_eq!(error.kind(), ErrorKind::Protocol);
        let text = error.to_string();
        assert!(text.contains("does not use TLS") && text.contains("\"IHAVEOPT\""), "{text}");
    }

    #[test]
    fn names_of_a_certificate_are_shown_bare_and_write_no_lines() {
        let names = ["DnsName(\"a.test\")", "IpAddress(::1)", "DirectoryName", "DnsName(\"b\nc\")"];
        let names = names.map(str::to_owned);
        assert_eq!(presented_names(&names), "a.test, ::1, DirectoryName, b\\nc");
    }

    #[test]
    fn alerts_say_what_the_peer_does_not_like() {
        for (alert, words) in [
            (AlertDescription::CertificateExpired, "certificate is expired"),
            (AlertDescription::UnknownCA, "does not know the CA"),
            (AlertDescription::CertificateRequired, "this side sent none"),
            (AlertDescription::ProtocolVersion, "no version of TLS"),
            (AlertDescription::InternalError, "had an internal error"),
            (AlertDescription::DecodeError, "the alert DecodeError"),
        ] {
            let error = Error::of_session(&rustls::Error::AlertReceived(alert), &[0x16, 3]);
            assert_eq!(error.kind(), ErrorKind::Refused);
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
