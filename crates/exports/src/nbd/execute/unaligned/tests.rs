//! Tests of requests that are not aligned to blocks: data, counts, and that all memory is freed.

use crate::nbd::tests::{Rig, request};
use millrace_nbd::wire::CMD_FLAG_FUA;
use millrace_nbd::{Command, Request};

#[test]
fn ragged_requests_are_counted_and_leave_nothing_behind() {
    let mut rig = Rig::new(&["ram:size=1m"], |_| ());
    let (mut client, index) = rig.by_hand("0");
    let mut call = |command, flags, offset, data: &[u8], length| {
        let request = Request { flags, ..request(command, offset, length) };
        assert_eq!(rig.call(&mut client, &request, data), 0, "{request:?}");
        if command == Command::Read {
            return (rig.core.counts.bounced, rig.receive(&mut client, length as usize));
        }
        (rig.core.counts.bounced, Vec::new())
    };
    let all = vec![9; 4096];
    assert_eq!(call(Command::Write, 0, 0, &all, 4096).0, 0);
    assert_eq!(call(Command::Write, CMD_FLAG_FUA, 100, &[1; 700], 700).0, 1);
    assert_eq!(call(Command::WriteZeroes, 0, 3000, &[], 600).0, 2);
    let (bounced, bytes) = call(Command::Read, 0, 99, &[], 3502);
    assert_eq!(bounced, 3);
    let expected = [&[9][..], &[1; 700], &[9; 2200], &[0; 600], &[9; 1]].concat();
    assert!(bytes == expected);
    // A discard that contains no whole block does nothing, or only flushes if it has the flag FUA.
    // A longer discard leaves out the partial blocks at its ends.
    assert_eq!(call(Command::Trim, 0, 10, &[], 500).0, 3);
    assert_eq!(call(Command::Trim, CMD_FLAG_FUA, 10, &[], 500).0, 3);
    assert_eq!(call(Command::Read, 0, 0, &[], 100).1, [9; 100]);
    assert_eq!(call(Command::Trim, CMD_FLAG_FUA, 1000, &[], 1100).0, 4);
    assert_eq!(call(Command::Trim, 0, 2100, &[], 600).0, 4);
    let (_, bytes) = call(Command::Read, 0, 1000, &[], 1700);
    let zeroes = [(1024, 2048), (2560, 2560)];
    for (at, byte) in (1000u64..).zip(&bytes) {
        let is_gone = zeroes.iter().any(|(start, end)| (*start..*end).contains(&at));
        assert_eq!(*byte, if is_gone { 0 } else { 9 }, "{at}");
    }
    rig.step();
    let conn = rig.conns[index].as_ref().unwrap();
    assert_eq!((conn.in_flight, conn.held_bytes), (0, 0));
    assert_eq!((rig.core.submitter.tickets.in_use(), rig.core.pool.in_use()), (0, 0));
    let lane = &rig.core.submitter.lanes[0];
    assert_eq!((lane.started, lane.held_bytes, lane.tracks), (0, 0, true));
}

#[test]
fn zeroes_without_payload_cover_whole_blocks_for_free() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let (mut client, _) = rig.by_hand("0");
    assert_eq!(rig.call(&mut client, &request(Command::WriteZeroes, 10, 1000), &[]), 0);
    assert_eq!(rig.call(&mut client, &request(Command::WriteZeroes, 10, 10), &[]), 0);
    assert_eq!(rig.call(&mut client, &request(Command::Trim, 10, 1000), &[]), 0);
    assert_eq!(rig.shared.budget.mapped_bytes(), 0);
    assert_eq!(rig.core.counts.bounced, 0);
}
