//! `Slots`: what a job has in flight, and the memory that waits for its next I/Os.
//!
//! Owned by one worker; a slot's number is the user data of its bio. At most as many buffers wait
//! as I/Os may be in flight, whatever lengths these have.

use millrace_block::{Bio, Buffer, Op, SectorCount};
use millrace_random::SplitMix64;

use super::source::{Io, READ, WRITE};
use crate::load::verify::WrittenBlocks;

/// Whether a flush is counted: fio counts those of `fsync`, not those of `fdatasync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlushAccounting {
    Yes,
    No,
}

/// An I/O in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct IoInFlight {
    /// None for a flush.
    pub(super) io: Option<Io>,
    pub(super) counted: FlushAccounting,
    pub(super) start_ns: u64,
    pub(super) issue_ns: u64,
}

/// What is in flight, by the user data of its bio.
pub(super) struct Slots {
    pub(super) flights: Vec<IoInFlight>,
    pub(super) free: Vec<u32>,
    /// Submitted since the last flush of the channel.
    pub(super) batch: Vec<u32>,
    pub(super) idle: Vec<Bio>,
    /// What new buffers hold.
    random: SplitMix64,
}

impl Slots {
    /// Room for so many.
    pub(super) fn new(depth: u32, seed: u64) -> Slots {
        let flight =
            IoInFlight { io: None, counted: FlushAccounting::No, start_ns: 0, issue_ns: 0 };
        Slots {
            flights: vec![flight; depth as usize],
            free: (0..depth).rev().collect(),
            batch: Vec::new(),
            idle: Vec::new(),
            random: SplitMix64::new(seed),
        }
    }

    /// A bio of an I/O, with memory that another one left if it has the length; a write is stamped
    /// if it is to be verified.
    pub(super) fn bio(&mut self, io: Io, written: Option<&mut WrittenBlocks>) -> Bio {
        let sector = io.offset >> 9;
        let op = match io.direction {
            READ => Op::Read,
            WRITE => Op::Write,
            _ => return Bio::discard(sector, SectorCount::from(io.bytes >> 9)),
        };
        let fits = |bio: &Bio| bio.len_bytes() == io.bytes as usize;
        let left = match self.idle.pop_if(|last| fits(last)) {
            None => self.idle.iter().rposition(fits).map(|at| self.idle.swap_remove(at)),
            last => last,
        };
        let mut bio = left.unwrap_or_else(|| {
            // What has another length makes room.
            self.idle.pop();
            let mut buffer = Buffer::new(io.bytes as usize);
            for word in buffer.chunks_exact_mut(8) {
                word.copy_from_slice(&self.random.next().to_le_bytes());
            }
            Bio::read(0, buffer)
        });
        bio.set_sector(sector);
        bio.set_op(op);
        if let Some(written) = written
            && op == Op::Write
        {
            let memory = bio.memory().expect("jobs use owned buffers");
            written.stamp(io.offset / u64::from(io.bytes), memory);
        }
        bio
    }
}
