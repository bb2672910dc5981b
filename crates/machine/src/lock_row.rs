//! `LockRow`: statistics of the locks of one name, in total and by call site.
//!
//! The columns are lockmeter's: acquired, contended, rejected, and wait and hold times with mean
//! and maximum, as the OLS 2002 paper uses them.

use core::panic::Location;
#[cfg(feature = "std")]
use std::{collections::BTreeMap, vec::Vec};

/// Source location at which a lock is acquired, as the compiler reports it.
pub type Site = &'static Location<'static>;

/// Source file and line at which a lock is acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallSite {
    /// Path of the source file, as it was passed to the compiler.
    pub file: &'static str,
    /// Line number, from 1.
    pub line: u32,
}

impl From<Site> for CallSite {
    fn from(location: Site) -> Self {
        CallSite { file: location.file(), line: location.line() }
    }
}

/// Statistics of one or more locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LockCounts {
    /// Number of acquisitions.
    pub acquisitions: u64,
    /// Number of attempts that found the lock held, whether or not they acquired it in the end.
    pub contended: u64,
    /// Number of attempts that gave up without the lock, at once or after a wait.
    pub rejected: u64,
    /// Total time waited, in nanoseconds. On the simulated machine the CPU spins meanwhile.
    pub wait_ns: u64,
    /// Longest single wait, in nanoseconds.
    pub wait_ns_max: u64,
    /// Total time held, in nanoseconds.
    pub hold_ns: u64,
    /// Longest single hold, in nanoseconds.
    pub hold_ns_max: u64,
}

impl LockCounts {
    /// Returns the counts of one attempt that waited for `wait_ns` and then gave up.
    #[must_use]
    pub fn rejection(wait_ns: u64) -> LockCounts {
        LockCounts {
            contended: 1,
            rejected: 1,
            wait_ns,
            wait_ns_max: wait_ns,
            ..LockCounts::default()
        }
    }

    /// Adds the counts of another lock or of another period.
    pub fn add(&mut self, other: &LockCounts) {
        self.acquisitions += other.acquisitions;
        self.contended += other.contended;
        self.rejected += other.rejected;
        self.wait_ns += other.wait_ns;
        self.wait_ns_max = self.wait_ns_max.max(other.wait_ns_max);
        self.hold_ns += other.hold_ns;
        self.hold_ns_max = self.hold_ns_max.max(other.hold_ns_max);
    }

    /// Returns the number of attempts to acquire the lock, successful or not.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        self.acquisitions + self.rejected
    }

    /// Returns the time waited, divided by `cpu_ns` (run time multiplied by the number of CPUs).
    #[must_use]
    pub fn wait_share(&self, cpu_ns: u64) -> f64 {
        self.wait_ns as f64 / cpu_ns.max(1) as f64
    }
}

/// One period for which a lock is held.
#[derive(Debug, Clone, Copy)]
pub struct Hold {
    /// Call site that acquired the lock.
    pub site: Site,
    since_ns: u64,
    /// Time waited for the lock, in nanoseconds; `None` if it was free.
    waited_ns: Option<u64>,
}

impl Hold {
    /// Records an acquisition at `now_ns`. If the lock was not free, `tried_ns` is the time of the
    /// first attempt to acquire it.
    #[must_use]
    pub fn begin(site: Site, now_ns: u64, tried_ns: Option<u64>) -> Hold {
        let waited_ns = tried_ns.map(|tried_ns| now_ns.saturating_sub(tried_ns));
        Hold { site, since_ns: now_ns, waited_ns }
    }

    /// Returns the time of the acquisition, in nanoseconds.
    #[must_use]
    pub fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// Returns the statistics of this hold. `now_ns` is the time of the lock's release, in
    /// nanoseconds.
    #[must_use]
    pub fn counts(&self, now_ns: u64) -> LockCounts {
        let wait_ns = self.waited_ns.unwrap_or(0);
        let hold_ns = now_ns.saturating_sub(self.since_ns);
        LockCounts {
            acquisitions: 1,
            contended: self.waited_ns.is_some().into(),
            rejected: 0,
            wait_ns,
            wait_ns_max: wait_ns,
            hold_ns,
            hold_ns_max: hold_ns,
        }
    }
}

/// One row of a table of lock statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRow {
    /// Name that the counted locks share.
    pub name: &'static str,
    /// Call site, or `None` for the total over all call sites.
    pub site: Option<CallSite>,
    /// Statistics of the locks with this name, at this call site or in total.
    pub counts: LockCounts,
}

/// Returns a table ordered by lock name; the total comes before the call sites of each name.
#[cfg(feature = "std")]
pub fn lock_table(
    rows: impl Iterator<Item = (&'static str, CallSite, LockCounts)>,
) -> Vec<LockRow> {
    let mut sums = BTreeMap::<(&str, Option<CallSite>), LockCounts>::new();
    for (name, site, counts) in rows.filter(|(_, _, counts)| counts.attempts() > 0) {
        sums.entry((name, None)).or_default().add(&counts);
        sums.entry((name, Some(site))).or_default().add(&counts);
    }
    sums.into_iter().map(|((name, site), counts)| LockRow { name, site, counts }).collect()
}
