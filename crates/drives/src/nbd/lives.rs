//! `Lives`: how long the connections of a link lasted, and so how soon the next one is made.
//!
//! A server that breaks each connection after a little work would be dialled without end; the pause
//! before each dial grows while connections are lost soon. Used by `link.rs`.

use std::time::{Duration, Instant};

/// A connection that is lost sooner is of little use, whatever was answered on it.
const LIFE_MIN: Duration = Duration::from_secs(1);
/// Pause after the first such connection; it doubles with each further one in a row.
const PAUSE_MIN_MS: u64 = 10;
/// Longest pause.
const PAUSE_MAX_MS: u64 = 1000;

/// The lives of a link's connections.
#[derive(Debug)]
pub(crate) struct Lives {
    /// When the last connection was made.
    since: Instant,
    /// Connections in a row that were lost soon.
    short: u32,
}

impl Lives {
    /// Those of a link that has had no connection yet.
    pub(crate) fn new() -> Lives {
        Lives { since: Instant::now(), short: 0 }
    }

    /// A connection is made.
    pub(crate) fn begin(&mut self) {
        self.since = Instant::now();
    }

    /// It is closed; how long to wait before the next one is made.
    pub(crate) fn end(&mut self, now: Instant) -> Duration {
        let is_short = now.saturating_duration_since(self.since) < LIFE_MIN;
        self.short = if is_short { self.short.saturating_add(1) } else { 0 };
        match self.short {
            0 => Duration::ZERO,
            times => Duration::from_millis((PAUSE_MIN_MS << (times - 1).min(10)).min(PAUSE_MAX_MS)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second_while_connections_are_lost_soon() {
        let mut lives = Lives::new();
        let made = lives.since;
        let pauses: Vec<_> = (0..9).map(|_| lives.end(made).as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(lives.end(made + LIFE_MIN), Duration::ZERO, "it lasted");
        assert_eq!(lives.end(made), Duration::from_millis(10));
        lives.short = u32::MAX;
        assert_eq!(lives.end(made), Duration::from_secs(1));
    }
}
