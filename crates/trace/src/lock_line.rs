//! `LockLine`: statistics of one lock over a period, in lockmeter's columns, for text and JSON.
//!
//! A line is made from the machine's `LockRow`, or from a daemon's report of the same counts.

use millrace_machine::{LockCounts, LockRow};
use serde::Serialize;

/// Period over which locks were observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockSpan {
    /// Time for which the locks were observed, in nanoseconds.
    pub elapsed_ns: u64,
    /// Number of CPUs that could run while the locks were observed.
    pub cpus: u64,
}

/// Statistics of all locks of one name over a period, in total or for one call site.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LockLine {
    /// Name that the locks have in common.
    pub name: String,
    /// Source file and line that took the lock, or `None` for the total over all call sites.
    pub site: Option<String>,
    /// Number of successful acquisitions.
    pub acquisitions: u64,
    /// Number of failed `try_lock` attempts, which found the lock held and gave up.
    pub rejected: u64,
    /// Fraction of all attempts that found the lock held, 0 to 1.
    pub contended_share: f64,
    /// Mean wait of the contended acquisitions.
    pub wait_ns_mean: u64,
    /// Longest wait for the lock.
    pub wait_ns_max: u64,
    /// Mean time for which the lock was held.
    pub hold_ns_mean: u64,
    /// Longest time for which the lock was held.
    pub hold_ns_max: u64,
    /// Fraction of the period for which the lock was held. Fractions of several locks add up, so
    /// the sum can exceed 1.
    pub held_share: f64,
    /// Fraction of the CPUs' time that was spent waiting for the lock, 0 to 1.
    pub spin_share: f64,
}

impl LockLine {
    /// Computes a report line from the counts of a lock over the period `span`.
    #[must_use]
    pub fn new(row: &LockRow, span: LockSpan) -> LockLine {
        let site = row.site.map(|site| format!("{}:{}", site.file, site.line));
        LockLine::of(row.name, site, &row.counts, span)
    }

    /// Computes a report line from a lock's name, call site and counts over the period `span`.
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
