//! Budget of payload memory for all connections of a server, and the rules for sharing it.
//!
//! One [`MemoryBudget`] counts the regions that all pools of a server have mapped.
//! - A quarter of the memory is divided equally into *windows*, one for each of the maximum number
//!   of connections. A request within its connection's window never waits.
//! - The *shared part* is the rest, first come, first served over all threads (waiting_line.rs). A
//!   connection that holds no memory gets some for its next request, whatever its size. A
//!   connection that holds some may have up to an eighth of what is free (dynamic thresholds), or
//!   waits until its own buffers are freed.
//! - Buffers of a *size class* leave a sixteenth of the memory to each smaller class. Small
//!   requests may pass larger ones that wait, since clients that read nothing may delay the larger
//!   ones for seconds, but only if the larger ones still fit beside all smaller ones.
//! - Memory that *stuck* drives may still use, because they have not answered a request, is
//!   unavailable. A request that can never fit beside that memory is refused.
//!
//! If the memory hardly suffices for one request of the largest size, windows and reserves shrink
//! or vanish. Called by the pools, memory_wait.rs and memory_retry.rs.
//!
//! Lock order: the lock is taken alone and briefly. A request does not take it while the waiting
//! line is empty, no limit applies to its group and its thread has a region with room.
//! # Source
//! Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use millrace_machine::payload::REGION_BYTES;

use super::waiting_line::{AccountLimits, MemoryWaiter, SIZE_CLASSES, WaitingLine, size_class};
use crate::mailbox::lock;

const REQUEST_BYTES_MAX: usize = 32 << 20;
/// Index of the last entry of `RegionBytes`: the memory that drives may still use after a timeout.
pub(crate) const STUCK: usize = SIZE_CLASSES;

/// Mapped bytes of each size class. The last entry counts the regions that drives may still use
/// after a timeout; no other entry counts these.
type RegionBytes = [usize; SIZE_CLASSES + 1];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryPart {
    /// All payload memory, including memory that is reserved for connections. Available only to a
    /// request that fits into its connection's window (the memory reserved for that connection).
    Window,
    /// Payload memory that is not reserved for connections.
    Shared,
}

#[derive(Debug, Default)]
pub(crate) struct MemoryBudget {
    max_bytes: usize,
    /// Payload memory, in bytes, reserved for each size class. Requests of larger size classes must
    /// leave this memory free.
    kept_bytes: usize,
    /// Payload memory reserved for all connections together, in bytes. Each connection's equal part
    /// is its window.
    windows_bytes: usize,
    /// Size of one window in bytes: the memory that is reserved for one connection.
    pub(crate) window_bytes: usize,
    /// Copy of the sum of `BudgetState::mapped`, readable without the lock.
    mapped_bytes: AtomicUsize,
    /// Copy of the number of connections in the waiting line, readable without the lock.
    waiting: AtomicUsize,
    /// True if mapped memory or the waiting line has changed since the other threads were last
    /// woken.
    has_news: AtomicBool,
    state: Mutex<BudgetState>,
}

#[derive(Debug, Default)]
struct BudgetState {
    mapped: RegionBytes,
    line: WaitingLine,
}

impl MemoryBudget {
    pub(crate) fn new(max_bytes: usize, connections_max: u32) -> Arc<MemoryBudget> {
        let spare_bytes = max_bytes.saturating_sub(REQUEST_BYTES_MAX);
        let kept_bytes = (max_bytes / 16).min(spare_bytes / 8);
        let windows_bytes = 4 * kept_bytes;
        let window_bytes = windows_bytes / (connections_max.max(1) as usize);
        let budget = MemoryBudget::default();
        Arc::new(MemoryBudget { max_bytes, kept_bytes, windows_bytes, window_bytes, ..budget })
    }

    fn update<R>(&self, change: impl FnOnce(&mut BudgetState) -> R) -> R {
        let mut state = lock(&self.state);
        let result = change(&mut state);
        // Relaxed: `mapped_bytes` and `waiting` are hints. A thread that acts on such a hint takes
        // the lock, or is woken when the hint changes.
        self.mapped_bytes.store(state.mapped.iter().sum(), Ordering::Relaxed);
        self.waiting.store(state.line.waiters.len(), Ordering::Relaxed);
        result
    }

    pub(crate) fn change_line(&self, change: impl FnOnce(&mut WaitingLine)) {
        self.update(|state| change(&mut state.line));
        self.announce();
    }

    /// Records a change of mapped memory or of the waiting line. If a connection waits for memory,
    /// the next caller of `take_news` then wakes the other threads.
    pub(crate) fn announce(&self) {
        // Relaxed: `has_news` publishes no other data. The calling thread checks its own
        // connections, and the threads that it wakes take the lock.
        self.has_news.store(true, Ordering::Relaxed);
    }

    pub(crate) fn take_news(&self) -> bool {
        self.has_news.swap(false, Ordering::Relaxed) // Relaxed: as in `announce`.
    }

    #[inline]
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.mapped_bytes.load(Ordering::Relaxed) // Relaxed: as in `update`.
    }

    #[inline]
    pub(crate) fn free_bytes(&self) -> usize {
        self.max_bytes.saturating_sub(self.mapped_bytes())
    }

    /// Returns true if all free payload memory is reserved for connections.
    #[inline]
    pub(crate) fn is_overfull(&self) -> bool {
        self.free_bytes() < self.windows_bytes
    }

    /// Returns the limit, in bytes, for the memory of a connection that needs more than its window
    /// (the memory reserved for each connection). If a connection holds no memory yet, its next
    /// request may exceed the limit. `idle_bytes` is the mapped but unused memory of the thread's
    /// pool.
    #[inline]
    pub(crate) fn share_bytes(&self, idle_bytes: usize) -> usize {
        (self.free_bytes().saturating_sub(self.windows_bytes) + idle_bytes) / 8
    }

    pub(crate) fn unmap(&self, class: usize, region_bytes: usize) {
        self.update(|state| state.mapped[class] -= region_bytes);
    }

    pub(crate) fn recount(&self, region_bytes: usize, from: usize, to: usize) {
        self.update(|state| {
            state.mapped[from] -= region_bytes;
            state.mapped[to] += region_bytes;
        });
        self.announce();
    }

    pub(crate) fn is_much_stuck(&self) -> bool {
        lock(&self.state).mapped[STUCK] >= self.max_bytes / 4
    }

    pub(crate) fn refusal(&self, bytes: usize, part: MemoryPart) -> Option<&'static str> {
        let mut mapped = RegionBytes::default();
        if !self.has_room(mapped, bytes, part) {
            return Some("longer than the server's memory-max allows");
        }
        mapped[STUCK] = lock(&self.state).mapped[STUCK];
        let is_held = !self.has_room(mapped, bytes, part);
        is_held.then_some("drives that do not answer hold too much of the server's memory-max")
    }

    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0 // Relaxed: as in `update`.
    }

    pub(crate) fn is_wanted(&self) -> bool {
        let is_wanted = || lock(&self.state).line.contenders(self.limits(), None).next().is_some();
        self.has_waiters() && is_wanted()
    }

    fn limits(&self) -> AccountLimits {
        AccountLimits { max_bytes: self.max_bytes, kept_bytes: self.kept_bytes }
    }

    pub(crate) fn is_own_account_full(&self, waiter: &MemoryWaiter) -> bool {
        waiter.account.is_some() && lock(&self.state).line.is_own_full(self.limits(), waiter)
    }

    pub(crate) fn waiting_for_memory(&self) -> usize {
        let state = lock(&self.state);
        let is_short = |waiter: &&MemoryWaiter| !state.line.is_own_full(self.limits(), waiter);
        state.line.waiters.iter().filter(is_short).count()
    }

    pub(crate) fn next(&self, class: usize) -> Option<MemoryWaiter> {
        self.next_of(&lock(&self.state), class, None)
    }

    /// Charges a request to its account, and counts `region_bytes` as mapped. Returns false if
    /// other connections come first in the waiting line, or if there is no space.
    pub(crate) fn admit(
        &self,
        waiter: MemoryWaiter,
        part: MemoryPart,
        region_bytes: usize,
    ) -> bool {
        let is_admitted = self.update(|state| {
            let last = if state.line.renew(waiter) { None } else { Some(waiter) };
            let is_turn = part == MemoryPart::Window
                || self.next_of(state, waiter.class(), last) == Some(waiter);
            if !is_turn || region_bytes > 0 && !self.has_room(state.mapped, waiter.bytes, part) {
                return false;
            }
            state.mapped[waiter.class()] += region_bytes;
            state.line.charge(waiter);
            true
        });
        if is_admitted && waiter.account.is_some() {
            // The request may have filled its memory account (a group's reads or writes). The
            // waiting line then skips further connections of that account. So the next connection
            // in the line may belong to another thread, which must be woken.
            self.announce();
        }
        is_admitted
    }

    /// Undoes `admit`, because the kernel refused to map the memory.
    pub(crate) fn revoke(&self, waiter: MemoryWaiter, region_bytes: usize) {
        self.update(|state| {
            state.mapped[waiter.class()] -= region_bytes;
            if let Some(account) = waiter.account {
                state.line.credit(account, waiter.bytes);
            }
        });
    }

    /// Returns the connection that gets the next buffer of size class `class`. `last`, if given, is
    /// added to the end of the waiting line. A connection may overtake another that waits for a
    /// larger buffer, if the larger buffer still fits afterwards. For this check, memory held by
    /// the larger buffer's size class, and by still larger classes, counts as free.
    fn next_of(
        &self,
        state: &BudgetState,
        class: usize,
        last: Option<MemoryWaiter>,
    ) -> Option<MemoryWaiter> {
        let may_pass = |larger: &MemoryWaiter| {
            let mut mapped = state.mapped;
            mapped[class] += REGION_BYTES;
            mapped[larger.class()..STUCK].fill(0);
            self.has_room(mapped, larger.bytes, MemoryPart::Shared)
        };
        let mut contenders = state.line.contenders(self.limits(), last);
        let first = contenders.find(|one| one.class() <= class || !may_pass(one))?;
        (first.class() == class).then_some(first)
    }

    fn has_room(&self, mut mapped: RegionBytes, bytes: usize, part: MemoryPart) -> bool {
        let mut left_bytes = 0;
        if part == MemoryPart::Shared {
            left_bytes = self.windows_bytes;
            let smaller = &mut mapped[..size_class(bytes)];
            smaller.iter_mut().for_each(|held| *held = self.kept_bytes.max(*held));
        }
        mapped.iter().sum::<usize>() + left_bytes + bytes.max(REGION_BYTES) <= self.max_bytes
    }
}

#[cfg(test)]
mod tests;
