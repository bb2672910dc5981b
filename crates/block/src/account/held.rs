//! Accounting of what held I/Os of a group before they got to a drive, by reason.
//!
//! Sums of waiting times: a channel counts what waited for limits, a scheduler's queue what waited
//! for it, and the layer what waited in a scheduler that does not count by itself. One account for
//! each group and writer, made when it is first needed; a volume keeps those of its channels
//! (tenants.rs), each drive those of its schedulers. Answers "why is it slow". Kernel counterpart:
//! io.cost's `cost.wait` and `cost.indebt` in `io.stat`.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::{Counter, Lock, Machine, Order, Word};

use crate::account::ledger::{Entry, Ledger};
use crate::bio::group_id::GroupId;

/// What holds an I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// A limit of its group, or of that one's parent.
    Limit,
    /// Its group has had its share; others wait for theirs.
    Weight,
    /// The latency target of another group.
    LatencyTarget,
    /// As much is at the drive as keeps it busy.
    Depth,
    /// No tag is free.
    NoTag,
    /// The drive takes no more.
    DriveBusy,
    /// Its own group's I/Os are before it, or the order of sectors.
    Order,
}

impl Hold {
    /// All of them, in order.
    pub const ALL: [Hold; 7] = [
        Hold::Limit,
        Hold::Weight,
        Hold::LatencyTarget,
        Hold::Depth,
        Hold::NoTag,
        Hold::DriveBusy,
        Hold::Order,
    ];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Hold::Limit => "limit",
            Hold::Weight => "weight",
            Hold::LatencyTarget => "latency-target",
            Hold::Depth => "depth",
            Hold::NoTag => "no-tag",
            Hold::DriveBusy => "drive-busy",
            Hold::Order => "order",
        }
    }
}

/// How long I/Os of a group were held by what, in nanoseconds, added up over I/Os.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldSnapshot {
    /// In the order of [`Hold::ALL`].
    pub ns: [u64; Hold::ALL.len()],
}

impl HeldSnapshot {
    /// Adds another.
    pub fn merge(&mut self, other: &HeldSnapshot) {
        self.ns.iter_mut().zip(&other.ns).for_each(|(sum, ns)| *sum += ns);
    }
}

/// What one thread counted of a group.
pub(crate) struct HeldStats<M: Machine> {
    group: GroupId,
    ns: [M::Counter; Hold::ALL.len()],
}

impl<M: Machine> HeldStats<M> {
    /// Adds waiting time.
    pub(crate) fn add(&self, hold: Hold, ns: u64) {
        self.ns[hold as usize].add(ns);
    }
}

impl<M: Machine> Entry for HeldStats<M> {
    type Key = GroupId;
    type Sum = HeldSnapshot;

    fn key(&self) -> GroupId {
        self.group
    }

    fn add_to(&self, sum: &mut HeldSnapshot) {
        for (sum, ns) in sum.ns.iter_mut().zip(&self.ns) {
            *sum += ns.get();
        }
    }
}

/// What held I/Os at a drive with a scheduler.
pub(crate) struct DriveHolds<M: Machine> {
    ledger: M::Lock<Ledger<HeldStats<M>>>,
    /// By hardware queue: why the layer stopped asking the scheduler, as a place in [`Hold::ALL`].
    stops: Box<[M::Word]>,
}

impl<M: Machine> DriveHolds<M> {
    /// For a drive with so many hardware queues.
    pub(crate) fn new(queues: usize) -> Self {
        let order = |_| M::Word::new(Hold::Order as u64);
        let ledger = M::Lock::new("holds", Ledger::new());
        DriveHolds { ledger, stops: (0..queues).map(order).collect() }
    }

    /// Takes in an account.
    pub(crate) fn open(&self, account: HeldStats<M>) -> Arc<HeldStats<M>> {
        self.ledger.lock().open(account)
    }

    /// What held I/Os of each group.
    pub(crate) fn held(&self) -> BTreeMap<GroupId, HeldSnapshot> {
        self.ledger.lock().sums()
    }

    /// From now on this holds what waits at a queue and what the scheduler would let go.
    pub(crate) fn stop(&self, hctx: usize, hold: Hold) {
        if self.stopped_by(hctx) != hold {
            // Relaxed: written and read under the queue's serve lock.
            self.stops[hctx].store(hold as u64, Order::Relaxed);
        }
    }

    /// What holds whatever waits at a queue and is not held by the scheduler.
    pub(crate) fn stopped_by(&self, hctx: usize) -> Hold {
        // Relaxed: written and read under the queue's serve lock.
        Hold::ALL[self.stops[hctx].load(Order::Relaxed) as usize]
    }
}

/// A thread's accounts.
pub(crate) struct Holds<M: Machine> {
    /// By number of the group.
    accounts: Vec<Option<Arc<HeldStats<M>>>>,
}

impl<M: Machine> Holds<M> {
    pub(crate) fn new() -> Self {
        Holds { accounts: Vec::new() }
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
        self.accounts[at].get_or_insert_with(|| {
            let ns = core::array::from_fn(|_| M::Counter::new());
            open(HeldStats { group, ns })
        })
    }
}
