//! Tests how tickets continue part by part, wait for room and end, with and without a drive.

use millrace_block::GroupId;

use super::*;
use crate::nbd::tests::{Rig, ticket};

#[test]
fn request_without_data_goes_on_by_parts_and_ends_with_a_flush() {
    let mut rig = Rig::new(&["null:size=4t"], |_| ());
    // Number of sectors, whether a flush follows, and the parts that the block layer gets.
    for (sectors, then_flush, parts) in
        [(8, false, 1), (PART_SECTORS, false, 1), (2 * PART_SECTORS + 1, false, 3), (8, true, 2)]
    {
        let ticket = ticket(Op::Discard, 1, TicketMemory::None);
        let ticket = Ticket { left_sectors: sectors, then_flush, sector: 16, ..ticket };
        let id = rig.core.submitter.tickets.insert(ticket);
        rig.core.submitter.submit(id);
        let mut gone_on = 1;
        while rig.core.submitter.advance(id, Status::Ok).is_none() {
            gone_on += 1;
            assert!(gone_on <= parts, "{sectors}");
        }
        assert_eq!(gone_on, parts, "{sectors}");
        assert_eq!(rig.core.submitter.lanes[0].started, 0);
        rig.until("its bios are over", |rig| {
            rig.core.submitter.poll();
            rig.core.submitter.done.clear();
            rig.core.submitter.lanes[0].channel.in_flight() == 0
        });
    }
    let ticket = ticket(Op::Discard, 1, TicketMemory::None);
    let id = rig.core.submitter.tickets.insert(Ticket { left_sectors: 2 * PART_SECTORS, ..ticket });
    rig.core.submitter.submit(id);
    let over = rig.core.submitter.advance(id, Status::IoError).expect("an error ends it");
    assert_eq!((over.sector, over.left_sectors), (0, 2 * PART_SECTORS));
    rig.until("its bio is over", |rig| {
        rig.core.submitter.poll();
        rig.core.submitter.done.clear();
        rig.core.submitter.lanes[0].channel.in_flight() == 0
    });
}

#[test]
fn excess_of_a_channel_goes_on_in_order_and_ends_once() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let ids: Vec<u32> = (0..2500)
        .map(|at| {
            // The block layer refuses request 2000 when it is submitted, and not earlier.
            let sector = if at == 2000 { 1 << 20 } else { 8 * (at % 256) };
            let ticket = Ticket { sector, ..ticket(Op::Read, 1, TicketMemory::Zeroes) };
            let id = rig.core.submitter.tickets.insert(ticket);
            rig.core.submitter.submit(id);
            id
        })
        .collect();
    let waiting: Vec<u32> = rig.core.submitter.lanes[0].waiting.iter().collect();
    assert!(!waiting.is_empty() && ids.ends_with(&waiting), "the last ones wait, in their order");
    assert_eq!(rig.core.submitter.lanes[0].channel.in_flight() as usize, ids.len() - waiting.len());
    assert!(rig.core.submitter.done.is_empty());
    // The drive answers at once, which makes room again, so no ticket still waits when a poll has
    // ended.
    rig.core.submitter.poll();
    assert!(rig.core.submitter.lanes[0].waiting.is_empty());
    assert_eq!(rig.core.submitter.lanes[0].channel.in_flight(), 0);
    let mut done = std::mem::take(&mut rig.core.submitter.done);
    let failed: Vec<(u32, Status)> = done.iter().copied().filter(|one| !one.1.is_ok()).collect();
    assert_eq!(failed, [(ids[2000], Status::OutOfRange)]);
    for (id, status) in &done {
        assert!(rig.core.submitter.advance(*id, *status).is_some());
    }
    done.sort_unstable_by_key(|(id, _)| *id);
    assert!(done.iter().map(|(id, _)| *id).eq(ids), "each once");
    assert_eq!((rig.core.submitter.lanes[0].started, rig.core.submitter.tickets.in_use()), (0, 0));
}

#[test]
fn while_the_channel_is_full_whoever_waits_is_not_overtaken() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let read = |rig: &mut Rig| {
        let id = rig.core.submitter.tickets.insert(ticket(Op::Read, 1, TicketMemory::Zeroes));
        rig.core.submitter.submit(id);
        id
    };
    let waiting = |rig: &Rig| rig.core.submitter.lanes[0].waiting.iter().collect::<Vec<_>>();
    let mut ids = Vec::new();
    while waiting(&rig).len() < 2 {
        ids.push(read(&mut rig));
    }
    let in_flight = rig.core.submitter.lanes[0].channel.in_flight();
    assert!(!rig.core.submitter.submit_waiting(0), "nothing moves");
    assert_eq!((waiting(&rig).len(), rig.core.submitter.done.len()), (2, 0));
    // The channel has room, but the two waiting tickets go first.
    rig.core.submitter.lanes[0].channel.poll(|_| ());
    ids.push(read(&mut rig));
    assert_eq!(waiting(&rig), ids[ids.len() - 3..]);
    assert_eq!(rig.core.submitter.lanes[0].channel.in_flight(), 0);
    assert!(rig.core.submitter.submit_waiting(0));
    assert_eq!(
        (rig.core.submitter.lanes[0].channel.in_flight(), in_flight as usize),
        (3, ids.len() - 3)
    );
    rig.core.submitter.poll();
    ids.into_iter().for_each(|id| drop(rig.core.submitter.end(id)));
    rig.core.submitter.done.clear();
}

#[test]
fn a_greedy_group_leaves_places_of_the_channel_to_others() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let submit = |rig: &mut Rig, group: u16| {
        let mut ticket = ticket(Op::Read, 1, TicketMemory::Zeroes);
        ticket.owner.group = GroupId(group);
        let id = rig.core.submitter.tickets.insert(ticket);
        rig.core.submitter.submit(id);
        id
    };
    let mut ids: Vec<u32> = (0..2_000).map(|_| submit(&mut rig, 0)).collect();
    let in_flight = rig.core.submitter.lanes[0].channel.in_flight();
    assert!(in_flight < CHANNEL_DEPTH && rig.core.submitter.lanes[0].waiting.has(GroupId(0)));
    ids.push(submit(&mut rig, 1));
    assert_eq!(rig.core.submitter.lanes[0].channel.in_flight(), in_flight + 1);
    assert!(!rig.core.submitter.lanes[0].waiting.has(GroupId(1)), "it does not wait");
    rig.core.submitter.poll();
    assert!(rig.core.submitter.lanes[0].waiting.is_empty());
    ids.into_iter().for_each(|id| drop(rig.core.submitter.end(id)));
    rig.core.submitter.done.clear();
}

#[test]
fn tenants_are_clients_of_a_thread_by_their_places() {
    let zeroes = Zeroes::new().unwrap();
    let flush = ticket(Op::Flush, 1, TicketMemory::None);
    assert_eq!(bio_of(&flush, &zeroes, 1001).op(), Op::Flush);
    let read = Ticket { bio_bytes: 4096, sector: 9, ..ticket(Op::Read, 1, TicketMemory::Zeroes) };
    let bio = bio_of(&read, &zeroes, 1001);
    assert_eq!((bio.op(), bio.sector(), bio.nr_sectors()), (Op::Read, 9, 8));
    let trim =
        Ticket { left_sectors: PART_SECTORS + 8, ..ticket(Op::Discard, 1, TicketMemory::None) };
    assert_eq!(u64::from(bio_of(&trim, &zeroes, 1).nr_sectors()), PART_SECTORS);
}
