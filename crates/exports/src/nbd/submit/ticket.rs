//! Tickets: the requests of an I/O thread that are in the block layer, or wait for it.
//!
//! A ticket's index in its slab is the user data of its bio. A ticket belongs to the thread, not to
//! its connection: it keeps its buffer until the bio has completed, even if the client has left or
//! was told that the drive does not answer.
//!
//! Invariants: a ticket names its connection by index and serial number, since the connection may
//! end first. The client of an overdue ticket was answered and gets no second reply.

use std::ops::Range;

use millrace_block::{GroupId, Op, OpFlags, Sector};

use super::bounce::Bounce;
use crate::nbd::memory::PoolBuffer;
use millrace_nbd::Reply;

#[derive(Debug)]
pub(crate) enum TicketMemory {
    None,
    /// Shared area of zeroes instead of a buffer, for volumes whose drives never touch payload.
    /// Data that a client writes to such a volume are discarded.
    Zeroes,
    Buffer(PoolBuffer),
}

impl TicketMemory {
    #[inline]
    pub(crate) fn pool_bytes(&self) -> usize {
        match self {
            TicketMemory::Buffer(buffer) => buffer.len(),
            TicketMemory::None | TicketMemory::Zeroes => 0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TicketState {
    Filling,
    /// The request is in the block layer, or waits to enter it. The number counts the searches for
    /// overdue requests (overdue.rs) that have found the request in this state.
    Started(u8),
    /// The drive did not answer in time, and the client got an error. The drive may still use the
    /// request's memory.
    Overdue,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct TicketOwner {
    pub(crate) conn: u32,
    pub(crate) serial: u64,
    pub(crate) group: GroupId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum RangeClaim {
    #[default]
    None,
    Waiting,
    Held,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TicketWait {
    pub(crate) claim: RangeClaim,
    /// Time at which the request began to wait for space in the channel, in nanoseconds; 0 if it
    /// does not wait.
    pub(crate) since_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) owner: TicketOwner,
    pub(crate) lane: u32,
    pub(crate) state: TicketState,
    pub(crate) reply: Reply,
    pub(crate) op: Op,
    pub(crate) flags: OpFlags,
    /// True if a flush follows the operation, which implements FUA on a discard.
    pub(crate) then_flush: bool,
    pub(crate) len_bytes: u32,
    /// Length, in bytes, of the blocks that contain the payload.
    pub(crate) bio_bytes: u32,
    /// Offset of the payload in its first block, in bytes.
    pub(crate) head_bytes: u32,
    /// First sector of the bio that is next or in flight. A discard or zeroing is submitted as
    /// several bios if it is long.
    pub(crate) sector: Sector,
    /// Number of sectors of a discard or zeroing that are not completed yet; 0 for other commands.
    pub(crate) left_sectors: u64,
    pub(crate) memory: TicketMemory,
    pub(crate) bounce: Option<Box<Bounce>>,
    pub(crate) waits: TicketWait,
}

impl Ticket {
    pub(crate) fn sectors(&self) -> Range<Sector> {
        match &self.bounce {
            Some(bounce) => bounce.unaligned.sectors(),
            None => {
                let sectors = u64::from(self.bio_bytes >> 9) + self.left_sectors;
                self.sector..self.sector + sectors
            }
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tickets {
    slots: Vec<Option<Ticket>>,
    free: Vec<u32>,
}

impl Tickets {
    pub(crate) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    #[inline]
    pub(crate) fn insert(&mut self, ticket: Ticket) -> u32 {
        if let Some(id) = self.free.pop() {
            self.slots[id as usize] = Some(ticket);
            return id;
        }
        self.slots.push(Some(ticket));
        self.slots.len() as u32 - 1
    }

    #[inline]
    pub(crate) fn get(&mut self, id: u32) -> &mut Ticket {
        self.slots[id as usize].as_mut().expect("the ticket belongs to a request in flight")
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Ticket)> {
        let numbered = (0..).zip(&mut self.slots);
        numbered.filter_map(|(id, slot)| slot.as_mut().map(|ticket| (id, ticket)))
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: u32) -> Ticket {
        let ticket =
            self.slots[id as usize].take().expect("the ticket belongs to a request in flight");
        self.free.push(id);
        ticket
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::memory::budget::{MemoryBudget, MemoryPart};
    use crate::nbd::tests::{ticket, waiter};

    #[test]
    fn tickets_keep_their_numbers_and_free_ones_are_used_first() {
        let mut tickets = Tickets::default();
        let put = |tickets: &mut Tickets, serial| {
            tickets.insert(ticket(Op::Read, serial, TicketMemory::None))
        };
        let serials = |tickets: &mut Tickets| {
            tickets.iter_mut().map(|(id, ticket)| (id, ticket.owner.serial)).collect::<Vec<_>>()
        };
        assert_eq!([10, 11, 12].map(|serial| put(&mut tickets, serial)), [0, 1, 2]);
        assert_eq!(serials(&mut tickets), [(0, 10), (1, 11), (2, 12)]);
        assert_eq!(tickets.remove(1).owner.serial, 11);
        assert_eq!(tickets.in_use(), 2);
        assert_eq!(serials(&mut tickets), [(0, 10), (2, 12)]);
        assert_eq!([13, 14].map(|serial| put(&mut tickets, serial)), [1, 3]);
        assert_eq!((tickets.in_use(), tickets.get(1).owner.serial), (4, 13));
    }

    #[test]
    fn only_buffers_take_up_memory_of_the_pool() {
        let budget = MemoryBudget::new(2 << 20, 1);
        let (_reactor, mut pool) = crate::nbd::tests::pool(&budget, 0);
        let buffer = TicketMemory::Buffer(
            pool.take(waiter(0, 0, 5000), MemoryPart::Window).expect("the pool is empty"),
        );
        assert_eq!(
            [TicketMemory::None, TicketMemory::Zeroes, buffer].map(|one| one.pool_bytes()),
            [0, 0, 8192]
        );
    }
}
