//! `VolumeMember`: a channel's state for one drive: plug, route, and bios outstanding.
//!
//! A `Channel` owns a `VolumeMember` for each drive. A batch goes into the drive's queues and is
//! served by the channel's thread, or is handed over to the drive's worker. The member also records
//! whether this channel must poll the drive's queues for completions.

use alloc::sync::Arc;

use millrace_machine::{Lock, Machine, Order, Stage, Word};

use crate::account::DiskStats;
use crate::account::disk_counter::DiskCounter;
use crate::bio::limits::QueueLimits;
use crate::chain::merge::MergeKind;
use crate::chain::slot::{BioList, BioRef};
use crate::channel::child_slots::ChildSlots;
use crate::channel::plug::Plug;
use crate::disk::queue_context::QueueContext;
use crate::disk::submit_context::{Stamp, SubmitContext};
use crate::disk::trace::PlugPlace;
use crate::disk::{Disk, SubmitPath, UNBOUNDED, direct, handover, request_limits, timeouts};
use crate::queue::driver::QueueKind;
use crate::queue::{HardwareQueue, INSIDE_LOOK_NS, QueueRoute};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchServer {
    Submitter,
    Worker,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollScope {
    /// Poll only queues in which the channel may have bios in flight.
    WhereExpected,
    /// Poll all queues that the channel's thread may run. Used while memory is in quarantine,
    /// because a timed-out request may complete late in any of these queues.
    Everywhere,
}

pub(crate) struct VolumeMember<M: Machine> {
    pub(crate) disk: Arc<Disk<M>>,
    pub(crate) stats: Arc<DiskStats<M>>,
    pub(crate) plug: Plug<M>,
    pub(crate) child_slots: ChildSlots<M>,
    pub(crate) route: QueueRoute,
    /// Number of bios of this channel that the drive has, or that wait for one of the drive's tags.
    pub(crate) outstanding: u32,
    /// True if bios of this channel may be in the hardware queue assigned to the channel.
    pub(crate) served_here: bool,
    /// True if a flush of this channel may wait until the drive's flush in flight has completed.
    /// The channel then polls its hardware queue, because that queue may have to send the waiting
    /// flush.
    pub(crate) flushes: bool,
    merges: bool,
    merged: Option<MergeKind>,
    /// True if batches may take the fast path: the disk allows it, and `Stamp::Batch` is set.
    pub(crate) is_direct: bool,
    /// True if the drive accepts memory segments of any length, across any memory boundary, and
    /// requests across any sector boundary.
    pub(crate) takes_plain: bool,
    pub(crate) limits: QueueLimits,
    piece_sectors: u64,
}

impl<M: Machine> VolumeMember<M> {
    /// `thread` is the number of the calling I/O thread, if any. The caller sets `child_slots`.
    pub(crate) fn new(disk: &Arc<Disk<M>>, thread: Option<u16>, stamp: Stamp) -> Self {
        let (route, stats) = disk.join(thread);
        VolumeMember {
            stats,
            plug: Plug::new(),
            child_slots: ChildSlots::of(BioList::new()),
            route,
            outstanding: 0,
            served_here: false,
            flushes: false,
            merges: disk.baseline.as_ref().is_none_or(|b| b.stack.merges_in_plug()),
            merged: None,
            is_direct: disk.queues.path() == SubmitPath::Direct && stamp == Stamp::Batch,
            takes_plain: disk.limits.takes_any_segment() && disk.limits.chunk_sectors == 0,
            // Relaxed: no other data depends on `piece_sectors`.
            piece_sectors: disk.sizes.piece_sectors.load(Order::Relaxed),
            limits: request_limits(disk),
            disk: Arc::clone(disk),
        }
    }

    #[inline(always)]
    pub(crate) fn hctx(&self) -> &HardwareQueue<M> {
        &self.disk.queues.hctxs()[usize::from(self.route.hctx)]
    }

    #[inline(always)]
    pub(crate) fn context<'a>(&'a self, run: &'a mut SubmitContext<M>) -> QueueContext<'a, M> {
        QueueContext::new(&self.disk, self.route.hctx, run, &self.stats)
    }

    #[inline(always)]
    pub(crate) fn plug(&mut self, slot: BioRef<M>) {
        if !self.merges {
            self.plug.push(slot);
            return;
        }
        M::work(Stage::Submit, 1);
        if let Some(kind) = self.plug.merge_or_push(slot, &self.limits) {
            self.count_merge(kind);
        }
    }

    /// Submits the plugged bios to the drive's queues. Returns the number of bio chains (bios
    /// merged into one future request) that the drive refused and that stay plugged.
    #[inline(always)]
    pub(crate) fn flush(&mut self, run: &mut SubmitContext<M>) -> u32 {
        self.served_here = true;
        if self.is_direct && self.plug.older.is_empty() {
            let Some(bio) = self.plug.last.take() else { return 0 };
            self.count();
            let context = QueueContext::new(&self.disk, self.route.hctx, run, &self.stats);
            match direct::issue_single(context, bio) {
                Ok(()) => return 0,
                Err(bio) => self.plug.older.push_back(bio),
            }
        } else if self.plug.is_empty() {
            return 0;
        }
        self.flush_list(run)
    }

    #[inline(never)]
    pub(crate) fn flush_called(&mut self, run: &mut SubmitContext<M>) -> u32 {
        self.flush(run)
    }

    #[inline(always)]
    pub(crate) fn follow_pieces(&mut self) {
        // Relaxed: no other data depends on `piece_sectors`.
        let piece_sectors = self.disk.sizes.piece_sectors.load(Order::Relaxed);
        if piece_sectors != self.piece_sectors {
            (self.piece_sectors, self.limits) = (piece_sectors, request_limits(&self.disk));
        }
    }

    /// Returns true if the drive's scheduler limits the length of requests.
    pub(crate) fn has_pieces(&self) -> bool {
        self.piece_sectors != UNBOUNDED
    }

    #[inline(always)]
    fn count(&mut self) -> u32 {
        let bios = core::mem::take(&mut self.plug.bios);
        self.outstanding += bios;
        self.stats.add(DiskCounter::Queued, bios.into());
        bios
    }

    /// Counts the plugged bios as outstanding; emits the unplug event (U) if traced.
    #[inline(always)]
    fn unplug(&mut self, run: &mut SubmitContext<M>) {
        let (fresh, mut tracing) = (self.count(), self.disk.trace(run));
        // Bio chains that a frozen drive refused earlier have already had their unplug event.
        if tracing.is_on() && fresh > 0 {
            tracing.unplug(self.plug.list());
        }
    }

    #[inline(never)]
    fn flush_list(&mut self, run: &mut SubmitContext<M>) -> u32 {
        self.unplug(run);
        let list = self.plug.list();
        let mut context = QueueContext::new(&self.disk, self.route.hctx, run, &self.stats);
        context.submit_batch(self.route.ctx, list);
        list.len()
    }

    /// Submits the plugged bios. The drive's worker serves them if `server` is
    /// [`BatchServer::Worker`] and the drive has a worker; otherwise this thread does.
    pub(crate) fn flush_served(&mut self, server: BatchServer, run: &mut SubmitContext<M>) -> u32 {
        if self.plug.is_empty() {
            return 0;
        }
        if server == BatchServer::Submitter || !self.disk.has_worker() {
            if !self.disk.trace(run).is_on() {
                return self.flush_called(run);
            }
            // While a trace is recorded, even a single bio goes through `flush_list`, because the
            // fast path for a single bio emits no trace events.
            self.served_here = true;
            return self.flush_list(run);
        }
        self.unplug(run);
        let list = self.plug.list();
        QueueContext::new(&self.disk, self.route.hctx, run, &self.stats)
            .hand_over(self.route.ctx, list);
        list.len()
    }

    pub(crate) fn run_queues(&mut self, look: PollScope, run: &mut SubmitContext<M>) {
        let mine = self.outstanding > 0 || self.disk.kind() == QueueKind::OwnerOnly;
        let everywhere = look == PollScope::Everywhere;
        if !mine && !everywhere {
            return;
        }
        if self.disk.worker_state.is_none() {
            self.run_queue(run);
            return;
        }
        if self.outstanding > 0 || everywhere {
            self.stand_in(run);
        }
        if self.looks_here() || everywhere {
            // A flush that waits for another flush is in no hardware queue, so a poll does not find
            // it. So `flushes` is cleared only if the drive had no flush before and after the poll.
            // Also, no flush may have moved to a queue in between.
            let before =
                if self.flushes { self.disk.flush.lock().moves_while_idle() } else { None };
            // `run_queue` leaves `left_busy` unchanged if another thread serves the queue. The
            // queue may then still hold bios of this channel, so `left_busy` starts as true.
            run.left_busy = true;
            self.run_queue(run);
            self.served_here = run.left_busy;
            if self.flushes {
                let idle = before.is_some() && self.disk.flush.lock().moves_while_idle() == before;
                self.flushes = run.left_busy || !idle || !self.plug.is_empty();
            }
        }
    }

    /// Polls the queue. If another thread serves the queue, asks for another poll soon. The other
    /// thread may stop serving while the drive still has I/O of this channel.
    fn run_queue(&mut self, run: &mut SubmitContext<M>) {
        let was_inside = self.context(run).run_queue();
        if !was_inside && self.outstanding > 0 && self.disk.kind() == QueueKind::AnyThread {
            run.wake_at(M::now() + INSIDE_LOOK_NS);
        }
    }

    pub(crate) fn stand_in(&self, run: &mut SubmitContext<M>) {
        if self.disk.worker_state.is_some() && !self.disk.has_worker() {
            self.context(run).stand_in(self.route.ctx);
        }
    }

    /// Checks for timed-out requests in the channel's own queue and, while the drive has no worker,
    /// in the queue reserved for a worker.
    pub(crate) fn check_timeouts(&self, now_ns: u64, run: &mut SubmitContext<M>) {
        timeouts::check(&mut self.context(run), now_ns);
        if let Some(worker) = &self.disk.worker_state
            && !worker.is_taken()
            && worker.hctx != self.route.hctx
        {
            let theirs = run.stats_of(&self.disk, worker.hctx);
            let mut context = QueueContext::new(&self.disk, worker.hctx, run, &theirs);
            timeouts::check(&mut context, now_ns);
        }
    }

    fn looks_here(&self) -> bool {
        let handed = self.disk.worker_state.is_some() && self.disk.kind() == QueueKind::AnyThread;
        self.served_here || self.flushes || !handed || !self.disk.has_worker()
    }

    pub(crate) fn has_work(&self, owner: u64) -> bool {
        // A hardware queue that any thread may run is polled only by channels with bios in flight.
        let mine = self.outstanding > 0 || self.disk.kind() == QueueKind::OwnerOnly;
        mine && self.looks_here() && self.hctx().has_pending_for(owner)
            || self.disk.driver.is_stacked() && self.hctx().driver_has_work(owner)
            || self.outstanding > 0 && handover::is_orphaned(&self.disk)
    }

    /// Forgets the plugged bios, and the split bios that wait for a free bio slot. Called when a
    /// dropped channel leaks its `BioSet`, because a drive may still write the bios' memory.
    pub(crate) fn leak(&mut self) {
        self.plug.list().leak();
        self.child_slots.leak();
    }

    #[cold]
    pub(crate) fn trace_plugged(&mut self, drives: usize, run: &mut SubmitContext<M>) {
        let (disk, mut place) = (&self.disk, PlugPlace::First);
        self.plug.list().for_each(|chain| {
            disk.trace(run).record_own(chain, (drives, place));
            place = PlugPlace::Later;
            let mut merged = chain.chained.as_deref();
            while let Some(bio) = merged {
                disk.trace(run).record_entry(bio, drives);
                disk.trace(run).record_merge(bio);
                merged = bio.chained.as_deref();
            }
        });
    }

    #[inline]
    pub(crate) fn plug_traced(
        &mut self,
        slot: BioRef<M>,
        drives: usize,
        run: &mut SubmitContext<M>,
    ) {
        self.disk.trace(run).tell_entry(&slot);
        let place = if self.plug.is_empty() { PlugPlace::First } else { PlugPlace::Later };
        self.plug(slot);
        let Some(last) = self.plug.last.as_deref() else { return };
        match self.merged.take() {
            Some(kind) => self.disk.trace(run).plug_merged(kind, last, drives),
            None => self.disk.trace(run).record_own(last, (drives, place)),
        }
    }

    #[cold]
    fn count_merge(&mut self, kind: MergeKind) {
        let last = self.plug.last.as_deref().expect("the plug must hold a bio after a merge");
        self.stats.count_merge(last.op());
        self.merged = Some(kind);
    }
}
