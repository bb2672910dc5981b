//! The line of connections that wait for payload memory, and the accounts that delay some of them.
//!
//! A request that waits for a limit of its group keeps its buffer as long as the limit demands.
//! Such requests are therefore charged to an *account* of their group and direction. An account may
//! hold an eighth of the memory, or one request. All accounts together may hold half of the memory,
//! or one request. A connection whose account is full delays only connections of its own group.
//!
//! Owned by the `MemoryBudget` (budget.rs), under its lock. Invariants: a connection is in the line
//! at most once, and the connections of an account take turns in order.

use std::collections::{HashMap, VecDeque};

use millrace_block::GroupId;
use millrace_machine::payload::REGION_BYTES;

/// Number of size classes of buffers.
pub(crate) const SIZE_CLASSES: usize = 3;
/// Longest buffer of each class except the last, in bytes.
const CLASS_BYTES: [usize; SIZE_CLASSES - 1] = [256 << 10, REGION_BYTES];

/// Returns the size class of a buffer.
#[inline]
pub(crate) fn size_class(buffer_bytes: usize) -> usize {
    CLASS_BYTES.iter().filter(|longest| buffer_bytes > **longest).count()
}

/// The kind of memory that a connection waits for, if it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryWait {
    None,
    /// The connection waits until buffers of its own, or of its volume, are freed.
    Buffers,
    /// The connection waits for its turn in the server's line for memory.
    Queued,
}

/// Identifies the account of a group with limits in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct GroupAccount {
    pub(crate) group: GroupId,
    pub(crate) is_read: bool,
}

/// A connection that wants memory for its next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiter {
    /// Index of the I/O thread.
    pub(crate) thread: usize,
    /// Index of the connection in its thread, and its serial number.
    pub(crate) index: usize,
    pub(crate) serial: u64,
    /// Size of the wanted buffer in bytes.
    pub(crate) bytes: usize,
    /// Account to charge, if a limit of the group applies to the request.
    pub(crate) account: Option<GroupAccount>,
}

impl Waiter {
    pub(crate) fn class(&self) -> usize {
        size_class(self.bytes)
    }
}

/// The waiting connections and the charges of all accounts.
#[derive(Debug, Default)]
pub(crate) struct WaitingLine {
    pub(crate) waiters: VecDeque<Waiter>,
    account_bytes: HashMap<GroupAccount, usize>,
    all_account_bytes: usize,
}

impl WaitingLine {
    pub(crate) fn leave(&mut self, thread: usize, serial: u64) {
        self.waiters.retain(|one| (one.thread, one.serial) != (thread, serial));
    }

    /// Updates what a connection in the line wants, since limits of its group may have changed.
    /// Returns false if the connection is not in the line.
    pub(crate) fn renew(&mut self, waiter: Waiter) -> bool {
        let is_same =
            |one: &&mut Waiter| (one.thread, one.serial) == (waiter.thread, waiter.serial);
        self.waiters.iter_mut().find(is_same).map(|known| *known = waiter).is_some()
    }

    /// Charges a request to its account, if it has one.
    pub(crate) fn charge(&mut self, waiter: Waiter) {
        if let Some(account) = waiter.account {
            *self.account_bytes.entry(account).or_default() += waiter.bytes;
            self.all_account_bytes += waiter.bytes;
        }
    }

    /// Removes a request's charge from its account.
    pub(crate) fn credit(&mut self, account: GroupAccount, bytes: usize) {
        let held_bytes = self.account_bytes.get_mut(&account);
        *held_bytes.expect("the account was charged") -= bytes;
        self.all_account_bytes -= bytes;
    }

    /// Returns the connections that could use free memory, in order, as if `last` were appended to
    /// the line. Only the first connection of each account is returned, and none if the account is
    /// full. If all accounts together are full for one connection, later ones of other accounts do
    /// not overtake it.
    pub(crate) fn contenders(
        &self,
        max_bytes: usize,
        last: Option<Waiter>,
    ) -> impl Iterator<Item = Waiter> {
        let is_full = move |held_bytes: usize, bytes: usize, part: usize| {
            held_bytes > 0 && held_bytes + bytes > max_bytes / part
        };
        let mut are_all_full = false;
        let waiters = self.waiters.iter().copied().chain(last).enumerate();
        waiters.filter_map(move |(place, waiter)| {
            let Some(account) = waiter.account else { return Some(waiter) };
            let mut before = self.waiters.iter().take(place);
            let held_bytes = self.account_bytes.get(&account).copied().unwrap_or(0);
            if are_all_full
                || is_full(held_bytes, waiter.bytes, 8)
                || before.any(|one| one.account == waiter.account)
            {
                return None;
            }
            are_all_full = is_full(self.all_account_bytes, waiter.bytes, 2);
            (!are_all_full).then_some(waiter)
        })
    }
}

#[cfg(test)]
mod tests;
