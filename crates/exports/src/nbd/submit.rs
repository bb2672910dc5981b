//! Requests of an I/O thread in the block layer: their tickets, and the volumes that serve them.
//!
//! A ticket (ticket.rs) is an accepted request; a lane (lane.rs) is one thread's access to a
//! volume. [`Submitter`] turns tickets into bios, part by part, and gathers completions. The
//! submitter does not know connections: its caller finds the connection by the ticket's owner.
//!
//! Invariants: a submitted ticket appears in `done` exactly once for each of its parts, and keeps
//! its buffer until then.

pub(crate) mod bounce;
mod claims;
pub(crate) mod lane;
pub(crate) mod lanes;
pub(crate) mod overdue;
pub(crate) mod ticket;
pub(crate) mod waiting_tickets;

use std::sync::Arc;

use millrace_block::{Bio, Op, Reject, Status};
use millrace_machine::{Machine, Native};

use self::lane::CHANNEL_DEPTH;
use self::lanes::VolumeLanes;
use self::ticket::{RangeClaim, Ticket, TicketMemory, TicketState, Tickets};
use self::waiting_tickets::OfferResult;
use super::memory::Zeroes;
use super::server_state::client_number;

/// Longest part of a discard or zeroing that is submitted as one bio: 1 TiB.
const PART_SECTORS: u64 = 1 << 31;

pub(crate) struct Submitter {
    pub(crate) lanes: VolumeLanes,
    pub(crate) tickets: Tickets,
    /// Completed bios that the thread has not handled yet: index of the bio's request in `tickets`,
    /// and status.
    pub(crate) done: Vec<(u32, Status)>,
    /// True if a bio was submitted since the thread last polled for completions.
    pub(crate) fresh: bool,
    pub(crate) retry: Vec<usize>,
    /// True if all I/O threads must check the range locks: a waiting write was granted its lock, or
    /// writes to a volume now need locks.
    pub(crate) ranges_changed: bool,
    zeroes: Arc<Zeroes>,
    thread: usize,
    /// Tenant number, in the block layer, of this thread's first client. Later clients have the
    /// numbers after it.
    tenants: u16,
}

impl Submitter {
    pub(crate) fn new(zeroes: Arc<Zeroes>, thread: usize) -> Submitter {
        Submitter {
            lanes: VolumeLanes::default(),
            tickets: Tickets::default(),
            done: Vec::with_capacity(CHANNEL_DEPTH as usize),
            fresh: false,
            retry: Vec::with_capacity(256),
            ranges_changed: false,
            zeroes,
            thread,
            tenants: client_number(thread, 0),
        }
    }

    #[inline]
    pub(crate) fn submit(&mut self, id: u32) {
        self.fresh = true;
        let ticket = self.tickets.get(id);
        let lane = &mut self.lanes[ticket.lane as usize];
        let is_new = ticket.state == TicketState::Filling;
        ticket.state = TicketState::Started(0);
        if is_new {
            lane.start(ticket);
            let is_entered = lane.tracks || ticket.bounce.is_some();
            if is_entered && ticket.op.is_write() && !self.claim(id) {
                return;
            }
        }
        self.push(id);
    }

    /// Submits a request to its volume's channel. Queues the request if the channel is full, if the
    /// channel's free places are reserved for other groups, or if earlier requests of the same
    /// group wait.
    #[inline]
    fn push(&mut self, id: u32) {
        let ticket = self.tickets.get(id);
        let (lane, group) = (ticket.lane as usize, ticket.owner.group);
        let waiting = &self.lanes[lane].waiting;
        let is_behind = !waiting.is_empty() && waiting.has(group);
        if is_behind || self.offer(id) != OfferResult::Submitted {
            self.tickets.get(id).waits.since_ns = Native::now();
            self.lanes[lane].waiting.push(group, id);
        }
    }

    fn submit_waiting(&mut self, lane: usize) -> bool {
        let mut waiting = std::mem::take(&mut self.lanes[lane].waiting);
        let has_moved = waiting.submit(|id| self.offer(id));
        self.lanes[lane].waiting = waiting;
        has_moved
    }

    /// Submits a request, if the channel takes it now.
    #[inline]
    fn offer(&mut self, id: u32) -> OfferResult {
        let ticket = self.tickets.get(id);
        let (lane, group) = (&mut self.lanes[ticket.lane as usize], ticket.owner.group);
        if lane.is_reserved_for_others(group) {
            return OfferResult::Skipped;
        }
        let bio = bio_of(ticket, &self.zeroes, self.tenants).with_user_data(id.into());
        match lane.channel.submit(bio).map_err(|rejected| rejected.reason) {
            Err(Reject::Full) if lane.channel.is_throttled(group) => return OfferResult::Skipped,
            Err(Reject::Full) => return OfferResult::Full,
            Err(Reject::Invalid(status)) => self.done.push((id, status)),
            Ok(()) if ticket.waits.since_ns != 0 => lane.has_waited(ticket),
            Ok(()) => {}
        }
        OfferResult::Submitted
    }

    pub(crate) fn poll(&mut self) {
        for index in 0..self.lanes.numbers() {
            loop {
                let done = &mut self.done;
                let Some(lane) = self.lanes.get_mut(index) else { break };
                let polled = lane.channel.poll(|completion| {
                    done.push((completion.user_data as u32, completion.status));
                });
                if polled == 0 || lane.waiting.is_empty() || !self.submit_waiting(index) {
                    break;
                }
            }
        }
    }

    /// Handles a completed bio of request `id`. Submits the request's next bio and returns `None`,
    /// or ends the request and returns its ticket (its entry in `tickets`).
    #[inline]
    pub(crate) fn advance(&mut self, id: u32, status: Status) -> Option<Ticket> {
        let mut ticket = self.tickets.get(id);
        if ticket.bounce.is_some() {
            if self.go_on_bouncing(id, status) {
                return None;
            }
            ticket = self.tickets.get(id);
        }
        if status.is_ok() && !ticket.op.has_data() && ticket.state != TicketState::Overdue {
            let part = ticket.left_sectors.min(PART_SECTORS);
            ticket.sector += part;
            ticket.left_sectors -= part;
            let flushes = ticket.left_sectors == 0 && ticket.then_flush;
            if flushes {
                (ticket.op, ticket.then_flush) = (Op::Flush, false);
            }
            if flushes || ticket.left_sectors > 0 {
                self.submit(id);
                return None;
            }
        }
        Some(self.end(id))
    }

    /// Removes a submitted request from the table `tickets`. Releases its range lock, and no longer
    /// counts its memory against the volume.
    #[inline]
    pub(crate) fn end(&mut self, id: u32) -> Ticket {
        let ticket = self.tickets.remove(id);
        let lane = &mut self.lanes[ticket.lane as usize];
        lane.end(&ticket);
        if !lane.memory_waiters.is_empty() {
            self.retry.append(&mut lane.memory_waiters);
        }
        if ticket.waits.claim != RangeClaim::None {
            self.release(id, &ticket);
        }
        ticket
    }

    /// Handles a completed step of a read-modify-write. Returns true if another step follows.
    #[cold]
    pub(crate) fn go_on_bouncing(&mut self, id: u32, status: Status) -> bool {
        let ticket = self.tickets.get(id);
        let (Some(bounce), TicketMemory::Buffer(buffer)) = (&mut ticket.bounce, &mut ticket.memory)
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
}

#[inline]
fn bio_of(ticket: &Ticket, zeroes: &Zeroes, tenants: u16) -> Bio {
    let tenant = tenants.wrapping_add(ticket.owner.conn as u16);
    if let (Some(bounce), TicketMemory::Buffer(buffer)) = (&ticket.bounce, &ticket.memory) {
        return bounce.bio(buffer, ticket.flags).with_tenant(tenant).with_group(ticket.owner.group);
    }
    let sectors = ticket.left_sectors.min(PART_SECTORS) as u32;
    let bio = match (ticket.op, &ticket.memory) {
        (Op::Flush, _) => Bio::flush(),
        (Op::Discard, _) => Bio::discard(ticket.sector, sectors),
        (Op::WriteZeroes, _) => Bio::write_zeroes(ticket.sector, sectors),
        (op, TicketMemory::Buffer(buffer)) => buffer.bio_at(0, op, ticket.sector, ticket.bio_bytes),
        (op, _) => zeroes.bio(op, ticket.sector, ticket.bio_bytes),
    };
    bio.with_flags(ticket.flags).with_tenant(tenant).with_group(ticket.owner.group)
}

#[cfg(test)]
mod tests;
