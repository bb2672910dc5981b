//! `LockRow`: what the locks of one name did, in all and by place in the source.
//!
//! Plain data, shared by the machines that keep lock statistics: the simulated one and the metered
//! one. After lockmeter's table, as \[OLS\] uses it.

use core::panic::Location;
use std::collections::BTreeMap;
use std::vec::Vec;

/// A place in the source that takes a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallSite {
    /// File, as the compiler was given it.
    pub file: &'static str,
    /// Line, 1-based.
    pub line: u32,
}

impl From<&'static Location<'static>> for CallSite {
    fn from(location: &'static Location<'static>) -> Self {
        CallSite { file: location.file(), line: location.line() }
    }
}

/// What happened to locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LockCounts {
    /// Times one was taken.
    pub acquisitions: u64,
    /// Those that had to wait.
    pub contended: u64,
    /// Time waited, in nanoseconds; the CPU spins meanwhile on the simulated machine.
    pub wait_ns: u64,
    /// Longest single wait.
    pub wait_ns_max: u64,
    /// Time held, in nanoseconds.
    pub hold_ns: u64,
}

impl LockCounts {
    /// Adds another's counts.
    pub fn add(&mut self, other: &LockCounts) {
        self.acquisitions += other.acquisitions;
        self.contended += other.contended;
        self.wait_ns += other.wait_ns;
        self.wait_ns_max = self.wait_ns_max.max(other.wait_ns_max);
        self.hold_ns += other.hold_ns;
    }

    /// Part of `cpu_ns` (run time times CPUs) that went by in waiting, 0 to 1.
    #[must_use]
    pub fn wait_share(&self, cpu_ns: u64) -> f64 {
        self.wait_ns as f64 / cpu_ns.max(1) as f64
    }
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRow {
    /// The locks' name.
    pub name: &'static str,
    /// The place; `None`: the sum over all places.
    pub site: Option<CallSite>,
    /// What happened.
    pub counts: LockCounts,
}

/// A table in order of names, the sum before the places of each.
pub(crate) fn table(
    rows: impl Iterator<Item = (&'static str, CallSite, LockCounts)>,
) -> Vec<LockRow> {
    let mut sums = BTreeMap::<(&str, Option<CallSite>), LockCounts>::new();
    for (name, site, counts) in rows.filter(|(_, _, counts)| counts.acquisitions > 0) {
        sums.entry((name, None)).or_default().add(&counts);
        sums.entry((name, Some(site))).or_default().add(&counts);
    }
    sums.into_iter().map(|((name, site), counts)| LockRow { name, site, counts }).collect()
}
