//! `Ring`: a queue's inbox on the reactor of its thread.
//!
//! Owns the inbox; does no more than name it at each call. Used by `queue.rs`, which takes what
//! comes in, and by both sides of a connection, which push.
#![allow(unsafe_code)]

use std::io;

use millrace_reactor::{Completion, Handle, Op, Source, Wait};

/// The thread's reactor.
pub(crate) struct Ring {
    handle: Handle,
    source: Source,
}

impl Ring {
    /// An inbox on the reactor of the calling thread.
    pub(crate) fn new(handle: Handle) -> Ring {
        Ring { source: handle.source(), handle }
    }

    /// Starts an operation; it is under way after the thread's next turn.
    ///
    /// # Safety
    /// Memory and descriptors that `op` names stay valid until its completion is taken.
    pub(crate) unsafe fn push(&self, user_data: u64, op: Op) {
        // SAFETY: promised by the caller.
        unsafe { self.handle.push(self.source, user_data, op) };
    }

    /// Moves all completions to the end of `into`.
    pub(crate) fn take(&self, into: &mut Vec<Completion>) {
        self.handle.take(self.source, into);
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.handle.pending(self.source) == 0
    }

    /// A turn of the reactor, for a queue that is dropped.
    ///
    /// # Errors
    /// If the ring itself fails.
    pub(crate) fn turn(&self, wait: Wait) -> io::Result<usize> {
        self.handle.turn(wait)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.handle.release(self.source);
    }
}
