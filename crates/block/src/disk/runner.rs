//! `Runner`: what a thread carries along while it runs queues: its completions and who else to
//! wake.
//!
//! Owned by a `Channel` or a `Worker`, lent to dispatch.rs and complete.rs. Completed bios of the
//! channel itself gather in `done` without any atomic; those of other channels go out in one
//! delivery for a run of the same channel. Invariant: empty of foreign bios whenever control
//! returns to the program.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use millrace_machine::Machine;

use crate::account::DiskStats;
use crate::account::ledger::Entry;
use crate::account::tenants::{TenantLedger, Tenants};
use crate::chain::bio_set::BioSet;
use crate::chain::slot::{BioList, BioRef};
use crate::disk::Disk;
use crate::queue::driver::CompletionBatch;
use crate::trace::Unplug;
use crate::trace::tracer::{TraceWriter, Tracer};

/// When times are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stamp {
    /// Once a batch at Q, D and C.
    #[default]
    Batch,
    /// For every I/O at Q, D and C.
    Io,
}

/// What a thread did through a queue that is not its own.
pub(crate) struct OtherStats<M: Machine> {
    pub(crate) disk: Weak<Disk<M>>,
    pub(crate) stats: Arc<DiskStats<M>>,
}

/// What a thread counts beside what it does through its own queues.
pub(crate) struct Accounts<M: Machine> {
    /// When it last found something complete.
    pub(crate) c_ns: u64,
    /// Whose I/O it completes: the channel's own.
    pub(crate) tenants: Tenants<M>,
    /// Queues that are not its own.
    pub(crate) others: Vec<OtherStats<M>>,
}

/// Context of a thread that runs queues.
pub(crate) struct Runner<M: Machine> {
    bio_set: *const BioSet<M>,
    /// Identity for queues that have an owner.
    pub(crate) owner: u64,
    pub(crate) stamp: Stamp,
    /// Where the next search for a tag starts.
    pub(crate) hint: u32,
    pub(crate) done: BioList<M>,
    pub(crate) batch: CompletionBatch,
    /// Earliest time at which a driver wants to be polled again.
    wake_ns: Option<u64>,
    outbox: BioList<M>,
    outbox_set: *const BioSet<M>,
    /// Queues that got a tag they waited for.
    pub(crate) woken: Vec<(Arc<Disk<M>>, u16)>,
    /// Those of them whose turn it is, in a list that is there while nobody runs them.
    pub(crate) turn: Option<Vec<(Arc<Disk<M>>, u16)>>,
    /// Something was left in the queue that was served last.
    pub(crate) left_busy: bool,
    pub(crate) accounts: Accounts<M>,
    /// Where this thread's events go while somebody records.
    pub(crate) trace: Option<TraceWriter<M>>,
    /// What events are to say that those who make them do not know.
    pub(crate) trace_context: TraceContext,
}

/// What a thread notes for the events that it is about to make.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TraceContext {
    /// When what is traced was inserted last.
    pub(crate) inserted_ns: u64,
    /// Why plugs are emptied.
    pub(crate) unplug: Unplug,
    /// Bios of the batch under way have waited for limits.
    pub(crate) has_waited: bool,
}

impl<M: Machine> Runner<M> {
    /// `hint` tells channels apart.
    pub(crate) fn new(bio_set: &BioSet<M>, owner: u64, stamp: Stamp, hint: u32) -> Self {
        Runner {
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
            accounts: Accounts { c_ns: 0, tenants: Tenants::new(None), others: Vec::new() },
            trace: None,
            trace_context: TraceContext::default(),
        }
    }

    /// What tenants get back is accounted to a volume.
    pub(crate) fn accounting_to(mut self, ledger: &Arc<TenantLedger<M>>) -> Self {
        self.accounts.tenants = Tenants::new(Some(Arc::clone(ledger)));
        self
    }

    /// Records from now on, or no longer.
    #[cold]
    pub(crate) fn follow(&mut self, tracer: Option<&Tracer<M>>) {
        self.trace = tracer.filter(|tracer| tracer.is_on()).map(Tracer::writer);
    }

    /// Shows whoever records what happened until now: called before control returns to the
    /// program.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if let Some(writer) = &mut self.trace {
            writer.publish();
        }
    }

    /// The account of a queue that is not the thread's own: of a disk of its volume, or of one that
    /// has tags in common with those.
    #[cold]
    pub(crate) fn stats_of(&mut self, disk: &Disk<M>, hctx: u16) -> Arc<DiskStats<M>> {
        let is_it = |other: &&OtherStats<M>| {
            core::ptr::eq(other.disk.as_ptr(), disk) && other.stats.key() == hctx
        };
        if let Some(other) = self.accounts.others.iter().find(is_it) {
            return Arc::clone(&other.stats);
        }
        self.accounts.others.retain(|other| other.disk.strong_count() > 0);
        let stats = disk.accounts.open(hctx);
        let disk = Weak::clone(&disk.this);
        self.accounts.others.push(OtherStats { disk, stats: Arc::clone(&stats) });
        stats
    }

    /// Whose runner it is.
    pub(crate) fn bio_set(&self) -> *const BioSet<M> {
        self.bio_set
    }

    /// A bio has its final status.
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

    /// Sends other channels what is theirs.
    #[inline]
    pub(crate) fn deliver(&mut self) {
        if !self.outbox.is_empty() {
            BioSet::deliver_to(self.outbox_set, self.outbox.take());
        }
    }

    /// Notes when the driver that was polled last wants to be polled again.
    #[inline(always)]
    pub(crate) fn take_wake(&mut self) {
        if let Some(wake_ns) = self.batch.take_wake() {
            self.wake_at(wake_ns);
        }
    }

    /// Asks for a poll at a time.
    pub(crate) fn wake_at(&mut self, deadline_ns: u64) {
        self.wake_ns = Some(self.wake_ns.map_or(deadline_ns, |old| old.min(deadline_ns)));
    }

    /// When the next poll is due, if one is.
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        self.wake_ns
    }

    /// Before all queues are polled, which ask anew.
    pub(crate) fn forget_wake(&mut self) {
        self.wake_ns = None;
    }
}
