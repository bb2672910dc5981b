//! Memory that is lent to drives: reads and writes there go through registered buffers.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use millrace_block::baseline::Stack;
use millrace_block::{Arena, Bio, Op, Segment};
use millrace_reactor::Backend;

use crate::harness::{Dice, Drives, Kind, Plan, Rig, has_uring, pattern, plans};

const ARENA_BYTES: usize = 4 << 20;

fn lent(plan: &Plan) -> (Rig, Arc<Arena>) {
    let arena = Arc::new(Arena::new(ARENA_BYTES, 4096).unwrap());
    // SAFETY: the arena is this function's, and as long.
    unsafe { arena.start().write_bytes(0, ARENA_BYTES) };
    let drives = Arc::new(Drives::new(plan));
    arena.lend_to(&drives.volume);
    (Rig::of(drives, plan.backend, 0), arena)
}

fn registered(rig: &Rig) -> u64 {
    rig.drives.files.iter().map(|file| file.registered.load(Relaxed)).sum()
}

/// Reads or writes `pages` of the arena at a sector, in the order of the list.
fn run(rig: &mut Rig, arena: &Arena, op: Op, sector: u64, pages: &[usize]) {
    let piece =
        |page: &usize| Segment { start: arena.start().wrapping_add(page * 4096), len_bytes: 4096 };
    let segments: Vec<Segment> = pages.iter().map(piece).collect();
    // SAFETY: list and arena outlive the bio, which is waited for, and nobody else touches them.
    rig.run_ok(unsafe { Bio::foreign_vectored(op, sector, &raw const segments[..]) });
}

fn fill(arena: &Arena, page: usize, data: &[u8]) {
    let start = arena.start().wrapping_add(page * 4096);
    // SAFETY: no I/O is under way, and the page lies inside.
    unsafe { start.copy_from_nonoverlapping(data.as_ptr(), 4096) };
}

#[test]
fn bytes_of_arena_come_back_from_every_drive_whole_or_in_pieces() {
    for plan in plans(&[Kind::Ram, Kind::File, Kind::FileThreads, Kind::FaultFile]) {
        let (mut rig, arena) = lent(&plan.clone().stripe(2, 128));
        let mut dice = Dice(7);
        for round in 0..50 {
            let count = 1 + dice.roll(40) as usize;
            let sector = dice.roll(1000) * 8;
            let mut page = || dice.roll((ARENA_BYTES / 4096) as u64 / 2) as usize;
            let mut pages: Vec<usize> = (0..count).map(|_| page()).collect();
            pages.sort_unstable();
            pages.dedup();
            let data = pattern(sector, pages.len() * 4096, round);
            for (page, part) in pages.iter().zip(data.chunks(4096)) {
                fill(&arena, *page, part);
            }
            run(&mut rig, &arena, Op::Write, sector, &pages);
            assert!(rig.read(sector, data.len()) == data, "written from the arena");
            let into: Vec<usize> = pages.iter().map(|page| page + ARENA_BYTES / 8192).collect();
            run(&mut rig, &arena, Op::Read, sector, &into);
            for (page, part) in into.iter().zip(data.chunks(4096)) {
                let start = arena.start().wrapping_add(page * 4096);
                // SAFETY: no I/O is under way, and the page lies inside.
                let found = unsafe { std::slice::from_raw_parts(start, 4096) };
                assert!(found == part, "read into the arena");
            }
        }
        let is_file = matches!(plan.kind, Kind::File | Kind::FaultFile);
        let expected = is_file && plan.backend == Backend::Uring;
        assert_eq!(registered(&rig) > 0, expected, "{}", registered(&rig));
    }
}

#[test]
fn arena_outlives_queues_it_was_lent_to_and_drives_outlive_it() {
    if !has_uring() {
        return;
    }
    let plan = Plan::new(Kind::File, Stack::Mq, Backend::Uring);
    let (mut rig, arena) = lent(&plan);
    run(&mut rig, &arena, Op::Write, 0, &[3]);
    assert_eq!(Arc::strong_count(&arena), 2, "the ring keeps it");
    let drives = Arc::clone(&rig.drives);
    drop(rig);
    assert_eq!(Arc::strong_count(&arena), 1);
    drop(arena);
    let mut rig = Rig::of(Arc::clone(&drives), plan.backend, 0);
    let before = registered(&rig);
    rig.write(0, &pattern(0, 4096, 1));
    assert!(rig.read(0, 4096) == pattern(0, 4096, 1));
    assert_eq!(registered(&rig), before, "nothing is lent any more");
}
