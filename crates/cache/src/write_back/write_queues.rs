//! `WriteQueues`: write-back I/Os by drive, both those ready to be sent and those in flight.
//!
//! Each drive has a limited number of slots for writes in flight. A slow or stuck drive occupies
//! only its own slots, and writes to other drives overtake its writes. Writes that span several
//! drives have a queue of their own, with as many slots as all drives together.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::cache::failed_writes::{DriveProgress, NO_MEMBER};

/// Time without a completion after which a drive with writes in flight counts as stuck, in
/// nanoseconds.
pub(crate) const STUCK_NS: u64 = 1_000_000_000;

pub(crate) struct WriteQueues {
    /// A queue for each drive. The last queue is for writes that span several drives.
    of: Box<[WriteQueue]>,
    places: usize,
    lists: WriteLists,
    first: usize,
}

/// Settings for the write-back I/Os of a flusher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlusherConfig {
    /// Maximum number of writes in flight to each drive, at least 1.
    pub drive_writes: u32,
    /// Order in which writes are sent.
    pub lists: WriteLists,
}

impl FlusherConfig {
    /// Returns the depth of the flusher's channel for a volume of this many drives. Half of the
    /// depth is for writes to single drives, the other half for writes that span drives.
    #[must_use]
    pub fn channel_depth(&self, drives: usize) -> u32 {
        (2 * drives as u32).saturating_mul(self.drive_writes).clamp(1, 65_536)
    }
}

/// Order in which a flusher sends its writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WriteLists {
    /// Each drive has its own list of waiting writes, so no write waits for another drive.
    PerDrive,
    /// One list of waiting writes for all drives, like the kernel's `bdi_writeback`. After a write
    /// over several drives has failed, or a drive was stuck, each drive gets its own list.
    Shared,
}

#[derive(Default)]
struct WriteQueue {
    ready: VecDeque<usize>,
    inside: usize,
    pages: usize,
    /// True if a write of this queue has ended since the last call of `turn`.
    has_moved: bool,
    /// Time of the last call of `turn` that saw progress. Progress means that a write has ended
    /// since the previous call, or that no write is in flight.
    moved_ns: u64,
    /// True if the flusher's last search for dirty pages has added writes to this queue.
    is_fed: bool,
    is_stuck: bool,
    /// Number of pages in the queue's waiting writes and writes in flight, if the drive is stuck
    /// (no completion for `STUCK_NS`). Otherwise 0.
    held: usize,
}

impl WriteQueues {
    pub(crate) fn new(drives: usize, config: FlusherConfig) -> WriteQueues {
        let of = (0..=drives).map(|_| WriteQueue::default()).collect();
        let places = config.drive_writes.max(1) as usize;
        WriteQueues { of, places, lists: config.lists, first: 0 }
    }

    /// Gives each drive its own list of writes, so that a stuck drive delays no other drive.
    pub(crate) fn divide(&mut self) {
        self.lists = WriteLists::PerDrive;
    }

    fn drives(&self) -> usize {
        self.of.len() - 1
    }

    fn places(&self, queue: usize) -> usize {
        if queue < self.drives() { self.places } else { self.places * self.drives() }
    }

    fn queue_mut(&mut self, member: u16) -> &mut WriteQueue {
        let at = if self.is_shared(member) { self.drives() } else { member.into() };
        &mut self.of[at]
    }

    pub(crate) fn is_divided(&self) -> bool {
        self.drives() > 1 && self.lists == WriteLists::PerDrive
    }

    pub(crate) fn is_shared(&self, member: u16) -> bool {
        member == NO_MEMBER || self.lists == WriteLists::Shared
    }

    pub(crate) fn push(&mut self, member: u16, number: usize, pages: usize) {
        let queue = self.queue_mut(member);
        queue.ready.push_back(number);
        (queue.pages, queue.is_fed) = (queue.pages + pages, true);
    }

    /// Returns the indexes of the queues, in the order in which they may send writes. Each call
    /// begins with another queue.
    pub(crate) fn turn(&mut self, now_ns: u64) -> impl Iterator<Item = usize> + use<> {
        for queue in &mut self.of {
            if core::mem::take(&mut queue.has_moved) || queue.inside == 0 {
                queue.moved_ns = now_ns;
            }
        }
        let (first, count) = (self.first, self.of.len());
        self.first = (first + 1) % count;
        (first..count).chain(0..first)
    }

    pub(crate) fn next(&mut self, queue: usize) -> Option<usize> {
        let places = self.places(queue);
        let queue = &mut self.of[queue];
        if queue.inside >= places {
            return None;
        }
        let number = queue.ready.pop_front()?;
        queue.inside += 1;
        Some(number)
    }

    /// Undoes a call of `next` that returned write `number`, for example if the channel is full.
    pub(crate) fn push_back(&mut self, queue: usize, number: usize) {
        let queue = &mut self.of[queue];
        queue.inside -= 1;
        queue.ready.push_front(number);
    }

    pub(crate) fn ended(&mut self, member: u16, pages: usize) {
        let queue = self.queue_mut(member);
        (queue.inside, queue.pages) = (queue.inside - 1, queue.pages - pages);
        queue.has_moved = true;
    }

    pub(crate) fn take_ready(&mut self) -> Vec<usize> {
        self.of.iter_mut().flat_map(|queue| queue.ready.drain(..)).collect()
    }

    /// Subtracts the pages of a write from its queue's page count, after `take_ready` has removed
    /// the write.
    pub(crate) fn forget(&mut self, member: u16, pages: usize) {
        self.queue_mut(member).pages -= pages;
    }

    /// Updates which drives are stuck. Calls `note` for each stuck drive and for each drive that
    /// has recovered. Returns the change of the number of pages that wait for stuck drives.
    pub(crate) fn held(&mut self, now_ns: u64, mut note: impl FnMut(usize, DriveProgress)) -> i64 {
        let (drives, mut more) = (self.drives(), 0);
        for (drive, queue) in self.of[..drives].iter_mut().enumerate() {
            let holds = queue.inside > 0 && now_ns >= queue.moved_ns.saturating_add(STUCK_NS);
            if core::mem::replace(&mut queue.is_stuck, holds) || holds {
                note(drive, if holds { DriveProgress::Stuck } else { DriveProgress::Answers });
            }
            let held = if holds { queue.pages } else { 0 };
            more += held as i64 - core::mem::replace(&mut queue.held, held) as i64;
        }
        more
    }

    pub(crate) fn has_stuck(&self) -> bool {
        self.of.iter().any(|queue| queue.is_stuck)
    }

    pub(crate) fn stuck_at_ns(&self) -> Option<u64> {
        let has_some = self.of.iter().filter(|queue| queue.inside > 0 && !queue.is_stuck);
        has_some.map(|queue| queue.moved_ns.saturating_add(STUCK_NS)).min()
    }

    /// Returns true if a drive has writes ready, or is stuck with writes in flight.
    pub(crate) fn has_waiting(&self, drive: usize) -> bool {
        !self.of[drive].ready.is_empty() || self.of[drive].is_stuck
    }

    /// Returns true if the flusher should search for more dirty pages, for one of these reasons:
    /// - No write is ready.
    /// - The last search added no write.
    /// - A drive has sent all its writes of the last search, and has at least half of its slots
    ///   free.
    ///
    /// Otherwise, a later search finds more adjacent pages, and so makes longer writes.
    pub(crate) fn wants_more(&self) -> bool {
        let is_short = |(at, queue): (usize, &WriteQueue)| {
            queue.is_fed && queue.ready.is_empty() && queue.inside <= self.places(at) / 2
        };
        !self.of.iter().any(|queue| queue.is_fed)
            || self.of.iter().enumerate().any(is_short)
            || self.of.iter().all(|queue| queue.ready.is_empty())
    }

    pub(crate) fn begin(&mut self) {
        self.of.iter_mut().for_each(|queue| queue.is_fed = false);
    }

    pub(crate) fn is_full(&self, drive: usize, pages: usize) -> bool {
        self.of[drive].pages >= pages / self.drives()
    }

    pub(crate) fn has_full(&self, pages: usize) -> bool {
        (0..self.drives()).any(|drive| self.is_full(drive, pages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_queues(drives: usize, drive_writes: u32) -> WriteQueues {
        WriteQueues::new(drives, FlusherConfig { drive_writes, lists: WriteLists::PerDrive })
    }

    /// Sends what may go at a time; the numbers.
    fn send(write_queues: &mut WriteQueues, now_ns: u64) -> Vec<usize> {
        let mut gone = Vec::new();
        for drive in write_queues.turn(now_ns) {
            gone.extend(core::iter::from_fn(|| write_queues.next(drive)));
        }
        gone
    }

    #[test]
    fn a_drive_that_ends_nothing_keeps_its_places_and_no_others() {
        let mut write_queues = write_queues(2, 2);
        (0..12).for_each(|number| write_queues.push((number / 6) as u16, number, 1));
        assert_eq!(
            (send(&mut write_queues, 5), write_queues.wants_more()),
            ([0, 1, 6, 7].into(), false)
        );
        assert_eq!(send(&mut write_queues, 6), []);
        for (now_ns, number) in [(7, 8), (8, 9), (9, 10), (10, 11)] {
            write_queues.ended(1, 1);
            assert_eq!(send(&mut write_queues, now_ns), [number]);
        }
        assert!(
            write_queues.has_waiting(0)
                && !write_queues.has_waiting(1)
                && !write_queues.wants_more()
        );
        write_queues.ended(1, 1);
        assert!(write_queues.wants_more(), "it will soon have nothing");
        assert_eq!(write_queues.stuck_at_ns(), Some(5 + STUCK_NS));
        assert!(
            write_queues.is_full(0, 12)
                && !write_queues.is_full(1, 12)
                && !write_queues.has_full(14)
        );
        let mut stuck = Vec::new();
        let mut held = |write_queues: &mut WriteQueues, now_ns| {
            write_queues.held(now_ns, |at, is| stuck.push((at, is)))
        };
        assert_eq!(held(&mut write_queues, 4 + STUCK_NS), 0);
        assert_eq!(held(&mut write_queues, 5 + STUCK_NS), 6);
        assert_eq!(write_queues.stuck_at_ns(), Some(10 + STUCK_NS));
        write_queues.ended(0, 1);
        let _ = write_queues.turn(5 + STUCK_NS);
        assert_eq!(held(&mut write_queues, 5 + STUCK_NS), -6);
        assert_eq!(stuck, [(0, DriveProgress::Stuck), (0, DriveProgress::Answers)]);
        write_queues.begin();
        assert!(write_queues.wants_more(), "nothing came to either");
        write_queues.push(0, 12, 1);
        assert!(!write_queues.wants_more(), "what came has not gone");
    }

    #[test]
    fn writes_over_several_drives_have_places_of_their_own() {
        let mut write_queues = write_queues(2, 1);
        (0..3).for_each(|number| write_queues.push(NO_MEMBER, number, 9));
        write_queues.push(1, 3, 1);
        let mut gone = send(&mut write_queues, 0);
        gone.sort_unstable();
        assert_eq!(gone, [0, 1, 3]);
        assert!(!write_queues.has_full(4), "they are of no drive");
        write_queues.ended(NO_MEMBER, 9);
        assert_eq!(send(&mut write_queues, 1), [2]);
    }

    #[test]
    fn a_shared_list_goes_in_order_until_it_is_divided() {
        let config = FlusherConfig { drive_writes: 1, lists: WriteLists::Shared };
        let mut write_queues = WriteQueues::new(2, config);
        (0..4).for_each(|number| write_queues.push(number / 2, number.into(), 1));
        assert_eq!(send(&mut write_queues, 0), [0, 1]);
        write_queues.ended(0, 1);
        write_queues.ended(0, 1);
        let ready = write_queues.take_ready();
        (0..2).for_each(|_| write_queues.forget(1, 1));
        write_queues.divide();
        ready.into_iter().for_each(|number| write_queues.push((number / 2) as u16, number, 1));
        assert_eq!(send(&mut write_queues, 2), [2]);
    }

    #[test]
    fn work_not_taken_is_first_again_and_cuts_leave_nothing() {
        let mut write_queues = write_queues(1, 1);
        (0..2).for_each(|number| write_queues.push(0, number, 3));
        assert_eq!(write_queues.next(0), Some(0));
        write_queues.push_back(0, 0);
        assert_eq!((write_queues.take_ready(), write_queues.stuck_at_ns()), ([0, 1].into(), None));
        write_queues.forget(0, 6);
        assert!(write_queues.is_full(0, 0) && !write_queues.is_full(0, 1));
    }
}
