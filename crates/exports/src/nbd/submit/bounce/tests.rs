//! Compares bounces with writes to a plain array of bytes, and checks which bytes of a volume an
//! unaligned request touches.

use proptest::prelude::*;

use super::*;
use crate::nbd::memory::budget::{MemoryBudget, MemoryPart};
use crate::nbd::submit::ticket::{Ticket, TicketMemory};
use crate::nbd::tests::{MIB, pool, waiter};

#[test]
fn ragged_range_knows_its_blocks() {
    let of = |offset, length| {
        let unaligned = UnalignedRequest::new(offset, length, 512);
        let UnalignedRequest { start, cover, head, tail, .. } = unaligned;
        ((start, cover, head, tail), (unaligned.first(), unaligned.last()), unaligned.inner())
    };
    assert_eq!(of(5, 10), ((0, 512, 5, 497), (true, false), (512, 0)));
    assert_eq!(of(512, 10), ((512, 512, 0, 502), (true, false), (1024, 0)));
    assert_eq!(of(600, 424), ((512, 512, 88, 0), (true, false), (1024, 0)));
    assert_eq!(of(511, 2), ((0, 1024, 511, 511), (true, true), (512, 0)));
    assert_eq!(of(512, 513), ((512, 1024, 0, 511), (false, true), (512, 512)));
    assert_eq!(of(1, 2047), ((0, 2048, 1, 0), (true, false), (512, 1536)));
    assert_eq!(of(512, 512), ((512, 512, 0, 0), (false, false), (512, 512)));
    assert_eq!(of(512, 1024), ((512, 1024, 0, 0), (false, false), (512, 1024)));
}

/// Executes a write or a zeroing on `disk` step by step, as a bounce does: with whole blocks only.
fn bounced(disk: &mut [u8], op: Op, offset: u64, data: &[u8], block_bytes: u32) -> usize {
    let (_reactor, mut pool) = pool(&MemoryBudget::new(2 * MIB, 1), 0);
    let unaligned = UnalignedRequest::new(offset, data.len() as u64, block_bytes);
    let cover = if op == Op::Write { unaligned.cover as usize } else { 0 };
    let mut buffer =
        pool.take(waiter(0, 0, cover + 2 * block_bytes as usize), MemoryPart::Window).unwrap();
    if op == Op::Write {
        let head = unaligned.head as usize;
        buffer.bytes_mut()[head..head + data.len()].copy_from_slice(data);
    }
    let flags = OpFlags::FUA.with(OpFlags::NOUNMAP);
    let (mut bounce, mut reads) = (first_bounce(unaligned, cover), 0);
    while let Some(step) = &mut bounce {
        let bio = step.bio(&buffer, flags);
        assert_eq!(u64::from(bio.nr_sectors()) << 9, u64::from(block_bytes));
        let (at, _) = step.edge();
        let on_disk =
            (bio.sector() << 9) as usize..((bio.sector() << 9) + u64::from(block_bytes)) as usize;
        let in_buffer = at..at + block_bytes as usize;
        match bio.op() {
            Op::Read => {
                reads += 1;
                buffer.bytes_mut()[in_buffer].copy_from_slice(&disk[on_disk]);
            }
            _ => disk[on_disk].copy_from_slice(&buffer.bytes_mut()[in_buffer]),
        }
        if !step.next(op, &mut buffer) {
            bounce = None;
        }
    }
    match op {
        Op::Write => {
            let sectors = unaligned.sectors();
            let place = (sectors.start << 9) as usize..(sectors.end << 9) as usize;
            disk[place].copy_from_slice(&buffer.bytes_mut()[..cover]);
        }
        _ => {
            let (start, length) = unaligned.inner();
            disk[start as usize..(start + length) as usize].fill(0);
        }
    }
    reads
}

proptest! {
    #[test]
    fn bounced_writes_and_zeroes_change_their_bytes_and_no_others(
        shift in 0u32..4,
        offset in 0u64..9000,
        length in prop_oneof![1usize..600, 1usize..9000],
        is_write: bool,
    ) {
        let block_bytes = 512 << shift;
        let old: Vec<u8> = (0..32 * 1024u32).map(|at| (at % 251) as u8 | 1).collect();
        let byte = |at: usize| if is_write { (at % 13) as u8 } else { 0 };
        let data: Vec<u8> = (0..length).map(byte).collect();
        let (mut disk, mut expected) = (old.clone(), old);
        expected[offset as usize..offset as usize + length].copy_from_slice(&data);
        let op = if is_write { Op::Write } else { Op::WriteZeroes };
        let reads = bounced(&mut disk, op, offset, &data, block_bytes);
        prop_assert!(disk == expected);
        let end = offset + length as u64;
        let ends = [offset, end].map(|edge| edge % u64::from(block_bytes) != 0);
        let blocks = ends[0].then_some(offset / u64::from(block_bytes)).into_iter();
        let blocks = blocks.chain(ends[1].then_some(end / u64::from(block_bytes)));
        let touched: std::collections::BTreeSet<u64> = blocks.collect();
        prop_assert_eq!(reads, touched.len(), "each partial block is read once");
    }
}

#[test]
fn steps_of_a_bounce_move_one_block_and_keep_fua() {
    let (_reactor, mut pool) = pool(&MemoryBudget::new(2 * MIB, 1), 0);
    let buffer = pool.take(waiter(0, 0, 8192), MemoryPart::Window).unwrap();
    let mut bounce = first_bounce(UnalignedRequest::new(511, 1026, 512), 2048).unwrap();
    for (step, op, sector, at) in [
        ((false, false), Op::Read, 0, 2048),
        ((false, true), Op::Write, 0, 2048),
        ((true, false), Op::Read, 3, 2560),
        ((true, true), Op::Write, 3, 2560),
    ] {
        (bounce.is_last, bounce.is_write) = step;
        let bio = bounce.bio(&buffer, OpFlags::FUA);
        assert_eq!((bio.op(), bio.sector(), bio.nr_sectors()), (op, sector, 1));
        assert_eq!(bounce.edge(), (at, sector));
    }
    assert!(first_bounce(UnalignedRequest::new(512, 1024, 512), 0).is_none(), "whole blocks");
    pool.give(buffer);
}

#[test]
fn write_holds_its_blocks_and_others_hold_sectors() {
    let ticket = |op| crate::nbd::tests::ticket(op, 1, TicketMemory::None);
    let write = Ticket { sector: 5, bio_bytes: 1024, ..ticket(Op::Write) };
    assert_eq!(write.sectors(), 5..7);
    let zeroes = Ticket { sector: 5, bio_bytes: 0, left_sectors: 9, ..ticket(Op::WriteZeroes) };
    assert_eq!(zeroes.sectors(), 5..14);
    let bounce = first_bounce(UnalignedRequest::new(700, 5000, 4096), 0);
    assert_eq!(Ticket { bounce, ..zeroes }.sectors(), 0..16);
}
