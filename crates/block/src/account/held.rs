//! Accounting of what held I/Os of a group before they got to a drive, by reason.
//!
//! Sums of waiting times: a channel counts what waits for limits, and what its owner says waited
//! for room in it; a scheduler's queue what waits for it, and the layer what waits in a scheduler
//! that does not count by itself. What still waits counts up to now (waits.rs). One account for
//! each group and writer, made when it is first needed; a volume keeps those of its channels
//! (tenants.rs), each drive those of its schedulers. Answers "why is it slow". Kernel counterpart:
//! io.cost's `cost.wait` and `cost.indebt` in `io.stat`.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::{Lock, Machine, Order, Word};

use crate::account::at_drive::{AtDrive, AtDrives};
use crate::account::decisions::Decisions;
use crate::account::histogram::Snapshot;
use crate::account::hold::Hold;
use crate::account::ledger::{Entry, Ledger};
use crate::account::waits::{Said, Waits, units};
use crate::bio::group_id::GroupId;

/// How long I/Os of a group were held by what, in nanoseconds, added up over I/Os; those that still
/// wait up to now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldSnapshot {
    /// In the order of [`Hold::ALL`].
    pub ns: [u64; Hold::ALL.len()],
    /// How many wait now.
    pub waiting: u64,
    /// How long those have waited, added up; where they wait in a line, each as its first one.
    pub waiting_ns: u64,
}

impl HeldSnapshot {
    /// Adds another.
    pub fn merge(&mut self, other: &HeldSnapshot) {
        self.ns.iter_mut().zip(&other.ns).for_each(|(sum, ns)| *sum += ns);
        self.waiting += other.waiting;
        self.waiting_ns += other.waiting_ns;
    }
}

/// Accounts of what was held, and the most that anybody was told: what still waits may turn out to
/// wait for something else than it seemed, and sums are not to go back.
pub(crate) struct HeldLedger<M: Machine> {
    accounts: Ledger<HeldStats<M>>,
    told: BTreeMap<GroupId, [u64; Hold::ALL.len()]>,
}

impl<M: Machine> HeldLedger<M> {
    pub(crate) fn new() -> Self {
        HeldLedger { accounts: Ledger::new(), told: BTreeMap::new() }
    }

    /// Takes in an account.
    pub(crate) fn open(&mut self, account: HeldStats<M>) -> Arc<HeldStats<M>> {
        self.accounts.open(account)
    }

    /// What held I/Os of each group.
    pub(crate) fn held(&mut self) -> BTreeMap<GroupId, HeldSnapshot> {
        let mut sums = self.accounts.sums();
        for (group, sum) in &mut sums {
            let told = self.told.entry(*group).or_default();
            for (ns, told) in sum.ns.iter_mut().zip(told) {
                (*ns, *told) = ((*ns).max(*told), (*ns).max(*told));
            }
        }
        sums
    }
}

/// By hardware queue or channel, what holds that of which nothing else is said, as a place in
/// [`Hold::ALL`].
type Stop<M> = Arc<<M as Machine>::Word>;

fn hold_in<M: Machine>(stop: &Stop<M>) -> Hold {
    // Relaxed: whoever counts has the queue's serve lock; whoever reads is told of a moment.
    Hold::ALL[(stop.load(Order::Relaxed) & HOLD_MASK) as usize]
}

/// What one thread counted of a group.
pub(crate) struct HeldStats<M: Machine> {
    group: GroupId,
    /// How long, and how many now; those for which nothing but the stop is said come last.
    by: [Waits<M>; Hold::ALL.len() + 1],
    /// How old those are that wait now.
    ages: Waits<M>,
    stop: Option<Stop<M>>,
}

impl<M: Machine> HeldStats<M> {
    fn new(group: GroupId, stop: Option<Stop<M>>) -> Self {
        HeldStats { group, by: core::array::from_fn(|_| Waits::new()), ages: Waits::new(), stop }
    }

    fn place(hold: Option<Hold>) -> usize {
        hold.map_or(Hold::ALL.len(), |hold| hold as usize)
    }

    /// Adds waiting time that is over.
    pub(crate) fn add(&self, hold: Hold, ns: u64) {
        self.by[hold as usize].add(units(ns));
    }

    /// Says `next` instead of `said` from a time on.
    pub(crate) fn say(&self, said: &mut Said, next: Said, at_ns: u64) {
        let at = units(at_ns);
        let (old, new) = (i64::from(said.waiting()), i64::from(next.waiting()));
        let ended = |waiting: i64| (waiting as u64).wrapping_mul(at);
        if said.hold == next.hold {
            self.by[Self::place(next.hold)].change(new - old, ended(old - new));
        } else {
            self.by[Self::place(said.hold)].change(-old, ended(old));
            self.by[Self::place(next.hold)].change(new, ended(-new));
        }
        self.by[Self::place(next.hold)].spill(at);
        let (more, sum) = next.ages_since(*said);
        self.ages.change(more, sum);
        *said = next;
    }

    /// Gives what the stop held up to a time to what the stop is.
    pub(crate) fn settle(&self, at_ns: u64) {
        let Some(stop) = &self.stop else { return };
        let (_, ns) = self.by[Self::place(None)].at(units(at_ns));
        if ns > 0 {
            self.by[Self::place(None)].change(0, units(ns).wrapping_neg());
            self.add(hold_in::<M>(stop), ns);
        }
    }

    /// Nothing waits any more: its writer goes.
    fn end(&self) {
        if self.ages.at(0).0 == 0 {
            return;
        }
        self.settle(M::now());
        let now = units(M::now());
        for waits in self.by.iter().chain([&self.ages]) {
            let (waiting, _) = waits.at(now);
            waits.change(-(waiting as i64), waiting.wrapping_mul(now));
        }
    }
}

impl<M: Machine> Entry for HeldStats<M> {
    type Key = GroupId;
    type Sum = HeldSnapshot;

    fn key(&self) -> GroupId {
        self.group
    }

    fn add_to(&self, sum: &mut HeldSnapshot) {
        let now = units(M::now());
        let (held, stopped) = self.by.split_at(Hold::ALL.len());
        for (sum, waits) in sum.ns.iter_mut().zip(held) {
            *sum += waits.at(now).1;
        }
        let stop = self.stop.as_ref().map_or(Hold::Order, hold_in::<M>);
        sum.ns[stop as usize] += stopped[0].at(now).1;
        let (waiting, ns) = self.ages.at(now);
        sum.waiting += waiting;
        sum.waiting_ns += if waiting > 0 { ns } else { 0 };
    }
}

/// What held I/Os at a drive with a scheduler.
pub(crate) struct DriveHolds<M: Machine> {
    ledger: M::Lock<HeldLedger<M>>,
    /// How long requests of groups with targets were at the drive.
    service: M::Lock<Ledger<AtDrive<M>>>,
    /// By hardware queue: why the layer stopped asking the scheduler, as a place in [`Hold::ALL`],
    /// and until which microsecond the scheduler tells of its decisions.
    stops: Box<[Stop<M>]>,
    /// By hardware queue.
    decisions: Box<[Decisions<M>]>,
}

/// Bits of a word of `stops` that say what holds.
const HOLD_BITS: u32 = 4;
const HOLD_MASK: u64 = (1 << HOLD_BITS) - 1;
const _: () = assert!(Hold::ALL.len() <= 1 << HOLD_BITS);
/// A scheduler tells of its decisions for so long after whoever records asked: others may dispatch
/// in between who do not record.
const WATCHED_US: u64 = 100_000;

impl<M: Machine> DriveHolds<M> {
    /// For a drive with so many hardware queues.
    pub(crate) fn new(queues: usize) -> Self {
        let order = |_| Arc::new(M::Word::new(Hold::Order as u64));
        let ledger = M::Lock::new("holds", HeldLedger::new());
        let service = M::Lock::new("service", Ledger::new());
        let decisions = (0..queues).map(|_| Decisions::new()).collect();
        DriveHolds { ledger, service, stops: (0..queues).map(order).collect(), decisions }
    }

    /// Takes in an account.
    pub(crate) fn open(&self, account: HeldStats<M>) -> Arc<HeldStats<M>> {
        self.ledger.lock().open(account)
    }

    /// What held I/Os of each group.
    pub(crate) fn held(&self) -> BTreeMap<GroupId, HeldSnapshot> {
        self.ledger.lock().held()
    }

    /// How long requests of each group with a target were at the drive.
    pub(crate) fn service(&self) -> BTreeMap<GroupId, Snapshot> {
        self.service.lock().sums()
    }

    /// From now on this holds what waits at a queue and what the scheduler would let go.
    pub(crate) fn stop(&self, hctx: usize, hold: Hold) {
        // Relaxed: written and read under the queue's serve lock.
        let word = self.stops[hctx].load(Order::Relaxed);
        if word & HOLD_MASK != hold as u64 {
            self.stops[hctx].store(word & !HOLD_MASK | hold as u64, Order::Relaxed);
        }
    }

    /// What holds whatever waits at a queue and is not held by the scheduler.
    pub(crate) fn stopped_by(&self, hctx: usize) -> Hold {
        self.stopped_and_watched(hctx, 0).0
    }

    /// What `stopped_by` says, and whether somebody records what the queue's scheduler decides at
    /// `now_ns`.
    pub(crate) fn stopped_and_watched(&self, hctx: usize, now_ns: u64) -> (Hold, bool) {
        // Relaxed: written and read under the queue's serve lock.
        let word = self.stops[hctx].load(Order::Relaxed);
        (Hold::ALL[(word & HOLD_MASK) as usize], word >> HOLD_BITS > now_ns / 1_000)
    }

    /// Somebody records what the scheduler of a queue decides, from now on if nobody did; what was
    /// left when an earlier recording ended is of no use to this one.
    pub(crate) fn watch(&self, hctx: usize, now_ns: u64) {
        if !self.stopped_and_watched(hctx, now_ns).1 {
            drop(self.decisions[hctx].take());
        }
        // Relaxed: written and read under the queue's serve lock.
        let word = self.stops[hctx].load(Order::Relaxed);
        let until_us = now_ns / 1_000 + WATCHED_US;
        self.stops[hctx].store(word & HOLD_MASK | until_us << HOLD_BITS, Order::Relaxed);
    }

    /// What the scheduler of a queue decided and nobody noted yet.
    pub(crate) fn decisions(&self, hctx: usize) -> &Decisions<M> {
        &self.decisions[hctx]
    }
}

/// A thread's accounts.
pub(crate) struct Holds<M: Machine> {
    /// By number of the group.
    accounts: Vec<Option<Arc<HeldStats<M>>>>,
    at_drives: AtDrives<M>,
    stop: Option<Stop<M>>,
}

impl<M: Machine> Holds<M> {
    /// Of a channel.
    pub(crate) fn new() -> Self {
        Holds { accounts: Vec::new(), at_drives: AtDrives::new(), stop: None }
    }

    /// Of a drive's hardware queue.
    pub(crate) fn at(drive: &DriveHolds<M>, hctx: usize) -> Self {
        let mut holds = Holds::new();
        holds.stop = drive.stops.get(hctx).cloned();
        holds
    }

    /// Counts a request of a group with a target that was so long at a drive.
    pub(crate) fn was_at(&mut self, drive: &DriveHolds<M>, group: GroupId, service_ns: u64) {
        self.at_drives.count(group, service_ns, |account| drive.service.lock().open(account));
    }

    /// The account of a group; `open` has a ledger take it in.
    pub(crate) fn of(
        &mut self,
        group: GroupId,
        open: impl FnOnce(HeldStats<M>) -> Arc<HeldStats<M>>,
    ) -> &HeldStats<M> {
        let at = usize::from(group.0);
        if self.accounts.len() <= at {
            self.accounts.resize_with(at + 1, || None);
        }
        let stop = &self.stop;
        self.accounts[at].get_or_insert_with(|| open(HeldStats::new(group, stop.clone())))
    }
}

impl<M: Machine> Drop for Holds<M> {
    /// A ledger keeps what has ended of an account whose writer is gone.
    fn drop(&mut self) {
        self.accounts.iter().flatten().for_each(|account| account.end());
    }
}
