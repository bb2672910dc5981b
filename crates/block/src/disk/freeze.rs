//! Freezing a disk (it accepts nothing, and drains) and quiescing it (it dispatches nothing).
//!
//! Any thread that changes or removes a disk may call these functions. The I/O path reads the flags
//! under locks that it takes anyway, so they cost nothing. Pairs: `freeze` with `unfreeze`,
//! `quiesce` with `unquiesce`. Kernel counterpart: `blk_mq_freeze_queue`, `blk_mq_quiesce_queue`.

use millrace_machine::{Deadline, Lock, Machine, Parker};

use crate::disk::Disk;
use crate::disk::queues::make_queues;
use crate::queue::HardwareQueue;

/// First pause, in nanoseconds, between two checks of whether a disk is drained. Each further pause
/// is twice as long, up to `LOOK_MOST_NS`.
const LOOK_FIRST_NS: u64 = 1_000;
const LOOK_MOST_NS: u64 = 1_000_000;

/// Longest pause, in nanoseconds, in which `wait_drained` spins; in longer pauses it sleeps.
const SPIN_MOST_NS: u64 = 30_000;

impl<M: Machine> Disk<M> {
    /// Stops accepting bios: they stay in their channels, which accept more until they are full.
    /// I/O in the disk continues; [`Disk::is_drained`] returns true once it is completed.
    pub fn freeze(&self) {
        set_frozen(self, true);
    }

    /// Accepts bios again. Channels retry at their next poll, at most a millisecond later.
    pub fn unfreeze(&self) {
        set_frozen(self, false);
    }

    /// Returns true if nothing is queued or in flight. Meaningful while the disk is frozen.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        make_queues(self);
        // During the check, two kinds of bios may move to a queue that was checked already: waiting
        // flushes, and bios that wait for a worker that stops. So the disk is drained only if no
        // flush is in progress before and after the check, and no bio has moved meanwhile.
        let moves = || {
            // `worker_moves` takes a serve lock, which comes before the flush lock in the lock
            // order. So the flush lock must be released before that call.
            let flushes = self.flush.lock().moves_while_idle();
            (flushes, worker_moves(self))
        };
        let before = moves();
        before.0.is_some() && has_empty_queues(self) && moves() == before
    }

    /// Waits until the disk is drained. Returns false if that has not happened by `deadline_ns`.
    /// Other threads must poll their channels meanwhile; the caller must have no I/O in this disk.
    #[must_use]
    pub fn wait_drained(&self, deadline_ns: u64) -> bool {
        // Pauses let other threads poll. `is_drained` takes each hardware queue's serve lock, and a
        // thread that finds the lock taken does not poll the queue.
        let (mut pause_ns, mut deadline) = (LOOK_FIRST_NS, Deadline::<M>::at(deadline_ns));
        // In pauses above `SPIN_MOST_NS` the thread sleeps on a parker, which needs a file
        // descriptor; without one it spins.
        let parker = M::Parker::try_new().ok();
        while !self.is_drained() {
            let left_ns = deadline.left_ns();
            if left_ns == 0 {
                return false;
            }
            let until_ns = M::now().saturating_add(pause_ns.min(left_ns));
            match &parker {
                Some(parker) if pause_ns > SPIN_MOST_NS => parker.park(Some(until_ns)),
                _ => drop(M::spin_until(until_ns, || false)),
            }
            pause_ns = (pause_ns * 2).min(LOOK_MOST_NS);
        }
        true
    }

    /// Stops dispatching to the driver; bios wait in the disk's queues.
    pub fn quiesce(&self) {
        make_queues(self);
        self.queues.hctxs().iter().for_each(|hctx| hctx.change(|serve| serve.quiesced = true));
    }

    /// Allows dispatch to the driver again. Waiting bios are dispatched when a channel polls next.
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
        ctx.lock().frozen = frozen;
    }
    for hctx in disk.queues.hctxs() {
        hctx.change(|serve| serve.frozen = frozen);
    }
}

fn worker_moves<M: Machine>(disk: &Disk<M>) -> u64 {
    let worker = disk.worker_state.as_ref();
    worker.map_or(0, |worker| disk.queues.hctx(worker.hctx).change(|serve| serve.moves))
}

fn has_empty_queues<M: Machine>(disk: &Disk<M>) -> bool {
    disk.queues.ctxs().iter().all(|ctx| ctx.lock().is_empty())
        && disk.baseline.iter().all(|baseline| baseline.stack.is_empty())
        && disk.queues.hctxs().iter().all(HardwareQueue::is_empty)
}
