//! What both back ends share: the table of operations, the pool, the wake eventfd, the counters.
//!
//! Owned by the reactor, lent to the back end for each call. Not shared between threads, except
//! for the eventfd (anyone may write it) and the pool's inner state (its own lock). Invariant: a
//! source has a share of the pool before its first job, and keeps it until it is released.

use crate::config::{Counters, FileCarrier, Wait};
use crate::op::Source;
use crate::pool::{Pool, PoolShare, Sleep};
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
    /// By source, as far as any has one.
    shares: Vec<Option<FileShare>>,
}

/// How the pool serves a source.
struct FileShare {
    share: Arc<PoolShare>,
    /// `Threads`: reads, writes and all else on files go to the pool, too.
    carrier: FileCarrier,
}

impl Hub {
    /// A hub with a new eventfd.
    pub(crate) fn new() -> io::Result<Hub> {
        let wake = Arc::new(sys::eventfd()?);
        Ok(Hub {
            table: Table::default(),
            pool: Pool::new(Arc::clone(&wake)),
            wake,
            counters: Counters::default(),
            shares: Vec::new(),
        })
    }

    /// Gives a source its share of the pool.
    pub(crate) fn set_share(
        &mut self,
        source: Source,
        share: Arc<PoolShare>,
        carrier: FileCarrier,
    ) {
        let at = usize::from(source.0);
        if at >= self.shares.len() {
            self.shares.resize_with(at + 1, || None);
        }
        self.shares[at] = Some(FileShare { share, carrier });
    }

    /// Closes an inbox, and gives its share of the pool back.
    pub(crate) fn release(&mut self, source: Source) {
        self.table.release(source);
        if let Some(share) = self.shares.get_mut(usize::from(source.0)) {
            *share = None;
        }
    }

    fn share(&self, source: Source) -> Option<&FileShare> {
        self.shares.get(usize::from(source.0))?.as_ref()
    }

    /// Returns true if the pool does all of a source's operations on files.
    pub(crate) fn takes_files(&self, source: Source) -> bool {
        self.share(source).is_some_and(|share| share.carrier == FileCarrier::Threads)
    }

    /// Adds an operation to the batch for the pool.
    pub(crate) fn queue_job(&mut self, key: Key) {
        let Some(slot) = self.table.get(key) else { return };
        slot.phase = Phase::Pooled;
        let (source, op) = (slot.source, slot.op);
        if self.share(source).is_none() {
            self.set_share(source, PoolShare::new(), FileCarrier::Ring);
        }
        if let Some(Some(FileShare { share, .. })) = self.shares.get(usize::from(source.0)) {
            self.pool.add(key, share, op);
        }
    }

    /// Takes an operation back that no thread of the pool has begun, and completes it with
    /// `-ECANCELED`; the result of the cancel.
    pub(crate) fn cancel_job(&mut self, key: Key) -> i32 {
        let Some(source) = self.table.get(key).map(|slot| slot.source) else {
            return -libc::ENOENT;
        };
        let share = self.shares.get(usize::from(source.0)).and_then(Option::as_ref);
        if !share.is_some_and(|share| self.pool.cancel(key, &share.share)) {
            return -libc::EALREADY;
        }
        self.table.complete(key, -libc::ECANCELED, 0);
        0
    }

    /// How long a turn may sleep that wants to for `limit_ns` (none: for ever); none if results of
    /// the pool are there.
    pub(crate) fn prepare_sleep(&mut self, limit_ns: Option<u64>) -> Option<Option<u64>> {
        match self.pool.prepare_sleep() {
            Sleep::No => None,
            Sleep::Until(None) => Some(limit_ns),
            Sleep::Until(Some(again_ns)) => {
                let until_ns = again_ns.saturating_sub(sys::now_ns());
                Some(Some(limit_ns.map_or(until_ns, |limit_ns| limit_ns.min(until_ns))))
            }
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
