//! `RbdQueue`: hardware queue of a Ceph image, on one I/O thread.
//!
//! A request becomes one asynchronous call of librbd on the request's own memory. A thread of
//! librbd puts the result into the queue's inbox and wakes the I/O thread. librbd's own queue of
//! completions (`rbd_set_image_notification`) is not used: an image handle has only one, and its
//! eventfd is written for every completion. librbd cannot cancel I/O, so a request that has timed
//! out keeps its memory until librbd completes it. A read that returns too few bytes fails. A
//! completion is dropped if its tag is free or in use by another I/O. Invariant: memory and slots
//! stay in place until every completion was taken; a queue that is dropped earlier leaks them.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

use libc::{iovec, ssize_t};
use millrace_block::{
    CompletionBatch, Dispatch, DriverData, DriverQueue, Expired, Moment, Op, Request, Status, Tag,
};
use millrace_machine::{Native, lock_unpoisoned};

use super::library::{Handle, LibraryFunctions};
use super::{RbdState, behind_the_end};
use crate::common::outcomes::{RequestOutcome, RequestOutcomes, completion_data};
use crate::common::owner_queues::wake_up;
use crate::common::pieces;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct QueueOutcome {
    tag: u32,
    /// Address of librbd's completion. If the tag was used again, the address shows that this
    /// completion belongs to an earlier I/O.
    completion: usize,
    result: ssize_t,
}

struct OutcomeInbox {
    done: Mutex<Vec<QueueOutcome>>,
    wake: Arc<OwnedFd>,
}

impl OutcomeInbox {
    fn push(&self, done: QueueOutcome) {
        let mut list = lock_unpoisoned(&self.done);
        let was_empty = list.is_empty();
        list.push(done);
        drop(list);
        if was_empty {
            wake_up(&self.wake);
        }
    }
}

struct CompletionSlot {
    functions: &'static LibraryFunctions,
    inbox: Arc<OutcomeInbox>,
    tag: u32,
}

/// Called by a thread of librbd when an I/O has ended. `slot` is the [`CompletionSlot`] for the
/// I/O's tag.
///
/// # Safety
/// `slot` must belong to an `RbdQueue` that has not taken this completion yet.
unsafe extern "C" fn completed(completion: Handle, slot: *mut c_void) {
    // SAFETY: the queue keeps its slots until every completion was taken, which is after `push`.
    let CompletionSlot { functions, inbox, tag } = unsafe { &*slot.cast::<CompletionSlot>() };
    // Copies `inbox` and `tag` out of the slot: once the result is in the inbox, the I/O thread may
    // drop the queue, which frees the slot.
    let (inbox, tag) = (Arc::clone(inbox), *tag);
    // SAFETY: librbd's own completion, given back once.
    let result = unsafe {
        let result = (functions.rbd_aio_get_return_value)(completion);
        (functions.rbd_aio_release)(completion);
        result
    };
    inbox.push(QueueOutcome { tag, completion: completion.addr(), result });
}

struct RbdFlight {
    /// Address of librbd's completion; 0 while the tag is free.
    completion: usize,
    op: Op,
    len: u64,
    memory: Vec<iovec>,
    result: ssize_t,
}

pub(crate) struct RbdQueue {
    shared: Arc<RbdState>,
    inbox: Arc<OutcomeInbox>,
    slots: Box<[CompletionSlot]>,
    flights: Box<[RbdFlight]>,
    in_flight: usize,
    outcomes: RequestOutcomes<QueueOutcome>,
}

// SAFETY: raw pointers inside are to memory of requests in flight, whose bios are `Send`.
unsafe impl Send for RbdQueue {}

impl RbdQueue {
    pub(crate) fn new(shared: Arc<RbdState>, wake: Arc<OwnedFd>, depth: u32) -> RbdQueue {
        let room = depth as usize;
        let inbox = Arc::new(OutcomeInbox { done: Mutex::new(Vec::with_capacity(room)), wake });
        let functions = shared.image.cluster.functions;
        let slot = |tag| CompletionSlot { functions, inbox: Arc::clone(&inbox), tag };
        RbdQueue {
            slots: (0..depth).map(slot).collect(),
            flights: (0..depth).map(|_| RbdFlight::new()).collect(),
            in_flight: 0,
            outcomes: RequestOutcomes::new(room),
            inbox,
            shared,
        }
    }

    fn begin(&mut self, rq: &Request<Native>) -> Result<(), Status> {
        let index = rq.tag().0 as usize;
        let flight = &mut self.flights[index];
        (flight.op, flight.len) = (rq.op(), u64::from(rq.nr_sectors()) << 9);
        pieces::take(&mut flight.memory, rq);
        if let Some(status) = self.shared.refusal((rq.sector() << 9) + flight.len, flight.op) {
            flight.result = -(status.errno() as ssize_t);
            return Err(status);
        }
        let (image, functions) = (&self.shared.image, self.slots[index].functions);
        let mut completion = null_mut();
        let slot = (&raw const self.slots[index]).cast_mut().cast::<c_void>();
        // SAFETY: the slot stays until the completion was taken.
        let made =
            unsafe { (functions.rbd_aio_create_completion)(slot, completed, &raw mut completion) };
        if made < 0 {
            return Err(flight.failed(made as ssize_t, &self.shared));
        }
        // SAFETY: the memory belongs to a request in flight or to this queue's lists.
        // If the queue is dropped early, `Drop` leaks the lists of memory segments that librbd
        // still uses.
        if let Err(result) = unsafe { image.start(rq, &flight.memory, completion) } {
            // SAFETY: librbd has refused the call, so it will not call back.
            unsafe { (functions.rbd_aio_release)(completion) };
            return Err(flight.failed(result as ssize_t, &self.shared));
        }
        flight.completion = completion.addr();
        self.in_flight += 1;
        Ok(())
    }

    fn landed(&mut self, done: QueueOutcome) -> Option<(Tag, Status)> {
        let flight = self.flights.get_mut(done.tag as usize)?;
        if flight.completion == 0 || flight.completion != done.completion {
            return None;
        }
        flight.completion = 0;
        self.in_flight -= 1;
        let status = match u64::try_from(done.result) {
            Err(_) => flight.failed(done.result, &self.shared),
            Ok(bytes) => {
                flight.result = done.result;
                // A write returns its length or 0, depending on the version of librbd.
                let whole = bytes == flight.len || (bytes == 0 && flight.op != Op::Read);
                if whole && flight.op.is_write() {
                    self.shared.note_write();
                }
                if whole { Status::Ok } else { Status::IoError }
            }
        };
        Some((Tag(done.tag), status))
    }
}

impl RbdFlight {
    fn new() -> RbdFlight {
        let memory = pieces::list();
        RbdFlight { completion: 0, op: Op::Flush, len: 0, memory, result: 0 }
    }

    fn failed(&mut self, result: ssize_t, shared: &RbdState) -> Status {
        self.result = result;
        let errno = c_int::try_from(-result).unwrap_or(libc::EIO);
        if self.op == Op::Flush && errno == libc::EROFS && shared.owes_nothing() {
            return Status::Ok;
        }
        shared.tell(errno);
        match errno {
            // ENOENT or ENOTCONN: the image or its pool was removed, or the connection is closed.
            // ESHUTDOWN: the cluster has blocked this client.
            libc::ENOENT | libc::ENOTCONN | libc::ESHUTDOWN => Status::Offline,
            // EROFS for an image that is open for writing: another client has taken its lock.
            libc::EROFS if shared.is_locked => Status::Offline,
            // EINVAL: the request lies inside the size that the image had when it was opened, so
            // the image has shrunk.
            libc::EINVAL if self.op != Op::Flush => behind_the_end(self.op),
            // A refused read does not mean that the drive is read-only, so the status is an I/O
            // error.
            libc::EPERM | libc::EACCES if !self.op.is_write() => Status::IoError,
            libc::EACCES => Status::ReadOnly,
            _ => Status::from_errno(errno),
        }
    }
}

impl DriverQueue<Native> for RbdQueue {
    fn queue_rq(&mut self, rq: &Request<Native>) -> Dispatch {
        if let Err(status) = self.begin(rq) {
            self.outcomes.end(rq.tag(), status);
        }
        Dispatch::Queued
    }

    fn trace_data(&self, tag: Tag, moment: Moment) -> DriverData {
        completion_data(moment, format_args!("= {}", self.flights[tag.0 as usize].result))
    }

    fn commit_rqs(&mut self) {}

    fn poll(&mut self, batch: &mut CompletionBatch) {
        while !batch.is_full() {
            let refill = |taken: &mut Vec<QueueOutcome>| {
                std::mem::swap(&mut *lock_unpoisoned(&self.inbox.done), taken)
            };
            match self.outcomes.next(refill) {
                None => return,
                Some(RequestOutcome::Ended(tag, status)) => batch.push(tag, status),
                Some(RequestOutcome::Completed(done)) => {
                    if let Some((tag, status)) = self.landed(done) {
                        batch.push(tag, status);
                    }
                }
            }
        }
    }

    /// Abandons a request that has timed out. librbd continues until the cluster answers, and uses
    /// the request's memory until then.
    fn timeout(&mut self, _tag: Tag) -> Expired {
        Expired::Abandon
    }
}

impl Drop for RbdQueue {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            std::mem::forget(std::mem::take(&mut self.flights));
            std::mem::forget(std::mem::take(&mut self.slots));
            std::mem::forget(Arc::clone(&self.shared));
        }
    }
}

#[cfg(test)]
mod tests;
