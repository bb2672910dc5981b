//! Turns checked requests into tickets (requests that the block layer processes), and completed
//! tickets into replies.
//!
//! [`WorkerContext`] is the state that all connections of an I/O thread share.
//!
//! Invariants: an accepted request is answered exactly once, or its connection is dead. A read's
//! payload is sent only if the drive reported success. A ticket holds its buffer until the
//! completion, then the connection's batch of replies holds the buffer until it is sent.

pub(crate) mod holes;
pub(crate) mod memory_wait;
pub(crate) mod receive;
pub(crate) mod tls;
pub(crate) mod unaligned;

use std::ops::Deref;
use std::sync::Arc;

use self::tls::TlsTurnLimits;
use self::unaligned::extend_to_blocks;
use super::connection::hole_search::HOLE_BYTES_MIN;
use super::connection::{Connection, ExportSession, RefusedRequest};
use super::exports::ExportTable;
use super::memory::{BufferPool, Zeroes};
use super::ring::shut_down_input;
use super::server_state::ServerState;
use super::stats::ServerStats;
use super::submit::Submitter;
use super::submit::ticket::{Ticket, TicketMemory, TicketOwner, TicketState, TicketWait};
use millrace_block::{Op, OpFlags, Status};
use millrace_nbd::status::Extent;
use millrace_nbd::wire::{CMD_FLAG_FAST_ZERO, CMD_FLAG_FUA, CMD_FLAG_NO_HOLE, CMD_FLAG_REQ_ONE};
use millrace_nbd::{Command, Errno, Reply, Request, StatusQuery};
use millrace_runtime::IoContext;

const EXTENTS_MAX: usize = 1024;
/// Size of the buffer for a block-status reply in bytes: a header, and 16 bytes per extent.
const STATUS_BYTES: usize = 32 * 1024;
const STUCK: &str = "the drive does not answer";

pub(crate) struct WorkerContext {
    pub(crate) ctx: IoContext,
    pub(crate) exports: Arc<ExportTable>,
    pub(crate) submitter: Submitter,
    pub(crate) pool: BufferPool,
    pub(crate) zeroes: Arc<Zeroes>,
    pub(crate) counts: ServerStats,
    pub(crate) threads: usize,
    pub(crate) shared: Arc<ServerState>,
    pub(crate) secure: TlsTurnLimits,
    /// Connections whose state has changed. Before the next iteration of its event loop, the thread
    /// starts their sends and receives.
    pub(crate) touched: Vec<usize>,
}

pub(crate) enum TakeResult {
    Done,
    /// The write is accepted and waits for its payload from the client. The number is the request's
    /// index in the table of requests (`Tickets`).
    Awaits(u32),
    /// The request is refused. The reply is sent once the request's payload was received and
    /// discarded.
    Refused(RefusedRequest),
    /// No memory is free. The connection waits for memory, and the caller must present the request
    /// again.
    NoMemory,
}

#[derive(Clone, Copy)]
pub(crate) struct ClientRequest<'a> {
    pub(crate) granted: &'a ExportSession,
    pub(crate) request: &'a Request,
}

impl Deref for ClientRequest<'_> {
    type Target = Request;

    #[inline]
    fn deref(&self) -> &Request {
        self.request
    }
}

impl ClientRequest<'_> {
    #[inline]
    pub(crate) fn reply(&self) -> Reply {
        Reply::new(self.request, &self.granted.session)
    }
}

fn errno_of(status: Status) -> Option<Errno> {
    Some(match status {
        Status::Ok => return None,
        Status::NoSpace => Errno::Enospc,
        Status::NotSupported => Errno::Enotsup,
        Status::Invalid | Status::OutOfRange => Errno::Einval,
        Status::ReadOnly => Errno::Eperm,
        Status::NoResource => Errno::Enomem,
        Status::Aborted => Errno::Eshutdown,
        _ => Errno::Eio,
    })
}

impl WorkerContext {
    /// Cuts a connection off at once (see [`Connection::kill`]).
    pub(crate) fn kill(&mut self, conn: &mut Connection) {
        conn.kill(&mut self.submitter.tickets, &mut self.pool);
        conn.touch(&mut self.touched);
    }

    /// Takes no more requests of a connection (see [`Connection::drain`]).
    pub(crate) fn drain(&mut self, conn: &mut Connection) {
        conn.drain(&mut self.submitter.tickets, &mut self.pool);
        conn.touch(&mut self.touched);
    }

    /// Stops taking requests, and ends the connection once earlier requests are answered.
    pub(crate) fn end_session(&mut self, conn: &mut Connection) {
        self.drain(conn);
        shut_down_input(conn.fd);
    }

    #[inline]
    pub(crate) fn execute(
        &mut self,
        conn: &mut Connection,
        request: ClientRequest<'_>,
    ) -> TakeResult {
        match request.command {
            Command::Read | Command::Write => self.transfer(conn, request),
            Command::Disc => {
                self.drain(conn);
                TakeResult::Done
            }
            Command::Cache | Command::Unknown(_) => self.succeed(conn, request),
            Command::BlockStatus => self.block_status(conn, request),
            Command::Flush | Command::Trim | Command::WriteZeroes => self.command(conn, request),
        }
    }

    pub(crate) fn refuse(
        &mut self,
        conn: &mut Connection,
        request: ClientRequest<'_>,
        (errno, why): (Errno, &'static str),
    ) -> TakeResult {
        self.counts.errors += 1;
        let refusal = RefusedRequest { reply: request.reply(), errno, why };
        if request.payload_bytes(request.granted.session.style) > 0 {
            return TakeResult::Refused(refusal);
        }
        conn.refuse(&refusal);
        TakeResult::Done
    }

    pub(crate) fn ticket(&self, conn: &Connection, request: ClientRequest<'_>, op: Op) -> Ticket {
        let fua = request.has(CMD_FLAG_FUA) && op.is_write();
        Ticket {
            owner: TicketOwner {
                conn: conn.index as u32,
                serial: conn.serial,
                group: request.granted.group,
            },
            state: TicketState::Filling,
            lane: request.granted.lane,
            reply: request.reply(),
            op,
            flags: if fua { OpFlags::FUA } else { OpFlags::NONE },
            then_flush: false,
            len_bytes: 0,
            bio_bytes: 0,
            head_bytes: 0,
            sector: request.offset >> 9,
            left_sectors: 0,
            memory: TicketMemory::None,
            bounce: None,
            waits: TicketWait::default(),
        }
    }

    #[inline]
    fn transfer(&mut self, conn: &mut Connection, request: ClientRequest<'_>) -> TakeResult {
        let lane = request.granted.lane;
        let volume = &self.submitter.lanes[lane as usize];
        if volume.overdue > 0 && (volume.is_stuck() || self.pool.budget.is_much_stuck()) {
            return self.refuse_stuck(conn, request);
        }
        if request.length >= HOLE_BYTES_MIN && self.answer_hole(conn, request) {
            return TakeResult::Done;
        }
        let op = if request.command == Command::Read { Op::Read } else { Op::Write };
        let (len_bytes, mut buffer_bytes) = (request.length as u32, request.length as usize);
        let ticket = self.ticket(conn, request, op);
        let mut ticket = Ticket { len_bytes, bio_bytes: len_bytes, ..ticket };
        let is_unaligned = request.granted.is_unaligned(&request);
        if is_unaligned {
            buffer_bytes = extend_to_blocks(&mut ticket, request);
        }
        ticket.memory = if request.granted.no_payload {
            TicketMemory::Zeroes
        } else {
            match self.buffer(conn, request, buffer_bytes) {
                Ok(buffer) => TicketMemory::Buffer(buffer),
                Err(taken) => return taken,
            }
        };
        self.counts.bounced += u64::from(is_unaligned);
        if op == Op::Read {
            conn.turn.note_read(len_bytes as usize);
        }
        self.start(conn, ticket)
    }

    #[inline]
    fn start(&mut self, conn: &mut Connection, ticket: Ticket) -> TakeResult {
        let op = ticket.op;
        let id = self.submitter.tickets.insert(ticket);
        conn.in_flight += 1;
        if op == Op::Write {
            return TakeResult::Awaits(id);
        }
        self.submitter.submit(id);
        TakeResult::Done
    }

    fn succeed(&mut self, conn: &mut Connection, request: ClientRequest<'_>) -> TakeResult {
        let reply = request.reply();
        conn.in_flight += 1;
        conn.out.push(|buffer| reply.success(buffer));
        TakeResult::Done
    }

    fn command(&mut self, conn: &mut Connection, request: ClientRequest<'_>) -> TakeResult {
        let op = match request.command {
            Command::Trim => Op::Discard,
            Command::WriteZeroes => Op::WriteZeroes,
            _ => Op::Flush,
        };
        let no_hole = op == Op::WriteZeroes && request.has(CMD_FLAG_NO_HOLE);
        if no_hole && request.has(CMD_FLAG_FAST_ZERO) {
            let why = "writing zeroes without deallocating is not faster than a write";
            return self.refuse(conn, request, (Errno::Enotsup, why));
        }
        let lane = request.granted.lane as usize;
        if self.submitter.lanes[lane].is_stuck() {
            return self.refuse_stuck(conn, request);
        }
        let mut ticket = self.ticket(conn, request, op);
        ticket.left_sectors = request.length >> 9;
        if no_hole {
            ticket.flags = ticket.flags.with(OpFlags::NOUNMAP);
        }
        if op == Op::Discard && ticket.flags.has(OpFlags::FUA) {
            (ticket.then_flush, ticket.flags) = (true, OpFlags::NONE);
        }
        if request.granted.is_unaligned(&request) {
            return self.command_unaligned(conn, request, ticket);
        }
        self.start(conn, ticket)
    }

    fn block_status(&mut self, conn: &mut Connection, request: ClientRequest<'_>) -> TakeResult {
        let Some(context_id) = request.granted.session.base_allocation else {
            return self.refuse(conn, request, (Errno::Einval, "no context was selected"));
        };
        let mut buffer = match self.buffer(conn, request, STATUS_BYTES) {
            Ok(buffer) => buffer,
            Err(taken) => return taken,
        };
        let most = if request.has(CMD_FLAG_REQ_ONE) { 1 } else { EXTENTS_MAX };
        let (sector, end) = (request.offset >> 9, (request.offset + request.length).div_ceil(512));
        let extents = self.submitter.lanes[request.granted.lane as usize].served.volume.extents(
            sector,
            end - sector,
            most,
        );
        // The first extent begins at a sector boundary, but the request may begin inside that
        // sector. The bytes before the request are subtracted from the first extent's length.
        let mut before = request.offset & 511;
        let extents = extents.into_iter().map(|extent| Extent {
            len: (extent.nr_sectors << 9) - std::mem::take(&mut before),
            hole: extent.hole,
            zero: extent.zero,
        });
        let reply = request.reply();
        let query = StatusQuery::new(&request, context_id);
        match query.encode(&reply, extents, buffer.bytes_mut()) {
            Ok(len_bytes) => {
                conn.in_flight += 1;
                let place = (buffer.start(), len_bytes);
                conn.out.push_with(|_| 0, place, Some(buffer));
            }
            Err(_) => {
                conn.give_back(TicketMemory::Buffer(buffer), &mut self.pool);
                return self.refuse(conn, request, (Errno::Eio, "the drive does not say"));
            }
        }
        TakeResult::Done
    }

    #[cold]
    pub(crate) fn refuse_stuck(
        &mut self,
        conn: &mut Connection,
        request: ClientRequest<'_>,
    ) -> TakeResult {
        conn.note_fault(Status::TimedOut);
        self.refuse(conn, request, (Errno::Eio, STUCK))
    }

    #[cold]
    pub(crate) fn fail(&mut self, conn: &mut Connection, reply: &Reply, status: Status) {
        self.counts.errors += 1;
        conn.note_fault(status);
        let errno = errno_of(status).unwrap_or(Errno::Eio);
        conn.out.push(|buffer| reply.failure(buffer, errno, status.text()));
    }

    #[inline]
    pub(crate) fn answer(&mut self, conn: &mut Connection, ticket: Ticket, status: Status) {
        let Ticket { reply, mut memory, op, len_bytes, head_bytes, .. } = ticket;
        if let TicketMemory::Buffer(buffer) = &mut memory {
            self.pool.leave_account(buffer);
        }
        if !status.is_ok() {
            self.fail(conn, &reply, status);
            return conn.give_back(memory, &mut self.pool);
        }
        if op != Op::Read {
            conn.out.push(|buffer| reply.success(buffer));
            return conn.give_back(memory, &mut self.pool);
        }
        let encode = |buffer: &mut _| reply.read(buffer, len_bytes);
        let len = len_bytes as usize;
        match memory {
            TicketMemory::Buffer(buffer) => {
                let start = buffer.start().wrapping_add(head_bytes as usize);
                conn.out.push_with(encode, (start, len), Some(buffer));
            }
            _ => conn.out.push_with(encode, (self.zeroes.start(), len), None),
        }
    }
}

#[cfg(test)]
mod tests;
