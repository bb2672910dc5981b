//! `Mail`: what a hardware queue of a shared drive and the agreement tell each other.
//!
//! One for each queue, under a lock of its own: the queue posts what it served and what waits, the
//! agreement posts budgets and depths. Called by share.rs and agreement.rs.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::account::hold::Hold;
use crate::bio::group_id::GroupId;
use crate::queue::scheduler::share::times::{ClassSums, LatencyCounts};

/// A group at one queue, as its mail has it.
#[derive(Default)]
pub(crate) struct MailEntry {
    pub(crate) group: GroupId,
    pub(crate) way: usize,
    /// By the queue: cost of all that it sent, and what is there now, in 16ths of a small request.
    pub(crate) served: u64,
    pub(crate) waiting: u32,
    pub(crate) in_flight: u32,
    /// Something waited all the time since the agreement looked last.
    pub(crate) steady: bool,
    /// And what that was, when the queue had posted.
    pub(crate) was_steady: bool,
    pub(crate) latencies: Option<Box<LatencyCounts>>,
    /// By the agreement: how much of `served` it knows.
    pub(crate) known: u64,
    /// What `served` may come to, and the group's slope; 0: nothing was agreed on yet.
    pub(crate) ceiling: u64,
    pub(crate) slope: u64,
}

impl MailEntry {
    pub(crate) fn demand(&self) -> u64 {
        u64::from(self.waiting) + u64::from(self.in_flight)
    }

    /// How much of the depth it could use: what waits for its budget could not.
    pub(crate) fn wants(&self) -> u64 {
        if self.served >= self.ceiling { self.in_flight.into() } else { self.demand() }
    }
}

/// How much may be in flight of a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    /// By way, in 16ths of a small request; with targets, of the groups without one.
    pub(crate) depth: [u32; 2],
    /// What holds those for which there is no room.
    pub(crate) held_by: [Hold; 2],
}

impl Bound {
    /// Nothing is held back.
    pub(crate) const NONE: Bound = Bound { depth: [u32::MAX; 2], held_by: [Hold::Depth; 2] };
}

/// What a queue and the agreement tell each other.
pub(crate) struct Mail {
    pub(crate) at_ns: u64,
    /// What the queue posted has all come back since.
    pub(crate) is_over: bool,
    /// It posted since the agreement looked last.
    pub(crate) fresh: bool,
    pub(crate) full: bool,
    /// Requests at the drive.
    pub(crate) requests: u32,
    /// Most that one of its requests cost.
    pub(crate) largest: u64,
    pub(crate) sums: ClassSums,
    pub(crate) entries: Vec<MailEntry>,
    pub(crate) bound: Bound,
    pub(crate) bounded: bool,
}

impl Default for Mail {
    fn default() -> Self {
        Mail {
            at_ns: 0,
            is_over: false,
            fresh: false,
            full: false,
            requests: 0,
            largest: 0,
            sums: ClassSums::default(),
            entries: Vec::new(),
            bound: Bound::NONE,
            bounded: false,
        }
    }
}

impl Mail {
    /// The entry of the queue's flow number `at`.
    pub(crate) fn entry(&mut self, at: usize, (group, way): (GroupId, usize)) -> &mut MailEntry {
        if self.entries.len() <= at {
            self.entries.push(MailEntry { group, way, steady: true, ..MailEntry::default() });
        }
        &mut self.entries[at]
    }
}
