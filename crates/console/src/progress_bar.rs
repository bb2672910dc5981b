//! `ProgressBar`: one line on a terminal that shows how far a long run has got.
//!
//! Made by verbs that print nothing while they run. Writes to standard error, and only if that is a
//! terminal.
#![allow(clippy::print_stderr)]

use std::io::{IsTerminal, Write};

use crate::grid::WIDTH;

const BAR_WIDTH: usize = 20;

/// Shows on one line of a terminal how far a run has got.
pub struct ProgressBar {
    rows: usize,
    shown: bool,
}

impl ProgressBar {
    /// Makes a bar for a run of `rows` rows. Nothing is drawn unless standard error is a terminal.
    pub fn new(rows: usize) -> ProgressBar {
        ProgressBar { rows, shown: std::io::stderr().is_terminal() }
    }

    /// Makes a bar that draws nothing.
    pub fn hidden() -> ProgressBar {
        ProgressBar { rows: 0, shown: false }
    }

    /// Shows that row `index`, counted from 0, is done up to `fraction` (0 to 1).
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
        // A label that wrapped onto a second line could not be erased.
        let label: String = label.chars().take(WIDTH - BAR_WIDTH - 4).collect();
        eprint!("\r\x1b[K[{done}{rest}] {label}");
        // An error means that the terminal is gone, and the run goes on without a bar.
        let _ = std::io::stderr().flush();
    }

    /// Erases the line.
    pub fn clear(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}
