//! Requests that no drive answers in time. Their clients get an error, and their memory is kept for
//! the drive.
//!
//! A request is *overdue* if it is still in the block layer after its volume's timeout. The client
//! gets the error EIO and a text about the timeout. The request's table entry (`Ticket`) and buffer
//! are kept, because the drive may write to the buffer at any time. From then on, the memory counts
//! against the volume only, not against the connection.
//!
//! If an overdue request is a write, newer writes to the same blocks wait for that write
//! (claims.rs). A request that never reached the block layer is freed.

use millrace_block::Status;
use millrace_machine::{Machine, Native};

use super::Worker;
use crate::nbd::execute::WorkerContext;
use crate::nbd::memory::waiting_line::MemoryWait;
use crate::nbd::submit::ticket::{TicketMemory, TicketState};

impl Worker {
    pub(crate) fn end_overdue(&mut self) {
        if self.core.submitter.overdue_deadline().is_none() {
            return;
        }
        let now_ns = Native::now();
        let mut answered = false;
        for lane in 0..self.core.submitter.lanes.numbers() {
            let its = self.core.submitter.lanes.get_mut(lane);
            if its.is_some_and(|lane| lane.is_look_due(now_ns)) {
                if !std::mem::replace(&mut answered, true) {
                    // Completions are taken first, since completed requests are not overdue.
                    self.core.submitter.poll();
                    self.answer();
                }
                self.look_for_overdue(lane);
            }
        }
    }

    fn look_for_overdue(&mut self, lane: usize) {
        let mut found = self.core.submitter.find_overdue(lane);
        found.retain(|id| self.core.submitter.fence(*id));
        found.iter().for_each(|id| self.give_up(*id));
        if !found.is_empty() {
            // Overdue requests that never reached the block layer are removed, which frees their
            // memory. So connections that wait for memory of this volume are retried.
            let WorkerContext { submitter, pool, .. } = &mut self.core;
            submitter.drop_waiting(lane, pool, |ticket| ticket.state == TicketState::Overdue);
            submitter.retry.append(&mut submitter.lanes[lane].memory_waiters);
        }
    }

    fn give_up(&mut self, id: u32) {
        let ticket = self.core.submitter.tickets.get(id);
        let (reply, number, serial) =
            (ticket.reply, ticket.owner.conn as usize, ticket.owner.serial);
        let (lane, bytes) = (ticket.lane as usize, ticket.memory.pool_bytes());
        ticket.state = TicketState::Overdue;
        if let TicketMemory::Buffer(buffer) = &mut ticket.memory {
            self.core.pool.begin_stuck(buffer);
        }
        self.core.submitter.lanes[lane].started -= 1;
        self.core.submitter.lanes[lane].overdue += 1;
        let conn = self.conns[number].as_mut().filter(|conn| conn.serial == serial);
        let Some(conn) = conn else {
            let served = &self.core.submitter.lanes[lane].served;
            self.core.exports.note_fault(served, Status::TimedOut);
            return;
        };
        conn.held_bytes -= bytes;
        if conn.memory_wait != MemoryWait::None {
            self.core.submitter.retry.push(number);
        }
        self.core.fail(conn, &reply, Status::TimedOut);
        conn.touch(&mut self.core.touched);
    }
}

#[cfg(test)]
mod tests;
