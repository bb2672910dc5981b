//! Tests when a thread checks its clients and which connections it ends. The tests set the time.

use super::*;
use crate::nbd::connection::ConnectionPhase;
use crate::nbd::memory::budget::MemoryPart;
use crate::nbd::tests::{MIB, Rig, connection, header, request, waiter};
use millrace_nbd::Command;

const S: u64 = 1_000_000_000;

#[test]
fn thread_polls_for_its_followers_or_sleeps_until_due() {
    let mut client_timers = ClientTimers { look_ns: 9_000_000, ..ClientTimers::default() };
    assert_eq!(client_timers.deadline(&[], 0), None, "there is no connection");
    assert_eq!(client_timers.deadline(&[], 1), Some(9_000_000));
    let (mut conn, _sockets) = connection(1);
    client_timers.watch(&conn);
    assert!(
        client_timers.catching.is_empty(),
        "the connection does not wait for its client to catch up"
    );
    conn.out.catching_ns = 1_000_000;
    client_timers.watch(&conn);
    let mut conns = [Some(conn)];
    assert_eq!(client_timers.deadline(&conns, 1), Some(3_000_000), "2 ms after it began");
    client_timers.look_ns = 2_500_000;
    assert_eq!(client_timers.deadline(&conns, 1), Some(2_500_000));
    conns[0].as_mut().unwrap().out.catching_ns = 2_000_000;
    assert_eq!(client_timers.deadline(&conns, 1), Some(2_500_000));
    assert!(client_timers.catching.is_empty(), "the connection waits anew and has another entry");
}

#[test]
fn a_deaf_connection_is_listed_once() {
    let mut client_timers = ClientTimers::default();
    let (mut conn, _sockets) = connection(1);
    client_timers.watch_unwatched(&mut conn);
    client_timers.watch_unwatched(&mut conn);
    assert_eq!(client_timers.unwatched, [0]);
}

#[test]
fn next_look_is_earliest_of_those_that_there_is_reason_for() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let client_timers = &mut rig.client_timers;
    (client_timers.look_ns, client_timers.idle_ns) = (50, 40);
    (client_timers.rates_ns, client_timers.unwatched_ns) = (30, 20);
    assert_eq!(rig.client_timer_deadline(), None);
    rig.core.counts.connections = 1;
    assert_eq!(rig.client_timer_deadline(), Some(50));
    let buffer = rig.core.pool.take(waiter(0, 0, 4096), MemoryPart::Window).unwrap();
    assert_eq!(rig.client_timer_deadline(), Some(50), "all memory of the pool is in use");
    rig.core.pool.give(buffer);
    assert_eq!(rig.client_timer_deadline(), Some(40));
    rig.shared.budget.change_line(|line| line.waiters.push_back(waiter(1, 5, 4 * MIB)));
    assert_eq!(rig.client_timer_deadline(), Some(30));
    rig.client_timers.unwatched.push(0);
    assert_eq!(rig.client_timer_deadline(), Some(20));
    rig.client_timers.unwatched.clear();
    rig.shared.budget.change_line(|line| line.leave(1, 5));
    rig.core.counts.connections = 0;
}

fn give_back_unused(worker: &mut Worker, now_ns: u64) {
    worker.client_timers.give_back_unused(&mut worker.core.pool, now_ns);
}

#[test]
fn unused_memory_is_looked_at_every_two_seconds() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    give_back_unused(&mut rig, 7 * S);
    assert_eq!(rig.client_timers.idle_ns, 0, "there is no idle memory");
    let buffer = rig.core.pool.take(waiter(0, 0, 4096), MemoryPart::Window).unwrap();
    rig.core.pool.give(buffer);
    let idle = |rig: &mut Rig, now_ns| {
        give_back_unused(rig, now_ns);
        (rig.core.pool.idle_bytes(), rig.client_timers.idle_ns)
    };
    assert_eq!(idle(&mut rig, 7 * S), (2 * MIB, 9 * S), "the memory was in use just now");
    assert_eq!(idle(&mut rig, 9 * S - 1), (2 * MIB, 9 * S));
    assert_eq!(idle(&mut rig, 9 * S), (0, 11 * S));
}

/// Connects a client that has sent the beginning of a write, so that its connection waits for the
/// rest.
fn half_a_write(rig: &mut Rig) -> (std::os::unix::net::UnixStream, usize) {
    let (mut client, index) = rig.by_hand("0");
    let write = [header(&request(Command::Write, 0, 4 * MIB as u64)), vec![1; 100]].concat();
    std::io::Write::write_all(&mut client, &write).unwrap();
    rig.until("the connection waits for the rest", |rig| {
        rig.conns[index].as_ref().is_some_and(|conn| conn.waits_for_client())
    });
    (client, index)
}

fn phase(rig: &Rig, index: usize) -> ConnectionPhase {
    rig.conns[index].as_ref().unwrap().phase
}

#[test]
fn clients_are_checked_four_times_per_timeout_before_their_end() {
    let mut rig = Rig::new(&["ram:size=8m"], |_| ());
    rig.shared.stall_timeout_ns.store(40 * S, std::sync::atomic::Ordering::Relaxed);
    let (_idle, idle) = rig.by_hand("0");
    let (_still, still) = half_a_write(&mut rig);
    let start_ns = rig.client_timers.look_ns;
    let mut ended = Vec::new();
    for look in 0..7u64 {
        rig.run_client_timers(start_ns + look * 10 * S - 1);
        rig.run_client_timers(start_ns + look * 10 * S);
        assert_eq!(rig.client_timers.look_ns, start_ns + (look + 1) * 10 * S);
        ended.push(rig.core.counts.stalled);
    }
    // The first check sees that the client transferred data.
    assert_eq!(ended, [0, 0, 0, 0, 1, 1, 1]);
    assert_eq!(
        (phase(&rig, still), phase(&rig, idle)),
        (ConnectionPhase::Dead, ConnectionPhase::Transmission)
    );
    // A shortened timeout brings the next check forward.
    rig.shared.stall_timeout_ns.store(4 * S, std::sync::atomic::Ordering::Relaxed);
    rig.run_client_timers(start_ns + 61 * S);
    assert_eq!(rig.client_timers.look_ns, start_ns + 62 * S);
}

#[test]
fn slow_client_over_its_window_is_ended_under_pressure() {
    for (memory, ends) in [(64 << 20, true), (1 << 30, false)] {
        let mut rig = Rig::new(&["ram:size=8m"], |config| {
            (config.memory_max_bytes, config.connections_max) = (memory, 16);
        });
        // The client's write holds 4 MiB, which is more than 1 MiB and less than 15 MiB.
        let (_slow, slow) = half_a_write(&mut rig);
        let from_ns = rig.client_timers.look_ns + 1000 * S;
        rig.end_slow(from_ns);
        assert_eq!(rig.client_timers.pressed_ns, 0, "nobody waits");
        rig.shared.budget.change_line(|line| line.waiters.push_back(waiter(1, 5, 4 * MIB)));
        let mut ended = Vec::new();
        for at_s in 1..=6 {
            rig.end_slow(from_ns + at_s * S - 1);
            rig.end_slow(from_ns + at_s * S);
            assert_eq!(rig.client_timers.pressed_ns, from_ns + S - 1);
            ended.push(rig.core.counts.stalled);
        }
        let expected = if ends { [0, 0, 0, 0, 1, 1] } else { [0; 6] };
        assert_eq!(ended, expected, "four seconds after the first check");
        assert_eq!(phase(&rig, slow) == ConnectionPhase::Dead, ends);
        rig.shared.budget.change_line(|line| line.leave(1, 5));
        rig.end_slow(from_ns + 8 * S);
        assert_eq!(rig.client_timers.pressed_ns, 0);
    }
}

#[test]
fn rates_are_checked_four_times_per_period_or_timeout() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    rig.shared.budget.change_line(|line| line.waiters.push_back(waiter(1, 5, 4 * MIB)));
    for (timeout_ns, next_ns) in [(30 * S, S), (2 * S, S / 2), (0, 1)] {
        rig.shared.stall_timeout_ns.store(timeout_ns, std::sync::atomic::Ordering::Relaxed);
        rig.client_timers.rates_ns = 0;
        rig.end_slow(1000 * S);
        assert_eq!(rig.client_timers.rates_ns, 1000 * S + next_ns);
    }
    rig.shared.budget.change_line(|line| line.leave(1, 5));
}

#[test]
fn deaf_connection_is_asked_twice_a_second_and_ended_when_gone() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    for (leaves, unwatched) in [(false, true), (true, true), (true, false)] {
        let (conn, [_ours, theirs]) = connection(1);
        rig.conns.clear();
        rig.conns.push(Some(conn));
        let conn = rig.conns[0].as_mut().unwrap();
        (conn.phase, conn.negotiation, conn.history.unwatched) =
            (ConnectionPhase::Transmission, None, true);
        conn.input.busy = !unwatched;
        rig.client_timers.unwatched = vec![0];
        rig.client_timers.unwatched_ns = 5 * S;
        if leaves {
            drop(theirs);
        } else {
            std::mem::forget(theirs);
        }
        rig.end_gone(5 * S - 1);
        assert_eq!(
            (rig.client_timers.unwatched.len(), rig.client_timers.unwatched_ns),
            (1, 5 * S),
            "not yet"
        );
        rig.end_gone(5 * S);
        assert_eq!(rig.client_timers.unwatched_ns, 5 * S + S / 2);
        let stays = unwatched && !leaves;
        assert_eq!(rig.client_timers.unwatched.len(), usize::from(stays));
        assert_eq!(rig.conns[0].as_ref().unwrap().history.unwatched, stays);
        assert_eq!(phase(&rig, 0) == ConnectionPhase::Dead, unwatched && leaves);
        rig.client_timers.unwatched.clear();
        rig.end_gone(50 * S);
        assert_eq!(
            rig.client_timers.unwatched_ns,
            5 * S + S / 2,
            "every connection has a socket operation"
        );
    }
    rig.conns.clear();
    rig.core.touched.clear();
}

#[test]
fn whoever_had_two_milliseconds_to_catch_up_is_heard_all_same() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let (conn, _sockets) = connection(1);
    rig.conns.push(Some(conn));
    let watch = |rig: &mut Rig| {
        let conn = rig.conns[0].as_mut().unwrap();
        (conn.phase, conn.negotiation) = (ConnectionPhase::Transmission, None);
        (conn.out.catching_ns, conn.turn.reads_late) = (5 * S, false);
        let conn = rig.conns[0].take().unwrap();
        rig.client_timers.watch(&conn);
        rig.conns[0] = Some(conn);
    };
    let state = |rig: &Rig| {
        let conn = rig.conns[0].as_ref().unwrap();
        (rig.client_timers.catching.len(), conn.turn.reads_late, conn.out.catching_ns)
    };
    watch(&mut rig);
    rig.run_client_timers(5 * S + CATCH_UP_NS - 1);
    assert_eq!(state(&rig), (1, false, 5 * S));
    rig.run_client_timers(5 * S + CATCH_UP_NS);
    assert_eq!(state(&rig), (0, true, 0));
    assert_eq!(rig.core.touched, [0]);
    watch(&mut rig);
    rig.conns[0].as_mut().unwrap().out.catching_ns = 6 * S;
    rig.run_client_timers(9 * S);
    assert_eq!(state(&rig), (0, false, 6 * S), "it waits anew");
    watch(&mut rig);
    rig.conns[0].as_mut().unwrap().input.busy = true;
    rig.run_client_timers(9 * S);
    assert_eq!(state(&rig), (0, false, 5 * S), "the poll for catching up is cancelled");
    assert_eq!(rig.ring.pending(), 1);
    rig.conns.clear();
    rig.core.touched.clear();
}
