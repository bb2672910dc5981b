//! From a checked request to bios, and from their completions to its reply.
//!
//! [`Core`] is what all connections of an I/O thread share: channels, tickets, buffers, counters.
//! Called by receive.rs with requests and by the worker with completions; calls the block layer.
//!
//! Invariants: an accepted request is answered exactly once, or its connection is dead; a read's
//! payload is sent only if the drive said that it filled it; buffers stay in the ticket until the
//! completion, then in the connection's batch until they are sent.

use std::collections::VecDeque;
use std::sync::Arc;

use millrace_block::{Bio, Channel, Op, OpFlags, Reject, Status};
use millrace_machine::{Machine, Native};

use super::connection::{Connection, Granted};
use super::exports::Exports;
use super::holes::HOLE_BYTES_MIN;
use super::memory::{Pool, PoolBuffer, Zeroes};
use super::stats::ServerStats;
use super::ticket::{Memory, Ticket, Tickets};
use crate::nbd::status::Extent;
use crate::nbd::wire::{CMD_FLAG_FAST_ZERO, CMD_FLAG_FUA, CMD_FLAG_NO_HOLE, CMD_FLAG_REQ_ONE};
use crate::nbd::{Command, Errno, Reply, Request, StatusQuery};

/// Most extents in a block status reply.
const EXTENTS_MAX: usize = 1024;
/// Bytes of the buffer for them: 16 each, and the chunk's head.
const STATUS_BYTES: usize = 32 * 1024;
/// Longest part of a discard or zeroing given to the block layer at once: 1 TiB.
const PART_SECTORS: u64 = 1 << 31;
/// After this long without memory and without anything of its own that could free some, a
/// connection's request is refused.
const STARVING_NS_MAX: u64 = 5_000_000_000;

/// A connection that has buffers gets no more of them above this part of all memory for payload.
const CONNECTION_SHARE: usize = 8;

/// A volume on this thread.
pub(crate) struct Lane {
    pub(crate) channel: Channel<Native>,
    /// Tickets that the channel had no room for.
    pub(crate) waiting: VecDeque<u32>,
}

/// What the connections of a thread share.
pub(crate) struct Core {
    pub(crate) exports: Arc<Exports>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) tickets: Tickets,
    pub(crate) pool: Pool,
    pub(crate) zeroes: Arc<Zeroes>,
    pub(crate) counts: ServerStats,
    /// Connections that wait for memory.
    pub(crate) starving: Vec<usize>,
    /// Tickets that are done and their outcome, until their connections are looked up.
    pub(crate) done: Vec<(u32, Status)>,
    /// Something was submitted since the channels were polled.
    pub(crate) fresh: bool,
    /// The thread's clients are tenants of numbers from here on.
    pub(crate) tenants: u16,
}

/// What became of a request.
pub(crate) enum Taken {
    /// It is answered or on its way.
    Done,
    /// This ticket waits for payload.
    Awaits(u32),
    /// There is no memory now; show it again.
    Starved,
}

/// The one table from the block layer's outcomes to the protocol's; success has none.
fn errno_of(status: Status) -> Option<Errno> {
    Some(match status {
        Status::Ok => return None,
        Status::NoSpace => Errno::Enospc,
        Status::NotSupported => Errno::Enotsup,
        Status::Invalid | Status::OutOfRange => Errno::Einval,
        Status::ReadOnly => Errno::Eperm,
        Status::NoResource => Errno::Enomem,
        Status::Aborted => Errno::Eshutdown,
        // `IoError`, `TimedOut`, `Offline`: the data are not to be had.
        _ => Errno::Eio,
    })
}

impl Core {
    /// Carries out a request that was checked.
    #[inline]
    pub(crate) fn execute(
        &mut self,
        conn: &mut Connection,
        granted: &Granted,
        request: &Request,
        starving_ns: u64,
    ) -> Taken {
        match request.command {
            Command::Read | Command::Write => self.transfer(conn, granted, request, starving_ns),
            Command::Disc => {
                conn.drain(&mut self.tickets, &mut self.pool);
                Taken::Done
            }
            Command::Cache | Command::Unknown(_) => {
                let reply = Reply::new(request, &granted.session);
                conn.in_flight += 1;
                conn.out.push(|buffer| reply.success(buffer));
                Taken::Done
            }
            Command::BlockStatus => self.block_status(conn, granted, request),
            Command::Flush | Command::Trim | Command::WriteZeroes => {
                self.command(conn, granted, request);
                Taken::Done
            }
        }
    }

    /// Answers with an error.
    pub(crate) fn refuse(
        &mut self,
        conn: &mut Connection,
        granted: &Granted,
        request: &Request,
        errno: Errno,
        why: &str,
    ) {
        self.counts.errors += 1;
        conn.in_flight += 1;
        let reply = Reply::new(request, &granted.session);
        conn.out.push(|buffer| reply.failure(buffer, errno, why));
    }

    fn ticket(&self, conn: &Connection, granted: &Granted, request: &Request, op: Op) -> Ticket {
        let fua = request.has(CMD_FLAG_FUA) && op.is_write();
        Ticket {
            conn: conn.index as u32,
            lane: self.exports.list[granted.export].lane,
            reply: Reply::new(request, &granted.session),
            op,
            flags: if fua { OpFlags::FUA } else { OpFlags::NONE },
            then_flush: false,
            len_bytes: 0,
            sector: request.offset >> 9,
            left_sectors: 0,
            memory: Memory::None,
        }
    }

    /// A read or a write.
    #[inline]
    fn transfer(
        &mut self,
        conn: &mut Connection,
        granted: &Granted,
        request: &Request,
        starving_ns: u64,
    ) -> Taken {
        if request.length >= HOLE_BYTES_MIN && self.answer_hole(conn, granted, request) {
            return Taken::Done;
        }
        let op = if request.command == Command::Read { Op::Read } else { Op::Write };
        let memory = if self.exports.list[granted.export].no_payload {
            Memory::Zeroes
        } else {
            match self.buffer(request.length as usize, conn, starving_ns) {
                Ok(buffer) => Memory::Buffer(buffer),
                Err(Taken::Starved) => return Taken::Starved,
                Err(_) => {
                    let why = "not enough memory for payload";
                    self.refuse(conn, granted, request, Errno::Enomem, why);
                    return Taken::Done;
                }
            }
        };
        let ticket = self.ticket(conn, granted, request, op);
        let len_bytes = request.length as u32;
        let id = self.tickets.insert(Ticket { len_bytes, memory, ..ticket });
        conn.in_flight += 1;
        if op == Op::Write {
            return Taken::Awaits(id);
        }
        self.submit(id);
        Taken::Done
    }

    /// A buffer; `Starved` if the request should wait for one, another error if it should not.
    #[inline]
    fn buffer(
        &mut self,
        len_bytes: usize,
        conn: &mut Connection,
        starving_ns: u64,
    ) -> Result<PoolBuffer, Taken> {
        let share_bytes = self.pool.max_bytes() / CONNECTION_SHARE;
        if conn.held_bytes > 0 && conn.held_bytes + len_bytes > share_bytes {
            return Err(Taken::Starved);
        }
        if let Some(buffer) = self.pool.take(len_bytes) {
            conn.held_bytes += buffer.len();
            return Ok(buffer);
        }
        let waited_ns = if starving_ns == 0 { 0 } else { Native::now() - starving_ns };
        let hopeless = conn.in_flight == 0 && waited_ns > STARVING_NS_MAX;
        let refuse = hopeless || !self.pool.can_ever(len_bytes);
        Err(if refuse { Taken::Done } else { Taken::Starved })
    }

    /// A flush, a discard or a zeroing.
    fn command(&mut self, conn: &mut Connection, granted: &Granted, request: &Request) {
        let op = match request.command {
            Command::Trim => Op::Discard,
            Command::WriteZeroes => Op::WriteZeroes,
            _ => Op::Flush,
        };
        let no_hole = op == Op::WriteZeroes && request.has(CMD_FLAG_NO_HOLE);
        if no_hole && request.has(CMD_FLAG_FAST_ZERO) {
            let why = "zeroes that stay allocated are not faster than a write";
            return self.refuse(conn, granted, request, Errno::Enotsup, why);
        }
        let mut ticket = self.ticket(conn, granted, request, op);
        ticket.left_sectors = request.length >> 9;
        if no_hole {
            ticket.flags = ticket.flags.with(OpFlags::NOUNMAP);
        }
        if op == Op::Discard && ticket.flags.has(OpFlags::FUA) {
            (ticket.then_flush, ticket.flags) = (true, OpFlags::NONE);
        }
        conn.in_flight += 1;
        let id = self.tickets.insert(ticket);
        self.submit(id);
    }

    fn block_status(&mut self, conn: &mut Connection, granted: &Granted, req: &Request) -> Taken {
        let Some(context_id) = granted.session.base_allocation else {
            self.refuse(conn, granted, req, Errno::Einval, "no context was selected");
            return Taken::Done;
        };
        let Ok(mut buffer) = self.buffer(STATUS_BYTES, conn, 0) else { return Taken::Starved };
        let lane = self.exports.list[granted.export].lane as usize;
        let most = if req.has(CMD_FLAG_REQ_ONE) { 1 } else { EXTENTS_MAX };
        let extents = self.exports.volumes[lane].extents(req.offset >> 9, req.length >> 9, most);
        let extents = extents.into_iter().map(|extent| Extent {
            len: extent.nr_sectors << 9,
            hole: extent.hole,
            zero: extent.zero,
        });
        let reply = Reply::new(req, &granted.session);
        let query = StatusQuery::new(req, context_id);
        match query.encode(&reply, extents, buffer.bytes_mut()) {
            Ok(len_bytes) => {
                conn.in_flight += 1;
                let place = (buffer.start(), len_bytes);
                conn.out.push_with(|_| 0, place, Some(buffer));
            }
            Err(_) => {
                conn.give_back(Memory::Buffer(buffer), &mut self.pool);
                self.refuse(conn, granted, req, Errno::Eio, "the drive does not say");
            }
        }
        Taken::Done
    }

    /// Gives the next part of a request to the block layer.
    #[inline]
    pub(crate) fn submit(&mut self, id: u32) {
        self.fresh = true;
        let ticket = self.tickets.get(id);
        let lane = &mut self.lanes[ticket.lane as usize];
        if !lane.waiting.is_empty() {
            return lane.waiting.push_back(id);
        }
        let bio = bio_of(ticket, &self.zeroes, self.tenants).with_user_data(id.into());
        if let Err(rejected) = lane.channel.submit(bio) {
            match rejected.reason {
                Reject::Full => lane.waiting.push_back(id),
                Reject::Invalid(status) => self.done.push((id, status)),
            }
        }
    }

    /// Lets requests go on for which the channel had no room; true if one did.
    fn submit_waiting(&mut self, lane: usize) -> bool {
        let mut moved = false;
        while let Some(id) = self.lanes[lane].waiting.front().copied() {
            let ticket = self.tickets.get(id);
            let bio = bio_of(ticket, &self.zeroes, self.tenants).with_user_data(id.into());
            match self.lanes[lane].channel.submit(bio).map_err(|rejected| rejected.reason) {
                Err(Reject::Full) => return moved,
                Err(Reject::Invalid(status)) => self.done.push((id, status)),
                Ok(()) => {}
            }
            self.lanes[lane].waiting.pop_front();
            moved = true;
        }
        moved
    }

    /// Starts what was submitted and gathers what is done.
    pub(crate) fn poll(&mut self) {
        for index in 0..self.lanes.len() {
            loop {
                let done = &mut self.done;
                let lane = &mut self.lanes[index];
                let polled = lane.channel.poll(|completion| {
                    done.push((completion.user_data as u32, completion.status));
                });
                if polled == 0 || lane.waiting.is_empty() || !self.submit_waiting(index) {
                    break;
                }
            }
        }
    }

    /// The request of a ticket goes on with its next part (`None`), or is over.
    #[inline]
    pub(crate) fn advance(&mut self, id: u32, status: Status) -> Option<Ticket> {
        let ticket = self.tickets.get(id);
        if status.is_ok() && !ticket.op.has_data() {
            let part = ticket.left_sectors.min(PART_SECTORS);
            ticket.sector += part;
            ticket.left_sectors -= part;
            if ticket.left_sectors == 0 && ticket.then_flush {
                (ticket.op, ticket.then_flush) = (Op::Flush, false);
                self.submit(id);
                return None;
            }
            if ticket.left_sectors > 0 {
                self.submit(id);
                return None;
            }
        }
        Some(self.tickets.remove(id))
    }

    /// Answers a request that is over.
    #[inline]
    pub(crate) fn answer(&mut self, conn: &mut Connection, ticket: Ticket, status: Status) {
        let Ticket { reply, memory, op, len_bytes, .. } = ticket;
        if let Some(errno) = errno_of(status) {
            self.counts.errors += 1;
            if let Some(granted) = &conn.granted {
                self.exports.list[granted.export].faults.note(status);
            }
            conn.out.push(|buffer| reply.failure(buffer, errno, status.text()));
            return conn.give_back(memory, &mut self.pool);
        }
        if op != Op::Read {
            conn.out.push(|buffer| reply.success(buffer));
            return conn.give_back(memory, &mut self.pool);
        }
        let encode = |buffer: &mut _| reply.read(buffer, len_bytes);
        let len = len_bytes as usize;
        match memory {
            Memory::Buffer(buffer) => {
                conn.out.push_with(encode, (buffer.start(), len), Some(buffer));
            }
            _ => conn.out.push_with(encode, (self.zeroes.start(), len), None),
        }
    }
}

/// The bio of a ticket's next part.
#[inline]
fn bio_of(ticket: &Ticket, zeroes: &Zeroes, tenants: u16) -> Bio {
    let sectors = ticket.left_sectors.min(PART_SECTORS) as u32;
    let bio = match (ticket.op, &ticket.memory) {
        (Op::Flush, _) => Bio::flush(),
        (Op::Discard, _) => Bio::discard(ticket.sector, sectors),
        (Op::WriteZeroes, _) => Bio::write_zeroes(ticket.sector, sectors),
        (op, Memory::Buffer(buffer)) => buffer.bio(op, ticket.sector, ticket.len_bytes),
        (op, _) => zeroes.bio(op, ticket.sector, ticket.len_bytes),
    };
    bio.with_flags(ticket.flags).with_tenant(tenants.wrapping_add(ticket.conn as u16))
}
