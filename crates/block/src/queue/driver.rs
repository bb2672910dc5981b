//! `Driver` and `DriverQueue`: what a drive's driver is to the block layer.
//!
//! A driver registers how many hardware queues it has, how deep, and who may run them; it takes the
//! block layer's tags and never sees a bio (\[MQ\] design, points 2-4). Queues are opened one by
//! one and called under the hardware queue's serve lock, so `&mut self` is the lock. `Status` is an
//! I/O's outcome; `Dispatch` is flow control. Kernel counterpart: `struct blk_mq_ops`.
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

/// Which threads may run a hardware queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueKind {
    /// Whichever submitter comes, under the serve lock.
    AnyThread,
    /// The I/O thread that brought the queue up; others insert and ring its doorbell.
    OwnerOnly,
}

/// How far tags reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagScope {
    /// Each hardware queue has `depth` tags of its own (NVMe).
    PerQueue,
    /// All queues of the drive share `depth` tags (AHCI).
    PerDrive,
}

/// The hardware queues that a driver has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HwQueues {
    /// Most queues it can have, 1 to 2048.
    pub count: u16,
    /// Tags, 1 to 65,536.
    pub depth: u32,
    /// Which threads may run the queues.
    pub kind: QueueKind,
    /// How far tags reach.
    pub tags: TagScope,
}

/// What a driver makes of a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expired {
    /// It is still working on it: wait another period.
    Extend,
    /// It has given up or has been stopped, but memory may still be written until it names the tag.
    Abandon,
}

/// When a driver is asked what it has to say of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// It was handed over.
    Issue,
    /// It was named as done.
    Complete,
}

/// A few bytes that a driver says of a request, for traces: text for people, by custom. Written to
/// with `write!`; what does not fit is cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DriverData {
    len: u8,
    bytes: [u8; DriverData::BYTES],
}

impl DriverData {
    /// Most bytes of it.
    pub const BYTES: usize = 19;

    /// These bytes, as far as they fit.
    #[must_use]
    pub fn new(bytes: &[u8]) -> DriverData {
        let mut data = DriverData::default();
        data.push(bytes);
        data
    }

    /// Text.
    #[must_use]
    pub fn text(text: fmt::Arguments<'_>) -> DriverData {
        let mut data = DriverData::default();
        // Writing there cannot fail, and what formats numbers and words does not either.
        let _ = fmt::write(&mut data, text);
        data
    }

    /// What there is of it.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Nothing is to be said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds what fits.
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

/// A range of a drive and what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in sectors.
    pub nr_sectors: u64,
    /// Nothing is allocated there.
    pub hole: bool,
    /// Reads as zeroes.
    pub zero: bool,
}

/// Pages that a cache still has to write to the volume below it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unwritten {
    /// Pages that are dirty.
    pub pages: u64,
    /// Of these, pages whose last write to the volume did not fail.
    pub untried: u64,
    /// Pages written so far, which only grows: there may be as many dirty ones as before because
    /// requests that waited for room have made others dirty.
    pub written: u64,
}

/// A drive's driver.
///
/// Neither it nor its queues may wait for I/O of a volume that the drive is part of: a queue is
/// locked while it is called, so that such an I/O waits for the call, which waits for it, for ever.
///
/// # Panics
/// A driver that panics does not end the process, unless the program aborts on panics. The panic
/// goes through the call that ran the queue: a `submit`, `flush`, `poll` or `wait` of whichever
/// channel it was, a worker's turn, or an async device's thread. What was on its way to the driver
/// in that call is lost, and so is a request whose tag was named in it: the driver may still use
/// its memory, so that it keeps its tag and is never answered. The channel that was called does not
/// wait for its I/O when it is dropped, and leaks the memory of what is in flight. Other channels
/// go on with the drive.
pub trait Driver<M: Machine>: Send + Sync {
    /// Size in sectors, as it was when the drive was opened.
    fn capacity(&self) -> Sector;
    /// Bytes of the file or device below it by now, for people: more than its sectors hold if the
    /// last bytes make no whole sector.
    fn size_bytes(&self) -> u64 {
        self.capacity() << SECTOR_SHIFT
    }
    /// Re-reads the size of the file or device below it: the sectors that the drive has by now, and
    /// takes requests for from now on. Asked when somebody says that it has grown; may block. More
    /// than it said before counts for a volume only once all its drives have answered; fewer is an
    /// error of the caller's, who goes on with what there was.
    ///
    /// # Errors
    /// If that cannot be asked, or it may not grow; the text names the drive's place.
    #[doc(alias = "revalidate_disk")]
    fn revalidate(&self) -> Result<Sector, Error> {
        Ok(self.capacity())
    }
    /// What it takes in one request.
    fn limits(&self) -> QueueLimits;
    /// The hardware queues that it has on this machine.
    fn hw_queues(&self, topology: &Topology) -> HwQueues;
    /// The hardware queue, below `hctxs`, for a software queue, below `ctxs`.
    fn map(&self, ctx: usize, ctxs: usize, hctxs: usize) -> usize {
        ctx * hctxs / ctxs
    }
    /// Whether the `poll` of a queue that follows its `commit_rqs` names all that was handed over:
    /// nothing is in flight in a queue that nobody is inside. Several threads may then be inside a
    /// hardware queue at once, each with a driver's queue of its own (`Inside::Each`); for a drive
    /// whose queues any thread may run.
    fn is_immediate(&self) -> bool {
        false
    }
    /// Opens queue `index` with `depth` tags; on the owner's thread if the kind says so.
    ///
    /// # Errors
    /// If the system refuses it.
    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<M>>, Error>;
    /// Opens queue `index` on the thread that will own it, of a drive whose queues belong to
    /// threads. A disk over a volume opens its channel to that volume there.
    ///
    /// # Errors
    /// If the system refuses it.
    fn open_queue_on(
        &self,
        thread: &IoThread<M>,
        index: u16,
        depth: u32,
    ) -> Result<Box<dyn DriverQueue<M>>, Error> {
        let _ = thread;
        self.open_queue(index, depth)
    }
    /// Returns true if its queues, which belong to threads, may be opened when their thread first
    /// needs them, after the start: opening one is quick, waits for nobody, and takes nothing that
    /// may be short beyond what the first queues of such drives on the thread take.
    fn may_open_late(&self) -> bool {
        false
    }
    /// Whether this is a disk over a volume: its queues, which belong to threads, are polled by
    /// their owners also when no request is in flight, and asked for [`DriverQueue::has_work`].
    fn is_stacked(&self) -> bool {
        false
    }
    /// Whether the queues, which belong to threads, are polled by their owners also when no request
    /// is in flight and the owner wakes: something may have come that is no answer, such as the end
    /// of a connection.
    fn is_polled_idle(&self) -> bool {
        false
    }
    /// Whether the drive has lost its server and looks for it, with a time limit of its own after
    /// which requests fail: whoever else has a clock over requests stops it meanwhile.
    fn is_reconnecting(&self) -> bool {
        false
    }
    /// Why the drive is not whole now, for people, such as connections to its server that are
    /// missing. Asked by whoever tells people.
    fn trouble(&self) -> Option<String> {
        None
    }
    /// Why the last flush failed, in words, where that is no fault of the drive's medium. `None` if
    /// it succeeded.
    fn flush_trouble(&self) -> Option<String> {
        None
    }
    /// The daemon is about to flush for the last time: a drive on a server, which may be gone or
    /// hang, answers a flush without it if all that was answered since the drive was opened has
    /// been flushed.
    fn prepare_stop(&self) {}
    /// What it has acknowledged and not brought to what lies below it; off the hot path.
    fn unwritten(&self) -> Unwritten {
        Unwritten::default()
    }
    /// What is allocated in a range; off the hot path, may block. The extents cover the range or
    /// the first part of it.
    fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        let _ = sector;
        alloc::vec![Extent { nr_sectors, hole: false, zero: false }]
    }
    /// Whether a read of a range is known, without it, to succeed and give zeroes. May be asked for
    /// every read, so it allocates nothing and takes a system call or two at most. It has seen all
    /// writes that were completed before. `false` is always right, and the only answer while such a
    /// read may fail or while its cost is what the drive is there for.
    fn reads_as_zeroes(&self, sector: Sector, nr_sectors: u64) -> bool {
        let _ = (sector, nr_sectors);
        false
    }
    /// Says, before queues are opened, that requests will lie in this memory, over and over: what
    /// the system can learn of it once it need not learn from each.
    fn lend(&self, arena: &Arc<Arena>) {
        let _ = arena;
    }
    /// What the driver counts of its own, by name, since it was made; for statistics.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    /// What has happened to the drive since the last call that a person should hear of, a line for
    /// each: that a server is gone, or there again. Asked now and then by whoever tells people.
    fn take_news(&self) -> Vec<String> {
        Vec::new()
    }
}

/// One hardware queue of a driver.
pub trait DriverQueue<M: Machine>: Send {
    /// Hands over a request, perhaps only to a staging area until `commit_rqs`.
    fn queue_rq(&mut self, rq: &Request<M>) -> Dispatch;
    /// Whether [`DriverQueue::is_bounced`] and [`DriverQueue::trace_data`] are worth asking. Asked
    /// while the disk is traced, and only then.
    fn has_trace_data(&self) -> bool {
        true
    }
    /// Whether the data of a request, which was just handed over, go through a bounce buffer. Asked
    /// while the disk is traced, and only then.
    fn is_bounced(&self, tag: Tag) -> bool {
        let _ = tag;
        false
    }
    /// What there is to say of a request that was just handed over, or that the last `poll` named;
    /// goes into the trace as the kernel's driver data. Asked while somebody records, and only
    /// then.
    fn trace_data(&self, tag: Tag, moment: Moment) -> DriverData {
        let _ = (tag, moment);
        DriverData::default()
    }
    /// Starts all that was handed over since the last call: one system call, or none.
    fn commit_rqs(&mut self);
    /// Names requests that are done, until the batch is full.
    fn poll(&mut self, batch: &mut CompletionBatch);
    /// Whether a poll would find something to do, for a last look before the owner sleeps. Asked of
    /// a disk over a volume only ([`Driver::is_stacked`]).
    fn has_work(&self) -> bool {
        false
    }
    /// A request was not answered in time.
    fn timeout(&mut self, tag: Tag) -> Expired;
}

/// Completions of one `poll`: tags and their statuses.
#[derive(Debug)]
pub struct CompletionBatch {
    entries: [(Tag, Status); CompletionBatch::CAPACITY],
    len: usize,
    /// How many of them were found to be in flight.
    checked: usize,
    /// How many of those were taken out.
    taken: usize,
    wake_ns: Option<u64>,
}

/// Requests of a batch that were checked and not taken out yet, one after the other.
pub(crate) struct Rest<'a, M: Machine> {
    tags: &'a TagSet<M>,
    entries: &'a [(Tag, Status)],
    at: usize,
    /// Where the batch keeps how many were taken out.
    taken: &'a mut usize,
}

impl<M: Machine> Rest<'_, M> {
    /// The next one, to look at, and its status.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<(&Request<M>, Status)> {
        let (tag, status) = *self.entries.get(self.at)?;
        // SAFETY: the driver has given the request back, and only from here, which stays borrowed,
        // can a handle of it come.
        Some((unsafe { self.tags.lent(tag) }, status))
    }

    /// Takes out the one that was looked at.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<(RequestRef<M>, Status)> {
        let (tag, status) = *self.entries.get(self.at)?;
        self.at += 1;
        // SAFETY: the driver has given the request back, and it was in flight, so nobody else has
        // it; and it is taken out once.
        Some((unsafe { self.tags.reclaim(tag) }, status))
    }
}

impl<M: Machine> Drop for Rest<'_, M> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.taken = self.at;
    }
}

impl CompletionBatch {
    /// Most completions in one batch.
    pub const CAPACITY: usize = 64;

    /// An empty batch.
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

    /// A request is done; its memory is no longer touched.
    ///
    /// # Panics
    /// If the batch is full.
    #[inline]
    pub fn push(&mut self, tag: Tag, status: Status) {
        self.entries[self.len] = (tag, status);
        self.len += 1;
    }

    /// No more fit.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len == Self::CAPACITY
    }

    /// How many more fit.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        Self::CAPACITY - self.len
    }

    /// None so far.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What was named so far.
    #[inline]
    #[must_use]
    pub fn entries(&self) -> &[(Tag, Status)] {
        &self.entries[..self.len]
    }

    /// Asks for another poll at this time of `Machine::now`, if nothing happens before.
    pub fn wake_at(&mut self, deadline_ns: u64) {
        self.wake_ns = Some(self.wake_ns.map_or(deadline_ns, |old| old.min(deadline_ns)));
    }

    /// Whether all that came is that one request went well.
    #[inline(always)]
    pub(crate) fn is_just(&self, tag: Tag) -> bool {
        let (first, status) = self.entries[0];
        self.len == 1 && first == tag && status.is_ok() && self.wake_ns.is_none()
    }

    /// When another poll is due, if any driver asked; forgets it.
    pub fn take_wake(&mut self) -> Option<u64> {
        self.wake_ns.take()
    }

    /// Empties it for the next poll; a wake-up asked for stays.
    pub fn clear(&mut self) {
        (self.len, self.checked, self.taken) = (0, 0, 0);
    }

    /// Says that the tags named so far were in flight, each of them once, in the queue that the
    /// batch was filled from, and are no longer.
    #[inline(always)]
    pub(crate) fn set_checked(&mut self) {
        self.checked = self.len;
    }

    /// The requests that were checked and not taken out yet. `tags` is the set of the queue that
    /// the batch was filled from.
    #[inline(always)]
    pub(crate) fn rest<'a, M: Machine>(&'a mut self, tags: &'a TagSet<M>) -> Rest<'a, M> {
        let CompletionBatch { entries, checked, taken, .. } = self;
        Rest { tags, entries: &entries[..*checked], at: *taken, taken }
    }

    /// A look at each of those requests, which stay.
    pub(crate) fn looks<'a, M: Machine>(
        &'a mut self,
        tags: &'a TagSet<M>,
    ) -> impl Iterator<Item = (&'a Request<M>, Status)> {
        let entries = &self.entries[self.taken..self.checked];
        // SAFETY: as in `Rest::peek`; the batch stays borrowed.
        entries.iter().map(|(tag, status)| (unsafe { &*tags.lent(*tag) }, *status))
    }

    /// Takes out the next request that was checked, with its status.
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

/// Rounds a range inwards to multiples of `granularity_sectors`: the part that can be discarded.
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

    /// A driver that says no more than it must.
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
    fn a_driver_that_says_no_more_has_whole_sectors_never_grows_and_knows_of_no_hole() {
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
    fn the_earliest_wake_up_counts_and_outlives_a_clear_but_not_a_look() {
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
    fn text_of_a_driver_is_written_piece_by_piece_and_cut_at_its_most() {
        assert_eq!(DriverData::text(format_args!("{}-{}", "ab", 12)).bytes(), b"ab-12");
        let long = DriverData::text(format_args!("{:>12}{:>12}", "left", "right"));
        assert_eq!(long.bytes(), b"        left       ");
    }
}
