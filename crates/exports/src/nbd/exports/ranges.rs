//! Lock table for the sector ranges of a volume that are being written.
//!
//! To write a part of a block, the server reads the block, changes it and writes it back. Such a
//! write locks its blocks exclusively, so that no other write to them is lost.
//!
//! Writes take locks only after the first of these events:
//! - A client writes partial blocks.
//! - A client leaves while its writes are in flight.
//! - A client gets no answer to a write in time.
//!
//! Then each I/O thread that has opened the volume adds its writes in flight to the table and calls
//! `confirm`. From then on, the thread takes a lock for each new write. Exclusive locks are granted
//! only after all these threads have called `confirm`.
//!
//! Invariants: overlapping ranges are held at the same time only by writers of whole blocks.
//! Waiting writes queue in order, and none overtakes another that waits for the same block.
//! Discards and zeroes count as writes. Writes of virtual machines to the volume are not tracked.
//!
//! Lock order: the table's lock is taken alone.

use std::ops::Range;
use std::sync::Mutex;

use millrace_block::Sector;

use crate::mailbox::lock;

pub(crate) type RangeHolder = (usize, u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RangeMode {
    /// Lock for a write of whole blocks. Several such locks may overlap.
    Shared,
    /// Lock for a write of partial blocks, or for a write in flight after `fence`. While a write
    /// holds this lock, no overlapping lock is granted.
    Exclusive,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct RangeEntry {
    key: RangeHolder,
    sectors: Range<Sector>,
    mode: RangeMode,
    is_held: bool,
}

impl RangeEntry {
    fn conflicts(&self, other: &RangeEntry) -> bool {
        let overlaps =
            self.sectors.start < other.sectors.end && other.sectors.start < self.sectors.end;
        overlaps && (self.mode == RangeMode::Exclusive || other.mode == RangeMode::Exclusive)
    }
}

#[derive(Debug, Default)]
struct RangeTable {
    /// True if all writes to the volume take range locks. False until the first event that needs
    /// locks (see the file header).
    started: bool,
    /// Range locks that writes hold or wait for, in the order in which they were requested. A lock
    /// waits for earlier locks that conflict. An exclusive lock also waits until each I/O thread
    /// has added its writes in flight to this list (`unconfirmed` is 0).
    entries: Vec<RangeEntry>,
    /// For each I/O thread, the IDs of writes that waited for a range lock and hold the lock now.
    ready: Vec<Vec<u32>>,
    /// Number of I/O threads that have opened the volume and must still call `confirm`.
    unconfirmed: usize,
}

impl RangeTable {
    fn is_free(&self, at: usize) -> bool {
        let entry = &self.entries[at];
        let is_early = entry.mode == RangeMode::Exclusive && self.unconfirmed > 0;
        !is_early && !self.entries[..at].iter().any(|other| other.conflicts(entry))
    }

    fn settle(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.entries.len() {
            if !self.entries[at].is_held && self.is_free(at) {
                self.entries[at].is_held = true;
                let (thread, id) = self.entries[at].key;
                self.ready[thread].push(id);
                any = true;
            }
        }
        any
    }
}

#[derive(Debug)]
pub(crate) struct RangeLocks(Mutex<RangeTable>);

impl RangeLocks {
    pub(crate) fn new(threads: usize) -> RangeLocks {
        let ready = vec![Vec::new(); threads];
        RangeLocks(Mutex::new(RangeTable { ready, ..RangeTable::default() }))
    }

    pub(crate) fn enter_lane(&self) -> bool {
        let mut table = lock(&self.0);
        table.unconfirmed += usize::from(!table.started);
        table.started
    }

    /// Makes all writes take range locks. Returns true at the first call.
    pub(crate) fn start(&self) -> bool {
        !std::mem::replace(&mut lock(&self.0).started, true)
    }

    /// Returns true if all writes to the volume now need range locks.
    pub(crate) fn is_started(&self) -> bool {
        lock(&self.0).started
    }

    /// Adds the lock of a write of whole blocks that was already in flight when locking began. Call
    /// this before `confirm`, because exclusive locks may be granted after `confirm`.
    pub(crate) fn adopt(&self, key: RangeHolder, sectors: Range<Sector>) {
        let entry = RangeEntry { key, sectors, mode: RangeMode::Shared, is_held: true };
        lock(&self.0).entries.insert(0, entry);
    }

    /// Confirms that the table contains all writes that the calling thread has in flight. After all
    /// threads have confirmed, exclusive locks may be granted. Returns true if a waiting write got
    /// its lock. Each thread that opened the volume before `start` calls `confirm` once: after
    /// `start`, or when the thread closes the volume.
    pub(crate) fn confirm(&self) -> bool {
        let mut table = lock(&self.0);
        table.unconfirmed -= 1;
        table.settle()
    }

    /// Requests the lock of a range for a write. Returns false if the write has to wait;
    /// `take_ready` returns the write's ID once it holds the lock.
    pub(crate) fn claim(&self, key: RangeHolder, sectors: Range<Sector>, mode: RangeMode) -> bool {
        let mut table = lock(&self.0);
        let at = table.entries.len();
        table.entries.push(RangeEntry { key, sectors, mode, is_held: false });
        let is_held = table.is_free(at);
        table.entries[at].is_held = is_held;
        is_held
    }

    /// Releases the range that a write holds or waits for. Returns true if a waiting write was
    /// granted its range.
    pub(crate) fn release(&self, key: RangeHolder) -> bool {
        let mut table = lock(&self.0);
        table.entries.retain(|entry| entry.key != key);
        table.ready[key.0].retain(|id| *id != key.1);
        table.settle()
    }

    /// Makes the lock of a write in flight exclusive, so that newer writes to the same sectors
    /// wait. Called if the write's client has left or is about to get an error. A drive may still
    /// execute the write, and must not overwrite newer data with it. Returns false if an I/O thread
    /// has not added its writes in flight to the lock table yet. Until then, newer writes of that
    /// thread do not wait.
    pub(crate) fn fence(&self, key: RangeHolder) -> bool {
        let mut table = lock(&self.0);
        let own = table.entries.iter_mut().filter(|entry| entry.key == key);
        own.for_each(|entry| entry.mode = RangeMode::Exclusive);
        table.started && table.unconfirmed == 0
    }

    pub(crate) fn take_ready(&self, thread: usize, into: &mut Vec<u32>) {
        into.append(&mut lock(&self.0).ready[thread]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates the lock table of a volume of which `threads` threads have a lane.
    fn ranges(threads: usize) -> RangeLocks {
        let ranges = RangeLocks::new(threads);
        (0..threads).for_each(|_| assert!(!ranges.enter_lane()));
        ranges
    }

    fn ready(ranges: &RangeLocks, thread: usize) -> Vec<u32> {
        let mut ready = Vec::new();
        ranges.take_ready(thread, &mut ready);
        ready
    }

    #[test]
    fn range_is_exclusive_only_after_all_threads_entered_theirs() {
        let ranges = ranges(2);
        ranges.start();
        assert!(!ranges.confirm());
        assert!(
            !ranges.claim((0, 1), 0..8, RangeMode::Exclusive),
            "thread 1 may have a write there"
        );
        ranges.adopt((1, 7), 4..12);
        assert!(!ranges.confirm(), "thread 1 had a write there");
        assert!(ranges.release((1, 7)));
        assert_eq!(ready(&ranges, 0), [1]);
        assert_eq!(ready(&ranges, 1), [0; 0]);
    }

    #[test]
    fn only_those_wait_who_overlap_and_in_their_order() {
        let ranges = ranges(1);
        ranges.confirm();
        assert!(ranges.claim((0, 1), 0..8, RangeMode::Shared));
        assert!(
            ranges.claim((0, 2), 4..12, RangeMode::Shared),
            "writers of whole blocks share the range"
        );
        assert!(!ranges.claim((0, 3), 8..16, RangeMode::Exclusive));
        assert!(ranges.claim((0, 4), 16..24, RangeMode::Exclusive), "it overlaps nobody");
        assert!(
            !ranges.claim((0, 5), 12..16, RangeMode::Shared),
            "a later claim must not overtake a waiting one"
        );
        assert!(!ranges.release((0, 1)));
        assert!(ranges.release((0, 2)));
        assert_eq!(ready(&ranges, 0), [3]);
        assert!(ranges.release((0, 3)));
        assert_eq!(ready(&ranges, 0), [5]);
    }

    #[test]
    fn fenced_write_holds_up_later_ones_of_its_blocks() {
        let ranges = ranges(2);
        assert!(!ranges.fence((0, 1)), "other threads do not enter their writes yet");
        ranges.start();
        ranges.adopt((0, 1), 0..8);
        ranges.confirm();
        assert!(!ranges.fence((0, 1)), "thread 1 may have a write there");
        ranges.confirm();
        assert!(ranges.fence((0, 1)));
        assert!(!ranges.claim((1, 2), 0..8, RangeMode::Shared));
        assert!(ranges.claim((1, 3), 8..16, RangeMode::Shared), "it is apart");
        assert!(ranges.release((0, 1)));
        assert_eq!(ready(&ranges, 1), [2]);
    }

    #[test]
    fn whoever_gives_up_waiting_lets_those_behind_go_on() {
        let ranges = ranges(1);
        ranges.confirm();
        assert!(ranges.claim((0, 1), 0..8, RangeMode::Exclusive));
        assert!(!ranges.claim((0, 2), 0..16, RangeMode::Exclusive));
        assert!(!ranges.claim((0, 3), 8..16, RangeMode::Shared));
        assert!(ranges.release((0, 2)));
        assert_eq!(ready(&ranges, 0), [3]);
    }

    #[test]
    fn touching_ranges_are_apart_and_shared_sectors_are_not() {
        let is_held = true;
        let entry = |sectors, mode| RangeEntry { key: (0, 0), sectors, mode, is_held };
        let all = [RangeMode::Shared, RangeMode::Exclusive];
        for (other, overlaps) in [
            (0..8, false),
            (0..9, true),
            (8..16, true),
            (10..11, true),
            (15..20, true),
            (16..20, false),
            (0..30, true),
        ] {
            for (one, two) in all.into_iter().flat_map(|one| all.map(|two| (one, two))) {
                let found = entry(8..16, one).conflicts(&entry(other.clone(), two));
                let alone = [one, two].contains(&RangeMode::Exclusive);
                assert_eq!(found, overlaps && alone, "{other:?}");
            }
        }
    }

    #[test]
    fn whoever_waits_comes_once_and_only_to_its_own_thread() {
        let ranges = ranges(2);
        assert!(!ranges.is_started());
        ranges.start();
        assert!(ranges.is_started());
        assert!(!ranges.confirm() && !ranges.confirm());
        assert!(ranges.claim((0, 1), 0..8, RangeMode::Exclusive));
        assert!(!ranges.claim((1, 2), 0..8, RangeMode::Exclusive));
        assert!(!ranges.claim((1, 3), 4..8, RangeMode::Exclusive));
        assert!(ranges.claim((0, 4), 20..28, RangeMode::Shared), "it is apart");
        assert!(!ranges.release((0, 4)));
        assert!(ranges.release((0, 1)));
        assert_eq!((ready(&ranges, 0), ready(&ranges, 1)), (vec![], vec![2]));
        assert_eq!(ready(&ranges, 1), [0; 0]);
        assert!(ranges.release((1, 2)), "the next waiter gets the range");
        assert!(!ranges.release((1, 3)), "the ticket gave up before it learned of its grant");
        assert_eq!(ready(&ranges, 1), [0; 0]);
        assert!(ranges.claim((0, 5), 0..100, RangeMode::Exclusive), "no range is held");
    }

    #[test]
    fn others_stay_ready_when_one_gives_up() {
        let ranges = ranges(1);
        ranges.confirm();
        assert!(ranges.claim((0, 1), 0..8, RangeMode::Exclusive));
        assert!(!ranges.claim((0, 2), 0..4, RangeMode::Exclusive));
        assert!(!ranges.claim((0, 3), 4..8, RangeMode::Exclusive));
        assert!(!ranges.claim((0, 4), 0..2, RangeMode::Exclusive));
        assert!(ranges.release((0, 1)));
        assert!(!ranges.release((0, 3)));
        assert_eq!(ready(&ranges, 0), [2]);
        assert!(ranges.release((0, 2)));
        assert_eq!(ready(&ranges, 0), [4]);
    }

    #[test]
    fn lanes_that_come_or_go_hold_up_no_writer() {
        let ranges = ranges(2);
        ranges.start();
        assert!(ranges.enter_lane(), "a third thread enters its writes from the first one on");
        assert!(
            !ranges.claim((0, 1), 0..8, RangeMode::Exclusive),
            "two threads may have writes in the range"
        );
        assert!(!ranges.confirm());
        assert!(ranges.confirm(), "the other thread closes its lane without a write");
        assert_eq!(ready(&ranges, 0), [1]);
        assert!(ranges.claim((0, 2), 8..16, RangeMode::Exclusive));
    }
}
