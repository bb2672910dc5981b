//! Handover of a batch to a drive's worker, and the dispatch from the worker's queue.
//!
//! `WorkerState` names the worker's hardware queue and the worker, if there is one, and counts the
//! bio chains handed over but not dispatched. A submitter puts its batch into its software queue,
//! marks that queue as pending and rings the worker's doorbell. The thread that serves the worker's
//! hardware queue (usually the worker) takes the lists of all software queues, sorts and merges
//! them (sort.rs), and continues as with any batch. If the worker is gone, the submitters serve its
//! queue or take their bios back to their own queues. Lock order: as dispatch.rs. Source: Kumar et
//! al., ATC 2017, management and block layer.

use millrace_machine::{Lock, Machine, Order, Stage, Word};

use crate::chain::slot::BioList;
use crate::chain::sort::{merge_into, sort};
use crate::disk::queue_context::QueueContext;
use crate::disk::worker_state::WorkerState;
use crate::disk::{Disk, request_limits};
use crate::queue::HctxState;
use crate::queue::driver::QueueKind;

impl<M: Machine> Disk<M> {
    /// Returns true if a worker serves this drive for other threads.
    #[must_use]
    pub fn has_worker(&self) -> bool {
        self.worker_state.as_ref().is_some_and(WorkerState::is_taken)
    }

    /// Returns the `WorkerState` if hardware queue `hctx` is reserved for a worker, even if there
    /// is no worker at present.
    #[inline]
    pub(crate) fn worker_of(&self, hctx: u16) -> Option<&WorkerState<M>> {
        self.worker_state.as_ref().filter(|worker| worker.hctx == hctx)
    }

    /// Returns the number of bio chains that wait for the worker; 0 if the drive cannot have one.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.worker_state.as_ref().map_or(0, WorkerState::waiting)
    }
}

pub(crate) fn is_orphaned<M: Machine>(disk: &Disk<M>) -> bool {
    disk.worker_state
        .as_ref()
        .is_some_and(|worker| !worker.is_taken() && disk.queues.hctx(worker.hctx).pending.is_any())
}

/// Counts bio chains (bios merged into one future request) put into a software queue for the
/// worker. Every chain must be counted, because chains taken out are subtracted from this number.
pub(crate) fn count_handed<M: Machine>(disk: &Disk<M>, hctx: u16, chains: u32) {
    if let Some(worker) = disk.worker_of(hctx) {
        // Relaxed: `handed` is a statistic on which no other data depends.
        worker.handed.fetch_add(chains.into(), Order::Relaxed);
    }
}

impl<M: Machine> QueueContext<'_, M> {
    /// Puts a batch into software queue `ctx` for the worker, and wakes the worker. If the disk is
    /// frozen, the batch stays in `list`.
    pub(crate) fn hand_over(&mut self, ctx: u16, list: &mut BioList<M>) {
        let disk = self.disk;
        let Some(worker) = &disk.worker_state else { return };
        let chains = list.len();
        self.trace().begin_insert(list);
        list.mark_inserted(M::now());
        {
            let mut queue = disk.queues.ctx(ctx).lock();
            if queue.frozen {
                drop(queue);
                return list.unmark_inserted();
            }
            self.trace().record_inserts(list);
            queue.list(worker.hctx).append(list);
        }
        count_handed(disk, worker.hctx, chains);
        let theirs = disk.queues.hctx(worker.hctx);
        theirs.pending.mark(ctx.into());
        theirs.ring();
    }

    /// Does the work of a worker that has left. If any thread may run the worker's queue, serves
    /// that queue. Otherwise moves the waiting bios to software queue `ctx`, which feeds this
    /// thread's own hardware queue.
    #[cold]
    pub(crate) fn stand_in(&mut self, ctx: u16) {
        let disk = self.disk;
        let Some(worker) = &disk.worker_state else { return };
        if disk.kind == QueueKind::AnyThread {
            let stats = self.run.stats_of(disk, worker.hctx);
            QueueContext::new(disk, worker.hctx, self.run, &stats).run_queue();
            return;
        }
        let theirs = disk.queues.hctx(worker.hctx);
        if !theirs.pending.is_any() {
            return;
        }
        // The bios move under the queue's serve lock, which `is_drained` takes for its check.
        // Without it, the disk could seem drained at the moment when the bios are in no queue.
        let moved = theirs.change(|serve| {
            let mut left = BioList::new();
            theirs
                .pending
                .take(|ctx| left.append(disk.queues.ctxs()[ctx].lock().list(worker.hctx)));
            let moved = !left.is_empty();
            serve.moves += u64::from(moved);
            // Relaxed: `handed` is a statistic on which no other data depends.
            worker.handed.fetch_add(u64::from(left.len()).wrapping_neg(), Order::Relaxed);
            // The queue takes these bios even if frozen, because the disk accepted them earlier.
            disk.queues.ctx(ctx).lock().list(self.hctx.number).append(&mut left);
            moved
        });
        if !moved {
            return;
        }
        self.hctx.pending.mark(ctx.into());
        self.kick();
    }

    /// Moves the bios that all software queues hold for this hardware queue to the list `staged`.
    /// In a worker's queue, the bios are also sorted and merged.
    pub(crate) fn take_staged(&mut self, serve: &mut HctxState<M>) {
        let (disk, hctx) = (self.disk, self.hctx);
        if disk.worker_of(hctx.number).is_none() {
            return hctx.pending.take(|ctx| {
                serve.staged.append(disk.queues.ctxs()[ctx].lock().list(hctx.number));
            });
        }
        let mut fresh = BioList::new();
        hctx.pending.take(|ctx| fresh.append(disk.queues.ctxs()[ctx].lock().list(hctx.number)));
        if !fresh.is_empty() {
            serve.taken += u64::from(fresh.len());
            serve.holds_handed = true;
            self.stage_sorted(&mut fresh, serve);
        }
    }

    /// Sorts and merges the bio chains in `list`, and appends them to `staged`. Chains that are
    /// already in `staged` keep their places. Otherwise newer chains could overtake a chain again
    /// and again.
    pub(crate) fn stage_sorted(&mut self, list: &mut BioList<M>, serve: &mut HctxState<M>) {
        M::work(Stage::Insert, list.len());
        sort(list);
        let disk = self.disk;
        merge_into(&mut serve.staged, list, &request_limits(disk), |kind, chain| {
            self.stats.count_merge(chain.op());
            self.trace().merged(kind, chain);
        });
    }

    /// Called after each dispatch round; does nothing if the hardware queue is not a worker's.
    /// Stores the number of bio chains dispatched so far. If work remains and this thread is not
    /// the worker, wakes the worker, because only the worker polls for the completions.
    pub(crate) fn note_round(&self, serve: &mut HctxState<M>) {
        let Some(worker) = self.disk.worker_of(self.hctx.number) else { return };
        let settled = serve.taken.saturating_sub(serve.chains().into());
        // Relaxed: `settled` is a statistic that only the holder of the serve lock writes.
        worker.settled.store(settled, Order::Relaxed);
        serve.holds_handed &= serve.has_waiting() || serve.in_flight.count() > 0;
        // Relaxed: a thread that is the worker reads the value that it wrote itself.
        if serve.holds_handed && worker.owner.load(Order::Relaxed) != self.run.owner {
            // Relaxed: the fence of `Doorbell::ring` orders this access.
            worker.rounds.fetch_add(1, Order::Relaxed);
            self.hctx.ring();
        }
    }
}
