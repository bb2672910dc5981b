//! Requests that start or end within a block, of clients that never asked for block sizes.
//!
//! A read is one of all the blocks it touches, of which a part is sent. A write first reads the
//! blocks at its ends, puts the bytes around its payload into place and writes whole blocks; zeroes
//! are written that way at their ends only; a discard leaves out what is not a whole block. Each is
//! counted as bounced. Part of the request path: execute.rs makes the tickets that start here, and
//! gives each of their steps to the block layer.
//!
//! Invariants: between reading a block and writing it back nobody else of the server writes it
//! (ranges.rs); FUA goes with every write; a ticket has one buffer from the beginning: the blocks
//! of the payload, then the first block and the last one as they were. Specification: "Block size
//! constraints": without them a client may assume a granularity of one byte.

use std::ops::Range;

use millrace_block::{Bio, Op, OpFlags, Sector, Status};

use super::{Core, Taken};
use crate::nbd::server::connection::{Connection, Granted};
use crate::nbd::server::exports::ranges::Mode;
use crate::nbd::server::memory::PoolBuffer;
use crate::nbd::server::submit::ticket::{Claim, Memory, Ticket, TicketState};
use crate::nbd::server::worker::Worker;
use crate::nbd::{Command, Reply, Request};

/// A range of bytes, and the blocks that it touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unaligned {
    /// Bytes of a block, a power of two.
    block_bytes: u64,
    /// First byte of the first block.
    start: u64,
    /// Bytes of all blocks.
    cover: u64,
    /// Bytes of the first block before the range, and of the last one behind it.
    head: u64,
    tail: u64,
}

impl Unaligned {
    pub(crate) fn new(offset: u64, length: u64, block_bytes: u32) -> Unaligned {
        let block_bytes = u64::from(block_bytes);
        let start = offset & !(block_bytes - 1);
        let end = (offset + length).next_multiple_of(block_bytes);
        let (head, tail) = (offset - start, end - (offset + length));
        Unaligned { block_bytes, start, cover: end - start, head, tail }
    }

    /// Whether the first block has to be read: the range begins within it, or is within it.
    fn first(&self) -> bool {
        self.head > 0 || (self.tail > 0 && self.cover == self.block_bytes)
    }

    /// Whether a last block that is not the first has to be read.
    fn last(&self) -> bool {
        self.tail > 0 && self.cover > self.block_bytes
    }

    /// The whole blocks between: first byte and length, perhaps none.
    fn inner(&self) -> (u64, u64) {
        let start = self.start + if self.first() { self.block_bytes } else { 0 };
        let end = self.start + self.cover - if self.last() { self.block_bytes } else { 0 };
        (start, end.saturating_sub(start))
    }

    /// All blocks, in sectors.
    fn sectors(&self) -> Range<Sector> {
        self.start >> 9..(self.start + self.cover) >> 9
    }
}

/// What a ticket does before its own operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    ReadFirst,
    WriteFirst,
    ReadLast,
    WriteLast,
}

/// The ends of a write or of zeroes.
#[derive(Debug)]
pub(crate) struct Bounce {
    unaligned: Unaligned,
    step: Step,
    /// Where the blocks at the ends are in the buffer.
    edges_at: usize,
}

impl Bounce {
    /// Where an edge is in the buffer, and on the volume.
    fn edge(&self) -> (usize, Sector) {
        let Unaligned { block_bytes, start, cover, .. } = self.unaligned;
        match self.step {
            Step::ReadFirst | Step::WriteFirst => (self.edges_at, start >> 9),
            Step::ReadLast | Step::WriteLast => {
                (self.edges_at + block_bytes as usize, (start + cover - block_bytes) >> 9)
            }
        }
    }

    /// The bio of this step.
    pub(crate) fn bio(&self, buffer: &PoolBuffer, flags: OpFlags) -> Bio {
        let ((at, sector), len_bytes) = (self.edge(), self.unaligned.block_bytes as u32);
        match self.step {
            Step::ReadFirst | Step::ReadLast => buffer.bio_at(at, Op::Read, sector, len_bytes),
            Step::WriteFirst | Step::WriteLast => {
                let bio = buffer.bio_at(at, Op::Write, sector, len_bytes);
                bio.with_flags(flags.without(OpFlags::NOUNMAP))
            }
        }
    }

    /// The bytes of the edge that has been read, and which of them are the request's.
    fn ours(&self) -> Range<usize> {
        let Unaligned { block_bytes, head, tail, cover, .. } = self.unaligned;
        let is_first = matches!(self.step, Step::ReadFirst | Step::WriteFirst);
        let start = if is_first { head } else { 0 };
        let end = if is_first && cover > block_bytes { block_bytes } else { block_bytes - tail };
        start as usize..end as usize
    }

    /// Puts the bytes around the payload into place: of the edge that was read, all that is not the
    /// request's goes to the blocks to write.
    fn surround(&self, buffer: &mut PoolBuffer) {
        let (block_bytes, (at, _), ours) =
            (self.unaligned.block_bytes as usize, self.edge(), self.ours());
        let to = match self.step {
            Step::ReadFirst => 0,
            _ => self.unaligned.cover as usize - block_bytes,
        };
        let bytes = buffer.bytes_mut();
        bytes.copy_within(at..at + ours.start, to);
        bytes.copy_within(at + ours.end..at + block_bytes, to + ours.end);
    }

    /// Zeroes the request's part of the edge that was read.
    fn blank(&self, buffer: &mut PoolBuffer) {
        let ((at, _), ours) = (self.edge(), self.ours());
        buffer.bytes_mut()[at + ours.start..at + ours.end].fill(0);
    }

    /// Goes on to the next step, of a write or of zeroes; false if there is none.
    fn next(&mut self, op: Op, buffer: &mut PoolBuffer) -> bool {
        match (self.step, op) {
            (Step::ReadFirst | Step::ReadLast, Op::Write) => self.surround(buffer),
            (Step::ReadFirst | Step::ReadLast, _) => self.blank(buffer),
            _ => {}
        }
        self.step = match (self.step, op) {
            (Step::ReadFirst, Op::WriteZeroes) => Step::WriteFirst,
            (Step::ReadLast, Op::WriteZeroes) => Step::WriteLast,
            (Step::ReadFirst | Step::WriteFirst, _) if self.unaligned.last() => Step::ReadLast,
            _ => return false,
        };
        true
    }
}

impl Core {
    /// A read or write that is not one of whole blocks.
    #[cold]
    pub(crate) fn transfer_unaligned(
        &mut self,
        conn: &mut Connection,
        granted: &Granted,
        request: &Request,
        lane: u32,
    ) -> Taken {
        let unaligned = Unaligned::new(request.offset, request.length, granted.block_bytes);
        let op = if request.command == Command::Read { Op::Read } else { Op::Write };
        let edges_at = unaligned.cover as usize;
        let mut bounce = None;
        let memory = if self.exports.list[granted.export].no_payload {
            Memory::Zeroes
        } else {
            let edges = if op == Op::Write { 2 * unaligned.block_bytes as usize } else { 0 };
            bounce = (op == Op::Write).then(|| first_bounce(unaligned, edges_at)).flatten();
            match self.buffer(edges_at + edges, conn, lane) {
                Ok(buffer) => Memory::Buffer(buffer),
                Err(none) => return self.without_buffer(conn, granted, request, none),
            }
        };
        self.counts.copied.bounced += 1;
        let ticket = self.ticket(conn, granted, request, op);
        let id = self.tickets.insert(Ticket {
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
            return Taken::Awaits(id);
        }
        self.submit(id);
        Taken::Done
    }

    /// Zeroes, or a discard, that are not of whole blocks.
    #[cold]
    pub(crate) fn command_unaligned(
        &mut self,
        conn: &mut Connection,
        granted: &Granted,
        request: &Request,
        mut ticket: Ticket,
    ) -> Taken {
        let unaligned = Unaligned::new(request.offset, request.length, granted.block_bytes);
        let (start, length) = unaligned.inner();
        (ticket.sector, ticket.left_sectors) = (start >> 9, length >> 9);
        if ticket.op == Op::Discard && length == 0 && !ticket.then_flush {
            return self.succeed(conn, granted, request);
        }
        if ticket.op == Op::Discard && length == 0 {
            (ticket.op, ticket.then_flush) = (Op::Flush, false);
        }
        let no_payload = self.exports.list[granted.export].no_payload;
        if ticket.op == Op::WriteZeroes && no_payload {
            let sectors = unaligned.sectors();
            (ticket.sector, ticket.left_sectors) = (sectors.start, sectors.end - sectors.start);
        } else if ticket.op == Op::WriteZeroes {
            match self.buffer(2 * unaligned.block_bytes as usize, conn, ticket.lane) {
                Ok(buffer) => ticket.memory = Memory::Buffer(buffer),
                Err(none) => return self.without_buffer(conn, granted, request, none),
            }
            ticket.bounce = first_bounce(unaligned, 0);
            self.counts.copied.bounced += 1;
        }
        conn.in_flight += 1;
        let id = self.tickets.insert(ticket);
        self.submit(id);
        Taken::Done
    }

    /// Answers a request for which there is nothing to do.
    fn succeed(&mut self, conn: &mut Connection, granted: &Granted, request: &Request) -> Taken {
        let reply = Reply::new(request, &granted.session);
        conn.in_flight += 1;
        conn.out.push(|buffer| reply.success(buffer));
        Taken::Done
    }

    /// A step of a bounce is done; true if the ticket goes on, with the next one or with its own
    /// operation.
    #[cold]
    pub(crate) fn go_on_bouncing(&mut self, id: u32, status: Status) -> bool {
        let ticket = self.tickets.get(id);
        let (Some(bounce), Memory::Buffer(buffer)) = (&mut ticket.bounce, &mut ticket.memory)
        else {
            return false;
        };
        if !status.is_ok() || ticket.state == TicketState::Overdue {
            return false;
        }
        if !bounce.next(ticket.op, buffer) {
            ticket.bounce = None;
            if ticket.op == Op::WriteZeroes && ticket.left_sectors == 0 {
                return false;
            }
        }
        self.submit(id);
        true
    }

    /// Enters a write that starts; false if it has to wait for its range.
    #[cold]
    pub(crate) fn claim(&mut self, id: u32) -> bool {
        let ticket = self.tickets.get(id);
        ticket.claim = Claim::Waits;
        let lane = ticket.lane as usize;
        let mode = if ticket.bounce.is_some() { Mode::Exclusive } else { Mode::Shared };
        if mode == Mode::Exclusive && !self.exports.ranges[lane].is_started() {
            self.exports.ranges[lane].start();
            self.ranges_changed = true;
        }
        self.follow_ranges(lane);
        let ticket = self.tickets.get(id);
        let key = (self.pool.thread(), id);
        let holds = self.exports.ranges[lane].claim(key, sectors_of(ticket), mode);
        ticket.claim = if holds { Claim::Held } else { Claim::Waits };
        holds
    }

    /// A ticket that was entered is over.
    #[cold]
    pub(crate) fn release(&mut self, id: u32, ticket: &Ticket) {
        let ranges = &self.exports.ranges[ticket.lane as usize];
        self.ranges_changed |= ranges.release((self.pool.thread(), id));
    }

    /// Enters the writes in flight of a lane, if that has become necessary.
    fn follow_ranges(&mut self, lane: usize) {
        let ranges = &self.exports.ranges[lane];
        if self.lanes[lane].tracks || !ranges.is_started() {
            return;
        }
        self.lanes[lane].tracks = true;
        for (id, ticket) in self.tickets.iter_mut() {
            let is_known = ticket.state == TicketState::Filling || ticket.claim != Claim::None;
            if ticket.lane as usize == lane && ticket.op.is_write() && !is_known {
                ranges.adopt((self.pool.thread(), id), sectors_of(ticket));
                ticket.claim = Claim::Held;
            }
        }
        self.ranges_changed |= ranges.confirm();
    }

    /// Lets go on whoever waited for a range and has it.
    #[cold]
    fn resume_ready(&mut self, lane: usize) {
        let mut ready = Vec::new();
        self.exports.ranges[lane].take_ready(self.pool.thread(), &mut ready);
        for id in ready {
            self.tickets.get(id).claim = Claim::Held;
            self.submit(id);
        }
    }
}

impl Worker {
    /// Follows what other threads entered or released.
    pub(crate) fn follow_ranges(&mut self) {
        for lane in 0..self.core.lanes.len() {
            if self.core.exports.ranges[lane].is_started() {
                self.core.follow_ranges(lane);
                self.core.resume_ready(lane);
            }
        }
    }
}

fn first_bounce(unaligned: Unaligned, edges_at: usize) -> Option<Box<Bounce>> {
    let step = if unaligned.first() { Step::ReadFirst } else { Step::ReadLast };
    (unaligned.first() || unaligned.last()).then(|| Box::new(Bounce { unaligned, step, edges_at }))
}

/// What a write touches that has not begun, in sectors.
fn sectors_of(ticket: &Ticket) -> Range<Sector> {
    match &ticket.bounce {
        Some(bounce) => bounce.unaligned.sectors(),
        None => {
            let sectors = u64::from(ticket.bio_bytes >> 9) + ticket.left_sectors;
            ticket.sector..ticket.sector + sectors
        }
    }
}

#[cfg(test)]
mod tests;
