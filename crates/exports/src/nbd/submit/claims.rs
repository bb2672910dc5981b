//! Which writes hold their range of a volume, and which wait for it.
//!
//! A thread enters its writes in the volume's
//! [`Ranges`](crate::nbd::exports::ranges::Ranges) once some client of the server writes
//! less than whole blocks. Part of the way of a ticket: submit.rs claims for a write that starts
//! and releases when it is over; the worker has the thread follow what other threads entered or
//! released.
//!
//! Invariant: between reading a block and writing it back nobody else of the server writes it.

use std::sync::Arc;

use super::Submitter;
use super::ticket::{Claim, Ticket, TicketState};
use crate::nbd::exports::ranges::Mode;

impl Submitter {
    /// Enters a write that starts; false if it has to wait for its range.
    #[cold]
    pub(crate) fn claim(&mut self, id: u32) -> bool {
        let ticket = self.tickets.get(id);
        ticket.waits.claim = Claim::Waits;
        let lane = ticket.lane as usize;
        let mode = if ticket.bounce.is_some() { Mode::Exclusive } else { Mode::Shared };
        let served = Arc::clone(&self.lanes[lane].served);
        if mode == Mode::Exclusive && !served.ranges.is_started() {
            served.ranges.start();
            self.ranges_changed = true;
        }
        self.follow_ranges_of(lane);
        let ticket = self.tickets.get(id);
        let key = (self.thread, id);
        let holds = served.ranges.claim(key, ticket.sectors(), mode);
        ticket.waits.claim = if holds { Claim::Held } else { Claim::Waits };
        holds
    }

    /// A ticket that was entered is over.
    #[cold]
    pub(crate) fn release(&mut self, id: u32, ticket: &Ticket) {
        let ranges = &self.lanes[ticket.lane as usize].served.ranges;
        self.ranges_changed |= ranges.release((self.thread, id));
    }

    /// Enters the writes in flight of a lane, if that has become necessary.
    fn follow_ranges_of(&mut self, lane: usize) {
        let its = &mut self.lanes[lane];
        if its.tracks || !its.served.ranges.is_started() {
            return;
        }
        its.tracks = true;
        let ranges = &its.served.ranges;
        for (id, ticket) in self.tickets.iter_mut() {
            let is_known =
                ticket.state == TicketState::Filling || ticket.waits.claim != Claim::None;
            if ticket.lane as usize == lane && ticket.op.is_write() && !is_known {
                ranges.adopt((self.thread, id), ticket.sectors());
                ticket.waits.claim = Claim::Held;
            }
        }
        self.ranges_changed |= ranges.confirm();
    }

    /// Lets go on whoever waited for a range and has it.
    #[cold]
    fn resume_ready(&mut self, lane: usize) {
        let mut ready = Vec::new();
        self.lanes[lane].served.ranges.take_ready(self.thread, &mut ready);
        for id in ready {
            self.tickets.get(id).waits.claim = Claim::Held;
            self.submit(id);
        }
    }

    /// Follows what other threads entered or released.
    pub(crate) fn follow_ranges(&mut self) {
        for lane in 0..self.lanes.numbers() {
            let its = self.lanes.get_mut(lane);
            if its.is_some_and(|lane| lane.served.ranges.is_started()) {
                self.follow_ranges_of(lane);
                self.resume_ready(lane);
            }
        }
    }
}

#[cfg(test)]
mod tests;
