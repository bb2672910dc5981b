//! Tests which requests are overdue at each search, and how they continue, without a drive.

use millrace_block::{GroupId, Op};

use super::*;
use crate::nbd::connection::ConnectionPhase;
use crate::nbd::memory::budget::MemoryPart;
use crate::nbd::submit::overdue::LOOKS;
use crate::nbd::submit::ticket::{RangeClaim, Ticket, TicketMemory};
use crate::nbd::tests::{Rig, connection, ticket, waiter};

/// Creates a server with two volumes, and connection 0 with serial number 1.
fn rig() -> (Rig, [std::os::unix::net::UnixStream; 2]) {
    let mut rig = Rig::new(&["null:size=1m", "null:size=1m"], |_| ());
    let (mut conn, sockets) = connection(1);
    (conn.phase, conn.negotiation) = (ConnectionPhase::Transmission, None);
    rig.conns.push(Some(conn));
    // The null drives are never late.
    rig.core.submitter.lanes.iter_mut().for_each(|lane| lane.late_looks = u8::MAX);
    (rig, sockets)
}

/// Clears state that no turn of the thread would end, and ends the rig.
fn end(mut rig: Rig) {
    rig.conns.clear();
    rig.core.touched.clear();
    rig.core.submitter.retry.clear();
}

/// Removes a ticket that no drive has.
fn forget(rig: &mut Rig, id: u32) {
    let core = &mut rig.core;
    core.submitter.forget(id, &mut core.pool);
}

fn drop_waiting_of(rig: &mut Rig, serial: u64) {
    let core = &mut rig.core;
    core.submitter.drop_waiting_of(serial, &mut core.pool);
}

/// Creates the ticket of a client's read that is in the block layer.
fn started(rig: &mut Rig, lane: u32, serial: u64) -> u32 {
    let buffer = rig.core.pool.take(waiter(0, 0, 4096), MemoryPart::Window).unwrap();
    let ticket = ticket(Op::Read, serial, TicketMemory::Buffer(buffer));
    let ticket = Ticket { lane, state: TicketState::Started(0), ..ticket };
    rig.core.submitter.lanes[lane as usize].start(&ticket);
    rig.core.submitter.tickets.insert(ticket)
}

#[test]
fn lane_is_checked_only_while_a_request_can_be_overdue() {
    let (mut rig, _sockets) = rig();
    for (started, timeout_ns, expected) in
        [(0, 0, None), (0, 9, None), (1, 0, None), (1, 9, Some(70)), (2, 9, Some(70))]
    {
        let lane = &mut rig.core.submitter.lanes[0];
        (lane.started, lane.timeout_ns, lane.look_ns) = (started, timeout_ns, 70);
        assert_eq!(rig.core.submitter.overdue_deadline(), expected, "{started} {timeout_ns}");
    }
    let lane = &mut rig.core.submitter.lanes[1];
    (lane.started, lane.timeout_ns, lane.look_ns) = (1, 9, 60);
    assert_eq!(rig.core.submitter.overdue_deadline(), Some(60), "the earlier one");
    rig.core.submitter.lanes.iter_mut().for_each(|lane| lane.started = 0);
    end(rig);
}

#[test]
fn next_look_is_quarter_of_timeout_later_and_none_comes_early() {
    const QUARTER: u64 = 1 << 60;
    let (mut rig, _sockets) = rig();
    let ids = [0, 1].map(|lane| started(&mut rig, lane, 1));
    let looks = |rig: &mut Rig| ids.map(|id| rig.core.submitter.tickets.get(id).state);
    for (started, timeout_ns, look_ns, seen) in [
        (1, 4 * QUARTER - 1, u64::MAX, false),
        (1, 0, 0, false),
        (0, 4 * QUARTER - 1, 0, false),
        (1, 4 * QUARTER - 1, 0, true),
    ] {
        let lane = &mut rig.core.submitter.lanes[0];
        (lane.started, lane.timeout_ns, lane.look_ns) = (started, timeout_ns, look_ns);
        rig.core.submitter.lanes[1].look_ns = u64::MAX;
        let before_ns = Native::now();
        rig.end_overdue();
        let after_ns = Native::now();
        assert_eq!(looks(&mut rig), [TicketState::Started(seen.into()), TicketState::Started(0)]);
        let next_ns = rig.core.submitter.lanes[0].look_ns;
        match seen {
            true => {
                let expected = before_ns + QUARTER - 1..=after_ns + QUARTER;
                assert!(expected.contains(&next_ns), "{next_ns} {expected:?}");
            }
            false => assert_eq!(next_ns, look_ns),
        }
    }
    ids.into_iter().for_each(|id| forget(&mut rig, id));
    end(rig);
}

#[test]
fn request_is_overdue_one_look_after_its_timeout() {
    let (mut rig, _sockets) = rig();
    let id = started(&mut rig, 0, 1);
    let other = started(&mut rig, 1, 1);
    let filling = rig.core.submitter.tickets.insert(ticket(Op::Write, 1, TicketMemory::None));
    let conn = rig.conns[0].as_mut().unwrap();
    (conn.held_bytes, conn.in_flight) = (3 * 4096, 2);
    rig.core.submitter.lanes[0].memory_waiters.push(5);
    for look in 1..=LOOKS {
        rig.look_for_overdue(0);
        assert_eq!(rig.core.submitter.tickets.get(id).state, TicketState::Started(look));
    }
    assert_eq!(rig.core.counts.errors, 0);
    rig.look_for_overdue(0);
    assert_eq!(rig.core.submitter.tickets.get(id).state, TicketState::Overdue);
    let lane = &rig.core.submitter.lanes[0];
    assert_eq!((lane.started, lane.overdue, lane.held_bytes), (0, 1, 4096));
    assert_eq!(rig.core.counts.errors, 1);
    let conn = rig.conns[0].as_ref().unwrap();
    assert!(conn.out.has_gathered(), "it is answered");
    assert_eq!((conn.held_bytes, conn.in_flight), (2 * 4096, 2));
    assert_eq!((&rig.core.touched[..], &rig.core.submitter.retry[..]), (&[0][..], &[5][..]));
    assert_eq!(
        rig.core.submitter.tickets.get(other).state,
        TicketState::Started(0),
        "of another volume"
    );
    assert_eq!(rig.core.submitter.tickets.get(filling).state, TicketState::Filling);
    let faults =
        |rig: &Rig, export: usize| rig.shared.exports().list[export].faults.report("").count;
    assert_eq!((faults(&rig, 0), faults(&rig, 1)), (0, 0), "the client was granted no export");
    rig.look_for_overdue(0);
    assert_eq!(rig.core.submitter.lanes[0].overdue, 1, "once");
    [id, other].into_iter().for_each(|id| forget(&mut rig, id));
    assert_eq!(rig.core.pool.in_use(), 0);
    assert_eq!(
        (rig.core.submitter.lanes[0].overdue, rig.core.submitter.lanes[0].held_bytes),
        (0, 0)
    );
    end(rig);
}

#[test]
fn nobody_is_tried_again_while_nothing_is_overdue() {
    let (mut rig, _sockets) = rig();
    let id = started(&mut rig, 0, 1);
    rig.core.submitter.lanes[0].memory_waiters.push(5);
    rig.look_for_overdue(0);
    assert!(rig.core.submitter.retry.is_empty());
    forget(&mut rig, id);
    assert_eq!(rig.core.submitter.retry, [5], "the lane has room now");
    end(rig);
}

#[test]
fn overdue_leftovers_count_for_the_first_export_of_a_volume() {
    let (mut rig, _sockets) = rig();
    let id = started(&mut rig, 1, 99);
    rig.give_up(id);
    let faults = |export: usize| rig.shared.exports().list[export].faults.report("").count;
    assert_eq!((faults(0), faults(1)), (0, 1));
    assert_eq!(rig.core.counts.errors, 0, "no client was answered");
    let conn = rig.conns[0].as_ref().unwrap();
    assert!(!conn.out.has_gathered() && rig.core.touched.is_empty());
    forget(&mut rig, id);
    end(rig);
}

#[test]
fn waiting_connection_is_retried_when_its_request_is_overdue() {
    let (mut rig, _sockets) = rig();
    for (memory_wait, retries) in [(MemoryWait::None, 0), (MemoryWait::Buffers, 1)] {
        let id = started(&mut rig, 0, 1);
        let conn = rig.conns[0].as_mut().unwrap();
        (conn.memory_wait, conn.held_bytes) = (memory_wait, 4096);
        rig.core.submitter.retry.clear();
        rig.give_up(id);
        assert_eq!(rig.core.submitter.retry.len(), retries);
        forget(&mut rig, id);
    }
    end(rig);
}

#[test]
fn what_no_drive_has_goes_with_its_connection_and_rest_stays() {
    let (mut rig, _sockets) = rig();
    let own = started(&mut rig, 0, 1);
    let others = started(&mut rig, 0, 2);
    let with_drive = started(&mut rig, 0, 1);
    [own, others]
        .into_iter()
        .for_each(|id| rig.core.submitter.lanes[0].waiting.push(GroupId::DEFAULT, id));
    let for_range = started(&mut rig, 1, 1);
    rig.core.submitter.tickets.get(for_range).waits.claim = RangeClaim::Waiting;
    let of_another = started(&mut rig, 1, 2);
    rig.core.submitter.tickets.get(of_another).waits.claim = RangeClaim::Waiting;
    let holds = started(&mut rig, 1, 1);
    rig.core.submitter.tickets.get(holds).waits.claim = RangeClaim::Held;
    drop_waiting_of(&mut rig, 1);
    let mut left: Vec<u32> = rig.core.submitter.tickets.iter_mut().map(|(id, _)| id).collect();
    left.sort_unstable();
    assert_eq!(left, [others, with_drive, of_another, holds]);
    assert!(rig.core.submitter.lanes[0].waiting.iter().eq([others]));
    assert_eq!((rig.core.submitter.lanes[0].started, rig.core.submitter.lanes[1].started), (2, 2));
    assert_eq!(rig.core.pool.in_use(), 4);
    rig.core.submitter.lanes[0].waiting.retain(|_| false);
    left.into_iter().for_each(|id| forget(&mut rig, id));
    end(rig);
}

#[test]
fn unowned_requests_are_dropped_when_overdue_and_rest_kept() {
    let (mut rig, _sockets) = rig();
    // Each ticket is overdue at the next search, or still has time; it is at the drive, waits for
    // room in the channel, or waits for its range.
    let mut all = Vec::new();
    for looks in [LOOKS, 0] {
        let ids = [(); 3].map(|()| started(&mut rig, 0, 99));
        ids.iter()
            .for_each(|id| rig.core.submitter.tickets.get(*id).state = TicketState::Started(looks));
        rig.core.submitter.lanes[0].waiting.push(GroupId::DEFAULT, ids[1]);
        rig.core.submitter.tickets.get(ids[2]).waits.claim = RangeClaim::Waiting;
        all.extend(ids);
    }
    // This search does not include a ticket of another volume.
    let other = started(&mut rig, 1, 99);
    rig.core.submitter.tickets.get(other).state = TicketState::Started(LOOKS);
    rig.core.submitter.lanes[1].waiting.push(GroupId::DEFAULT, other);
    rig.look_for_overdue(0);
    let mut left: Vec<(u32, TicketState)> =
        rig.core.submitter.tickets.iter_mut().map(|(id, ticket)| (id, ticket.state)).collect();
    left.sort_unstable_by_key(|(id, _)| *id);
    let next = TicketState::Started(1);
    let expected = [
        (all[0], TicketState::Overdue),
        (all[3], next),
        (all[4], next),
        (all[5], next),
        (other, TicketState::Started(LOOKS)),
    ];
    assert_eq!(left, expected);
    assert!(rig.core.submitter.lanes[0].waiting.iter().eq([all[4]]));
    assert!(rig.core.submitter.lanes[1].waiting.iter().eq([other]));
    let lane = &rig.core.submitter.lanes[0];
    assert_eq!((lane.started, lane.overdue, lane.held_bytes), (3, 1, 4 * 4096));
    assert_eq!(rig.core.pool.in_use(), 5);
    rig.core.submitter.lanes.iter_mut().for_each(|lane| lane.waiting.retain(|_| false));
    left.into_iter().for_each(|(id, _)| forget(&mut rig, id));
    assert_eq!(rig.core.pool.in_use(), 0);
    end(rig);
}
