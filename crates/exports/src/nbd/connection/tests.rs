//! Tests the conditions that decide about a connection, each in all states that the condition
//! depends on.

use millrace_block::Op;

use super::*;
use crate::nbd::memory::budget::{MemoryBudget, MemoryPart};
use crate::nbd::tests::{MIB, Rig, connection, pool, request, session, ticket, waiter};
use millrace_nbd::{Command, ExportInfo, TransmissionFlags};

const PHASES: [ConnectionPhase; 4] = [
    ConnectionPhase::Handshake,
    ConnectionPhase::Transmission,
    ConnectionPhase::Draining,
    ConnectionPhase::Dead,
];
const BOTH: [bool; 2] = [false, true];

/// Queues a reply of `bytes` bytes.
fn owe(conn: &mut Connection, bytes: usize) {
    conn.out.push_with(|_| 0, (std::ptr::null_mut(), bytes), None);
}

fn incoming(ticket: Option<u32>) -> Option<IncomingPayload> {
    Some(IncomingPayload { ticket, refused: None, filled: 0, total: 512 })
}

#[test]
fn a_turn_takes_its_share_of_bytes_and_one_read_at_least() {
    for (len_bytes, expected) in [(4096, 64), (64 * 1024, 4), (100_000, 3), (8 << 20, 1)] {
        let (mut turn, mut taken) = (TurnUsage::default(), 0);
        assert!(!turn.end(), "nothing was left");
        while !turn.is_full() {
            turn.note_read(len_bytes);
            taken += 1;
        }
        assert_eq!(taken, expected, "reads of {len_bytes} bytes");
        assert!(turn.end(), "the rest is for the next turn");
        assert!(!turn.is_full(), "which takes as much");
    }
}

#[test]
fn ragged_edges_are_within_blocks_of_unaware_clients() {
    let info = |block_min| ExportInfo {
        name: String::new(),
        description: String::new(),
        size_bytes: 1 << 30,
        flags: TransmissionFlags::new(),
        block_min,
        block_preferred: 4096,
        block_max: 1 << 25,
    };
    for block_bytes in [512, 4096] {
        for block_sizes in BOTH {
            let session = Session { block_sizes, ..session() };
            let rules = RequestLimits::new(&info(block_bytes), &session);
            let granted = ExportSession {
                session,
                rules,
                lane: 0,
                no_payload: false,
                block_bytes,
                group: GroupId::DEFAULT,
            };
            for offset in [0, 1, 511, 512, 4095, 4096, 4608] {
                for length in [1, 512, 513, 4096, 8192, 8704] {
                    let block_bytes = u64::from(block_bytes);
                    let expected =
                        !block_sizes && (offset % block_bytes != 0 || length % block_bytes != 0);
                    let request = request(Command::Read, offset, length);
                    assert_eq!(
                        granted.is_unaligned(&request),
                        expected,
                        "{block_bytes}: {request:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn requests_are_taken_below_256_in_flight_and_512_kib_unsent() {
    for (in_flight, bytes, reads_late, expected) in [
        (0, 0, false, true),
        (255, 512 * 1024 - 1, false, true),
        (256, 0, false, false),
        (256, 0, true, false),
        (257, 0, true, false),
        (0, 512 * 1024, false, false),
        (0, 512 * 1024, true, true),
        (0, MIB, false, false),
    ] {
        let (mut conn, _sockets) = connection(1);
        owe(&mut conn, bytes);
        (conn.in_flight, conn.turn.reads_late) = (in_flight, reads_late);
        assert_eq!(conn.has_room(), expected, "{in_flight} {bytes} {reads_late}");
    }
}

#[test]
fn connection_waits_for_its_socket_only_when_it_would_receive() {
    for phase in PHASES {
        for (busy, reads_late) in [(false, false), (false, true), (true, false), (true, true)] {
            for bytes in [512 * 1024 - 1, 512 * 1024, MIB] {
                let (mut conn, _sockets) = connection(1);
                owe(&mut conn, bytes);
                (conn.phase, conn.input.busy, conn.turn.reads_late) = (phase, busy, reads_late);
                let listens = phase == ConnectionPhase::Transmission && !busy && !reads_late;
                assert_eq!(conn.waits_to_send(), listens && bytes >= 512 * 1024);
            }
        }
    }
}

#[test]
fn bytes_that_leave_end_impatience_and_the_wait_for_the_socket() {
    for busy in BOTH {
        let (mut conn, _sockets) = connection(1);
        conn.turn.reads_late = true;
        (conn.out.catching_ns, conn.input.busy) = (77, busy);
        conn.moved(1);
        assert!(!conn.turn.reads_late);
        assert_eq!(conn.out.catching_ns, if busy { 77 } else { 0 }, "a poll ends by itself");
    }
}

#[test]
fn waiting_deaf_or_gone_client_is_told_by_its_unsent_bytes() {
    for phase in PHASES {
        for (sends, receives) in [(false, false), (false, true), (true, false), (true, true)] {
            for payload in BOTH {
                let (mut conn, _sockets) = connection(1);
                (conn.phase, conn.out.busy, conn.input.busy) = (phase, sends, receives);
                conn.incoming = incoming(None).filter(|_| payload);
                let serves =
                    matches!(phase, ConnectionPhase::Transmission | ConnectionPhase::Draining);
                let state = format!("{phase:?} {sends} {receives} {payload}");
                let waits = serves && (sends || (receives && payload));
                assert_eq!(conn.waits_for_client(), waits, "{state}");
                let is_quiet = !sends && !receives;
                assert_eq!(
                    conn.is_unwatched(),
                    is_quiet && phase != ConnectionPhase::Dead,
                    "{state}"
                );
                assert_eq!(conn.is_over(), is_quiet && phase == ConnectionPhase::Dead, "{state}");
            }
        }
    }
}

#[test]
fn incomplete_write_is_dropped_when_its_socket_has_nothing() {
    for (kills, busy) in [(false, false), (false, true), (true, false), (true, true)] {
        let budget = MemoryBudget::new(8 * MIB, 1);
        let (_reactor, mut pool) = pool(&budget, 0);
        let mut tickets = Tickets::default();
        let (mut conn, _sockets) = connection(9);
        let buffer = pool.take(waiter(0, 0, 4096), MemoryPart::Window).unwrap();
        let id = tickets.insert(ticket(Op::Write, 9, TicketMemory::Buffer(buffer)));
        let waiters = [9, 10].map(|serial| waiter(0, serial, 4 * MIB));
        budget.change_line(|line| line.waiters.extend(waiters));
        (conn.phase, conn.input.busy, conn.memory_wait) =
            (ConnectionPhase::Transmission, busy, MemoryWait::Queued);
        (conn.incoming, conn.in_flight, conn.held_bytes) = (incoming(Some(id)), 3, 8192);
        conn.input.room();
        conn.input.received(5);
        match kills {
            true => conn.kill(&mut tickets, &mut pool),
            false => conn.drain(&mut tickets, &mut pool),
        }
        assert_eq!(
            conn.phase,
            if kills { ConnectionPhase::Dead } else { ConnectionPhase::Draining }
        );
        assert_eq!(budget.next(2).unwrap().serial, 10, "it waits for memory no longer");
        if busy {
            assert_eq!((conn.in_flight, tickets.in_use(), pool.in_use()), (3, 1, 1));
            assert_eq!(conn.input.bytes().len(), 5);
            conn.input.busy = false;
            conn.abandon_input(&mut tickets, &mut pool);
        }
        assert_eq!((conn.in_flight, conn.held_bytes), (2, 4096));
        assert_eq!((tickets.in_use(), pool.in_use()), (0, 0));
        assert!(conn.incoming.is_none() && conn.input.bytes().is_empty());
        conn.drain(&mut tickets, &mut pool);
        conn.abandon_input(&mut tickets, &mut pool);
        assert_eq!(conn.in_flight, 2, "once");
    }
}

#[test]
fn negotiation_is_not_drained_but_ended_and_socket_with_it() {
    let (_reactor, mut pool) = pool(&MemoryBudget::new(2 * MIB, 1), 0);
    let (mut conn, sockets) = connection(1);
    conn.drain(&mut Tickets::default(), &mut pool);
    assert_eq!(conn.phase, ConnectionPhase::Dead);
    let mut byte = [0];
    assert_eq!(std::io::Read::read(&mut &sockets[1], &mut byte).unwrap(), 0);
}

#[test]
fn connection_waiting_for_its_turn_leaves_the_line_in_order() {
    let budget = MemoryBudget::new(8 * MIB, 1);
    let (_reactor, mut pool) = pool(&budget, 0);
    let (mut conn, _sockets) = connection(9);
    budget.change_line(|line| line.waiters.push_back(waiter(0, 9, 4096)));
    assert!(budget.take_news());
    for memory_wait in [MemoryWait::Buffers, MemoryWait::None, MemoryWait::Queued] {
        assert!(budget.is_wanted() && !budget.take_news());
        conn.memory_wait = memory_wait;
        conn.stop_waiting(&mut pool);
        assert_eq!(conn.memory_wait, MemoryWait::None);
    }
    assert!(!budget.is_wanted() && budget.take_news());
}

#[test]
fn freed_replies_and_bytes_are_taken_off() {
    let (mut conn, _sockets) = connection(1);
    (conn.in_flight, conn.held_bytes) = (5, 9000);
    conn.freed(SentReplies { replies: 2, bytes: 4096 });
    assert_eq!((conn.in_flight, conn.held_bytes), (3, 4904));
}

/// Applies `change` to a connection in the transmission phase, and pumps the connection. Returns
/// three flags: a send is outstanding, a receive is outstanding, the connection waits for its
/// client to catch up. Then ends the operations that were started.
fn pumped(rig: &mut Rig, change: impl FnOnce(&mut Connection)) -> (bool, bool, bool) {
    let (mut conn, _sockets) = connection(1);
    (conn.phase, conn.negotiation) = (ConnectionPhase::Transmission, None);
    change(&mut conn);
    let before = (conn.out.busy, conn.input.busy);
    let worker = &mut **rig;
    conn.pump(&worker.ring, &mut worker.core.submitter.tickets, &mut worker.core.pool);
    let started =
        usize::from(conn.out.busy && !before.0) + usize::from(conn.input.busy && !before.1);
    assert_eq!(worker.ring.pending(), started);
    let found = (conn.out.busy, conn.input.busy, conn.out.catching_ns != 0);
    shut_down(conn.fd);
    let mut ended = Vec::new();
    while worker.ring.pending() > 0 {
        worker.core.ctx.turn(Some(Native::now() + 1_000_000), || false).unwrap();
        worker.ring.take(&mut ended);
    }
    found
}

#[test]
fn pump_sends_gathered_bytes_and_receives_into_free_room() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let mut pump = |change: fn(&mut Connection)| pumped(&mut rig, change);
    assert_eq!(pump(|_| ()), (false, true, false));
    assert_eq!(pump(|conn| conn.out.push(|_| 16)), (true, true, false));
    assert_eq!(pump(|conn| conn.out.busy = true), (true, true, false));
    let both = |conn: &mut Connection| {
        conn.out.push(|_| 16);
        conn.out.busy = true;
    };
    assert_eq!(pump(both), (true, true, false), "one send at a time");
    assert_eq!(pump(|conn| conn.input.busy = true), (false, true, false));
    assert_eq!(pump(|conn| conn.memory_wait = MemoryWait::Buffers), (false, false, false));
    assert_eq!(pump(|conn| conn.turn.has_more = true), (false, false, false));
    assert_eq!(pump(|conn| conn.in_flight = 256), (false, false, false));
    assert_eq!(pump(|conn| conn.phase = ConnectionPhase::Dead), (false, false, false));
}

#[test]
fn connection_in_negotiation_sends_before_it_receives() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let mut pump = |out: &[u8], sent: usize, busy: (bool, bool)| {
        pumped(&mut rig, |conn| {
            let negotiation = connection(1).0.negotiation.take();
            (conn.phase, conn.negotiation) = (ConnectionPhase::Handshake, negotiation);
            let negotiation = conn.negotiation.as_mut().unwrap();
            (negotiation.out, negotiation.sent) = (out.to_vec(), sent);
            (conn.out.busy, conn.input.busy) = busy;
        })
    };
    assert_eq!(pump(b"answer", 0, (false, false)), (true, false, false));
    assert_eq!(pump(b"answer", 5, (false, false)), (true, false, false));
    assert_eq!(pump(b"answer", 0, (true, false)), (true, false, false));
    assert_eq!(pump(b"", 0, (false, false)), (false, true, false));
    assert_eq!(pump(b"", 0, (false, true)), (false, true, false));
}

#[test]
fn receive_waits_for_a_client_with_32_kib_in_8_replies() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    for (bytes, replies, payload, waits) in [
        (32 * 1024, 8, false, true),
        (32 * 1024 - 1, 8, false, false),
        (32 * 1024, 7, false, false),
        (0, 0, false, false),
        (MIB, 1, false, false),
        (100, 100, false, false),
        (MIB, 100, false, true),
        (MIB, 100, true, false),
    ] {
        let found = pumped(&mut rig, |conn| {
            (conn.out.backlog_bytes, conn.out.backlog_replies) = (bytes, replies);
            conn.incoming = incoming(None).filter(|_| payload);
        });
        assert_eq!(found, (false, true, waits), "{bytes} {replies} {payload}");
    }
}

#[test]
fn a_draining_connection_ends_with_its_last_reply() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    for (in_flight, phase) in [(1, ConnectionPhase::Draining), (0, ConnectionPhase::Dead)] {
        let (mut conn, _sockets) = connection(1);
        (conn.phase, conn.in_flight) = (ConnectionPhase::Draining, in_flight);
        let worker = &mut *rig;
        conn.pump(&worker.ring, &mut worker.core.submitter.tickets, &mut worker.core.pool);
        assert_eq!(conn.phase, phase);
    }
}
