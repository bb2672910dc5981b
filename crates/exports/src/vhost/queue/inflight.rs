//! Record of requests in flight that outlives the process: the inflight region of vhost-user.
//!
//! The frontend passes the region to the next daemon, which submits unanswered requests again, in
//! their original order. The layout is libvhost-user's. The order of steps follows the
//! specification (vhost-user, "Inflight I/O tracking", split virtqueue), so a crash between any two
//! steps loses nothing. Values are checked, because the frontend can change them.
//!
//! Invariant: a request is marked after it was taken from the avail ring and before it is
//! submitted. Marks of answered requests are cleared after the guest's used.idx was set.
#![allow(unsafe_code)]

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use millrace_block::{Error, ErrorKind};

use crate::vhost::memory::{Region, RegionAddress, memory_file};
use crate::vhost::ring::{PublishedIndex, SIZE_MAX};

const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;
const ALIGN: usize = 64;
const VERSION: u16 = 1;
/// Bit of the features word (the region's first word): writes are durable when they are answered.
/// Other vhost-user servers set none of millrace's bits in this word.
const WRITE_THROUGH: u64 = 1 << 63;
/// Bit of the features word: a daemon has answered writes and holds them only in its memory.
const UNFLUSHED: u64 = 1 << 62;
/// Bit of the features word: a daemon has lost answered writes, and the guest does not know yet.
const LOST: u64 = 1 << 61;
/// Bit of the features word: this program has recorded the cache mode in [`WRITE_THROUGH`].
const NOTED: u64 = 1 << 60;
/// Bits of the features word: ID (a random number) of the daemon that set [`UNFLUSHED`].
const DAEMON: u64 = u32::MAX as u64;
/// All bits that this program sets. A word with other bits was written by another program.
const KNOWN: u64 = WRITE_THROUGH | UNFLUSHED | LOST | NOTED | DAEMON;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WriteCache {
    WriteBack,
    WriteThrough,
}

/// The inflight region of a device, with a part for each queue.
#[derive(Debug, Clone)]
pub struct Inflight {
    region: Arc<Region>,
    queues: u16,
    queue_size: u16,
}

#[derive(Debug)]
pub struct QueueInflight {
    region: Arc<Region>,
    start: *mut u8,
    size: u16,
    /// Head that was put on the used ring last.
    last: u16,
    counter: u64,
}

// SAFETY: plain shared bytes, touched by the thread that has the queue.
unsafe impl Send for QueueInflight {}

fn queue_bytes(queue_size: u16) -> usize {
    (HEADER_BYTES + ENTRY_BYTES * usize::from(queue_size)).next_multiple_of(ALIGN)
}

impl Inflight {
    /// Creates a zeroed region. Returns the region, its file and its size in bytes.
    pub fn create(queues: u16, queue_size: u16) -> Result<(Inflight, File, u64), Error> {
        let bytes = check(queues, queue_size)?;
        let file = memory_file("millrace-inflight", bytes)?;
        let copy = file.try_clone().map_err(|error| {
            Error::system(format!("inflight region: {error}"), error.raw_os_error())
        })?;
        Ok((Inflight::open(copy, 0, (queues, queue_size))?, file, bytes))
    }

    /// Opens an existing inflight region in a file. The frontend keeps the file, and passes it to a
    /// new server process.
    pub fn open(
        file: File,
        offset: u64,
        (queues, queue_size): (u16, u16),
    ) -> Result<Inflight, Error> {
        let len_bytes = check(queues, queue_size)?;
        if !offset.is_multiple_of(ALIGN as u64) {
            let text = format!("inflight region at offset {offset}: not a multiple of {ALIGN}");
            return Err(Error::new(ErrorKind::InvalidSetting, text));
        }
        let address = RegionAddress { guest: 0, len_bytes, user: 0, offset };
        let region = Arc::new(Region::map(file, address)?);
        Ok(Inflight { region, queues, queue_size })
    }

    /// Clears the records of requests in flight and of lost writes, because the device was reset.
    pub fn forget(&self) {
        self.clear_lost();
        for index in 0..self.queues {
            if let Some(mut queue) = self.queue(index, self.queue_size) {
                queue.set(8, 0);
            }
        }
    }

    /// Records the cache mode for a later daemon, because frontends set the mode only once.
    pub fn note_cache(&self, cache: WriteCache) {
        let is_through = cache == WriteCache::WriteThrough;
        self.change(WRITE_THROUGH, NOTED | if is_through { WRITE_THROUGH } else { 0 });
    }

    /// Returns true if writes must be durable when they are answered. Also returns true without a
    /// recorded mode: the guest may have started under qemu-storage-daemon, whose disks have no
    /// cache, so the guest sends no flushes.
    #[must_use]
    pub fn is_write_through(&self) -> bool {
        let word = self.word().load(Ordering::SeqCst);
        word & WRITE_THROUGH != 0 || word & NOTED == 0
    }

    /// Records that daemon `daemon` has answered writes that no flush covers yet, so that a later
    /// daemon can report their loss. `None` clears the record.
    pub fn mark_unflushed(&self, daemon: Option<u32>) {
        let mark = daemon.map_or(0, |daemon| UNFLUSHED | u64::from(daemon));
        self.change(UNFLUSHED | DAEMON, mark);
    }

    pub fn mark_lost(&self) {
        self.change(LOST, LOST);
    }

    pub fn clear_lost(&self) {
        self.change(LOST, 0);
    }

    /// Returns the ID of the daemon (a random number) that has answered writes but not flushed
    /// them, if any. The second value is true if an earlier daemon lost such writes.
    #[must_use]
    pub fn marks(&self) -> (Option<u32>, bool) {
        let word = self.word().load(Ordering::SeqCst);
        let is_ours = word & !KNOWN == 0;
        ((is_ours && word & UNFLUSHED != 0).then_some(word as u32), is_ours && word & LOST != 0)
    }

    fn change(&self, bits: u64, to: u64) {
        let changed = |word: u64| Some(word & KNOWN & !bits | to);
        let _ = self.word().fetch_update(Ordering::SeqCst, Ordering::SeqCst, changed);
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the first word of the region, which is aligned, and mapped as long as `self`
        // exists.
        unsafe { AtomicU64::from_ptr(self.region.start().cast()) }
    }

    /// Returns the part of the inflight region for queue `index` with `size` descriptors. Returns
    /// `None` if the region has no such queue, or has too little space for each queue.
    #[must_use]
    pub fn queue(&self, index: u16, size: u16) -> Option<QueueInflight> {
        let fits = index < self.queues && size <= self.queue_size;
        let place = usize::from(index) * queue_bytes(self.queue_size);
        fits.then(|| QueueInflight {
            start: self.region.start().wrapping_add(place),
            region: Arc::clone(&self.region),
            size,
            last: 0,
            counter: 0,
        })
    }
}

fn check(queues: u16, queue_size: u16) -> Result<u64, Error> {
    if queues == 0 || queues > 256 || queue_size == 0 || queue_size > SIZE_MAX {
        let text = format!(
            "inflight region for {queues} queues of {queue_size} descriptors refused; at most 256 \
             queues of {SIZE_MAX} are supported"
        );
        return Err(Error::new(ErrorKind::InvalidSetting, text));
    }
    Ok(usize::from(queues) as u64 * queue_bytes(queue_size) as u64)
}

/// State of a queue as recovered from the region.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RecoveredRequests {
    /// Heads of requests that were taken and not answered, in the order in which they were taken.
    pub heads: Vec<u16>,
    /// True if an earlier process has used the region. Otherwise `heads` is empty.
    pub known: bool,
}

impl QueueInflight {
    #[inline]
    fn u16_at(&self, offset: usize) -> *mut u16 {
        self.start.wrapping_add(offset).cast()
    }

    fn entry(&self, head: u16) -> *mut u8 {
        self.start.wrapping_add(HEADER_BYTES + ENTRY_BYTES * usize::from(head))
    }

    #[inline]
    fn get(&self, offset: usize) -> u16 {
        // SAFETY: inside the part, which is mapped and aligned to 16.
        unsafe { self.u16_at(offset).read_volatile() }
    }

    #[inline]
    fn set(&mut self, offset: usize, value: u16) {
        // SAFETY: inside the part, which is mapped and aligned to 16.
        unsafe { self.u16_at(offset).write_volatile(value) }
    }

    fn is_marked(&self, head: u16) -> bool {
        // SAFETY: the head is below the size.
        unsafe { self.entry(head).read_volatile() == 1 }
    }

    #[inline]
    fn mark(&mut self, head: u16, inflight: u8) {
        // SAFETY: the head is below the size.
        unsafe { self.entry(head).write_volatile(inflight) }
    }

    fn counter_of(&self, head: u16) -> u64 {
        // SAFETY: the head is below the size; entries are aligned to 16.
        unsafe { self.entry(head).wrapping_add(8).cast::<u64>().read_volatile() }
    }

    pub fn is_damaged(&self) -> bool {
        self.region.is_damaged()
    }

    /// Recovers the requests in flight, given the `used.idx` of the ring.
    pub fn recover(&mut self, used_idx: u16) -> RecoveredRequests {
        let known = self.get(8) == VERSION && self.get(10) == self.size;
        if !known {
            for head in 0..self.size {
                self.mark(head, 0);
            }
            self.set(10, self.size);
            self.set(12, 0);
            self.set(14, used_idx);
            self.set(8, VERSION);
            self.last = 0;
            return RecoveredRequests::default();
        }
        // The last daemon may have died after it published answers, and before it cleared the marks
        // that list their requests as in flight.
        let batch = used_idx.wrapping_sub(self.get(14)).min(self.size);
        let mut head = self.get(12);
        self.last = head;
        for _ in 0..batch {
            if head >= self.size {
                break;
            }
            self.mark(head, 0);
            // SAFETY: as in `is_marked`.
            head = unsafe { self.entry(head).wrapping_add(6).cast::<u16>().read_volatile() };
        }
        self.set(14, used_idx);
        let mut heads: Vec<u16> = (0..self.size).filter(|head| self.is_marked(*head)).collect();
        // Each counter is read once, because a sort may panic if the frontend changes counters
        // meanwhile.
        heads.sort_by_cached_key(|head| self.counter_of(*head));
        self.counter = heads.last().map_or(0, |head| self.counter_of(*head).wrapping_add(1));
        RecoveredRequests { heads, known: true }
    }

    /// Records that a head was taken from the avail ring.
    #[inline]
    pub fn taken(&mut self, head: u16) {
        // SAFETY: as in `counter_of`.
        unsafe { self.entry(head).wrapping_add(8).cast::<u64>().write_volatile(self.counter) };
        // The addition wraps, because the counter may overflow: its start value comes from the
        // region, and a frontend can write any value there.
        self.counter = self.counter.wrapping_add(1);
        in_order();
        self.mark(head, 1);
    }

    #[inline]
    pub fn put(&mut self, head: u16) {
        // SAFETY: as in `is_marked`.
        unsafe { self.entry(head).wrapping_add(6).cast::<u16>().write_volatile(self.last) };
        self.set(12, head);
        self.last = head;
    }

    /// Records that a batch of answers was published. The requests `heads` are then no longer
    /// listed as in flight.
    #[inline]
    pub fn published(&mut self, heads: &[u16], published: PublishedIndex) {
        in_order();
        for head in heads {
            self.mark(*head, 0);
        }
        in_order();
        self.set(14, published.used_idx());
    }
}

/// Keeps the order of stores. A compiler fence is enough: the memory that a killed thread leaves
/// behind contains all its stores up to some point of its program, and none after that point.
#[inline]
fn in_order() {
    compiler_fence(Ordering::SeqCst);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // Tests may.
mod tests {
    use super::*;

    fn reopened(file: &File) -> QueueInflight {
        let file = file.try_clone().unwrap();
        Inflight::open(file, 0, (2, 8)).unwrap().queue(1, 8).unwrap()
    }

    #[test]
    fn what_was_taken_and_not_answered_comes_back_in_order() {
        let (first, file, bytes) = Inflight::create(2, 8).unwrap();
        assert_eq!(bytes, 2 * 192);
        let mut queue = first.queue(1, 8).unwrap();
        assert_eq!(queue.recover(0), RecoveredRequests::default());
        [5, 1, 3, 2].into_iter().for_each(|head| queue.taken(head));
        queue.put(1);
        queue.published(&[1], PublishedIndex::for_test(1));
        let mut next = reopened(&file);
        assert_eq!(next.recover(1), RecoveredRequests { heads: vec![5, 3, 2], known: true });
        next.taken(1);
        assert_eq!(reopened(&file).recover(1).heads, [5, 3, 2, 1]);
    }

    #[test]
    fn published_batches_are_never_resubmitted() {
        let (first, file, _) = Inflight::create(2, 8).unwrap();
        let mut queue = first.queue(1, 8).unwrap();
        queue.recover(0);
        [5, 1, 3, 2].into_iter().for_each(|head| queue.taken(head));
        for (used, head) in [(1, 1), (2, 5)] {
            queue.put(head);
            queue.published(&[head], PublishedIndex::for_test(used));
        }
        assert_eq!(reopened(&file).recover(2).heads, [3, 2]);
    }

    #[test]
    fn batch_published_without_marks_is_not_resubmitted() {
        let (first, file, _) = Inflight::create(2, 8).unwrap();
        let mut queue = first.queue(1, 8).unwrap();
        queue.recover(10);
        [0, 1, 2, 3].into_iter().for_each(|head| queue.taken(head));
        queue.put(2);
        queue.put(0);
        // The process died after it had published two answers (used.idx 12), and before it cleared
        // the marks that list their requests as in flight.
        assert_eq!(reopened(&file).recover(12).heads, [1, 3]);
    }

    #[test]
    fn a_batch_that_was_put_and_not_published_is_resubmitted() {
        let (first, file, _) = Inflight::create(2, 8).unwrap();
        let mut queue = first.queue(1, 8).unwrap();
        queue.recover(0);
        [0, 1].into_iter().for_each(|head| queue.taken(head));
        queue.put(1);
        assert_eq!(reopened(&file).recover(0).heads, [0, 1]);
    }

    #[test]
    fn a_head_that_was_published_and_taken_again_is_resubmitted() {
        let (first, file, _) = Inflight::create(2, 8).unwrap();
        let mut queue = first.queue(1, 8).unwrap();
        queue.recover(0);
        queue.taken(1);
        queue.put(1);
        queue.published(&[1], PublishedIndex::for_test(1));
        queue.taken(1);
        assert_eq!(reopened(&file).recover(1).heads, [1]);
    }

    #[test]
    fn garbage_in_the_region_leads_nowhere_outside() {
        let (first, file, _) = Inflight::create(2, 8).unwrap();
        let mut queue = first.queue(1, 8).unwrap();
        queue.recover(0);
        queue.taken(7);
        queue.set(12, 999);
        queue.set(14, 40_000);
        assert_eq!(reopened(&file).recover(3).heads, [7]);
        // The ring size differs from the one for which the region was kept.
        let file = file.try_clone().unwrap();
        let mut other = Inflight::open(file, 0, (2, 8)).unwrap().queue(1, 4).unwrap();
        assert_eq!(other.recover(0), RecoveredRequests::default());
    }

    #[test]
    fn a_switch_to_write_through_is_kept_beside_what_is_in_flight() {
        let (first, file, _) = Inflight::create(2, 8).unwrap();
        let mut queue = first.queue(0, 8).unwrap();
        queue.recover(0);
        queue.taken(3);
        first.note_cache(WriteCache::WriteThrough);
        let next = Inflight::open(file, 0, (2, 8)).unwrap();
        assert!(next.is_write_through());
        assert_eq!(next.queue(0, 8).unwrap().recover(0).heads, [3]);
        next.note_cache(WriteCache::WriteBack);
        assert!(!first.is_write_through());
    }

    #[test]
    fn regions_for_nothing_or_too_much_are_refused() {
        for (queues, size) in [(0, 8), (257, 8), (1, 0), (1, 2048)] {
            assert!(Inflight::create(queues, size).is_err(), "{queues} {size}");
        }
        for (queues, size) in [(256, 1), (1, 1024)] {
            let (region, ..) = Inflight::create(queues, size).unwrap();
            assert!(region.queue(queues - 1, size).is_some());
            assert!(region.queue(queues, size).is_none(), "one more than there are");
            assert!(region.queue(0, size + 1).is_none(), "a ring that is larger");
        }
        let (_, file, bytes) = Inflight::create(1, 8).unwrap();
        assert!(Inflight::open(file.try_clone().unwrap(), bytes, (1, 8)).is_err());
        assert!(Inflight::open(file, 8, (1, 4)).is_err(), "not aligned");
    }
}
