//! Tests, turn by turn, connections that begin and end, time limits, and tickets whose clients have
//! left.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millrace_block::{Op, Status};

use super::super::ring::SendBacklog;
use super::super::tests::{MIB, Rig, connection, request, ticket, waiter};
use super::super::{Observer, ServerStats};
use super::*;
use crate::nbd::connection::client_log::tests::logged;
use crate::nbd::memory::budget::MemoryPart;
use crate::nbd::submit::lanes::EndedLanes;
use millrace_nbd::Command;
use millrace_nbd::wire::{OPT_EXPORT_NAME, put_option};

/// Returns true if the peer has closed the connection.
fn is_closed(mut client: &UnixStream) -> bool {
    client.set_nonblocking(true).unwrap();
    matches!(client.read(&mut [0; 64]), Ok(0))
}

fn accept(rig: &mut Rig, listener: usize) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    rig.accepted(listener, ours.into_raw_fd());
    theirs
}

#[test]
fn connections_are_dealt_in_turn_and_excess_ones_closed() {
    let mut rig = Rig::new(&["null:size=1m"], |config| {
        (config.threads, config.connections_max) = (2, 3);
    });
    let mut clients = Vec::new();
    let log = logged(|| clients.extend((0..5).map(|_| accept(&mut rig, 0))));
    let why = "refused a client: all 3 connections are in use";
    assert_eq!(log.matches(why).count(), 2, "{log}");
    assert!(log.contains(&rig.core.exports.catalog(0).unwrap().address), "{log}");
    assert_eq!(rig.ring.pending(), 5, "each accept is followed by another");
    let counts = rig.core.counts;
    assert_eq!(
        (counts.connections_accepted, counts.connections_refused, counts.connections),
        (3, 2, 2)
    );
    let closed: Vec<_> = clients.iter().map(is_closed).collect();
    assert_eq!(closed, [false, false, false, true, true]);
    let Some(ThreadMessage::Connection(fd, listener)) = rig.shared.mailboxes[1].take() else {
        panic!("there is a second connection");
    };
    assert_eq!(listener, 0);
    close_now(fd);
    rig.shared.dismiss();
    assert!(is_closed(&clients[1]), "the second connection belonged to the other thread");
    assert!(rig.shared.mailboxes[1].take().is_none() && rig.shared.mailboxes[0].is_empty());
    let serials: Vec<_> = rig.conns.iter().flatten().map(|conn| conn.serial).collect();
    assert_eq!(serials, [1, 2]);
    assert_eq!(rig.shared.connections.open.load(Ordering::SeqCst), 2);
    // The end of the thread cancels a single accept.
    (1..5).for_each(|_| rig.ring.cancel_accept(0));
}

#[test]
fn the_address_of_a_client_that_is_one_too_many_is_logged() {
    let mut rig = Rig::new(&["null:size=1m"], |config| config.connections_max = 1);
    let _first = accept(&mut rig, 0);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    let log = logged(|| rig.accepted(0, ours.into_raw_fd()));
    let from = format!("refused a client from {}: all 1 connections", client.local_addr().unwrap());
    assert!(log.contains(&from), "{log}");
    (0..2).for_each(|_| rig.ring.cancel_accept(0));
}

#[test]
fn client_replaces_one_that_timed_out_amid_handshakes() {
    let mut rig = Rig::new(&["null:size=1m"], |config| config.connections_max = 4);
    let mut clients: Vec<_> = (0..3).map(|_| rig.connect().0).collect();
    let _served = rig.by_hand("0");
    assert!(is_closed(&accept(&mut rig, 0)), "all connections are younger than the grace period");
    assert_eq!(rig.core.counts.handshake_timeouts, 0);
    let age = |rig: &mut Rig| rig.handshakes.iter_mut().for_each(|one| one.0 -= 1_100_000_000);
    age(&mut rig);
    let mut newer = None;
    let log = logged(|| newer = Some(accept(&mut rig, 0)));
    assert!(log.contains("is refused: the client's handshake is incomplete"), "{log}");
    rig.until("the oldest is closed", |rig| rig.core.counts.connections == 4);
    let mut greeting = [0; 18];
    clients[0].read_exact(&mut greeting).unwrap();
    assert!(is_closed(&clients[0]), "the oldest");
    clients[1].read_exact(&mut greeting).unwrap();
    let newer = newer.unwrap();
    assert!(!is_closed(&clients[1]) && !is_closed(&newer));
    assert_eq!((rig.core.counts.connections_refused, rig.core.counts.handshake_timeouts), (1, 1));
    assert_eq!(rig.shared.connections.open.load(Ordering::SeqCst), 4);
    // Another client selects an export; two of four connections still negotiate, which is the
    // limit.
    let mut out = 3u32.to_be_bytes().to_vec();
    put_option(&mut out, OPT_EXPORT_NAME, b"0");
    clients[1].write_all(&out).unwrap();
    rig.receive(&mut clients[1], 10);
    age(&mut rig);
    assert!(is_closed(&accept(&mut rig, 0)), "half of the connections may negotiate");
    assert_eq!(rig.shared.connections.negotiating.load(Ordering::SeqCst), 2);
    (0..3).for_each(|_| rig.ring.cancel_accept(0));
}

#[test]
fn a_connection_that_comes_while_the_server_stops_is_closed() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    rig.accepted(0, -libc::ECANCELED);
    assert_eq!((rig.ring.pending(), rig.accepting.again_ns), (0, None));
    let (ours, theirs) = UnixStream::pair().unwrap();
    assert!(rig.shared.admit());
    rig.shared.mailboxes[0].put(ThreadMessage::Connection(ours.into_raw_fd(), 0));
    rig.shared.ending.stop.give(std::time::Duration::ZERO);
    let late = accept(&mut rig, 0);
    rig.take_messages();
    assert!(is_closed(&late) && is_closed(&theirs));
    rig.accepted(0, -libc::EMFILE);
    assert_eq!((rig.ring.pending(), rig.accepting.again_ns), (0, None));
    let counts = rig.core.counts;
    assert_eq!((counts.connections_accepted, counts.connections), (0, 0));
    assert_eq!(rig.shared.connections.open.load(Ordering::SeqCst), 0);
}

#[test]
fn accept_that_system_refuses_is_tried_again_after_while() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let before_ns = Native::now();
    rig.accepted(1, -libc::EMFILE);
    let again_ns = rig.accepting.again_ns.unwrap();
    assert!((before_ns + ACCEPT_RETRY_NS..=Native::now() + ACCEPT_RETRY_NS).contains(&again_ns));
    assert_eq!(rig.deadline(None), Some(again_ns));
    assert_eq!(rig.ring.pending(), 0);
    rig.accepting.again_ns = Some(u64::MAX);
    rig.timers();
    assert_eq!(rig.ring.pending(), 0, "not yet");
    rig.accepting.again_ns = Some(1);
    rig.timers();
    assert_eq!((rig.ring.pending(), rig.accepting.again_ns), (1, None));
    assert!(rig.accepting.failed.is_empty());
}

#[test]
fn thread_0_alone_accepts_and_on_every_listener() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    rig.number = 1;
    rig.accept_all();
    assert_eq!(rig.ring.pending(), 0);
    rig.number = 0;
    rig.accept_all();
    assert_eq!(rig.ring.pending(), 2);
    for listener in [1, 0] {
        rig.ring.cancel_accept(listener);
        for _ in 0..200 {
            if rig.ring.pending() > listener {
                rig.turn(Some(Native::now() + 5_000_000)).unwrap();
            }
        }
        assert_eq!(rig.ring.pending(), listener, "only the accept has ended");
    }
}

#[test]
fn wait_for_a_lagging_client_ends_when_cancelled() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    // Peers that have read none of the bytes in their full socket buffers.
    let waits: Vec<_> = (0..3)
        .map(|_| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            while std::io::Write::write(&mut &ours, &[0; 4096]).is_ok() {}
            (SendBacklog::new(ours.as_raw_fd()).unwrap(), ours, theirs)
        })
        .collect();
    for (index, (backlog, ..)) in waits.iter().enumerate() {
        rig.conns.push(None);
        rig.ring.catch_up(index, backlog);
    }
    for (left, index) in [(2, 1), (1, 2), (0, 0)] {
        rig.ring.cancel_catch_up(index);
        for _ in 0..200 {
            if rig.ring.pending() > left {
                rig.turn(Some(Native::now() + 5_000_000)).unwrap();
            }
        }
        assert_eq!(rig.ring.pending(), left, "the wait of {index} is over, and no other operation");
    }
    rig.conns.clear();
}

#[test]
fn a_turn_does_not_sleep_while_something_is_left_to_do() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let (_client, index) = rig.by_hand("0");
    let sleeps = |rig: &mut Rig| rig.core.ctx.reactor().counters().sleeps;
    let before = sleeps(&mut rig);
    rig.until("it sleeps for want of anything to do", |rig| sleeps(rig) > before);
    let (coming, _theirs) = UnixStream::pair().unwrap();
    assert!(rig.shared.admit());
    let fd = coming.into_raw_fd();
    let left: [&dyn Fn(&mut Rig); 3] = [
        &|rig| rig.unfinished.push(index),
        &|rig| rig.seen_changes = rig.shared.changes().wrapping_sub(1),
        &|rig| rig.shared.mailboxes[0].put(ThreadMessage::Connection(fd, 0)),
    ];
    for (number, leave) in left.into_iter().enumerate() {
        // Three turns finish the work of the previous case.
        (0..3).for_each(|_| rig.step());
        leave(&mut rig);
        let before = sleeps(&mut rig);
        rig.turn(Some(Native::now() + 100_000_000)).unwrap();
        assert_eq!(sleeps(&mut rig), before, "{number}");
    }
    assert_eq!(rig.core.counts.connections, 2);
    assert!(
        rig.conns.iter().flatten().all(|conn| conn.out.catching_ns == 0),
        "no client has to catch up"
    );
}

#[test]
fn what_turn_left_is_for_next_one_of_session_that_goes_on() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    for (phase, has_more, left) in [
        (ConnectionPhase::Transmission, true, true),
        (ConnectionPhase::Transmission, false, false),
        (ConnectionPhase::Draining, true, false),
    ] {
        let (mut conn, _sockets) = connection(1);
        (conn.phase, conn.negotiation, conn.in_flight) = (phase, None, 1);
        (conn.input.busy, conn.turn.has_more) = (true, has_more);
        rig.conns.push(Some(conn));
        rig.core.touched.push(0);
        rig.pump();
        assert_eq!(!rig.unfinished.is_empty(), left, "{phase:?} {has_more}");
        rig.conns.clear();
        rig.unfinished.clear();
    }
}

#[test]
fn stop_order_ends_the_sleep_of_a_serving_thread_only() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let (shared, sleeps) = (Arc::clone(&rig.shared), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let told = scope.spawn(|| {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            // Each ring of the thread's doorbell ends a sleep, if the thread sleeps at all.
            while sleeps.load(Ordering::SeqCst) < 3 && std::time::Instant::now() < deadline {
                shared.mailboxes[0].ring();
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            shared.ending.stop.give(std::time::Duration::ZERO);
            shared.mailboxes[0].ring();
            sleeps.load(Ordering::SeqCst)
        });
        while !rig.shared.ending.stop.is_given() {
            rig.turn(None).unwrap();
            sleeps.store(rig.core.ctx.reactor().counters().sleeps, Ordering::SeqCst);
        }
        assert!(told.join().unwrap() >= 3);
    });
    // No other event would end this turn.
    rig.turn(None).unwrap();
    let before = rig.core.ctx.reactor().counters().sleeps;
    rig.until("it sleeps", |rig| rig.core.ctx.reactor().counters().sleeps > before);
}

#[test]
fn a_thread_sleeps_until_the_earliest_of_its_limits() {
    let timeout = Duration::from_nanos(1 << 60);
    let mut rig = Rig::new(&["null:size=1m"], |config| config.handshake_timeout = timeout);
    assert_eq!((rig.deadline(None), rig.deadline(Some(5))), (None, Some(5)));
    rig.accepting.again_ns = Some(7);
    assert_eq!((rig.deadline(None), rig.deadline(Some(5))), (Some(7), Some(5)));
    rig.accepting.again_ns = None;
    let before_ns = Native::now();
    let (client, index) = rig.connect();
    let (since_ns, _, serial) = rig.handshakes[0];
    assert!((before_ns..=Native::now()).contains(&(since_ns - (1 << 60))));
    let look_ns = rig.client_timer_deadline();
    let next_ns = rig.deadline(None).unwrap();
    let in_a_second = before_ns + LOOK_NS..=Native::now() + LOOK_NS;
    assert!(in_a_second.contains(&next_ns), "a deadline is set for the handshake");
    // Two entries whose slots now belong to later connections, and the entry of this connection.
    rig.handshakes = [(3, index, serial + 1), (3, index, serial - 1), (4, index, serial)].into();
    assert_eq!((rig.deadline(None), rig.handshakes.len()), (Some(4), 1));
    rig.conns[index].as_mut().unwrap().phase = ConnectionPhase::Transmission;
    assert_eq!((rig.deadline(None), rig.handshakes.len()), (look_ns, 0));
    rig.conns[index].as_mut().unwrap().phase = ConnectionPhase::Handshake;
    drop(client);
}

#[test]
fn negotiation_that_takes_too_long_is_ended_and_session_is_not() {
    let mut rig = Rig::new(&["null:size=1m"], |config| config.handshake_timeout = Duration::MAX);
    let (silent, first) = rig.connect();
    let (_serving, second) = rig.by_hand("0");
    assert_eq!(rig.core.counts.handshake_timeouts, 0);
    let serials = [first, second].map(|index| rig.conns[index].as_ref().unwrap().serial);
    rig.handshakes = [(1, first, 77), (1, second, serials[1]), (1, first, serials[0])].into();
    rig.handshakes.push_back((u64::MAX, first, serials[0]));
    rig.timers();
    assert_eq!((rig.core.counts.handshake_timeouts, rig.handshakes.len()), (1, 0));
    rig.until("it is closed", |rig| rig.core.counts.connections == 1);
    assert!(rig.conns[first].is_none() && rig.conns[second].is_some());
    let mut greeting = [0; 64];
    assert_eq!((&silent).read(&mut greeting).unwrap(), 18);
    assert!(is_closed(&silent));
}

#[test]
fn memory_goes_back_with_the_last_connection() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    for index in 0..2 {
        assert!(rig.shared.admit());
        let (ours, _) = UnixStream::pair().unwrap();
        rig.conns.push(Some(Connection::new(ours.into_raw_fd(), index, 1, 0)));
    }
    rig.core.counts.connections = 2;
    let buffer = rig.core.pool.take(waiter(0, 0, 4096), MemoryPart::Window).unwrap();
    rig.core.pool.give(buffer);
    rig.close(0);
    assert_eq!(
        (rig.core.pool.idle_bytes(), rig.accepting.closed, rig.core.counts.connections),
        (2 * MIB, 1, 1)
    );
    rig.close(0);
    assert_eq!(rig.accepting.closed, 1, "it is gone");
    rig.close(1);
    assert_eq!(
        (rig.core.pool.idle_bytes(), rig.accepting.closed, rig.core.counts.connections),
        (0, 2, 0)
    );
    assert_eq!(rig.shared.connections.open.load(Ordering::SeqCst), 0);
}

#[test]
fn places_are_reused_and_the_heap_is_trimmed_after_clients() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let (one, first) = rig.connect();
    let (other, second) = rig.connect();
    assert_eq!((first, second), (0, 1));
    drop(one);
    rig.until("it is gone", |rig| rig.core.counts.connections == 1);
    let (one, third) = rig.connect();
    assert_eq!((third, rig.conns.len()), (0, 2));
    drop((one, other));
    rig.until("both are gone", |rig| rig.core.counts.connections == 0);
    assert_eq!(rig.accepting.closed, 3);
    for closed in 4..CLOSED_FEW {
        drop(rig.connect());
        rig.until("it is gone", |rig| rig.core.counts.connections == 0);
        assert_eq!(rig.accepting.closed, closed);
    }
    let (keeper, _) = rig.connect();
    drop(rig.connect());
    rig.until("it is gone", |rig| rig.core.counts.connections == 1);
    assert_eq!(rig.accepting.closed, CLOSED_FEW, "one connection is left");
    drop(keeper);
    rig.until("it is gone", |rig| rig.core.counts.connections == 0);
    assert_eq!(rig.accepting.closed, 0, "the heap was trimmed");
}

#[test]
fn ticket_belongs_to_its_connection_until_it_is_overdue() {
    let (conn, _sockets) = connection(4);
    for (serial, state, expected) in [
        (4, TicketState::Started(0), true),
        (4, TicketState::Filling, true),
        (4, TicketState::Overdue, false),
        (5, TicketState::Started(0), false),
        (5, TicketState::Overdue, false),
    ] {
        let ticket = Ticket { state, ..ticket(Op::Read, serial, TicketMemory::None) };
        assert_eq!(awaits(&conn, &ticket), expected, "{serial} {state:?}");
    }
}

#[test]
fn a_connection_is_touched_once() {
    let (mut conn, _sockets) = connection(4);
    let mut touched = Vec::new();
    conn.touch(&mut touched);
    conn.touch(&mut touched);
    assert_eq!(touched, [0]);
}

#[test]
fn finished_work_goes_to_its_connection_or_its_memory_back() {
    // Serial of the ticket's owner, phase of the connection: requests in flight, answered.
    for (serial, phase, in_flight, answered) in [
        (1, ConnectionPhase::Transmission, 3, true),
        (1, ConnectionPhase::Draining, 3, true),
        (1, ConnectionPhase::Dead, 2, false),
        (2, ConnectionPhase::Transmission, 3, false),
    ] {
        let mut rig = Rig::new(&["null:size=1m"], |_| ());
        let (mut conn, _sockets) = connection(1);
        let buffer = rig.core.pool.take(waiter(0, 0, 4096), MemoryPart::Window).unwrap();
        (conn.phase, conn.in_flight, conn.held_bytes) = (phase, 3, 8192);
        (conn.negotiation, conn.memory_wait) = (None, MemoryWait::Buffers);
        rig.conns.push(Some(conn));
        let ticket = ticket(Op::Write, serial, TicketMemory::Buffer(buffer));
        let ticket = Ticket { state: TicketState::Started(0), ..ticket };
        rig.core.submitter.lanes[0].start(&ticket);
        let id = rig.core.submitter.tickets.insert(ticket);
        rig.core.submitter.done.push((id, Status::Ok));
        rig.answer();
        let conn = rig.conns[0].as_ref().unwrap();
        assert_eq!((conn.in_flight, conn.out.has_gathered()), (in_flight, answered));
        assert_eq!(conn.held_bytes, if serial == 1 { 4096 } else { 8192 });
        assert_eq!((rig.core.pool.in_use(), rig.core.submitter.tickets.in_use()), (0, 0));
        assert_eq!(rig.core.touched.len(), usize::from(serial == 1));
        assert_eq!(
            rig.core.submitter.retry.len(),
            usize::from(answered),
            "the connection waited for that memory"
        );
        rig.conns.clear();
        rig.core.touched.clear();
        rig.core.submitter.retry.clear();
    }
}

#[test]
fn request_receive_and_send_are_counted_and_shown_to_others() {
    let mut rig = Rig::new(&["ram:size=8m"], |_| ());
    let (mut client, _) = rig.by_hand("0");
    let data = [7; 1024];
    assert_eq!(rig.call(&mut client, &request(Command::Write, 512, 1024), &data), 0);
    assert_eq!(rig.call(&mut client, &request(Command::Cache, 0, 512), &[]), 0);
    assert_eq!(rig.call(&mut client, &request(Command::Read, 0, 0), &[]), 22);
    let before = rig.core.counts;
    assert_eq!((before.requests, before.errors, before.copied_bytes), (3, 1, 1024));
    let read = super::super::tests::header(&request(Command::Read, 512, 1024));
    std::io::Write::write_all(&mut client, &read).unwrap();
    assert!(rig.receive(&mut client, 16 + 1024)[16..] == data);
    rig.step();
    let after = rig.core.counts;
    assert_eq!((after.receives - before.receives, after.sends - before.sends), (1, 1));
    assert_eq!((after.requests_in_flight, after.buffers_in_use), (0, 0));
    let seen = Observer(Arc::clone(&rig.shared)).stats();
    let buffer_bytes = rig.shared.budget.mapped_bytes() as u64;
    assert_eq!(seen, ServerStats { buffer_bytes, ..after });
    let conn = rig.conns[0].as_ref().unwrap();
    assert_eq!((conn.in_flight, conn.held_bytes), (0, 0));
}

#[test]
fn failed_send_ends_its_connection_and_a_partial_one_does_not() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    for (result, phase) in [
        (1, ConnectionPhase::Transmission),
        (0, ConnectionPhase::Dead),
        (-32, ConnectionPhase::Dead),
    ] {
        let (mut conn, _sockets) = connection(1);
        (conn.phase, conn.negotiation, conn.in_flight) = (ConnectionPhase::Transmission, None, 2);
        conn.input.busy = true;
        conn.out.push(|_| 1);
        conn.out.start();
        rig.conns.clear();
        rig.conns.push(Some(conn));
        rig.core.touched.clear();
        rig.sent(0, result);
        let conn = rig.conns[0].as_ref().unwrap();
        assert_eq!(conn.phase, phase, "{result}");
        assert_eq!(conn.in_flight, if result == 1 { 1 } else { 2 });
    }
    assert_eq!(rig.core.counts.sends, 3);
    rig.sent(0, 0);
    rig.conns.clear();
    rig.conns.push(None);
    rig.sent(0, 1);
    assert_eq!(rig.core.counts.sends, 4, "nobody's");
    rig.conns.clear();
    rig.core.touched.clear();
}

fn end_unused(rig: &mut Rig) -> EndedLanes {
    let WorkerContext { ctx, submitter, .. } = &mut rig.core;
    submitter.lanes.end_unused(ctx)
}

#[test]
fn lane_comes_with_its_first_client_and_goes_when_empty() {
    let dir = tempfile::tempdir().unwrap();
    let spec = |name: &str| format!("file:path={}/{name},size=1m", dir.path().display());
    let mut rig = Rig::new(&[&spec("a"), &spec("b")], |_| ());
    // The lanes that a rig opens at its start have no client.
    assert_eq!(
        (end_unused(&mut rig), rig.core.submitter.lanes.count()),
        (EndedLanes::default(), 0)
    );
    let (mut client, _) = rig.by_hand("1");
    let (_second, _) = rig.by_hand("1");
    assert_eq!((rig.core.submitter.lanes.count(), rig.core.submitter.lanes[0].clients), (1, 2));
    assert_eq!(rig.call(&mut client, &request(Command::Write, 0, 512), &[1; 512]), 0);
    drop((client, _second));
    rig.until("both are gone", |rig| rig.conns.iter().flatten().next().is_none());
    assert_eq!(
        (end_unused(&mut rig), rig.core.submitter.lanes.count()),
        (EndedLanes::default(), 0)
    );
    // The lane's number is used again, and the volume is flushed at the end although it has no
    // client any more.
    let (mut client, _) = rig.by_hand("0");
    assert_eq!(rig.call(&mut client, &request(Command::Read, 0, 512), &[]), 0);
    rig.receive(&mut client, 512);
    drop(client);
    rig.until("it is gone", |rig| rig.conns.iter().flatten().next().is_none());
    end_unused(&mut rig);
    let shared = Arc::clone(&rig.shared);
    assert!(rig.finish().is_clean());
    let flushes = |volume: usize| shared.exports().volumes[volume].volume.drives()[0].stats().ops;
    let flushes = [0, 1].map(|volume| flushes(volume)[Op::Flush as usize].ios);
    assert_eq!(flushes, [1, 1]);
}
