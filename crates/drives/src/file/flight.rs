//! `FileFlight`: one request to a file, from preparation to completion.
//!
//! Each tag has a preallocated flight with a list of memory segments. The flight handles short
//! transfers, bounce buffers, and the fall-back from zeroing a range to writing zeroes. The queue
//! starts the flight's operations. Invariant: `done` is the number of bytes transferred so far, of
//! `len` in total. `memory[first..]` is the memory for the remaining bytes.
#![allow(unsafe_code)]

use libc::iovec;
use millrace_block::{Buffer, Request, Status};
use millrace_machine::Native;
use millrace_reactor::{FileRef, Op};

use super::engine::Engine;
use crate::common::pieces::{self, PIECES};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FileOperation {
    #[default]
    Idle,
    Read,
    Write(i32),
    Sync,
    /// Zero or deallocate a range of a file with fallocate(2). Contains the mode.
    Allocate(i32),
    /// Discard or zero a range of a block device with an ioctl. Contains the request code.
    Device(u64),
    /// Write zeroes, because the file system cannot zero a range.
    Zeroes,
}

#[derive(Default)]
pub(crate) struct FileFlight {
    pub(crate) work: FileOperation,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) done: u64,
    pub(crate) memory: Vec<iovec>,
    pub(crate) first: usize,
    /// The request's own memory segments, while `memory` contains the bounce buffer.
    scattered: Vec<iovec>,
    pub(crate) bounce: Option<Buffer>,
    /// Number of uses of this tag, to recognise completions of earlier uses.
    pub(crate) generation: u16,
    pub(crate) retries: u16,
    /// Result of the last operation: bytes, or a negative errno.
    pub(crate) result: i32,
    pub(crate) expired: bool,
    /// True if the request is a discard. If the file system cannot deallocate the range, a discard
    /// fails with `NotSupported`, but a write-zeroes request writes zeroes instead.
    pub(crate) discards: bool,
}

impl FileFlight {
    pub(crate) fn new() -> FileFlight {
        FileFlight { memory: pieces::list(), ..FileFlight::default() }
    }

    #[inline]
    pub(crate) fn fill(&mut self, work: FileOperation, rq: &Request<Native>) {
        self.work = work;
        self.offset = rq.sector() << 9;
        self.len = u64::from(rq.nr_sectors()) << 9;
        (self.done, self.first, self.retries, self.expired) = (0, 0, 0, false);
        self.generation = self.generation.wrapping_add(1);
        pieces::take(&mut self.memory, rq);
    }

    #[inline]
    pub(crate) fn is_misaligned(&self, address_mask: usize, length_mask: usize) -> bool {
        let wrong = |piece: &iovec| {
            piece.iov_base.addr() & address_mask != 0 || piece.iov_len & length_mask != 0
        };
        (address_mask | length_mask) != 0 && self.memory.iter().any(wrong)
    }

    pub(crate) fn bounce_through(&mut self, mut buffer: Buffer) {
        let start = buffer.as_mut_ptr();
        if let FileOperation::Write(_) = self.work {
            self.copy(start, CopyDirection::ToBounce, &self.memory);
        }
        std::mem::swap(&mut self.scattered, &mut self.memory);
        self.memory.clear();
        self.memory.push(iovec { iov_base: start.cast(), iov_len: self.len as usize });
        self.bounce = Some(buffer);
    }

    /// Ends the use of the bounce buffer and returns it. The data of a successful read are copied
    /// to the request's memory.
    pub(crate) fn end_bounce(&mut self, status: Status) -> Option<Buffer> {
        let mut buffer = self.bounce.take()?;
        if status.is_ok() && self.work == FileOperation::Read {
            self.copy(buffer.as_mut_ptr(), CopyDirection::FromBounce, &self.scattered);
        }
        Some(buffer)
    }

    fn copy(&self, mut at: *mut u8, way: CopyDirection, pieces: &[iovec]) {
        for piece in pieces {
            let (memory, len) = (piece.iov_base.cast::<u8>(), piece.iov_len);
            // SAFETY: the pieces are valid memory of a request in flight.
            // The bounce buffer is at least as long as all pieces, and only this flight uses it.
            unsafe {
                match way {
                    CopyDirection::ToBounce => std::ptr::copy_nonoverlapping(memory, at, len),
                    CopyDirection::FromBounce => std::ptr::copy_nonoverlapping(at, memory, len),
                }
            }
            at = at.wrapping_add(len);
        }
    }

    /// Adds `bytes` to the number of transferred bytes, which is `len` at most. Unless the request
    /// is complete, rounds the sum down to a multiple of `unit`. Returns false if there is no
    /// progress.
    #[inline]
    pub(crate) fn advance(&mut self, bytes: u64, unit: u64) -> bool {
        let done = (self.done + bytes).min(self.len);
        let done = if done == self.len { done } else { done - done % unit };
        let mut step = (done - self.done) as usize;
        let progress = step > 0;
        self.done = done;
        while step > 0 && self.work != FileOperation::Zeroes {
            let piece = &mut self.memory[self.first];
            let part = step.min(piece.iov_len);
            piece.iov_base = piece.iov_base.wrapping_byte_add(part);
            piece.iov_len -= part;
            step -= part;
            self.first += usize::from(piece.iov_len == 0);
        }
        progress
    }

    pub(crate) fn fall_back_to_zeroes(&mut self, zeroes: &Buffer) {
        self.work = FileOperation::Zeroes;
        let iov_base = zeroes.as_ptr().cast_mut().cast();
        self.memory.clear();
        self.memory.resize(PIECES, iovec { iov_base, iov_len: zeroes.len() });
    }

    #[inline]
    pub(crate) fn next_op(&self, engine: &Engine, fd: i32) -> Op {
        let (file, offset, rest) = (engine.file(), self.offset + self.done, self.len - self.done);
        match self.work {
            FileOperation::Idle => Op::Nop,
            FileOperation::Read | FileOperation::Write(_) => self.transfer_op(engine, file, offset),
            FileOperation::Sync => Op::Fdatasync { file },
            FileOperation::Allocate(mode) => Op::Fallocate { file, mode, offset, len: rest },
            FileOperation::Device(request) => Op::Ioctl { fd, request, range: [offset, rest] },
            FileOperation::Zeroes => self.zeroes_op(file, offset, rest),
        }
    }

    #[inline]
    fn transfer_op(&self, engine: &Engine, file: FileRef, offset: u64) -> Op {
        let rest = &self.memory[self.first..];
        let buffer = engine.fixed_buffer(rest);
        let (iov, count) = (rest.as_ptr(), rest.len() as u32);
        match (self.work, rest) {
            (FileOperation::Write(rw_flags), [piece]) => {
                let (buf, len) = (piece.iov_base.cast_const().cast(), piece.iov_len as u32);
                Op::Write { file, buf, len, offset, buffer, rw_flags }
            }
            (FileOperation::Write(rw_flags), _) => {
                Op::WriteV { file, iov, count, offset, buffer, rw_flags }
            }
            (_, [piece]) => {
                let (buf, len) = (piece.iov_base.cast(), piece.iov_len as u32);
                Op::Read { file, buf, len, offset, buffer }
            }
            _ => Op::ReadV { file, iov, count, offset, buffer },
        }
    }

    fn zeroes_op(&self, file: FileRef, offset: u64, rest: u64) -> Op {
        let piece = &self.memory[0];
        let unit = piece.iov_len as u64;
        if rest < unit {
            let buf = piece.iov_base.cast_const().cast();
            return Op::Write { file, buf, len: rest as u32, offset, buffer: None, rw_flags: 0 };
        }
        let count = (rest / unit).min(self.memory.len() as u64) as u32;
        let iov = self.memory.as_ptr();
        Op::WriteV { file, iov, count, offset, buffer: None, rw_flags: 0 }
    }
}

#[derive(Clone, Copy)]
enum CopyDirection {
    ToBounce,
    FromBounce,
}
