//! Requests that start or end within a block, from clients that did not negotiate block sizes.
//!
//! A read request reads all blocks that it touches, and only the requested bytes are sent. A write
//! or zeroing bounces the blocks at its ends (bounce.rs). A discard leaves out partial blocks. Each
//! unaligned request is counted as bounced. Called by execute.rs; makes tickets for the submitter.
//!
//! Invariants: FUA applies to each write; a ticket has one buffer from the start. Specification,
//! "Block size constraints": a client that did not negotiate them may assume a granularity of one
//! byte.

use millrace_block::Op;

use super::{TakeResult, WorkerContext};
use crate::nbd::connection::{Connection, ExportSession};
use crate::nbd::submit::bounce::{Unaligned, first_bounce};
use crate::nbd::submit::ticket::{Ticket, TicketMemory};
use millrace_nbd::{Command, Reply, Request};

impl WorkerContext {
    /// Executes a read or write that starts or ends within a block.
    #[cold]
    pub(crate) fn transfer_unaligned(
        &mut self,
        conn: &mut Connection,
        granted: &ExportSession,
        request: &Request,
    ) -> TakeResult {
        let unaligned = Unaligned::new(request.offset, request.length, granted.block_bytes);
        let op = if request.command == Command::Read { Op::Read } else { Op::Write };
        let edges_at = unaligned.cover as usize;
        let mut bounce = None;
        let memory = if granted.no_payload {
            TicketMemory::Zeroes
        } else {
            let edges = if op == Op::Write { 2 * unaligned.block_bytes as usize } else { 0 };
            bounce = (op == Op::Write).then(|| first_bounce(unaligned, edges_at)).flatten();
            match self.buffer(conn, granted, request, edges_at + edges) {
                Ok(buffer) => TicketMemory::Buffer(buffer),
                Err(taken) => return taken,
            }
        };
        self.counts.bounced += 1;
        let ticket = self.ticket(conn, granted, request, op);
        let id = self.submitter.tickets.insert(Ticket {
            len_bytes: request.length as u32,
            bio_bytes: unaligned.cover as u32,
            head_bytes: unaligned.head as u32,
            sector: unaligned.start >> 9,
            memory,
            bounce,
            ..ticket
        });
        conn.in_flight += 1;
        if op == Op::Write {
            return TakeResult::Awaits(id);
        }
        self.submitter.submit(id);
        TakeResult::Done
    }

    /// Executes a zeroing or discard that starts or ends within a block.
    #[cold]
    pub(crate) fn command_unaligned(
        &mut self,
        conn: &mut Connection,
        granted: &ExportSession,
        request: &Request,
        mut ticket: Ticket,
    ) -> TakeResult {
        let unaligned = Unaligned::new(request.offset, request.length, granted.block_bytes);
        let (start, length) = unaligned.inner();
        (ticket.sector, ticket.left_sectors) = (start >> 9, length >> 9);
        if ticket.op == Op::Discard && length == 0 && !ticket.then_flush {
            return self.succeed(conn, granted, request);
        }
        if ticket.op == Op::Discard && length == 0 {
            (ticket.op, ticket.then_flush) = (Op::Flush, false);
        }
        let no_payload = granted.no_payload;
        if ticket.op == Op::WriteZeroes && no_payload {
            let sectors = unaligned.sectors();
            (ticket.sector, ticket.left_sectors) = (sectors.start, sectors.end - sectors.start);
        } else if ticket.op == Op::WriteZeroes {
            match self.buffer(conn, granted, request, 2 * unaligned.block_bytes as usize) {
                Ok(buffer) => ticket.memory = TicketMemory::Buffer(buffer),
                Err(taken) => return taken,
            }
            ticket.bounce = first_bounce(unaligned, 0);
            self.counts.bounced += 1;
        }
        conn.in_flight += 1;
        let id = self.submitter.tickets.insert(ticket);
        self.submitter.submit(id);
        TakeResult::Done
    }

    /// Sends a success reply to a request that needs no work.
    fn succeed(
        &mut self,
        conn: &mut Connection,
        granted: &ExportSession,
        request: &Request,
    ) -> TakeResult {
        let reply = Reply::new(request, &granted.session);
        conn.in_flight += 1;
        conn.out.push(|buffer| reply.success(buffer));
        TakeResult::Done
    }
}

#[cfg(test)]
mod tests;
