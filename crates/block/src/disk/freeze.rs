//! Freezing a disk (nothing comes in, wait until it is empty), quiescing it (nothing goes out).
//!
//! Called by whoever changes a disk's settings or takes it down, from any thread. The flags are
//! read under locks that the path of an I/O takes anyway, so they cost it nothing. Pairs: `freeze`
//! with `unfreeze`, `quiesce` with `unquiesce`. Kernel counterpart: `blk_mq_freeze_queue`,
//! `blk_mq_quiesce_queue`.

use millrace_machine::{Deadline, Lock, Machine, Parker};

use crate::disk::Disk;
use crate::disk::queues::make_queues;
use crate::queue::HardwareQueue;

/// Time between two looks whether a disk is drained, at first and at most.
const LOOK_FIRST_NS: u64 = 1_000;
const LOOK_MOST_NS: u64 = 1_000_000;

/// A longer pause than this is slept through.
const SPIN_MOST_NS: u64 = 30_000;

impl<M: Machine> Disk<M> {
    /// Takes nothing new from now on: bios stay in their channels, which `submit` until they are
    /// full. What is inside goes on; [`Disk::is_drained`] says when it is done.
    pub fn freeze(&self) {
        set_frozen(self, true);
    }

    /// Takes bios again; channels come back at their next poll, a millisecond later at most.
    pub fn unfreeze(&self) {
        set_frozen(self, false);
    }

    /// Whether nothing is queued or in flight. Meaningful while frozen.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        make_queues(self);
        // A flush that others joined goes back from a queue's end to a software queue, perhaps
        // behind this look: so no flush may be there before and after it, nor pass meanwhile. What
        // a worker left behind moves in this way, too.
        let moves = || {
            // In two statements: the flush state is the last lock, and no other is taken under it.
            let flushes = self.flush.lock().moves_while_idle();
            (flushes, worker_moves(self))
        };
        let before = moves();
        before.0.is_some() && has_empty_queues(self) && moves() == before
    }

    /// Waits until it is drained or `deadline_ns` is reached; says which. Other threads must poll
    /// their channels meanwhile; one that has I/O in this disk itself must not call this.
    #[must_use]
    pub fn wait_drained(&self, deadline_ns: u64) -> bool {
        // Each look takes the locks that pollers only try, so looks keep a distance: one that
        // follows the other at once can shut a poller out each time that it comes.
        let (mut pause_ns, mut deadline) = (LOOK_FIRST_NS, Deadline::<M>::at(deadline_ns));
        let parker = M::Parker::new();
        while !self.is_drained() {
            let left_ns = deadline.left_ns();
            if left_ns == 0 {
                return false;
            }
            let until_ns = M::now().saturating_add(pause_ns.min(left_ns));
            if pause_ns <= SPIN_MOST_NS {
                M::spin_until(until_ns, || false);
            } else {
                parker.park(Some(until_ns));
            }
            pause_ns = (pause_ns * 2).min(LOOK_MOST_NS);
        }
        true
    }

    /// Hands nothing to the driver from now on; bios queue up inside.
    pub fn quiesce(&self) {
        make_queues(self);
        self.queues.hctxs().iter().for_each(|hctx| hctx.change(|serve| serve.quiesced = true));
    }

    /// Hands requests to the driver again, at the next poll of a channel.
    pub fn unquiesce(&self) {
        make_queues(self);
        for hctx in self.queues.hctxs() {
            hctx.change(|serve| serve.quiesced = false);
            hctx.mark_own();
            hctx.ring();
        }
    }
}

fn set_frozen<M: Machine>(disk: &Disk<M>, frozen: bool) {
    make_queues(disk);
    match &disk.baseline {
        Some(baseline) if frozen => baseline.stack.freeze(),
        Some(baseline) => baseline.stack.unfreeze(),
        None => {}
    }
    for ctx in disk.queues.ctxs() {
        ctx.ctx.lock().frozen = frozen;
    }
    for hctx in disk.queues.hctxs() {
        hctx.change(|serve| serve.frozen = frozen);
    }
}

/// How often work of a worker's queue was moved to others so far.
fn worker_moves<M: Machine>(disk: &Disk<M>) -> u64 {
    let mut moves = 0;
    if let Some(worker_state) = &disk.worker_state {
        disk.queues.hctxs()[usize::from(worker_state.hctx)].change(|serve| moves = serve.moves);
    }
    moves
}

/// Whether no queue holds anything.
fn has_empty_queues<M: Machine>(disk: &Disk<M>) -> bool {
    disk.queues.ctxs().iter().all(|ctx| ctx.ctx.lock().is_empty())
        && disk.baseline.iter().all(|baseline| baseline.stack.is_empty())
        && disk.queues.hctxs().iter().all(HardwareQueue::is_empty)
}
