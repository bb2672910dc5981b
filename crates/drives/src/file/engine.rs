//! `Engine`: executes the operations of a file queue, through the reactor of the I/O thread or
//! directly on it.
//!
//! Invariant: each pushed operation has exactly one result, returned by `push` or as a completion,
//! even if it is cancelled.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use libc::iovec;
use millrace_block::Arena;
use millrace_reactor::{
    Completion, FileCarrier, FileDemand, FileRef, Handle, Op, PoolShare, Source, run_file_op,
};

use crate::common::thread_bound::ThreadBound;

/// Number that marks the completions of cancel operations, which are ignored.
pub(crate) const CANCEL_MARK: u64 = 1 << 47;

pub(crate) enum Engine {
    Ring(ThreadBound<Ring>),
    Inline(RawFd),
    #[cfg(test)]
    Script(Box<super::tests::Scripted>),
}

pub(crate) struct Ring {
    handle: Handle,
    source: Source,
    file: FileRef,
    arenas: Vec<Arc<Arena>>,
}

impl Ring {
    /// Opens a list of completions (`Source`) on the calling thread's reactor, and registers
    /// `arenas` (memory lent by a cache) with the kernel. Fails if the system cannot start a thread
    /// for operations that block.
    pub(crate) fn new(
        handle: Handle,
        fd: RawFd,
        (share, demand): (&Arc<PoolShare>, FileDemand),
        mut arenas: Vec<Arc<Arena>>,
    ) -> io::Result<Ring> {
        let source = handle.source();
        let carrier = handle.open_files(source, share, demand).inspect_err(|_| {
            handle.release(source);
        })?;
        let file = match carrier {
            FileCarrier::Ring => handle.register_file(fd),
            FileCarrier::Threads => FileRef::Raw(fd),
        };
        if carrier == FileCarrier::Threads {
            arenas.clear();
        }
        for arena in &arenas {
            let piece_bytes = piece_bytes(arena.len_bytes());
            // SAFETY: the arena stays mapped while it is in the list `arenas`.
            // `drop` unregisters this memory from the ring, or leaks `arenas` so that the memory
            // stays mapped.
            unsafe { handle.lend(arena.start(), arena.len_bytes(), piece_bytes) };
            handle.register_lent(arena.start(), arena.len_bytes());
        }
        Ok(Ring { handle, source, file, arenas })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.handle.pending(self.source) == 0 {
            self.handle.unregister_file(self.file);
            for arena in &self.arenas {
                // SAFETY: no operation of this drive is in flight.
                // If other drives have registered the same memory with the ring, the memory stays
                // registered.
                unsafe { self.handle.take_back(arena.start(), arena.len_bytes()) };
            }
        } else {
            std::mem::forget(std::mem::take(&mut self.arenas));
        }
        self.handle.release(self.source);
    }
}

/// Returns the length of the io_uring buffers as which lent memory is registered. Buffers are as
/// long as io_uring allows, because all segments of a vectored operation must lie in one buffer.
fn piece_bytes(arena_bytes: usize) -> usize {
    const MOST: usize = 1 << 30;
    arena_bytes.clamp(1, MOST)
}

impl Engine {
    /// Starts an operation. A ring submits the operation in the reactor's next iteration and
    /// reports the completion later. Other engines execute the operation at once and return its
    /// result.
    ///
    /// # Safety
    /// Memory and descriptors that `op` names must stay valid until the result is taken.
    #[inline]
    pub(crate) unsafe fn push(&self, user_data: u64, op: Op) -> Option<i32> {
        match self {
            // SAFETY: promised by the caller.
            Engine::Ring(ring) => unsafe {
                ring.get().handle.push(ring.get().source, user_data, op);
            },
            // SAFETY: promised by the caller.
            Engine::Inline(_) => return Some(unsafe { run_file_op(&op) }),
            #[cfg(test)]
            Engine::Script(script) => {
                script.note(user_data, op);
                // SAFETY: promised by the caller.
                return unsafe { script.engine.push(user_data, op) };
            }
        }
        None
    }

    /// Requests the cancellation of an operation, which completes in any case.
    pub(crate) fn cancel(&self, user_data: u64) {
        match self {
            Engine::Ring(ring) => {
                let Ring { handle, source, .. } = ring.get();
                let op = Op::Cancel { source: *source, user_data };
                // SAFETY: a cancel names no memory.
                unsafe { handle.push(*source, CANCEL_MARK | user_data, op) };
            }
            Engine::Inline(_) => {}
            #[cfg(test)]
            Engine::Script(script) => script.engine.cancel(user_data),
        }
    }

    #[inline]
    pub(crate) fn take(&self, into: &mut Vec<Completion>) {
        match self {
            Engine::Ring(ring) => ring.get().handle.take(ring.get().source, into),
            Engine::Inline(_) => {}
            #[cfg(test)]
            Engine::Script(script) => script.take(into),
        }
    }

    /// Returns true if I/O of the drive's queue is in flight, so that its memory must stay valid.
    /// Always returns true on a thread that does not own the ring.
    pub(crate) fn is_busy(&self) -> bool {
        match self {
            Engine::Ring(ring) if ring.is_here() => {
                ring.get().handle.pending(ring.get().source) > 0
            }
            Engine::Ring(_) => true,
            Engine::Inline(_) => false,
            #[cfg(test)]
            Engine::Script(script) => script.engine.is_busy(),
        }
    }

    #[inline]
    pub(crate) fn file(&self) -> FileRef {
        match self {
            Engine::Ring(ring) => ring.get().file,
            Engine::Inline(fd) => FileRef::Raw(*fd),
            #[cfg(test)]
            Engine::Script(script) => script.engine.file(),
        }
    }

    /// Returns the registered region that contains all these segments, if there is one.
    #[inline]
    pub(crate) fn fixed_buffer(&self, pieces: &[iovec]) -> Option<u16> {
        match (self, pieces) {
            (Engine::Ring(ring), [piece]) => {
                ring.get().handle.fixed_buffer(piece.iov_base.cast(), piece.iov_len)
            }
            // Several segments of a request rarely lie in one registered buffer, unless they belong
            // to a cache, which has registered its whole memory (`arenas`). So without a cache, no
            // buffer is looked up.
            (Engine::Ring(ring), pieces) if !ring.get().arenas.is_empty() => {
                ring.get().handle.fixed_vector(pieces)
            }
            (Engine::Ring(_) | Engine::Inline(_), _) => None,
            #[cfg(test)]
            (Engine::Script(script), pieces) => script.engine.fixed_buffer(pieces),
        }
    }

    /// Takes the error with which the kernel last refused to register a cache's memory.
    pub(crate) fn take_refusal(&self) -> Option<io::Error> {
        match self {
            Engine::Ring(ring) if !ring.get().arenas.is_empty() => ring.get().handle.take_refusal(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_registered_whole_up_to_what_a_ring_takes() {
        for (arena, piece) in [(4096, 4096), (1 << 30, 1 << 30), (1 << 40, 1 << 30)] {
            assert_eq!(piece_bytes(arena), piece, "{arena}");
        }
    }
}
