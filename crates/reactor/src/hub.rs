//! State that both back ends share: the table of operations, the thread pool, the wake eventfd, the
//! counters.
//!
//! The reactor passes this state to the back end in each call. Invariant: a source (an inbox for
//! completions) has a share of the thread pool from its first job until the source is released.

use crate::config::{Counters, FileCarrier};
use crate::op::Source;
use crate::pool::{PoolShare, WorkerPool};
use crate::sys;
use crate::table::{OperationKey, OperationPhase, OperationTable};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub(crate) struct ReactorState {
    pub(crate) table: OperationTable,
    pub(crate) pool: WorkerPool,
    pub(crate) wake: Arc<OwnedFd>,
    pub(crate) counters: Counters,
    shares: Vec<Option<FileShare>>,
}

struct FileShare {
    share: Arc<PoolShare>,
    carrier: FileCarrier,
}

impl ReactorState {
    pub(crate) fn new() -> io::Result<ReactorState> {
        let wake = Arc::new(sys::eventfd()?);
        Ok(ReactorState {
            table: OperationTable::default(),
            pool: WorkerPool::new(Arc::clone(&wake)),
            wake,
            counters: Counters::default(),
            shares: Vec::new(),
        })
    }

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

    pub(crate) fn release(&mut self, source: Source) {
        self.table.release(source);
        if let Some(share) = self.shares.get_mut(usize::from(source.0)) {
            *share = None;
        }
    }

    fn share(&self, source: Source) -> Option<&FileShare> {
        self.shares.get(usize::from(source.0))?.as_ref()
    }

    pub(crate) fn takes_files(&self, source: Source) -> bool {
        self.share(source).is_some_and(|share| share.carrier == FileCarrier::Threads)
    }

    pub(crate) fn queue_job(&mut self, key: OperationKey) {
        let Some(slot) = self.table.get(key) else { return };
        slot.phase = OperationPhase::Pooled;
        let (source, op) = (slot.source, slot.op);
        if self.share(source).is_none() {
            self.set_share(source, PoolShare::new(), FileCarrier::Ring);
        }
        if let Some(Some(FileShare { share, .. })) = self.shares.get(usize::from(source.0)) {
            self.pool.add(key, share, op);
        }
    }

    /// Cancels a pool operation that no thread has started, and completes it with `-ECANCELED`.
    /// Returns the result of the cancel operation.
    pub(crate) fn cancel_job(&mut self, key: OperationKey) -> i32 {
        let Some(slot) = self.table.get(key) else { return -libc::ENOENT };
        let share = self.shares.get(usize::from(slot.source.0)).and_then(Option::as_ref);
        if !share.is_some_and(|share| self.pool.cancel(key, &share.share)) {
            return -libc::EALREADY;
        }
        self.table.complete(key, -libc::ECANCELED, 0);
        0
    }

    /// Prepares a sleep of the reactor's thread. Returns `None` if the thread must not sleep,
    /// because results of pool threads are waiting. Otherwise returns the maximum time of the sleep
    /// in nanoseconds; an inner `None` means no limit.
    pub(crate) fn prepare_sleep(&mut self, limit_ns: Option<u64>) -> Option<Option<u64>> {
        let Some(again_ns) = self.pool.prepare_sleep()? else { return Some(limit_ns) };
        let until_ns = again_ns.saturating_sub(sys::now_ns());
        Some(Some(limit_ns.map_or(until_ns, |limit_ns| limit_ns.min(until_ns))))
    }

    pub(crate) fn collect_jobs(&mut self) {
        let table = &mut self.table;
        self.pool.collect(|key, result| table.complete(key, result, 0));
    }
}
