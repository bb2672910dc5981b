//! Range locks for the writes of one I/O thread.
//!
//! Writes to a volume take locks from its [`RangeLocks`](crate::nbd::exports::ranges::RangeLocks)
//! only after a client of the volume has written partial blocks, has left while its writes were in
//! flight, or has got no answer to a write in time.
//!
//! Invariants: while a block is read and written back, no other request of the server writes it. If
//! the client of a write got an error or left, but the write may still run, newer writes to the
//! same blocks wait.

use std::sync::Arc;

use super::Submitter;
use super::ticket::{RangeClaim, Ticket, TicketState};
use crate::nbd::exports::ranges::RangeMode;

impl Submitter {
    /// Requests the range lock of a new write. Returns false if the write has to wait for the lock.
    #[cold]
    pub(crate) fn claim(&mut self, id: u32) -> bool {
        let ticket = self.tickets.get(id);
        ticket.waits.claim = RangeClaim::Waiting;
        let lane = ticket.lane as usize;
        let mode = if ticket.bounce.is_some() { RangeMode::Exclusive } else { RangeMode::Shared };
        let served = Arc::clone(&self.lanes[lane].served);
        if mode == RangeMode::Exclusive {
            self.ranges_changed |= served.ranges.start();
        }
        self.follow_ranges_of(lane);
        let ticket = self.tickets.get(id);
        let key = (self.thread, id);
        let holds = served.ranges.claim(key, ticket.sectors(), mode);
        ticket.waits.claim = if holds { RangeClaim::Held } else { RangeClaim::Waiting };
        holds
    }

    /// Makes newer writes to the same blocks wait for write `id`. The client of the write has left
    /// or is about to get an error, but a drive may still execute the write. Returns false if some
    /// thread has not added its writes to the volume's `RangeLocks` yet. The caller must then try
    /// again later, before it sends the error.
    pub(crate) fn fence(&mut self, id: u32) -> bool {
        let ticket = self.tickets.get(id);
        if !ticket.op.is_write() || ticket.waits.claim == RangeClaim::Waiting {
            return true;
        }
        let lane = ticket.lane as usize;
        let served = Arc::clone(&self.lanes[lane].served);
        self.ranges_changed |= served.ranges.start();
        self.follow_ranges_of(lane);
        served.ranges.fence((self.thread, id))
    }

    #[cold]
    pub(crate) fn release(&mut self, id: u32, ticket: &Ticket) {
        let ranges = &self.lanes[ticket.lane as usize].served.ranges;
        self.ranges_changed |= ranges.release((self.thread, id));
    }

    fn follow_ranges_of(&mut self, lane: usize) {
        let its = &mut self.lanes[lane];
        if its.tracks || !its.served.ranges.is_started() {
            return;
        }
        its.tracks = true;
        let ranges = &its.served.ranges;
        for (id, ticket) in self.tickets.iter_mut() {
            let is_known =
                ticket.state == TicketState::Filling || ticket.waits.claim != RangeClaim::None;
            if ticket.lane as usize == lane && ticket.op.is_write() && !is_known {
                ranges.adopt((self.thread, id), ticket.sectors());
                ticket.waits.claim = RangeClaim::Held;
            }
        }
        self.ranges_changed |= ranges.confirm();
    }

    #[cold]
    fn resume_ready(&mut self, lane: usize) {
        let mut ready = Vec::new();
        self.lanes[lane].served.ranges.take_ready(self.thread, &mut ready);
        for id in ready {
            self.tickets.get(id).waits.claim = RangeClaim::Held;
            self.submit(id);
        }
    }

    /// Handles volumes whose writes now need range locks. Locks the ranges of this thread's writes
    /// in flight, and submits writes whose wait for a lock has ended.
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
