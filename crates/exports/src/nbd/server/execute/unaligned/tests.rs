//! Bounces against a plain array of bytes, and which bytes of a volume a ragged request touches.

use proptest::prelude::*;

use super::*;
use crate::nbd::server::memory::budget::Budget;
use crate::nbd::server::tests::{MIB, Rig, pool, request};
use crate::nbd::wire::CMD_FLAG_FUA;

#[test]
fn ragged_range_knows_its_blocks() {
    let of = |offset, length| {
        let unaligned = Unaligned::new(offset, length, 512);
        let Unaligned { start, cover, head, tail, .. } = unaligned;
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

/// Does a write or zeroes step by step on `disk`, with whole blocks only.
fn bounced(disk: &mut [u8], op: Op, offset: u64, data: &[u8], block_bytes: u32) -> usize {
    let (_reactor, mut pool) = pool(&Budget::new(MIB, 1), 0);
    let unaligned = Unaligned::new(offset, data.len() as u64, block_bytes);
    let cover = if op == Op::Write { unaligned.cover as usize } else { 0 };
    let mut buffer = pool.take(cover + 2 * block_bytes as usize, usize::MAX).unwrap();
    if op == Op::Write {
        buffer.fill(unaligned.head as usize, data);
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
        prop_assert_eq!(reads, touched.len(), "each block at an end once");
    }
}

#[test]
fn steps_of_a_bounce_read_and_write_one_block_and_keep_fua_for_writes() {
    let (_reactor, mut pool) = pool(&Budget::new(MIB, 1), 0);
    let buffer = pool.take(8192, usize::MAX).unwrap();
    let mut bounce = first_bounce(Unaligned::new(511, 1026, 512), 2048).unwrap();
    for (step, op, sector, at) in [
        (Step::ReadFirst, Op::Read, 0, 2048),
        (Step::WriteFirst, Op::Write, 0, 2048),
        (Step::ReadLast, Op::Read, 3, 2560),
        (Step::WriteLast, Op::Write, 3, 2560),
    ] {
        bounce.step = step;
        let bio = bounce.bio(&buffer, OpFlags::FUA);
        assert_eq!((bio.op(), bio.sector(), bio.nr_sectors()), (op, sector, 1));
        assert_eq!(bounce.edge(), (at, sector));
    }
    assert!(first_bounce(Unaligned::new(512, 1024, 512), 0).is_none(), "whole blocks");
    pool.give(buffer);
}

#[test]
fn a_write_holds_all_of_its_blocks_and_everything_else_its_sectors() {
    let ticket = |op| crate::nbd::server::tests::ticket(op, 1, Memory::None);
    let write = Ticket { sector: 5, bio_bytes: 1024, ..ticket(Op::Write) };
    assert_eq!(sectors_of(&write), 5..7);
    let zeroes = Ticket { sector: 5, bio_bytes: 0, left_sectors: 9, ..ticket(Op::WriteZeroes) };
    assert_eq!(sectors_of(&zeroes), 5..14);
    let bounce = first_bounce(Unaligned::new(700, 5000, 4096), 0);
    assert_eq!(sectors_of(&Ticket { bounce, ..zeroes }), 0..16);
}

#[test]
fn ragged_requests_are_counted_and_leave_nothing_behind() {
    let mut rig = Rig::new(&["ram:size=1m"], |_| ());
    let (mut client, index) = rig.by_hand("0");
    let mut call = |command, flags, offset, data: &[u8], length| {
        let request = Request { flags, ..request(command, offset, length) };
        assert_eq!(rig.call(&mut client, &request, data), 0, "{request:?}");
        if command == Command::Read {
            return (rig.core.counts.copied.bounced, rig.receive(&mut client, length as usize));
        }
        (rig.core.counts.copied.bounced, Vec::new())
    };
    let all = vec![9; 4096];
    assert_eq!(call(Command::Write, 0, 0, &all, 4096).0, 0);
    assert_eq!(call(Command::Write, CMD_FLAG_FUA, 100, &[1; 700], 700).0, 1);
    assert_eq!(call(Command::WriteZeroes, 0, 3000, &[], 600).0, 2);
    let (bounced, bytes) = call(Command::Read, 0, 99, &[], 3502);
    assert_eq!(bounced, 3);
    let expected = [&[9][..], &[1; 700], &[9; 2200], &[0; 600], &[9; 1]].concat();
    assert!(bytes == expected);
    // A discard of no whole block does nothing, with FUA it flushes, and else it leaves out edges.
    assert_eq!(call(Command::Trim, 0, 10, &[], 500).0, 3);
    assert_eq!(call(Command::Trim, CMD_FLAG_FUA, 10, &[], 500).0, 3);
    assert_eq!(call(Command::Read, 0, 0, &[], 100).1, [9; 100]);
    assert_eq!(call(Command::Trim, CMD_FLAG_FUA, 1000, &[], 1100).0, 4);
    assert_eq!(call(Command::Trim, 0, 2100, &[], 600).0, 4);
    let (_, bytes) = call(Command::Read, 0, 1000, &[], 1700);
    let zeroes = [(1024, 2048), (2560, 2560)];
    for (at, byte) in (1000u64..).zip(&bytes) {
        let is_gone = zeroes.iter().any(|(start, end)| (*start..*end).contains(&at));
        assert_eq!(*byte, if is_gone { 0 } else { 9 }, "{at}");
    }
    rig.step();
    let conn = rig.conns[index].as_ref().unwrap();
    assert_eq!((conn.in_flight, conn.held_bytes), (0, 0));
    assert_eq!((rig.core.tickets.in_use(), rig.core.pool.in_use()), (0, 0));
    let lane = &rig.core.lanes[0];
    assert_eq!((lane.started, lane.held_bytes, lane.tracks), (0, 0, true));
}

#[test]
fn zeroes_for_drives_without_payload_cover_whole_blocks_and_need_no_memory() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let (mut client, _) = rig.by_hand("0");
    assert_eq!(rig.call(&mut client, &request(Command::WriteZeroes, 10, 1000), &[]), 0);
    assert_eq!(rig.call(&mut client, &request(Command::WriteZeroes, 10, 10), &[]), 0);
    assert_eq!(rig.call(&mut client, &request(Command::Trim, 10, 1000), &[]), 0);
    assert_eq!(rig.shared.budget.mapped_bytes(), 0);
    assert_eq!(rig.core.counts.copied.bounced, 0);
}

#[test]
fn every_write_in_flight_is_entered_when_the_first_ragged_one_starts() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let enter = |rig: &mut Rig, op, sector, state, claim| {
        let ticket = crate::nbd::server::tests::ticket(op, 1, Memory::None);
        rig.core.tickets.insert(Ticket { sector, state, claim, ..ticket })
    };
    let started = TicketState::Started(0);
    let write = enter(&mut rig, Op::Write, 10, started, Claim::None);
    let read = enter(&mut rig, Op::Read, 20, started, Claim::None);
    let filling = enter(&mut rig, Op::Write, 30, TicketState::Filling, Claim::None);
    let waits = enter(&mut rig, Op::Write, 40, started, Claim::Waits);
    rig.core.follow_ranges(0);
    assert!(!rig.core.lanes[0].tracks, "nobody has started it");
    rig.core.exports.ranges[0].start();
    rig.core.follow_ranges(0);
    assert!(rig.core.lanes[0].tracks);
    let claims = [write, read, filling, waits].map(|id| rig.core.tickets.get(id).claim);
    assert_eq!(claims, [Claim::Held, Claim::None, Claim::None, Claim::Waits]);
    for (sector, free) in [(10, false), (20, true), (30, true), (40, true)] {
        let ranges = &rig.core.exports.ranges[0];
        assert_eq!(
            ranges.claim((0, 900 + sector as u32), sector..sector + 1, Mode::Exclusive),
            free
        );
    }
    // Once is enough: nobody is entered twice.
    rig.core.tickets.get(write).claim = Claim::None;
    rig.core.follow_ranges(0);
    assert_eq!(rig.core.tickets.get(write).claim, Claim::None);
    for id in [write, read, filling, waits] {
        rig.core.tickets.remove(id);
    }
}
