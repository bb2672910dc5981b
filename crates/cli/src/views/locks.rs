//! Lock statistics on the control socket, which `millrace locks` converts to the lines of `bench
//! --locks`.
//!
//! Counters grow from the start of the statistics, so a reader takes the difference of two answers.

use millrace_machine::{LockCounts, LockRow};
use millrace_trace::{LockLine, LockSpan};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockReport {
    pub elapsed_ns: u64,
    pub cpus: u64,
    /// Rows sorted by lock name. For each name, the total comes first, then the places in the code
    /// that take the lock.
    pub locks: Vec<LockCounters>,
}

/// Statistics of all locks of one name, in total or for one place in the code that takes them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockCounters {
    pub name: String,
    /// File and line of the code that takes the locks; `None` for the total of all places.
    pub site: Option<String>,
    #[serde(flatten, with = "LockCountsJson")]
    pub counts: LockCounts,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, remote = "LockCounts")]
struct LockCountsJson {
    acquisitions: u64,
    contended: u64,
    rejected: u64,
    wait_ns: u64,
    wait_ns_max: u64,
    hold_ns: u64,
    hold_ns_max: u64,
}

impl From<&LockRow> for LockCounters {
    fn from(row: &LockRow) -> LockCounters {
        let site = row.site.map(|site| format!("{}:{}", site.file, site.line));
        LockCounters { name: row.name.to_owned(), site, counts: row.counts }
    }
}

impl LockReport {
    pub fn lines(&self) -> Vec<LockLine> {
        let span = LockSpan { elapsed_ns: self.elapsed_ns, cpus: self.cpus };
        let line =
            |lock: &LockCounters| LockLine::of(&lock.name, lock.site.clone(), &lock.counts, span);
        self.locks.iter().map(line).collect()
    }
}
