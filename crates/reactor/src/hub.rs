//! What both back ends share: the table of operations, the pool, the wake eventfd, the counters.
//!
//! Owned by the reactor, lent to the back end for each call. Not shared between threads, except
//! for the eventfd (anyone may write it) and the pool's inner state (its own lock).

use crate::config::{Counters, Wait};
use crate::pool::{Job, Pool};
use crate::sys;
use crate::table::{Key, Phase, Table};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The parts of a reactor that do not depend on the back end.
pub(crate) struct Hub {
    pub(crate) table: Table,
    pub(crate) pool: Pool,
    pub(crate) wake: Arc<OwnedFd>,
    pub(crate) counters: Counters,
    jobs: Vec<Job>,
}

impl Hub {
    /// A hub with a new eventfd and a pool without threads yet.
    pub(crate) fn new(pool_threads: usize) -> io::Result<Hub> {
        let wake = Arc::new(sys::eventfd()?);
        Ok(Hub {
            table: Table::default(),
            pool: Pool::new(pool_threads, Arc::clone(&wake)),
            wake,
            counters: Counters::default(),
            jobs: Vec::new(),
        })
    }

    /// Adds an operation to the batch for the pool.
    pub(crate) fn queue_job(&mut self, key: Key) {
        if let Some(slot) = self.table.get(key) {
            slot.phase = Phase::Pooled;
            self.jobs.push(Job { key, source: slot.source.0, op: slot.op });
        }
    }

    /// Hands the batch to the pool.
    pub(crate) fn submit_jobs(&mut self) {
        if !self.jobs.is_empty() {
            self.pool.submit(&mut self.jobs);
            self.jobs.reserve(self.table.outstanding_max());
        }
    }

    /// Puts the pool's results into the inboxes.
    pub(crate) fn collect_jobs(&mut self) {
        let table = &mut self.table;
        self.pool.collect(|key, result| table.complete(key, result, 0));
    }

    /// The nanoseconds a wait may last from now: `None` is for ever.
    pub(crate) fn wait_ns(wait: Wait) -> Option<u64> {
        match wait {
            Wait::No => Some(0),
            Wait::Forever => None,
            Wait::Until(deadline_ns) => Some(deadline_ns.saturating_sub(sys::now_ns())),
        }
    }
}
