//! Bounces: what a write or zeroes that begin or end within a block do at their ends.
//!
//! A write first reads the blocks at its ends, puts the bytes around its payload into place and
//! writes whole blocks; zeroes are written that way at their ends only. A [`Bounce`] is the state
//! of that, step by step; submit.rs gives each step to the block layer. Made by unaligned.rs; calls
//! nothing.
//!
//! Invariant: a ticket has one buffer from the beginning: the blocks of the payload, then the first
//! block and the last one as they were.

use std::ops::Range;

use millrace_block::{Bio, Op, OpFlags, Sector};

use crate::nbd::memory::PoolBuffer;

/// A range of bytes, and the blocks that it touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unaligned {
    /// Bytes of a block, a power of two.
    pub(crate) block_bytes: u64,
    /// First byte of the first block.
    pub(crate) start: u64,
    /// Bytes of all blocks.
    pub(crate) cover: u64,
    /// Bytes of the first block before the range, and of the last one behind it.
    pub(crate) head: u64,
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

    /// Whether the first block has to be read: the range begins within it, or is within it.
    fn first(&self) -> bool {
        self.head > 0 || (self.tail > 0 && self.cover == self.block_bytes)
    }

    /// Whether a last block that is not the first has to be read.
    fn last(&self) -> bool {
        self.tail > 0 && self.cover > self.block_bytes
    }

    /// The whole blocks between: first byte and length, perhaps none.
    pub(crate) fn inner(&self) -> (u64, u64) {
        let start = self.start + if self.first() { self.block_bytes } else { 0 };
        let end = self.start + self.cover - if self.last() { self.block_bytes } else { 0 };
        (start, end.saturating_sub(start))
    }

    /// All blocks, in sectors.
    pub(crate) fn sectors(&self) -> Range<Sector> {
        self.start >> 9..(self.start + self.cover) >> 9
    }
}

/// What a ticket does before its own operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    ReadFirst,
    WriteFirst,
    ReadLast,
    WriteLast,
}

/// The ends of a write or of zeroes.
#[derive(Debug)]
pub(crate) struct Bounce {
    pub(crate) unaligned: Unaligned,
    step: Step,
    /// Where the blocks at the ends are in the buffer.
    edges_at: usize,
}

impl Bounce {
    /// Where an edge is in the buffer, and on the volume.
    fn edge(&self) -> (usize, Sector) {
        let Unaligned { block_bytes, start, cover, .. } = self.unaligned;
        match self.step {
            Step::ReadFirst | Step::WriteFirst => (self.edges_at, start >> 9),
            Step::ReadLast | Step::WriteLast => {
                (self.edges_at + block_bytes as usize, (start + cover - block_bytes) >> 9)
            }
        }
    }

    /// The bio of this step.
    pub(crate) fn bio(&self, buffer: &PoolBuffer, flags: OpFlags) -> Bio {
        let ((at, sector), len_bytes) = (self.edge(), self.unaligned.block_bytes as u32);
        match self.step {
            Step::ReadFirst | Step::ReadLast => buffer.bio_at(at, Op::Read, sector, len_bytes),
            Step::WriteFirst | Step::WriteLast => {
                let bio = buffer.bio_at(at, Op::Write, sector, len_bytes);
                bio.with_flags(flags.without(OpFlags::NOUNMAP))
            }
        }
    }

    /// The bytes of the edge that has been read, and which of them are the request's.
    fn ours(&self) -> Range<usize> {
        let Unaligned { block_bytes, head, tail, cover, .. } = self.unaligned;
        let is_first = matches!(self.step, Step::ReadFirst | Step::WriteFirst);
        let start = if is_first { head } else { 0 };
        let end = if is_first && cover > block_bytes { block_bytes } else { block_bytes - tail };
        start as usize..end as usize
    }

    /// Puts the bytes around the payload into place: of the edge that was read, all that is not the
    /// request's goes to the blocks to write.
    fn surround(&self, buffer: &mut PoolBuffer) {
        let (block_bytes, (at, _), ours) =
            (self.unaligned.block_bytes as usize, self.edge(), self.ours());
        let to = match self.step {
            Step::ReadFirst => 0,
            _ => self.unaligned.cover as usize - block_bytes,
        };
        let bytes = buffer.bytes_mut();
        bytes.copy_within(at..at + ours.start, to);
        bytes.copy_within(at + ours.end..at + block_bytes, to + ours.end);
    }

    /// Zeroes the request's part of the edge that was read.
    fn blank(&self, buffer: &mut PoolBuffer) {
        let ((at, _), ours) = (self.edge(), self.ours());
        buffer.bytes_mut()[at + ours.start..at + ours.end].fill(0);
    }

    /// Goes on to the next step, of a write or of zeroes; false if there is none.
    pub(crate) fn next(&mut self, op: Op, buffer: &mut PoolBuffer) -> bool {
        match (self.step, op) {
            (Step::ReadFirst | Step::ReadLast, Op::Write) => self.surround(buffer),
            (Step::ReadFirst | Step::ReadLast, _) => self.blank(buffer),
            _ => {}
        }
        self.step = match (self.step, op) {
            (Step::ReadFirst, Op::WriteZeroes) => Step::WriteFirst,
            (Step::ReadLast, Op::WriteZeroes) => Step::WriteLast,
            (Step::ReadFirst | Step::WriteFirst, _) if self.unaligned.last() => Step::ReadLast,
            _ => return false,
        };
        true
    }
}

/// The bounce of a range whose first or last block has to be read; none if it has whole blocks.
pub(crate) fn first_bounce(unaligned: Unaligned, edges_at: usize) -> Option<Box<Bounce>> {
    let step = if unaligned.first() { Step::ReadFirst } else { Step::ReadLast };
    (unaligned.first() || unaligned.last()).then(|| Box::new(Bounce { unaligned, step, edges_at }))
}

#[cfg(test)]
mod tests;
