//! `RequestPointer`: the address of a request that a cache queue has not completed yet.
//!
//! Jobs and pending cache hits contain a `RequestPointer`. The queue removes the job or the hit
//! before it completes the request's tag.

#![allow(unsafe_code)]

use core::ptr::NonNull;

use millrace_block::Request;
use millrace_machine::Machine;

/// Address of a request of a queue. The request stays in place, in its tag set, which outlives the
/// queue.
pub(crate) struct RequestPointer<M: Machine>(NonNull<Request<M>>);

// SAFETY: the request belongs to the driver until its tag is completed, and is only read.
unsafe impl<M: Machine> Send for RequestPointer<M> {}

impl<M: Machine> RequestPointer<M> {
    pub(crate) fn new(rq: &Request<M>) -> RequestPointer<M> {
        RequestPointer(NonNull::from(rq))
    }

    pub(crate) fn get<'a>(&self) -> &'a Request<M> {
        // SAFETY: the request belongs to the queue until the queue completes its tag. Before that,
        // the queue ends the request's job or takes the request from its list of pending hits. No
        // caller keeps the reference after its call into the queue (such as `poll`) has returned.
        unsafe { self.0.as_ref() }
    }
}
