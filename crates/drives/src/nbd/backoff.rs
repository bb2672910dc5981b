//! `ReconnectBackoff`: how long a drive waits after a lost connection before it reconnects, and
//! which losses are logged.
//!
//! All connections of a drive share one back-off: when one is lost, the drive closes them all. The
//! pause doubles while connections are short-lived, so that a server that closes each connection at
//! its first request is not dialled without pause.

use std::time::{Duration, Instant};

/// A connection that is lost within this time counts as short-lived, even if it answered requests.
const LIFE_MIN: Duration = Duration::from_secs(1);
/// Pause after the first short-lived connection, in milliseconds. Each further one in a row doubles
/// the pause.
const PAUSE_MIN_MS: u64 = 10;
const PAUSE_MAX_MS: u64 = 1000;
const LOG_PERIOD: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(crate) struct LogLimit(Option<Instant>);

impl LogLimit {
    /// Returns true if a line may be logged now, and counts it as logged.
    pub(crate) fn allows(&mut self, now: Instant) -> bool {
        let last = self.0.map(|at| now.saturating_duration_since(at));
        let is_allowed = last.is_none_or(|ago| ago >= LOG_PERIOD);
        if is_allowed {
            self.0 = Some(now);
        }
        is_allowed
    }
}

#[derive(Debug, Default)]
pub(crate) struct ReconnectBackoff {
    pub(crate) short: u32,
    not_before: Option<Instant>,
    limit: LogLimit,
    /// True if the last connection was lost because its server did not answer.
    pub(crate) was_silent: bool,
    /// True if `limit` suppresses the log lines about the last loss and about the reconnect that
    /// follows.
    is_quiet: bool,
}

impl ReconnectBackoff {
    pub(crate) fn lost(&mut self, since: Instant, now: Instant) {
        if now.saturating_duration_since(since) >= LIFE_MIN {
            *self = ReconnectBackoff::default();
            return;
        }
        self.short = self.short.saturating_add(1);
        let pause_ms = (PAUSE_MIN_MS << (self.short - 1).min(10)).min(PAUSE_MAX_MS);
        self.not_before = Some(now + Duration::from_millis(pause_ms));
        self.is_quiet = !self.limit.allows(now);
    }

    pub(crate) fn pause(&self, now: Instant) -> Duration {
        self.not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    /// Records that failing requests were logged. The next reconnect is then logged, too, so that
    /// the log shows the end of the failures.
    pub(crate) fn requests_fail(&mut self) {
        self.is_quiet = false;
    }

    pub(crate) fn is_logged(&self) -> bool {
        !self.is_quiet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second_while_connections_are_lost_soon() {
        let (mut backoff, now) = (ReconnectBackoff::default(), Instant::now());
        let mut pause = |since, now| {
            backoff.lost(since, now);
            backoff.pause(now).as_millis()
        };
        let pauses = [(); 9].map(|()| pause(now, now));
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(pause(now, now + LIFE_MIN), 0, "it lasted");
        assert_eq!(pause(now, now), 10);
        assert_eq!(backoff.pause(now + Duration::from_millis(4)).as_millis(), 6, "what is left");
        backoff.short = u32::MAX;
        backoff.lost(now, now);
        assert_eq!(backoff.pause(now), Duration::from_secs(1));
    }

    #[test]
    fn temporary_connection_losses_are_logged_now_and_then() {
        let (mut backoff, begun) = (ReconnectBackoff::default(), Instant::now());
        let mut logged = 0;
        for round in 0..61 {
            let now = begun + Duration::from_secs(round);
            backoff.lost(now, now);
            logged += u32::from(backoff.is_logged());
        }
        assert_eq!((logged, backoff.short), (3, 61));
        backoff.lost(begun, begun + Duration::from_secs(62));
        assert!(backoff.is_logged(), "it lasted");
        backoff.lost(begun, begun);
        assert!(backoff.is_logged());
        backoff.lost(begun, begun);
        assert!(!backoff.is_logged());
        backoff.requests_fail();
        assert!(backoff.is_logged(), "the reconnect ends that requests fail");
    }
}
