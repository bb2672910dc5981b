//! Lock statistics on the control socket.
//!
//! Plain data for serde, as in report.rs: `serve` fills it from the machine's counters; `millrace
//! locks` reads it and converts it to the lines of `bench --locks`. Counters grow from the start of
//! the statistics, so a reader takes the difference of two answers. Fields may be added: readers
//! ignore unknown ones.

use millrace_machine::{LockCounts, LockRow};
use millrace_trace::{LockLine, LockSpan};
use serde::{Deserialize, Serialize};

/// Answer to `locks-status` and `locks-stop`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockReport {
    /// Time since the statistics were started, in nanoseconds.
    pub elapsed_ns: u64,
    /// Number of CPUs that the daemon may use.
    pub cpus: u64,
    /// Rows in order of lock names: for each name the total, then the places in the code that take
    /// the lock.
    pub locks: Vec<LockCounters>,
}

/// Statistics of all locks of one name, in total or for one place in the code that takes them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockCounters {
    /// Name of the locks.
    pub name: String,
    /// File and line of the code that takes the locks; `None` for the total of all places.
    pub site: Option<String>,
    /// Number of acquisitions.
    pub acquisitions: u64,
    /// Attempts that found the lock taken.
    pub contended: u64,
    /// Number of these attempts that gave up.
    pub rejected: u64,
    /// Total wait in nanoseconds.
    pub wait_ns: u64,
    /// Longest wait in nanoseconds.
    pub wait_ns_max: u64,
    /// Total hold time in nanoseconds.
    pub hold_ns: u64,
    /// Longest hold time in nanoseconds.
    pub hold_ns_max: u64,
}

impl From<&LockRow> for LockCounters {
    fn from(row: &LockRow) -> LockCounters {
        let counts = &row.counts;
        LockCounters {
            name: row.name.to_owned(),
            site: row.site.map(|site| format!("{}:{}", site.file, site.line)),
            acquisitions: counts.acquisitions,
            contended: counts.contended,
            rejected: counts.rejected,
            wait_ns: counts.wait_ns,
            wait_ns_max: counts.wait_ns_max,
            hold_ns: counts.hold_ns,
            hold_ns_max: counts.hold_ns_max,
        }
    }
}

impl LockReport {
    /// Converts the counters to means and shares.
    pub fn lines(&self) -> Vec<LockLine> {
        let span = LockSpan { elapsed_ns: self.elapsed_ns, cpus: self.cpus };
        let line = |lock: &LockCounters| {
            let counts = LockCounts {
                acquisitions: lock.acquisitions,
                contended: lock.contended,
                rejected: lock.rejected,
                wait_ns: lock.wait_ns,
                wait_ns_max: lock.wait_ns_max,
                hold_ns: lock.hold_ns,
                hold_ns_max: lock.hold_ns_max,
            };
            LockLine::of(&lock.name, lock.site.clone(), &counts, span)
        };
        self.locks.iter().map(line).collect()
    }
}
