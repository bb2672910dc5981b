//! Freezing a disk (nothing comes in, wait until it is empty), quiescing it (nothing goes out).
//!
//! Called by whoever changes a disk's settings or takes it down, from any thread. The flags are
//! read under locks that the path of an I/O takes anyway, so they cost it nothing. Pairs: `freeze`
//! with `unfreeze`, `quiesce` with `unquiesce`. Kernel counterpart: `blk_mq_freeze_queue`,
//! `blk_mq_quiesce_queue`.

use millrace_machine::plant::{Plant, planted};
use millrace_machine::{Lock, Machine, Parker};

use crate::disk::Disk;

/// Time between two looks whether a disk is drained, at first and at most.
const LOOK_FIRST_NS: u64 = 1_000;
const LOOK_MOST_NS: u64 = 1_000_000;

/// A longer pause than this is slept through.
const SPIN_MOST_NS: u64 = 30_000;

impl<M: Machine> Disk<M> {
    /// Takes nothing new from now on: bios stay in their channels, which `submit` until they are
    /// full. What is inside goes on; [`Disk::is_drained`] says when it is done.
    pub fn freeze(&self) {
        self.set_frozen(true);
    }

    /// Takes bios again; channels come back at their next poll, a millisecond later at most.
    pub fn unfreeze(&self) {
        self.set_frozen(false);
    }

    fn set_frozen(&self, frozen: bool) {
        self.sq.lock().frozen = frozen;
        let missed = usize::from(planted(Plant::FreezeMissesOne));
        let ctxs = self.ctxs.iter().skip(missed);
        for ctx in ctxs.filter(|_| !planted(Plant::FreezeMissesQueues)) {
            ctx.ctx.lock().frozen = frozen;
        }
        let hctxs = self.hctxs.iter().skip(missed);
        for hctx in hctxs.filter(|_| !planted(Plant::FreezeMissesServers)) {
            self.change(hctx, |serve| serve.frozen = frozen);
        }
    }

    /// Whether nothing is queued or in flight. Meaningful while frozen.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        // A flush that others joined goes back from a queue's end to a software queue, perhaps
        // behind this look: so no flush may be there before and after it, nor pass meanwhile. The
        // same holds for what a worker left behind.
        let before = (self.flush_moves(), self.seat_moves());
        let idle = before.0.is_some() && self.has_empty_queues();
        idle && (self.flush_moves(), self.seat_moves()) == before
    }

    /// How often work of a worker's queue was moved to others so far.
    fn seat_moves(&self) -> u64 {
        let mut moves = 0;
        if let Some(seat) = &self.seat {
            self.change(&self.hctxs[usize::from(seat.hctx)], |serve| moves = serve.moves);
        }
        moves
    }

    /// How often joined flushes were moved so far; none while there is a flush.
    pub(crate) fn flush_moves(&self) -> Option<u64> {
        let flush = self.flush.lock();
        let idle = !flush.issued && flush.pending.is_empty() && flush.moves.is_multiple_of(2);
        idle.then_some(flush.moves)
    }

    /// Whether no queue holds anything.
    fn has_empty_queues(&self) -> bool {
        self.ctxs.iter().all(|ctx| ctx.ctx.lock().is_empty())
            && self.sq.lock().queue.is_empty()
            && (0..).zip(&self.hctxs).all(|(index, _)| self.is_queue_empty(index))
    }

    /// Whether a hardware queue holds nothing.
    pub(crate) fn is_queue_empty(&self, index: u16) -> bool {
        let mut empty = false;
        self.change(&self.hctxs[usize::from(index)], |serve| {
            let waiting = !serve.staged.is_empty() || !serve.requeued.is_empty();
            empty = !waiting && serve.in_flight == 0;
        });
        empty
    }

    /// Waits until it is drained or `deadline_ns` is reached; says which. Other threads must poll
    /// their channels meanwhile; one that has I/O in this disk itself must not call this.
    #[must_use]
    pub fn wait_drained(&self, deadline_ns: u64) -> bool {
        // Each look takes the locks that pollers only try, so looks keep a distance: one that
        // follows the other at once can shut a poller out each time that it comes.
        let mut pause_ns = LOOK_FIRST_NS;
        let parker = M::Parker::new();
        while !self.is_drained() {
            let now_ns = M::now();
            if now_ns >= deadline_ns {
                return false;
            }
            let until_ns = now_ns.saturating_add(pause_ns).min(deadline_ns);
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
        self.hctxs.iter().for_each(|hctx| self.change(hctx, |serve| serve.quiesced = true));
    }

    /// Hands requests to the driver again, at the next poll of a channel.
    pub fn unquiesce(&self) {
        for (index, hctx) in (0..).zip(&self.hctxs) {
            self.change(hctx, |serve| serve.quiesced = false);
            hctx.mark_pending(self.a_ctx_of(index));
            hctx.ring();
        }
    }

    /// Changes what the serve lock protects; goes on behind a latecomer's flag.
    pub(crate) fn change(
        &self,
        hctx: &crate::queue::HardwareQueue<M>,
        change: impl FnOnce(&mut crate::queue::Serve<M>),
    ) {
        let mut serve = hctx.serve.enter();
        change(&mut serve);
        let mut flagged = false;
        let mut inside = Some(serve);
        while let Some(serve) = inside.take() {
            inside = serve.leave();
            flagged |= inside.is_some();
        }
        if flagged {
            // The latecomer's work is marked, and it looks for marks before it sleeps.
            hctx.ring();
        }
    }
}
