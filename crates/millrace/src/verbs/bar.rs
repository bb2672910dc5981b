//! `Bar`: a line on a terminal that says how far a long run is.
//!
//! Made by verbs; writes to standard error, on a terminal only.
#![allow(clippy::print_stderr)]

use std::io::Write;

/// A line on a terminal that says how far a run is.
pub struct Bar {
    rows: usize,
    shown: bool,
}

impl Bar {
    /// A bar over so many rows, shown on terminals only.
    pub fn new(rows: usize, terminal: bool) -> Bar {
        Bar { rows, shown: terminal }
    }

    /// Row `index` is at `fraction`.
    pub fn show(&mut self, index: usize, label: &str, fraction: f64) {
        if !self.shown {
            return;
        }
        let whole = (index as f64 + fraction) / self.rows.max(1) as f64;
        let full = (whole * 30.0) as usize;
        eprint!(
            "\r\x1b[K[{}{}] {}/{} {label}",
            "#".repeat(full),
            ".".repeat(30 - full.min(30)),
            index + 1,
            self.rows
        );
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
