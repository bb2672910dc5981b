//! `Lifetime`: the validity period of a certificate chain, and when a warning about its expiry is
//! due.
//!
//! `certificate.rs` reads the dates once, from the certificate of a configuration or of a session's
//! peer. Code that logs warnings queries the state repeatedly.

use std::fmt;
use std::time::{Duration, SystemTime};

const WARN_BEFORE: Duration = Duration::from_secs(7 * DAY_S);
/// Warnings are due only in the last 1/`WARN_PART` of the validity period, so that a certificate
/// that is renewed every day causes no warning.
const WARN_PART: u32 = 3;
const DAY_S: u64 = 24 * 60 * 60;

/// Validity period of a certificate chain, set by the certificate that expires first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lifetime {
    /// Start of the validity; like `end`, a time since the Unix epoch.
    pub(crate) begin: Duration,
    pub(crate) end: Duration,
    pub(crate) end_text: String,
}

/// Expiry state of a certificate. The state changes daily near the end of the validity period, so
/// that each state can be logged once.
#[allow(missing_docs)] // `days` are whole days until or since the expiry, `end` is its date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateExpiry {
    Far,
    Soon { days: u64, end: String },
    Over { days: u64, end: String },
}

impl Lifetime {
    /// Returns the expiry state at the time `now`.
    #[must_use]
    pub fn expiry(&self, now: SystemTime) -> CertificateExpiry {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let (end, days) = (self.end_text.clone(), |time: Duration| time.as_secs() / DAY_S);
        let Some(left) = self.end.checked_sub(now).filter(|left| !left.is_zero()) else {
            return CertificateExpiry::Over { days: days(now.saturating_sub(self.end)), end };
        };
        let whole = self.end.saturating_sub(self.begin);
        match left < WARN_BEFORE.min(whole / WARN_PART) {
            true => CertificateExpiry::Soon { days: days(left), end },
            false => CertificateExpiry::Far,
        }
    }
}

impl fmt::Display for CertificateExpiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificateExpiry::Far => f.write_str("is valid"),
            CertificateExpiry::Soon { days: 0, end } => write!(f, "expires within a day, at {end}"),
            CertificateExpiry::Soon { days: 1, end } => write!(f, "expires in 1 day, at {end}"),
            CertificateExpiry::Soon { days, end } => write!(f, "expires in {days} days, at {end}"),
            CertificateExpiry::Over { end, .. } => write!(f, "expired at {end}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(whole_days: u64, left_s: i64) -> String {
        let end = Duration::from_secs(1000 * DAY_S);
        let begin = end - Duration::from_secs(whole_days * DAY_S);
        let lifetime = Lifetime { begin, end, end_text: "T".to_owned() };
        let now_s = end.as_secs().checked_add_signed(-left_s).unwrap();
        lifetime.expiry(SystemTime::UNIX_EPOCH + Duration::from_secs(now_s)).to_string()
    }

    #[test]
    fn certificate_warns_near_its_end_and_after_it() {
        let day = DAY_S as i64;
        assert_eq!(said(365, 7 * day), "is valid");
        assert_eq!(said(365, 7 * day - 1), "expires in 6 days, at T");
        assert_eq!(said(365, day + 9), "expires in 1 day, at T");
        assert_eq!(said(365, 1), "expires within a day, at T");
        assert_eq!([said(365, 0), said(365, -day)], ["expired at T"; 2]);
        assert_eq!(said(6, 2 * day), "is valid", "a third of its time is left");
        assert_eq!(said(6, 2 * day - 1), "expires in 1 day, at T");
    }
}
