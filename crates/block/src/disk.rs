//! `Disk`: a drive in the block layer: its limits, queues, tags, driver and accounting.
//!
//! A disk is made from a driver and a `DiskConfig`, and shared by all channels. The path of an I/O
//! through it is in dispatch.rs and complete.rs; baseline.rs has other designs for comparison.
//! Kernel counterpart: `gendisk` and `request_queue`.

pub mod baseline;
pub(crate) mod claim;
pub(crate) mod complete;
pub(crate) mod config;
pub(crate) mod direct;
pub(crate) mod dispatch;
pub(crate) mod freeze;
pub(crate) mod handover;
pub(crate) mod issue;
pub(crate) mod made_later;
pub(crate) mod queue_context;
pub(crate) mod queues;
pub(crate) mod scheduled;
pub(crate) mod submit_context;
pub(crate) mod timeouts;
pub(crate) mod trace;
pub(crate) mod waiters;
pub(crate) mod worker_drive;
pub(crate) mod worker_state;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::time::Duration;

use millrace_machine::{CpuId, Lock, Machine, NodeId, Order, Word, debug_fields};

use crate::account::DiskStats;
use crate::account::failures::{Failure, Failures};
use crate::account::held::{DriveWaits, WaitSnapshot};
use crate::account::histogram::Snapshot;
use crate::account::ledger::AccountLedger;
use crate::account::stats::StatsSnapshot;
use crate::bio::error::{Error, ErrorKind};
use crate::bio::group_id::GroupId;
use crate::bio::limits::QueueLimits;
use crate::bio::status::Status;
use crate::bio::{Op, OpFlags, Sector, SectorCount};
use crate::chain::bio_set::{BioSet, BioSetRef};
use crate::chain::slot::{BioList, BioSlot, WaitTimes};
use crate::disk::worker_state::WorkerState;
use crate::queue::controller::queues_max;
use crate::queue::driver::{Driver, Extent, HwQueues, QueueKind};
use crate::queue::io_thread::IoThread;
use crate::queue::request::Tag;
use crate::queue::scheduler::share::piece::LEAST_SECTORS;
use crate::queue::{HctxState, QueueRoute, Spread};

use baseline::Baseline;
use baseline::lanes::QueueLanes;
use queues::{DiskQueues, LazyQueues, QueueShape, QueueUsers, make_queues};

pub use config::DiskConfig;

/// Flushes of a drive. At most one is in flight; later ones wait and are merged into the next.
pub(crate) struct FlushState<M: Machine> {
    pub(crate) issued: bool,
    pub(crate) pending: BioList<M>,
    /// Hardware queue that later sends the flushes in `pending` as one flush. It is the queue that
    /// tried to dispatch the first of them, and the thread that serves it polls for the completion.
    pub(crate) pending_hctx: u16,
    /// Incremented when waiting flushes begin to move to a software queue and again at the end of
    /// the move, so an odd number means a move in progress. A thread that searches for flushes
    /// reads the number before and after its search, to notice a move.
    pub(crate) moves: u64,
}

impl<M: Machine> FlushState<M> {
    pub(crate) fn moves_while_idle(&self) -> Option<u64> {
        let idle = !self.issued && self.pending.is_empty() && self.moves.is_multiple_of(2);
        idle.then_some(self.moves)
    }
}

/// An abandoned request, whose memory the drive may still write.
pub(crate) struct AbandonedRequest<M: Machine> {
    pub(crate) hctx: u16,
    pub(crate) tag: Tag,
    pub(crate) bio_sets: Vec<BioSetRef<M>>,
}

pub(crate) struct DiskAccounts<M: Machine> {
    ledger: M::Lock<AccountLedger<DiskStats<M>>>,
    rare: M::Lock<RareAccounts<M>>,
}

struct RareAccounts<M: Machine> {
    failures: Failures,
    /// Statistics of the waiting times of groups, kept when the scheduler is replaced.
    holds: Option<Arc<DriveWaits<M>>>,
}

impl<M: Machine> DiskAccounts<M> {
    fn new() -> Self {
        let rare = RareAccounts { failures: Failures::default(), holds: None };
        let ledger = M::Lock::new("stats", AccountLedger::new());
        DiskAccounts { ledger, rare: M::Lock::new("failures", rare) }
    }

    pub(crate) fn holds(&self, queues: usize) -> Arc<DriveWaits<M>> {
        let mut rare = self.rare.lock();
        Arc::clone(rare.holds.get_or_insert_with(|| Arc::new(DriveWaits::new(queues))))
    }

    pub(crate) fn held(&self) -> BTreeMap<GroupId, WaitSnapshot> {
        let holds = self.rare.lock().holds.clone();
        holds.map_or_else(BTreeMap::new, |holds| holds.held())
    }

    pub(crate) fn service(&self) -> BTreeMap<GroupId, Snapshot> {
        let holds = self.rare.lock().holds.clone();
        holds.map_or_else(BTreeMap::new, |holds| holds.service())
    }

    #[cold]
    pub(crate) fn note_failure(&self, bio: &BioSlot<M>, status: Status) {
        let (op, sector, nr_sectors) = (bio.bio.op, bio.dev_sector, bio.bio.nr_sectors);
        self.rare.lock().failures.note(Failure { op, sector, nr_sectors, status });
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.ledger.lock().opened() == 0
    }

    pub(crate) fn open(&self, hctx: u16) -> Arc<DiskStats<M>> {
        self.ledger.lock().open(DiskStats::new(hctx))
    }
}

/// Value of [`LiveSizes::piece_sectors`] if the scheduler accepts reads and writes of any length.
pub(crate) const UNBOUNDED: u64 = u64::MAX;

pub(crate) struct LiveSizes<M: Machine> {
    /// Size in sectors. Only resize.rs changes the size, and only upwards. The I/O path does not
    /// read it.
    pub(crate) capacity: M::Word,
    /// Longest read or write, in sectors, that the scheduler accepts. Channels split longer ones.
    pub(crate) piece_sectors: Arc<M::Word>,
}

pub(crate) fn request_limits<M: Machine>(disk: &Disk<M>) -> QueueLimits {
    let (limits, block) = (disk.limits, u64::from(disk.limits.logical_sectors()));
    // Relaxed: `piece_sectors` publishes no other data. A stale value only splits reads and writes
    // at the previous maximum length.
    let piece = disk.sizes.piece_sectors.load(Order::Relaxed) / block * block;
    let most = piece.max(block).min(limits.max_sectors.into()) as u32;
    QueueLimits { max_sectors: most, ..limits }
}

/// Returns true if the scheduler at present limits the length of requests more than the drive does,
/// and may split reads and writes of `nr_sectors` sectors, now or after a change of its limit.
#[must_use]
pub fn cuts_requests<M: Machine>(disk: &Disk<M>, nr_sectors: SectorCount) -> bool {
    nr_sectors > LEAST_SECTORS && request_limits(disk).max_sectors < disk.limits.max_sectors
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubmitPath {
    /// The batch goes through a software queue, together with the bios of other threads.
    Queues,
    /// The batch bypasses the software queue (see queues.rs), or there is no software queue.
    Bypass,
    /// The batch takes the fast path of direct.rs. A disk with a trace sink never uses this path,
    /// because the fast path sends no events to the sink.
    Direct,
}

/// One drive in the block layer.
#[doc(alias("gendisk", "request_queue"))]
pub struct Disk<M: Machine> {
    pub(crate) config: DiskConfig<M>,
    pub(crate) limits: QueueLimits,
    pub(crate) sizes: LiveSizes<M>,
    pub(crate) driver: Box<dyn Driver<M>>,
    pub(crate) kind: QueueKind,
    /// Flags of requests that reach the driver: FUA if the driver supports it, never PREFLUSH.
    pub(crate) flags_taken: OpFlags,
    pub(crate) queues: LazyQueues<M>,
    /// Nanoseconds for which a submitter waits while another thread serves the queue.
    pub(crate) enter_wait_ns: u64,
    /// Design that the disk follows instead of multi-queue, for comparison; `None` for multi-queue.
    pub(crate) baseline: Option<Baseline<M>>,
    pub(crate) flush: M::Lock<FlushState<M>>,
    pub(crate) abandoned: M::Lock<Vec<AbandonedRequest<M>>>,
    pub(crate) accounts: DiskAccounts<M>,
    pub(crate) worker_state: Option<WorkerState<M>>,
    pub(crate) this: Weak<Disk<M>>,
}

debug_fields!(Disk<M: Machine>, config, limits, kind);

/// Returns the counters that a disk's driver keeps itself, as pairs of name and value.
#[must_use]
pub fn driver_counts<M: Machine>(disk: &Disk<M>) -> Vec<(&'static str, u64)> {
    disk.driver.counts()
}

/// Announces to a disk's driver that the next flush is the last one; see [`Driver::prepare_stop`].
pub fn prepare_stop<M: Machine>(disk: &Disk<M>) {
    disk.driver.prepare_stop();
}

impl<M: Machine> Disk<M> {
    /// Returns the drive's device number in traces.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.config.device
    }

    /// Creates a disk over a driver. Queues that any thread may run are opened at once.
    ///
    /// # Errors
    /// If limits or settings make no sense, or the driver cannot open a queue.
    pub fn new(
        driver: Box<dyn Driver<M>>,
        mut config: DiskConfig<M>,
    ) -> Result<Arc<Disk<M>>, Error> {
        let topology = M::topology();
        let hw = driver.hw_queues(&topology);
        let limits = checked_limits(&*driver, &config, hw)?;
        let block = u64::from(limits.logical_sectors());
        let capacity = driver.capacity() / block * block;
        if capacity == 0 {
            let text = format!("drive {}: smaller than one block; use a larger drive", config.name);
            return Err(Error::new(ErrorKind::InvalidSetting, text));
        }
        let threads = match hw.kind {
            QueueKind::OwnerOnly => config.io_threads.max(1),
            // Each thread gets its own queue, so that a preempted thread delays no other thread.
            QueueKind::AnyThread if M::THREADS_MOVE => {
                config.io_threads.saturating_add(u16::from(config.worker.is_some()))
            }
            QueueKind::AnyThread => 0,
        };
        let hw = HwQueues { count: queues_max(config.tag_settings(), hw), ..hw };
        let users = QueueUsers { topology: &topology, threads };
        let baseline = baseline::of(&*driver, &mut config, hw, users)?;
        let (ctxs, shared) = queues::queue_counts(&config, hw, users);
        let worker = queues::worker_queue(&config, hw, &topology, shared);
        let shape = QueueShape { hw, shared: (ctxs, shared), worker };
        let queues = match hw.kind {
            // Simulated machines make the queues now, so that no measurement includes this work.
            QueueKind::OwnerOnly if baseline.is_none() && M::THREADS_MOVE => {
                LazyQueues::later(shape)
            }
            kind => {
                let queues = match &baseline {
                    Some(baseline) => baseline::queues(baseline, &config, &shape),
                    None => DiskQueues::new(&config, &shape),
                };
                if kind == QueueKind::AnyThread {
                    queues.open_all(&*driver)?;
                }
                LazyQueues::made(shape, queues)
            }
        };
        let flush =
            FlushState { issued: false, pending: BioList::new(), pending_hctx: 0, moves: 0 };
        Ok(Arc::new_cyclic(|this| Disk {
            queues,
            limits,
            sizes: LiveSizes {
                capacity: M::Word::new(capacity),
                piece_sectors: Arc::new(M::Word::new(UNBOUNDED)),
            },
            driver,
            kind: hw.kind,
            flags_taken: match limits.features.fua {
                true => OpFlags::NOUNMAP.with(OpFlags::FUA),
                false => OpFlags::NOUNMAP,
            },
            enter_wait_ns: config.baseline.inside.wait_ns(),
            baseline,
            flush: M::Lock::new("flush", flush),
            abandoned: M::Lock::new("abandoned", Vec::new()),
            accounts: DiskAccounts::new(),
            worker_state: worker.map(WorkerState::new),
            config,
            this: Weak::clone(this),
        }))
    }

    /// Starts statistics of the locks under which threads serve the hardware queues. Called after
    /// lock statistics were turned on.
    pub fn meter_locks(&self) {
        let queues = self.queues.get();
        queues.iter().flat_map(|queues| &queues.hctxs).for_each(|hctx| hctx.serve.meter());
    }

    /// Returns the disk's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Returns the request timeout; zero if there is no timeout.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// Returns the NUMA node of the drive's controller, if known.
    #[must_use]
    pub fn node(&self) -> Option<NodeId> {
        self.config.controller.as_ref().and_then(|controller| controller.config().node)
    }

    /// Returns the size in sectors, rounded down to whole blocks; it grows with
    /// [`Volume::resize`](crate::Volume::resize).
    #[must_use]
    pub fn capacity(&self) -> Sector {
        // Acquire pairs with the Release of `raise` in resize.rs.
        self.sizes.capacity.load(Order::Acquire)
    }

    /// Returns the drive's current size in bytes, which may include a partial block at the end.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.driver.size_bytes()
    }

    /// Returns the drive's limits.
    #[must_use]
    pub fn limits(&self) -> &QueueLimits {
        &self.limits
    }

    /// Returns the CPU of the drive's worker; `None` if the drive cannot have a worker.
    #[must_use]
    pub fn worker_cpu(&self) -> Option<CpuId> {
        self.config.worker.filter(|_| self.worker_state.is_some())
    }

    /// Returns which threads may run the drive's queues.
    #[must_use]
    pub fn kind(&self) -> QueueKind {
        self.kind
    }

    /// Returns the numbers of software and hardware queues. A hardware queue that several threads
    /// serve at once counts as one.
    #[must_use]
    pub fn queue_count(&self) -> (usize, usize) {
        let lanes = baseline::lanes(self.baseline.as_ref());
        let (ctxs, hctxs) = self.queues.shape.counts();
        (ctxs, lanes.map_or(hctxs, QueueLanes::queues))
    }

    /// Returns the number of tags in use now, by this drive and by drives that share its tags.
    #[must_use]
    pub fn tags_in_use(&self) -> u32 {
        let Some(DiskQueues { hctxs, .. }) = self.queues.get() else { return 0 };
        match hctxs.iter().position(|h| !Arc::ptr_eq(&h.tags, &hctxs[0].tags)) {
            None => hctxs[0].tags.in_use(),
            Some(_) => hctxs.iter().map(|h| h.tags.in_use()).sum(),
        }
    }

    /// Returns the allocation state of a range; may block.
    #[must_use]
    pub fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        self.driver.extents(sector, nr_sectors)
    }

    /// Returns true if a read of the range is known to give zeroes; see
    /// [`Driver::reads_as_zeroes`].
    #[must_use]
    pub fn reads_as_zeroes(&self, sector: Sector, nr_sectors: u64) -> bool {
        self.driver.reads_as_zeroes(sector, nr_sectors)
    }

    /// Returns all counters of the disk, summed over threads and hardware queues.
    #[must_use]
    pub fn stats(&self) -> StatsSnapshot {
        let mut sum = StatsSnapshot::default();
        self.queue_stats().iter().for_each(|(_, queue)| sum.merge(queue));
        sum
    }

    /// Returns the number and all counters of each hardware queue that threads have used.
    /// Submissions and merges in a plug count for the submitter's own queue. Other merges,
    /// dispatches and completions count for the queue that the request went through.
    #[must_use]
    pub fn queue_stats(&self) -> Vec<(u16, StatsSnapshot)> {
        self.accounts.ledger.lock().sums().into_iter().collect()
    }

    /// Returns the number of failed I/Os, and the last few of them; timeouts count as failures.
    #[must_use]
    pub fn failures(&self) -> Failures {
        let failures = self.accounts.rare.lock().failures.clone();
        let (reconnecting, trouble) = (self.driver.is_reconnecting(), self.driver.trouble());
        let flush_trouble = self.driver.flush_trouble();
        Failures { reconnecting, trouble, flush_trouble, ..failures }
    }

    /// Takes the driver's messages for an operator since the last call, one line each.
    #[must_use]
    pub fn take_news(&self) -> Vec<String> {
        self.driver.take_news()
    }

    /// Opens queue `hctx` for the calling I/O thread. Does nothing if the queue does not exist or
    /// belongs to a worker.
    ///
    /// # Errors
    /// If the driver cannot open the queue.
    pub fn bring_up(&self, hctx: u16, thread: &IoThread<M>) -> Result<(), Error> {
        // The last hardware queue may be reserved for a worker. No I/O thread may own that queue.
        match usize::from(hctx) < self.owned_queues() {
            true => self.own(hctx, thread),
            false => Ok(()),
        }
    }

    /// Makes the calling thread the owner of an `OwnerOnly` queue, and opens the queue.
    pub(crate) fn own(&self, hctx: u16, thread: &IoThread<M>) -> Result<(), Error> {
        make_queues(self);
        let (queue, owner) = (self.queues.hctx(hctx), thread.owner);
        if self.kind == QueueKind::OwnerOnly && !queue.is_owned_by(owner) {
            if !queue.reserve() {
                let text = format!("drive {}: queue {hctx} belongs to another thread", self.name());
                return Err(Error::new(ErrorKind::Busy, text));
            }
            let depth = queue.tags.depth_with_reserved();
            let opened = self.driver.open_queue_on(thread, hctx, depth);
            let opened = opened.inspect_err(|_| queue.clear_owner())?;
            queue.serve.enter().queue = Some(opened);
            queue.set_owner(owner, Arc::clone(&thread.bell));
        }
        Ok(())
    }

    /// Closes the hardware queues that the calling I/O thread (`thread`) owns. Nothing may be in
    /// flight in these queues. Bios of other threads that still wait there end with `Aborted`.
    pub fn bring_down(&self, thread: &IoThread<M>) {
        if self.queues.get().is_none() {
            return;
        }
        let queues = (0..).zip(self.queues.hctxs()).take(self.owned_queues());
        for (index, hctx) in queues.filter(|(_, hctx)| hctx.give_up(thread)) {
            let mut left = BioList::new();
            hctx.pending.take(|ctx| left.append(self.queues.ctxs()[ctx].lock().list(index)));
            let mut serve = hctx.serve.enter();
            left.append(&mut self.empty_queue(index, &mut serve));
            drop(serve);
            if let Some(baseline) = &self.baseline {
                left.append(&mut baseline.stack.take_waiting(hctx));
            }
            let mut flush = self.flush.lock();
            if !flush.issued {
                left.append(&mut flush.pending);
            }
            drop(flush);
            hctx.tags.wake_all();
            if !left.is_empty() {
                abort(&self.accounts.open(index), left);
            }
        }
    }

    /// Closes a hardware queue that has nothing in flight, and returns its waiting bio chains.
    pub(crate) fn empty_queue(&self, index: u16, serve: &mut HctxState<M>) -> BioList<M> {
        serve.queue = None;
        let mut left = serve.take_chains();
        for rq in core::mem::take(&mut serve.requeued) {
            if let Some(scheduling) = &mut serve.scheduling {
                scheduling.ended(rq.tag(), None, M::now());
            }
            let chain = self.queues.hctx(index).tags.take_apart(rq);
            if chain.op() == Op::Flush {
                // The driver refused this flush, so it never completes. The flushes in `pending`,
                // which wait for its completion, are therefore taken out with it.
                let mut flush = self.flush.lock();
                flush.issued = false;
                left.append(&mut flush.pending);
            } else if let Some(baseline) = &self.baseline {
                baseline.stack.forget_issued();
            }
            left.push_back(chain);
        }
        left
    }

    /// Returns the number of hardware queues, not counting one that only a worker may own.
    pub(crate) fn owned_queues(&self) -> usize {
        let workers = self.kind == QueueKind::OwnerOnly && self.worker_state.is_some();
        let count = self.queues.get().map(|queues| queues.hctxs.len());
        count.unwrap_or_else(|| self.queues.shape.counts().1) - usize::from(workers)
    }

    /// Assigns queues to a channel of the calling thread, and opens statistics for the channel.
    /// `thread` is the number of the calling I/O thread. `OwnerOnly` queues are assigned by this
    /// number, or by CPU to a thread without a number. Queues that any thread may run are assigned
    /// by CPU if threads stay on their CPU; otherwise the queue with the fewest users is assigned.
    pub(crate) fn join(&self, thread: Option<u16>) -> (QueueRoute, Arc<DiskStats<M>>) {
        make_queues(self);
        let cpu = M::cpu();
        let topology = M::topology();
        let node = topology.node_of(cpu).0 as usize;
        let place = match thread {
            Some(thread) if M::THREADS_MOVE || self.kind == QueueKind::OwnerOnly => thread.into(),
            _ => topology.index_of(cpu),
        };
        let mut stats = self.accounts.ledger.lock();
        let route = match self.kind {
            QueueKind::AnyThread if M::THREADS_MOVE => {
                let lanes = baseline::lanes(self.baseline.as_ref());
                let count = lanes.map_or(self.queues.ctxs().len(), QueueLanes::count);
                let routes = (0..count).map(|more| route(self, (place + more) % count, node));
                // The users of all queues are counted in one pass over all statistics. One pass for
                // each queue would take long, because there may be thousands of threads.
                let mut open = alloc::vec![0; self.queues.hctxs().len()];
                stats.keys_in_use().for_each(|hctx| open[usize::from(hctx)] += 1);
                let users = |route: &QueueRoute| {
                    open[usize::from(route.hctx)]
                        + usize::from(self.worker_of(route.hctx).is_some())
                };
                routes.min_by_key(users).expect("a disk has a software queue")
            }
            _ => route(self, place, node),
        };
        let account = stats.open(DiskStats::new(route.hctx));
        (QueueRoute { number: stats.opened(), ..route }, account)
    }
}

fn route<M: Machine>(disk: &Disk<M>, place: usize, node: usize) -> QueueRoute {
    if let Some(lanes) = baseline::lanes(disk.baseline.as_ref()) {
        return lanes.route(place);
    }
    let ctx = disk.config.software_queues.index(place, node, disk.queues.ctxs().len());
    let hctx = match (disk.config.software_queues, disk.config.hardware_queues) {
        // A thread uses its own queue, or another thread's if there are fewer queues than threads.
        _ if disk.kind == QueueKind::OwnerOnly => place % disk.owned_queues(),
        // All submitters have the same software queue, so its number cannot select a hardware
        // queue. The submitter's CPU, thread or node selects it instead.
        (Spread::One, hardware) => hardware.index(place, node, disk.queues.hctxs().len()),
        (Spread::Node, Spread::Core) => place % disk.queues.hctxs().len(),
        _ => disk.driver.map(ctx, disk.queues.ctxs().len(), disk.queues.hctxs().len()),
    };
    QueueRoute { ctx: ctx as u16, hctx: hctx as u16, number: 0 }
}

impl<M: Machine> Drop for Disk<M> {
    /// Forgets the bios that are still queued: dropping a `BioRef` before completion would panic.
    fn drop(&mut self) {
        let Some(queues) = self.queues.get() else { return };
        queues.ctxs.iter().for_each(|ctx| ctx.lock().leak());
        for hctx in &queues.hctxs {
            let mut serve = hctx.serve.enter();
            serve.staged.leak();
            core::mem::forget(serve.scheduling.take());
            serve.requeued.drain(..).for_each(core::mem::forget);
        }
        self.baseline.iter().for_each(|baseline| baseline.stack.leak());
        self.flush.lock().pending.leak();
    }
}

/// Returns the drive's validated limits. Returns an error for invalid limits, and for a drive with
/// 0 queues or 0 tags.
fn checked_limits<M: Machine>(
    driver: &dyn Driver<M>,
    config: &DiskConfig<M>,
    hw: HwQueues,
) -> Result<QueueLimits, Error> {
    let wrong = match (hw.count, hw.depth, config.queue_depth) {
        (0, ..) => "the driver offers no hardware queue",
        (_, 0, _) => "the driver offers queues of depth 0",
        (.., Some(0)) => "a queue depth of 0 is out of range; use 1 to 65536",
        _ => return driver.limits().validate(),
    };
    Err(Error::new(ErrorKind::InvalidSetting, format!("drive {}: {wrong}", config.name)))
}

pub(crate) fn abort<M: Machine>(stats: &DiskStats<M>, mut list: BioList<M>) {
    let now_ns = M::now();
    while let Some(chain) = list.pop_front() {
        let mut next = Some(chain);
        while let Some(mut bio) = next {
            next = bio.chained.take();
            bio.status = Status::Aborted;
            bio.waited = WaitTimes::NOT;
            stats.count_aborted(&bio, now_ns);
            let (bio_set, mut one) = (bio.bio_set, BioList::new());
            one.push_back(bio);
            BioSet::deliver_to(bio_set, one);
        }
    }
}
