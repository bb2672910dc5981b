//! `Slots`: the I/Os that a job has in flight, and idle buffers for its next I/Os.
//!
//! One worker owns the slots; a slot's number is the user data of its bio. Idle buffers may take as
//! much memory as the job's largest I/Os in flight, or 64 MiB if that is more. Idle buffers are
//! kept because a job with I/Os of several lengths needs buffers of each length, and a new buffer
//! must be filled with data, which takes longer than most I/Os.

use millrace_block::{Bio, Buffer, Op, SectorCount};
use millrace_random::SplitMix64;

use super::source::{Io, READ, WRITE};
use crate::load::verify::WrittenBlocks;

/// Accounting of a flush in reports. As in fio, flushes by `fsync` are counted (`Yes`), but
/// flushes by `fdatasync` are not (`No`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlushAccounting {
    Yes,
    No,
}

const IDLE_BYTES: usize = 64 << 20;

#[derive(Debug, Clone, Copy)]
pub(super) struct IoInFlight {
    /// I/O that uses the slot; `None` for a flush.
    pub(super) io: Option<Io>,
    pub(super) counted: FlushAccounting,
    pub(super) start_ns: u64,
    pub(super) issue_ns: u64,
}

/// Slots of the I/Os in flight. The user data of a bio is the index of its slot.
pub(super) struct Slots {
    pub(super) flights: Vec<IoInFlight>,
    pub(super) free: Vec<u32>,
    pub(super) batch: Vec<u32>,
    pub(super) idle: Vec<Bio>,
    idle_bytes_max: usize,
    random: SplitMix64,
}

impl Slots {
    pub(super) fn new(depth: u32, longest: u32, seed: u64) -> Slots {
        let flight =
            IoInFlight { io: None, counted: FlushAccounting::No, start_ns: 0, issue_ns: 0 };
        Slots {
            flights: vec![flight; depth as usize],
            free: (0..depth).rev().collect(),
            batch: Vec::new(),
            idle: Vec::new(),
            idle_bytes_max: (depth as usize).saturating_mul(longest as usize).max(IDLE_BYTES),
            random: SplitMix64::new(seed),
        }
    }

    /// Returns a bio for an I/O, with an idle buffer of the same length if there is one. A write
    /// gets the verification pattern if the job verifies.
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
            self.make_room(io.bytes as usize);
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
            written.stamp(io.offset, memory);
        }
        bio
    }

    fn make_room(&mut self, bytes: usize) {
        let mut waiting: usize = self.idle.iter().map(Bio::len_bytes).sum();
        while waiting + bytes > self.idle_bytes_max
            && let Some(bio) = self.idle.pop()
        {
            waiting -= bio.len_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_several_lengths_waits_up_to_a_bound() {
        let mut slots = Slots::new(1, 1 << 20, 1);
        let io = |bytes| Io { direction: READ, offset: 0, bytes };
        for bytes in [4096, 65_536, 4096, 1 << 20, 65_536, 1 << 20] {
            let bio = slots.bio(io(bytes), None);
            slots.idle.push(bio);
        }
        let lengths = |slots: &Slots| slots.idle.iter().map(Bio::len_bytes).collect::<Vec<_>>();
        let mut kept = lengths(&slots);
        kept.sort_unstable();
        assert_eq!(kept, [4096, 65_536, 1 << 20], "each was made once");
        for blocks in 1..=200 {
            let bio = slots.bio(io((1 << 20) - blocks * 512), None);
            slots.idle.push(bio);
        }
        let bytes: usize = lengths(&slots).iter().sum();
        assert!((IDLE_BYTES - (2 << 20)..=IDLE_BYTES).contains(&bytes), "{bytes}");
    }
}
