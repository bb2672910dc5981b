//! `SubmitContext`: a thread's state while it runs queues: its completions, and the queues to wake.
//!
//! A `Channel` or `Worker` owns the context and lends it to dispatch.rs and complete.rs. Completed
//! bios of the channel itself collect in `done` without atomics; consecutive bios of another
//! channel are delivered to that channel together. Invariant: when control returns to the program,
//! the context holds no bios of other channels.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use millrace_machine::Machine;

use crate::account::DiskStats;
use crate::account::ledger::LedgerEntry;
use crate::account::tenants::{TenantLedger, Tenants};
use crate::chain::bio_set::BioSet;
use crate::chain::slot::{BioList, BioRef};
use crate::disk::Disk;
use crate::queue::driver::CompletionBatch;
use crate::trace::UnplugReason;
use crate::trace::tracer::{TraceWriter, Tracer};

/// Selects how often the clock is read to stamp submission (Q), dispatch (D) and completion (C).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Stamp {
    /// The clock is read once for a whole batch at submission, at dispatch and at completion.
    #[default]
    Batch,
    /// The clock is read for every I/O at submission, at dispatch and at completion.
    Io,
}

/// A thread's statistics for a hardware queue that is not its own.
struct OtherStats<M: Machine> {
    disk: Weak<Disk<M>>,
    stats: Arc<DiskStats<M>>,
}

/// Statistics of a thread: by tenant, and for hardware queues other than its own.
pub(crate) struct ThreadAccounts<M: Machine> {
    /// Time at which the thread last found a completion, in nanoseconds.
    pub(crate) c_ns: u64,
    pub(crate) tenants: Tenants<M>,
    others: Vec<OtherStats<M>>,
}

pub(crate) struct SubmitContext<M: Machine> {
    pub(crate) bio_set: *const BioSet<M>,
    /// Identity of the thread, to compare with the owners of queues.
    pub(crate) owner: u64,
    pub(crate) stamp: Stamp,
    /// Index of the bitmap word at which the next search for a tag starts.
    pub(crate) hint: u32,
    pub(crate) done: BioList<M>,
    pub(crate) batch: CompletionBatch,
    /// Earliest time at which a driver wants to be polled again.
    wake_ns: Option<u64>,
    outbox: BioList<M>,
    outbox_set: *const BioSet<M>,
    /// Queues that this thread must run, because a tag was freed for them.
    pub(crate) woken: Vec<(Arc<Disk<M>>, u16)>,
    /// Empty list with reserved memory. `run_woken` swaps it with `woken`. While `run_woken` runs,
    /// the field is `None`, so that a nested call returns at once.
    pub(crate) turn: Option<Vec<(Arc<Disk<M>>, u16)>>,
    /// True if the queue that this thread served last still has waiting work or requests in flight.
    pub(crate) left_busy: bool,
    pub(crate) accounts: ThreadAccounts<M>,
    pub(crate) trace: Option<TraceWriter<M>>,
    pub(crate) trace_context: TraceContext,
}

/// Data for trace events. The functions that emit events read these fields, because they do not get
/// the data as arguments. Only `has_waited` is for another purpose: while it is true, batches take
/// no fast path, because bios in the plugs have waited for limits of their groups.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TraceContext {
    pub(crate) inserted_ns: u64,
    pub(crate) unplug: UnplugReason,
    pub(crate) has_waited: bool,
}

impl<M: Machine> SubmitContext<M> {
    pub(crate) fn new(bio_set: &BioSet<M>, owner: u64, stamp: Stamp, hint: u32) -> Self {
        SubmitContext {
            bio_set,
            owner,
            stamp,
            hint,
            done: BioList::new(),
            batch: CompletionBatch::new(),
            wake_ns: None,
            outbox: BioList::new(),
            outbox_set: core::ptr::null(),
            woken: Vec::with_capacity(8),
            turn: Some(Vec::with_capacity(8)),
            left_busy: false,
            accounts: ThreadAccounts { c_ns: 0, tenants: Tenants::new(None), others: Vec::new() },
            trace: None,
            trace_context: TraceContext::default(),
        }
    }

    pub(crate) fn accounting_to(mut self, ledger: &Arc<TenantLedger<M>>) -> Self {
        self.accounts.tenants = Tenants::new(Some(Arc::clone(ledger)));
        self
    }

    #[cold]
    pub(crate) fn follow(&mut self, tracer: Option<&Tracer<M>>) {
        self.trace = tracer.filter(|tracer| tracer.is_on()).map(Tracer::writer);
    }

    /// Publishes recorded trace events. Called before control returns to the program.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if let Some(writer) = &mut self.trace {
            writer.publish();
        }
    }

    /// Returns this thread's statistics for hardware queue `hctx` of `disk`, for work in a queue
    /// that is usually not the thread's own. The disk is in the thread's volume, or shares tags
    /// with it.
    #[cold]
    pub(crate) fn stats_of(&mut self, disk: &Disk<M>, hctx: u16) -> Arc<DiskStats<M>> {
        let others = &mut self.accounts.others;
        let is_it = |other: &&OtherStats<M>| {
            core::ptr::eq(other.disk.as_ptr(), disk) && other.stats.key() == hctx
        };
        if let Some(other) = others.iter().find(is_it) {
            return Arc::clone(&other.stats);
        }
        others.retain(|other| other.disk.strong_count() > 0);
        let stats = disk.accounts.open(hctx);
        others.push(OtherStats { disk: Weak::clone(&disk.this), stats: Arc::clone(&stats) });
        stats
    }

    /// Returns a bio, which has its final status, to its channel.
    #[inline(always)]
    pub(crate) fn finish(&mut self, bio: BioRef<M>) {
        if bio.bio_set == self.bio_set {
            self.done.push_back(bio);
        } else {
            self.finish_foreign(bio);
        }
    }

    #[inline(never)]
    fn finish_foreign(&mut self, bio: BioRef<M>) {
        if self.outbox_set != bio.bio_set {
            self.deliver();
            self.outbox_set = bio.bio_set;
        }
        self.outbox.push_back(bio);
    }

    #[inline]
    pub(crate) fn deliver(&mut self) {
        if !self.outbox.is_empty() {
            BioSet::deliver_to(self.outbox_set, self.outbox.take());
        }
    }

    /// Stores the time at which the driver wants another poll, if the last poll asked for one.
    #[inline(always)]
    pub(crate) fn take_wake(&mut self) {
        if let Some(wake_ns) = self.batch.take_wake() {
            self.wake_at(wake_ns);
        }
    }

    pub(crate) fn wake_at(&mut self, deadline_ns: u64) {
        self.wake_ns = Some(self.wake_ns.map_or(deadline_ns, |old| old.min(deadline_ns)));
    }

    pub(crate) fn wake_ns(&self) -> Option<u64> {
        self.wake_ns
    }

    /// Forgets the requested poll. All queues are about to be polled, and each may request a new
    /// poll.
    pub(crate) fn forget_wake(&mut self) {
        self.wake_ns = None;
    }
}
