//! `--verify`: the pattern that a job writes, to check the blocks that are read back.
//!
//! Every block contains its offset, its generation (the number of writes of the block so far) and a
//! checksum. Layout of a block, little endian: magic (8), byte offset on the device (8), generation
//! (8), crc32c of the rest of the block (4), then bytes that depend on the offset and generation.
//! Jobs (job.rs, jobfile) own the generations. A job never has two writes to the same block in
//! flight, because the device could complete them in any order.

use std::collections::HashMap;
use std::fmt::Display;
use std::ops::Range;

use millrace_block::Op;

use crate::load::job::JobResult;
use crate::load::workload::{Offsets, Workload};

const MAGIC: u64 = 0x6563_6172_6c6c_696d;
const HEAD: usize = 28;

fn word(block: &[u8], range: Range<usize>) -> u64 {
    let mut bytes = [0; 8];
    bytes[..range.len()].copy_from_slice(&block[range]);
    u64::from_le_bytes(bytes)
}

#[derive(Debug)]
pub(crate) struct WrittenBlocks {
    bs_bytes: u32,
    blocks: HashMap<u64, LastWrite>,
}

#[derive(Debug, Default)]
struct LastWrite {
    generation: u64,
    in_flight: bool,
}

impl WrittenBlocks {
    pub(crate) fn new(workload: &Workload) -> Option<WrittenBlocks> {
        let (bs_bytes, blocks) = (workload.bs_bytes, HashMap::new());
        workload.verify.then_some(WrittenBlocks { bs_bytes, blocks })
    }

    /// Creates an empty record of written blocks, with byte offsets as block numbers, for a job
    /// whose I/Os may start at any byte.
    pub(crate) fn by_offset() -> WrittenBlocks {
        WrittenBlocks { bs_bytes: 1, blocks: HashMap::new() }
    }

    /// Returns the next I/O: a read, or a write of a block that is not being written. The workload
    /// must have more blocks than writes in flight.
    #[cold]
    pub(crate) fn next_io(&self, offsets: &mut Offsets) -> (u64, Op) {
        loop {
            let (block, op) = offsets.next_io();
            let busy = || self.blocks.get(&block).is_some_and(|last| last.in_flight);
            if op != Op::Write || !busy() {
                return (block, op);
            }
        }
    }

    /// Fills `memory` with the pattern for the next write of `block`. The write counts as in flight
    /// now.
    #[cold]
    pub(crate) fn stamp(&mut self, block: u64, memory: &mut [u8]) {
        let last = self.blocks.entry(block).or_default();
        last.generation += 1;
        last.in_flight = true;
        stamp(memory, block * u64::from(self.bs_bytes), last.generation);
    }

    pub(crate) fn is_in_flight(&self, block: u64) -> bool {
        self.blocks.get(&block).is_some_and(|last| last.in_flight)
    }

    #[cold]
    pub(crate) fn landed(&mut self, block: u64) {
        if let Some(last) = self.blocks.get_mut(&block) {
            last.in_flight = false;
        }
    }

    /// Undoes `stamp` for a write of `block` that was never submitted.
    #[cold]
    pub(crate) fn unstamp(&mut self, block: u64) {
        if let Some(last) = self.blocks.get_mut(&block) {
            (last.generation, last.in_flight) = (last.generation - 1, false);
            if last.generation == 0 {
                self.forget(block);
            }
        }
    }

    /// Removes `block` from the record of written blocks, because the write failed for lack of
    /// space or was never submitted.
    #[cold]
    pub(crate) fn forget(&mut self, block: u64) {
        self.blocks.remove(&block);
    }

    pub(crate) fn blocks(&self) -> impl Iterator<Item = u64> {
        self.blocks.keys().copied()
    }

    pub(crate) fn check(
        &self,
        block: u64,
        read: Result<&[u8], impl Display>,
        result: &mut JobResult,
    ) {
        let offset = block * u64::from(self.bs_bytes);
        let outcome = match read {
            Ok(data) => check(data, offset, Some(self.blocks[&block].generation)),
            Err(error) => Err(format!("offset {offset}: {error}")),
        };
        match outcome {
            Ok(()) => result.verified += 1,
            Err(text) => result.fail(|| format!("verify: {text}")),
        }
    }
}

fn stamp(block: &mut [u8], offset: u64, generation: u64) {
    block[0..8].copy_from_slice(&MAGIC.to_le_bytes());
    block[8..16].copy_from_slice(&offset.to_le_bytes());
    block[16..24].copy_from_slice(&generation.to_le_bytes());
    let mut state = offset ^ generation.rotate_left(32) ^ 0x5851_f42d_4c95_7f2d;
    for chunk in block[HEAD..].chunks_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    let crc = crc32c::crc32c(&block[HEAD..]);
    block[24..28].copy_from_slice(&crc.to_le_bytes());
}

/// Checks the pattern of a block that was read. Without a `generation`, the pattern of any write to
/// the block passes.
pub(crate) fn check(block: &[u8], offset: u64, generation: Option<u64>) -> Result<(), String> {
    let (magic, place, found) = (word(block, 0..8), word(block, 8..16), word(block, 16..24));
    if magic != MAGIC {
        return Err(format!("offset {offset}: no pattern there (first bytes {magic:#018x})"));
    }
    if place != offset {
        return Err(format!("offset {offset}: holds the block of offset {place}"));
    }
    if let Some(generation) = generation.filter(|generation| *generation != found) {
        return Err(format!(
            "offset {offset}: holds the data of write {found} to this block; the last write was \
             {generation}"
        ));
    }
    let crc = u64::from(crc32c::crc32c(&block[HEAD..]));
    let stored = word(block, 24..28);
    if crc != stored {
        return Err(format!("offset {offset}: crc32c {crc:#010x}, stamped {stored:#010x}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::workload::Rw;

    /// Without the check, two thirds of all draws would meet a write in flight.
    #[test]
    fn writes_of_a_block_do_not_overlap_and_blocks_are_rewritten() {
        for rw in [Rw::RandWrite, Rw::HALF, Rw::Write] {
            let workload = Workload { rw, bs_bytes: 512, iodepth: 8, verify: true, seed: 3 };
            let mut offsets = Offsets::new(&workload, 24, (1, 2));
            let mut written = WrittenBlocks::new(&workload).expect("it is to verify");
            let (mut in_flight, mut memory) = (Vec::new(), [0; 512]);
            let mut times = [0; 24];
            for _ in 0..2_000 {
                let (block, op) = written.next_io(&mut offsets);
                if op != Op::Write {
                    continue;
                }
                assert!(!in_flight.contains(&block), "{rw}: {block} in {in_flight:?}");
                written.stamp(block, &mut memory);
                times[block as usize] += 1;
                assert_eq!(word(&memory, 8..16), block * 512);
                assert_eq!(word(&memory, 16..24), times[block as usize]);
                in_flight.push(block);
                if in_flight.len() == 8 {
                    // Not the oldest: writes come back in any order.
                    written.landed(in_flight.swap_remove(times[block as usize] as usize % 8));
                }
            }
            assert!(times[..12].iter().all(|n| *n == 0), "{rw}: {times:?}");
            assert!(times[12..].iter().all(|n| *n > 20), "{rw}: {times:?}");
        }
    }

    #[test]
    fn what_was_read_back_counts_once_as_right_or_as_an_error() {
        let workload = Workload { rw: Rw::Write, bs_bytes: 512, iodepth: 1, verify: true, seed: 1 };
        let mut written = WrittenBlocks::new(&workload).expect("it is to verify");
        let (mut old, mut new, mut result) = ([0; 512], [0; 512], JobResult::default());
        written.stamp(5, &mut old);
        written.landed(5);
        written.stamp(5, &mut new);
        assert_eq!(written.blocks().collect::<Vec<_>>(), [5]);
        written.check(5, Ok::<_, String>(&new), &mut result);
        assert_eq!((result.verified, result.errors), (1, 0));
        written.check(5, Ok::<_, String>(&old), &mut result);
        written.check(5, Err("gone"), &mut result);
        assert_eq!((result.verified, result.errors), (1, 2));
        let first = result.first_error.expect("there were two");
        assert_eq!(
            first,
            "verify: offset 2560: holds the data of write 1 to this block; the last write was 2"
        );
    }

    #[test]
    fn stamped_block_checks_and_any_change_is_named() {
        let mut block = vec![0; 512];
        stamp(&mut block, 8192, 3);
        assert_eq!(check(&block, 8192, Some(3)), Ok(()));
        assert!(check(&block, 4096, Some(3)).expect_err("moved").contains("holds the block of"));
        assert!(
            check(&block, 8192, Some(4)).expect_err("stale").contains("the data of write 3 to")
        );
        assert_eq!(check(&block, 8192, None), Ok(()));
        block[300] ^= 1;
        assert!(check(&block, 8192, None).expect_err("torn").contains("crc32c"));
    }
}
