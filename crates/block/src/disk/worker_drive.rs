//! `WorkerDrive`: a drive that a worker serves: the worker comes, serves its queue there, and goes.
//!
//! Owned by a `Worker`, one for each of its drives, and used by the worker's thread alone. Coming
//! takes the drive's `WorkerState`; going leaves what waits to the submitters, who look after it
//! (handover.rs). A queue that belongs to its thread is the worker's own until it is closed, which
//! needs an empty drive. Source: \[FALCON\], one thread per drive.

use alloc::sync::Arc;

use millrace_machine::{Lock, Machine, Order, Word};

use crate::account::DiskStats;
use crate::bio::error::Error;
use crate::chain::bio_set::BioSet;
use crate::chain::slot::BioList;
use crate::disk::Disk;
use crate::disk::queues::make_queues;
use crate::disk::runner::Runner;
use crate::disk::timeouts;
use crate::disk::visit::Visit;
use crate::disk::worker_state::WorkerState;
use crate::queue::driver::QueueKind;
use crate::queue::io_thread::IoThread;
use crate::queue::{HardwareQueue, INSIDE_LOOK_NS};

/// One drive that a worker serves.
pub(crate) struct WorkerDrive<M: Machine> {
    pub(crate) disk: Arc<Disk<M>>,
    stats: Arc<DiskStats<M>>,
    /// The worker's hardware queue there.
    hctx: u16,
    /// The rounds of others that it has looked after.
    rounds: u64,
    /// Somebody else was inside at the last turn: what the drive has now is not known.
    missed: bool,
}

impl<M: Machine> WorkerDrive<M> {
    /// Makes the calling thread the drive's worker. None if the drive has no place for one, or it
    /// is taken.
    ///
    /// # Errors
    /// If the driver cannot open the queue.
    pub(crate) fn take(disk: &Arc<Disk<M>>, thread: &IoThread<M>) -> Result<Option<Self>, Error> {
        let Some(worker_state) =
            disk.worker_state.as_ref().filter(|worker_state| !worker_state.is_taken())
        else {
            return Ok(None);
        };
        make_queues(disk);
        let hctx = &disk.queues.hctxs()[usize::from(worker_state.hctx)];
        if disk.kind == QueueKind::OwnerOnly {
            if hctx.has_owner() {
                // The last worker is about to go.
                return Ok(None);
            }
            disk.own(worker_state.hctx, thread)?;
        }
        // Release pairs with the Acquire of `is_taken`.
        let taken = worker_state
            .owner
            .compare_exchange(0, thread.owner, Order::AcqRel, Order::Relaxed)
            .is_ok();
        if !taken {
            return Ok(None);
        }
        if disk.kind == QueueKind::AnyThread {
            // What is handed over before this is found by the worker's first turn.
            hctx.set_bell(Some(Arc::clone(&thread.bell)));
        }
        let (disk, stats) = (Arc::clone(disk), disk.accounts.open(worker_state.hctx));
        Ok(Some(WorkerDrive { disk, stats, hctx: worker_state.hctx, rounds: 0, missed: false }))
    }

    fn worker_state(&self) -> Option<&WorkerState<M>> {
        self.disk.worker_state.as_ref()
    }

    fn queue(&self) -> &HardwareQueue<M> {
        &self.disk.queues.hctxs()[usize::from(self.hctx)]
    }

    /// Whether something was put there since the last turn, unless the thread that kept that turn
    /// out is inside still: natively this one would only keep it from its CPU.
    pub(crate) fn has_work(&self) -> bool {
        if self.missed && M::THREADS_MOVE && self.queue().serve.is_held() {
            return false;
        }
        let rounds = self.worker_state().map_or(0, WorkerState::rounds);
        self.missed || rounds != self.rounds || self.queue().has_pending()
    }

    /// Sends on what was handed over, and completes what is done.
    pub(crate) fn turn(&mut self, run: &mut Runner<M>) {
        let rounds = self.worker_state().map_or(0, WorkerState::rounds);
        // Whoever else is inside need not tell when it leaves: only a turn that got in may be the
        // last before a sleep. Its flag would keep that thread there instead.
        let entered = Visit::new(&self.disk, self.hctx, run, &self.stats).run_queue();
        self.missed = !entered;
        if entered {
            self.rounds = rounds;
        } else if M::THREADS_MOVE {
            run.wake_at(M::now() + INSIDE_LOOK_NS);
        }
    }

    /// Looks for requests that the drive does not answer.
    pub(crate) fn check_timeouts(&self, now_ns: u64, run: &mut Runner<M>) {
        timeouts::check(&mut Visit::new(&self.disk, self.hctx, run, &self.stats), now_ns);
    }

    /// Goes away: nothing more is handed over, and a queue that any thread may run is left to the
    /// submitters as it is. One that belongs to the worker is its own until [`WorkerDrive::close`].
    pub(crate) fn leave(&self, owner: u64) {
        let Some(worker_state) = self.worker_state() else { return };
        // Relaxed: what this thread itself wrote, or not its own.
        if self.disk.kind == QueueKind::AnyThread
            && worker_state.owner.load(Order::Relaxed) == owner
        {
            // Before the next worker can come: the bell is its own then.
            self.queue().set_bell(None);
        }
        if worker_state.owner.compare_exchange(owner, 0, Order::SeqCst, Order::SeqCst).is_err() {
            return;
        }
        for ctx in self.disk.queues.ctxs() {
            // Whoever waits for these looks at the worker's state when it wakes. Whoever inserts
            // after this look sees that the worker is gone: the lock orders them.
            let mut ctx = ctx.ctx.lock();
            ring_all(ctx.list(self.hctx));
        }
    }

    /// Whether the worker's queue holds nothing that only the worker can finish.
    pub(crate) fn is_idle(&self) -> bool {
        self.disk.kind == QueueKind::AnyThread || self.queue().is_empty()
    }

    /// Requests that the drive has from this worker's own queue.
    pub(crate) fn in_flight(&self, owner: u64) -> u32 {
        let mut in_flight = 0;
        if self.queue().is_owned_by(owner) {
            self.queue().change(|serve| in_flight = serve.in_flight.count());
        }
        in_flight
    }

    /// Closes the queue of a worker that has left, and leaves what waits in it to the submitters.
    pub(crate) fn close(&self, owner: u64) {
        let (disk, hctx) = (&self.disk, self.queue());
        if !hctx.is_owned_by(owner) {
            return;
        }
        hctx.clear_owner();
        hctx.change(|serve| {
            let mut left = disk.empty_queue(self.hctx, serve);
            serve.taken = serve.taken.saturating_sub(left.len().into());
            if let Some(worker_state) = self.worker_state() {
                // Relaxed: as in `note_round`.
                worker_state.settled.store(serve.taken, Order::Relaxed);
            }
            serve.moves += u64::from(!left.is_empty());
            let mut ctx = disk.queues.ctxs()[usize::from(hctx.own_ctx)].ctx.lock();
            ctx.list(self.hctx).append(&mut left);
            ring_all(ctx.list(self.hctx));
        });
        hctx.mark_own();
        // Tags came back in a queue that nobody runs: whoever waits for one looks for itself.
        hctx.tags.wake_all();
    }
}

/// Wakes the channels of all bios in a list.
fn ring_all<M: Machine>(list: &BioList<M>) {
    list.for_each(|chain| {
        let mut next = Some(chain);
        while let Some(bio) = next {
            BioSet::bell_of(bio).ring();
            next = bio.chained.as_deref();
        }
    });
}
