//! `WorkerState`: a disk's record of its worker thread.
//!
//! The record holds the worker's hardware queue and the worker's identity (0 if there is no
//! worker). The record also counts the bio chains (bios merged into one future request) that wait
//! for the worker. Channels read these counts (back pressure), and the worker reads the record
//! before it sleeps. Owned by a `Disk`; written by handover.rs and worker_drive.rs. Source: Kumar
//! et al., ATC 2017 (the Falcon paper), block layer.

use millrace_machine::{Machine, Order, Word};

pub(crate) struct WorkerState<M: Machine> {
    pub(crate) hctx: u16,
    /// Identity of the worker's thread, or 0 if there is no worker.
    pub(crate) owner: M::Word,
    /// Number of bio chains (bios merged into one future request) that submitters have put into
    /// software queues for the worker. Chains that submitters took back are not counted.
    pub(crate) handed: M::Word,
    /// Number of the bio chains counted in `handed` that were dispatched or merged. Written by
    /// the thread that serves the worker's hardware queue.
    pub(crate) settled: M::Word,
    /// Number of times that another thread served the worker's queue and left work in it.
    pub(crate) rounds: M::Word,
}

impl<M: Machine> WorkerState<M> {
    pub(crate) fn new(hctx: u16) -> Self {
        let word = || M::Word::new(0);
        WorkerState { hctx, owner: word(), handed: word(), settled: word(), rounds: word() }
    }

    #[inline]
    pub(crate) fn is_taken(&self) -> bool {
        // Acquire pairs with the Release of `WorkerDrive::take`: a thread that sees the worker's
        // identity also sees the hardware queue that the worker has opened.
        self.owner.load(Order::Acquire) != 0
    }

    pub(crate) fn waiting(&self) -> u64 {
        // Relaxed: the result is a statistic. It may be slightly wrong, because the two counters
        // are not read at the same time.
        let settled = self.settled.load(Order::Relaxed);
        self.handed.load(Order::Relaxed).saturating_sub(settled)
    }

    /// Returns how often other threads left work in the worker's queue. The worker checks its queue
    /// again if this number has changed.
    pub(crate) fn rounds(&self) -> u64 {
        // Relaxed: before a thread sleeps, the fence of `Doorbell::arm` orders this load.
        self.rounds.load(Order::Relaxed)
    }
}
