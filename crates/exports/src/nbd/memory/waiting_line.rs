//! The line of connections that wait for payload memory, and the memory accounts of limited groups.
//!
//! A request that waits for a limit of its group keeps its buffer during the wait. The buffer is
//! charged to an *account*: each group has one for reads and one for writes.
//! - An account may hold up to an eighth of the memory. If an account holds no memory, one request
//!   of any size is admitted. A connection whose account is full delays only connections of its own
//!   group.
//! - All accounts together may hold half of the memory. The other half stays free for requests
//!   without a limit.
//! - Within the accounts' half, each request leaves a sixteenth of the memory to each smaller size
//!   class. So small requests of a group do not wait for large ones of another group. A request of
//!   a size class that holds no memory always fits.
//!
//! The `MemoryBudget` (budget.rs) owns the line and protects it with its lock. Invariants: a
//! connection is in the line at most once, and the connections of an account take turns in order.

use std::collections::{HashMap, VecDeque};

use millrace_block::GroupId;
use millrace_machine::payload::REGION_BYTES;

pub(crate) const SIZE_CLASSES: usize = 3;
/// Longest buffer of each size class, in bytes. The last class has no limit.
const CLASS_BYTES: [usize; SIZE_CLASSES - 1] = [256 << 10, REGION_BYTES];

#[inline]
pub(crate) fn size_class(buffer_bytes: usize) -> usize {
    CLASS_BYTES.iter().filter(|longest| buffer_bytes > **longest).count()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryWait {
    None,
    /// The connection waits until buffers of its own, or of its volume, are freed.
    Buffers,
    /// The connection is in the server's waiting line for memory.
    Queued,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct GroupAccount {
    pub(crate) group: GroupId,
    pub(crate) is_read: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryWaiter {
    pub(crate) thread: usize,
    /// Index and serial number of the connection in its thread.
    pub(crate) index: usize,
    pub(crate) serial: u64,
    pub(crate) bytes: usize,
    /// Account to charge, if a limit of the group applies to the request.
    pub(crate) account: Option<GroupAccount>,
}

impl MemoryWaiter {
    pub(crate) fn class(&self) -> usize {
        size_class(self.bytes)
    }
}

#[derive(Debug, Default)]
pub(crate) struct WaitingLine {
    pub(crate) waiters: VecDeque<MemoryWaiter>,
    account_bytes: HashMap<GroupAccount, usize>,
    class_bytes: [usize; SIZE_CLASSES],
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct AccountLimits {
    pub(crate) max_bytes: usize,
    /// Memory reserved for each size class, in bytes. Requests of larger size classes must leave
    /// this memory free.
    pub(crate) kept_bytes: usize,
}

impl WaitingLine {
    pub(crate) fn leave(&mut self, thread: usize, serial: u64) {
        self.waiters.retain(|one| (one.thread, one.serial) != (thread, serial));
    }

    /// Updates a connection's entry in the line, since limits of its group may have changed.
    /// Returns false if there is no entry.
    pub(crate) fn renew(&mut self, waiter: MemoryWaiter) -> bool {
        let is_same =
            |one: &&mut MemoryWaiter| (one.thread, one.serial) == (waiter.thread, waiter.serial);
        self.waiters.iter_mut().find(is_same).map(|known| *known = waiter).is_some()
    }

    pub(crate) fn charge(&mut self, waiter: MemoryWaiter) {
        if let Some(account) = waiter.account {
            *self.account_bytes.entry(account).or_default() += waiter.bytes;
            self.class_bytes[waiter.class()] += waiter.bytes;
        }
    }

    pub(crate) fn credit(&mut self, account: GroupAccount, bytes: usize) {
        let held_bytes = self.account_bytes.get_mut(&account);
        *held_bytes.expect("the account was charged") -= bytes;
        self.class_bytes[size_class(bytes)] -= bytes;
    }

    pub(crate) fn is_own_full(&self, limits: AccountLimits, waiter: &MemoryWaiter) -> bool {
        let held_bytes = waiter.account.and_then(|account| self.account_bytes.get(&account));
        let held_bytes = held_bytes.copied().unwrap_or(0);
        held_bytes > 0 && held_bytes + waiter.bytes > limits.max_bytes / 8
    }

    fn are_all_full(&self, limits: AccountLimits, waiter: &MemoryWaiter) -> bool {
        let AccountLimits { max_bytes, kept_bytes } = limits;
        let (class, held_bytes) = (waiter.class(), self.class_bytes);
        let smaller = held_bytes[..class].iter().map(|bytes| kept_bytes.max(*bytes));
        // The memory of larger size classes counts only up to `larger_max`. A single large request
        // may exceed `larger_max`. Without the cap, that request would use up the memory reserved
        // for smaller classes.
        let larger_max = max_bytes / 2 - (class + 1) * kept_bytes;
        let larger = held_bytes[class + 1..].iter().sum::<usize>().min(larger_max);
        let all_bytes = smaller.sum::<usize>() + held_bytes[class] + larger;
        held_bytes[class] > 0 && all_bytes + waiter.bytes > max_bytes / 2
    }

    /// Returns the waiting connections that may use free memory, in order. `last`, if given, is
    /// added to the end of the line.
    /// - A connection without a group account is always included.
    /// - Of each account, only the first connection is included, and only if its request fits into
    ///   the account.
    /// - If a request exceeds the limit of all accounts together, its connection is left out. Later
    ///   connections that have an account are then left out, too, if their requests have the same
    ///   size class.
    pub(crate) fn contenders(
        &self,
        limits: AccountLimits,
        last: Option<MemoryWaiter>,
    ) -> impl Iterator<Item = MemoryWaiter> {
        let mut are_full = [false; SIZE_CLASSES];
        let waiters = self.waiters.iter().copied().chain(last).enumerate();
        waiters.filter_map(move |(place, waiter)| {
            if waiter.account.is_none() {
                return Some(waiter);
            }
            let mut before = self.waiters.iter().take(place);
            if are_full[waiter.class()]
                || self.is_own_full(limits, &waiter)
                || before.any(|one| one.account == waiter.account)
            {
                return None;
            }
            let is_full = self.are_all_full(limits, &waiter);
            are_full[waiter.class()] = is_full;
            (!is_full).then_some(waiter)
        })
    }
}

#[cfg(test)]
mod tests;
