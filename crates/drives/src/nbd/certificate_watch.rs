//! `CertificateWatch`: warns before the certificate of a drive's server expires, and when it has
//! expired.
//!
//! An expired certificate does not end an open connection, but makes the next one fail.

use std::time::SystemTime;

use millrace_tls::{Expiry, Lifetime, Session};

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
    pub(crate) fn connected(&mut self, session: &Session) {
        self.lifetime = session.peer_lifetime().cloned();
    }

    /// Returns a line for the log, once a day, if the certificate expires soon or has expired.
    pub(crate) fn news(&mut self) -> Option<String> {
        self.news_at(SystemTime::now())
    }

    fn news_at(&mut self, now: SystemTime) -> Option<String> {
        let expiry = self.lifetime.as_ref()?.expiry(now);
        let is_new = expiry != self.said;
        self.said = expiry;
        match &self.said {
            expiry @ (Expiry::Soon { .. } | Expiry::Over { .. }) if is_new => Some(format!(
                "the server's certificate {expiry}; after that, a lost connection cannot be \
                 restored until the server has a new certificate"
            )),
            _ => None,
        }
    }
}
