//! Requests that start or end within a block, from clients that did not negotiate block sizes.
//!
//! Blocks that a request covers only in part are handled as follows:
//! - Read: the whole blocks are read, and only the requested bytes are sent.
//! - Write or zeroing: the blocks are read, changed and written back (bounce.rs).
//! - Discard: the blocks are left out.
//!
//! Invariants: FUA applies to each write of a request. Before a request starts, it gets all its
//! memory as one buffer.
//!
//! NBD specification, "Block size constraints": a client that did not negotiate block sizes may
//! assume a granularity of one byte.

use millrace_block::Op;

use super::{ClientRequest, TakeResult, WorkerContext};
use crate::nbd::connection::Connection;
use crate::nbd::submit::bounce::{UnalignedRequest, first_bounce};
use crate::nbd::submit::ticket::{Ticket, TicketMemory};

/// Extends a read or write to whole blocks. Returns the size of its buffer in bytes. A write's
/// buffer has space for two more blocks at its end: the original contents of the first and the last
/// block.
#[cold]
pub(super) fn extend_to_blocks(ticket: &mut Ticket, request: ClientRequest<'_>) -> usize {
    let unaligned =
        UnalignedRequest::new(request.offset, request.length, request.granted.block_bytes);
    let edges_at = unaligned.cover as usize;
    (ticket.bio_bytes, ticket.head_bytes) = (unaligned.cover as u32, unaligned.head as u32);
    ticket.sector = unaligned.start >> 9;
    if ticket.op == Op::Read || request.granted.no_payload {
        return edges_at;
    }
    ticket.bounce = first_bounce(unaligned, edges_at);
    edges_at + 2 * unaligned.block_bytes as usize
}

impl WorkerContext {
    #[cold]
    pub(crate) fn command_unaligned(
        &mut self,
        conn: &mut Connection,
        request: ClientRequest<'_>,
        mut ticket: Ticket,
    ) -> TakeResult {
        let unaligned =
            UnalignedRequest::new(request.offset, request.length, request.granted.block_bytes);
        let (start, length) = unaligned.inner();
        (ticket.sector, ticket.left_sectors) = (start >> 9, length >> 9);
        if ticket.op == Op::Discard && length == 0 && !ticket.then_flush {
            return self.succeed(conn, request);
        }
        if ticket.op == Op::Discard && length == 0 {
            (ticket.op, ticket.then_flush) = (Op::Flush, false);
        }
        let no_payload = request.granted.no_payload;
        if ticket.op == Op::WriteZeroes && no_payload {
            let sectors = unaligned.sectors();
            (ticket.sector, ticket.left_sectors) = (sectors.start, sectors.end - sectors.start);
        } else if ticket.op == Op::WriteZeroes {
            match self.buffer(conn, request, 2 * unaligned.block_bytes as usize) {
                Ok(buffer) => ticket.memory = TicketMemory::Buffer(buffer),
                Err(taken) => return taken,
            }
            ticket.bounce = first_bounce(unaligned, 0);
            self.counts.bounced += 1;
        }
        self.start(conn, ticket)
    }
}

#[cfg(test)]
mod tests;
