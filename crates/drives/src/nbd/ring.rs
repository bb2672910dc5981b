//! `Ring`: gives a queue access to the reactor of its thread.
//!
//! The sending and receiving sides of the queue's connections push operations, each through its own
//! `ConnectionRing`. The queue takes the completions.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

use millrace_reactor::{Completion, Handle, Op, Source, Wait};

pub(crate) struct Ring {
    handle: Handle,
    source: Source,
}

impl Ring {
    pub(crate) fn new(handle: Handle) -> Ring {
        Ring { source: handle.source(), handle }
    }

    pub(crate) fn take(&self, into: &mut Vec<Completion>) {
        self.handle.take(self.source, into);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.handle.pending(self.source) == 0
    }

    pub(crate) fn turn(&self, wait: Wait) -> io::Result<usize> {
        self.handle.turn(wait)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.handle.release(self.source);
    }
}

/// Access to the ring for one side of a connection, sending or receiving. Each side has at most one
/// operation in flight.
pub(crate) struct ConnectionRing<'a> {
    pub(crate) ring: &'a Ring,
    pub(crate) fd: RawFd,
    pub(crate) user_data: u64,
}

impl ConnectionRing<'_> {
    /// Queues an operation, which the reactor submits in its next iteration.
    ///
    /// # Safety
    /// Memory and descriptors that `op` names must stay valid until its completion is taken.
    pub(crate) unsafe fn push(&self, op: Op) {
        // SAFETY: promised by the caller.
        unsafe { self.ring.handle.push(self.ring.source, self.user_data, op) };
    }
}
