//! What a queue of the cache has under way: requests that could not be answered at once (`Job`),
//! and reads of the volume below (`Fill`).
//!
//! Owned by a queue, which belongs to one thread. A job keeps the address of its request, which
//! stays where it is until the queue names its tag.
#![allow(unsafe_code)]

use alloc::vec::Vec;
use core::ops::Range;
use core::ptr::NonNull;

use millrace_block::{Request, Segment, Status, Tag};
use millrace_machine::Machine;

/// What comes next of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobStep {
    /// Pages are to be copied to the request.
    Read,
    /// Pages are to be copied from the request.
    Write,
    /// What was dirtied up to an epoch is to reach the volume.
    Sync {
        /// The epoch.
        epoch: u64,
        /// Where it was dirtied.
        scope: SyncScope,
    },
    /// A discard or write of zeroes waits until nothing of its range is being written.
    Clear,
    /// The volume below has the job's last operation.
    Below,
}

/// How much of the volume a sync is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncScope {
    /// All of it.
    All,
    /// The range of the request.
    Range,
}

/// A request that could not be answered at once.
pub(crate) struct Job<M: Machine> {
    rq: NonNull<Request<M>>,
    pub(crate) tag: Tag,
    pub(crate) step: JobStep,
    /// Pages that are still to be copied; of a write with FUA that is in memory, those that it has
    /// not sent itself.
    pub(crate) todo: Vec<Range<u64>>,
    /// Pages of a write through that had no room, while those before them are brought below.
    pub(crate) rest: Range<u64>,
    /// Page up to which that was done.
    pub(crate) below_to: u64,
    /// Reads of the volume below that are for it.
    pub(crate) fills: u32,
    pub(crate) status: Status,
    /// Failed writes to the volume when it began to wait.
    pub(crate) errors_before: u64,
    /// It stands in the queue's list of those that wait.
    pub(crate) is_blocked: bool,
    /// Its range is known as one that is being cleared.
    pub(crate) is_clearing: bool,
}

// SAFETY: the request is the driver's until its tag is named, and is only read.
unsafe impl<M: Machine> Send for Job<M> {}

impl<M: Machine> Job<M> {
    /// A job of a request that was handed over.
    pub(crate) fn new(rq: &Request<M>, step: JobStep, errors_before: u64) -> Job<M> {
        Job {
            rq: NonNull::from(rq),
            tag: rq.tag(),
            step,
            todo: Vec::new(),
            rest: 0..0,
            below_to: 0,
            fills: 0,
            status: Status::Ok,
            errors_before,
            is_blocked: false,
            is_clearing: false,
        }
    }

    /// Takes a page out of `todo`.
    pub(crate) fn forget_page(&mut self, page: u64) {
        let Some(at) = self.todo.iter().position(|range| range.contains(&page)) else { return };
        let behind = page + 1..self.todo[at].end;
        self.todo[at].end = page;
        if !behind.is_empty() {
            self.todo.insert(at + 1, behind);
        }
        self.todo.retain(|range| !range.is_empty());
    }

    /// The request.
    pub(crate) fn rq<'a>(&self) -> &'a Request<M> {
        // SAFETY: a request lies in its tag set, which outlives the queue, and nobody else has it
        // until the queue names its tag, which ends the job. The lifetime is that of a turn.
        unsafe { self.rq.as_ref() }
    }
}

/// A read of the volume below.
pub(crate) struct Fill {
    /// The job that waits for it; none if it is ahead of a stream.
    pub(crate) job: Option<usize>,
    /// First page.
    pub(crate) page: u64,
    /// The frames that it fills; none if it goes straight to the request's memory.
    pub(crate) frames: Vec<u32>,
    pub(crate) segments: Vec<Segment>,
    /// Sectors of the volume when it began, which may be more when it ends.
    pub(crate) sectors: u64,
}

// SAFETY: the pointers are into frames, or into memory of a request in flight.
unsafe impl Send for Fill {}
