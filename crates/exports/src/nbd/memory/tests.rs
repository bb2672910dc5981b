//! The pool held to a plain account of its regions after every step, and what it keeps and gives.

use millrace_reactor::{Config, Reactor};
use proptest::prelude::*;

use super::*;
use crate::nbd::tests::{MIB, pool};

const KIB: usize = 1 << 10;

/// Everything that is counted, against what is held: bytes, and regions of stuck drives.
fn check(pool: &Pool, held: &[PoolBuffer]) {
    let mut regions: Vec<(usize, u32, bool)> = Vec::new();
    for buffer in held {
        let (arena, region) = (arena_of(buffer.len()), buffer.memory.region());
        match regions.iter_mut().find(|known| (known.0, known.1) == (arena, region)) {
            Some(known) => known.2 |= buffer.is_stuck,
            None => regions.push((arena, region, buffer.is_stuck)),
        }
    }
    let bytes_of = |(arena, region, _): &(usize, u32, bool)| {
        let in_it = |buffer: &&PoolBuffer| {
            (arena_of(buffer.len()), buffer.memory.region()) == (*arena, *region)
        };
        held.iter().find(in_it).unwrap().len().max(REGION_BYTES)
    };
    let used: usize = regions.iter().map(bytes_of).sum();
    let stuck: usize = regions.iter().filter(|region| region.2).map(bytes_of).sum();
    let mapped: usize = pool.arenas.iter().map(BufferArena::mapped_bytes).sum();
    assert_eq!(pool.in_use(), held.len());
    assert_eq!(pool.budget().mapped_bytes(), mapped);
    assert_eq!(pool.idle_bytes() + used, mapped);
    assert!(pool.idle_bytes_least <= pool.idle_bytes());
    assert_eq!(pool.budget().stuck_bytes(), stuck);
    for (order, lent) in (0_u8..).zip(pool.lent) {
        let of_order = |buffer: &&PoolBuffer| buffer.memory.order() == order && !buffer.is_stuck;
        assert_eq!(held.iter().filter(of_order).count(), lent as usize, "order {order}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn buffers_never_overlap_and_every_figure_adds_up(
        steps in proptest::collection::vec((0usize..10, any::<u16>()), 1..300),
    ) {
        let budget = Budget::new(24 * MIB, 4);
        let (_reactor, mut pool) = pool(&budget, 6 * MIB);
        let (mut held, mut marks): (Vec<PoolBuffer>, Vec<u8>) = (Vec::new(), Vec::new());
        for (step, number) in steps {
            match step {
                0..6 => {
                    let len = 1 + usize::from(number) % (4096 << (2 * step));
                    let Some(mut buffer) = pool.take(len, usize::MAX) else { continue };
                    prop_assert!(buffer.len() >= len && buffer.start().addr() % 4096 == 0);
                    let mark = number as u8 | 1;
                    buffer.fill(0, &[mark]);
                    let last = buffer.len() - 1;
                    buffer.fill(last, &[mark]);
                    held.push(buffer);
                    marks.push(mark);
                }
                6 if number % 8 == 0 => pool.trim(),
                7 if number % 8 == 0 => pool.give_back_unneeded(),
                _ if held.is_empty() => {}
                8 => {
                    let place = usize::from(number) % held.len();
                    pool.begin_stuck(&mut held[place]);
                }
                _ => {
                    let place = usize::from(number) % held.len();
                    let (mut buffer, mark) = (held.swap_remove(place), marks.swap_remove(place));
                    let bytes = buffer.bytes_mut();
                    prop_assert_eq!((bytes[0], bytes[bytes.len() - 1]), (mark, mark));
                    pool.give(buffer);
                    prop_assert!(pool.idle_bytes() <= 6 * MIB);
                }
            }
            check(&pool, &held);
        }
        held.into_iter().for_each(|buffer| pool.give(buffer));
        check(&pool, &[]);
        drop(pool);
        prop_assert_eq!(budget.mapped_bytes(), 0);
    }
}

#[test]
fn little_buffers_of_all_sizes_share_regions_and_longer_ones_have_others() {
    let budget = Budget::new(8 * MIB, 4);
    let (_reactor, mut pool) = pool(&budget, 8 * MIB);
    let mut held: Vec<_> =
        [4, 8, 16, 256, 64].map(|kib| pool.take(kib * KIB, usize::MAX).unwrap()).into();
    assert_eq!((budget.mapped_bytes(), pool.in_use()), (2 * MIB, 5));
    check(&pool, &held);
    held.push(pool.take(512 * KIB, usize::MAX).unwrap());
    assert_eq!(budget.mapped_bytes(), 4 * MIB, "what is free of that is for little ones");
    held.extend([MIB, 512 * KIB].map(|len| pool.take(len, usize::MAX).unwrap()));
    assert_eq!(budget.mapped_bytes(), 4 * MIB);
    held.push(pool.take(4 * MIB, usize::MAX).unwrap());
    assert_eq!(budget.mapped_bytes(), 8 * MIB);
    check(&pool, &held);
    held.into_iter().for_each(|buffer| pool.give(buffer));
    check(&pool, &[]);
}

#[test]
fn what_lies_idle_makes_room_for_another_kind_unless_that_is_somebody_elses_turn() {
    let budget = Budget::new(2 * MIB, 4);
    let (_reactor, mut pool) = pool(&budget, 2 * MIB);
    let small = pool.take(4 * KIB, usize::MAX).unwrap();
    assert!(pool.take(MIB, usize::MAX).is_none(), "it is in use");
    pool.give(small);
    assert!(pool.take(MIB, 0).is_none());
    assert_eq!(pool.idle_bytes(), 2 * MIB, "it stays for others");
    let small = pool.take(4 * KIB, 0).expect("what is mapped is there");
    pool.give(small);
    assert_eq!(pool.take(MIB, usize::MAX).unwrap().len(), MIB);
}

#[test]
fn unused_regions_above_the_bound_go_back_at_once() {
    let budget = Budget::new(8 * MIB, 4);
    let (_reactor, mut pool) = pool(&budget, 2 * MIB);
    let buffers = [2 * MIB, 4 * KIB, 4 * MIB].map(|len| pool.take(len, usize::MAX).unwrap());
    let mut idle = Vec::new();
    for buffer in buffers {
        pool.give(buffer);
        idle.push((pool.idle_bytes(), budget.mapped_bytes()));
    }
    assert_eq!(idle, [(2 * MIB, 8 * MIB), (2 * MIB, 6 * MIB), (2 * MIB, 2 * MIB)]);
    check(&pool, &[]);
}

#[test]
fn what_was_not_needed_since_the_last_call_is_given_back() {
    let budget = Budget::new(16 * MIB, 4);
    let (_reactor, mut pool) = pool(&budget, 16 * MIB);
    let buffers: Vec<_> = (0..4).map(|_| pool.take(2 * MIB, usize::MAX).unwrap()).collect();
    buffers.into_iter().for_each(|buffer| pool.give(buffer));
    pool.give_back_unneeded();
    assert_eq!(pool.idle_bytes(), 8 * MIB, "all of it was in use a moment ago");
    let one = pool.take(2 * MIB, usize::MAX).unwrap();
    pool.give(one);
    pool.give_back_unneeded();
    assert_eq!(pool.idle_bytes(), 2 * MIB, "one was needed, three were not");
    pool.give_back_unneeded();
    assert_eq!((pool.idle_bytes(), budget.mapped_bytes()), (0, 0));
}

#[test]
fn while_others_wait_a_region_of_little_buffers_is_kept_if_there_are_slices_for_it() {
    for (max, kept) in [(256 * MIB, 2 * MIB), (64 * MIB, 2 * MIB), (63 * MIB, 0)] {
        let budget = Budget::new(max, 4);
        let (_reactor, mut pool) = pool(&budget, 16 * MIB);
        assert!(!pool.trim_for_others(), "there is nothing");
        let mut buffers: Vec<_> =
            (0..513).map(|_| pool.take(4 * KIB, usize::MAX).unwrap()).collect();
        buffers.push(pool.take(MIB, usize::MAX).unwrap());
        buffers.into_iter().for_each(|buffer| pool.give(buffer));
        assert_eq!(pool.idle_bytes(), 6 * MIB);
        assert!(pool.trim_for_others());
        assert_eq!(pool.idle_bytes(), kept, "{max}");
        assert!(!pool.trim_for_others(), "it was said once");
        check(&pool, &[]);
    }
}

#[test]
fn regions_in_use_stay_when_others_wait() {
    let budget = Budget::new(8 * MIB, 4);
    let (_reactor, mut pool) = pool(&budget, 8 * MIB);
    let (used, idle) =
        (pool.take(4 * KIB, usize::MAX).unwrap(), pool.take(MIB, usize::MAX).unwrap());
    pool.give(idle);
    assert!(pool.trim_for_others());
    assert_eq!(budget.mapped_bytes(), 2 * MIB);
    pool.give(used);
}

#[test]
fn a_buffer_that_no_pool_could_ever_have_is_known() {
    let budget = Budget::new(8 * MIB, 4);
    let (_reactor, pool) = pool(&budget, 0);
    let lens = [1, MIB, 8 * MIB, 8 * MIB + 1, 32 * MIB, 64 * MIB];
    assert_eq!(lens.map(|len| pool.can_ever(len)), [true, true, true, false, false, false]);
}

#[test]
fn a_pool_knows_its_thread() {
    let reactor = Reactor::new(Config::default()).unwrap();
    assert_eq!(Pool::new(Budget::new(MIB, 1), reactor.handle(), 0, 3).thread(), 3);
}

#[test]
fn the_ring_knows_regions_of_up_to_2_mib() {
    let reactor = Reactor::new(Config::default()).unwrap();
    let mut own = Pool::new(Budget::new(128 * MIB, 4), reactor.handle(), 0, 0);
    // Whether the ring takes such regions at all is for the system to say.
    let mut takes = None;
    for (len, small) in [(4 * KIB, true), (512 * KIB, true), (2 * MIB, true), (4 * MIB, false)] {
        let buffer = own.take(len, usize::MAX).unwrap();
        let known = reactor.handle().fixed_buffer(buffer.start(), buffer.len()).is_some();
        let takes = *takes.get_or_insert(known);
        assert_eq!(known, small && takes, "{len}");
        let start = buffer.start();
        own.give(buffer);
        assert!(reactor.handle().fixed_buffer(start, len).is_none(), "it is gone");
    }
}

#[test]
fn a_region_that_goes_back_is_unmapped() {
    let is_mapped = |at: usize| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let ends = |line: &str| {
            let (start, rest) = line.split_once('-')?;
            let (end, _) = rest.split_once(' ')?;
            let number = |text| usize::from_str_radix(text, 16).ok();
            Some(number(start)?..number(end)?)
        };
        maps.lines().filter_map(ends).any(|range| range.contains(&at))
    };
    let budget = Budget::new(256 * MIB, 4);
    let (_reactor, mut pool) = pool(&budget, 0);
    let buffers: Vec<_> = (0..4).map(|_| pool.take(32 * MIB, usize::MAX).unwrap()).collect();
    let places: Vec<_> = buffers.iter().map(|buffer| buffer.start().addr()).collect();
    assert!(places.iter().all(|at| is_mapped(*at)));
    buffers.into_iter().for_each(|buffer| pool.give(buffer));
    // Other threads may have mapped something there since, but not everywhere.
    let within = |at: &usize| (0..32).map(move |mib| at + mib * MIB).collect::<Vec<_>>();
    assert!(places.iter().flat_map(within).any(|at| !is_mapped(at)));
}
