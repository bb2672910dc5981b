//! `ProgressBar`: one line on a terminal that shows the progress of a long run.
//!
//! Verbs that print nothing while they run create one. It writes to standard error, and only if
//! that is a terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use rustix::termios::tcgetwinsize;

use crate::grid::WIDTH;

const BAR_WIDTH: usize = 20;

const RATE_TIME: Duration = Duration::from_millis(500);
/// Time without I/Os after which the rate counts as 0. Some callers count only every 1,024 I/Os.
const SILENCE: Duration = Duration::from_secs(5);

/// Line on a terminal that shows how much of a run is done.
#[derive(Debug)]
pub struct ProgressBar {
    rows: usize,
    shown: bool,
    start: Instant,
    /// Time, and number of I/Os so far, at the start of the current rate measurement.
    counted: (Instant, u64),
    /// I/Os per second, 0 if unknown.
    rate: f64,
    in_flight: u64,
}

impl ProgressBar {
    /// Makes a bar for `rows` tasks. Nothing is drawn unless standard error is a terminal.
    pub fn new(rows: usize) -> ProgressBar {
        let now = Instant::now();
        let shown = std::io::stderr().is_terminal();
        ProgressBar { rows, shown, start: now, counted: (now, 0), rate: 0.0, in_flight: 0 }
    }

    /// Makes a bar that draws nothing.
    pub fn hidden() -> ProgressBar {
        ProgressBar { shown: false, ..ProgressBar::new(0) }
    }

    /// Sets the number of I/Os in flight during the next tasks, so that the bar also shows their
    /// mean latency; 0 if the number is not constant.
    pub fn keep_in_flight(&mut self, ios: u64) {
        self.in_flight = ios;
    }

    /// Updates the displayed IOPS. `ios` is the number of I/Os of the current task so far.
    pub fn count(&mut self, ios: u64) {
        let (since, before) = self.counted;
        let elapsed = since.elapsed();
        if ios < before {
            (self.counted, self.rate) = ((Instant::now(), ios), 0.0);
        } else if elapsed >= RATE_TIME && ios > before || elapsed >= SILENCE {
            self.rate = (ios - before) as f64 / elapsed.as_secs_f64();
            self.counted = (Instant::now(), ios);
        }
    }

    /// Shows that tasks 0 to `index - 1` are done, and task `index` up to `fraction` (0 to 1).
    pub fn show(&mut self, index: usize, label: &str, fraction: f64) {
        let whole = (index as f64 + fraction) / self.rows.max(1) as f64;
        self.draw(whole, &format!("{}/{} {label}", index + 1, self.rows));
    }

    /// Shows that `done` of `rows` tasks have ended and that `task` has begun.
    pub fn step(&mut self, done: usize, rows: usize, task: &str) {
        self.draw(done as f64 / rows.max(1) as f64, &format!("{done}/{rows} {task}"));
    }

    fn draw(&mut self, whole: f64, label: &str) {
        if !self.shown {
            return;
        }
        let full = ((whole * BAR_WIDTH as f64) as usize).min(BAR_WIDTH);
        let (done, rest) = ("#".repeat(full), ".".repeat(BAR_WIDTH - full));
        let rate = match self.rate > 0.0 {
            true => iops(self.rate) + &latency(self.rate, self.in_flight),
            false => String::new(),
        };
        let label = format!("{}{rate}; {label}", percent_and_rest(whole, self.start.elapsed()));
        // The label is truncated, because a label that wrapped onto a second line could not be
        // erased. The last column stays free, because some terminals wrap after it.
        let columns = tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_col));
        let columns = if columns == 0 { WIDTH } else { columns };
        let label: String = label.chars().take(columns.saturating_sub(BAR_WIDTH + 4)).collect();
        // An error means that the terminal is gone; the run continues without a bar.
        let _ = write!(std::io::stderr(), "\r\x1b[K[{done}{rest}] {label}");
    }

    /// Erases the bar.
    pub fn clear(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn iops(rate: f64) -> String {
    match rate {
        ..9_999.5 => format!(", {rate:.0} IOPS"),
        ..999_950.0 => format!(", {:.1}k IOPS", rate / 1e3),
        _ => format!(", {:.1}m IOPS", rate / 1e6),
    }
}

/// Formats the mean latency of I/Os that end at `rate` per second, if `in_flight` of them are
/// always in flight (Little's law).
fn latency(rate: f64, in_flight: u64) -> String {
    let us = in_flight as f64 / rate * 1e6;
    match us {
        0.0 => String::new(),
        ..9.95 => format!(", {us:.1} us"),
        ..9_999.5 => format!(", {us:.0} us"),
        _ => format!(", {:.0} ms", us / 1e3),
    }
}

/// Formats the share that is done and the expected remaining time: `42 %, 1m05s left`. Omits the
/// time while it cannot be estimated.
fn percent_and_rest(whole: f64, elapsed: Duration) -> String {
    let percent = format!("{:3.0} %", whole.min(1.0) * 100.0);
    if !(0.01..1.0).contains(&whole) || elapsed < Duration::from_secs(1) {
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
        assert_eq!(
            [812.0, 12_345.0, 2.5e6].map(iops).concat(),
            ", 812 IOPS, 12.3k IOPS, 2.5m IOPS"
        );
        let latencies = [(40e6, 32), (80_000.0, 8), (100.0, 128), (5.0, 0)];
        assert_eq!(
            latencies.map(|(rate, in_flight)| latency(rate, in_flight)).concat(),
            ", 0.8 us, 100 us, 1280 ms"
        );
        assert_eq!(text(0.5, 65), " 50 %, 1m05s left");
        assert_eq!(text(0.1, 1000), " 10 %, 2h30m left");
        assert_eq!(
            (text(0.001, 100), text(0.5, 0), text(1.0, 9)),
            ("  0 %".into(), " 50 %".into(), "100 %".into())
        );
    }
}
