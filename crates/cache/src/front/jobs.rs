//! `CacheJob` and `VolumeRead`: requests of a cache queue that could not be answered at once, and
//! the queue's reads of the volume below.
//!
//! One queue owns these jobs and reads, and uses them on a single thread.
#![allow(unsafe_code)]

use alloc::vec::Vec;
use core::ops::Range;

use millrace_block::{Request, Segment, Status, Tag};
use millrace_machine::Machine;

use crate::memory::request_pointer::RequestPointer;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobStep {
    Read,
    Write,
    /// Flush: writes all data that became dirty in `epoch` or earlier.
    SyncAll {
        epoch: u64,
    },
    /// Durable write: writes the request's own range to the volume.
    SyncRange {
        epoch: u64,
    },
    /// Discard or write of zeroes: waits until no page of the range is being written to the volume.
    Clear,
    Below,
}

pub(crate) struct CacheJob<M: Machine> {
    rq: RequestPointer<M>,
    pub(crate) tag: Tag,
    pub(crate) step: JobStep,
    /// Pages still to be copied. In the step `SyncRange` of a FUA write, pages that need a final
    /// flush of their drives.
    pub(crate) todo: Vec<Range<u64>>,
    /// Pages of a write-through request that found no room in memory. Copied to memory once the
    /// request's earlier pages are on the volume.
    pub(crate) rest: Range<u64>,
    /// First page that the request has not sent to the volume below yet.
    pub(crate) below_to: u64,
    pub(crate) claims_from: u64,
    pub(crate) fills: u32,
    pub(crate) status: Status,
    pub(crate) errors_before: u64,
    pub(crate) is_blocked: bool,
    pub(crate) is_clearing: bool,
}

impl<M: Machine> CacheJob<M> {
    pub(crate) fn new(rq: &Request<M>, step: JobStep, errors_before: u64) -> CacheJob<M> {
        CacheJob {
            rq: RequestPointer::new(rq),
            tag: rq.tag(),
            step,
            todo: Vec::new(),
            rest: 0..0,
            below_to: 0,
            claims_from: 0,
            fills: 0,
            status: Status::Ok,
            errors_before,
            is_blocked: false,
            is_clearing: false,
        }
    }

    pub(crate) fn forget_page(&mut self, page: u64) {
        let Some(at) = self.todo.iter().position(|range| range.contains(&page)) else { return };
        let behind = page + 1..self.todo[at].end;
        self.todo[at].end = page;
        if !behind.is_empty() {
            self.todo.insert(at + 1, behind);
        }
        self.todo.retain(|range| !range.is_empty());
    }

    pub(crate) fn rq<'a>(&self) -> &'a Request<M> {
        self.rq.get()
    }
}

pub(crate) struct VolumeRead {
    /// Index of the queue's [`CacheJob`] that waits for the read; `None` for read-ahead.
    pub(crate) job: Option<usize>,
    pub(crate) page: u64,
    /// Frames that receive the data; empty if the request's memory receives the data directly.
    pub(crate) frames: Vec<u32>,
    pub(crate) segments: Vec<Segment>,
    /// Size of the volume in sectors when the read began. Meanwhile the volume may have grown.
    pub(crate) sectors: u64,
}

// SAFETY: the pointers lead into frames, or into memory of a request in flight.
unsafe impl Send for VolumeRead {}
