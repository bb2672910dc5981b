//! Bounces: read-modify-write of the blocks at the ends of an unaligned write or zeroing.
//!
//! A write first reads the blocks at its ends, copies the bytes around its payload into place and
//! then writes whole blocks. A zeroing reads and writes back only the blocks at its ends. A
//! [`Bounce`] is the state of one such request.
//!
//! Invariant: a request has one buffer from its start. The buffer holds the blocks of the payload,
//! then the original contents of the first and the last block.

use std::ops::Range;

use millrace_block::{Bio, Op, OpFlags, Sector};

use crate::nbd::memory::PoolBuffer;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnalignedRequest {
    pub(crate) block_bytes: u64,
    pub(crate) start: u64,
    pub(crate) cover: u64,
    /// Number of bytes between the start of the first block and the start of the request.
    pub(crate) head: u64,
    /// Number of bytes between the end of the request and the end of its last block.
    tail: u64,
}

impl UnalignedRequest {
    pub(crate) fn new(offset: u64, length: u64, block_bytes: u32) -> UnalignedRequest {
        let block_bytes = u64::from(block_bytes);
        let start = offset & !(block_bytes - 1);
        let end = (offset + length).next_multiple_of(block_bytes);
        let (head, tail) = (offset - start, end - (offset + length));
        UnalignedRequest { block_bytes, start, cover: end - start, head, tail }
    }

    /// Returns true if the first block has to be read, because the range covers only a part of it.
    fn first(&self) -> bool {
        self.head > 0 || (self.tail > 0 && self.cover == self.block_bytes)
    }

    fn last(&self) -> bool {
        self.tail > 0 && self.cover > self.block_bytes
    }

    /// Returns start and length, in bytes, of the blocks that the request covers completely. The
    /// length may be 0.
    pub(crate) fn inner(&self) -> (u64, u64) {
        let start = self.start + if self.first() { self.block_bytes } else { 0 };
        let end = self.start + self.cover - if self.last() { self.block_bytes } else { 0 };
        (start, end.saturating_sub(start))
    }

    pub(crate) fn sectors(&self) -> Range<Sector> {
        self.start >> 9..(self.start + self.cover) >> 9
    }
}

#[derive(Debug)]
pub(crate) struct Bounce {
    pub(crate) unaligned: UnalignedRequest,
    /// True while the last block is read or written back, false while the first is.
    is_last: bool,
    /// True while the block is written back, false while it is read.
    is_write: bool,
    /// Offset in the buffer at which the original contents of the first block begin. The original
    /// contents of the last block follow.
    edges_at: usize,
}

impl Bounce {
    /// Returns the offset in the buffer of the current block's original contents, and the first
    /// sector of that block.
    fn edge(&self) -> (usize, Sector) {
        let UnalignedRequest { block_bytes, start, cover, .. } = self.unaligned;
        match self.is_last {
            false => (self.edges_at, start >> 9),
            true => (self.edges_at + block_bytes as usize, (start + cover - block_bytes) >> 9),
        }
    }

    pub(crate) fn bio(&self, buffer: &PoolBuffer, flags: OpFlags) -> Bio {
        let ((at, sector), len_bytes) = (self.edge(), self.unaligned.block_bytes as u32);
        if !self.is_write {
            return buffer.bio_at(at, Op::Read, sector, len_bytes);
        }
        let bio = buffer.bio_at(at, Op::Write, sector, len_bytes);
        bio.with_flags(flags.without(OpFlags::NOUNMAP))
    }

    /// Returns the bytes that the request changes in the current block (the first or the last).
    fn ours(&self) -> Range<usize> {
        let UnalignedRequest { block_bytes, head, tail, cover, .. } = self.unaligned;
        let start = if self.is_last { 0 } else { head };
        let ends_later = !self.is_last && cover > block_bytes;
        let end = if ends_later { block_bytes } else { block_bytes - tail };
        start as usize..end as usize
    }

    /// Advances to the next step of a write or zeroing. Returns false if all steps are done.
    pub(crate) fn next(&mut self, op: Op, buffer: &mut PoolBuffer) -> bool {
        let ((at, _), ours) = (self.edge(), self.ours());
        let (bytes, block_bytes) = (buffer.bytes_mut(), self.unaligned.block_bytes as usize);
        if op == Op::Write {
            // Copies the bytes around the payload from the block that was read to the block to be
            // written.
            let to = if self.is_last { self.unaligned.cover as usize - block_bytes } else { 0 };
            bytes.copy_within(at..at + ours.start, to);
            bytes.copy_within(at + ours.end..at + block_bytes, to + ours.end);
        } else if !self.is_write {
            bytes[at + ours.start..at + ours.end].fill(0);
            self.is_write = true;
            return true;
        }
        self.is_write = false;
        !std::mem::replace(&mut self.is_last, true) && self.unaligned.last()
    }
}

pub(crate) fn first_bounce(unaligned: UnalignedRequest, edges_at: usize) -> Option<Box<Bounce>> {
    let (first, is_last) = (unaligned.first(), !unaligned.first());
    let bounce = || Box::new(Bounce { unaligned, is_last, is_write: false, edges_at });
    (first || unaligned.last()).then(bounce)
}

#[cfg(test)]
mod tests;
