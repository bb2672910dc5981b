//! Writes that are entered in their volume's ranges, without any drive.

use millrace_block::Op;

use super::*;
use crate::nbd::submit::ticket::{TicketMemory, TicketWait};
use crate::nbd::tests::Rig;

#[test]
fn all_writes_in_flight_are_entered_at_the_first_ragged_one() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let enter = |rig: &mut Rig, op, sector, state, claim| {
        let ticket = crate::nbd::tests::ticket(op, 1, TicketMemory::None);
        rig.core.submitter.tickets.insert(Ticket {
            sector,
            state,
            waits: TicketWait { claim, ..TicketWait::default() },
            ..ticket
        })
    };
    let started = TicketState::Started(0);
    let write = enter(&mut rig, Op::Write, 10, started, RangeClaim::None);
    let read = enter(&mut rig, Op::Read, 20, started, RangeClaim::None);
    let filling = enter(&mut rig, Op::Write, 30, TicketState::Filling, RangeClaim::None);
    let waits = enter(&mut rig, Op::Write, 40, started, RangeClaim::Waiting);
    rig.core.submitter.follow_ranges_of(0);
    assert!(!rig.core.submitter.lanes[0].tracks, "the range table is not started");
    rig.core.exports.volumes[0].ranges.start();
    rig.core.submitter.follow_ranges_of(0);
    assert!(rig.core.submitter.lanes[0].tracks);
    let claims =
        [write, read, filling, waits].map(|id| rig.core.submitter.tickets.get(id).waits.claim);
    assert_eq!(claims, [RangeClaim::Held, RangeClaim::None, RangeClaim::None, RangeClaim::Waiting]);
    for (sector, free) in [(10, false), (20, true), (30, true), (40, true)] {
        let ranges = &rig.core.exports.volumes[0].ranges;
        assert_eq!(
            ranges.claim((0, 900 + sector as u32), sector..sector + 1, RangeMode::Exclusive),
            free
        );
    }
    // A ticket is entered only once.
    rig.core.submitter.tickets.get(write).waits.claim = RangeClaim::None;
    rig.core.submitter.follow_ranges_of(0);
    assert_eq!(rig.core.submitter.tickets.get(write).waits.claim, RangeClaim::None);
    for id in [write, read, filling, waits] {
        rig.core.submitter.tickets.remove(id);
    }
}
