//! `WorkerState`: a disk's record of its worker thread: the worker's hardware queue, its presence,
//! and the number of bio chains (bios merged into one future request) that wait for it.
//!
//! Owned by a `Disk`. handover.rs writes the record. Channels read it to count waiting bio chains
//! (back pressure), and the worker reads it before it sleeps. Source: Kumar et al., ATC 2017 (the
//! Falcon paper), block layer.

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
        // Relaxed: a statistic, which may be slightly wrong: `settled` (bio chains that left the
        // worker's queue) is read before `handed` (all bio chains).
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
