//! The connections that wait for payload memory, in the order in which they came, and the accounts
//! that may hold some of them up.
//!
//! A request that waits for a limit of its group keeps its buffer for as long as the limit says. So
//! such requests count in an *account* of their group and direction, which may hold an eighth of
//! the memory, or one request. All accounts together may hold half of the memory, or one request. A
//! connection whose account is full keeps nobody waiting but its group.
//!
//! Owned by the `MemoryBudget` (budget.rs), under its lock. Invariants: a connection is in the line
//! once, and the connections of an account have their turns in order.

use std::collections::{HashMap, VecDeque};

use millrace_block::GroupId;
use millrace_machine::payload::REGION_BYTES;

/// How many size classes of buffers there are.
pub(crate) const SIZE_CLASSES: usize = 3;
/// The longest buffers of the classes but the last.
const CLASS_BYTES: [usize; SIZE_CLASSES - 1] = [256 << 10, REGION_BYTES];

/// The size class of a buffer.
#[inline]
pub(crate) fn size_class(buffer_bytes: usize) -> usize {
    CLASS_BYTES.iter().filter(|longest| buffer_bytes > **longest).count()
}

/// State of a connection whose next request waits for memory, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryWait {
    None,
    /// Buffers of the connection itself, or of its volume, to come back.
    Buffers,
    /// The connection's turn in the line.
    Queued,
}

/// Requests of a group with limits, in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct GroupAccount {
    pub(crate) group: GroupId,
    pub(crate) is_read: bool,
}

/// A connection that wants memory for its next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiter {
    /// The I/O thread.
    pub(crate) thread: usize,
    /// The connection's index there, and its serial.
    pub(crate) index: usize,
    pub(crate) serial: u64,
    /// Bytes of the buffer that it wants.
    pub(crate) bytes: usize,
    /// The account that the request counts in, if a limit of its group holds for it.
    pub(crate) account: Option<GroupAccount>,
}

impl Waiter {
    pub(crate) fn class(&self) -> usize {
        size_class(self.bytes)
    }
}

/// The line, and what the accounts hold.
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

    /// Notes what a connection in the line wants now, as limits of its group may have been set or
    /// lifted. Returns false if it is not in the line.
    pub(crate) fn renew(&mut self, waiter: Waiter) -> bool {
        let is_same =
            |one: &&mut Waiter| (one.thread, one.serial) == (waiter.thread, waiter.serial);
        self.waiters.iter_mut().find(is_same).map(|known| *known = waiter).is_some()
    }

    /// Counts a request in its account, if it has one.
    pub(crate) fn charge(&mut self, waiter: Waiter) {
        if let Some(account) = waiter.account {
            *self.account_bytes.entry(account).or_default() += waiter.bytes;
            self.all_account_bytes += waiter.bytes;
        }
    }

    /// Counts a request in its account no longer.
    pub(crate) fn credit(&mut self, account: GroupAccount, bytes: usize) {
        let held_bytes = self.account_bytes.get_mut(&account);
        *held_bytes.expect("the account was charged") -= bytes;
        self.all_account_bytes -= bytes;
    }

    /// Connections that memory would help if the line ended with `last`, in order: of each account
    /// the first, unless that is full. A connection that all accounts together have no room for
    /// comes before later ones of other accounts.
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
