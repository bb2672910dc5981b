//! `Worker`: a thread that serves drives for others.
//!
//! Serves drives, each a `WorkerDrive`; usually one, more where drives outnumber CPUs.
//! It submits nothing of its own: what it completes goes back to the channels that submitted.
//! `turn` does what there is to do; a reactor's thread calls it between its turns, any other lets
//! [`Worker::run`] sleep in its bell. Dropped while there is work, it leaves that to the
//! submitters, but for what a drive has from a queue that is the worker's own: for that it waits a
//! while. Source: \[FALCON\], one thread per drive.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::{Deadline, Doorbell, Machine, Order, Word};

use crate::bio::error::Error;
use crate::chain::bio_set::BioSet;
use crate::disk::Disk;
use crate::disk::runner::{Runner, Stamp};
use crate::disk::timeouts::look_period_ns;
use crate::disk::worker_drive::WorkerDrive;
use crate::queue::io_thread::{DRAIN_LOOK_NS, DRAIN_NS, IoThread};
use crate::trace::tracer::Tracer;

/// How long a worker looks for more before it sleeps, unless told otherwise: about what a sleep and
/// a wake-up cost.
pub const WORKER_SPIN_NS: u64 = 5_000;
/// How often requests that no drive answers are looked for, at least.
const TICK_NS: u64 = 100_000_000;

/// A thread that serves drives for others.
pub struct Worker<M: Machine> {
    drives: Vec<WorkerDrive<M>>,
    run: Runner<M>,
    thread: IoThread<M>,
    next_tick_ns: u64,
    /// A driver, a scheduler or a sink has panicked in a turn: a drop asks none of them again.
    is_broken: bool,
    /// Whose completions the runner keeps: nobody's. Boxed, so that it does not move.
    _bio_set: Box<BioSet<M>>,
}

// SAFETY: the raw pointers inside are to the worker's own boxed set, which has no slots.
#[allow(unsafe_code)]
unsafe impl<M: Machine> Send for Worker<M> {}

impl<M: Machine> Worker<M> {
    /// A worker of no drives yet; `thread.number` is not used.
    #[must_use]
    pub fn new(thread: &IoThread<M>) -> Self {
        let bio_set = BioSet::new(0, Arc::clone(&thread.bell));
        Worker {
            drives: Vec::new(),
            run: Runner::new(&bio_set, thread.owner, Stamp::Batch, 0),
            thread: thread.clone(),
            next_tick_ns: 0,
            is_broken: false,
            _bio_set: bio_set,
        }
    }

    /// Becomes a drive's worker, on the thread that will serve it. False if the drive has no place
    /// for one ([`DiskConfig::worker`](crate::DiskConfig::worker)), or another is there.
    ///
    /// # Errors
    /// If the driver cannot open the queue.
    pub fn serve(&mut self, disk: &Arc<Disk<M>>) -> Result<bool, Error> {
        let drive = WorkerDrive::take(disk, &self.thread)?;
        let taken = drive.is_some();
        self.drives.extend(drive);
        Ok(taken)
    }

    /// Sends on what was handed over, and completes what is done. Does not wait.
    pub fn turn(&mut self) {
        // Stays so if this is left by a panic.
        self.is_broken = true;
        // Tags that such a turn has found would be taken for those of another queue.
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
                self.drives.iter().map(|drive| look_period_ns(drive.disk.config.timeout_ns));
            self.next_tick_ns = now_ns + periods.fold(TICK_NS, u64::min);
        }
        self.is_broken = false;
    }

    /// Whether there is something to do without sleeping: for a last look after arming the bell.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.drives.iter().any(WorkerDrive::has_work)
    }

    /// When to turn again at the latest, if there is such a time.
    #[must_use]
    pub fn sleep_until(&self) -> Option<u64> {
        let in_use = self.drives.iter().any(|drive| drive.disk.tags_in_use() > 0);
        let tick = in_use.then_some(self.next_tick_ns);
        match (self.run.wake_ns(), tick) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether a drive asked to be polled again without being rung for.
    #[cfg(test)]
    pub(crate) fn asks_for_turn(&self) -> bool {
        self.run.wake_ns().is_some()
    }

    /// Takes nothing new: submitters serve their drives themselves from now on. What it has it
    /// goes on with, as long as it is turned.
    pub fn close(&mut self) {
        self.drives.iter().for_each(|drive| drive.leave(self.thread.owner));
    }

    /// Whether its queues hold nothing that only it can finish: then it may be dropped without
    /// leaving a drive's work behind. Meaningful after [`Worker::close`].
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.drives.iter().all(WorkerDrive::is_idle)
    }

    /// The bell that wakes it.
    #[must_use]
    pub fn bell(&self) -> &Arc<Doorbell<M>> {
        &self.thread.bell
    }

    /// Serves until `stop` is not 0 and the bell rings; for drives whose queues any thread may run.
    /// Looks for work for `spin_ns` before it sleeps.
    pub fn run(&mut self, stop: &M::Word, spin_ns: u64) {
        // Acquire pairs with the store of whoever stops it.
        let stops = || stop.load(Order::Acquire) != 0;
        while !stops() {
            self.turn();
            let (deadline_ns, spin_ns) = (self.sleep_until(), M::now().saturating_add(spin_ns));
            let until_ns = deadline_ns.map_or(spin_ns, |deadline_ns| deadline_ns.min(spin_ns));
            let found = M::spin_until(until_ns, || self.has_work() || stops());
            if !found && until_ns == spin_ns {
                self.thread.bell.sleep_unless(deadline_ns, || self.has_work() || stops());
            }
        }
    }
}

impl<M: Machine> Drop for Worker<M> {
    /// What drives have from queues of its own is waited for, since nobody else can poll them.
    fn drop(&mut self) {
        self.drives.iter().for_each(|drive| drive.leave(self.thread.owner));
        let owner = self.thread.owner;
        let in_flight = |drive: &WorkerDrive<M>| drive.in_flight(owner) > 0;
        self.run.deliver();
        let mut deadline = Deadline::<M>::after_ns(DRAIN_NS);
        while !self.is_broken && self.drives.iter().any(in_flight) && !deadline.is_over() {
            self.turn();
            if let Some(turn) = self.thread.turn {
                // A ring that fails is reported by the next real turn.
                let _ = turn(&self.thread.bell, None, &|| true);
            }
            if self.drives.iter().any(in_flight) {
                M::spin_until(M::now() + DRAIN_LOOK_NS, || false);
            }
        }
        self.drives.iter().for_each(|drive| drive.close(self.thread.owner));
    }
}
