//! `WorkerDrive`: a drive that a worker thread serves, from the start to the end of its service.
//!
//! A `Worker` owns one `WorkerDrive` for each of its drives, and only the worker's thread uses it.
//! The service has three steps:
//! - `take` makes the thread the drive's worker (`WorkerState`).
//! - `leave` ends the service, and wakes the submitters, which take their waiting bios back
//!   (handover.rs).
//! - `close` gives up an `OwnerOnly` queue, after the worker has waited for requests in flight
//!   there.
//!
//! Source: Kumar et al., ATC 2017 (the Falcon paper), one thread per drive.

use alloc::sync::Arc;

use millrace_machine::{Lock, Machine, Order, Word};

use crate::account::DiskStats;
use crate::bio::error::Error;
use crate::chain::bio_set::BioSet;
use crate::chain::slot::BioList;
use crate::disk::Disk;
use crate::disk::queue_context::QueueContext;
use crate::disk::queues::make_queues;
use crate::disk::submit_context::SubmitContext;
use crate::disk::timeouts;
use crate::disk::worker_state::WorkerState;
use crate::queue::driver::QueueKind;
use crate::queue::io_thread::IoThread;
use crate::queue::request::bios_of;
use crate::queue::{HardwareQueue, INSIDE_LOOK_NS};

pub(crate) struct WorkerDrive<M: Machine> {
    pub(crate) disk: Arc<Disk<M>>,
    stats: Arc<DiskStats<M>>,
    hctx: u16,
    /// Value of `WorkerState::rounds` just before the worker last served the queue. A different
    /// value now means that another thread has left work in the queue.
    rounds: u64,
    /// True if the worker's last attempt failed because another thread served the queue.
    missed: bool,
}

impl<M: Machine> WorkerDrive<M> {
    /// Makes the calling thread the drive's worker. Returns `None` if the drive cannot have one or
    /// already has one.
    ///
    /// # Errors
    /// If the driver cannot open the queue.
    pub(crate) fn take(disk: &Arc<Disk<M>>, thread: &IoThread<M>) -> Result<Option<Self>, Error> {
        let Some(worker) = disk.worker_state.as_ref().filter(|worker| !worker.is_taken()) else {
            return Ok(None);
        };
        make_queues(disk);
        let hctx = disk.queues.hctx(worker.hctx);
        if disk.kind == QueueKind::OwnerOnly {
            if hctx.has_owner() {
                // The drive's previous worker has left, but still owns the queue.
                return Ok(None);
            }
            disk.own(worker.hctx, thread)?;
        }
        // Release pairs with the Acquire of `is_taken`.
        if worker.owner.compare_exchange(0, thread.owner, Order::AcqRel, Order::Relaxed).is_err() {
            return Ok(None);
        }
        if disk.kind == QueueKind::AnyThread {
            // Bios handed over before this point rang no doorbell. The worker's first `turn` finds
            // them.
            hctx.set_bell(Some(Arc::clone(&thread.bell)));
        }
        let (disk, stats) = (Arc::clone(disk), disk.accounts.open(worker.hctx));
        Ok(Some(WorkerDrive { disk, stats, hctx: worker.hctx, rounds: 0, missed: false }))
    }

    fn worker(&self) -> &WorkerState<M> {
        self.disk.worker_state.as_ref().expect("a disk with a worker must have a `WorkerState`")
    }

    fn queue(&self) -> &HardwareQueue<M> {
        self.disk.queues.hctx(self.hctx)
    }

    /// Returns true if the worker must try to serve the queue: the queue has new work, or another
    /// thread was serving it when the worker last tried. After such a failed try, if threads can
    /// move between CPUs, returns false while a thread serves the queue: a spinning worker would
    /// take the CPU from that thread.
    pub(crate) fn has_work(&self) -> bool {
        if self.missed && M::THREADS_MOVE && self.queue().serve.is_held() {
            return false;
        }
        let rounds = self.worker().rounds();
        self.missed || rounds != self.rounds || self.queue().pending.is_any()
    }

    pub(crate) fn turn(&mut self, run: &mut SubmitContext<M>) {
        let rounds = self.worker().rounds();
        // If another thread holds the serve lock, the worker must try again. The other thread may
        // leave work in the queue without waking the worker. If threads can move between CPUs, the
        // worker first sleeps for at most `INSIDE_LOOK_NS`. A spinning worker could take the CPU
        // from the other thread.
        let entered = QueueContext::new(&self.disk, self.hctx, run, &self.stats).run_queue();
        self.missed = !entered;
        if entered {
            self.rounds = rounds;
        } else if M::THREADS_MOVE {
            run.wake_at(M::now() + INSIDE_LOOK_NS);
        }
    }

    pub(crate) fn check_timeouts(&self, now_ns: u64, run: &mut SubmitContext<M>) {
        timeouts::check(&mut QueueContext::new(&self.disk, self.hctx, run, &self.stats), now_ns);
    }

    /// Ends the worker's service. Submitters then hand over no more bios to this worker. If any
    /// thread may run the hardware queue, the submitters serve the queue from now on. An
    /// `OwnerOnly` queue stays the worker's until [`WorkerDrive::close`].
    pub(crate) fn leave(&self, owner: u64) {
        let worker = self.worker();
        // Relaxed: `owner` has this thread's identity only if this thread wrote it.
        if self.disk.kind == QueueKind::AnyThread && worker.owner.load(Order::Relaxed) == owner {
            // The doorbell is removed while this thread is still the worker, so that the next
            // worker's doorbell is not removed.
            self.queue().set_bell(None);
        }
        if worker.owner.compare_exchange(owner, 0, Order::SeqCst, Order::SeqCst).is_err() {
            return;
        }
        for ctx in self.disk.queues.ctxs() {
            // Wakes the submitters whose bios wait for the gone worker. A later submitter takes the
            // software queue's lock before it sleeps, and so sees that the worker is gone.
            let mut ctx = ctx.lock();
            ring_all(ctx.list(self.hctx));
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.disk.kind == QueueKind::AnyThread || self.queue().is_empty()
    }

    pub(crate) fn in_flight(&self, owner: u64) -> u32 {
        match self.queue().is_owned_by(owner) {
            true => self.queue().change(|serve| serve.in_flight.count()),
            false => 0,
        }
    }

    /// Closes the queue of a worker that has left, and returns waiting bios to the submitters.
    pub(crate) fn close(&self, owner: u64) {
        let (disk, hctx) = (&self.disk, self.queue());
        if !hctx.is_owned_by(owner) {
            return;
        }
        hctx.clear_owner();
        hctx.change(|serve| {
            let mut left = disk.empty_queue(self.hctx, serve);
            serve.taken = serve.taken.saturating_sub(left.len().into());
            // Relaxed: `settled` (number of bio chains that have left the worker's queue) is a
            // statistic that only the holder of the queue's serve lock writes.
            self.worker().settled.store(serve.taken, Order::Relaxed);
            serve.moves += u64::from(!left.is_empty());
            let mut ctx = disk.queues.ctx(hctx.own_ctx).lock();
            ctx.list(self.hctx).append(&mut left);
            ring_all(ctx.list(self.hctx));
        });
        hctx.mark_own();
        // If this queue was woken for a tag, it will not run and will not wake the next waiting
        // queue. So all waiting queues are woken here.
        hctx.tags.wake_all();
    }
}

fn ring_all<M: Machine>(list: &BioList<M>) {
    list.iter().flat_map(bios_of).for_each(|bio| BioSet::bell_of(bio).ring());
}
