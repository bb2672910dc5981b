//! `AtGate`: a bio at one gate of its group: what it pays there, and what it gives back.
//!
//! Gates stand at places: those of the group itself, then those of its parent. Found in a channel's
//! copy of the table of groups (group/view.rs), so what is booked by an old copy is given back by
//! that. Used by throttle.rs.

use millrace_machine::Machine;

use crate::bio::Op;
use crate::bio::group_id::GroupId;
use crate::chain::slot::Slot;
use crate::group::gate::{GATES, Gates, Io, Tolls};
use crate::group::view::GroupView;

/// Levels of groups.
const LEVELS: usize = 2;
/// Places of gates on the way of a bio.
pub(super) const PLACES: usize = LEVELS * GATES;

/// The group whose gates a group's bios go through at a level: its own, then its parent's.
pub(super) fn at_level<M: Machine>(
    view: &GroupView<M>,
    group: GroupId,
    level: usize,
) -> Option<GroupId> {
    let id = view.known(group);
    match level {
        0 => Some(id),
        1 => view.row(id)?.parent,
        _ => None,
    }
}

/// The gate at a place on the way of a group's bios of an operation, if they have to pay there.
pub(super) fn gates_in<M: Machine>(
    view: &GroupView<M>,
    (group, op): (GroupId, Op),
    place: usize,
) -> Option<(&Tolls, &Gates<M>)> {
    let id = at_level(view, group, place / GATES)?;
    let (tolls, gates, _) = view.row(id)?.limits.as_ref()?;
    (!tolls.at(place % GATES, op).is_free()).then_some((tolls, &**gates))
}

/// A bio at a gate.
pub(super) struct AtGate<'a, M: Machine> {
    tolls: &'a Tolls,
    gates: &'a Gates<M>,
    io: Io,
}

impl<'a, M: Machine> AtGate<'a, M> {
    /// A bio at a place; none if it has nothing to pay there.
    pub(super) fn of(view: &'a GroupView<M>, slot: &Slot<M>, place: usize) -> Option<Self> {
        let op = slot.op();
        let (tolls, gates) = gates_in(view, (slot.bio.payer.group, op), place)?;
        let sectors = if op.has_data() { slot.bio.nr_sectors } else { 0 };
        Some(AtGate { tolls, gates, io: (place % GATES, op, sectors) })
    }

    /// It pays: when it may go on.
    pub(super) fn reserve(&self, now_ns: u64) -> u64 {
        self.gates.reserve(self.tolls, self.io, now_ns)
    }

    /// It waits for that time.
    pub(super) fn wait(&self) {
        self.gates.wait(self.tolls, self.io);
    }

    /// It waits no more, and has paid.
    pub(super) fn leave(&self) {
        self.gates.leave(self.tolls, self.io);
    }

    /// It waits no more, and has not paid.
    pub(super) fn give_back(&self) {
        self.gates.give_back(self.tolls, self.io);
    }
}
