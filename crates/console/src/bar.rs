//! `Bar`: a line on a terminal that says how far a long run is.
//!
//! Made by verbs; writes to standard error, on a terminal only.
#![allow(clippy::print_stderr)]

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::grid::WIDTH;

/// Characters of the bar itself.
const BAR_WIDTH: usize = 20;

/// A line on a terminal that says how far a run is.
pub struct Bar {
    rows: usize,
    shown: bool,
    /// When the work began.
    start: Instant,
}

impl Bar {
    /// A bar over so many rows, shown if standard error is a terminal.
    pub fn new(rows: usize) -> Bar {
        Bar { rows, shown: std::io::stderr().is_terminal(), start: Instant::now() }
    }

    /// A bar that is never shown.
    pub fn hidden() -> Bar {
        Bar { rows: 0, shown: false, start: Instant::now() }
    }

    /// Row `index` is at `fraction`.
    pub fn show(&mut self, index: usize, label: &str, fraction: f64) {
        let whole = (index as f64 + fraction) / self.rows.max(1) as f64;
        self.draw(whole, &format!("{}/{} {label}", index + 1, self.rows));
    }

    /// `done` of `rows` tasks have ended, and the one of this name has begun.
    pub fn step(&mut self, done: usize, rows: usize, task: &str) {
        self.draw(done as f64 / rows.max(1) as f64, &format!("{done}/{rows} {task}"));
    }

    fn draw(&mut self, whole: f64, label: &str) {
        if !self.shown {
            return;
        }
        let full = ((whole * BAR_WIDTH as f64) as usize).min(BAR_WIDTH);
        let (done, rest) = ("#".repeat(full), ".".repeat(BAR_WIDTH - full));
        let label = format!("{} {label}", percent_and_rest(whole, self.start.elapsed()));
        // A line that the terminal wrapped could not be wiped.
        let label: String = label.chars().take(WIDTH - BAR_WIDTH - 4).collect();
        eprint!("\r\x1b[K[{done}{rest}] {label}");
        // A terminal that went away does not matter here.
        let _ = std::io::stderr().flush();
    }

    /// Wipes the line.
    pub fn clear(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

/// How much is done, and how long the rest takes if it goes on as until now: `42 %, 1m05s left`.
/// Nothing about the rest before there is something to judge by.
fn percent_and_rest(whole: f64, elapsed: Duration) -> String {
    let percent = format!("{:3.0} %", whole.min(1.0) * 100.0);
    if whole < 0.01 || whole >= 1.0 || elapsed < Duration::from_secs(1) {
        return percent;
    }
    let left_s = (elapsed.as_secs_f64() * (1.0 - whole) / whole).ceil() as u64;
    match left_s {
        ..60 => format!("{percent}, {left_s}s left"),
        60..3600 => format!("{percent}, {}m{:02}s left", left_s / 60, left_s % 60),
        _ => format!("{percent}, {}h{:02}m left", left_s / 3600, left_s / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_is_judged_by_what_was_done_until_now() {
        let text = |whole, seconds| percent_and_rest(whole, Duration::from_secs(seconds));
        assert_eq!(text(0.25, 10), " 25 %, 30s left");
        assert_eq!(text(0.5, 65), " 50 %, 1m05s left");
        assert_eq!(text(0.1, 1000), " 10 %, 2h30m left");
        assert_eq!(
            (text(0.001, 100), text(0.5, 0), text(1.0, 9)),
            ("  0 %".into(), " 50 %".into(), "100 %".into())
        );
    }
}
