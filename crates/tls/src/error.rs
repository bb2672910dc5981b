//! What goes wrong, in words for whoever runs the server or the client.
//!
//! Owns the error type and the translation of rustls's errors. Called by everything here.

use std::path::Path;

use rustls::{AlertDescription, CertificateError, InvalidMessage, PeerIncompatible};

/// What kind of failure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file cannot be read, or what is in it cannot be used.
    File,
    /// The peer's certificate is expired, of an unknown CA, for another name, or otherwise bad.
    Certificate,
    /// The peer sent no certificate though one is needed.
    NoCertificate,
    /// The peer does not speak TLS, or broke its rules.
    Protocol,
    /// The two sides have no version or cipher in common.
    Versions,
    /// The peer ended the session with an alert: it does not accept this side.
    Refused,
    /// This side failed.
    Internal,
}

/// A failure with its reason in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    kind: ErrorKind,
    text: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Error {
        Error { kind, text: text.into() }
    }

    pub(crate) fn file(path: &Path, what: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::File, format!("{}: {what}", path.display()))
    }

    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
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
            Tls::InvalidMessage(why) if !is_tls(first) => {
                Error::new(ErrorKind::Protocol, not_tls(first, why))
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

/// Whether a session begins as TLS does: with a handshake record or an alert.
fn is_tls(first: &[u8]) -> bool {
    matches!(first, [] | [0x15 | 0x16] | [0x15 | 0x16, 3, ..])
}

fn not_tls(first: &[u8], why: &InvalidMessage) -> String {
    let shown = &first[..first.len().min(8)];
    format!(
        "the peer does not speak TLS where a handshake is due: it sent {} ({why:?})",
        shown.escape_ascii()
    )
}

fn certificate_text(error: &CertificateError) -> String {
    use CertificateError as C;
    let why = match error {
        C::Expired | C::ExpiredContext { .. } => "is expired; make a new one",
        C::NotValidYet | C::NotValidYetContext { .. } => {
            "is not valid yet; compare the clocks of both machines"
        }
        C::UnknownIssuer => "is of an unknown CA: compare the CA file of this side with its issuer",
        C::BadSignature => "is not signed by the CA that it names",
        C::Revoked => "was revoked",
        C::BadEncoding => "cannot be decoded",
        C::InvalidPurpose | C::InvalidPurposeContext { .. } => {
            "is not made for this side: its extended key usage lacks serverAuth or clientAuth"
        }
        C::NotValidForNameContext { expected, presented } => {
            let expected = expected.to_str();
            let presented = presented.join(", ");
            return format!(
                "the certificate of the peer is for another name: '{expected}' was expected, and \
                 it has {presented}"
            );
        }
        C::NotValidForName => "is for another name",
        other => return format!("the certificate of the peer is not accepted: {other}"),
    };
    format!("the certificate of the peer {why}")
}

fn incompatible(why: &PeerIncompatible) -> String {
    use PeerIncompatible as P;
    let what = match why {
        P::SupportedVersionsExtensionRequired
        | P::ServerDoesNotSupportTls12Or13
        | P::Tls12NotOffered
        | P::Tls12NotOfferedOrEnabled
        | P::Tls13RequiredForQuic
        | P::ServerTlsVersionIsDisabledByOurConfig => "its TLS is older than 1.2".to_owned(),
        P::NoCipherSuitesInCommon | P::NoKxGroupsInCommon | P::NoSignatureSchemesInCommon => {
            "it has no cipher, key exchange or signature in common with this side".to_owned()
        }
        other => format!("{other:?}"),
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
        A::CertificateRequired => "it needs a certificate from this side, which sent none",
        A::AccessDenied => "it does not let this side in",
        A::ProtocolVersion => "it has no version of TLS in common with this side",
        A::HandshakeFailure | A::InsufficientSecurity => {
            "it has no cipher in common with this side, or needs a certificate"
        }
        A::UnrecognisedName => "it does not know the name that it was called by",
        other => return format!("the peer ended the session with the alert {other:?}"),
    };
    format!("the peer refused the session: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plaintext_in_place_of_a_handshake_is_shown() {
        let error = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
        let error = Error::of_session(&error, b"IHAVEOPT\0\0");
        assert_eq!(error.kind(), ErrorKind::Protocol);
        let text = error.to_string();
        assert!(text.contains("does not speak TLS") && text.contains("IHAVEOPT ("), "{text}");
    }

    #[test]
    fn alerts_say_what_the_peer_does_not_like() {
        for (alert, words) in [
            (AlertDescription::CertificateExpired, "certificate is expired"),
            (AlertDescription::UnknownCA, "does not know the CA"),
            (AlertDescription::CertificateRequired, "which sent none"),
            (AlertDescription::ProtocolVersion, "no version of TLS"),
            (AlertDescription::InternalError, "the alert InternalError"),
        ] {
            let error = Error::of_session(&rustls::Error::AlertReceived(alert), &[0x16, 3]);
            assert_eq!(error.kind(), ErrorKind::Refused);
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
