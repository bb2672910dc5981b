//! `WorkerState`: what a disk knows of its worker: the worker's own hardware queue, whether it is
//! there, and how many chains wait for it.
//!
//! Owned by a `Disk`; written by handover.rs, read by channels, which count what waits (back
//! pressure), and by the worker before it sleeps. Source: \[FALCON\], block layer.

use millrace_machine::{Machine, Order, Word};

/// What a disk knows of its worker.
pub(crate) struct WorkerState<M: Machine> {
    /// Its hardware queue.
    pub(crate) hctx: u16,
    /// The worker's identity while it is there, else 0.
    pub(crate) owner: M::Word,
    /// Chains put into software queues for it, ever.
    pub(crate) handed: M::Word,
    /// Of these, those that went to the driver or into another's request; written by whoever
    /// serves.
    pub(crate) settled: M::Word,
    /// How often somebody else took work from its lists and left it in its queue.
    pub(crate) rounds: M::Word,
}

impl<M: Machine> WorkerState<M> {
    pub(crate) fn new(hctx: u16) -> Self {
        let word = || M::Word::new(0);
        WorkerState { hctx, owner: word(), handed: word(), settled: word(), rounds: word() }
    }

    /// Whether a worker is there.
    #[inline]
    pub(crate) fn is_taken(&self) -> bool {
        // Acquire pairs with the Release of `take_seat`: the queue is open.
        self.owner.load(Order::Acquire) != 0
    }

    /// Chains that wait for the worker to send them on.
    pub(crate) fn waiting(&self) -> u64 {
        // Relaxed: a measure, of which the two halves may be from different moments.
        let settled = self.settled.load(Order::Relaxed);
        self.handed.load(Order::Relaxed).saturating_sub(settled)
    }

    /// How often others left work in its queue: the worker looks once more if this has changed.
    pub(crate) fn rounds(&self) -> u64 {
        // Relaxed: ordered by the fence of `Doorbell::arm` where it decides about sleeping.
        self.rounds.load(Order::Relaxed)
    }
}
