//! `FileQueue`: hardware queue of a file or block device, on one I/O thread.
//!
//! Requests become operations of the thread's reactor, which submits them in its next iteration, so
//! `commit_rqs` costs nothing. The reactor keeps a list of completions for each queue. Short
//! transfers are continued, EINTR and EAGAIN are retried, and misaligned memory goes through a
//! bounce buffer. Invariant: the memory of an operation stays in place until the operation has
//! completed; a queue that is dropped earlier leaks the memory.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_block::{
    Buffer, CompletionBatch, Dispatch, DriverData, DriverQueue, Expired, Moment, Op, OpFlags,
    Request, Status, Tag,
};
use millrace_machine::Native;
use millrace_reactor::Completion;

use super::engine::{CANCEL_MARK, Engine};
use super::flight::{FileFlight, FileOperation};
use super::{FileState, MAX_SECTORS};
use crate::common::outcomes::{RequestOutcome, RequestOutcomes, completion_data};

/// Maximum number of bounce buffers of a queue. A request that needs a bounce buffer while all are
/// in use waits for a completion.
const BOUNCES_MAX: usize = 16;
/// Number of times that EAGAIN is retried before the request fails.
const RETRIES_MAX: u16 = 1000;
/// Number of low bits of the user data that hold the tag; higher bits hold the tag's generation.
const TAG_BITS: u32 = 24;

// Values from linux/fs.h.
const BLKDISCARD: u64 = 0x1277;
const BLKZEROOUT: u64 = 0x127f;

pub(crate) const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
pub(crate) const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

pub(crate) struct FileQueue {
    shared: Arc<FileState>,
    engine: Engine,
    flights: Box<[FileFlight]>,
    outcomes: RequestOutcomes<Completion>,
    bounces: Vec<Buffer>,
    bounces_made: usize,
    /// Number of operations on registered memory since the drive's counter was last updated.
    registered: u64,
}

// SAFETY: raw pointers lead to memory of requests in flight, whose bios are `Send`.
// `Engine` panics if its ring is used on any thread but the ring's own.
unsafe impl Send for FileQueue {}

impl FileQueue {
    pub(crate) fn new(shared: Arc<FileState>, engine: Engine, depth: u32) -> FileQueue {
        let depth = depth as usize;
        FileQueue {
            shared,
            engine,
            flights: (0..depth).map(|_| FileFlight::new()).collect(),
            outcomes: RequestOutcomes::new(depth),
            bounces: Vec::with_capacity(BOUNCES_MAX),
            bounces_made: 0,
            registered: 0,
        }
    }

    #[inline]
    fn work_of(&self, rq: &Request<Native>) -> Result<FileOperation, Status> {
        let shared = &self.shared;
        // Relaxed: an old value of `no_punch` costs one more fallocate(2) call that fails.
        let no_punch = shared.no_punch.load(Ordering::Relaxed);
        // Acquire pairs with the Release in `failed`, which publishes `sync_failed`.
        let durable = rq.op() == Op::Flush || rq.flags().has(OpFlags::FUA);
        if durable && shared.sync_failed.load(Ordering::Acquire) {
            return Err(Status::IoError);
        }
        Ok(match (rq.op(), shared.geometry.is_block) {
            (Op::Read, _) => FileOperation::Read,
            (Op::Write, _) if rq.flags().has(OpFlags::FUA) => FileOperation::Write(libc::RWF_DSYNC),
            (Op::Write, _) => FileOperation::Write(0),
            (Op::Flush, _) => FileOperation::Sync,
            (Op::Discard, true) => FileOperation::Device(BLKDISCARD),
            (Op::Discard, false) if no_punch => return Err(Status::NotSupported),
            (Op::Discard, false) => FileOperation::Allocate(PUNCH),
            (Op::WriteZeroes, true) => FileOperation::Device(BLKZEROOUT),
            (Op::WriteZeroes, false) if rq.flags().has(OpFlags::NOUNMAP) => {
                // Relaxed: an old value of `no_zero_range` costs one more fallocate(2) call that
                // fails.
                match shared.no_zero_range.load(Ordering::Relaxed) {
                    true => FileOperation::Zeroes,
                    false => FileOperation::Allocate(ZERO_RANGE),
                }
            }
            (Op::WriteZeroes, false) if no_punch => FileOperation::Zeroes,
            (Op::WriteZeroes, false) => FileOperation::Allocate(PUNCH),
        })
    }

    /// Makes the memory of a request suitable for direct I/O. Returns false if all bounce buffers
    /// are in use.
    #[inline]
    fn align(&mut self, index: usize) -> bool {
        let (address, length) = self.shared.memory_masks;
        if !self.flights[index].is_misaligned(address, length) {
            return true;
        }
        self.bounce(index)
    }

    #[cold]
    fn bounce(&mut self, index: usize) -> bool {
        let buffer = match self.bounces.pop() {
            Some(buffer) => buffer,
            None if self.bounces_made < BOUNCES_MAX => {
                self.bounces_made += 1;
                Buffer::new((MAX_SECTORS as usize) << 9)
            }
            None => return false,
        };
        // Relaxed: no other memory access depends on this statistic.
        self.shared.counters.bounces.fetch_add(1, Ordering::Relaxed);
        self.flights[index].bounce_through(buffer);
        true
    }

    fn start(&mut self, index: usize) {
        while let Some(result) = self.push_next(index) {
            if let Some(status) = self.ended(index, result) {
                return self.outcomes.end(Tag(index as u32), status);
            }
        }
    }

    /// Starts the next operation of a request. Returns its result if it completed at once.
    #[inline]
    fn push_next(&mut self, index: usize) -> Option<i32> {
        let flight = &mut self.flights[index];
        let user_data = u64::from(flight.generation) << TAG_BITS | index as u64;
        if let FileOperation::Allocate(_) = flight.work {
            // Relaxed: `allocating` is a hint for hole queries, which would wait in the kernel for
            // the file's lock during a fallocate(2). A query that reads an old value waits.
            self.shared.allocating.fetch_add(1, Ordering::Relaxed);
        }
        let op = flight.next_op(&self.engine, self.shared.file.as_raw_fd());
        self.registered += u64::from(op.is_registered());
        // SAFETY: the memory belongs to a request in flight, this queue, or the shared zeroes.
        // If the queue is dropped before this operation has completed, `Drop` leaks the file and
        // all memory still in use.
        unsafe { self.engine.push(user_data, op) }
    }

    /// Processes a completion. Returns the tag and status of a request that has ended. Returns
    /// `None` if the request needs further operations, or if the completion is to be ignored.
    fn landed(&mut self, completion: Completion) -> Option<(Tag, Status)> {
        let index = (completion.user_data & ((1 << TAG_BITS) - 1)) as usize;
        let flight = &mut self.flights[index];
        let stale = completion.user_data >> TAG_BITS != u64::from(flight.generation);
        if completion.user_data & CANCEL_MARK != 0 || stale || flight.work == FileOperation::Idle {
            return None;
        }
        match self.ended(index, completion.result) {
            None => {
                self.start(index);
                None
            }
            Some(status) => Some((Tag(index as u32), status)),
        }
    }

    /// Processes the result of an operation. Returns the request's status, or `None` if the request
    /// needs further operations.
    #[inline]
    fn ended(&mut self, index: usize, result: i32) -> Option<Status> {
        let flight = &mut self.flights[index];
        flight.result = result;
        if let FileOperation::Allocate(_) = flight.work {
            // Relaxed: `allocating` is a hint; an old value only delays a query about holes.
            self.shared.allocating.fetch_sub(1, Ordering::Relaxed);
        }
        let status = match result {
            result if result < 0 => self.failed(index, -result),
            result => self.moved(index, result as u64),
        };
        let status = match status {
            None if self.flights[index].expired => Status::TimedOut,
            status => status?,
        };
        let flight = &mut self.flights[index];
        if flight.bounce.is_some()
            && let Some(buffer) = flight.end_bounce(status)
        {
            self.bounces.push(buffer);
        }
        flight.work = FileOperation::Idle;
        Some(status)
    }

    #[inline]
    fn moved(&mut self, index: usize, bytes: u64) -> Option<Status> {
        let flight = &mut self.flights[index];
        match flight.work {
            FileOperation::Read | FileOperation::Write(_) | FileOperation::Zeroes => {}
            // Acquire pairs with the Release in `failed`. The kernel reports a lost write to only
            // one sync, which may belong to another flush. So this flush fails, too, although its
            // own sync succeeded.
            FileOperation::Sync if self.shared.sync_failed.load(Ordering::Acquire) => {
                return Some(Status::IoError);
            }
            _ => return Some(Status::Ok),
        }
        if !flight.advance(bytes, self.shared.transfer_unit) {
            // The transfer moved no bytes: the file was truncated, or the file system is full.
            return Some(Status::IoError);
        }
        if flight.done == flight.len {
            return Some(Status::Ok);
        }
        // Relaxed: no other memory access depends on this statistic.
        self.shared.counters.short_transfers.fetch_add(1, Ordering::Relaxed);
        None
    }

    #[cold]
    fn failed(&mut self, index: usize, errno: i32) -> Option<Status> {
        let (shared, flight) = (&self.shared, &mut self.flights[index]);
        match errno {
            libc::EINTR | libc::EAGAIN if flight.retries < RETRIES_MAX => {
                flight.retries += 1;
                return None;
            }
            libc::EAGAIN | libc::EINTR => return Some(Status::NoResource),
            libc::ECANCELED if flight.expired => return Some(Status::TimedOut),
            libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL => {}
            // EPERM for a read, for example from a security module, does not mean that the drive is
            // read-only.
            libc::EPERM | libc::EROFS if flight.work == FileOperation::Read => {
                return Some(Status::IoError);
            }
            _ => {
                let durable = matches!(flight.work, FileOperation::Write(flags) if flags != 0);
                if flight.work == FileOperation::Sync || (durable && errno == libc::EIO) {
                    // Release publishes `sync_failed` to the Acquire loads in `work_of` and
                    // `moved`, which then fail flushes and FUA writes of all queues of the drive.
                    shared.sync_failed.store(true, Ordering::Release);
                }
                return Some(Status::from_errno(errno));
            }
        }
        let FileOperation::Allocate(mode) = flight.work else {
            return Some(Status::from_errno(errno));
        };
        if errno != libc::EINVAL {
            let learned = if mode == PUNCH { &shared.no_punch } else { &shared.no_zero_range };
            // Relaxed: a queue that reads an old value of `no_punch` or `no_zero_range` makes one
            // more fallocate(2) call that fails.
            learned.store(true, Ordering::Relaxed);
        }
        if flight.discards {
            return Some(Status::NotSupported);
        }
        flight.fall_back_to_zeroes(shared.zeroes);
        None
    }
}

impl DriverQueue<Native> for FileQueue {
    fn queue_rq(&mut self, rq: &Request<Native>) -> Dispatch {
        let index = rq.tag().0 as usize;
        let work = match self.work_of(rq) {
            Ok(work) => work,
            Err(status) => {
                self.flights[index].result = -status.errno();
                self.outcomes.end(rq.tag(), status);
                return Dispatch::Queued;
            }
        };
        let flight = &mut self.flights[index];
        flight.fill(work, rq);
        flight.discards = rq.op() == Op::Discard;
        if work == FileOperation::Zeroes {
            flight.fall_back_to_zeroes(self.shared.zeroes);
        }
        if rq.op().has_data() && !self.align(index) {
            self.flights[index].work = FileOperation::Idle;
            return Dispatch::DeviceBusy;
        }
        self.start(index);
        Dispatch::Queued
    }

    fn is_bounced(&self, tag: Tag) -> bool {
        self.flights[tag.0 as usize].bounce.is_some()
    }

    fn trace_data(&self, tag: Tag, moment: Moment) -> DriverData {
        completion_data(moment, format_args!("= {}", self.flights[tag.0 as usize].result))
    }

    fn commit_rqs(&mut self) {
        if self.registered > 0 {
            // Relaxed: no other memory access depends on this statistic.
            let counter = &self.shared.counters.registered;
            counter.fetch_add(std::mem::take(&mut self.registered), Ordering::Relaxed);
        }
        if let Some(why) = self.engine.take_refusal() {
            self.shared.lent.refused(&why);
        }
    }

    fn poll(&mut self, batch: &mut CompletionBatch) {
        while !batch.is_full() {
            match self.outcomes.next(|taken| self.engine.take(taken)) {
                None => return,
                Some(RequestOutcome::Ended(tag, status)) => batch.push(tag, status),
                Some(RequestOutcome::Completed(completion)) => {
                    if let Some((tag, status)) = self.landed(completion) {
                        batch.push(tag, status);
                    }
                }
            }
        }
    }

    fn timeout(&mut self, tag: Tag) -> Expired {
        let flight = &mut self.flights[tag.0 as usize];
        if flight.work != FileOperation::Idle && !flight.expired {
            flight.expired = true;
            self.engine.cancel(u64::from(flight.generation) << TAG_BITS | u64::from(tag.0));
        }
        Expired::Abandon
    }
}

impl Drop for FileQueue {
    fn drop(&mut self) {
        if self.engine.is_busy() {
            std::mem::forget(std::mem::take(&mut self.flights));
            std::mem::forget(Arc::clone(&self.shared));
        }
    }
}
