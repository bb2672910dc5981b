//! `Scheduler`: which of the chains that wait at a hardware queue goes to the driver next.
//!
//! A drive without one is served first come, first served. With one, what software queues hand to a
//! hardware queue goes through [`Scheduler::insert`], and [`Scheduler::next`] names the chain that
//! becomes the next request. Each hardware queue has a `Scheduler` of its own, called under that
//! queue's serve lock by one thread at a time; what those of a drive share is theirs to agree on
//! (deadline.rs shares one lock, as the kernel's do). Flushes go past it. `Scheduling` is the
//! layer's side: it counts what is inside, and tells the scheduler only of requests that came from
//! it. Called by disk/scheduled.rs. Source: \[MQ\], "scheduling in the software queues". Kernel
//! counterpart: `struct elevator_mq_ops`.

pub(crate) mod cost;
pub(crate) mod deadline;
pub(crate) mod fair;
pub(crate) mod latency;
pub(crate) mod share;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::forget;

use millrace_machine::Machine;

use crate::account::decisions::Decision;
use crate::account::held::{DriveHolds, HeldStats, Holds};
use crate::account::hold::Hold;
use crate::account::waits::Said;
use crate::bio::group_id::GroupId;
use crate::bio::limits::QueueLimits;
use crate::bio::status::Status;
use crate::bio::{Op, OpFlags, Sector, SectorCount};
use crate::chain::merge::{Merged, try_merge};
use crate::chain::slot::{BioList, BioRef, Slot};
use crate::queue::request::Tag;

/// That a scheduler names nothing is noted once in this time.
const REST_NOTED_NS: u64 = 10_000_000;

/// The schedulers that the layer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SchedulerKind {
    /// First come, first served.
    #[default]
    None,
    /// [`Deadline`](crate::Deadline) with its usual settings.
    Deadline,
    /// [`Fair`](crate::Fair): by groups' weights.
    Fair,
    /// [`Latency`](crate::Latency): by groups' latency targets.
    Latency,
}

/// Bios that wait to become one request: one bio, or several that follow each other on the drive.
///
/// Dropping one would lose its I/O, and panics.
#[derive(Debug)]
pub struct Chain<M: Machine> {
    pub(crate) bio: BioRef<M>,
    /// The drive that it is for.
    drive: DriveMark,
}

/// Tells drives apart: where a drive's account of what is held lies. A drive with chains in a
/// scheduler never gives that back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DriveMark(usize);

impl DriveMark {
    /// No drive's.
    pub(crate) const NONE: DriveMark = DriveMark(0);

    /// A chain of this drive.
    pub(crate) fn chain<M: Machine>(self, bio: BioRef<M>) -> Chain<M> {
        Chain { bio, drive: self }
    }
}

impl<M: Machine> Chain<M> {
    /// Its first bio.
    pub(crate) fn head(&self) -> &Slot<M> {
        &self.bio
    }

    /// What to do: never a flush.
    #[must_use]
    pub fn op(&self) -> Op {
        self.bio.op()
    }

    /// Modifiers, FUA among them.
    #[must_use]
    pub fn flags(&self) -> OpFlags {
        self.bio.bio.flags
    }

    /// First sector on the drive.
    #[must_use]
    pub fn sector(&self) -> Sector {
        self.bio.dev_sector
    }

    /// Length in sectors, at least 1.
    #[must_use]
    pub fn nr_sectors(&self) -> SectorCount {
        self.bio.chain_sectors
    }

    /// The sector behind its last one.
    #[must_use]
    pub fn end(&self) -> Sector {
        self.bio.chain_end()
    }

    /// For whom it is ([`Bio::with_tenant`](crate::Bio::with_tenant)); the first bio's.
    #[must_use]
    pub fn tenant(&self) -> u16 {
        self.bio.bio.payer.tenant
    }

    /// The group that all its bios belong to.
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.bio.bio.payer.group
    }

    /// When its first bio was submitted, on the clock of the machine.
    #[must_use]
    pub fn queued_ns(&self) -> u64 {
        self.bio.q_ns
    }

    /// When the limits of its group let its first bio pass: if it never waited for one, when that
    /// was submitted. Of a wait longer than 4 s, 4 s are known.
    pub(crate) fn admitted_ns(&self) -> u64 {
        self.bio.q_ns + u64::from(self.bio.waited.g_ns)
    }

    /// When its first bio came to the queue; now, if it had waited for 4 s before that.
    pub(crate) fn inserted_ns(&self) -> u64 {
        self.bio.inserted_ns()
    }
}

/// Chains on their way into a scheduler, in the order in which they came.
pub struct Batch<'a, M: Machine> {
    list: BioList<M>,
    drive: DriveMark,
    merged: u32,
    limits: &'a QueueLimits,
    /// Hears of each merge: for accounts and traces.
    on_merge: &'a mut dyn FnMut(Merged, &Slot<M>),
}

impl<'a, M: Machine> Batch<'a, M> {
    /// How many chains are left.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.list.len()
    }

    /// Whether none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The drive that the chains are for.
    pub(crate) fn drive(&self) -> DriveMark {
        self.drive
    }

    /// Merges `chain` with `waiting`, at its end or in front of it, if they follow each other on
    /// this drive and the drive takes both as one request; gives `chain` back if not.
    ///
    /// # Errors
    /// `chain`, if the two stay apart.
    pub fn merge(&mut self, waiting: &mut Chain<M>, chain: Chain<M>) -> Result<(), Chain<M>> {
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

impl<M: Machine> Iterator for Batch<'_, M> {
    type Item = Chain<M>;

    /// The oldest chain that is left.
    fn next(&mut self) -> Option<Chain<M>> {
        self.list.pop_front().map(|bio| self.drive.chain(bio))
    }
}

/// Where a scheduler that goes away leaves the chains that wait in it.
#[derive(Debug)]
pub struct Leftover<M: Machine> {
    list: BioList<M>,
    drive: DriveMark,
    /// It was given a chain of another drive.
    has_lost: bool,
}

impl<M: Machine> Leftover<M> {
    /// Takes a chain; the first one is the first to be scheduled anew. One of another drive is
    /// lost.
    pub fn push(&mut self, chain: Chain<M>) {
        if chain.drive == self.drive {
            return self.list.push_back(chain.bio);
        }
        self.has_lost = true;
        forget(chain);
    }
}

/// What a scheduler answers when it is asked for a chain.
#[derive(Debug)]
pub enum Pick<M: Machine> {
    /// The chain that goes to the driver next.
    Chain(Chain<M>),
    /// Nothing yet, although chains wait: ask again after a completion, or at this time on the
    /// clock of the machine, in nanoseconds.
    WaitUntil(u64),
    /// Nothing before the next insertion or completion. A scheduler in which chains wait answers
    /// so only while the driver has requests that came from it.
    Nothing,
}

/// How many hardware queues a drive has, and how many tags those have together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveTags {
    /// Hardware queues, 1 or more.
    pub queues: usize,
    /// Tags of all of them, 1 or more.
    pub tags: u32,
}

/// A chain that the scheduler named, and that is done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// What it did.
    pub op: Op,
    /// Its length in sectors.
    pub nr_sectors: SectorCount,
    /// For whom: the tenant of the chain that it was made from.
    pub tenant: u16,
    /// The group of that chain.
    pub group: GroupId,
    /// When its first bio was submitted.
    pub queued_ns: u64,
    /// When the scheduler named its chain.
    pub picked_ns: u64,
    /// When the driver was found to have answered, or the chain was taken back.
    pub done_ns: u64,
    /// What the driver answered; none: it never had the chain, which was taken back (its queue is
    /// closed, or another scheduler takes over) and may come again.
    pub status: Option<Status>,
}

/// Decides in which order a hardware queue's chains go to the driver.
///
/// The layer calls all methods of one object under one lock, from one thread at a time. None of
/// them may block, or use a volume of the drive: that waits for the caller itself, for ever. A
/// panic goes through the call that ran the queue, as a driver's does
/// ([`Driver`](crate::Driver#panics)). The layer panics so if a scheduler names a chain of another
/// drive, whose I/O ends with `Aborted`.
///
/// The layer's timeout counts from dispatch: what a scheduler never names waits for ever, and
/// [`Disk::set_scheduler`](crate::Disk::set_scheduler) is the way out. The example
/// `own_scheduler.rs` of the crate `millrace` is an elevator.
pub trait Scheduler<M: Machine>: Send {
    /// Takes all chains of a batch; what is left in the batch is lost, and panics.
    fn insert(&mut self, batch: &mut Batch<'_, M>);

    /// The chain that goes to the driver next, at `now_ns` on the clock of the machine. Called
    /// while the driver has room.
    fn next(&mut self, now_ns: u64) -> Pick<M>;

    /// A chain that [`Scheduler::next`] named is done with: its request has come back from the
    /// driver, or it was taken back before the driver had it. Each is told of once, also those that
    /// failed or came too late.
    fn completed(&mut self, done: &Done);

    /// Returns true if chains of a group may go straight to the driver, unseen, since there is
    /// nothing to order: `ios` chains with so many sectors, submitted at `queued_ns`. Asked only
    /// while nothing waits inside. What goes past is not told of when it completes.
    fn pass(&mut self, group: GroupId, ios: (u32, u64), queued_ns: u64) -> bool;

    /// Gives back all chains that wait: another scheduler takes over, or the queue is closed. It
    /// may be given others after that.
    fn drain(&mut self, left: &mut Leftover<M>);
}

/// A request in flight that came from a scheduler's chain.
#[derive(Debug, Clone, Copy)]
struct Issued {
    /// 0: the request with this tag, if there is one, did not come from this scheduler.
    nr_sectors: SectorCount,
    op: Op,
    tenant: u16,
    group: GroupId,
    queued_ns: u64,
    picked_ns: u64,
}

impl Issued {
    const NONE: Issued = Issued {
        nr_sectors: 0,
        op: Op::Read,
        tenant: 0,
        group: GroupId::DEFAULT,
        queued_ns: 0,
        picked_ns: 0,
    };

    /// What comes of a chain that the scheduler names now.
    fn of<M: Machine>(chain: &Slot<M>, picked_ns: u64) -> Issued {
        Issued {
            nr_sectors: chain.chain_sectors,
            op: chain.op(),
            tenant: chain.bio.payer.tenant,
            group: chain.bio.payer.group,
            queued_ns: chain.q_ns,
            picked_ns,
        }
    }

    fn done(self, status: Option<Status>, done_ns: u64) -> Done {
        let Issued { nr_sectors, op, tenant, group, queued_ns, picked_ns } = self;
        Done { op, nr_sectors, tenant, group, queued_ns, picked_ns, done_ns, status }
    }
}

/// A hardware queue's scheduler, with what the layer knows of it.
pub(crate) struct Scheduling<M: Machine> {
    /// None: a program's own.
    kind: Option<SchedulerKind>,
    scheduler: Box<dyn Scheduler<M>>,
    /// Named by the scheduler, but there was no tag for it.
    picked: Option<BioRef<M>>,
    /// Chains inside, `picked` among them.
    len: u32,
    /// What is in flight, by tag, and how much that is.
    issued: Box<[Issued]>,
    in_flight: u32,
    /// It kept chains when it was drained, or gave back others.
    pub(crate) has_lost: bool,
    /// Until when it is not noted again that the scheduler names nothing.
    rests_until_ns: u64,
    /// The drive's accounts of what is held.
    drive: Arc<DriveHolds<M>>,
    /// What this queue counted of groups: what waits for a tag, and if the scheduler does not count
    /// by itself, what waited in it.
    holds: Option<Holds<M>>,
    /// The scheduler counts by itself.
    counts: bool,
    said: Said,
}

impl<M: Machine> Scheduling<M> {
    /// A scheduler for a queue with so many tags.
    pub(crate) fn new(
        kind: Option<SchedulerKind>,
        scheduler: Box<dyn Scheduler<M>>,
        depth: usize,
        drive: &Arc<DriveHolds<M>>,
    ) -> Self {
        // The layer's own do.
        let counts = kind.is_some();
        Scheduling {
            kind,
            scheduler,
            picked: None,
            len: 0,
            issued: alloc::vec![Issued::NONE; depth].into_boxed_slice(),
            in_flight: 0,
            has_lost: false,
            rests_until_ns: 0,
            drive: Arc::clone(drive),
            holds: None,
            counts,
            said: Said::default(),
        }
    }

    /// Which one it is; none if it is a program's own.
    pub(crate) fn kind(&self) -> Option<SchedulerKind> {
        self.kind
    }

    /// Chains that wait inside.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Whether a batch may go past the scheduler.
    pub(crate) fn passes(&mut self, list: &BioList<M>) -> bool {
        let Some(first) = list.first() else { return false };
        let (group, mut equal, mut sectors) = (first.bio.payer.group, self.len == 0, 0);
        list.for_each(|chain| {
            equal &= chain.bio.payer.group == group;
            sectors += u64::from(chain.chain_sectors);
        });
        equal && self.scheduler.pass(group, (list.len(), sectors), first.q_ns)
    }

    /// Whether a batch of one may.
    pub(crate) fn passes_single(&mut self, chain: &Slot<M>) -> bool {
        let ios = (1, chain.chain_sectors.into());
        self.len == 0 && self.scheduler.pass(chain.bio.payer.group, ios, chain.q_ns)
    }

    /// Hands chains that are no flushes to the scheduler; `on_merge` hears of each merge.
    pub(crate) fn insert(
        &mut self,
        list: BioList<M>,
        limits: &QueueLimits,
        on_merge: &mut dyn FnMut(Merged, &Slot<M>),
    ) {
        self.len += list.len();
        let mut batch = Batch { list, drive: self.mark(), merged: 0, limits, on_merge };
        self.scheduler.insert(&mut batch);
        assert!(batch.is_empty(), "a scheduler left {} chains in a batch", batch.len());
        self.len -= batch.merged;
    }

    /// The chain that goes to the driver next.
    pub(crate) fn next(&mut self, now_ns: u64) -> Pick<M> {
        match self.picked.take() {
            Some(chain) => {
                self.say_picked(chain.bio.payer.group, Said::all(self.said.hold, 0, 0), now_ns);
                Pick::Chain(self.mark().chain(chain))
            }
            None if self.len == 0 => Pick::Nothing,
            None => self.scheduler.next(now_ns),
        }
    }

    /// Whether it is to be noted that the scheduler names nothing until a time: if it does not tell
    /// by itself what it decides, and was not noted so for a while.
    pub(crate) fn begins_rest(&mut self, now_ns: u64, until_ns: u64) -> bool {
        let begins = !self.counts && self.rests_until_ns <= now_ns;
        if begins {
            self.rests_until_ns = until_ns.max(now_ns + REST_NOTED_NS);
        }
        begins
    }

    /// Somebody records what the scheduler of hardware queue `hctx` decides.
    pub(crate) fn watch(&self, hctx: u16, now_ns: u64) {
        self.drive.watch(hctx.into(), now_ns);
    }

    /// What it decided since this was asked last, while somebody recorded.
    pub(crate) fn decisions(&self, hctx: u16) -> Vec<Decision> {
        self.drive.decisions(hctx.into()).take()
    }

    /// Keeps a chain that `next` named until there is a tag for it.
    pub(crate) fn put_back(&mut self, chain: Chain<M>, now_ns: u64) {
        if self.counts {
            let said = Said::all(Some(Hold::NoTag), 1, chain.inserted_ns());
            self.say_picked(chain.group(), said, now_ns);
        }
        forget(self.picked.replace(chain.bio));
    }

    /// The mark of its drive.
    fn mark(&self) -> DriveMark {
        DriveMark(Arc::as_ptr(&self.drive).addr())
    }

    /// Returns true if a chain that `next` named is of this drive.
    #[inline]
    pub(crate) fn is_own(&self, chain: &Chain<M>) -> bool {
        chain.drive == self.mark()
    }

    /// Says whether a chain waits for a tag.
    fn say_picked(&mut self, group: GroupId, next: Said, now_ns: u64) {
        if next != self.said {
            let mut said = self.said;
            self.account_of(group).say(&mut said, next, now_ns);
            self.said = said;
        }
    }

    fn account_of(&mut self, group: GroupId) -> &HeldStats<M> {
        let drive = &self.drive;
        let holds = self.holds.get_or_insert_with(Holds::new);
        holds.of(group, |account| drive.open(account))
    }

    /// A chain that `next` named becomes the request with this tag.
    pub(crate) fn issue(&mut self, chain: Chain<M>, tag: Tag, now_ns: u64) -> BioRef<M> {
        self.len -= 1;
        self.in_flight += 1;
        self.issued[tag.0 as usize] = Issued::of(&chain.bio, now_ns);
        chain.bio
    }

    /// From now on this holds whatever the scheduler of hardware queue `hctx` would let go.
    pub(crate) fn stop(&self, hctx: u16, hold: Hold) {
        self.drive.stop(hctx.into(), hold);
    }

    /// Accounts what a chain that goes to the driver now has waited, if the scheduler does not.
    #[inline]
    pub(crate) fn account(&mut self, chain: &Chain<M>, (hctx, now_ns): (u16, u64)) {
        if !self.counts {
            let ns = now_ns.saturating_sub(chain.inserted_ns());
            let hold = self.drive.stopped_by(hctx.into());
            self.account_of(chain.group()).add(hold, ns);
        }
    }

    /// Whether it waits to hear of any request.
    pub(crate) fn expects_any(&self) -> bool {
        self.in_flight > 0
    }

    /// The driver has answered the request with this tag.
    pub(crate) fn completed(&mut self, tag: Tag, status: Status, done_ns: u64) {
        let issued = core::mem::replace(&mut self.issued[tag.0 as usize], Issued::NONE);
        if issued.nr_sectors == 0 {
            return;
        }
        self.in_flight -= 1;
        self.scheduler.completed(&issued.done(Some(status), done_ns));
    }

    /// The request with this tag, which the driver does not have, is taken apart again.
    pub(crate) fn taken_back(&mut self, tag: Tag) {
        let issued = core::mem::replace(&mut self.issued[tag.0 as usize], Issued::NONE);
        if issued.nr_sectors != 0 {
            self.in_flight -= 1;
            self.scheduler.completed(&issued.done(None, M::now()));
        }
    }

    /// The chain that waits for a tag.
    pub(crate) fn picked(&self) -> Option<&Slot<M>> {
        self.picked.as_deref()
    }

    /// Takes out all chains that wait inside.
    pub(crate) fn empty(&mut self) -> BioList<M> {
        let mut left = Leftover { list: BioList::new(), drive: self.mark(), has_lost: false };
        if let Some(chain) = self.picked.take() {
            let now_ns = M::now();
            let said = Said::all(self.said.hold, 0, 0);
            self.say_picked(chain.bio.payer.group, said, now_ns);
            self.scheduler.completed(&Issued::of(&chain, now_ns).done(None, now_ns));
            left.list.push_back(chain);
        }
        self.scheduler.drain(&mut left);
        if left.has_lost || left.list.len() != self.len {
            // Chains that come to light later are still told from those of other drives.
            forget(Arc::clone(&self.drive));
            self.has_lost = true;
        }
        self.len = 0;
        left.list
    }
}
