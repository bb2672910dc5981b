//! Tickets: the requests of an I/O thread that the block layer has, or that wait for it.
//!
//! A slab; the index of a ticket is the user data of its bio. Owned by the worker. A ticket belongs
//! to the thread, not to its connection: the buffer it holds stays until the bio has completed,
//! also when the client has vanished.
//!
//! Invariant: a connection is freed only when none of its tickets is left.

use millrace_block::{Op, OpFlags, Sector};

use super::memory::PoolBuffer;
use crate::nbd::Reply;

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

/// One request.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) conn: u32,
    pub(crate) lane: u32,
    pub(crate) reply: Reply,
    pub(crate) op: Op,
    pub(crate) flags: OpFlags,
    /// A flush follows, for FUA on a discard.
    pub(crate) then_flush: bool,
    /// Bytes of payload; 0 without.
    pub(crate) len_bytes: u32,
    /// Where the next part starts, and what is left with it; for commands without payload.
    pub(crate) sector: Sector,
    pub(crate) left_sectors: u64,
    pub(crate) memory: Memory,
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

    #[inline]
    pub(crate) fn remove(&mut self, id: u32) -> Ticket {
        let ticket = self.slots[id as usize].take().expect("the ticket of a request in flight");
        self.free.push(id);
        ticket
    }
}
