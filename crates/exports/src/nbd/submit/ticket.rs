//! Tickets: the requests of an I/O thread that the block layer has, or that wait for it.
//!
//! A slab; the index of a ticket is the user data of its bio. Owned by the worker. A ticket belongs
//! to the thread, not to its connection: the buffer it holds stays until the bio has completed,
//! also when the client has vanished or was told that the drive does not answer.
//!
//! Invariants: a ticket names its connection by number and serial, since the connection may be gone
//! before it; an overdue ticket's connection has its answer and gets no second one.

use std::ops::Range;

use millrace_block::{GroupId, Op, OpFlags, Sector};

use super::bounce::Bounce;
use crate::nbd::memory::PoolBuffer;
use millrace_nbd::Reply;

/// What a request's payload lies in.
#[derive(Debug)]
pub(crate) enum Memory {
    /// No payload.
    None,
    /// The shared zeroes; what was written was thrown away.
    Zeroes,
    /// A buffer of the thread's pool.
    Buffer(PoolBuffer),
}

impl Memory {
    /// Bytes of the pool that it takes up.
    #[inline]
    pub(crate) fn pool_bytes(&self) -> usize {
        match self {
            Memory::Buffer(buffer) => buffer.len(),
            Memory::None | Memory::Zeroes => 0,
        }
    }
}

/// The state of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TicketState {
    /// The request's payload is being received.
    Filling,
    /// The block layer has it, or it waits for that; found so at this many looks (overdue.rs).
    Started(u8),
    /// The client was told that the drive does not answer; the drive may still use the memory.
    Overdue,
}

/// The connection of a ticket, which may be gone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) conn: u32,
    pub(crate) serial: u64,
    /// The client's group.
    pub(crate) group: GroupId,
}

/// Whether a write is entered in its volume's ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Claim {
    /// The write is not entered.
    #[default]
    None,
    /// The write waits for its range, and the block layer does not have it.
    Waits,
    /// The ticket holds its range.
    Held,
}

/// What a request waits for before the block layer has it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Waits {
    pub(crate) claim: Claim,
    /// Since when the channel has no room for it, in nanoseconds.
    pub(crate) since_ns: u64,
}

/// One request.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) owner: Owner,
    pub(crate) lane: u32,
    pub(crate) state: TicketState,
    pub(crate) reply: Reply,
    pub(crate) op: Op,
    pub(crate) flags: OpFlags,
    /// A flush follows, for FUA on a discard.
    pub(crate) then_flush: bool,
    /// Bytes of payload; 0 without.
    pub(crate) len_bytes: u32,
    /// Bytes of the blocks that the payload lies in, and of them those before it.
    pub(crate) bio_bytes: u32,
    pub(crate) head_bytes: u32,
    /// Where the next part starts, and what is left with it; for commands without payload.
    pub(crate) sector: Sector,
    pub(crate) left_sectors: u64,
    pub(crate) memory: Memory,
    /// What comes before the operation, if it begins or ends within a block.
    pub(crate) bounce: Option<Box<Bounce>>,
    pub(crate) waits: Waits,
}

impl Ticket {
    /// What a write touches that has not begun, in sectors.
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

/// All tickets of a thread.
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
        self.slots[id as usize].as_mut().expect("the ticket of a request in flight")
    }

    /// All tickets with their numbers.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Ticket)> {
        let numbered = (0..).zip(&mut self.slots);
        numbered.filter_map(|(id, slot)| slot.as_mut().map(|ticket| (id, ticket)))
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: u32) -> Ticket {
        let ticket = self.slots[id as usize].take().expect("the ticket of a request in flight");
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
        let put =
            |tickets: &mut Tickets, serial| tickets.insert(ticket(Op::Read, serial, Memory::None));
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
        let buffer = Memory::Buffer(
            pool.take(waiter(0, 0, 5000), MemoryPart::Window).expect("the pool is empty"),
        );
        assert_eq!(
            [Memory::None, Memory::Zeroes, buffer].map(|one| one.pool_bytes()),
            [0, 0, 8192]
        );
    }
}
