//! What rustls says, in words for whoever runs the server or the client.
//!
//! Owns the translation of rustls's errors. Called by sessions and by the configuration.

use std::path::Path;

use rustls::{AlertDescription, CertificateError, ExtendedKeyPurpose, PeerIncompatible};

use crate::error::{Error, ErrorKind};

impl Error {
    pub(crate) fn file(path: &Path, what: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::File, format!("{}: {what}", path.display()))
    }

    /// What rustls says, in words; `first` are the first bytes that the peer sent.
    pub(crate) fn of_session(error: &rustls::Error, first: &[u8]) -> Error {
        use rustls::Error as Tls;
        let certificate = |text: String| Error::new(ErrorKind::Certificate, text);
        match error {
            Tls::InvalidCertificate(why) => certificate(certificate_text(why)),
            Tls::NoCertificatesPresented => Error::new(
                ErrorKind::NoCertificate,
                "the peer sent no certificate, and one is required; give it one of a CA that this side \
                 accepts (many clients send none that is of another)",
            ),
            Tls::PeerIncompatible(why) => Error::new(ErrorKind::Versions, incompatible(why)),
            Tls::AlertReceived(alert) => Error::new(ErrorKind::Refused, alert_text(*alert)),
            Tls::InvalidMessage(_) if !is_tls(first) => {
                Error::new(ErrorKind::Protocol, not_tls(first))
            }
            Tls::DecryptError => Error::new(
                ErrorKind::Protocol,
                "a record cannot be decrypted: it was changed on the way, or is of another session",
            ),
            Tls::General(_) | Tls::FailedToGetCurrentTime | Tls::FailedToGetRandomBytes => {
                Error::new(ErrorKind::Internal, format!("TLS failed on this side: {error}"))
            }
            other => {
                Error::new(ErrorKind::Protocol, format!("the peer broke the rules of TLS: {other}"))
            }
        }
    }
}

/// A client's certificate is good but for its CA, whose own certificate is expired.
#[derive(Debug, thiserror::Error)]
#[error(
    "is good, but the CA \"{ca}\" of client-ca that signed it {expiry}; put a new certificate of \
     the CA in its place"
)]
pub(crate) struct ExpiredCa {
    /// The name of the CA.
    pub(crate) ca: String,
    /// Words that go on after the CA.
    pub(crate) expiry: String,
}

/// Whether a session begins as TLS does: with a handshake record or an alert.
fn is_tls(first: &[u8]) -> bool {
    matches!(first, [] | [0x15 | 0x16] | [0x15 | 0x16, 3, ..])
}

fn not_tls(first: &[u8]) -> String {
    let shown = &first[..first.len().min(8)];
    format!(
        "the peer does not speak TLS where a handshake is due: it sent \"{}\"",
        shown.escape_ascii()
    )
}

fn certificate_text(error: &CertificateError) -> String {
    if let CertificateError::NotValidForNameContext { expected, presented } = error {
        let (expected, names) = (expected.to_str(), presented_names(presented));
        return match names.is_empty() {
            true => format!(
                "the certificate of the peer is for another name: '{expected}' was expected, and it \
                 has no subjectAltName, where names of hosts are looked for; make one with it"
            ),
            false => format!(
                "the certificate of the peer is for another name: '{expected}' was expected, and it \
                 has {names}; call the peer by one of them, or make a certificate with the name"
            ),
        };
    }
    format!("the certificate of the peer {}", what_is_wrong(error))
}

/// What is wrong with a certificate: words that go on after "the certificate".
pub(crate) fn what_is_wrong(error: &CertificateError) -> String {
    use CertificateError as C;
    let why = match error {
        C::Expired | C::ExpiredContext { .. } => "is expired; make a new one",
        C::NotValidYet | C::NotValidYetContext { .. } => {
            "is not valid yet; compare the clocks of both machines"
        }
        C::UnknownIssuer => "is of an unknown CA: compare the CA file of this side with its issuer",
        C::BadSignature => {
            "is not signed by the CA that it names, or by a key that is not taken, as RSA of less \
             than 2048 bits is not; compare the CA files of both sides, or make new ones"
        }
        C::Revoked => "was revoked",
        C::BadEncoding => "cannot be decoded: it is damaged, or is none of X.509; make a new one",
        C::InvalidPurposeContext { required: ExtendedKeyPurpose::ServerAuth, .. } => {
            "is not made for servers: its extended key usage lacks serverAuth; make one that has it"
        }
        C::InvalidPurposeContext { required: ExtendedKeyPurpose::ClientAuth, .. } => {
            "is not made for clients: its extended key usage lacks clientAuth; make one that has it"
        }
        C::InvalidPurpose | C::InvalidPurposeContext { .. } => {
            "is not made for this: its extended key usage lacks serverAuth or clientAuth"
        }
        C::NotValidForName | C::NotValidForNameContext { .. } => "is for another name",
        C::UnhandledCriticalExtension => {
            "has a critical extension that this side does not know; make one without it"
        }
        C::UnsupportedSignatureAlgorithmContext { .. }
        | C::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "is signed in a way that this side does not know: a CA's key is RSA, ECDSA on P-256, \
             P-384 or P-521, or Ed25519, and the hash is of SHA-2; make new certificates"
        }
        C::Other(other) => {
            let ca = other.0.downcast_ref::<ExpiredCa>().map(ToString::to_string);
            return ca.unwrap_or_else(|| path_text(&format!("{other:?}")));
        }
        other => return format!("is not accepted: {other}"),
    };
    why.to_owned()
}

/// What the verifier has no kind of its own for, known by its name only: its errors are of a crate
/// that is rustls's affair.
fn path_text(name: &str) -> String {
    let has = |what: &str| name.contains(what);
    let why = if has("EndEntityUsedAsCa") {
        "is signed by a certificate that is not of a CA (it lacks CA:TRUE); sign it with the CA's key"
    } else if has("UnsupportedCertVersion") {
        "is of X.509 version 1, which has no names; make one of version 3, as with openssl x509 -req \
         -extfile"
    } else if has("CaUsedAsEndEntity") {
        "is that of a CA; sign another one with it, for the peer itself"
    } else if has("PathLenConstraintViolated") {
        "is signed by a CA that may sign no more CAs: its path length is too short"
    } else if has("NameConstraintViolation") {
        "has a name that its CA may not sign: see the name constraints of the CA"
    } else {
        return format!("is not accepted: {name}");
    };
    why.to_owned()
}

/// Names in a certificate, which come as Rust's debug text: `DnsName("localhost")`. They are the
/// peer's, so nothing in them may write lines of a log of its own.
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
        // Clients of TLS 1.1 and older do not say which signatures they know.
        P::SupportedVersionsExtensionRequired
        | P::SignatureAlgorithmsExtensionRequired
        | P::ServerDoesNotSupportTls12Or13
        | P::Tls12NotOffered
        | P::Tls12NotOfferedOrEnabled
        | P::Tls13RequiredForQuic
        | P::ServerTlsVersionIsDisabledByOurConfig => "its TLS is older than 1.2",
        P::NoCipherSuitesInCommon | P::NoKxGroupsInCommon | P::NoSignatureSchemesInCommon => {
            "it has no cipher, key exchange or signature in common with this side"
        }
        _ => {
            return format!("the peer cannot speak with this side, in a way that is rare: {why:?}");
        }
    };
    format!("the peer cannot speak with this side: {what}")
}

fn alert_text(alert: AlertDescription) -> String {
    use AlertDescription as A;
    let why = match alert {
        A::CertificateExpired => "this side's certificate is expired",
        A::UnknownCA => "it does not know the CA of this side's certificate",
        A::BadCertificate | A::CertificateUnknown | A::UnsupportedCertificate => {
            "it does not accept this side's certificate (expired, wrong CA, or for another name)"
        }
        A::CertificateRevoked => "this side's certificate was revoked",
        A::CertificateRequired => {
            "it needs a certificate from this side, which sent none; name one and its key by \
             tls-certificate and tls-key"
        }
        A::AccessDenied => "it does not let this side in",
        A::ProtocolVersion => "it has no version of TLS in common with this side",
        A::HandshakeFailure | A::InsufficientSecurity => {
            "it has no cipher in common with this side, or needs a certificate"
        }
        A::UnrecognisedName => "it does not know the name that it was called by",
        A::InternalError => "it failed on its own side (internal_error); see its log",
        A::UserCanceled => "it was told to give up (user_canceled); see its log",
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
        assert!(text.contains("does not speak TLS") && text.contains("\"IHAVEOPT\""), "{text}");
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
            (AlertDescription::CertificateRequired, "which sent none"),
            (AlertDescription::ProtocolVersion, "no version of TLS"),
            (AlertDescription::InternalError, "on its own side"),
            (AlertDescription::DecodeError, "the alert DecodeError"),
        ] {
            let error = Error::of_session(&rustls::Error::AlertReceived(alert), &[0x16, 3]);
            assert_eq!(error.kind(), ErrorKind::Refused);
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
