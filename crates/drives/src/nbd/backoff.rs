//! `ReconnectBackoff`: how long a drive waits after a loss before it connects anew, and which
//! losses are logged.
//!
//! One for all connections of a drive, as the loss of one gives up all of them: a server that ends
//! each connection at its first request would be dialled without end by one link after the other.
//! The pause grows while connections are lost soon. Also owns `LogLimit`, which keeps lines about
//! one thing apart. Used by `drive_state.rs` and `trouble.rs`.

use std::time::{Duration, Instant};

/// A connection that is lost sooner is of little use, whatever was answered on it.
const LIFE_MIN: Duration = Duration::from_secs(1);
/// Pause after the first such connection; it doubles with each further one in a row.
const PAUSE_MIN_MS: u64 = 10;
/// Longest pause.
const PAUSE_MAX_MS: u64 = 1000;
/// Least time between two log lines about one thing.
const LOG_PERIOD: Duration = Duration::from_secs(30);

/// When a line about something was logged last.
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

/// The losses of a drive.
#[derive(Debug, Default)]
pub(crate) struct ReconnectBackoff {
    /// Connections in a row that were lost soon.
    short: u32,
    /// No connection is made before.
    not_before: Option<Instant>,
    limit: LogLimit,
    /// The last connection was lost because its server was silent.
    pub(crate) was_silent: bool,
    /// The last loss was not logged, nor that requests fail since; nor is the reconnect.
    is_quiet: bool,
}

impl ReconnectBackoff {
    /// Notes the loss of a connection that was made at `since`.
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

    /// How long to wait before the next connection is made.
    pub(crate) fn pause(&self, now: Instant) -> Duration {
        self.not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    /// Connections in a row that did not last.
    pub(crate) fn short(&self) -> u32 {
        self.short
    }

    /// It is logged that requests fail, and so is the next reconnect.
    pub(crate) fn requests_fail(&mut self) {
        self.is_quiet = false;
    }

    /// Returns true if the last loss, and the reconnect after it, are logged.
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
    fn losses_of_connections_that_do_not_last_are_logged_now_and_then() {
        let (mut backoff, begun) = (ReconnectBackoff::default(), Instant::now());
        let mut logged = 0;
        for round in 0..61 {
            let now = begun + Duration::from_secs(round);
            backoff.lost(now, now);
            logged += u32::from(backoff.is_logged());
        }
        assert_eq!((logged, backoff.short()), (3, 61));
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
