//! Accounting of the time that a group's I/Os wait before they reach a drive, by reason.
//!
//! A channel counts waits for limits, and waits for room in the channel, which the channel's owner
//! reports. Waits in a scheduler are counted by the scheduler or, if it does not count, by the
//! block layer. Waits that have not ended are included up to now (waits.rs). There is one account
//! for each group and writing thread, made on first use; a volume keeps the accounts of its
//! channels (tenants.rs), and each drive those of its schedulers. The times show why I/O is slow.
//! Kernel counterpart: io.cost's `cost.wait` and `cost.indebt` in `io.stat`.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use millrace_machine::{Lock, Machine, Order, Word};

use crate::account::decisions::SchedulerMessages;
use crate::account::histogram::{Histogram, Snapshot};
use crate::account::hold::WaitReason;
use crate::account::ledger::{AccountLedger, GroupAccounts, LedgerEntry};
use crate::account::waits::{ReportedWaits, WaitCounter, units};
use crate::bio::group_id::GroupId;

/// Time for which I/Os of a group waited before they reached a drive, by reason. For I/Os that
/// still wait, the time up to now is included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitSnapshot {
    /// Waiting time of all I/Os in nanoseconds, by reason in the order of [`WaitReason::ALL`].
    pub ns: [u64; WaitReason::ALL.len()],
    /// Number of I/Os that wait now and have not reached a drive yet.
    pub waiting: u64,
    /// Nanoseconds that the I/Os in `waiting` have waited so far, added up. For I/Os in a FIFO the
    /// value is an estimate: each counts as having waited as long as the first.
    pub waiting_ns: u64,
}

impl WaitSnapshot {
    /// Adds the values of another snapshot.
    pub fn merge(&mut self, other: &WaitSnapshot) {
        self.ns.iter_mut().zip(&other.ns).for_each(|(sum, ns)| *sum += ns);
        self.waiting += other.waiting;
        self.waiting_ns += other.waiting_ns;
    }
}

/// The wait accounts of a volume or drive. `told` holds the largest waiting time reported so far
/// for each group and reason, in nanoseconds. Later reports show at least that time. Without
/// `told`, a reported time could decrease, because an unfinished wait may get another reason.
pub(crate) struct WaitLedger<M: Machine> {
    pub(crate) accounts: AccountLedger<GroupWaitStats<M>>,
    told: BTreeMap<GroupId, [u64; WaitReason::ALL.len()]>,
}

impl<M: Machine> WaitLedger<M> {
    pub(crate) fn new() -> Self {
        WaitLedger { accounts: AccountLedger::new(), told: BTreeMap::new() }
    }

    pub(crate) fn held(&mut self) -> BTreeMap<GroupId, WaitSnapshot> {
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

type StopWord<M> = Arc<<M as Machine>::Word>;

fn hold_in<M: Machine>(stop: &StopWord<M>) -> WaitReason {
    // Relaxed: the result is used for statistics, so an older reason is acceptable.
    WaitReason::ALL[(stop.load(Order::Relaxed) & HOLD_MASK) as usize]
}

pub(crate) struct GroupWaitStats<M: Machine> {
    group: GroupId,
    /// Waiting times: one counter for each [`WaitReason`], and a last one for I/Os in a hardware
    /// queue that dispatches nothing. `settle` moves the time of the last counter to the reason
    /// that is stored in `stop`.
    by: [WaitCounter<M>; WaitReason::ALL.len() + 1],
    /// I/Os of the group that wait now, for any reason, and the time that they have waited so far.
    ages: WaitCounter<M>,
    stop: Option<StopWord<M>>,
}

impl<M: Machine> GroupWaitStats<M> {
    fn new(group: GroupId, stop: Option<StopWord<M>>) -> Self {
        GroupWaitStats {
            group,
            by: core::array::from_fn(|_| WaitCounter::new()),
            ages: WaitCounter::new(),
            stop,
        }
    }

    fn place(hold: Option<WaitReason>) -> usize {
        hold.map_or(WaitReason::ALL.len(), |hold| hold as usize)
    }

    pub(crate) fn add(&self, hold: WaitReason, ns: u64) {
        self.by[hold as usize].add(units(ns));
    }

    /// Replaces `said`, the last report of a group's waiting I/Os, by `next`, and updates the
    /// counters. Since `said`, waits may have begun, ended or got another reason. In the counters
    /// by reason (`by`), all these changes take effect at `at_ns`.
    pub(crate) fn say(&self, said: &mut ReportedWaits, next: ReportedWaits, at_ns: u64) {
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

    /// Assigns a reason to the waits in a hardware queue that dispatches nothing. The time of these
    /// waits up to `at_ns` is in the last counter in `by`. This call moves the time to the counter
    /// of the reason stored in `stop`.
    pub(crate) fn settle(&self, at_ns: u64) {
        let Some(stop) = &self.stop else { return };
        let (_, ns) = self.by[Self::place(None)].at(units(at_ns));
        if ns > 0 {
            self.by[Self::place(None)].change(0, units(ns).wrapping_neg());
            self.add(hold_in::<M>(stop), ns);
        }
    }

    /// Ends the group's waits when the channel or scheduler that counts them is dropped.
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

impl<M: Machine> LedgerEntry for GroupWaitStats<M> {
    type Key = GroupId;
    type Sum = WaitSnapshot;

    fn key(&self) -> GroupId {
        self.group
    }

    fn add_to(&self, sum: &mut WaitSnapshot) {
        let now = units(M::now());
        let (held, stopped) = self.by.split_at(WaitReason::ALL.len());
        for (sum, waits) in sum.ns.iter_mut().zip(held) {
            *sum += waits.at(now).1;
        }
        let stop = self.stop.as_ref().map_or(WaitReason::Order, hold_in::<M>);
        sum.ns[stop as usize] += stopped[0].at(now).1;
        let (waiting, ns) = self.ages.at(now);
        sum.waiting += waiting;
        sum.waiting_ns += if waiting > 0 { ns } else { 0 };
    }
}

/// Time that requests of a group with a latency target spend at a drive. Shows whether a missed
/// target could have been met at all: a scheduler controls only the time before the drive has the
/// request. Counted by the scheduler `latency`, read by `Volume::service_by_group`.
pub(crate) struct GroupServiceTimes<M: Machine> {
    group: GroupId,
    service: Histogram<M>,
}

impl<M: Machine> LedgerEntry for GroupServiceTimes<M> {
    type Key = GroupId;
    type Sum = Snapshot;

    fn key(&self) -> GroupId {
        self.group
    }

    fn add_to(&self, sum: &mut Snapshot) {
        sum.merge(&self.service.snapshot());
    }
}

pub(crate) struct DriveWaits<M: Machine> {
    ledger: M::Lock<WaitLedger<M>>,
    service: M::Lock<AccountLedger<GroupServiceTimes<M>>>,
    /// A word for each hardware queue. The low `HOLD_BITS` bits hold the [`WaitReason`] that stops
    /// dispatch now. The bits above hold a time in microseconds: until then, the scheduler reports
    /// its decisions.
    stops: Box<[StopWord<M>]>,
    decisions: Box<[SchedulerMessages<M>]>,
}

const HOLD_BITS: u32 = 4;
const HOLD_MASK: u64 = (1 << HOLD_BITS) - 1;
const _: () = assert!(WaitReason::ALL.len() <= 1 << HOLD_BITS);
/// Microseconds for which `DriveWaits::watch` makes a scheduler report its decisions.
const WATCHED_US: u64 = 100_000;

impl<M: Machine> DriveWaits<M> {
    pub(crate) fn new(queues: usize) -> Self {
        let order = |_| Arc::new(M::Word::new(WaitReason::Order as u64));
        let ledger = M::Lock::new("holds", WaitLedger::new());
        let service = M::Lock::new("service", AccountLedger::new());
        let decisions = (0..queues).map(|_| SchedulerMessages::new()).collect();
        DriveWaits { ledger, service, stops: (0..queues).map(order).collect(), decisions }
    }

    pub(crate) fn open(&self, account: GroupWaitStats<M>) -> Arc<GroupWaitStats<M>> {
        self.ledger.lock().accounts.open(account)
    }

    pub(crate) fn held(&self) -> BTreeMap<GroupId, WaitSnapshot> {
        self.ledger.lock().held()
    }

    pub(crate) fn service(&self) -> BTreeMap<GroupId, Snapshot> {
        self.service.lock().sums()
    }

    /// Sets the reason why nothing more is taken from the scheduler of hardware queue `hctx`.
    pub(crate) fn stop(&self, hctx: usize, hold: WaitReason) {
        // Relaxed: the word changes only under the queue's serve lock, which this thread holds.
        let word = self.stops[hctx].load(Order::Relaxed);
        if word & HOLD_MASK != hold as u64 {
            self.stops[hctx].store(word & !HOLD_MASK | hold as u64, Order::Relaxed);
        }
    }

    pub(crate) fn stopped_by(&self, hctx: usize) -> WaitReason {
        self.stopped_and_watched(hctx, 0).0
    }

    pub(crate) fn stopped_and_watched(&self, hctx: usize, now_ns: u64) -> (WaitReason, bool) {
        // Relaxed: the word changes only under the queue's serve lock, which this thread holds.
        let word = self.stops[hctx].load(Order::Relaxed);
        (WaitReason::ALL[(word & HOLD_MASK) as usize], word >> HOLD_BITS > now_ns / 1_000)
    }

    /// Asks the scheduler of queue `hctx` to report its decisions for the next 100 ms. Messages
    /// left over from an earlier recording are dropped.
    pub(crate) fn watch(&self, hctx: usize, now_ns: u64) {
        if !self.stopped_and_watched(hctx, now_ns).1 {
            drop(self.decisions[hctx].take());
        }
        // Relaxed: the word changes only under the queue's serve lock, which this thread holds.
        let word = self.stops[hctx].load(Order::Relaxed);
        let until_us = now_ns / 1_000 + WATCHED_US;
        self.stops[hctx].store(word & HOLD_MASK | until_us << HOLD_BITS, Order::Relaxed);
    }

    pub(crate) fn decisions(&self, hctx: usize) -> &SchedulerMessages<M> {
        &self.decisions[hctx]
    }
}

pub(crate) struct WaitAccounts<M: Machine> {
    accounts: GroupAccounts<GroupWaitStats<M>>,
    at_drives: GroupAccounts<GroupServiceTimes<M>>,
    stop: Option<StopWord<M>>,
}

impl<M: Machine> WaitAccounts<M> {
    pub(crate) fn new() -> Self {
        let (accounts, at_drives) = (GroupAccounts::new(), GroupAccounts::new());
        WaitAccounts { accounts, at_drives, stop: None }
    }

    pub(crate) fn at(drive: &DriveWaits<M>, hctx: usize) -> Self {
        let mut holds = WaitAccounts::new();
        holds.stop = drive.stops.get(hctx).cloned();
        holds
    }

    pub(crate) fn was_at(&mut self, drive: &DriveWaits<M>, group: GroupId, service_ns: u64) {
        let open = || {
            let account = GroupServiceTimes { group, service: Histogram::new() };
            drive.service.lock().open(account)
        };
        self.at_drives.of(group, open).service.record(service_ns, 1);
    }

    pub(crate) fn of(
        &mut self,
        group: GroupId,
        open: impl FnOnce(GroupWaitStats<M>) -> Arc<GroupWaitStats<M>>,
    ) -> &GroupWaitStats<M> {
        let stop = &self.stop;
        self.accounts.of(group, || open(GroupWaitStats::new(group, stop.clone())))
    }
}

impl<M: Machine> Drop for WaitAccounts<M> {
    /// Ends the waits in progress, which the `WaitLedger` would otherwise report for ever.
    fn drop(&mut self) {
        self.accounts.iter().for_each(|account| account.end());
    }
}
