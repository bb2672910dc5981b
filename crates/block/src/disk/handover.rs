//! Handing a batch over to a drive's worker, and what the worker's queue does with it.
//!
//! `WorkerState` says which hardware queue is the worker's own, whether the worker is there, and
//! how much it has been handed and not yet sent on. Submitters put a batch into their software
//! queue, mark it, and ring; whoever serves that hardware queue (the worker, as a rule) takes the
//! lists of all software queues, sorts and merges them (sort.rs), and goes on as with any batch. If
//! the worker is gone the submitters serve its queue, or take their bios back to their own. Lock
//! order: as dispatch.rs. Source: \[FALCON\], management and block layer.

use millrace_machine::{Lock, Machine, Order, Stage, Word};

use crate::chain::slot::BioList;
use crate::chain::sort::{merge_into, sort};
use crate::disk::visit::Visit;
use crate::disk::worker_state::WorkerState;
use crate::disk::{Disk, request_limits};
use crate::queue::Serve;
use crate::queue::driver::QueueKind;

impl<M: Machine> Disk<M> {
    /// Whether a worker serves this drive for others.
    #[must_use]
    pub fn has_worker(&self) -> bool {
        self.worker_state.as_ref().is_some_and(WorkerState::is_taken)
    }

    /// Whether this hardware queue is the one that the worker has, or would have.
    #[inline]
    pub(crate) fn is_workers(&self, hctx: u16) -> bool {
        self.worker_state.as_ref().is_some_and(|worker_state| worker_state.hctx == hctx)
    }

    /// Chains that wait for the worker to send them on; 0 without one.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.worker_state.as_ref().map_or(0, WorkerState::waiting)
    }
}

/// Whether something was left for a worker that is gone.
pub(crate) fn is_orphaned<M: Machine>(disk: &Disk<M>) -> bool {
    disk.worker_state.as_ref().is_some_and(|worker_state| {
        !worker_state.is_taken()
            && disk.queues.hctxs()[usize::from(worker_state.hctx)].has_pending()
    })
}

/// Counts chains that go into a list for a worker's queue, whoever puts them there: all that is
/// taken from those lists is counted, too.
pub(crate) fn count_handed<M: Machine>(disk: &Disk<M>, hctx: u16, chains: u32) {
    if let Some(worker_state) =
        disk.worker_state.as_ref().filter(|worker_state| worker_state.hctx == hctx)
    {
        // Relaxed: a measure.
        worker_state.handed.fetch_add(chains.into(), Order::Relaxed);
    }
}

impl<M: Machine> Visit<'_, M> {
    /// Puts a batch of this queue's submitter into software queue `ctx` for the worker and wakes
    /// the worker; a frozen disk leaves the batch in the list.
    pub(crate) fn hand_over(&mut self, ctx: u16, list: &mut BioList<M>) {
        let disk = self.disk;
        let Some(worker_state) = &disk.worker_state else { return };
        let chains = list.len();
        self.trace().begin_insert(list);
        list.mark_inserted(M::now());
        {
            let mut queue = disk.queues.ctxs()[usize::from(ctx)].ctx.lock();
            if queue.frozen {
                drop(queue);
                return list.unmark_inserted();
            }
            self.trace().record_inserts(list);
            queue.list(worker_state.hctx).append(list);
        }
        count_handed(disk, worker_state.hctx, chains);
        let theirs = &disk.queues.hctxs()[usize::from(worker_state.hctx)];
        theirs.mark_pending(ctx.into());
        theirs.ring();
    }

    /// Looks after the queue of a worker that is gone: serves that queue, or takes what lies before
    /// it to this thread's own, by way of software queue `ctx`.
    #[cold]
    pub(crate) fn stand_in(&mut self, ctx: u16) {
        let disk = self.disk;
        let Some(worker_state) = &disk.worker_state else { return };
        if disk.kind == QueueKind::AnyThread {
            let stats = self.run.stats_of(disk, worker_state.hctx);
            Visit::new(disk, worker_state.hctx, self.run, &stats).run_queue();
            return;
        }
        let theirs = &disk.queues.hctxs()[usize::from(worker_state.hctx)];
        if !theirs.has_pending() {
            return;
        }
        let mut moved = false;
        // Under the serve lock, so that nobody finds the disk drained between two lists.
        theirs.change(|serve| {
            let mut left = BioList::new();
            theirs.take_pending(|ctx| {
                left.append(disk.queues.ctxs()[ctx].ctx.lock().list(worker_state.hctx))
            });
            moved = !left.is_empty();
            serve.moves += u64::from(moved);
            // Relaxed: a measure.
            worker_state.handed.fetch_add(u64::from(left.len()).wrapping_neg(), Order::Relaxed);
            // Admitted before: a freeze does not stop it.
            disk.queues.ctxs()[usize::from(ctx)]
                .ctx
                .lock()
                .list(self.hctx.number)
                .append(&mut left);
        });
        if !moved {
            return;
        }
        self.hctx.mark_pending(ctx.into());
        self.kick();
    }

    /// Takes what all software queues have for a hardware queue. A worker's are sorted and merged
    /// on the way.
    pub(crate) fn take_staged(&mut self, serve: &mut Serve<M>) {
        let (disk, hctx) = (self.disk, self.hctx);
        if !disk.is_workers(hctx.number) {
            return hctx.take_pending(|ctx| {
                serve.staged.append(disk.queues.ctxs()[ctx].ctx.lock().list(hctx.number));
            });
        }
        let mut fresh = BioList::new();
        hctx.take_pending(|ctx| fresh.append(disk.queues.ctxs()[ctx].ctx.lock().list(hctx.number)));
        if !fresh.is_empty() {
            serve.taken += u64::from(fresh.len());
            serve.holds_handed = true;
            self.stage_sorted(&mut fresh, serve);
        }
    }

    /// Puts a list behind what waits already, sorted and merged: so nobody is overtaken for ever.
    pub(crate) fn stage_sorted(&mut self, list: &mut BioList<M>, serve: &mut Serve<M>) {
        M::work(Stage::Insert, list.len());
        sort(list);
        let disk = self.disk;
        merge_into(&mut serve.staged, list, &request_limits(disk), |kind, chain| {
            self.stats.count_merge(chain.op());
            self.trace().merged(kind, chain);
        });
    }

    /// Notes what went out, before a worker's queue is left. A thread other than the worker that
    /// leaves work there wakes the worker: nobody else would look for the work's completion.
    pub(crate) fn note_round(&self, serve: &mut Serve<M>) {
        let Some(worker_state) = self
            .disk
            .worker_state
            .as_ref()
            .filter(|worker_state| worker_state.hctx == self.hctx.number)
        else {
            return;
        };
        let settled = serve.taken.saturating_sub(serve.chains().into());
        // Relaxed: one writer at a time, by the serve lock; read as a measure.
        worker_state.settled.store(settled, Order::Relaxed);
        serve.holds_handed &= serve.has_waiting() || serve.in_flight.count() > 0;
        // Relaxed: the worker itself knows.
        if serve.holds_handed && worker_state.owner.load(Order::Relaxed) != self.run.owner {
            // Relaxed: ordered by the fence of `Doorbell::ring`.
            worker_state.rounds.fetch_add(1, Order::Relaxed);
            self.hctx.ring();
        }
    }
}
