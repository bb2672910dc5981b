//! What an export has to say to a person, a line at a time, and not more than a person can read.
//!
//! The library does not print: the program gives a place for lines. A guest or frontend that breaks
//! things over and over gets [`LINES_MAX`] lines in [`PERIOD_NS`] nanoseconds, then a count.
//! Called by the control thread and the I/O threads of an export.

use std::sync::{Arc, Mutex};

use millrace_machine::{Machine, Native};

use crate::mailbox::lock;

/// Most lines in a period.
const LINES_MAX: u32 = 10;
/// A period: 10 s.
const PERIOD_NS: u64 = 10_000_000_000;

/// Where lines go.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// The log of an export.
#[derive(Clone)]
pub(crate) struct Log {
    export: String,
    say: Say,
    rate: Arc<Mutex<Rate>>,
}

#[derive(Debug, Default)]
struct Rate {
    since_ns: u64,
    lines: u32,
    left_out: u32,
}

impl Log {
    pub(crate) fn new(export: &str, say: &Say) -> Log {
        Log { export: export.to_owned(), say: Arc::clone(say), rate: Arc::default() }
    }

    /// Says a line, unless too many were said lately.
    pub(crate) fn say(&self, text: impl AsRef<str>) {
        self.say_at(Native::now(), text.as_ref());
    }

    /// Logs what is no trouble; a frontend makes one such line at most each time that it connects.
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
                (self.say)(&format!("export {}: {left_out} more lines were left out", self.export));
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
    fn a_flood_of_lines_is_cut_off_and_counted() {
        let said = Arc::new(Mutex::new(Vec::<String>::new()));
        let into = Arc::clone(&said);
        let say: Say = Arc::new(move |text: &str| lock(&into).push(text.to_owned()));
        let log = Log::new("v", &say);
        let start_ns = PERIOD_NS;
        (0..25).for_each(|at| log.say_at(start_ns + at, "broken"));
        log.say_at(2 * PERIOD_NS, "broken");
        let said = lock(&said);
        assert_eq!(said.len(), 12);
        assert_eq!(said[9], "export v: broken");
        assert_eq!(said[10], "export v: 15 more lines were left out");
    }
}
