//! The pool held to a plain account of its regions after every step, and what it keeps and gives.

use millrace_reactor::{Config, Reactor};
use proptest::prelude::*;

use super::*;
use crate::nbd::tests::{MIB, pool};

const KIB: usize = 1 << 10;

/// Recounts everything.
fn check(pool: &Pool) {
    let (mut idle, mut mapped, mut in_use, mut stuck) = (0, 0, 0, 0);
    for (id, region) in (0u32..).zip(&pool.regions) {
        let times = |list: &Vec<u32>| list.iter().filter(|one| **one == id).count();
        let listed: usize = pool.partial.iter().map(times).sum();
        let Some(region) = region else {
            assert_eq!((listed, times(&pool.vacant)), (0, 1), "region {id} is gone");
            continue;
        };
        let (class, bytes) = (usize::from(region.class), region.mapping.len_bytes);
        assert_eq!(bytes, region_bytes(class));
        assert_eq!(usize::from(region.count), bytes / class_bytes(class));
        stuck += if region.stuck > 0 { bytes } else { 0 };
        let free: u32 = region.bits.iter().map(|bits| bits.count_ones()).sum();
        assert_eq!(free, u32::from(region.free));
        let has_room = usize::from(region.free > 0);
        assert_eq!((listed, times(&pool.partial[class])), (has_room, has_room), "region {id}");
        assert_eq!(times(&pool.vacant), 0);
        mapped += bytes;
        in_use += usize::from(region.count - region.free);
        idle += if region.free == region.count { bytes } else { 0 };
    }
    assert!(pool.vacant.capacity() >= pool.regions.len(), "to give all back allocates nothing");
    assert_eq!((pool.idle_bytes(), pool.in_use()), (idle, in_use));
    assert_eq!(pool.budget().mapped_bytes(), mapped);
    let room = pool.budget().max_bytes() - stuck;
    assert!(stuck == 0 || !pool.budget().fits_beside_stuck(room + 1), "{stuck} bytes are stuck");
    assert!(pool.idle_bytes_least <= idle);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn buffers_never_overlap_and_every_figure_adds_up(
        steps in proptest::collection::vec((0usize..10, any::<u16>()), 1..300),
    ) {
        let budget = Budget::new(24 * MIB, 4);
        let (_reactor, mut pool) = pool(&budget, 3 * MIB);
        let mut held: Vec<(PoolBuffer, u8)> = Vec::new();
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
                    held.push((buffer, mark));
                }
                6 if number % 8 == 0 => pool.trim(),
                7 if number % 8 == 0 => pool.give_back_unneeded(),
                _ if held.is_empty() => {}
                8 => {
                    let place = usize::from(number) % held.len();
                    pool.begin_stuck(&mut held[place].0);
                }
                _ => {
                    let (mut buffer, mark) = held.swap_remove(usize::from(number) % held.len());
                    let bytes = buffer.bytes_mut();
                    prop_assert_eq!((bytes[0], bytes[bytes.len() - 1]), (mark, mark));
                    pool.give(buffer);
                    prop_assert!(pool.idle_bytes() <= 3 * MIB);
                }
            }
            check(&pool);
        }
        held.into_iter().for_each(|(buffer, _)| pool.give(buffer));
        check(&pool);
        prop_assert!(budget.fits_beside_stuck(usize::MAX), "no drive keeps anything");
        drop(pool);
        prop_assert_eq!(budget.mapped_bytes(), 0);
    }
}

#[test]
fn classes_are_powers_of_two_and_one_for_requests_with_two_edges() {
    for (len, buffer, region) in [
        (1, 4 * KIB, MIB),
        (4 * KIB, 4 * KIB, MIB),
        (4 * KIB + 1, 8 * KIB, MIB),
        (256 * KIB, 256 * KIB, MIB),
        (256 * KIB + 1, 512 * KIB, 512 * KIB),
        (MIB, MIB, MIB),
        (16 * MIB + 1, 32 * MIB, 32 * MIB),
        (32 * MIB, 32 * MIB, 32 * MIB),
        (32 * MIB + 1, 32 * MIB + 256 * KIB, 32 * MIB + 256 * KIB),
        (32 * MIB + 256 * KIB, 32 * MIB + 256 * KIB, 32 * MIB + 256 * KIB),
    ] {
        assert_eq!(buffer_bytes(len), Some(buffer), "{len}");
        assert_eq!(region_bytes(class_of(len).unwrap()), region, "{len}");
    }
    for len in [32 * MIB + 256 * KIB + 1, 64 * MIB, 65 * MIB, 1 << 40] {
        assert_eq!(buffer_bytes(len), None, "{len}");
    }
}

#[test]
fn all_buffers_of_a_region_are_used_before_the_next_one_is_mapped() {
    for (len, count) in [(4 * KIB, 256), (8 * KIB, 128), (16 * KIB, 64), (32 * KIB, 32)] {
        let budget = Budget::new(8 * MIB, 4);
        let (_reactor, mut pool) = pool(&budget, 8 * MIB);
        let buffers: Vec<_> = (0..count).map(|_| pool.take(len, usize::MAX).unwrap()).collect();
        assert_eq!((budget.mapped_bytes(), pool.in_use()), (MIB, count));
        check(&pool);
        let more = pool.take(len, usize::MAX).unwrap();
        assert_eq!(budget.mapped_bytes(), 2 * MIB);
        pool.give(more);
        buffers.into_iter().for_each(|buffer| pool.give(buffer));
        check(&pool);
    }
}

#[test]
fn a_larger_buffer_serves_where_nothing_more_may_be_mapped_but_none_far_larger() {
    let budget = Budget::new(MIB, 4);
    let (_reactor, mut pool) = pool(&budget, MIB);
    let first = pool.take(64 * KIB, usize::MAX).unwrap();
    assert!(pool.take(4 * KIB, usize::MAX).is_none(), "sixteen times as much as it needs");
    let second = pool.take(8 * KIB, usize::MAX).unwrap();
    assert_eq!(second.len(), 64 * KIB);
    check(&pool);
    pool.give(first);
    pool.give(second);
    check(&pool);
}

#[test]
fn the_last_classes_look_for_no_larger_ones_than_there_are() {
    let budget = Budget::new(40 * MIB, 4);
    let (_reactor, mut pool) = pool(&budget, 40 * MIB);
    let _all = pool.take(32 * MIB + 1, usize::MAX).unwrap();
    assert!(pool.take(32 * MIB + 1, usize::MAX).is_none());
    assert!(pool.take(16 * MIB, usize::MAX).is_none());
}

#[test]
fn what_lies_idle_makes_room_for_another_class_unless_that_is_somebody_elses_turn() {
    let budget = Budget::new(MIB, 4);
    let (_reactor, mut pool) = pool(&budget, MIB);
    let small = pool.take(4 * KIB, usize::MAX).unwrap();
    pool.give(small);
    assert!(pool.take(MIB, 0).is_none());
    assert_eq!(pool.idle_bytes(), MIB, "it stays for others");
    assert_eq!(pool.take(4 * KIB, 0).unwrap().len(), 4 * KIB, "but what is mapped is there");
    check(&pool);
}

#[test]
fn unused_regions_above_the_bound_go_back_at_once() {
    let budget = Budget::new(8 * MIB, 4);
    let (_reactor, mut pool) = pool(&budget, MIB);
    let buffers = [MIB, MIB, 2 * MIB].map(|len| pool.take(len, usize::MAX).unwrap());
    let mut idle = Vec::new();
    for buffer in buffers {
        pool.give(buffer);
        idle.push((pool.idle_bytes(), budget.mapped_bytes()));
        check(&pool);
    }
    assert_eq!(idle, [(MIB, 4 * MIB), (MIB, 3 * MIB), (MIB, MIB)]);
}

#[test]
fn what_was_not_needed_since_the_last_call_is_given_back() {
    let budget = Budget::new(16 * MIB, 4);
    let (_reactor, mut pool) = pool(&budget, 16 * MIB);
    let buffers: Vec<_> = (0..4).map(|_| pool.take(MIB, usize::MAX).unwrap()).collect();
    buffers.into_iter().for_each(|buffer| pool.give(buffer));
    pool.give_back_unneeded();
    assert_eq!(pool.idle_bytes(), 4 * MIB, "all of it was in use a moment ago");
    let one = pool.take(MIB, usize::MAX).unwrap();
    pool.give(one);
    pool.give_back_unneeded();
    assert_eq!(pool.idle_bytes(), MIB, "one was needed, three were not");
    pool.give_back_unneeded();
    assert_eq!((pool.idle_bytes(), budget.mapped_bytes()), (0, 0));
    check(&pool);
}

#[test]
fn while_others_wait_one_small_region_of_each_class_is_kept_if_there_are_slices_for_it() {
    for (max, kept) in [(256 * MIB, 2 * MIB), (64 * MIB, 2 * MIB), (63 * MIB, 0)] {
        let budget = Budget::new(max, 4);
        let (_reactor, mut pool) = pool(&budget, 16 * MIB);
        assert!(!pool.trim_for_others(), "there is nothing");
        let mut buffers: Vec<_> =
            (0..513).map(|_| pool.take(4 * KIB, usize::MAX).unwrap()).collect();
        buffers.extend([8 * KIB, MIB].map(|len| pool.take(len, usize::MAX).unwrap()));
        buffers.into_iter().for_each(|buffer| pool.give(buffer));
        assert_eq!(pool.idle_bytes(), 5 * MIB);
        assert!(pool.trim_for_others());
        assert_eq!(pool.idle_bytes(), kept, "{max}");
        assert!(!pool.trim_for_others(), "it was said once");
        check(&pool);
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
    assert_eq!(budget.mapped_bytes(), MIB);
    check(&pool);
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
fn the_ring_knows_regions_of_up_to_1_mib() {
    let reactor = Reactor::new(Config::default()).unwrap();
    let mut own = Pool::new(Budget::new(128 * MIB, 4), reactor.handle(), 0, 0);
    // Whether the ring takes such regions at all is for the system to say.
    let mut takes = None;
    for (len, small) in [(4 * KIB, true), (512 * KIB, true), (MIB, true), (2 * MIB, false)] {
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
