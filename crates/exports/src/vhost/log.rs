//! Messages of an export for the operator, limited to what a person can read.
//!
//! The library does not print: the program passes a function that receives lines. A guest or
//! frontend that fails repeatedly gets [`LINES_MAX`] lines per [`PERIOD_NS`] nanoseconds; its
//! further lines are only counted. An error that returns every second, because QEMU reconnects so
//! often, is logged once per [`REPEAT_NS`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use millrace_machine::{Machine, Native};

use crate::mailbox::lock;

const LINES_MAX: u32 = 10;
const PERIOD_NS: u64 = 10_000_000_000;
const REPEAT_NS: u64 = 600_000_000_000;
/// Number of different lines whose repetition is tracked.
const REPEATS_MAX: usize = 16;

/// Function that receives messages for the operator, one line per call.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

#[derive(Clone)]
pub(crate) struct ExportLog {
    export: String,
    say: Say,
    rate: Arc<Mutex<LineRate>>,
    repeats: Arc<Mutex<VecDeque<RepeatedLine>>>,
}

#[derive(Debug)]
struct RepeatedLine {
    text: String,
    since_ns: u64,
    left_out: u32,
}

#[derive(Debug, Default)]
struct LineRate {
    since_ns: u64,
    lines: u32,
    left_out: u32,
}

impl ExportLog {
    pub(crate) fn new(export: &str, say: &Say) -> ExportLog {
        let (rate, repeats) = Default::default();
        ExportLog { export: export.to_owned(), say: Arc::clone(say), rate, repeats }
    }

    pub(crate) fn say(&self, text: impl AsRef<str>) {
        self.say_at(Native::now(), text.as_ref());
    }

    /// Logs a line that may recur: the first time, and every [`REPEAT_NS`] with the number of
    /// repetitions.
    pub(crate) fn say_rarely(&self, text: impl AsRef<str>) {
        self.say_rarely_at(Native::now(), text.as_ref());
    }

    fn say_rarely_at(&self, now_ns: u64, text: &str) {
        let mut line = text.to_owned();
        let mut repeats = lock(&self.repeats);
        if let Some(at) = repeats.iter().position(|one| one.text == text) {
            if now_ns.saturating_sub(repeats[at].since_ns) < REPEAT_NS {
                repeats[at].left_out += 1;
                return;
            }
            let known = repeats.remove(at);
            if let Some(RepeatedLine { left_out: count @ 1.., .. }) = known {
                line = format!("{text} ({count} more times since this was last logged)");
            }
        }
        repeats.truncate(REPEATS_MAX - 1);
        repeats.push_front(RepeatedLine { text: text.to_owned(), since_ns: now_ns, left_out: 0 });
        drop(repeats);
        self.say_at(now_ns, &line);
    }

    /// Logs an event that is not a problem. A frontend causes at most one such line per connection.
    pub(crate) fn note(&self, text: &str) {
        let export = self.export.as_str();
        tracing::info!(export, "export {export}: {text}");
    }

    fn say_at(&self, now_ns: u64, text: &str) {
        let mut rate = lock(&self.rate);
        if now_ns.saturating_sub(rate.since_ns) >= PERIOD_NS {
            let left_out = std::mem::take(&mut rate.left_out);
            (rate.since_ns, rate.lines) = (now_ns, 0);
            if left_out > 0 {
                (self.say)(&format!(
                    "export {}: {left_out} more messages were suppressed",
                    self.export
                ));
            }
        }
        if rate.lines >= LINES_MAX {
            rate.left_out += 1;
            return;
        }
        rate.lines += 1;
        (self.say)(&format!("export {}: {text}", self.export));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_due_every_second_is_said_once_with_later_counts() {
        let said = Arc::new(Mutex::new(Vec::<String>::new()));
        let into = Arc::clone(&said);
        let say: Say = Arc::new(move |text: &str| lock(&into).push(text.to_owned()));
        let log = ExportLog::new("v", &say);
        let start_ns = PERIOD_NS;
        for second in 0..=600 {
            log.say_rarely_at(start_ns + second * 1_000_000_000, "wrong");
            log.say_rarely_at(start_ns + second * 1_000_000_000, "cut off");
        }
        log.say_rarely_at(start_ns, "another");
        let again = |text: &str| format!("{text} (599 more times since this was last logged)");
        let expected = ["wrong".to_owned(), "cut off".to_owned(), again("wrong"), again("cut off")];
        assert_eq!(lock(&said)[..4], expected.map(|text| format!("export v: {text}")));
        assert_eq!(lock(&said)[4..], ["export v: another"]);
        // The oldest lines are forgotten, not the newest.
        (0..2 * REPEATS_MAX).for_each(|at| log.say_rarely_at(start_ns, &at.to_string()));
        assert_eq!(lock(&log.repeats).len(), REPEATS_MAX);
        let newest = (2 * REPEATS_MAX - 1).to_string();
        assert_eq!(lock(&log.repeats)[0].text, newest);
    }

    #[test]
    fn a_flood_of_lines_is_cut_off_and_counted() {
        let said = Arc::new(Mutex::new(Vec::<String>::new()));
        let into = Arc::clone(&said);
        let say: Say = Arc::new(move |text: &str| lock(&into).push(text.to_owned()));
        let log = ExportLog::new("v", &say);
        let start_ns = PERIOD_NS;
        (0..25).for_each(|at| log.say_at(start_ns + at, "broken"));
        log.say_at(2 * PERIOD_NS, "broken");
        let said = lock(&said);
        assert_eq!(said.len(), 12);
        assert_eq!(said[9], "export v: broken");
        assert_eq!(said[10], "export v: 15 more messages were suppressed");
    }
}
