//! Accounting by tenant: the I/Os that a volume completed for each tenant, as the tenant saw them.
//!
//! The channel that submitted a bio counts it once, with the time from submission until the bio is
//! handed back. There are four cases:
//! - Unsplit bio, completed by the channel's thread: counted with its completion batch
//!   (account.rs).
//! - Unsplit bio, completed by another thread: counted when the channel takes delivery of the bio.
//! - Split bio: counted when its last part has completed and the bio is handed back.
//! - Bio that reached no drive (invalid or aborted): counted when it is handed back.
//!
//! Each channel has one account for each pair of group and tenant, made on its first I/O. The
//! volume keeps the ledger of accounts; the sum over all accounts is the volume's total. Kernel
//! counterpart: blk-cgroup's `io.stat`.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::{Counter, Lock, Machine};

use crate::account::held::{GroupWaitStats, WaitLedger, WaitSnapshot};
use crate::account::histogram::{Histogram, Snapshot, bucket_of};
use crate::account::ledger::{AccountLedger, LedgerEntry};
use crate::bio::group_id::GroupId;
use crate::bio::{AccountKey, OPS, Op};
use crate::chain::slot::BioSlot;

struct TenantOp<M: Machine> {
    sectors: M::Counter,
    errors: M::Counter,
    total: Histogram<M>,
}

pub(crate) struct TenantStats<M: Machine> {
    account_key: AccountKey,
    ops: Box<[TenantOp<M>; OPS]>,
}

/// I/O statistics of one operation, for a tenant or a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantOpSnapshot {
    /// Bios handed back to the submitter.
    pub ios: u64,
    /// Total sectors of the bios.
    pub sectors: u64,
    /// Bios that failed.
    pub errors: u64,
    /// Time from submission until the bio was handed back.
    pub total: Snapshot,
}

/// I/O statistics of a tenant or volume, by operation in the order of `Op::ALL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantSnapshot {
    /// Bios, sectors, errors and times of each operation, in the order of `Op::ALL`.
    pub ops: Vec<TenantOpSnapshot>,
}

impl Default for TenantSnapshot {
    fn default() -> Self {
        TenantSnapshot { ops: alloc::vec![TenantOpSnapshot::default(); OPS] }
    }
}

impl TenantSnapshot {
    /// Adds the sums of another snapshot.
    pub fn merge(&mut self, other: &TenantSnapshot) {
        for (sum, op) in self.ops.iter_mut().zip(&other.ops) {
            sum.ios += op.ios;
            sum.sectors += op.sectors;
            sum.errors += op.errors;
            sum.total.merge(&op.total);
        }
    }

    /// Returns the number of bios of all operations.
    #[must_use]
    pub fn ios(&self) -> u64 {
        self.ops.iter().map(|op| op.ios).sum()
    }
}

impl<M: Machine> TenantStats<M> {
    fn new(account_key: AccountKey) -> Self {
        let op = || TenantOp {
            sectors: M::Counter::new(),
            errors: M::Counter::new(),
            total: Histogram::new(),
        };
        TenantStats { account_key, ops: Box::new(core::array::from_fn(|_| op())) }
    }

    #[inline(always)]
    fn count(&self, ios: &TenantIos) {
        let op = &self.ops[ios.op as usize];
        op.sectors.add(ios.sectors);
        op.total.record_in(ios.bucket, ios.total_ns, ios.ios);
    }
}

impl<M: Machine> LedgerEntry for TenantStats<M> {
    type Key = AccountKey;
    type Sum = TenantSnapshot;

    fn key(&self) -> AccountKey {
        self.account_key
    }

    fn add_to(&self, sum: &mut TenantSnapshot) {
        for (op, sum) in self.ops.iter().zip(&mut sum.ops) {
            sum.sectors += op.sectors.get();
            sum.errors += op.errors.get();
            if !op.total.is_empty() {
                let total = op.total.snapshot();
                sum.ios += total.count();
                sum.total.merge(&total);
            }
        }
    }
}

pub(crate) struct TenantLedger<M: Machine>(M::Lock<VolumeAccounts<M>>);

struct VolumeAccounts<M: Machine> {
    tenants: AccountLedger<TenantStats<M>>,
    /// Times that I/Os waited before they were plugged; allocated at the first wait. The `Box`
    /// keeps `VolumeAccounts` small: together with its lock, the struct fits into one cache line.
    held: Option<Box<WaitLedger<M>>>,
}

impl<M: Machine> TenantLedger<M> {
    pub(crate) fn new() -> Self {
        let accounts = VolumeAccounts { tenants: AccountLedger::new(), held: None };
        TenantLedger(M::Lock::new("tenants", accounts))
    }

    /// Registers an account: the waiting times of one group's I/Os, measured by one thread.
    pub(crate) fn open_held(&self, account: GroupWaitStats<M>) -> Arc<GroupWaitStats<M>> {
        self.0.lock().held.get_or_insert_with(|| Box::new(WaitLedger::new())).accounts.open(account)
    }

    pub(crate) fn held(&self) -> BTreeMap<GroupId, WaitSnapshot> {
        self.0.lock().held.as_mut().map_or_else(BTreeMap::new, |held| held.held())
    }

    pub(crate) fn sums<K: Ord>(&self, key: fn(AccountKey) -> K) -> BTreeMap<K, TenantSnapshot> {
        let mut sums = BTreeMap::<K, TenantSnapshot>::new();
        for (account_key, sum) in self.0.lock().tenants.sums() {
            sums.entry(key(account_key)).or_default().merge(&sum);
        }
        sums
    }
}

/// Completed bios of one tenant with equal operation and equal total time.
pub(crate) struct TenantIos {
    pub(crate) account_key: AccountKey,
    pub(crate) op: Op,
    /// Bucket of `total_ns` in a histogram.
    pub(crate) bucket: usize,
    /// Nanoseconds from submission until the bio was handed back.
    pub(crate) total_ns: u64,
    pub(crate) ios: u64,
    pub(crate) sectors: u64,
}

/// Completed bios of one tenant with equal operation, submission time and completion time.
#[derive(Debug, Clone, Copy)]
struct TenantRun {
    account_key: AccountKey,
    op: Op,
    q_ns: u64,
    c_ns: u64,
    ios: u64,
    sectors: u64,
}

pub(crate) struct Tenants<M: Machine> {
    /// The volume's ledger. `None` for a drive's worker, which submits no I/O: only the submitting
    /// thread counts an I/O for its tenant.
    ledger: Option<Arc<TenantLedger<M>>>,
    /// Statistics that this thread writes: one entry for each group and tenant, sorted by both.
    accounts: Vec<Arc<TenantStats<M>>>,
    last: usize,
    run: TenantRun,
}

impl<M: Machine> Tenants<M> {
    pub(crate) fn new(ledger: Option<Arc<TenantLedger<M>>>) -> Self {
        let run = TenantRun {
            account_key: AccountKey::DEFAULT,
            op: Op::Read,
            q_ns: 0,
            c_ns: 0,
            ios: 0,
            sectors: 0,
        };
        Tenants { ledger, accounts: Vec::new(), last: 0, run }
    }

    #[inline(always)]
    pub(crate) fn count(&mut self, ios: &TenantIos) {
        let account = match self.accounts.get(self.last) {
            Some(account) if account.account_key == ios.account_key => account,
            // `find` gets the key, not a reference to `ios`, so that `ios` can stay in registers.
            _ => match self.find(ios.account_key) {
                Some(account) => account,
                None => return,
            },
        };
        account.count(ios);
    }

    /// Counts a completed bio. Bios with equal tenant, operation, submission and completion times
    /// are collected first; [`Tenants::end_run`] adds them to the tenant's statistics.
    #[inline]
    pub(crate) fn count_one(&mut self, slot: &BioSlot<M>, now_ns: u64) {
        let (account_key, op, q_ns) = (slot.bio.account_key, slot.bio.op, slot.q_ns);
        let run = &self.run;
        if (run.account_key, run.op, run.q_ns, run.c_ns) != (account_key, op, q_ns, now_ns) {
            self.end_run();
            self.run = TenantRun { account_key, op, q_ns, c_ns: now_ns, ios: 0, sectors: 0 };
        }
        self.run.ios += 1;
        self.run.sectors += u64::from(slot.bio.nr_sectors);
        if !slot.status.is_ok() {
            self.count_error(slot);
        }
    }

    pub(crate) fn end_run(&mut self) {
        let TenantRun { account_key, op, q_ns, c_ns, ios, sectors } = self.run;
        if ios > 0 {
            let total_ns = c_ns.saturating_sub(q_ns);
            let bucket = bucket_of(total_ns);
            self.count(&TenantIos { account_key, op, bucket, total_ns, ios, sectors });
            (self.run.ios, self.run.sectors) = (0, 0);
        }
    }

    #[cold]
    pub(crate) fn count_error(&mut self, slot: &BioSlot<M>) {
        if let Some(account) = self.find(slot.bio.account_key) {
            account.ops[slot.bio.op as usize].errors.add(1);
        }
    }

    #[inline(never)]
    fn find(&mut self, account_key: AccountKey) -> Option<&TenantStats<M>> {
        let ledger = self.ledger.as_ref()?;
        let found = self.accounts.binary_search_by_key(&account_key, |account| account.account_key);
        self.last = found.unwrap_or_else(|at| {
            self.accounts.insert(at, ledger.0.lock().tenants.open(TenantStats::new(account_key)));
            at
        });
        Some(&self.accounts[self.last])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::Bio;
    use crate::bio::status::Status;
    use core::mem::ManuallyDrop;
    use core::ptr::null;
    use millrace_machine::Native;
    use proptest::prelude::*;

    /// A completed bio: tenant and operation, times of Q and of the end, sectors, status.
    type Done = ((u16, Op), (u64, u64), u32, Status);

    fn done() -> impl Strategy<Value = Done> {
        let op = prop::sample::select(&Op::ALL[..]);
        let status = prop::sample::select(&[Status::Ok, Status::Ok, Status::IoError][..]);
        // Only a few different times, so that many consecutive bios have equal times.
        ((3u16..6, op), (5u64..8, 6u64..9), 0u32..50, status)
    }

    fn slot(((tenant, op), (q_ns, _), sectors, status): Done) -> BioSlot<Native> {
        let mut bio = Bio::discard(0, sectors).with_tenant(tenant);
        bio.op = op;
        let mut slot = BioSlot::empty(null());
        (slot.bio, slot.q_ns, slot.status) = (ManuallyDrop::new(bio), q_ns, status);
        slot
    }

    proptest! {
        #[test]
        fn bios_counted_one_by_one_are_in_their_tenants_accounts_once(
            rounds in prop::collection::vec(prop::collection::vec(done(), 0..6), 0..12)
        ) {
            let ledger = Arc::new(TenantLedger::<Native>::new());
            let mut tenants = Tenants::new(Some(Arc::clone(&ledger)));
            let mut expected = BTreeMap::<u16, TenantSnapshot>::new();
            for round in rounds {
                for bio in round {
                    let ((tenant, op), (q_ns, c_ns), sectors, status) = bio;
                    tenants.count_one(&slot(bio), c_ns);
                    let sum = &mut expected.entry(tenant).or_default().ops[op as usize];
                    sum.ios += 1;
                    sum.sectors += u64::from(sectors);
                    sum.errors += u64::from(status != Status::Ok);
                    sum.total.add(c_ns.saturating_sub(q_ns), 1);
                }
                tenants.end_run();
                prop_assert_eq!(&ledger.sums(|account_key| account_key.tenant), &expected);
            }
        }
    }

    #[test]
    fn whoever_has_no_ledger_counts_for_nobody() {
        let mut worker = Tenants::<Native>::new(None);
        worker.count_one(&slot(((1, Op::Read), (0, 1), 8, Status::IoError)), 1);
        worker.end_run();
        assert!(worker.accounts.is_empty());
    }
}
