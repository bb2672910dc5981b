//! `QueueContext`: the values that all functions need to work on I/O at a hardware queue.
//!
//! A context is made for each call from a channel or a worker, and for each queue that a thread
//! runs for other threads. The functions are in dispatch.rs, direct.rs, issue.rs, complete.rs,
//! waiters.rs, handover.rs and baseline/filled.rs. A thread that serves the queue also holds its
//! `ServeGuard`. Kernel counterpart: `struct blk_mq_alloc_data`, which carries the same values.

use millrace_machine::{Machine, Stage};

use crate::account::DiskStats;
use crate::disk::Disk;
use crate::disk::submit_context::SubmitContext;
use crate::disk::trace::DriveTracing;
use crate::queue::HardwareQueue;

pub(crate) struct QueueContext<'a, M: Machine> {
    pub(crate) disk: &'a Disk<M>,
    pub(crate) hctx: &'a HardwareQueue<M>,
    pub(crate) run: &'a mut SubmitContext<M>,
    pub(crate) stats: &'a DiskStats<M>,
}

/// Charges the simulated cost of a stage between software queue and driver, unless the disk follows
/// a design without such stages.
#[inline(always)]
pub(crate) fn work<M: Machine>(disk: &Disk<M>, stage: Stage, count: u32) {
    if disk.baseline.as_ref().is_none_or(|baseline| baseline.has_two_levels) {
        M::work(stage, count);
    }
}

impl<'a, M: Machine> QueueContext<'a, M> {
    #[inline(always)]
    pub(crate) fn new(
        disk: &'a Disk<M>,
        hctx: u16,
        run: &'a mut SubmitContext<M>,
        stats: &'a DiskStats<M>,
    ) -> Self {
        QueueContext { disk, hctx: disk.queues.hctx(hctx), run, stats }
    }

    #[inline(always)]
    pub(crate) fn work(&self, stage: Stage, count: u32) {
        work(self.disk, stage, count);
    }

    #[inline(always)]
    pub(crate) fn may_serve(&self) -> bool {
        self.hctx.may_serve(self.run.owner)
    }

    #[inline(always)]
    pub(crate) fn is_traced(&self) -> bool {
        self.run.trace.is_some() || self.disk.config.trace.is_some()
    }

    #[inline(always)]
    pub(crate) fn trace(&mut self) -> DriveTracing<'_, M> {
        DriveTracing { disk: self.disk, run: self.run }
    }
}
