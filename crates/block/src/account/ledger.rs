//! `AccountLedger`: accounts of a hardware queue, tenant or group, each written by one thread.
//!
//! A thread writes its own account without a lock. The ledger lists all accounts and sums them by
//! key (the hardware queue, tenant or group). When a thread has ended, its account is added to a
//! sum of closed accounts and freed, so threads that come and go take no memory. Disks (account.rs)
//! and volumes (tenants.rs) own ledgers behind a lock, which is taken when a thread opens an
//! account and when sums are read.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::bio::group_id::GroupId;

pub(crate) trait LedgerEntry {
    /// The subject of the account, such as a hardware queue or a tenant.
    type Key: Ord + Copy;
    type Sum: Default;

    fn key(&self) -> Self::Key;

    fn add_to(&self, sum: &mut Self::Sum);
}

/// Accounts, each a set of statistics that one thread writes. Once the thread has dropped its
/// reference, the account is added to a sum and freed. There is one sum for each key, such as a
/// tenant.
pub(crate) struct AccountLedger<T: LedgerEntry> {
    open: Vec<Arc<T>>,
    closed: BTreeMap<T::Key, T::Sum>,
    opened: u32,
}

impl<T: LedgerEntry> AccountLedger<T> {
    pub(crate) fn new() -> Self {
        AccountLedger { open: Vec::new(), closed: BTreeMap::new(), opened: 0 }
    }

    /// Adds a new account, which stays open until its thread drops the returned reference.
    pub(crate) fn open(&mut self, entry: T) -> Arc<T> {
        self.close_left();
        let entry = Arc::new(entry);
        self.open.push(Arc::clone(&entry));
        self.opened += 1;
        entry
    }

    fn close_left(&mut self) {
        let closed = &mut self.closed;
        self.open.retain_mut(|entry| {
            // `Arc::get_mut` succeeds only after the account's thread has dropped its reference. It
            // then also makes the thread's last counts visible here, which `Arc::strong_count` does
            // not guarantee.
            let gone = Arc::get_mut(entry);
            if let Some(entry) = &gone {
                entry.add_to(closed.entry(entry.key()).or_default());
            }
            gone.is_none()
        });
    }

    pub(crate) fn keys_in_use(&self) -> impl Iterator<Item = T::Key> {
        // Approximate: a thread that ends at this moment may or may not be included.
        let in_use = self.open.iter().filter(|entry| Arc::strong_count(entry) > 1);
        in_use.map(|entry| entry.key())
    }

    pub(crate) fn opened(&self) -> u32 {
        self.opened
    }
}

impl<T: LedgerEntry> AccountLedger<T>
where
    T::Sum: Clone,
{
    /// Returns the sums of all accounts, one sum for each key (such as a tenant). An account is a
    /// set of statistics that one thread writes. Accounts that their threads have dropped are
    /// freed, but their counts stay in the sums.
    pub(crate) fn sums(&mut self) -> BTreeMap<T::Key, T::Sum> {
        self.close_left();
        let mut sums = self.closed.clone();
        for entry in &self.open {
            entry.add_to(sums.entry(entry.key()).or_default());
        }
        sums
    }
}

/// Accounts that one thread writes, indexed by group number. An account is opened on first use.
pub(crate) struct GroupAccounts<T>(Vec<Option<Arc<T>>>);

impl<T> GroupAccounts<T> {
    pub(crate) const fn new() -> Self {
        GroupAccounts(Vec::new())
    }

    pub(crate) fn of(&mut self, group: GroupId, open: impl FnOnce() -> Arc<T>) -> &T {
        let at = usize::from(group.0);
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        self.0[at].get_or_insert_with(open)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.0.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU64, Ordering};

    struct Account(u8, AtomicU64);

    impl LedgerEntry for Account {
        type Key = u8;
        type Sum = u64;

        fn key(&self) -> u8 {
            self.0
        }

        fn add_to(&self, sum: &mut u64) {
            *sum += self.1.load(Ordering::Relaxed);
        }
    }

    #[test]
    fn what_the_gone_did_stays_and_their_accounts_do_not() {
        let mut ledger = AccountLedger::new();
        let stays = ledger.open(Account(1, AtomicU64::new(1)));
        for turn in 0..100 {
            ledger.open(Account(turn % 2, AtomicU64::new(10)));
        }
        stays.1.fetch_add(1, Ordering::Relaxed);
        assert_eq!(ledger.sums().into_iter().collect::<Vec<_>>(), [(0, 500), (1, 502)]);
        assert_eq!((ledger.open.len(), ledger.opened()), (1, 101));
    }

    #[test]
    fn keys_in_use_are_those_of_accounts_that_somebody_still_has() {
        let mut ledger = AccountLedger::new();
        let in_use = |ledger: &AccountLedger<Account>| ledger.keys_in_use().collect::<Vec<_>>();
        assert_eq!((in_use(&ledger), ledger.opened()), (Vec::new(), 0));
        let mut open = |key| ledger.open(Account(key, AtomicU64::new(0)));
        let (first, second, third) = (open(7), open(5), open(7));
        assert_eq!(in_use(&ledger), [7, 5, 7]);
        drop(first);
        assert_eq!(in_use(&ledger), [5, 7]);
        drop((second, third));
        assert_eq!((in_use(&ledger), ledger.opened()), (Vec::new(), 3));
    }
}
