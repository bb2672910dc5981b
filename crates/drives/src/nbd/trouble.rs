//! `ReconnectTrouble`: why connections of a drive are missing, for the log and for `ctl why`.
//!
//! The first refusal is logged at once. Later ones are logged at limited intervals, because a
//! server may word each refusal differently.

use std::time::Instant;

use super::backoff::LogLimit;

pub(crate) const NOT_SHARED: &str =
    "the server does not say that a flush covers several connections (multi-conn)";

#[derive(Debug, Default)]
pub(crate) struct ReconnectTrouble {
    /// Reason why the last attempt failed or the last connection was lost; `None` once a connection
    /// is up again.
    pub(crate) why: Option<String>,
    said: Option<String>,
    limit: LogLimit,
    seen_up: usize,
    /// Number of open connections in the last log line about missing connections.
    said_up: usize,
}

impl ReconnectTrouble {
    /// Records the server's reason for refusing a connection. Returns a log line if the reason is
    /// new, no connection is up, and the limit of log lines allows it.
    pub(crate) fn refused(&mut self, why: &str, up: usize, now: Instant) -> Option<String> {
        self.why = Some(why.to_owned());
        if up > 0 || self.said.as_deref() == Some(why) || !self.limit.allows(now) {
            return None;
        }
        self.said = Some(why.to_owned());
        Some(format!("the server refuses the drive's reconnect: {why}"))
    }

    pub(crate) fn text(&self, (up, all): (usize, usize)) -> Option<String> {
        let why = self.why.as_deref().unwrap_or("a connection is being made");
        match up {
            _ if up >= all => None,
            0 => Some(format!("no connection: {why}")),
            up => Some(format!("{up} of {all} connections: {why}")),
        }
    }

    /// Returns a log line about missing connections if all of these conditions hold:
    /// - Some connections are up, others are missing, and the reason is known.
    /// - The number of connections that are up is the same as in the previous call.
    /// - The previous line reported a different number.
    pub(crate) fn missing(&mut self, (up, all): (usize, usize)) -> Option<String> {
        let was_so = std::mem::replace(&mut self.seen_up, up) == up;
        let is_new = self.said_up != up && up > 0 && up < all;
        let why = self.why.as_deref().filter(|_| was_so && is_new)?;
        self.said_up = up;
        Some(format!("{up} of {all} connections carry all requests; the others are missing: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_refusal_is_said_once_and_again_after_a_success() {
        let (mut trouble, now) = (ReconnectTrouble::default(), Instant::now());
        trouble.why = Some("refused".to_owned());
        let line = "the server refuses the drive's reconnect: no such export";
        assert_eq!(trouble.refused("no such export", 0, now).as_deref(), Some(line));
        assert_eq!(trouble.refused("no such export", 0, now), None);
        assert_eq!(trouble.text((0, 2)).as_deref(), Some("no connection: no such export"));
        trouble = ReconnectTrouble::default();
        assert_eq!(trouble.refused("full", 1, now), None, "a connection is up");
        assert!(trouble.refused("no such export", 0, now).is_some());
    }

    #[test]
    fn refusals_in_other_words_each_time_are_said_now_and_then() {
        let (mut trouble, begun) = (ReconnectTrouble::default(), Instant::now());
        let said = (0..61).filter(|second| {
            let now = begun + Duration::from_secs(*second);
            let why = format!("bad magic of the greeting: 0x{second:x}");
            trouble.refused(&why, 0, now).is_some()
        });
        assert_eq!(said.collect::<Vec<_>>(), [0, 30, 60]);
        assert!(trouble.text((0, 1)).is_some_and(|text| text.ends_with("0x3c")));
    }

    #[test]
    fn missing_connections_are_said_once_their_number_stays() {
        let mut trouble = ReconnectTrouble::default();
        assert_eq!((trouble.text((4, 4)), trouble.missing((1, 4))), (None, None));
        trouble.refused("full", 2, Instant::now());
        assert_eq!(trouble.missing((2, 4)), None, "it has just changed");
        let line = "2 of 4 connections carry all requests; the others are missing: full";
        assert_eq!(trouble.missing((2, 4)).as_deref(), Some(line));
        assert_eq!(trouble.missing((2, 4)), None);
        assert_eq!(trouble.text((2, 4)).as_deref(), Some("2 of 4 connections: full"));
        assert_eq!((trouble.missing((4, 4)), trouble.text((4, 4))), (None, None));
    }
}
