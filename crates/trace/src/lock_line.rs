//! `LockLine`: what locks did in a time, in lockmeter's columns, as printed and as JSON.
//!
//! Plain data, made of the machine's `LockRow`, or of a daemon's report of the same counts. Printed
//! by `millrace locks` and by `bench --locks`. Units are in the names.

use millrace_machine::{LockCounts, LockRow};
use serde::Serialize;

/// A time, and how many CPUs could run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockSpan {
    /// How long.
    pub elapsed_ns: u64,
    /// CPUs.
    pub cpus: u64,
}

/// What the locks of one name did in the whole run, in all or at one place: lockmeter's columns.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LockLine {
    /// The locks' name.
    pub name: String,
    /// File and line that took it; none for the sum over all places.
    pub site: Option<String>,
    /// Times one was taken.
    pub acquisitions: u64,
    /// Attempts that went away without it, since it was taken.
    pub rejected: u64,
    /// Part of all attempts that found it taken, 0 to 1.
    pub contended_share: f64,
    /// Mean wait of those.
    pub wait_ns_mean: u64,
    /// Longest wait.
    pub wait_ns_max: u64,
    /// Mean time held.
    pub hold_ns_mean: u64,
    /// Longest time held.
    pub hold_ns_max: u64,
    /// Part of the time that one was held, 0 to 1; of several locks of the name, added up.
    pub held_share: f64,
    /// Part of the CPUs' time that went by in waiting, 0 to 1.
    pub spin_share: f64,
}

impl LockLine {
    /// A line of what happened in a time.
    #[must_use]
    pub fn new(row: &LockRow, span: LockSpan) -> LockLine {
        let site = row.site.map(|site| format!("{}:{}", site.file, site.line));
        LockLine::of(row.name, site, &row.counts, span)
    }

    /// A line of a lock's name, place and counts in a time.
    #[must_use]
    pub fn of(name: &str, site: Option<String>, counts: &LockCounts, span: LockSpan) -> LockLine {
        LockLine {
            name: name.to_owned(),
            site,
            acquisitions: counts.acquisitions,
            rejected: counts.rejected,
            contended_share: counts.contended as f64 / counts.attempts().max(1) as f64,
            wait_ns_mean: counts.wait_ns.checked_div(counts.contended).unwrap_or(0),
            wait_ns_max: counts.wait_ns_max,
            hold_ns_mean: counts.hold_ns.checked_div(counts.acquisitions).unwrap_or(0),
            hold_ns_max: counts.hold_ns_max,
            held_share: counts.hold_ns as f64 / span.elapsed_ns.max(1) as f64,
            spin_share: counts.wait_share(span.elapsed_ns.saturating_mul(span.cpus)),
        }
    }
}
