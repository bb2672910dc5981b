//! The memory for payload of all connections: how much there is, and for whom.
//!
//! One [`MemoryBudget`] for all pools of a server, which counts the regions that they map.
//! - The *windows* have a quarter of the memory, in equal parts for as many connections as there
//!   may be. A request within its connection's window waits for nobody.
//! - The *shared part* is the rest, first come, first served over all threads (waiting_line.rs). A
//!   connection that holds nothing gets memory for its next request whatever that takes. One that
//!   holds some may have an eighth of what is free (dynamic thresholds), or waits for its own.
//! - Buffers of a *size class* leave a sixteenth of the memory to those of each smaller class. A
//!   request passes larger ones that wait, as clients that read nothing may hold these up for
//!   seconds, but only if these still fit beside all smaller ones.
//! - What *stuck* drives keep is missing. A request that can no longer fit is refused.
//!
//! Where memory is hardly enough for one largest request, windows and what is left to smaller
//! classes are less, or nothing. Called by the pools, memory_wait.rs and memory_retry.rs.
//!
//! Lock order: the lock is taken alone, for a few instructions. Nobody takes it for a request while
//! the line is empty, no limit of its group holds and the thread has a region with room.
//! # Source
//! Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use millrace_machine::payload::REGION_BYTES;

use super::waiting_line::{SIZE_CLASSES, Waiter, WaitingLine, size_class};
use crate::mailbox::lock;

/// The largest request, in bytes.
const REQUEST_BYTES_MAX: usize = 32 << 20;
/// The place of what stuck drives keep among the counts of regions.
pub(crate) const STUCK: usize = SIZE_CLASSES;

/// Bytes of regions: of each size class those that no stuck drive keeps, and all others.
type RegionBytes = [usize; SIZE_CLASSES + 1];

/// The part of the memory that a request may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryPart {
    /// All of it: the request is within its connection's window.
    Window,
    /// All but the windows.
    Shared,
}

/// Bytes mapped by all pools of a server, how many may be, and the connections that wait for some.
#[derive(Debug, Default)]
pub(crate) struct MemoryBudget {
    max_bytes: usize,
    /// Bytes that buffers of a size class leave to each smaller class.
    kept_bytes: usize,
    /// Bytes of all windows, and of each: what a connection may hold whatever others do.
    windows_bytes: usize,
    pub(crate) window_bytes: usize,
    /// Bytes mapped and length of the line, for looks without the lock.
    mapped_bytes: AtomicUsize,
    waiting: AtomicUsize,
    /// Something changed for those that wait, and no thread has rung the others since.
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
        // Relaxed: hints. Whoever acts on one takes the lock, or is rung once it changes.
        self.mapped_bytes.store(state.mapped.iter().sum(), Ordering::Relaxed);
        self.waiting.store(state.line.waiters.len(), Ordering::Relaxed);
        result
    }

    /// Changes the line or its accounts, which connections may wait for.
    pub(crate) fn change_line(&self, change: impl FnOnce(&mut WaitingLine)) {
        self.update(|state| change(&mut state.line));
        self.announce();
    }

    /// Has a thread ring the others at the end of its turn, if somebody waits for memory then.
    pub(crate) fn announce(&self) {
        // Relaxed: the thread that announces looks itself, and whoever is rung takes the lock.
        self.has_news.store(true, Ordering::Relaxed);
    }

    /// Returns true if something was announced since the last call of any thread.
    pub(crate) fn take_news(&self) -> bool {
        self.has_news.swap(false, Ordering::Relaxed) // Relaxed: as in `announce`.
    }

    #[inline]
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.mapped_bytes.load(Ordering::Relaxed) // Relaxed: as in `update`.
    }

    /// Bytes that nobody has mapped.
    #[inline]
    pub(crate) fn free_bytes(&self) -> usize {
        self.max_bytes.saturating_sub(self.mapped_bytes())
    }

    /// Returns true if more is mapped than the shared part: what is free there is for windows.
    #[inline]
    pub(crate) fn is_overfull(&self) -> bool {
        self.free_bytes() < self.windows_bytes
    }

    /// How much a connection may hold above its window and its first request, if `idle_bytes` of
    /// what is mapped are free for it.
    #[inline]
    pub(crate) fn share_bytes(&self, idle_bytes: usize) -> usize {
        (self.free_bytes().saturating_sub(self.windows_bytes) + idle_bytes) / 8
    }

    /// Counts a region no longer.
    pub(crate) fn unmap(&self, class: usize, region_bytes: usize) {
        self.update(|state| state.mapped[class] -= region_bytes);
    }

    /// Counts a region in another place: a stuck drive keeps it now, or keeps it no longer.
    pub(crate) fn recount(&self, region_bytes: usize, from: usize, to: usize) {
        self.update(|state| {
            state.mapped[from] -= region_bytes;
            state.mapped[to] += region_bytes;
        });
        self.announce();
    }

    /// Returns true if stuck drives keep so much that volumes with requests unanswered get no more.
    pub(crate) fn is_much_stuck(&self) -> bool {
        lock(&self.state).mapped[STUCK] >= self.max_bytes / 4
    }

    /// The reason to refuse a request for which there is no memory, or none if there will be some
    /// once all others have given back theirs.
    pub(crate) fn refusal(&self, bytes: usize, part: MemoryPart) -> Option<&'static str> {
        let mut mapped = RegionBytes::default();
        if !self.has_room(mapped, bytes, part) {
            return Some("longer than the server's memory-max allows");
        }
        mapped[STUCK] = lock(&self.state).mapped[STUCK];
        let is_held = !self.has_room(mapped, bytes, part);
        is_held.then_some("drives that do not answer hold too much of the server's memory-max")
    }

    /// Returns true if somebody waits.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0 // Relaxed: as in `update`.
    }

    /// Returns true if somebody waits whom memory would help.
    pub(crate) fn is_wanted(&self) -> bool {
        let is_wanted = || lock(&self.state).line.contenders(self.max_bytes, None).next().is_some();
        self.has_waiters() && is_wanted()
    }

    /// The connection that has the next turn, of those that want buffers of a size class.
    pub(crate) fn next(&self, class: usize) -> Option<Waiter> {
        self.next_of(&lock(&self.state), class, None)
    }

    /// Counts a connection's request in its account, and a new region of `region_bytes` (or 0) for
    /// it. Returns false if it is not the connection's turn, or there is no room for the region.
    pub(crate) fn admit(&self, waiter: Waiter, part: MemoryPart, region_bytes: usize) -> bool {
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
            // Where all accounts are full now, this group keeps no others waiting any more.
            self.announce();
        }
        is_admitted
    }

    /// Takes back what `admit` has counted, as the system has no memory.
    pub(crate) fn revoke(&self, waiter: Waiter, region_bytes: usize) {
        self.update(|state| {
            state.mapped[waiter.class()] -= region_bytes;
            if let Some(account) = waiter.account {
                state.line.credit(account, waiter.bytes);
            }
        });
    }

    /// The first contender of a class in a line that ends with `last`, if those before it want
    /// larger buffers that would still fit beside one more region of that class.
    fn next_of(&self, state: &BudgetState, class: usize, last: Option<Waiter>) -> Option<Waiter> {
        let may_pass = |larger: &Waiter| {
            let mut mapped = state.mapped;
            mapped[class] += REGION_BYTES;
            mapped[larger.class()..STUCK].fill(0);
            self.has_room(mapped, larger.bytes, MemoryPart::Shared)
        };
        let mut contenders = state.line.contenders(self.max_bytes, last);
        let first = contenders.find(|one| one.class() <= class || !may_pass(one))?;
        (first.class() == class).then_some(first)
    }

    /// Returns true if a part of the memory has room for the region of one more buffer.
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
