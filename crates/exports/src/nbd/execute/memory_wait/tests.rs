//! Which connection gets a buffer, by exact bytes: its volume's part, its guarantee, its share, and
//! its turn among those that wait.

use super::*;
use crate::nbd::connection::Phase;
use crate::nbd::memory::budget::FirstRequest;
use crate::nbd::tests::{MIB, Rig, connection};

/// A thread of two volumes: slices of 8 MiB, and a guarantee of 2 MiB.
fn rig() -> Rig {
    Rig::new(&["null:size=1m", "null:size=1m"], |config| {
        (config.memory_max_bytes, config.connections_max) = (64 << 20, 4);
    })
}

#[test]
fn a_volume_holds_what_is_left_for_others_or_its_part_of_a_quarter() {
    let mut rig = rig();
    let most = |rig: &Rig, bytes| {
        [0, 1].map(|more| rig.core.lane_may_hold(0, bytes + more)) == [true, false]
    };
    assert!(rig.core.lane_may_hold(0, 100 * MIB), "whatever its first request takes");
    rig.core.submitter.lanes[0].held_bytes = 4 * MIB;
    assert!(rig.core.lane_may_hold(1, 100 * MIB), "the other one has nothing");
    assert!(most(&rig, 60 * MIB));
    // 4 MiB are mapped and unused, and 10 MiB are left.
    let idle = rig.core.pool.take(4 * MIB, usize::MAX).unwrap();
    rig.core.pool.give(idle);
    assert!(rig.shared.budget.take(50 * MIB, usize::MAX));
    assert!(most(&rig, 10 * MIB));
    rig.core.threads = 2;
    assert!(most(&rig, 3 * MIB), "half of it for each thread");
    rig.core.submitter.lanes[0].held_bytes = MIB;
    assert!(rig.shared.budget.take(10 * MIB, usize::MAX));
    assert!(most(&rig, 3 * MIB), "a part of 4 MiB, for two volumes of two threads");
    rig.core.threads = 1;
    rig.core.submitter.lanes[0].held_bytes = 4 * MIB;
    assert!(most(&rig, 4 * MIB), "a part of 8 MiB");
    rig.shared.budget.give(60 * MIB);
}

#[test]
fn a_request_above_the_volumes_part_waits_for_the_volume_or_learns_that_it_is_stuck() {
    let mut rig = rig();
    let (mut conn, _sockets) = connection(3);
    rig.core.submitter.lanes[1].held_bytes = 64 * MIB;
    assert_eq!(rig.core.buffer(4 * MIB, &mut conn, 1).unwrap_err(), NoBuffer::Wait);
    assert_eq!(
        (conn.memory_wait, &rig.core.submitter.lanes[1].memory_waiters[..]),
        (MemoryWait::Volume, &[0][..])
    );
    assert!(!rig.core.waiters_changed, "nobody else waits for that");
    rig.core.submitter.lanes[1].overdue = 1;
    conn.memory_wait = MemoryWait::None;
    assert_eq!(rig.core.buffer(4 * MIB, &mut conn, 1).unwrap_err(), NoBuffer::Stuck);
    assert_eq!(
        (conn.memory_wait, rig.core.submitter.lanes[1].memory_waiters.len()),
        (MemoryWait::None, 1)
    );
    // A request within the connection's guarantee gets memory, though others hold all of that part.
    let buffers = [0, 1].map(|lane| rig.core.buffer(4096, &mut conn, lane).unwrap());
    assert_eq!(conn.held_bytes, 8192);
    buffers.into_iter().for_each(|buffer| rig.core.pool.give(buffer));
}

#[test]
fn a_volume_alone_keeps_nothing_from_others() {
    let mut single = Rig::new(&["null:size=1m"], |_| ());
    let (mut conn, _sockets) = connection(3);
    single.core.submitter.lanes[0].held_bytes = 1 << 40;
    let buffer = single.core.buffer(4096, &mut conn, 0);
    single.core.pool.give(buffer.unwrap());
}

#[test]
fn whoever_waited_in_turn_and_now_for_the_volume_leaves_the_list() {
    let mut rig = rig();
    let (mut conn, _sockets) = connection(3);
    let thread = 0;
    rig.shared.budget.join(Waiter { thread, index: 0, serial: 3 }, FirstRequest::Large);
    conn.memory_wait = MemoryWait::Queued;
    rig.core.submitter.lanes[1].held_bytes = 64 * MIB;
    assert_eq!(rig.core.buffer(4 * MIB, &mut conn, 1).unwrap_err(), NoBuffer::Wait);
    assert!(!rig.shared.budget.is_wanted() && rig.core.waiters_changed);
}

#[test]
fn what_a_connection_is_guaranteed_comes_whatever_others_hold() {
    let mut rig = rig();
    assert!(rig.shared.budget.take(62 * MIB, usize::MAX));
    let (mut conn, _sockets) = connection(3);
    assert_eq!(rig.core.buffer(65 * MIB, &mut conn, 0).unwrap_err(), NoBuffer::TooLong);
    assert_eq!(rig.core.buffer(4 * MIB, &mut conn, 0).unwrap_err(), NoBuffer::Wait);
    assert_eq!(conn.memory_wait, MemoryWait::Queued, "it holds nothing");
    assert!(rig.core.waiters_changed);
    rig.core.waiters_changed = false;
    assert_eq!(rig.core.buffer(4 * MIB, &mut conn, 0).unwrap_err(), NoBuffer::Wait);
    assert!(!rig.core.waiters_changed, "it is on the list already");
    let first = rig.core.buffer(MIB, &mut conn, 0).unwrap();
    let second = rig.core.buffer(MIB, &mut conn, 0).unwrap();
    assert_eq!(conn.held_bytes, 2 * MIB);
    rig.core.end_memory_wait(&mut conn);
    assert!(rig.core.waiters_changed && !rig.shared.budget.is_wanted(), "it was there once");
    assert_eq!(rig.core.buffer(4096, &mut conn, 0).unwrap_err(), NoBuffer::Wait);
    assert_eq!(conn.memory_wait, MemoryWait::Own, "some of what it holds has to come back");
    assert!(!rig.shared.budget.is_wanted());
    rig.core.waiters_changed = false;
    rig.core.end_memory_wait(&mut conn);
    assert!(!rig.core.waiters_changed, "which is nobody else's business");
    [first, second].into_iter().for_each(|buffer| rig.core.pool.give(buffer));
    rig.shared.budget.give(62 * MIB);
}

#[test]
fn above_its_guarantee_a_connection_holds_an_eighth_of_what_is_free() {
    // 48 MiB for those that hold much: an eighth is 6 MiB.
    for (others, fits) in [(0, true), (7, false), (8, false), (MIB, false)] {
        let mut rig = rig();
        assert!(rig.shared.budget.take(others, usize::MAX));
        let (mut conn, _sockets) = connection(3);
        conn.held_bytes = 2 * MIB;
        let found = rig.core.buffer(4 * MIB, &mut conn, 0);
        assert_eq!(found.is_ok(), fits, "{others}");
        assert_eq!(conn.memory_wait, if fits { MemoryWait::None } else { MemoryWait::Own });
        assert_eq!(conn.held_bytes, if fits { 6 * MIB } else { 2 * MIB });
        found.into_iter().for_each(|buffer| rig.core.pool.give(buffer));
        rig.shared.budget.give(others);
    }
}

#[test]
fn while_somebody_waits_only_the_first_gets_its_first_and_nobody_maps_more() {
    let mut rig = rig();
    let (mut first, _sockets) = connection(3);
    let (mut second, _other_sockets) = connection(4);
    let thread = 0;
    rig.shared.budget.join(Waiter { thread, index: 0, serial: 3 }, FirstRequest::Large);
    first.memory_wait = MemoryWait::Queued;
    assert_eq!(rig.core.buffer(4 * MIB, &mut second, 0).unwrap_err(), NoBuffer::Wait);
    assert_eq!(second.memory_wait, MemoryWait::Queued, "behind the first");
    let mut holder = connection(5).0;
    holder.held_bytes = 2 * MIB;
    assert_eq!(rig.core.buffer(MIB, &mut holder, 0).unwrap_err(), NoBuffer::Wait);
    let buffer = rig.core.buffer(4 * MIB, &mut first, 0).expect("it is its turn");
    rig.core.pool.give(buffer);
    let buffer = rig.core.buffer(4 * MIB, &mut holder, 0);
    rig.core.pool.give(buffer.expect("what is mapped may be used"));
    rig.core.end_memory_wait(&mut first);
    rig.core.end_memory_wait(&mut second);
}

#[test]
fn little_first_requests_overtake_large_ones_as_far_as_a_slice_goes() {
    // What each connection is guaranteed is 32 KiB.
    let mut rig = Rig::new(&["null:size=1m"], |config| {
        (config.memory_max_bytes, config.connections_max) = (64 << 20, 256);
    });
    let large = Waiter { thread: 1, index: 0, serial: 1 };
    rig.shared.budget.join(large, FirstRequest::Large);
    let (mut much, _sockets) = connection(2);
    assert_eq!(rig.core.buffer(4 * MIB, &mut much, 0).unwrap_err(), NoBuffer::Wait);
    let mut buffer = || {
        let (mut conn, _sockets) = connection(3);
        let found = rig.core.buffer(256 << 10, &mut conn, 0);
        (found, conn.memory_wait)
    };
    let taken: Vec<_> = (0..32).map(|_| buffer().0.expect("8 MiB may overtake")).collect();
    let (last, wait) = buffer();
    assert_eq!((last.unwrap_err(), wait), (NoBuffer::Wait, MemoryWait::Queued));
    let little = rig.shared.budget.first_of(FirstRequest::Little);
    assert_eq!(little.map(|turn| turn.serial), Some(3), "it waits with the large ones");
    assert_eq!(rig.shared.budget.first(), Some(large));
    // Its turn comes when an overtaker ends, and others' behind it then.
    taken.into_iter().for_each(|buffer| rig.core.pool.give(buffer));
    assert!(rig.core.pool.trim_for_others(), "other threads hear of it");
    let (mut other, _sockets) = connection(4);
    assert_eq!(rig.core.buffer(256 << 10, &mut other, 0).unwrap_err(), NoBuffer::Wait);
    let (mut first, _sockets) = connection(3);
    first.memory_wait = MemoryWait::Queued;
    let found = rig.core.buffer(256 << 10, &mut first, 0).expect("it is the first little one");
    rig.core.end_memory_wait(&mut first);
    let next = rig.core.buffer(256 << 10, &mut other, 0).expect("now it is this one");
    [found, next].into_iter().for_each(|buffer| rig.core.pool.give(buffer));
    [&mut other, &mut much].into_iter().for_each(|conn| rig.core.end_memory_wait(conn));
    // With nobody before them, they overtake nobody.
    rig.shared.budget.leave(1, 1);
    let (mut alone, _sockets) = connection(5);
    let found = rig.core.buffer(256 << 10, &mut alone, 0).unwrap();
    assert!(!rig.shared.budget.is_wanted());
    rig.core.pool.give(found);
}

#[test]
fn a_request_for_which_there_will_never_be_memory_is_told_so() {
    let mut rig = Rig::new(&["null:size=1m"], |config| config.memory_max_bytes = 8 << 20);
    let (mut conn, _sockets) = connection(3);
    assert_eq!(rig.core.buffer(8 * MIB + 1, &mut conn, 0).unwrap_err(), NoBuffer::TooLong);
    let buffer = rig.core.buffer(8 * MIB, &mut conn, 0).unwrap();
    rig.core.pool.give(buffer);
}

#[test]
fn turns_of_connections_that_are_gone_are_passed_over_and_those_of_others_left_alone() {
    let mut rig = rig();
    let (client, index) = rig.by_hand("0");
    let serial = rig.conns[index].as_ref().unwrap().serial;
    let join = |rig: &Rig, thread, serial| {
        rig.shared.budget.join(Waiter { thread, index, serial }, FirstRequest::Large)
    };
    // The index is somebody else's by now; then one that waits no longer.
    join(&rig, 0, serial + 7);
    join(&rig, 0, serial);
    join(&rig, 1, 77);
    join(&rig, 0, serial + 8);
    rig.retry_memory_waits();
    assert_eq!(rig.shared.budget.first().map(|turn| turn.serial), Some(77), "not this thread's");
    rig.shared.budget.leave(1, 77);
    rig.retry_memory_waits();
    assert!(!rig.shared.budget.is_wanted());
    // One that waits stays until its request has its memory.
    rig.conns[index].as_mut().unwrap().memory_wait = MemoryWait::Queued;
    join(&rig, 0, serial);
    join(&rig, 0, serial + 8);
    rig.touched.clear();
    rig.conns[index].as_mut().unwrap().history.lists.touched = false;
    rig.retry_memory_waits();
    assert_eq!(rig.shared.budget.first().map(|turn| turn.serial), Some(serial));
    assert_eq!(rig.touched, [index]);
    rig.conns[index].as_mut().unwrap().memory_wait = MemoryWait::None;
    rig.retry_memory_waits();
    assert!(!rig.shared.budget.is_wanted());
    drop(client);
}

#[test]
fn of_those_to_try_again_only_those_that_wait_are_looked_at() {
    let mut rig = rig();
    let (_client, index) = rig.by_hand("0");
    for (memory_wait, touches) in [(MemoryWait::None, false), (MemoryWait::Own, true)] {
        rig.touched.clear();
        let conn = rig.conns[index].as_mut().unwrap();
        (conn.memory_wait, conn.history.lists.touched) = (memory_wait, false);
        assert_eq!(conn.phase, Phase::Transmission);
        rig.core.submitter.retry.push(index);
        rig.retry_memory_waits();
        assert_eq!(rig.touched.len(), usize::from(touches), "{memory_wait:?}");
        assert!(rig.core.submitter.retry.is_empty());
    }
}

#[test]
fn other_threads_are_told_of_news_and_of_memory_while_somebody_waits() {
    let mut rig = Rig::new(&["null:size=1m"], |config| {
        (config.threads, config.memory_max_bytes) = (2, 8 << 20);
    });
    let told = |rig: &mut Rig, changes| {
        let before = rig.shared.changes();
        rig.core.waiters_changed = changes;
        rig.share_memory();
        assert!(!rig.core.waiters_changed);
        rig.shared.changes() - before
    };
    assert_eq!(told(&mut rig, true), 0, "nobody waits");
    rig.shared.budget.join(Waiter { thread: 1, index: 0, serial: 5 }, FirstRequest::Large);
    assert_eq!(told(&mut rig, false), 0);
    assert_eq!(told(&mut rig, true), 1);
    let idle = rig.core.pool.take(4096, usize::MAX).unwrap();
    rig.core.pool.give(idle);
    assert_eq!(told(&mut rig, false), 1, "something was given back");
    assert_eq!(told(&mut rig, false), 0);
    rig.shared.budget.leave(1, 5);
    rig.follow_changes();
    assert_eq!(rig.seen_changes, rig.shared.changes());
}

#[test]
fn what_no_room_is_left_for_beside_a_stuck_drives_memory_is_refused() {
    let mut rig = rig();
    let (mut conn, _sockets) = connection(3);
    let mut stuck = rig.core.pool.take(32 * MIB, usize::MAX).unwrap();
    assert_eq!(rig.core.buffer(32 * MIB, &mut conn, 1).unwrap_err(), NoBuffer::Wait);
    rig.core.end_memory_wait(&mut conn);
    rig.core.pool.begin_stuck(&mut stuck);
    // Of 64 MiB large requests leave two slices of 8 MiB and 2 MiB: 14 MiB are left.
    for mib in [32, 16] {
        let refused = rig.core.buffer(mib * MIB, &mut conn, 1).unwrap_err();
        assert_eq!(refused, NoBuffer::HeldByStuck, "{mib} MiB");
        assert_eq!(conn.memory_wait, MemoryWait::None, "{mib} MiB");
    }
    let buffer = rig.core.buffer(8 * MIB, &mut conn, 1).unwrap();
    rig.core.pool.give(buffer);
    rig.core.pool.give(stuck);
    conn.held_bytes = 0;
    let buffer = rig.core.buffer(32 * MIB, &mut conn, 1).expect("the drive has answered");
    rig.core.pool.give(buffer);
}

#[test]
fn requests_of_any_size_wait_beside_stuck_memory_only_for_buffers_that_come_back() {
    for len in [4096, 256 << 10, 300 << 10, MIB, 2 * MIB] {
        let mut rig = rig();
        let (mut conn, _sockets) = connection(3);
        let mut held = Vec::new();
        while let Some(buffer) = rig.core.pool.take(len, usize::MAX) {
            held.push(buffer);
        }
        let others = held.len() / 2;
        held[others..].iter_mut().for_each(|buffer| rig.core.pool.begin_stuck(buffer));
        assert_eq!(rig.core.buffer(len, &mut conn, 1).unwrap_err(), NoBuffer::Wait, "{len}");
        rig.core.end_memory_wait(&mut conn);
        held.iter_mut().for_each(|buffer| rig.core.pool.begin_stuck(buffer));
        let refused = rig.core.buffer(len, &mut conn, 1).unwrap_err();
        assert_eq!((refused, conn.memory_wait), (NoBuffer::HeldByStuck, MemoryWait::None), "{len}");
        rig.core.pool.give(held.swap_remove(others));
        let buffer = rig.core.buffer(len, &mut conn, 1).expect("one has come back");
        rig.core.pool.give(buffer);
        held.into_iter().for_each(|buffer| rig.core.pool.give(buffer));
    }
}
