//! Handing a batch over to a drive's worker, and what the worker's queue does with it.
//!
//! A `Seat` is a worker's place in a disk: which hardware queue is its own, whether it is there,
//! and how much it has been handed and not yet sent on. Submitters put a batch into their software
//! queue, mark it, and ring; whoever serves that hardware queue (the worker, as a rule) takes the
//! lists of all software queues, sorts and merges them (sort.rs), and goes on as with any batch. If
//! the worker is gone the submitters serve its queue, or take their bios back to their own. Lock
//! order: as dispatch.rs. Source: \[FALCON\], management and block layer.

use alloc::sync::Arc;

use millrace_machine::plant::{Plant, planted};
use millrace_machine::{Doorbell, Lock, Machine, Order, Stage, Word};

use crate::account::DiskStats;
use crate::bio::error::Error;
use crate::chain::home::Home;
use crate::chain::slot::BioList;
use crate::chain::sort::{merge_into, sort};
use crate::disk::Disk;
use crate::disk::runner::Runner;
use crate::disk::seat::Seat;
use crate::queue::driver::QueueKind;
use crate::queue::{Route, Serve};

impl<M: Machine> Disk<M> {
    /// Whether a worker serves this drive for others.
    #[must_use]
    pub fn has_worker(&self) -> bool {
        self.seat.as_ref().is_some_and(Seat::is_taken)
    }

    /// Whether this hardware queue is the one that the worker has, or would have.
    #[inline]
    pub(crate) fn is_workers(&self, hctx: u16) -> bool {
        self.seat.as_ref().is_some_and(|seat| seat.hctx == hctx)
    }

    /// Whether something was left for a worker that is gone.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.seat.as_ref().is_some_and(|seat| {
            !seat.is_taken() && self.hctxs[usize::from(seat.hctx)].has_pending()
        })
    }

    /// Chains that wait for the worker to send them on; 0 without one.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.seat.as_ref().map_or(0, Seat::waiting)
    }

    /// Makes the calling thread the drive's worker. False if the drive has no place for one, or it
    /// is taken.
    ///
    /// # Errors
    /// If the driver cannot open the queue.
    pub(crate) fn take_seat(&self, owner: u64, bell: &Arc<Doorbell<M>>) -> Result<bool, Error> {
        let Some(seat) = self.seat.as_ref().filter(|seat| !seat.is_taken()) else {
            return Ok(false);
        };
        let hctx = &self.hctxs[usize::from(seat.hctx)];
        if self.kind == QueueKind::OwnerOnly {
            if hctx.has_owner() {
                // The last worker is about to go.
                return Ok(false);
            }
            self.own(seat.hctx, owner, Arc::clone(bell))?;
        }
        // Release pairs with the Acquire of `is_taken`.
        let taken = seat.worker.compare_exchange(0, owner, Order::AcqRel, Order::Relaxed).is_ok();
        if taken && self.kind == QueueKind::AnyThread {
            // What is handed over before this is found by the worker's first turn.
            hctx.set_bell(Some(Arc::clone(bell)));
        }
        Ok(taken)
    }

    /// The worker goes away: nothing more is handed over, and a queue that any thread may run is
    /// left to the submitters as it is. One that belongs to the worker is its own until
    /// [`Disk::close_seat`].
    pub(crate) fn leave_seat(&self, owner: u64) {
        let Some(seat) = self.seat.as_ref() else { return };
        // Relaxed: what this thread itself wrote, or not its own.
        if self.kind == QueueKind::AnyThread && seat.worker.load(Order::Relaxed) == owner {
            // Before the next worker can come: the bell is its own then.
            self.hctxs[usize::from(seat.hctx)].set_bell(None);
        }
        if seat.worker.compare_exchange(owner, 0, Order::SeqCst, Order::SeqCst).is_err() {
            return;
        }
        for ctx in &self.ctxs {
            // Whoever waits for these looks at the seat when it wakes. Who inserts after this look
            // sees that the worker is gone: the lock orders them.
            let mut ctx = ctx.ctx.lock();
            if !planted(Plant::LeaveUnrung) {
                ring_all(ctx.list(seat.hctx));
            }
        }
    }

    /// Requests that the drive has from this worker's own queue.
    pub(crate) fn in_flight_of(&self, owner: u64) -> u32 {
        let Some(seat) = &self.seat else { return 0 };
        let (hctx, mut in_flight) = (&self.hctxs[usize::from(seat.hctx)], 0);
        if hctx.is_owned_by(owner) {
            self.change(hctx, |serve| in_flight = serve.in_flight);
        }
        in_flight
    }

    /// Closes the queue of a worker that has left, and leaves what waits in it to the submitters.
    pub(crate) fn close_seat(&self, owner: u64) {
        let Some(seat) = &self.seat else { return };
        let hctx = &self.hctxs[usize::from(seat.hctx)];
        if !hctx.is_owned_by(owner) {
            return;
        }
        hctx.clear_owner();
        let at = self.a_ctx_of(seat.hctx);
        self.change(hctx, |serve| {
            let mut left = self.empty_queue(seat.hctx, serve);
            serve.taken = serve.taken.saturating_sub(left.len().into());
            // Relaxed: as in `note_round`.
            seat.settled.store(serve.taken, Order::Relaxed);
            serve.moves += u64::from(!left.is_empty());
            let mut ctx = self.ctxs[at].ctx.lock();
            ctx.list(seat.hctx).append(&mut left);
            ring_all(ctx.list(seat.hctx));
        });
        hctx.mark_pending(at);
        // Tags came back in a queue that nobody runs: whoever waits for one looks for itself.
        hctx.tags.wake_all();
    }

    /// Puts a batch into the submitter's software queue for the worker and wakes that; a frozen
    /// disk leaves the batch in the list.
    pub(crate) fn hand_over(&self, route: Route, list: &mut BioList<M>, run: &mut Runner<M>) {
        let Some(seat) = &self.seat else { return };
        let chains = list.len();
        self.begin_insert(list, run);
        list.mark_inserted(M::now());
        {
            let mut ctx = self.ctxs[usize::from(route.ctx)].ctx.lock();
            if ctx.frozen {
                drop(ctx);
                return list.unmark_inserted();
            }
            self.record_inserts(list, run);
            ctx.list(seat.hctx).append(list);
        }
        self.count_handed(seat.hctx, chains);
        let hctx = &self.hctxs[usize::from(seat.hctx)];
        if !planted(Plant::HandoverUnmarked) {
            hctx.mark_pending(route.ctx.into());
        }
        hctx.ring();
    }

    /// Counts chains that go into a list for a worker's queue, whoever puts them there: all that is
    /// taken from those lists is counted, too.
    pub(crate) fn count_handed(&self, index: u16, chains: u32) {
        if let Some(seat) = self.seat.as_ref().filter(|seat| seat.hctx == index) {
            // Relaxed: a measure.
            seat.handed.fetch_add(chains.into(), Order::Relaxed);
        }
    }

    /// Takes what all software queues have for a hardware queue. A worker's are sorted and merged
    /// on the way.
    pub(crate) fn take_staged(
        &self,
        index: u16,
        serve: &mut Serve<M>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) {
        let hctx = &self.hctxs[usize::from(index)];
        if !self.is_workers(index) {
            return hctx.take_pending(|ctx| {
                serve.staged.append(self.ctxs[ctx].ctx.lock().list(index));
            });
        }
        let mut fresh = BioList::new();
        hctx.take_pending(|ctx| fresh.append(self.ctxs[ctx].ctx.lock().list(index)));
        if !fresh.is_empty() {
            serve.taken += u64::from(fresh.len());
            serve.holds_handed = true;
            self.stage_sorted(&mut fresh, serve, run, stats);
        }
    }

    /// Puts a list behind what waits already, sorted and merged: so nobody is overtaken for ever.
    pub(crate) fn stage_sorted(
        &self,
        list: &mut BioList<M>,
        serve: &mut Serve<M>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) {
        M::work(Stage::Insert, list.len());
        sort(list);
        merge_into(&mut serve.staged, list, &self.limits, |kind, chain| {
            stats.count_merge(chain.op());
            self.trace_merged(kind, chain, run);
        });
    }

    /// Before a worker's queue is left: notes what went out. Who is not the worker, and leaves
    /// something that was meant for it, wakes it: nobody else would look for its completion.
    pub(crate) fn note_round(&self, index: u16, serve: &mut Serve<M>, run: &Runner<M>) {
        let Some(seat) = self.seat.as_ref().filter(|seat| seat.hctx == index) else { return };
        let settled = serve.taken.saturating_sub(serve.staged.len().into());
        // Relaxed: one writer at a time, by the serve lock; read as a measure.
        seat.settled.store(settled, Order::Relaxed);
        let waiting = !serve.staged.is_empty() || !serve.requeued.is_empty();
        serve.holds_handed &= waiting || serve.in_flight > 0;
        // Relaxed: the worker itself knows.
        if serve.holds_handed && seat.worker.load(Order::Relaxed) != run.owner {
            // Relaxed: ordered by the fence of `Doorbell::ring`.
            seat.rounds.fetch_add(1, Order::Relaxed);
            self.hctxs[usize::from(index)].ring();
        }
    }

    /// Looks after the queue of a worker that is gone: serves it, or takes what lies before it to
    /// this thread's own.
    #[cold]
    pub(crate) fn stand_in(&self, route: Route, run: &mut Runner<M>, stats: &DiskStats<M>) {
        let Some(seat) = &self.seat else { return };
        if self.kind == QueueKind::AnyThread {
            let theirs = self.stats_of(seat.hctx, run);
            self.run_queue(seat.hctx, run, &theirs);
            return;
        }
        let hctx = &self.hctxs[usize::from(seat.hctx)];
        if !hctx.has_pending() {
            return;
        }
        let mut moved = false;
        // Under the serve lock, so that nobody finds the disk drained between two lists.
        self.change(hctx, |serve| {
            let mut left = BioList::new();
            hctx.take_pending(|ctx| left.append(self.ctxs[ctx].ctx.lock().list(seat.hctx)));
            moved = !left.is_empty();
            serve.moves += u64::from(moved);
            // Relaxed: a measure.
            seat.handed.fetch_add(u64::from(left.len()).wrapping_neg(), Order::Relaxed);
            // Admitted before: a freeze does not stop it.
            self.ctxs[usize::from(route.ctx)].ctx.lock().list(route.hctx).append(&mut left);
        });
        if !moved {
            return;
        }
        self.hctxs[usize::from(route.hctx)].mark_pending(route.ctx.into());
        self.kick(route.hctx, run, stats);
    }
}

/// Wakes the channels of all bios in a list.
fn ring_all<M: Machine>(list: &BioList<M>) {
    list.for_each(|chain| {
        let mut next = Some(chain);
        while let Some(bio) = next {
            Home::bell_of(bio).ring();
            next = bio.chained.as_deref();
        }
    });
}
