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
pub(crate) struct Unaligned {
    pub(crate) block_bytes: u64,
    pub(crate) start: u64,
    pub(crate) cover: u64,
    /// Number of bytes between the start of the first block and the start of the request.
    pub(crate) head: u64,
    /// Number of bytes between the end of the request and the end of its last block.
    tail: u64,
}

impl Unaligned {
    pub(crate) fn new(offset: u64, length: u64, block_bytes: u32) -> Unaligned {
        let block_bytes = u64::from(block_bytes);
        let start = offset & !(block_bytes - 1);
        let end = (offset + length).next_multiple_of(block_bytes);
        let (head, tail) = (offset - start, end - (offset + length));
        Unaligned { block_bytes, start, cover: end - start, head, tail }
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BounceStep {
    ReadFirst,
    WriteFirst,
    ReadLast,
    WriteLast,
}

#[derive(Debug)]
pub(crate) struct Bounce {
    pub(crate) unaligned: Unaligned,
    step: BounceStep,
    /// Offset in the buffer at which the original contents of the first and the last block begin.
    edges_at: usize,
}

impl Bounce {
    fn edge(&self) -> (usize, Sector) {
        let Unaligned { block_bytes, start, cover, .. } = self.unaligned;
        match self.step {
            BounceStep::ReadFirst | BounceStep::WriteFirst => (self.edges_at, start >> 9),
            BounceStep::ReadLast | BounceStep::WriteLast => {
                (self.edges_at + block_bytes as usize, (start + cover - block_bytes) >> 9)
            }
        }
    }

    pub(crate) fn bio(&self, buffer: &PoolBuffer, flags: OpFlags) -> Bio {
        let ((at, sector), len_bytes) = (self.edge(), self.unaligned.block_bytes as u32);
        match self.step {
            BounceStep::ReadFirst | BounceStep::ReadLast => {
                buffer.bio_at(at, Op::Read, sector, len_bytes)
            }
            BounceStep::WriteFirst | BounceStep::WriteLast => {
                let bio = buffer.bio_at(at, Op::Write, sector, len_bytes);
                bio.with_flags(flags.without(OpFlags::NOUNMAP))
            }
        }
    }

    /// Returns the bytes that the request changes in the current block (the first or the last).
    fn ours(&self) -> Range<usize> {
        let Unaligned { block_bytes, head, tail, cover, .. } = self.unaligned;
        let is_first = matches!(self.step, BounceStep::ReadFirst | BounceStep::WriteFirst);
        let start = if is_first { head } else { 0 };
        let end = if is_first && cover > block_bytes { block_bytes } else { block_bytes - tail };
        start as usize..end as usize
    }

    /// Copies the bytes around the payload from the block that was read to the block to be written.
    fn surround(&self, buffer: &mut PoolBuffer) {
        let (block_bytes, (at, _), ours) =
            (self.unaligned.block_bytes as usize, self.edge(), self.ours());
        let to = match self.step {
            BounceStep::ReadFirst => 0,
            _ => self.unaligned.cover as usize - block_bytes,
        };
        let bytes = buffer.bytes_mut();
        bytes.copy_within(at..at + ours.start, to);
        bytes.copy_within(at + ours.end..at + block_bytes, to + ours.end);
    }

    fn blank(&self, buffer: &mut PoolBuffer) {
        let ((at, _), ours) = (self.edge(), self.ours());
        buffer.bytes_mut()[at + ours.start..at + ours.end].fill(0);
    }

    /// Advances to the next step of a write or zeroing. Returns false if all steps are done.
    pub(crate) fn next(&mut self, op: Op, buffer: &mut PoolBuffer) -> bool {
        match (self.step, op) {
            (BounceStep::ReadFirst | BounceStep::ReadLast, Op::Write) => self.surround(buffer),
            (BounceStep::ReadFirst | BounceStep::ReadLast, _) => self.blank(buffer),
            _ => {}
        }
        self.step = match (self.step, op) {
            (BounceStep::ReadFirst, Op::WriteZeroes) => BounceStep::WriteFirst,
            (BounceStep::ReadLast, Op::WriteZeroes) => BounceStep::WriteLast,
            (BounceStep::ReadFirst | BounceStep::WriteFirst, _) if self.unaligned.last() => {
                BounceStep::ReadLast
            }
            _ => return false,
        };
        true
    }
}

pub(crate) fn first_bounce(unaligned: Unaligned, edges_at: usize) -> Option<Box<Bounce>> {
    let step = if unaligned.first() { BounceStep::ReadFirst } else { BounceStep::ReadLast };
    (unaligned.first() || unaligned.last()).then(|| Box::new(Bounce { unaligned, step, edges_at }))
}

#[cfg(test)]
mod tests;
