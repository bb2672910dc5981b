//! How much memory for payload there is, how much each connection may have, and whose turn it is.
//!
//! One [`Budget`] for all pools of a server. It counts what they have mapped, and keeps the list of
//! connections that wait. A connection that holds nothing gets its next request's memory however
//! large that is, first come first served over all threads; while one waits, nobody maps more but
//! for a few small buffers. Above that, memory goes by demand: each connection may hold an eighth
//! of what is free, so that those that hold least get more first (dynamic thresholds).
//!
//! Little and medium first requests overtake larger ones that wait, since clients that read nothing
//! may hold those up for seconds each. What overtakers hold has an account of its own, no larger
//! than a slice, of which medium ones get half: without that end a stream of them could keep the
//! others waiting for ever. Little ones find room in their slice; for medium ones, large ones leave
//! some.
//! Called by the pools and by memory_wait.rs; calls nothing.
//!
//! Two slices of an eighth each are kept: the last for connections that hold no more than each is
//! guaranteed, the one before for those that hold little. So whatever others do, small requests go
//! on. Where memory is hardly enough for one largest request the slices are smaller, or none.
//!
//! Requests of groups with limits have parts of their own beside that (group_parts.rs).
//!
//! Lock order: the list's lock is taken alone, and for a few instructions.
//! # Source
//! Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::group_parts::GroupParts;
use crate::mailbox::lock;

/// The largest request, in bytes.
const REQUEST_BYTES_MAX: usize = 32 << 20;
/// A connection that holds at most this much, in bytes, may use the slice for little.
pub(crate) const LITTLE_BYTES: usize = 256 << 10;
/// The longest of medium first requests, in bytes.
const MEDIUM_BYTES: usize = 2 << 20;
/// A connection may hold one part in so many of what is free.
const SHARE: usize = 8;

/// A connection that waits for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiter {
    /// The I/O thread.
    pub(crate) thread: usize,
    /// The connection's index there, and its serial.
    pub(crate) index: usize,
    pub(crate) serial: u64,
}

/// How much the first request of a connection that waits takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstRequest {
    /// What fits into the slice for little.
    Little,
    /// Up to 2 MiB, which is more than the kernel's NBD client asks for at once.
    Medium,
    /// More than that, or there are no slices.
    Large,
}

/// What a connection's next request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryWait {
    /// Nothing.
    None,
    /// Some of what the connection itself holds to come back.
    Own,
    /// The volume to hold less.
    Volume,
    /// The group, which has limits, to hold less.
    Group,
    /// Nothing any more: its turn in the line of its group has come.
    GroupTurn,
    /// The connection's turn on the budget's list.
    Queued,
}

/// Bytes mapped by all pools of a server, how many may be, and the connections that wait for some.
#[derive(Debug)]
pub(crate) struct Budget {
    mapped_bytes: AtomicUsize,
    max_bytes: usize,
    /// Bytes of each of the two slices.
    slice_bytes: usize,
    /// Bytes that each connection may hold whatever others do.
    guarantee_bytes: usize,
    /// Length of the list, for a look without the lock.
    waiting: AtomicUsize,
    waiters: Mutex<VecDeque<(Waiter, FirstRequest)>>,
    /// Bytes of first requests that overtook others.
    overtaking_bytes: AtomicUsize,
    /// Bytes of regions with memory of requests that no drive answered in time.
    stuck_bytes: AtomicUsize,
    /// What requests of groups with limits hold.
    pub(crate) parts: GroupParts,
}

impl Budget {
    pub(crate) fn new(max_bytes: usize, connections_max: u32) -> Arc<Budget> {
        let spare_bytes = max_bytes.saturating_sub(REQUEST_BYTES_MAX);
        let slice_bytes = (max_bytes / 8).min(spare_bytes / 2);
        Arc::new(Budget {
            mapped_bytes: AtomicUsize::new(0),
            max_bytes,
            slice_bytes,
            guarantee_bytes: slice_bytes / (connections_max.max(1) as usize),
            waiting: AtomicUsize::new(0),
            waiters: Mutex::new(VecDeque::new()),
            overtaking_bytes: AtomicUsize::new(0),
            stuck_bytes: AtomicUsize::new(0),
            parts: GroupParts::new(max_bytes),
        })
    }

    pub(crate) fn mapped_bytes(&self) -> usize {
        // Relaxed: a figure for reports and shares.
        self.mapped_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that each connection may hold whatever others do.
    #[inline]
    pub(crate) fn guarantee_bytes(&self) -> usize {
        self.guarantee_bytes
    }

    /// Most bytes that all pools together may have mapped.
    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// The most bytes that may be mapped in all when a connection maps more and then holds
    /// `held_bytes`.
    pub(crate) fn limit(&self, held_bytes: usize) -> usize {
        match held_bytes {
            bytes if bytes <= self.guarantee_bytes => self.max_bytes,
            0..=LITTLE_BYTES => self.max_bytes - self.slice_bytes,
            _ => self.max_bytes - 2 * self.slice_bytes,
        }
    }

    /// How much a connection may hold, above its guarantee and its first request, if it is to hold
    /// `held_bytes` and `idle_bytes` of what is mapped are free for it.
    pub(crate) fn share(&self, held_bytes: usize, idle_bytes: usize) -> usize {
        (self.limit(held_bytes).saturating_sub(self.mapped_bytes()) + idle_bytes) / SHARE
    }

    /// Whether small regions may be kept while others wait for memory: the slices are for those.
    pub(crate) fn has_slices(&self) -> bool {
        self.slice_bytes >= 8 << 20
    }

    /// Counts `bytes` as mapped, unless that were more than `limit` in all.
    pub(crate) fn take(&self, bytes: usize, limit: usize) -> bool {
        let limit = limit.min(self.max_bytes);
        let more = |mapped: usize| mapped.checked_add(bytes).filter(|sum| *sum <= limit);
        // Relaxed: the counter guards no other memory.
        let taken = self.mapped_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok()
    }

    pub(crate) fn give(&self, bytes: usize) {
        // Relaxed: as in `take`; whoever waits is rung, which orders.
        self.mapped_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether somebody waits.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        // Relaxed: a hint; threads are rung when the list changes.
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// How much a first request of so many bytes takes.
    pub(crate) fn first_request(&self, bytes: usize) -> FirstRequest {
        match bytes {
            0..=LITTLE_BYTES if self.has_slices() => FirstRequest::Little,
            0..=MEDIUM_BYTES if self.has_slices() => FirstRequest::Medium,
            _ => FirstRequest::Large,
        }
    }

    /// The most bytes that may be mapped in all when a connection maps so many for its first
    /// request.
    pub(crate) fn first_limit(&self, bytes: usize) -> usize {
        let leaves = self.has_slices() && self.first_request(bytes) == FirstRequest::Large;
        self.limit(bytes) - if leaves { MEDIUM_BYTES } else { 0 }
    }

    /// Adds a connection that is not on the list to its end.
    pub(crate) fn join(&self, waiter: Waiter, request: FirstRequest) {
        let mut waiters = lock(&self.waiters);
        waiters.push_back((waiter, request));
        self.waiting.store(waiters.len(), Ordering::Relaxed); // Relaxed: as in `is_wanted`.
    }

    /// Takes a connection off the list.
    pub(crate) fn leave(&self, thread: usize, serial: u64) {
        let mut waiters = lock(&self.waiters);
        waiters.retain(|(waiter, _)| (waiter.thread, waiter.serial) != (thread, serial));
        self.waiting.store(waiters.len(), Ordering::Relaxed); // Relaxed: as in `is_wanted`.
    }

    /// The connection that is first on the list.
    pub(crate) fn first(&self) -> Option<Waiter> {
        if !self.is_wanted() {
            return None;
        }
        lock(&self.waiters).front().map(|(waiter, _)| *waiter)
    }

    /// The first connection on the list whose request is of this kind.
    pub(crate) fn first_of(&self, kind: FirstRequest) -> Option<Waiter> {
        if !self.is_wanted() {
            return None;
        }
        let waiters = lock(&self.waiters);
        waiters.iter().find(|(_, request)| *request == kind).map(|(waiter, _)| *waiter)
    }

    /// Whether a first request of so many bytes may overtake: it is no large one, and the account
    /// has room. Threads that ask at once may go over by a buffer each.
    pub(crate) fn may_overtake(&self, bytes: usize) -> bool {
        let most_bytes = match self.first_request(bytes) {
            FirstRequest::Little => self.slice_bytes,
            FirstRequest::Medium => self.slice_bytes / 2,
            FirstRequest::Large => return false,
        };
        // Relaxed: the counter guards no other memory.
        self.overtaking_bytes.load(Ordering::Relaxed) + bytes <= most_bytes
    }

    /// Counts bytes of a request that overtook others.
    pub(crate) fn begin_overtaking(&self, bytes: usize) {
        self.overtaking_bytes.fetch_add(bytes, Ordering::Relaxed); // Relaxed: as in `may_overtake`.
    }

    /// Counts them no longer.
    pub(crate) fn end_overtaking(&self, bytes: usize) {
        self.overtaking_bytes.fetch_sub(bytes, Ordering::Relaxed); // Relaxed: as in `may_overtake`.
    }

    /// Bytes of regions with memory that stuck drives keep.
    #[inline]
    pub(crate) fn stuck_bytes(&self) -> usize {
        // Relaxed: the counter guards no other memory; whoever waits is rung when it changes.
        self.stuck_bytes.load(Ordering::Relaxed)
    }

    /// The most bytes that stuck drives and a region for a first request of so many bytes may take
    /// together for further waiting to be of use: longer ones may be overtaken all the time by
    /// others, which take up a slice.
    pub(crate) fn patience_limit(&self, bytes: usize) -> usize {
        match bytes {
            0..=LITTLE_BYTES => self.first_limit(bytes),
            _ => self.first_limit(bytes).saturating_sub(self.slice_bytes),
        }
    }

    /// Whether stuck drives keep so much that those that left requests unanswered get no more.
    pub(crate) fn is_much_stuck(&self) -> bool {
        self.stuck_bytes() >= self.max_bytes / 4
    }

    /// Counts a region whose memory a stuck drive keeps.
    pub(crate) fn begin_stuck(&self, bytes: usize) {
        self.stuck_bytes.fetch_add(bytes, Ordering::Relaxed); // Relaxed: as in `stuck_bytes`.
    }

    /// Counts it no longer.
    pub(crate) fn end_stuck(&self, bytes: usize) {
        self.stuck_bytes.fetch_sub(bytes, Ordering::Relaxed); // Relaxed: as in `stuck_bytes`.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn no_pool_gets_more_than_the_limit_and_a_refusal_counts_nothing() {
        let budget = Budget::new(8 * MIB, 4);
        assert!(budget.take(8 * MIB, usize::MAX));
        assert!(!budget.take(1, usize::MAX), "the budget is spent");
        assert_eq!(budget.mapped_bytes(), 8 * MIB, "a refusal takes nothing");
        budget.give(MIB);
        assert!(!budget.take(MIB, 7 * MIB), "the caller's own limit holds too");
        assert!(budget.take(MIB, 8 * MIB));
    }

    #[test]
    fn large_holders_leave_two_slices_and_small_ones_one() {
        let budget = Budget::new(256 * MIB, 1024);
        assert_eq!(budget.guarantee_bytes(), 32 << 10);
        assert_eq!(budget.limit(32 << 10), 256 * MIB);
        assert_eq!(budget.limit(256 << 10), 224 * MIB);
        assert_eq!(budget.limit((256 << 10) + 1), 192 * MIB);
        let tight = Budget::new(32 * MIB, 1024);
        assert_eq!(tight.limit(32 * MIB), 32 * MIB, "one largest request must fit");
        assert_eq!(tight.guarantee_bytes(), 0);
    }

    #[test]
    fn share_is_an_eighth_of_what_is_free() {
        let budget = Budget::new(256 * MIB, 1024);
        assert_eq!(budget.share(MIB, 0), 24 * MIB);
        assert!(budget.take(160 * MIB, usize::MAX));
        assert_eq!(budget.share(MIB, 8 * MIB), 5 * MIB);
    }

    #[test]
    fn turns_come_in_order_over_threads_and_the_dead_leave() {
        let budget = Budget::new(8 * MIB, 4);
        assert_eq!(budget.first(), None);
        let waiter = |thread, serial| Waiter { thread, index: 0, serial };
        [waiter(0, 1), waiter(1, 1), waiter(0, 2)]
            .into_iter()
            .for_each(|waiter| budget.join(waiter, FirstRequest::Large));
        assert_eq!(budget.first(), Some(waiter(0, 1)));
        budget.leave(0, 1);
        assert_eq!(budget.first(), Some(waiter(1, 1)));
        assert_eq!(budget.first_of(FirstRequest::Little), None);
        budget.join(waiter(1, 7), FirstRequest::Little);
        budget.join(waiter(1, 8), FirstRequest::Little);
        assert_eq!(
            (budget.first(), budget.first_of(FirstRequest::Little)),
            (Some(waiter(1, 1)), Some(waiter(1, 7)))
        );
        [7, 8].into_iter().for_each(|serial| budget.leave(1, serial));
        budget.leave(0, 2);
        budget.leave(1, 1);
        assert!(!budget.is_wanted());
    }

    #[test]
    fn little_requests_overtake_as_far_as_a_slice_goes() {
        let budget = Budget::new(64 * MIB, 4);
        assert_eq!(
            [LITTLE_BYTES, MEDIUM_BYTES, MEDIUM_BYTES + 1].map(|bytes| budget.may_overtake(bytes)),
            [true, true, false]
        );
        budget.begin_overtaking(2 * MIB + 1);
        assert!(!budget.may_overtake(MEDIUM_BYTES), "medium ones have half of the slice");
        budget.end_overtaking(2 * MIB + 1);
        budget.begin_overtaking(8 * MIB - LITTLE_BYTES + 1);
        assert!(!budget.may_overtake(LITTLE_BYTES), "the slice is 8 MiB");
        budget.end_overtaking(1);
        assert!(budget.may_overtake(LITTLE_BYTES));
        let tight = Budget::new(63 * MIB, 4);
        assert!(!tight.may_overtake(4096), "there, large ones would never come");
    }

    #[test]
    fn large_first_requests_leave_room_for_a_medium_one() {
        let limits = |mib| {
            let budget = Budget::new(mib * MIB, 1024);
            [MEDIUM_BYTES, 32 * MIB].map(|bytes| budget.first_limit(bytes) / MIB)
        };
        assert_eq!([256, 64, 33].map(limits), [[192, 190], [48, 46], [32, 32]]);
    }

    #[test]
    fn slices_are_for_small_regions_from_8_mib_on() {
        let found = [63, 64, 256].map(|mib| Budget::new(mib * MIB, 1).has_slices());
        assert_eq!(found, [false, true, true]);
        let found = [63, 256].map(|mib| Budget::new(mib * MIB, 1).max_bytes());
        assert_eq!(found, [63 * MIB, 256 * MIB]);
        // Of 40 MiB a largest request leaves 8, half of that for each slice.
        assert_eq!(Budget::new(40 * MIB, 1).guarantee_bytes(), 4 * MIB);
    }
}
