//! `CertificateWatch`: when the certificate of a drive's server expires, said before and then.
//!
//! Connections outlive the certificate that they began with; the next one fails. Owns the dates of
//! the certificate that was seen last, and what was said of them. Fed with each new connection,
//! asked by whoever tells people.

use std::time::SystemTime;

use millrace_tls::{Expiry, Lifetime, Session};

/// The certificate that the server showed last.
#[derive(Debug)]
pub(crate) struct CertificateWatch {
    lifetime: Option<Lifetime>,
    said: Expiry,
}

impl Default for CertificateWatch {
    fn default() -> CertificateWatch {
        CertificateWatch { lifetime: None, said: Expiry::Far }
    }
}

impl CertificateWatch {
    /// Notes the certificate of a new connection.
    pub(crate) fn connected(&mut self, session: &Session) {
        self.lifetime = session.peer_lifetime().cloned();
    }

    /// A line for people, once a day: the certificate is about to expire, or is expired.
    pub(crate) fn news(&mut self) -> Option<String> {
        self.news_at(SystemTime::now())
    }

    fn news_at(&mut self, now: SystemTime) -> Option<String> {
        let expiry = self.lifetime.as_ref()?.expiry(now);
        let is_new = expiry != self.said;
        self.said = expiry;
        match &self.said {
            expiry @ (Expiry::Soon { .. } | Expiry::Over { .. }) if is_new => Some(format!(
                "the server's certificate {expiry}; a connection that is lost is not made again \
                 after that, until the server has a new one"
            )),
            _ => None,
        }
    }
}
