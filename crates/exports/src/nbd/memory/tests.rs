//! Compares the pool with a plain list of its regions after every step, and checks how much memory
//! the pool keeps.

use millrace_reactor::{Config, Reactor};
use proptest::prelude::*;

use super::*;
use crate::nbd::tests::{MIB, pool, waiter};

const KIB: usize = 1 << 10;

/// Compares all counters with the buffers held. Returns the bytes of regions that stuck drives
/// keep.
fn check(pool: &BufferPool, held: &[PoolBuffer]) -> usize {
    let mut regions: Vec<(usize, u32, bool)> = Vec::new();
    for buffer in held {
        let (arena, region) = (size_class(buffer.len()), buffer.memory.region());
        match regions.iter_mut().find(|known| (known.0, known.1) == (arena, region)) {
            Some(known) => known.2 |= buffer.is_stuck,
            None => regions.push((arena, region, buffer.is_stuck)),
        }
    }
    let bytes_of = |(arena, region, _): &(usize, u32, bool)| {
        let in_it = |buffer: &&PoolBuffer| {
            (size_class(buffer.len()), buffer.memory.region()) == (*arena, *region)
        };
        held.iter().find(in_it).unwrap().len().max(REGION_BYTES)
    };
    let used: usize = regions.iter().map(bytes_of).sum();
    let stuck: usize = regions.iter().filter(|region| region.2).map(bytes_of).sum();
    let mapped: usize = pool.arenas.iter().map(BufferArena::mapped_bytes).sum();
    assert_eq!(pool.in_use(), held.len());
    assert_eq!(pool.budget.mapped_bytes(), mapped);
    assert_eq!(pool.idle_bytes() + used, mapped);
    assert!(pool.idle_bytes_least <= pool.idle_bytes());
    stuck
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn buffers_never_overlap_and_every_figure_adds_up(
        steps in proptest::collection::vec((0usize..10, any::<u16>()), 1..300),
    ) {
        let budget = MemoryBudget::new(24 * MIB, 4);
        let (_reactor, mut pool) = pool(&budget, 6 * MIB);
        let (mut held, mut marks): (Vec<PoolBuffer>, Vec<u8>) = (Vec::new(), Vec::new());
        for (step, number) in steps {
            match step {
                0..6 => {
                    let len = 1 + usize::from(number) % (4096 << (2 * step));
                    let taken = pool.take(waiter(0, 0, len), MemoryPart::Window);
                    let Some(mut buffer) = taken else { continue };
                    prop_assert!(buffer.len() >= len && buffer.start().addr() % 4096 == 0);
                    let mark = number as u8 | 1;
                    buffer.bytes_mut()[0] = mark;
                    let last = buffer.len() - 1;
                    buffer.bytes_mut()[last] = mark;
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
            let rest = 24 * MIB - check(&pool, &held);
            let fits = |bytes| budget.refusal(bytes, MemoryPart::Shared).is_none();
            prop_assert_eq!([fits(rest), fits(rest + 1)], [rest > 0, false], "{} bytes", rest);
        }
        held.into_iter().for_each(|buffer| pool.give(buffer));
        check(&pool, &[]);
        drop(pool);
        prop_assert_eq!(budget.mapped_bytes(), 0);
    }
}

#[test]
fn little_buffers_share_regions_and_longer_ones_have_others() {
    let budget = MemoryBudget::new(8 * MIB, 4);
    let (_reactor, mut pool) = pool(&budget, 8 * MIB);
    let mut held: Vec<_> = [4, 8, 16, 256, 64]
        .map(|kib| pool.take(waiter(0, 0, kib * KIB), MemoryPart::Window).unwrap())
        .into();
    assert_eq!((budget.mapped_bytes(), pool.in_use()), (2 * MIB, 5));
    check(&pool, &held);
    held.push(pool.take(waiter(0, 0, 512 * KIB), MemoryPart::Window).unwrap());
    assert_eq!(budget.mapped_bytes(), 4 * MIB, "what is free of that is for little ones");
    held.extend(
        [MIB, 512 * KIB].map(|len| pool.take(waiter(0, 0, len), MemoryPart::Window).unwrap()),
    );
    assert_eq!(budget.mapped_bytes(), 4 * MIB);
    held.push(pool.take(waiter(0, 0, 4 * MIB), MemoryPart::Window).unwrap());
    assert_eq!(budget.mapped_bytes(), 8 * MIB);
    check(&pool, &held);
    held.into_iter().for_each(|buffer| pool.give(buffer));
    check(&pool, &[]);
}

#[test]
fn what_lies_idle_makes_room_for_another_kind() {
    let budget = MemoryBudget::new(2 * MIB, 4);
    let (_reactor, mut pool) = pool(&budget, 2 * MIB);
    let small = pool.take(waiter(0, 0, 4 * KIB), MemoryPart::Shared).unwrap();
    assert!(pool.take(waiter(0, 0, MIB), MemoryPart::Shared).is_none(), "it is in use");
    pool.give(small);
    assert_eq!(pool.take(waiter(0, 0, MIB), MemoryPart::Shared).unwrap().len(), MIB);
}

#[test]
fn what_is_free_beyond_the_shared_part_is_for_windows() {
    let budget = MemoryBudget::new(64 * MIB, 1024);
    let (_reactor, mut pool) = pool(&budget, 0);
    let shared: Vec<_> =
        (0..24).map(|_| pool.take(waiter(0, 0, 256 * KIB), MemoryPart::Shared).unwrap()).collect();
    let long = pool.take(waiter(0, 0, 32 * MIB), MemoryPart::Window).unwrap();
    let more: Vec<_> =
        (0..40).map(|_| pool.take(waiter(0, 0, 256 * KIB), MemoryPart::Window).unwrap()).collect();
    assert_eq!(budget.mapped_bytes(), 48 * MIB);
    let window = pool.take(waiter(0, 0, 4 * KIB), MemoryPart::Window).unwrap();
    assert!(pool.take(waiter(0, 0, 4 * KIB), MemoryPart::Shared).is_none(), "its region has room");
    pool.give(long);
    assert!(pool.take(waiter(0, 0, 4 * KIB), MemoryPart::Shared).is_some());
    pool.give(window);
    shared.into_iter().chain(more).for_each(|buffer| pool.give(buffer));
}

#[test]
fn what_the_pool_has_is_for_those_whose_turn_it_is() {
    let budget = MemoryBudget::new(8 * MIB, 4);
    let (_reactor, mut pool) = pool(&budget, 2 * MIB);
    let used = pool.take(waiter(0, 0, MIB), MemoryPart::Shared).unwrap();
    budget.change_line(|line| line.waiters.push_back(waiter(1, 7, MIB)));
    assert!(pool.take(waiter(0, 1, MIB), MemoryPart::Shared).is_none());
    assert_eq!((pool.in_use(), budget.mapped_bytes()), (1, 2 * MIB));
    budget.change_line(|line| line.leave(1, 7));
    let next = pool.take(waiter(0, 1, MIB), MemoryPart::Shared).unwrap();
    assert_eq!(budget.mapped_bytes(), 2 * MIB, "the same region");
    [used, next].into_iter().for_each(|buffer| pool.give(buffer));
}

#[test]
fn unused_regions_above_the_bound_go_back_at_once() {
    let budget = MemoryBudget::new(8 * MIB, 4);
    let (_reactor, mut pool) = pool(&budget, 2 * MIB);
    let buffers = [2 * MIB, 4 * KIB, 4 * MIB]
        .map(|len| pool.take(waiter(0, 0, len), MemoryPart::Window).unwrap());
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
    let budget = MemoryBudget::new(16 * MIB, 4);
    let (_reactor, mut pool) = pool(&budget, 16 * MIB);
    let buffers: Vec<_> =
        (0..4).map(|_| pool.take(waiter(0, 0, 2 * MIB), MemoryPart::Window).unwrap()).collect();
    buffers.into_iter().for_each(|buffer| pool.give(buffer));
    pool.give_back_unneeded();
    assert_eq!(pool.idle_bytes(), 8 * MIB, "all of it was in use a moment ago");
    let one = pool.take(waiter(0, 0, 2 * MIB), MemoryPart::Window).unwrap();
    pool.give(one);
    pool.give_back_unneeded();
    assert_eq!(pool.idle_bytes(), 2 * MIB, "one was needed, three were not");
    pool.give_back_unneeded();
    assert_eq!((pool.idle_bytes(), budget.mapped_bytes()), (0, 0));
}

#[test]
fn region_of_small_buffers_is_kept_for_windows_while_waited() {
    for (max, kept) in [(256 * MIB, 2 * MIB), (64 * MIB, 2 * MIB), (32 * MIB, 0)] {
        let budget = MemoryBudget::new(max, 4);
        let (_reactor, mut pool) = pool(&budget, 16 * MIB);
        let mut buffers: Vec<_> = (0..513)
            .map(|_| pool.take(waiter(0, 0, 4 * KIB), MemoryPart::Window).unwrap())
            .collect();
        buffers.push(pool.take(waiter(0, 0, MIB), MemoryPart::Window).unwrap());
        buffers.into_iter().for_each(|buffer| pool.give(buffer));
        assert_eq!((pool.idle_bytes(), budget.take_news()), (6 * MIB, false));
        pool.trim_for_others();
        assert_eq!((pool.idle_bytes(), budget.take_news()), (kept, true), "{max}");
        pool.trim_for_others();
        assert!(!budget.take_news(), "nothing has changed");
        check(&pool, &[]);
    }
}

#[test]
fn regions_in_use_stay_when_others_wait() {
    let budget = MemoryBudget::new(8 * MIB, 4);
    let (_reactor, mut pool) = pool(&budget, 8 * MIB);
    let [used, idle] =
        [4 * KIB, MIB].map(|len| pool.take(waiter(0, 0, len), MemoryPart::Window).unwrap());
    pool.give(idle);
    pool.trim_for_others();
    assert_eq!(budget.mapped_bytes(), 2 * MIB);
    pool.give(used);
}

#[test]
fn a_pool_knows_its_thread() {
    let reactor = Reactor::new(Config::default()).unwrap();
    assert_eq!(BufferPool::new(MemoryBudget::new(MIB, 1), reactor.handle(), 0, 3).thread, 3);
}

#[test]
fn the_ring_knows_regions_of_up_to_2_mib() {
    let reactor = Reactor::new(Config::default()).unwrap();
    let mut own = BufferPool::new(MemoryBudget::new(128 * MIB, 4), reactor.handle(), 0, 0);
    // Only some systems let the ring register regions at all.
    let mut takes = None;
    for (len, small) in [(4 * KIB, true), (512 * KIB, true), (2 * MIB, true), (4 * MIB, false)] {
        let buffer = own.take(waiter(0, 0, len), MemoryPart::Window).unwrap();
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
    let budget = MemoryBudget::new(256 * MIB, 4);
    let (_reactor, mut pool) = pool(&budget, 0);
    let buffers: Vec<_> =
        (0..4).map(|_| pool.take(waiter(0, 0, 32 * MIB), MemoryPart::Window).unwrap()).collect();
    let places: Vec<_> = buffers.iter().map(|buffer| buffer.start().addr()).collect();
    assert!(places.iter().all(|at| is_mapped(*at)));
    buffers.into_iter().for_each(|buffer| pool.give(buffer));
    // Other threads may have mapped memory at some of these addresses since then, but not at all of
    // them.
    let within = |at: &usize| (0..32).map(move |mib| at + mib * MIB).collect::<Vec<_>>();
    assert!(places.iter().flat_map(within).any(|at| !is_mapped(at)));
}
