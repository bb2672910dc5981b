//! `Engine`: what carries out a file queue's operations, the reactor of its I/O thread (which may
//! have the process's threads do it), or whoever submits.
//!
//! Owned by one file queue, on the thread that opened it. Called by `queue.rs`; calls the reactor.
//! Invariant: each pushed operation gives exactly one result, with the push or as a
//! completion, also after a cancel.
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

/// Marks completions of cancels, which nobody waits for.
pub(crate) const CANCEL_MARK: u64 = 1 << 47;

/// Carries out operations.
pub(crate) enum Engine {
    /// The reactor of the I/O thread.
    Ring(ThreadBound<Ring>),
    /// The I/O thread, at once.
    Inline(RawFd),
    /// Another engine, of which a test notes the operations and changes results.
    #[cfg(test)]
    Script(Box<super::tests::Scripted>),
}

/// An inbox of the reactor, with the file registered.
pub(crate) struct Ring {
    handle: Handle,
    source: Source,
    file: FileRef,
    /// What is lent to the reactor.
    arenas: Vec<Arc<Arena>>,
}

impl Ring {
    /// Opens an inbox on the calling thread's reactor, for operations many of which lie in these
    /// arenas: they are registered now, which may take long, and not when the first operation waits
    /// for it.
    ///
    /// # Errors
    /// The system's refusal of a thread for operations that block.
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
            // SAFETY: it is mapped as long as this list has it, which `drop` takes it back from, or
            // leaks.
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
                // SAFETY: this drive has nothing outstanding, and others lend it for themselves.
                unsafe { self.handle.take_back(arena.start(), arena.len_bytes()) };
            }
        } else {
            std::mem::forget(std::mem::take(&mut self.arenas));
        }
        self.handle.release(self.source);
    }
}

/// Bytes of memory that is lent that are registered at once: all of it up to what a ring takes, as
/// lists of pieces of memory must lie in one region.
fn piece_bytes(arena_bytes: usize) -> usize {
    const MOST: usize = 1 << 30;
    arena_bytes.clamp(1, MOST)
}

impl Engine {
    /// Starts an operation, which is under way after the thread's next turn and gives a completion;
    /// or carries it out, and gives its result here.
    ///
    /// # Safety
    /// Memory and descriptors that `op` names stay valid until its result is taken.
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

    /// Asks for an early end of an operation, which completes in any case.
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

    /// Moves all completions to the end of `into`.
    #[inline]
    pub(crate) fn take(&self, into: &mut Vec<Completion>) {
        match self {
            Engine::Ring(ring) => ring.get().handle.take(ring.get().source, into),
            Engine::Inline(_) => {}
            #[cfg(test)]
            Engine::Script(script) => script.take(into),
        }
    }

    /// Whether memory may still be in use by operations; true if this is not the owner's thread.
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

    /// The file, as operations name it.
    #[inline]
    pub(crate) fn file(&self) -> FileRef {
        match self {
            Engine::Ring(ring) => ring.get().file,
            Engine::Inline(fd) => FileRef::Raw(*fd),
            #[cfg(test)]
            Engine::Script(script) => script.engine.file(),
        }
    }

    /// The registered region that holds all of these pieces of memory, if one does.
    #[inline]
    pub(crate) fn fixed_buffer(&self, pieces: &[iovec]) -> Option<u16> {
        match (self, pieces) {
            (Engine::Ring(ring), [piece]) => {
                ring.get().handle.fixed_buffer(piece.iov_base.cast(), piece.iov_len)
            }
            // Of a drive without a cache few requests have several pieces in one region.
            (Engine::Ring(ring), pieces) if !ring.get().arenas.is_empty() => {
                ring.get().handle.fixed_vector(pieces)
            }
            (Engine::Ring(_) | Engine::Inline(_), _) => None,
            #[cfg(test)]
            (Engine::Script(script), pieces) => script.engine.fixed_buffer(pieces),
        }
    }

    /// Why the kernel refused to register memory that is lent, if it did since the last call.
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
