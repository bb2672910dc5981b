//! `Worker`: a thread that serves drives for submitting threads.
//!
//! A worker usually serves one drive, or several if there are more drives than CPUs. Each drive has
//! a `WorkerDrive`. The worker submits no I/O of its own and returns completions to the channels
//! that submitted. [`Worker::turn`] does all pending work once. An I/O thread calls `turn` in each
//! event-loop iteration; other threads use [`Worker::run`], which sleeps while there is no work. If
//! a worker is dropped, the submitters serve the bios that wait for it. Only the requests in flight
//! from the worker's own queue are left to the worker, which waits a while for them. Source: Kumar
//! et al., ATC 2017, one thread per drive.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use millrace_machine::{Deadline, Doorbell, Machine, Order, Word, debug_fields, nanoseconds};

use crate::bio::error::Error;
use crate::chain::bio_set::BioSet;
use crate::disk::Disk;
use crate::disk::submit_context::{Stamp, SubmitContext};
use crate::disk::timeouts::look_period_ns;
use crate::disk::worker_drive::WorkerDrive;
use crate::queue::io_thread::{DRAIN_LOOK_NS, DRAIN_NS, IoThread};
use crate::trace::tracer::Tracer;

/// Default nanoseconds for which a worker polls before it sleeps: about the time to sleep and wake.
pub const WORKER_SPIN_NS: u64 = 5_000;
/// Longest time in nanoseconds between two checks for timed-out requests.
const TICK_NS: u64 = 100_000_000;

/// A thread that serves drives for submitting threads.
pub struct Worker<M: Machine> {
    drives: Vec<WorkerDrive<M>>,
    run: SubmitContext<M>,
    thread: IoThread<M>,
    next_tick_ns: u64,
    /// True if a driver, scheduler or trace sink has panicked while the worker served a drive.
    /// Dropping the worker then calls none of the three.
    is_broken: bool,
    /// Bio set for the `SubmitContext`. A worker submits no bios, so the set is always empty, and
    /// each completed bio is delivered to its own channel. The `Box` keeps the set's address fixed.
    _bio_set: Box<BioSet<M>>,
}

debug_fields!(Worker<M: Machine>, thread);

// SAFETY: the raw pointers inside are to the worker's own boxed set, which has no slots.
#[allow(unsafe_code)]
unsafe impl<M: Machine> Send for Worker<M> {}

impl<M: Machine> Worker<M> {
    /// Creates a worker that serves no drive yet. The field `number` of `thread` is ignored.
    #[must_use]
    pub fn new(thread: &IoThread<M>) -> Self {
        let bio_set = BioSet::new(0, Arc::clone(&thread.bell));
        Worker {
            drives: Vec::new(),
            run: SubmitContext::new(&bio_set, thread.owner, Stamp::Batch, 0),
            thread: thread.clone(),
            next_tick_ns: 0,
            is_broken: false,
            _bio_set: bio_set,
        }
    }

    /// Makes this worker serve a drive; called on the thread that will serve it. Returns false if
    /// the drive cannot have a worker ([`DiskConfig::worker`](crate::DiskConfig::worker)), or has
    /// another one.
    ///
    /// # Errors
    /// If the driver cannot open the queue.
    pub fn serve(&mut self, disk: &Arc<Disk<M>>) -> Result<bool, Error> {
        let drive = WorkerDrive::take(disk, &self.thread)?;
        let taken = drive.is_some();
        self.drives.extend(drive);
        Ok(taken)
    }

    /// Dispatches the bios handed over to the worker, and collects completions. Does not wait.
    pub fn turn(&mut self) {
        // A panic in this function leaves `is_broken` true; the function's end sets it to false.
        self.is_broken = true;
        // If the last call panicked, the batch may still hold completions of the queue that was
        // polled. The batch is cleared, so that the next queue does not look up their tags.
        self.run.batch.clear();
        self.run.forget_wake();
        let now_ns = M::now();
        let ticks = now_ns >= self.next_tick_ns;
        let tracer = self.drives.iter().find_map(|drive| drive.disk.config.tracer.as_deref());
        if tracer.is_some_and(Tracer::is_on) != self.run.trace.is_some() {
            self.run.follow(tracer);
        }
        for drive in &mut self.drives {
            drive.turn(&mut self.run);
            if ticks {
                drive.check_timeouts(now_ns, &mut self.run);
            }
        }
        self.run.publish();
        if ticks {
            let periods =
                self.drives.iter().map(|drive| look_period_ns(drive.disk.config.timeout_ns()));
            self.next_tick_ns = now_ns + periods.fold(TICK_NS, u64::min);
        }
        self.is_broken = false;
    }

    /// Returns true if the worker has work. Before a thread sleeps, it arms the doorbell and then
    /// calls this function once more.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.drives.iter().any(WorkerDrive::has_work)
    }

    /// Returns the time by which `turn` must be called again. `None` means that only the doorbell
    /// needs to wake the worker.
    #[must_use]
    pub fn sleep_until(&self) -> Option<u64> {
        let in_use = self.drives.iter().any(|drive| drive.disk.tags_in_use() > 0);
        let tick = in_use.then_some(self.next_tick_ns);
        [self.run.wake_ns(), tick].into_iter().flatten().min()
    }

    /// Returns true if the worker must wake at a set time, even if its doorbell does not ring.
    #[cfg(test)]
    pub(crate) fn asks_for_turn(&self) -> bool {
        self.run.wake_ns().is_some()
    }

    /// Stops accepting bios, so that submitters serve their drives themselves. Further calls of
    /// [`Worker::turn`] finish the work that this worker already has.
    pub fn close(&mut self) {
        self.drives.iter().for_each(|drive| drive.leave(self.thread.owner));
    }

    /// Returns true if no work is left at a drive. Meaningful after [`Worker::close`].
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.drives.iter().all(WorkerDrive::is_idle)
    }

    /// Returns the doorbell that wakes the worker.
    #[must_use]
    pub fn bell(&self) -> &Arc<Doorbell<M>> {
        &self.thread.bell
    }

    /// Serves the worker's drives until `stop` is not 0. After setting `stop`, the caller must ring
    /// the doorbell. Before the worker sleeps, it polls for work for the time `spin`. Only for
    /// drives with queues that any thread may run.
    pub fn run(&mut self, stop: &M::Word, spin: Duration) {
        let longest_ns = nanoseconds(spin);
        // Acquire pairs with the store by the thread that stops this worker.
        let stops = || stop.load(Order::Acquire) != 0;
        while !stops() {
            self.turn();
            let (deadline_ns, spin_ns) = (self.sleep_until(), M::now().saturating_add(longest_ns));
            let until_ns = deadline_ns.map_or(spin_ns, |deadline_ns| deadline_ns.min(spin_ns));
            let found = M::spin_until(until_ns, || self.has_work() || stops());
            if !found && until_ns == spin_ns {
                self.thread.bell.sleep_unless(deadline_ns, || self.has_work() || stops());
            }
        }
    }
}

impl<M: Machine> Drop for Worker<M> {
    /// Waits for requests of the worker's own queues, for which no other thread can poll.
    fn drop(&mut self) {
        self.close();
        let owner = self.thread.owner;
        let in_flight = |drive: &WorkerDrive<M>| drive.in_flight(owner) > 0;
        self.run.deliver();
        let mut deadline = Deadline::<M>::after_ns(DRAIN_NS);
        while !self.is_broken && self.drives.iter().any(in_flight) && !deadline.is_over() {
            self.turn();
            if let Some(turn) = self.thread.turn {
                // Errors of the thread's ring (io_uring) are ignored; its event loop reports them.
                let _ = turn(&self.thread.bell, None, &|| true);
            }
            if self.drives.iter().any(in_flight) {
                M::spin_until(M::now() + DRAIN_LOOK_NS, || false);
            }
        }
        self.drives.iter().for_each(|drive| drive.close(self.thread.owner));
    }
}
