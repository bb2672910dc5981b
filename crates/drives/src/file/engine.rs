//! `Engine`: executes the operations of a file queue, either through the I/O thread's reactor or by
//! blocking system calls.
//!
//! Invariant: each pushed operation has exactly one result, returned by `push` or as a completion,
//! even if it is cancelled.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use libc::iovec;
use millrace_block::Arena;
use millrace_reactor::{Completion, FileCarrier, FileRef, Handle, Op, Source, run_file_op};

use super::FileDriver;
use crate::common::thread_bound::ThreadBound;

/// Bit in the user data of cancel operations, whose completions are ignored.
pub(crate) const CANCEL_MARK: u64 = 1 << 47;

/// Executes a queue's operations: through `ring` or, if `ring` is `None`, on the I/O thread itself.
pub(crate) struct Engine {
    ring: Option<ThreadBound<Ring>>,
    fd: RawFd,
    #[cfg(test)]
    pub(super) script: Option<super::tests::Scripted>,
}

pub(crate) struct Ring {
    handle: Handle,
    source: Source,
    file: FileRef,
    arenas: Vec<Arc<Arena>>,
}

impl Ring {
    /// Prepares the calling thread's reactor for the operations of a queue. If io_uring executes
    /// the operations, registers `arenas`, memory that a cache lends to the drive, with the kernel.
    /// Fails if the system cannot start a thread for operations that block.
    fn new(handle: Handle, driver: &FileDriver, depth: u32) -> io::Result<Ring> {
        let fd = driver.shared.file.as_raw_fd();
        let mut arenas = driver.shared.lent.arenas();
        let source = handle.source();
        let carrier = handle.open_files(source, &driver.share, driver.demand(depth));
        let carrier = carrier.inspect_err(|_| handle.release(source))?;
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
                // `take_back` keeps the memory registered if another drive has lent it to the same
                // ring.
                unsafe { self.handle.take_back(arena.start(), arena.len_bytes()) };
            }
        } else {
            std::mem::forget(std::mem::take(&mut self.arenas));
        }
        self.handle.release(self.source);
    }
}

/// Returns the length of each io_uring buffer that is registered for memory lent by a cache. All
/// segments of a vectored operation must lie in one buffer. So the buffers are as long as io_uring
/// allows, up to 1 GiB.
fn piece_bytes(arena_bytes: usize) -> usize {
    arena_bytes.clamp(1, 1 << 30)
}

impl Engine {
    pub(crate) fn ring(handle: Handle, driver: &FileDriver, depth: u32) -> io::Result<Engine> {
        let ring = Ring::new(handle, driver, depth)?;
        Ok(Engine { ring: Some(ThreadBound::new(ring)), ..Engine::inline(driver) })
    }

    pub(crate) fn inline(driver: &FileDriver) -> Engine {
        Engine {
            ring: None,
            fd: driver.shared.file.as_raw_fd(),
            #[cfg(test)]
            script: None,
        }
    }

    #[inline]
    fn here(&self) -> Option<&Ring> {
        self.ring.as_ref().map(ThreadBound::get)
    }

    /// Starts an operation. A ring submits the operation in the reactor's next iteration and
    /// reports the completion later. Without a ring, the operation is executed at once, and its
    /// result is returned.
    ///
    /// # Safety
    /// Memory and descriptors that `op` names must stay valid until the result is taken.
    #[inline]
    pub(crate) unsafe fn push(&self, user_data: u64, op: Op) -> Option<i32> {
        #[cfg(test)]
        self.script.iter().for_each(|script| script.note(user_data, op));
        match self.here() {
            // SAFETY: promised by the caller.
            Some(ring) => unsafe { ring.handle.push(ring.source, user_data, op) },
            // SAFETY: promised by the caller.
            None => return Some(unsafe { run_file_op(&op) }),
        }
        None
    }

    pub(crate) fn cancel(&self, user_data: u64) {
        if let Some(Ring { handle, source, .. }) = self.here() {
            let op = Op::Cancel { source: *source, user_data };
            // SAFETY: a cancel names no memory.
            unsafe { handle.push(*source, CANCEL_MARK | user_data, op) };
        }
    }

    #[inline]
    pub(crate) fn take(&self, into: &mut Vec<Completion>) {
        if let Some(ring) = self.here() {
            ring.handle.take(ring.source, into);
        }
        #[cfg(test)]
        self.script.iter().for_each(|script| script.change(into));
    }

    /// Returns true if I/O of the drive's queue may be in flight, so that its memory must stay
    /// valid. A thread that does not own the ring cannot find out, and always gets true.
    pub(crate) fn is_busy(&self) -> bool {
        let is_busy = |ring: &Ring| ring.handle.pending(ring.source) > 0;
        self.ring.as_ref().is_some_and(|ring| !ring.is_here() || is_busy(ring.get()))
    }

    #[inline]
    pub(crate) fn file(&self) -> FileRef {
        self.here().map_or(FileRef::Raw(self.fd), |ring| ring.file)
    }

    #[inline]
    pub(crate) fn fixed_buffer(&self, pieces: &[iovec]) -> Option<u16> {
        let ring = self.here()?;
        match pieces {
            [piece] => ring.handle.fixed_buffer(piece.iov_base.cast(), piece.iov_len),
            // Several segments rarely lie in one registered buffer, except if a cache has
            // registered its whole memory (`arenas`). So without `arenas`, no buffer is looked up.
            pieces if !ring.arenas.is_empty() => ring.handle.fixed_vector(pieces),
            _ => None,
        }
    }

    pub(crate) fn take_refusal(&self) -> Option<io::Error> {
        self.here().filter(|ring| !ring.arenas.is_empty())?.handle.take_refusal()
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
