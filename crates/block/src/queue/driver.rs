//! `Driver` and `DriverQueue`: the interface between the block layer and a drive's driver.
//!
//! A driver declares how many hardware queues it has, how deep they are, and which threads may run
//! them. A driver uses the block layer's tags and never sees a bio (\[MQ\] design, points 2-4). The
//! block layer opens a driver's queues one by one, and calls the methods of a queue under the serve
//! lock of its hardware queue. So `&mut self` of a queue means that the lock is held. `Status` is
//! the outcome of an I/O; `Dispatch` is flow control. Kernel counterpart: `struct blk_mq_ops`.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use millrace_machine::{Machine, Topology};

use crate::bio::arena::Arena;
use crate::bio::error::Error;
use crate::bio::limits::QueueLimits;
use crate::bio::status::Status;
use crate::bio::{SECTOR_SHIFT, Sector, SectorCount};
use crate::queue::io_thread::IoThread;
use crate::queue::request::{Dispatch, Request, RequestRef, Tag};
use crate::queue::tag::TagSet;

/// The threads that may run a hardware queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueueKind {
    /// Any submitting thread may run the queue; the queue's serve lock admits one at a time.
    AnyThread,
    /// Only the I/O thread that opened the queue may run the queue. Other threads leave their bios
    /// in the queue and wake that thread by ringing its doorbell.
    OwnerOnly,
}

/// The scope in which a driver's tags are unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TagScope {
    /// Each hardware queue has `depth` tags of its own (NVMe).
    PerQueue,
    /// All queues of the drive share `depth` tags (AHCI).
    PerDrive,
}

/// The number and properties of a driver's hardware queues.
#[doc(alias = "blk_mq_hw_ctx")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HwQueues {
    /// Largest number of hardware queues that the driver supports, 1 to 2048.
    pub count: u16,
    /// Number of tags, 1 to 65,536; `tags` says whether per queue or per drive.
    pub depth: u32,
    /// Threads that may run the queues.
    pub kind: QueueKind,
    /// Scope in which tags are unique.
    pub tags: TagScope,
}

/// A driver's decision about a timed-out request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Expired {
    /// The driver still works on the request. The block layer starts the request's timeout again.
    Extend,
    /// The driver has given up the request, or was stopped. Until the driver returns the tag, the
    /// drive may still write the request's memory.
    Abandon,
}

/// The step of a request at which the driver is asked for [`DriverQueue::trace_data`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moment {
    /// The request was handed to the driver.
    Issue,
    /// The driver returned the request as done.
    Complete,
}

/// A few bytes of trace data, usually text, that a driver provides about a request. A driver writes
/// the data with `write!`; bytes beyond the capacity are cut off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DriverData {
    len: u8,
    bytes: [u8; DriverData::BYTES],
}

impl DriverData {
    /// Largest number of bytes of trace data about one request.
    pub const BYTES: usize = 19;

    /// Copies `bytes`, cut off at [`DriverData::BYTES`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> DriverData {
        let mut data = DriverData::default();
        data.push(bytes);
        data
    }

    /// Formats text, cut off at [`DriverData::BYTES`].
    #[must_use]
    pub fn text(text: fmt::Arguments<'_>) -> DriverData {
        let mut data = DriverData::default();
        // The result is ignored: writing to `data` cannot fail, and drivers format only numbers and
        // words, which cannot fail either.
        let _ = fmt::write(&mut data, text);
        data
    }

    /// Returns the trace data that the driver has written so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns true if the driver has written no trace data.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let len = usize::from(self.len);
        let fits = bytes.len().min(Self::BYTES - len);
        self.bytes[len..len + fits].copy_from_slice(&bytes[..fits]);
        self.len += fits as u8;
    }
}

impl fmt::Write for DriverData {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// Allocation state of a range of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in sectors.
    pub nr_sectors: u64,
    /// True if no storage is allocated to the range.
    pub hole: bool,
    /// True if the range reads as zeroes.
    pub zero: bool,
}

/// Page counts of a write-back cache: dirty pages, and pages written so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unwritten {
    /// Number of dirty pages.
    pub pages: u64,
    /// Number of dirty pages, without those whose last write to the volume failed.
    pub untried: u64,
    /// Number of pages written since the start, which never decreases. The number shows progress
    /// even while new writes make pages dirty as fast as the cache writes them.
    pub written: u64,
}

/// The driver of a drive.
///
/// Neither the driver nor its queues may wait for I/O of a volume that the drive is part of. The
/// block layer holds a queue's lock during each call, so the call would wait for the I/O, and the
/// I/O for the end of the call.
///
/// # Panics
/// A driver that panics does not end the process, unless the program aborts on panics. The panic
/// unwinds through the call that ran the queue: a `submit`, `flush`, `poll` or `wait` of some
/// channel, a worker's turn, or an async device's thread. Requests on their way to the driver in
/// that call are lost, and so are requests that the driver had just completed: the driver may still
/// use their memory, so they keep their tags and never complete. The channel that was called does
/// not wait for its I/O when it is dropped, and leaks the memory of all I/O in flight. Other
/// channels keep using the drive.
#[doc(alias = "blk_mq_ops")]
pub trait Driver<M: Machine>: Send + Sync {
    /// Returns the drive's size in sectors when it was opened.
    fn capacity(&self) -> Sector;
    /// Returns the current size in bytes of the file or device below the drive, for reports. The
    /// size may exceed the drive's sectors if the last bytes make no whole sector.
    fn size_bytes(&self) -> u64 {
        self.capacity() << SECTOR_SHIFT
    }
    /// Re-reads the size of the file or device below the drive. Returns the number of sectors for
    /// which the drive accepts requests from now on. Called when an operator reports that the file
    /// or device has grown; may block. A volume uses the added space only after all its drives have
    /// answered. The caller treats a smaller size as an error and keeps the old one.
    ///
    /// # Errors
    /// If the size cannot be read, or the drive cannot grow. The error names the drive's location.
    #[doc(alias = "revalidate_disk")]
    fn revalidate(&self) -> Result<Sector, Error> {
        Ok(self.capacity())
    }
    /// Returns the limits of a single request.
    fn limits(&self) -> QueueLimits;
    /// Returns the number and kind of hardware queues on this machine.
    fn hw_queues(&self, topology: &Topology) -> HwQueues;
    /// Maps software queue `ctx`, one of `ctxs`, to one of `hctxs` hardware queues.
    fn map(&self, ctx: usize, ctxs: usize, hctxs: usize) -> usize {
        ctx * hctxs / ctxs
    }
    /// Returns true if a `poll` right after `commit_rqs` completes every request. Several threads
    /// may then serve a hardware queue at once, each with a driver queue of its own. A driver may
    /// return true only if any thread may run its queues ([`QueueKind::AnyThread`]).
    fn is_immediate(&self) -> bool {
        false
    }
    /// Opens queue `index` with `depth` tags. The owner's thread calls this for `OwnerOnly` queues.
    ///
    /// # Errors
    /// If the operating system refuses to open the queue.
    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<M>>, Error>;
    /// Opens queue `index` of an `OwnerOnly` drive on the thread that will own the queue. A drive
    /// that is built on a volume, such as a cache, opens its channel to that volume in this call.
    ///
    /// # Errors
    /// If the operating system refuses to open the queue.
    fn open_queue_on(
        &self,
        thread: &IoThread<M>,
        index: u16,
        depth: u32,
    ) -> Result<Box<dyn DriverQueue<M>>, Error> {
        let _ = thread;
        self.open_queue(index, depth)
    }
    /// Returns true if an `OwnerOnly` queue may be opened late, when its thread first needs the
    /// queue. For such a drive:
    /// - Opening a queue must be quick, and must not wait for another thread.
    /// - Resources that can run out may be taken only for a thread's first queue; later queues
    ///   share them.
    fn may_open_late(&self) -> bool {
        false
    }
    /// Returns true for a drive that is built on a volume, such as a cache. The I/O threads that
    /// own its queues ([`QueueKind::OwnerOnly`]) then poll the queues even when no request is in
    /// flight, and ask [`DriverQueue::has_work`] before they sleep.
    fn is_stacked(&self) -> bool {
        false
    }
    /// Returns true if owners must poll the drive's `OwnerOnly` queues on each wake-up even when no
    /// request is in flight, so that the driver notices, say, the end of a connection.
    fn is_polled_idle(&self) -> bool {
        false
    }
    /// Returns true while the drive has lost its server and is reconnecting. A request that waits
    /// for a connection then fails at the drive's own time limit, not at the request timeout.
    fn is_reconnecting(&self) -> bool {
        false
    }
    /// Describes the drive's present fault, if any, such as missing connections to its server.
    fn trouble(&self) -> Option<String> {
        None
    }
    /// Describes why the driver itself made the last flush fail, such as writes lost in a server
    /// restart. `None` if that flush succeeded, or the storage below failed it.
    fn flush_trouble(&self) -> Option<String> {
        None
    }
    /// Announces that the daemon is stopping, and that the next flush is the last one. If no write
    /// is unflushed, the drive may complete that flush without its server, because the server may
    /// hang.
    fn prepare_stop(&self) {}
    /// Returns how much acknowledged data has not reached the storage below. Slow, so not for the
    /// I/O path.
    fn unwritten(&self) -> Unwritten {
        Unwritten::default()
    }
    /// Returns the allocation state of a range. The extents cover the range from its start, but
    /// perhaps not to its end. May block, so not for the I/O path.
    fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        let _ = sector;
        alloc::vec![Extent { nr_sectors, hole: false, zero: false }]
    }
    /// Returns true only if a read of the range is known to succeed and give zeroes, with all
    /// completed writes taken into account. False is always correct; a drive that simulates read
    /// times returns only false, because callers skip reads on true. May be called for every read,
    /// so it must not allocate, and may make at most two system calls.
    fn reads_as_zeroes(&self, sector: Sector, nr_sectors: u64) -> bool {
        let _ = (sector, nr_sectors);
        false
    }
    /// Announces, before queues are opened, that many requests will use the memory of `arena`. A
    /// driver can then register the memory with the system once, not for each request.
    fn lend(&self, arena: &Arc<Arena>) {
        let _ = arena;
    }
    /// Returns the driver's own counters, from 0 at the start, as pairs of name and value.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    /// Takes the messages for an operator since the last call, one line each, such as a lost or
    /// restored server connection. Called from time to time.
    fn take_news(&self) -> Vec<String> {
        Vec::new()
    }
}

/// One hardware queue of a driver.
pub trait DriverQueue<M: Machine>: Send {
    /// Hands a request to the driver, which may delay it until `commit_rqs`.
    fn queue_rq(&mut self, rq: &Request<M>) -> Dispatch;
    /// Returns false if [`DriverQueue::is_bounced`] is never true and [`DriverQueue::trace_data`]
    /// is always empty. Called only while the disk is traced.
    fn has_trace_data(&self) -> bool {
        true
    }
    /// Returns true if the data of a request that was just handed over goes through a bounce
    /// buffer. Called only while the disk is traced.
    fn is_bounced(&self, tag: Tag) -> bool {
        let _ = tag;
        false
    }
    /// Returns trace data about a request that was just handed over, or that the last `poll`
    /// returned. Called only while a trace is recorded.
    fn trace_data(&self, tag: Tag, moment: Moment) -> DriverData {
        let _ = (tag, moment);
        DriverData::default()
    }
    /// Starts all requests handed over since the last call, with at most one system call.
    fn commit_rqs(&mut self);
    /// Polls for completions: adds completed requests to `batch`, up to its capacity.
    fn poll(&mut self, batch: &mut CompletionBatch);
    /// Returns true if `poll` would find work. The queue's owner calls this before sleeping, and
    /// only for a drive that is built on a volume ([`Driver::is_stacked`]).
    fn has_work(&self) -> bool {
        false
    }
    /// Returns the driver's decision about a request that was not completed within the timeout.
    fn timeout(&mut self, tag: Tag) -> Expired;
}

/// The tags and statuses of requests completed in one `poll`.
#[derive(Debug)]
pub struct CompletionBatch {
    entries: [(Tag, Status); CompletionBatch::CAPACITY],
    len: usize,
    /// Number of completions whose tags are known to have been in flight. 0 until `set_checked` is
    /// called, then the number of all completions in the batch.
    checked: usize,
    taken: usize,
    wake_ns: Option<u64>,
}

/// Iterator over the completed requests in a batch that were not taken out yet. Returns only
/// requests that are known to have been in flight (`CompletionBatch::set_checked`).
pub(crate) struct CheckedRequests<'a, M: Machine> {
    tags: &'a TagSet<M>,
    entries: &'a [(Tag, Status)],
    at: usize,
    /// Number of requests taken out of the batch so far; updated when the iterator is dropped.
    taken: &'a mut usize,
}

impl<M: Machine> CheckedRequests<'_, M> {
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<(&Request<M>, Status)> {
        let (tag, status) = *self.entries.get(self.at)?;
        // SAFETY: the driver has returned the request, and only this iterator makes handles of it.
        Some((unsafe { self.tags.lent(tag) }, status))
    }

    #[inline(always)]
    pub(crate) fn taken(&self) -> usize {
        self.at
    }

    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<(RequestRef<M>, Status)> {
        let (tag, status) = *self.entries.get(self.at)?;
        self.at += 1;
        // SAFETY: the driver has returned the request, and each entry is taken out only once.
        Some((unsafe { self.tags.reclaim(tag) }, status))
    }
}

impl<M: Machine> Drop for CheckedRequests<'_, M> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.taken = self.at;
    }
}

impl CompletionBatch {
    /// Largest number of completions in one batch.
    pub const CAPACITY: usize = 64;

    /// Creates an empty batch.
    #[must_use]
    pub fn new() -> Self {
        CompletionBatch {
            entries: [(Tag(0), Status::Ok); Self::CAPACITY],
            len: 0,
            checked: 0,
            taken: 0,
            wake_ns: None,
        }
    }

    /// Adds a completed request, whose memory the driver no longer touches.
    ///
    /// # Panics
    /// If the batch is full.
    #[inline]
    pub fn push(&mut self, tag: Tag, status: Status) {
        self.entries[self.len] = (tag, status);
        self.len += 1;
    }

    /// Adds completed requests with the same status.
    ///
    /// # Panics
    /// If there are more tags than [`CompletionBatch::room`].
    #[inline]
    pub fn push_all(&mut self, tags: &[Tag], status: Status) {
        let room = &mut self.entries[self.len..self.len + tags.len()];
        room.iter_mut().zip(tags).for_each(|(entry, tag)| *entry = (*tag, status));
        self.len += tags.len();
    }

    /// Returns true if the batch has no room left.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len == Self::CAPACITY
    }

    /// Returns how many more completions the batch can hold.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        Self::CAPACITY - self.len
    }

    /// Returns true if the batch has no completions.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the tags completed so far, with their statuses.
    #[inline]
    #[must_use]
    pub fn entries(&self) -> &[(Tag, Status)] {
        &self.entries[..self.len]
    }

    /// Asks for another poll of the driver at `deadline_ns` or earlier, in nanoseconds of
    /// `Machine::now`.
    pub fn wake_at(&mut self, deadline_ns: u64) {
        self.wake_ns = Some(self.wake_ns.map_or(deadline_ns, |old| old.min(deadline_ns)));
    }

    /// Returns true if the only completion in the batch is a success of request `tag`. Returns
    /// false if the driver has asked for another poll ([`CompletionBatch::wake_at`]).
    #[inline(always)]
    pub(crate) fn is_just(&self, tag: Tag) -> bool {
        let (first, status) = self.entries[0];
        self.len == 1 && first == tag && status.is_ok() && self.wake_ns.is_none()
    }

    /// Returns and clears the time set by [`CompletionBatch::wake_at`], if any.
    pub fn take_wake(&mut self) -> Option<u64> {
        self.wake_ns.take()
    }

    /// Empties a batch whose completions were neither checked (`set_checked`) nor taken out.
    #[inline(always)]
    pub(crate) fn clear_untaken(&mut self) {
        debug_assert_eq!((self.checked, self.taken), (0, 0));
        self.len = 0;
    }

    /// Empties the batch for the next poll. Keeps the time set by [`CompletionBatch::wake_at`].
    pub fn clear(&mut self) {
        (self.len, self.checked, self.taken) = (0, 0, 0);
    }

    /// Marks all completions in the batch as checked. The caller has made sure that the tag of each
    /// was in flight exactly once, in the hardware queue whose driver filled the batch.
    #[inline(always)]
    pub(crate) fn set_checked(&mut self) {
        self.checked = self.len;
    }

    /// Returns an iterator that takes the remaining completed requests out of the batch. The
    /// iterator returns only requests that `set_checked` has marked as checked; the others stay in
    /// the batch. `tags` is the tag set of the queue that filled the batch.
    #[inline(always)]
    pub(crate) fn rest<'a, M: Machine>(
        &'a mut self,
        tags: &'a TagSet<M>,
    ) -> CheckedRequests<'a, M> {
        let CompletionBatch { entries, checked, taken, .. } = self;
        CheckedRequests { tags, entries: &entries[..*checked], at: *taken, taken }
    }

    pub(crate) fn looks<'a, M: Machine>(
        &'a mut self,
        tags: &'a TagSet<M>,
    ) -> impl Iterator<Item = (&'a Request<M>, Status)> {
        let entries = &self.entries[self.taken..self.checked];
        // SAFETY: as in `CheckedRequests::peek`; the batch stays borrowed.
        entries.iter().map(|(tag, status)| (unsafe { &*tags.lent(*tag) }, *status))
    }

    #[inline(always)]
    pub(crate) fn take<M: Machine>(&mut self, tags: &TagSet<M>) -> Option<(RequestRef<M>, Status)> {
        let (rq, status) = self.rest(tags).take()?;
        rq.touch();
        Some((rq, status))
    }
}

impl Default for CompletionBatch {
    fn default() -> Self {
        CompletionBatch::new()
    }
}

/// Returns the part of a range that consists of whole units of `granularity_sectors`.
#[must_use]
pub fn align_inwards(sector: Sector, nr: SectorCount, granularity_sectors: u32) -> (Sector, u32) {
    let unit = u64::from(granularity_sectors.max(1));
    let start = sector.div_ceil(unit) * unit;
    let end = (sector + u64::from(nr)) / unit * unit;
    (start, end.saturating_sub(start) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use millrace_machine::Native;

    /// A driver that implements only the required methods.
    struct Plain;

    impl Driver<Native> for Plain {
        fn capacity(&self) -> Sector {
            3
        }
        fn limits(&self) -> QueueLimits {
            QueueLimits::default()
        }
        fn hw_queues(&self, _: &Topology) -> HwQueues {
            unreachable!("nobody asks")
        }
        fn open_queue(&self, _: u16, _: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
            unreachable!("nobody asks")
        }
    }

    #[test]
    fn driver_without_further_limits_has_whole_sectors_and_no_holes() {
        assert_eq!((Plain.size_bytes(), Plain.revalidate()), (1536, Ok(3)));
        let all = Extent { nr_sectors: 2, hole: false, zero: false };
        assert_eq!((Plain.extents(1, 2), Plain.reads_as_zeroes(1, 2)), (vec![all], false));
    }

    #[test]
    fn software_queues_are_spread_over_hardware_queues_in_blocks() {
        let map = |ctxs, hctxs| (0..ctxs).map(|ctx| Plain.map(ctx, ctxs, hctxs)).collect();
        let spread: Vec<Vec<usize>> = vec![map(8, 2), map(5, 3), map(3, 3), map(2, 1)];
        let blocks: Vec<Vec<usize>> =
            vec![vec![0, 0, 0, 0, 1, 1, 1, 1], vec![0, 0, 1, 1, 2], vec![0, 1, 2], vec![0, 0]];
        assert_eq!(spread, blocks);
    }

    #[test]
    fn a_batch_holds_what_was_pushed_until_it_is_cleared() {
        let mut batch = CompletionBatch::default();
        for turn in 0..2 {
            for count in 0..CompletionBatch::CAPACITY {
                assert_eq!((batch.is_empty(), batch.is_full()), (count == 0, false), "{turn}");
                assert_eq!(batch.room(), CompletionBatch::CAPACITY - count);
                batch.push(Tag(count as u32), Status::IoError);
                assert_eq!(batch.entries().len(), count + 1);
            }
            assert_eq!((batch.is_full(), batch.room()), (true, 0));
            assert_eq!(batch.entries()[63], (Tag(63), Status::IoError));
            batch.clear();
            assert_eq!(batch.entries(), []);
        }
    }

    #[test]
    fn earliest_wake_up_counts_and_outlives_clear_but_not_look() {
        let mut batch = CompletionBatch::new();
        assert_eq!(batch.take_wake(), None);
        [9, 5, 7].into_iter().for_each(|at_ns| batch.wake_at(at_ns));
        batch.clear();
        assert_eq!((batch.take_wake(), batch.take_wake()), (Some(5), None));
    }

    #[test]
    fn only_one_success_of_that_tag_and_no_wish_is_just_that() {
        let of = |entries: &[(Tag, Status)], wake: Option<u64>| {
            let mut batch = CompletionBatch::new();
            entries.iter().for_each(|(tag, status)| batch.push(*tag, *status));
            wake.into_iter().for_each(|at_ns| batch.wake_at(at_ns));
            batch.is_just(Tag(0))
        };
        let (mine, other) = ((Tag(0), Status::Ok), (Tag(1), Status::Ok));
        assert!(of(&[mine], None));
        assert!(!of(&[], None) && !of(&[mine, other], None) && !of(&[other], None));
        assert!(!of(&[(Tag(0), Status::IoError)], None) && !of(&[mine], Some(1)));
    }

    #[test]
    fn text_of_driver_is_written_piece_by_piece_and_cut_at_its_most() {
        assert_eq!(DriverData::text(format_args!("{}-{}", "ab", 12)).bytes(), b"ab-12");
        let long = DriverData::text(format_args!("{:>12}{:>12}", "left", "right"));
        assert_eq!(long.bytes(), b"        left       ");
    }
}
