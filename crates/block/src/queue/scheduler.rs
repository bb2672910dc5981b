//! `Scheduler`: decides which of the bio chains that wait at a hardware queue goes to the driver
//! next. A bio chain is a single bio, or several merged bios, and becomes one request.
//!
//! A drive without a scheduler serves bio chains in order of arrival. With a scheduler, chains from
//! software queues go through [`Scheduler::insert`], and [`Scheduler::next`] returns the chain that
//! becomes the next request. Each hardware queue has its own `Scheduler`, called under that queue's
//! serve lock by one thread at a time. The schedulers of a drive may share state (those of
//! deadline.rs share one lock, as the kernel's does). Flushes bypass the scheduler.
//! `QueueScheduler` is the block layer's record of a scheduler: it counts the chains inside the
//! scheduler, and reports completions only of requests that the scheduler chose. Called by
//! disk/scheduled.rs. Source: Bjorling et al., SYSTOR 2013, "scheduling in the software queues".
//! Kernel counterpart: `struct elevator_mq_ops`.

pub(crate) mod builtin;
pub(crate) mod cost;
pub(crate) mod deadline;
pub(crate) mod fair;
pub(crate) mod parts;
pub(crate) mod share;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::mem::forget;

use millrace_machine::{Machine, debug_fields};

use crate::account::held::{DriveWaits, GroupWaitStats, WaitAccounts};
use crate::account::hold::WaitReason;
use crate::account::waits::ReportedWaits;
use crate::bio::group_id::GroupId;
use crate::bio::limits::QueueLimits;
use crate::bio::status::Status;
use crate::bio::{Op, OpFlags, Sector, SectorCount};
use crate::chain::merge::{MergeKind, try_merge};
use crate::chain::slot::{BioList, BioRef, BioSlot};
use crate::queue::request::Tag;

/// Minimum time, in nanoseconds, between two trace messages about pauses in dispatching.
const REST_NOTED_NS: u64 = 10_000_000;

/// Bios that wait to become one request: a single bio, or several adjacent ones merged.
///
/// A dropped bio chain would lose its I/O, so dropping panics.
#[derive(Debug)]
pub struct BioChain<M: Machine> {
    pub(crate) bio: BioRef<M>,
    drive: DriveMark,
}

/// Identity of a drive: the address of the drive's accounts of waiting times (`DriveWaits`). The
/// accounts are not freed while a scheduler holds bio chains of the drive, so no two drives have
/// the same identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DriveMark(usize);

impl DriveMark {
    pub(crate) const NONE: DriveMark = DriveMark(0);

    pub(crate) fn chain<M: Machine>(self, bio: BioRef<M>) -> BioChain<M> {
        BioChain { bio, drive: self }
    }
}

impl<M: Machine> BioChain<M> {
    /// Returns the operation, which is never a flush.
    #[must_use]
    pub fn op(&self) -> Op {
        self.bio.op()
    }

    /// Returns the flags, such as FUA.
    #[must_use]
    pub fn flags(&self) -> OpFlags {
        self.bio.bio.flags
    }

    /// Returns the first sector of the bio chain, counted from the drive's start.
    #[must_use]
    pub fn sector(&self) -> Sector {
        self.bio.dev_sector
    }

    /// Returns the length of the bio chain in sectors, at least 1.
    #[must_use]
    pub fn nr_sectors(&self) -> SectorCount {
        self.bio.chain_sectors
    }

    /// Returns the sector after the last sector of the bio chain.
    #[must_use]
    pub fn end(&self) -> Sector {
        self.bio.chain_end()
    }

    /// Returns the tenant ([`Bio::with_tenant`](crate::Bio::with_tenant)) of the first bio.
    #[must_use]
    pub fn tenant(&self) -> u16 {
        self.bio.bio.account_key.tenant
    }

    /// Returns the group that all bios of the bio chain belong to.
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.bio.bio.account_key.group
    }

    /// Returns the time of the first bio's submission, in nanoseconds of the machine's clock.
    #[must_use]
    pub fn queued_ns(&self) -> u64 {
        self.bio.q_ns
    }

    /// Returns the time at which the group's limits admitted the first bio, in nanoseconds. The
    /// wait is stored in 32 bits, so the result is at most 4.29 s after submission.
    pub(crate) fn admitted_ns(&self) -> u64 {
        self.bio.q_ns + u64::from(self.bio.waited.g_ns)
    }

    /// Returns the time at which the first bio was inserted into the queue, in nanoseconds. A time
    /// of more than 4.29 s after submission is not stored, and the present time is returned
    /// instead.
    pub(crate) fn inserted_ns(&self) -> u64 {
        self.bio.inserted_ns()
    }
}

/// Bio chains (each becomes one request) on their way into a scheduler, in order of arrival.
pub struct ChainBatch<'a, M: Machine> {
    list: BioList<M>,
    drive: DriveMark,
    merged: u32,
    limits: &'a QueueLimits,
    /// Called for each merge, to update accounts and traces.
    on_merge: &'a mut dyn FnMut(MergeKind, &BioSlot<M>),
}

debug_fields!(ChainBatch<'_, M: Machine>, merged, limits);

impl<'a, M: Machine> ChainBatch<'a, M> {
    /// Returns the number of bio chains left in the batch.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.list.len()
    }

    /// Returns true if no bio chain is left in the batch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn drive(&self) -> DriveMark {
        self.drive
    }

    /// Merges the bio chain `chain` with `waiting`, a bio chain that waits in the scheduler, either
    /// behind or in front of it, if the two are adjacent on this drive and fit into one request.
    ///
    /// # Errors
    /// Returns `chain` if the two cannot be merged.
    pub fn merge(
        &mut self,
        waiting: &mut BioChain<M>,
        chain: BioChain<M>,
    ) -> Result<(), BioChain<M>> {
        let drive = self.drive;
        if waiting.drive != drive || chain.drive != drive {
            return Err(chain);
        }
        let merged = try_merge(&mut waiting.bio, chain.bio, self.limits);
        let kind = merged.map_err(|bio| drive.chain(bio))?;
        self.merged += 1;
        (self.on_merge)(kind, &waiting.bio);
        Ok(())
    }
}

impl<M: Machine> Iterator for ChainBatch<'_, M> {
    type Item = BioChain<M>;

    fn next(&mut self) -> Option<BioChain<M>> {
        self.list.pop_front().map(|bio| self.drive.chain(bio))
    }
}

/// Collects the bio chains that wait in a scheduler which is replaced or whose queue is closed.
#[derive(Debug)]
pub struct Leftover<M: Machine> {
    list: BioList<M>,
    drive: DriveMark,
    /// True if a bio chain of another drive was added, which is an error of the scheduler. The I/O
    /// of that chain never completes.
    has_lost: bool,
}

impl<M: Machine> Leftover<M> {
    /// Gives a bio chain back to the block layer, which schedules the chain again later. Chains are
    /// scheduled in the order in which they were given back. Giving back a chain of another drive
    /// is an error: the chain's I/O never completes.
    pub fn push(&mut self, chain: BioChain<M>) {
        if chain.drive == self.drive {
            return self.list.push_back(chain.bio);
        }
        self.has_lost = true;
        forget(chain);
    }
}

/// A scheduler's answer when the block layer asks for the next bio chain to dispatch.
#[derive(Debug)]
pub enum SchedulerPick<M: Machine> {
    /// The bio chain that goes to the driver next.
    Chain(BioChain<M>),
    /// Bio chains wait, but the scheduler holds all of them back. The block layer asks again
    /// after a completion, or at this time in nanoseconds of the machine's clock.
    WaitUntil(u64),
    /// The scheduler has no bio chain to dispatch before the next insertion or completion. If
    /// chains wait in the scheduler, `Nothing` is allowed only while requests that the scheduler
    /// chose are in flight.
    Nothing,
}

/// The number of a drive's hardware queues, and the number of its tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveTags {
    /// Number of hardware queues, 1 or more.
    pub queues: usize,
    /// Number of tags of all hardware queues together, 1 or more.
    pub tags: u32,
}

/// A bio chain that the scheduler chose for dispatch and that has ended. Contains the time and the
/// status of its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletedChain {
    /// Operation of the bio chain.
    pub op: Op,
    /// Length of the bio chain in sectors.
    pub nr_sectors: SectorCount,
    /// Tenant of the bio chain.
    pub tenant: u16,
    /// Group of the bio chain.
    pub group: GroupId,
    /// Time at which the first bio of the bio chain was submitted, in nanoseconds.
    pub queued_ns: u64,
    /// Time at which the bio chain left the scheduler for dispatch, in nanoseconds.
    pub picked_ns: u64,
    /// Time in nanoseconds at which the completion was noticed. For a chain that the driver never
    /// had, the time at which the block layer took the chain back.
    pub done_ns: u64,
    /// The driver's status. `None` if the driver never had the bio chain, because its queue was
    /// closed or the scheduler replaced. The chain may then be inserted again.
    pub status: Option<Status>,
}

/// Decides the order in which a hardware queue's bio chains go to the driver. Each chain becomes
/// one request.
///
/// The block layer calls all methods of one object under one lock, from one thread at a time. A
/// method must not block, and must not use a volume that the drive is part of. Otherwise the call
/// could wait for I/O of the volume, while that I/O waits for the lock. A panic in a method unwinds
/// through the call that ran the queue, as described for [`Driver`](crate::Driver#panics). The
/// block layer panics if [`Scheduler::next`] returns a bio chain of another drive; the I/O of that
/// chain ends with `Aborted`.
///
/// The request timeout starts at dispatch, so a bio chain that [`Scheduler::next`] never returns
/// waits for ever. [`Disk::set_scheduler`](crate::Disk::set_scheduler) gets such a chain out. The
/// example `own_scheduler.rs` of the crate `millrace` is an elevator.
pub trait Scheduler<M: Machine>: Send {
    /// Queues all bio chains of a batch in the scheduler. The block layer panics if the batch is
    /// not empty afterwards.
    fn insert(&mut self, batch: &mut ChainBatch<'_, M>);

    /// Returns the bio chain that goes to the driver next. `now_ns` is the time on the machine's
    /// clock. Called while the driver has room for a request.
    fn next(&mut self, now_ns: u64) -> SchedulerPick<M>;

    /// Reports the end of a bio chain that [`Scheduler::next`] returned: its request completed, or
    /// the block layer took the chain back before the driver had it. Each chain is reported once,
    /// even if it failed or timed out.
    fn completed(&mut self, done: &CompletedChain);

    /// Returns true if bio chains of `group` may bypass the scheduler because there is nothing to
    /// order. `queued_ns` is the submission time of the first chain. Called only while no chain
    /// waits in the scheduler. The completion of bypassing chains is not reported.
    fn pass(&mut self, group: GroupId, queued_ns: u64) -> bool;

    /// Reports bio chains that have bypassed the scheduler: the number of chains, at least 1, and
    /// the sum of their sectors. The last call of [`Scheduler::pass`] has allowed their group.
    fn passed(&mut self, chains: u32, sectors: u64) {
        let _ = (chains, sectors);
    }

    /// Moves all waiting bio chains to `left`, because another scheduler takes over or the queue
    /// closes. Bio chains may be inserted again afterwards.
    fn drain(&mut self, left: &mut Leftover<M>);
}

impl CompletedChain {
    /// Describes a bio chain that was just picked: `done_ns` is the time of the pick, and `status`
    /// is `None`.
    fn picked<M: Machine>(chain: &BioSlot<M>, picked_ns: u64) -> CompletedChain {
        CompletedChain {
            op: chain.op(),
            nr_sectors: chain.chain_sectors,
            tenant: chain.bio.account_key.tenant,
            group: chain.bio.account_key.group,
            queued_ns: chain.q_ns,
            picked_ns,
            done_ns: picked_ns,
            status: None,
        }
    }
}

/// A hardware queue's scheduler, with the state that the block layer keeps about it.
pub(crate) struct QueueScheduler<M: Machine> {
    /// The name of a built-in scheduler; `None` for a scheduler that the program supplies.
    pub(crate) name: Option<&'static str>,
    scheduler: Box<dyn Scheduler<M>>,
    /// A bio chain that the scheduler chose for dispatch and that waits for a free tag.
    pub(crate) picked: Option<BioRef<M>>,
    /// Number of bio chains in the scheduler, including the one in `picked`.
    pub(crate) len: u32,
    /// Requests in flight that came from this scheduler, indexed by tag.
    issued: Box<[Option<CompletedChain>]>,
    pub(crate) in_flight: u32,
    /// True if the scheduler, when drained, kept bio chains or returned chains of another drive.
    pub(crate) has_lost: bool,
    /// Earliest time at which the trace may get another message about a dispatch pause, in
    /// nanoseconds.
    rests_until_ns: u64,
    pub(crate) drive: Arc<DriveWaits<M>>,
    /// Wait times that the block layer counts for the scheduler, by group. Waits for a tag are
    /// always included. Waits in the scheduler are included only if `counts` is false.
    holds: Option<WaitAccounts<M>>,
    /// True if the scheduler counts wait times by itself.
    counts: bool,
    said: ReportedWaits,
}

impl<M: Machine> QueueScheduler<M> {
    pub(crate) fn new(
        name: Option<&'static str>,
        scheduler: Box<dyn Scheduler<M>>,
        depth: usize,
        drive: &Arc<DriveWaits<M>>,
    ) -> Self {
        QueueScheduler {
            name,
            scheduler,
            picked: None,
            len: 0,
            issued: alloc::vec![None; depth].into_boxed_slice(),
            in_flight: 0,
            has_lost: false,
            rests_until_ns: 0,
            drive: Arc::clone(drive),
            holds: None,
            // Built-in schedulers record waiting times themselves.
            counts: name.is_some(),
            said: ReportedWaits::default(),
        }
    }

    /// Returns true if a bio chain, and others of its group that were submitted with it, may bypass
    /// the scheduler.
    #[inline]
    pub(crate) fn passes(&mut self, chain: &BioSlot<M>) -> bool {
        self.len == 0 && self.scheduler.pass(chain.bio.account_key.group, chain.q_ns)
    }

    /// Returns true if a single bio chain may bypass the scheduler, and counts it if so.
    pub(crate) fn passes_single(&mut self, chain: &BioSlot<M>) -> bool {
        let passes = self.passes(chain);
        if passes {
            self.passed(1, chain.chain_sectors.into());
        }
        passes
    }

    #[inline]
    pub(crate) fn passed(&mut self, chains: u32, sectors: u64) {
        self.scheduler.passed(chains, sectors);
    }

    pub(crate) fn insert(
        &mut self,
        list: BioList<M>,
        limits: &QueueLimits,
        on_merge: &mut dyn FnMut(MergeKind, &BioSlot<M>),
    ) {
        self.len += list.len();
        let mut batch = ChainBatch { list, drive: self.mark(), merged: 0, limits, on_merge };
        self.scheduler.insert(&mut batch);
        assert!(batch.is_empty(), "a scheduler did not take {} bio chains of a batch", batch.len());
        self.len -= batch.merged;
    }

    pub(crate) fn next(&mut self, now_ns: u64) -> SchedulerPick<M> {
        match self.picked.take() {
            Some(chain) => {
                self.end_picked_wait(&chain, now_ns);
                SchedulerPick::Chain(self.mark().chain(chain))
            }
            None if self.len == 0 => SchedulerPick::Nothing,
            None => self.scheduler.next(now_ns),
        }
    }

    /// Returns true if a pause in dispatching until `until_ns` should be written to the trace.
    /// Returns false if the scheduler reports its pauses itself, or if one was traced just now.
    pub(crate) fn begins_rest(&mut self, now_ns: u64, until_ns: u64) -> bool {
        let begins = !self.counts && self.rests_until_ns <= now_ns;
        if begins {
            self.rests_until_ns = until_ns.max(now_ns + REST_NOTED_NS);
        }
        begins
    }

    /// Stores a bio chain that got no tag. The next call of `next` returns the chain again.
    pub(crate) fn put_back(&mut self, chain: BioChain<M>, now_ns: u64) {
        if self.counts {
            let said = ReportedWaits::all(Some(WaitReason::NoTag), 1, chain.inserted_ns());
            self.say_picked(chain.group(), said, now_ns);
        }
        forget(self.picked.replace(chain.bio));
    }

    fn mark(&self) -> DriveMark {
        DriveMark(Arc::as_ptr(&self.drive).addr())
    }

    #[inline]
    pub(crate) fn is_own(&self, chain: &BioChain<M>) -> bool {
        chain.drive == self.mark()
    }

    fn end_picked_wait(&mut self, chain: &BioSlot<M>, now_ns: u64) {
        let said = ReportedWaits::all(self.said.hold, 0, 0);
        self.say_picked(chain.bio.account_key.group, said, now_ns);
    }

    fn say_picked(&mut self, group: GroupId, next: ReportedWaits, now_ns: u64) {
        if next != self.said {
            let mut said = self.said;
            self.account_of(group).say(&mut said, next, now_ns);
            self.said = said;
        }
    }

    fn account_of(&mut self, group: GroupId) -> &GroupWaitStats<M> {
        let drive = &self.drive;
        let holds = self.holds.get_or_insert_with(WaitAccounts::new);
        holds.of(group, |account| drive.open(account))
    }

    pub(crate) fn issue(&mut self, chain: BioChain<M>, tag: Tag, now_ns: u64) -> BioRef<M> {
        self.len -= 1;
        self.in_flight += 1;
        self.issued[tag.0 as usize] = Some(CompletedChain::picked(&chain.bio, now_ns));
        chain.bio
    }

    /// Adds the waiting time of a bio chain that is being dispatched to the account of the chain's
    /// group. Does nothing if the scheduler counts waiting times itself.
    #[inline]
    pub(crate) fn account(&mut self, chain: &BioChain<M>, (hctx, now_ns): (u16, u64)) {
        if !self.counts {
            let ns = now_ns.saturating_sub(chain.inserted_ns());
            let hold = self.drive.stopped_by(hctx.into());
            self.account_of(chain.group()).add(hold, ns);
        }
    }

    /// Reports the end of the request with this tag, if the scheduler chose the request. `status`
    /// is `None` if the request was taken back before the driver had it.
    pub(crate) fn ended(&mut self, tag: Tag, status: Option<Status>, done_ns: u64) {
        if let Some(chain) = self.issued[tag.0 as usize].take() {
            self.in_flight -= 1;
            self.scheduler.completed(&CompletedChain { done_ns, status, ..chain });
        }
    }

    pub(crate) fn empty(&mut self) -> BioList<M> {
        let mut left = Leftover { list: BioList::new(), drive: self.mark(), has_lost: false };
        if let Some(chain) = self.picked.take() {
            let now_ns = M::now();
            self.end_picked_wait(&chain, now_ns);
            self.scheduler.completed(&CompletedChain::picked(&chain, now_ns));
            left.list.push_back(chain);
        }
        self.scheduler.drain(&mut left);
        if left.has_lost || left.list.len() != self.len {
            // A scheduler that kept bio chains may return them later. A chain identifies its drive
            // by the address of the drive's wait accounts. The accounts are leaked, so that no
            // other drive gets this address.
            forget(Arc::clone(&self.drive));
            self.has_lost = true;
        }
        self.len = 0;
        left.list
    }
}
