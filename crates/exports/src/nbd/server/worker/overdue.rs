//! Requests that no drive answers in time: their clients get an error, their memory stays.
//!
//! A ticket that is still with the block layer after its volume's timeout is *overdue*: its client
//! is answered with EIO and the text of a timeout, while ticket and buffer wait for the drive,
//! which may write that memory at any time, or until the thread ends. What a connection held
//! counts from then on against the volume only. Tickets that the block layer never got are freed.
//! Called by the worker's turn.
//!
//! Invariants: found by looking a few times per timeout, so a request pays nothing for it; never
//! early. A lane looks only while something is started.

use millrace_block::Status;
use millrace_machine::{Machine, Native};

use super::{Worker, touch};
use crate::nbd::server::execute::Core;
use crate::nbd::server::execute::memory_wait::MemoryWait;
use crate::nbd::server::submit::lane::Lane;
use crate::nbd::server::submit::ticket::{Claim, Memory, Ticket, TicketState};

/// Looks at every ticket per timeout. One more makes it overdue, as the first may come at once.
const LOOKS: u8 = 4;

impl Worker {
    /// When to look again, if anything is in flight.
    pub(crate) fn overdue_deadline(&self) -> Option<u64> {
        let lanes = self.core.lanes.iter();
        lanes.filter(|lane| lane.started > 0 && lane.timeout_ns > 0).map(|lane| lane.look_ns).min()
    }

    /// Answers what is overdue.
    pub(crate) fn end_overdue(&mut self) {
        let is_busy = |lane: &Lane| lane.started > 0 && lane.timeout_ns > 0;
        if !self.core.lanes.iter().any(is_busy) {
            return;
        }
        let now_ns = Native::now();
        for index in 0..self.core.lanes.len() {
            let lane = &mut self.core.lanes[index];
            if is_busy(lane) && lane.look_ns <= now_ns {
                let period_ns = (lane.timeout_ns / u64::from(LOOKS)).max(1);
                lane.look_ns = now_ns.saturating_add(period_ns);
                self.look_for_overdue(index);
            }
        }
    }

    fn look_for_overdue(&mut self, lane: usize) {
        let mut found = Vec::new();
        for (id, ticket) in self.core.tickets.iter_mut() {
            if ticket.lane as usize != lane {
                continue;
            }
            match &mut ticket.state {
                TicketState::Started(looks) if *looks >= LOOKS => found.push(id),
                TicketState::Started(looks) => *looks += 1,
                TicketState::Filling | TicketState::Overdue => {}
            }
        }
        found.iter().for_each(|id| self.give_up(*id));
        if !found.is_empty() {
            // What never got to the block layer is nobody's any more; connections that wait try
            // again.
            self.core.drop_waiting(lane, |ticket| ticket.state == TicketState::Overdue);
            let memory_waiters = &mut self.core.lanes[lane].memory_waiters;
            self.core.retry.append(memory_waiters);
        }
    }

    /// The client of an overdue request is told so.
    fn give_up(&mut self, id: u32) {
        let ticket = self.core.tickets.get(id);
        let (reply, number, serial) =
            (ticket.reply, ticket.owner.conn as usize, ticket.owner.serial);
        let (lane, bytes) = (ticket.lane as usize, ticket.memory.pool_bytes());
        ticket.state = TicketState::Overdue;
        self.core.lanes[lane].started -= 1;
        self.core.lanes[lane].overdue += 1;
        let conn = self.conns[number].as_mut().filter(|conn| conn.serial == serial);
        let Some(conn) = conn else {
            self.core.note_fault(lane, Status::TimedOut);
            return;
        };
        conn.held_bytes -= bytes;
        if conn.memory_wait != MemoryWait::None {
            self.core.retry.push(number);
        }
        self.core.fail(conn, &reply, Status::TimedOut);
        touch(&mut self.touched, conn);
    }

    /// Lets go of what a connection leaves behind that no drive has: tickets that wait for room.
    pub(crate) fn drop_waiting_of(&mut self, serial: u64) {
        for lane in 0..self.core.lanes.len() {
            self.core.drop_waiting(lane, |ticket| ticket.owner.serial == serial);
        }
    }
}

impl Core {
    /// Removes tickets that wait for room in a lane's channel, or for their range.
    fn drop_waiting(&mut self, lane: usize, is_left: impl Fn(&Ticket) -> bool) {
        let (lanes, tickets) = (&mut self.lanes, &mut self.tickets);
        let mut dropped = Vec::new();
        lanes[lane].waiting.retain(|id| {
            let is_left = is_left(tickets.get(*id));
            dropped.extend(is_left.then_some(*id));
            !is_left
        });
        let of_lane = tickets.iter_mut().filter(|(_, ticket)| ticket.lane as usize == lane);
        let wait = of_lane.filter(|(_, ticket)| ticket.claim == Claim::Waits && is_left(ticket));
        dropped.extend(wait.map(|(id, _)| id));
        dropped.into_iter().for_each(|id| self.forget(id));
    }

    /// Removes a ticket that no drive has and nobody waits for.
    fn forget(&mut self, id: u32) {
        let ticket = self.end(id);
        if let Memory::Buffer(buffer) = ticket.memory {
            self.pool.give(buffer);
        }
    }
}

#[cfg(test)]
mod tests;
