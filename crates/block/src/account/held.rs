//! Accounting of the time that a group's I/Os wait before they reach a drive, by reason.
//!
//! A channel counts waits for limits, and waits for room that its owner reports. A scheduler's
//! queue counts waits in the scheduler; the layer does so for schedulers that do not count. An I/O
//! that still waits counts up to now (waits.rs). There is one account for each group and writer,
//! made on first use; a volume keeps those of its channels (tenants.rs), each drive those of its
//! schedulers. Answers "why is it slow". Kernel counterpart: io.cost's `cost.wait` and
//! `cost.indebt` in `io.stat`.

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

/// Time that I/Os of a group waited before they reached a drive, by reason. I/Os that still wait
/// count up to now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldSnapshot {
    /// Nanoseconds by reason, in the order of [`WaitReason::ALL`], summed over I/Os.
    pub ns: [u64; Hold::ALL.len()],
    /// Number of I/Os that wait now.
    pub waiting: u64,
    /// Nanoseconds that the I/Os in `waiting` have waited so far, summed; I/Os in a FIFO count as
    /// long as its first one.
    pub waiting_ns: u64,
}

impl HeldSnapshot {
    /// Adds the values of another snapshot.
    pub fn merge(&mut self, other: &HeldSnapshot) {
        self.ns.iter_mut().zip(&other.ns).for_each(|(sum, ns)| *sum += ns);
        self.waiting += other.waiting;
        self.waiting_ns += other.waiting_ns;
    }
}

/// Wait accounts, and the largest sums ever reported: the reason of a current wait may still
/// change, and reported sums must not go back.
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

    /// Returns the waiting times of each group by reason.
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

/// The reason that applies to I/Os at a hardware queue or channel for which no other is given, as a
/// position in [`WaitReason::ALL`].
type Stop<M> = Arc<<M as Machine>::Word>;

fn hold_in<M: Machine>(stop: &Stop<M>) -> Hold {
    // Relaxed: the counting thread has the queue's serve lock; other readers need only a recent
    // value.
    Hold::ALL[(stop.load(Order::Relaxed) & HOLD_MASK) as usize]
}

/// One thread's wait account for a group.
pub(crate) struct HeldStats<M: Machine> {
    group: GroupId,
    /// Waits by reason; the last entry is for I/Os that wait for whatever stops the queue.
    by: [Waits<M>; Hold::ALL.len() + 1],
    /// Ages of the I/Os that wait now.
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

    /// Adds waiting time that has ended.
    pub(crate) fn add(&self, hold: Hold, ns: u64) {
        self.by[hold as usize].add(units(ns));
    }

    /// Replaces the report `said` by `next` from time `at_ns` on.
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

    /// Moves the time waited for the queue's stop, up to `at_ns`, to the current stop reason.
    pub(crate) fn settle(&self, at_ns: u64) {
        let Some(stop) = &self.stop else { return };
        let (_, ns) = self.by[Self::place(None)].at(units(at_ns));
        if ns > 0 {
            self.by[Self::place(None)].change(0, units(ns).wrapping_neg());
            self.add(hold_in::<M>(stop), ns);
        }
    }

    /// Ends all waits of this account, because its writer goes away.
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

/// Wait accounts of a drive with a scheduler.
pub(crate) struct DriveHolds<M: Machine> {
    ledger: M::Lock<HeldLedger<M>>,
    /// Time that requests of groups with latency targets were at the drive.
    service: M::Lock<Ledger<AtDrive<M>>>,
    /// By hardware queue: the reason why the layer stopped asking the scheduler, as a position in
    /// [`WaitReason::ALL`], and the microsecond until which the scheduler reports its decisions.
    stops: Box<[Stop<M>]>,
    /// Scheduler messages by hardware queue.
    decisions: Box<[Decisions<M>]>,
}

/// Bits of a `stops` word that hold the reason.
const HOLD_BITS: u32 = 4;
const HOLD_MASK: u64 = (1 << HOLD_BITS) - 1;
const _: () = assert!(Hold::ALL.len() <= 1 << HOLD_BITS);
/// Microseconds for which a scheduler keeps reporting its decisions after a recording thread asked:
/// threads that do not record may dispatch in between.
const WATCHED_US: u64 = 100_000;

impl<M: Machine> DriveHolds<M> {
    /// Creates the accounts of a drive with `queues` hardware queues.
    pub(crate) fn new(queues: usize) -> Self {
        let order = |_| Arc::new(M::Word::new(Hold::Order as u64));
        let ledger = M::Lock::new("holds", HeldLedger::new());
        let service = M::Lock::new("service", Ledger::new());
        let decisions = (0..queues).map(|_| Decisions::new()).collect();
        DriveHolds { ledger, service, stops: (0..queues).map(order).collect(), decisions }
    }

    pub(crate) fn open(&self, account: HeldStats<M>) -> Arc<HeldStats<M>> {
        self.ledger.lock().open(account)
    }

    /// Returns the waiting times of each group by reason.
    pub(crate) fn held(&self) -> BTreeMap<GroupId, HeldSnapshot> {
        self.ledger.lock().held()
    }

    /// Returns how long requests of each group with a latency target were at the drive.
    pub(crate) fn service(&self) -> BTreeMap<GroupId, Snapshot> {
        self.service.lock().sums()
    }

    /// Sets the reason that applies to I/Os at queue `hctx` that the scheduler itself would let go.
    pub(crate) fn stop(&self, hctx: usize, hold: Hold) {
        // Relaxed: written and read under the queue's serve lock.
        let word = self.stops[hctx].load(Order::Relaxed);
        if word & HOLD_MASK != hold as u64 {
            self.stops[hctx].store(word & !HOLD_MASK | hold as u64, Order::Relaxed);
        }
    }

    /// Returns the reason that applies to I/Os at queue `hctx` that the scheduler would let go.
    pub(crate) fn stopped_by(&self, hctx: usize) -> Hold {
        self.stopped_and_watched(hctx, 0).0
    }

    /// Returns the reason as `stopped_by` does, and whether a trace of the scheduler's decisions is
    /// being recorded at `now_ns`.
    pub(crate) fn stopped_and_watched(&self, hctx: usize, now_ns: u64) -> (Hold, bool) {
        // Relaxed: written and read under the queue's serve lock.
        let word = self.stops[hctx].load(Order::Relaxed);
        (Hold::ALL[(word & HOLD_MASK) as usize], word >> HOLD_BITS > now_ns / 1_000)
    }

    /// Asks the scheduler of queue `hctx` to report its decisions from now on. Messages left over
    /// from an earlier recording are dropped.
    pub(crate) fn watch(&self, hctx: usize, now_ns: u64) {
        if !self.stopped_and_watched(hctx, now_ns).1 {
            drop(self.decisions[hctx].take());
        }
        // Relaxed: written and read under the queue's serve lock.
        let word = self.stops[hctx].load(Order::Relaxed);
        let until_us = now_ns / 1_000 + WATCHED_US;
        self.stops[hctx].store(word & HOLD_MASK | until_us << HOLD_BITS, Order::Relaxed);
    }

    /// Returns the messages of the queue's scheduler that are not yet written to a trace.
    pub(crate) fn decisions(&self, hctx: usize) -> &Decisions<M> {
        &self.decisions[hctx]
    }
}

/// The wait accounts of one thread.
pub(crate) struct Holds<M: Machine> {
    /// Indexed by group number.
    accounts: Vec<Option<Arc<HeldStats<M>>>>,
    at_drives: AtDrives<M>,
    stop: Option<Stop<M>>,
}

impl<M: Machine> Holds<M> {
    /// Creates the accounts of a channel.
    pub(crate) fn new() -> Self {
        Holds { accounts: Vec::new(), at_drives: AtDrives::new(), stop: None }
    }

    /// Creates the accounts of a drive's hardware queue.
    pub(crate) fn at(drive: &DriveHolds<M>, hctx: usize) -> Self {
        let mut holds = Holds::new();
        holds.stop = drive.stops.get(hctx).cloned();
        holds
    }

    /// Counts a request of a group with a latency target that spent `service_ns` at the drive.
    pub(crate) fn was_at(&mut self, drive: &DriveHolds<M>, group: GroupId, service_ns: u64) {
        self.at_drives.count(group, service_ns, |account| drive.service.lock().open(account));
    }

    /// Returns the account of `group`. `open` registers a new one with a ledger.
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
    /// Ends the current waits, because a ledger keeps an account's totals after its writer is gone.
    fn drop(&mut self) {
        self.accounts.iter().flatten().for_each(|account| account.end());
    }
}
