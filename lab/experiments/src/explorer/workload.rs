//! Workload of a submitting thread: a stream of bios drawn from the channel's settings.
//!
//! submitter.rs calls this file. A channel's stream of bios depends on the scenario only, never on
//! completions or their times. Every sector of a write's memory begins with a stamp that names bio
//! and sector; a read's memory is filled with a mark that no sector ever holds.
#![allow(unsafe_code)]

use millrace_block::{Bio, Buffer, Op, OpFlags, Segment};

use super::map::SectorMap;
use super::oracle::{BioRecord, stamp_of};
use super::random::Random;
use super::scenario::ChannelSpec;

/// High bits of the stamp that marks a read's memory until the drive fills the memory.
const UNREAD: u64 = 0xdead << 48;

pub(super) struct Workload {
    channel: usize,
    spec: ChannelSpec,
    random: Random,
    blocks: u64,
    block_sectors: u64,
    /// Region of the volume that belongs to the channel: first block, and number of blocks.
    region: (u64, u64),
    last_end: u64,
    left: u32,
    closing: u32,
}

pub(super) struct OwnedPieces {
    buffer: Buffer,
    list: Vec<Segment>,
}

// SAFETY: the list points into the buffer, which moves together with the list.
unsafe impl Send for OwnedPieces {}

pub(super) struct PreparedBio {
    pub(super) bio: Bio,
    pub(super) record: BioRecord,
    pub(super) foreign: Option<OwnedPieces>,
}

impl Workload {
    pub(super) fn new(
        seed: u64,
        (channel, channels): (usize, usize),
        spec: ChannelSpec,
        map: &SectorMap,
    ) -> Self {
        let blocks = map.capacity / map.block;
        let share = (blocks / channels as u64).max(1);
        let start = (share * (channel % channels) as u64).min(blocks - 1);
        // Use a small region, so that the same sectors are used again.
        let length = share.min(u64::from(spec.blocks) * 6).max(1);
        Workload {
            channel,
            spec,
            random: Random::new(seed, 1_000 + channel as u64),
            blocks,
            block_sectors: map.block,
            region: (start, length),
            last_end: start,
            left: spec.ios,
            closing: 0,
        }
    }

    pub(super) fn close_with(&mut self, flushes: u32) {
        self.closing = flushes;
        self.left += flushes;
    }

    pub(super) fn closes(&self) -> bool {
        (1..=self.closing).contains(&self.left)
    }

    pub(super) fn left(&self) -> u32 {
        self.left
    }

    pub(super) fn next(&mut self, id: u64) -> PreparedBio {
        let op = if self.closes() { Op::Flush } else { self.op() };
        self.left -= 1;
        let (block, count) = self.place(op);
        let (sector, nr) = (block * self.block_sectors, count * self.block_sectors);
        let mut flags = OpFlags::NONE;
        if op.is_write() && self.random.per_mille(self.spec.fua) {
            flags = flags.with(OpFlags::FUA);
        }
        if op.is_write() && self.random.per_mille(self.spec.preflush) {
            flags = flags.with(OpFlags::PREFLUSH);
        }
        let (sector, nr) = if op == Op::Flush { (0, 0) } else { (sector, nr) };
        let record = BioRecord::new(self.channel, (op, flags), (sector, nr));
        let mut made = match op {
            Op::Flush => PreparedBio { bio: Bio::flush(), record, foreign: None },
            Op::Discard => {
                PreparedBio { bio: Bio::discard(sector, nr as u32), record, foreign: None }
            }
            Op::WriteZeroes => {
                PreparedBio { bio: Bio::write_zeroes(sector, nr as u32), record, foreign: None }
            }
            _ if self.random.per_mille(self.spec.foreign) => self.foreign(record, id),
            _ => self.owned(record, id),
        };
        made.bio = made.bio.with_flags(flags).with_user_data(id);
        made
    }

    fn op(&mut self) -> Op {
        let sum: u32 = self.spec.mix.iter().sum();
        let mut ticket = self.random.below(sum.into()) as u32;
        for (op, share) in Op::ALL.into_iter().zip(self.spec.mix) {
            if ticket < share {
                return op;
            }
            ticket -= share;
        }
        Op::Read
    }

    fn place(&mut self, op: Op) -> (u64, u64) {
        let (start, length) = self.region;
        let longest = if op.has_data() { self.spec.blocks } else { self.spec.blocks * 4 };
        let count = u64::from(self.random.within(1, longest)).min(self.blocks);
        let block = if self.random.per_mille(self.spec.away) {
            self.random.below(self.blocks)
        } else if self.random.per_mille(self.spec.sequential) {
            self.last_end
        } else {
            start + self.random.below(length)
        };
        let block = if block + count > self.blocks { self.blocks - count } else { block };
        self.last_end = block + count;
        if self.last_end >= start + length || self.last_end < start {
            self.last_end = start;
        }
        (block, count)
    }

    fn pieces(&mut self, nr: u64) -> Vec<usize> {
        let mut blocks = nr / self.block_sectors;
        let mut pieces = Vec::new();
        let cut = self.random.per_mille(self.spec.vectored);
        while blocks > 0 {
            let most = if cut { blocks.min(3) } else { blocks };
            let taken = if cut { 1 + self.random.below(most) } else { most };
            pieces.push((taken * self.block_sectors * 512) as usize);
            blocks -= taken;
        }
        pieces
    }

    fn owned(&mut self, mut record: BioRecord, id: u64) -> PreparedBio {
        let (op, sector) = (record.op, record.sector);
        let mut at = sector;
        let mut buffers = Vec::new();
        for len in self.pieces(record.nr) {
            let mut buffer = Buffer::new(len);
            stamp(&mut buffer, op, id, at);
            record.memory.push((buffer.as_ptr() as usize, buffer.as_ptr() as usize + len));
            at += len as u64 / 512;
            buffers.push(buffer);
        }
        let bio = match op {
            Op::Read => Bio::readv(sector, buffers),
            _ => Bio::writev(sector, buffers),
        };
        PreparedBio { bio, record, foreign: None }
    }

    fn foreign(&mut self, mut record: BioRecord, id: u64) -> PreparedBio {
        let pieces = self.pieces(record.nr);
        // Start in the middle of a page, so that the memory is not page-aligned.
        let shift = 512 * self.random.below(4) as usize;
        let mut buffer = Buffer::new(shift + record.nr as usize * 512);
        stamp(&mut buffer[shift..], record.op, id, record.sector);
        let mut start = buffer.as_mut_ptr().wrapping_add(shift);
        let mut list = Vec::new();
        for len in pieces {
            record.memory.push((start as usize, start as usize + len));
            list.push(Segment { start, len_bytes: len as u32 });
            start = start.wrapping_add(len);
        }
        record.foreign = true;
        let foreign = OwnedPieces { buffer, list };
        // SAFETY: the submitter keeps the buffer and the list of segments until the bio completes.
        // If the channel is dropped, both are kept until the run ends.
        let bio =
            unsafe { Bio::foreign_vectored(record.op, record.sector, &raw const *foreign.list) };
        PreparedBio { bio, record, foreign: Some(foreign) }
    }
}

/// Writes a bio's stamp to the start of each sector in `memory`. For a write, the stamp identifies
/// the bio and the sector. For a read, the drive overwrites the stamp; a stamp that is left shows a
/// sector that the drive did not fill.
fn stamp(memory: &mut [u8], op: Op, id: u64, sector: u64) {
    for (sector, bytes) in (sector..).zip(memory.chunks_mut(512)) {
        let stamp = if op == Op::Write { stamp_of(op, id, sector) } else { UNREAD | id };
        bytes[..8].copy_from_slice(&stamp.to_le_bytes());
    }
}

fn stamps(memory: &[u8], found: &mut Vec<u64>) {
    for sector in memory.chunks(512) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&sector[..8]);
        found.push(u64::from_le_bytes(bytes));
    }
}

pub(super) fn found(bio: Bio, foreign: Option<&OwnedPieces>) -> Vec<u64> {
    let mut found = Vec::new();
    match foreign {
        Some(foreign) => {
            let base = foreign.buffer.as_ptr() as usize;
            for piece in &foreign.list {
                let start = piece.start as usize - base;
                stamps(&foreign.buffer[start..start + piece.len_bytes as usize], &mut found);
            }
        }
        None => bio.into_buffers().iter().for_each(|buffer| stamps(buffer, &mut found)),
    }
    found
}
