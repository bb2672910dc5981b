//! `Bar`: a line on a terminal that says how far a long run is.
//!
//! Made by verbs; writes to standard error, on a terminal only.
#![allow(clippy::print_stderr)]

use std::io::{IsTerminal, Write};

use crate::grid::WIDTH;

/// Characters of the bar itself.
const BAR_WIDTH: usize = 20;

/// A line on a terminal that says how far a run is.
pub struct Bar {
    rows: usize,
    shown: bool,
}

impl Bar {
    /// A bar over so many rows, shown if standard error is a terminal.
    pub fn new(rows: usize) -> Bar {
        Bar { rows, shown: std::io::stderr().is_terminal() }
    }

    /// A bar that is never shown.
    pub fn hidden() -> Bar {
        Bar { rows: 0, shown: false }
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
