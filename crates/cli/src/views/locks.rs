//! What lock statistics look like on the control socket.
//!
//! Plain data for serde, as report.rs: made by `serve` from the machine's rows, read back by
//! `millrace locks`, which makes of them the lines that `bench --locks` has. Counts grow from the
//! start of the statistics on, so a reader takes the difference of two answers for what came in
//! between. Fields may be added; whoever reads ignores those that it does not know.

use millrace_machine::{LockCounts, LockRow};
use millrace_trace::{LockLine, LockSpan};
use serde::{Deserialize, Serialize};

/// The answer to `locks-status` and `locks-stop`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Locks {
    /// How long statistics have been taken, in nanoseconds.
    pub elapsed_ns: u64,
    /// CPUs that the daemon may use.
    pub cpus: u64,
    /// In order of names; of each name the sum, then its places.
    pub locks: Vec<Lock>,
}

/// What the locks of one name did, in all or at one place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lock {
    /// The locks' name.
    pub name: String,
    /// File and line that took it; none for the sum over all places.
    pub site: Option<String>,
    /// Times one was taken.
    pub acquisitions: u64,
    /// Attempts that found it taken.
    pub contended: u64,
    /// Of these, attempts that went away without it.
    pub rejected: u64,
    /// Time waited.
    pub wait_ns: u64,
    /// Longest wait.
    pub wait_ns_max: u64,
    /// Time held.
    pub hold_ns: u64,
    /// Longest time held.
    pub hold_ns_max: u64,
}

impl From<&LockRow> for Lock {
    fn from(row: &LockRow) -> Lock {
        let counts = &row.counts;
        Lock {
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

impl Locks {
    /// Means and shares.
    pub fn lines(&self) -> Vec<LockLine> {
        let span = LockSpan { elapsed_ns: self.elapsed_ns, cpus: self.cpus };
        let line = |lock: &Lock| {
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
