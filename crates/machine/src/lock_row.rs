//! `LockRow`: what the locks of one name did, in all and by place in the source.
//!
//! Plain data, shared by the machines that keep lock statistics: the native one on demand, the
//! simulated one always. Columns are lockmeter's: taken, contended, rejected, wait and hold with
//! mean and maximum, as \[OLS\] uses them. `Hold` is one time that a lock is held, from taking it
//! to giving it up, for locks that find out by themselves.

use core::panic::Location;
#[cfg(feature = "std")]
use std::{collections::BTreeMap, vec::Vec};

/// Where a lock was taken, as the compiler says it.
pub type Site = &'static Location<'static>;

/// A place in the source that takes a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallSite {
    /// File, as the compiler was given it.
    pub file: &'static str,
    /// Line, 1-based.
    pub line: u32,
}

impl From<Site> for CallSite {
    fn from(location: Site) -> Self {
        CallSite { file: location.file(), line: location.line() }
    }
}

/// What happened to locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LockCounts {
    /// Times one was taken.
    pub acquisitions: u64,
    /// Attempts that found it taken, whatever came of them.
    pub contended: u64,
    /// Of these, attempts that went away without it, at once or after a while.
    pub rejected: u64,
    /// Time waited, in nanoseconds; the CPU spins meanwhile on the simulated machine.
    pub wait_ns: u64,
    /// Longest single wait.
    pub wait_ns_max: u64,
    /// Time held, in nanoseconds.
    pub hold_ns: u64,
    /// Longest single time held.
    pub hold_ns_max: u64,
}

impl LockCounts {
    /// One attempt that found the lock taken and went away after so long.
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

    /// Adds another's counts.
    pub fn add(&mut self, other: &LockCounts) {
        self.acquisitions += other.acquisitions;
        self.contended += other.contended;
        self.rejected += other.rejected;
        self.wait_ns += other.wait_ns;
        self.wait_ns_max = self.wait_ns_max.max(other.wait_ns_max);
        self.hold_ns += other.hold_ns;
        self.hold_ns_max = self.hold_ns_max.max(other.hold_ns_max);
    }

    /// Times that somebody wanted one: taken or gone away without.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        self.acquisitions + self.rejected
    }

    /// Part of `cpu_ns` (run time times CPUs) that went by in waiting, 0 to 1.
    #[must_use]
    pub fn wait_share(&self, cpu_ns: u64) -> f64 {
        self.wait_ns as f64 / cpu_ns.max(1) as f64
    }
}

/// One time that a lock is held.
#[derive(Debug, Clone, Copy)]
pub struct Hold {
    /// The place in the code that took it.
    pub site: Site,
    since_ns: u64,
    /// Time waited for it; none: it was free.
    waited_ns: Option<u64>,
}

impl Hold {
    /// It was taken at `now_ns`; `tried_ns` is since when it was tried, if it was not free at once.
    #[must_use]
    pub fn begin(site: Site, now_ns: u64, tried_ns: Option<u64>) -> Hold {
        let waited_ns = tried_ns.map(|tried_ns| now_ns.saturating_sub(tried_ns));
        Hold { site, since_ns: now_ns, waited_ns }
    }

    /// When it was taken.
    #[must_use]
    pub fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// What it adds to the statistics if it ends at `now_ns`.
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
