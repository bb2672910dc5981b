//! Which requests no drive has answered in time, and which of those it never got.
//!
//! A ticket that is still with the block layer after its volume's timeout is found here by looking
//! a few times per timeout; the worker (its own overdue.rs) answers its client. A ticket that waits
//! for room or for its range is with no drive, and can be let go of.
//!
//! Invariants: a request pays nothing for being looked for, and is never found early. A lane looks
//! only while something is started.

use millrace_block::Bio;

use super::Submitter;
use super::lane::Lane;
use super::ticket::{Claim, Memory, Ticket, TicketState};
use crate::nbd::memory::Pool;

/// Looks at every ticket per timeout. One more makes it overdue, as the first may come at once.
pub(crate) const LOOKS: u8 = 4;

impl Lane {
    /// Whether something is started that can be overdue.
    fn is_watched(&self) -> bool {
        self.started > 0 && self.timeout_ns > 0
    }

    /// Whether to look for overdue requests now; if so, sets when to look again.
    pub(crate) fn is_look_due(&mut self, now_ns: u64) -> bool {
        let is_due = self.is_watched() && self.look_ns <= now_ns;
        if is_due {
            let period_ns = (self.timeout_ns / u64::from(LOOKS)).max(1);
            self.look_ns = now_ns.saturating_add(period_ns);
        }
        is_due
    }
}

impl Submitter {
    /// When to look again, if anything is in flight.
    pub(crate) fn overdue_deadline(&self) -> Option<u64> {
        let watched = self.lanes.iter().filter(|lane| lane.is_watched());
        watched.map(|lane| lane.look_ns).min()
    }

    /// Looks once at all started tickets of a lane; returns those that are overdue. For what waits
    /// for a limit of its group no drive is to blame. While a drive looks for its server, its own
    /// time limit counts, and nothing becomes overdue.
    pub(crate) fn find_overdue(&mut self, lane: usize) -> Vec<u32> {
        let (mut found, tickets, its) = (Vec::new(), &mut self.tickets, &self.lanes[lane]);
        let reconnects =
            its.channel.volume().drives().iter().any(|disk| disk.failures().reconnecting);
        let held = its.channel.held().map(|bio| bio.user_data() as u32);
        for id in held.chain(its.held_back.iter()) {
            if let TicketState::Started(looks) = &mut tickets.get(id).state {
                *looks = 0;
            }
        }
        for (id, ticket) in tickets.iter_mut() {
            if ticket.lane as usize != lane {
                continue;
            }
            match &mut ticket.state {
                TicketState::Started(looks) if reconnects => *looks = 0,
                TicketState::Started(looks) if *looks >= LOOKS => found.push(id),
                TicketState::Started(looks) => *looks += 1,
                TicketState::Filling | TicketState::Overdue => {}
            }
        }
        found
    }

    /// Lets go of what a connection leaves behind that no drive has: tickets that wait for room or
    /// for a limit of their group.
    pub(crate) fn drop_waiting_of(&mut self, serial: u64, pool: &mut Pool) {
        for lane in 0..self.lanes.numbers() {
            if self.lanes.get_mut(lane).is_none() {
                continue;
            }
            self.drop_waiting(lane, pool, |ticket| ticket.owner.serial == serial);
            let tickets = &mut self.tickets;
            let is_left = |bio: &Bio| tickets.get(bio.user_data() as u32).owner.serial == serial;
            self.lanes[lane].channel.abort_held(is_left);
        }
    }

    /// Removes tickets that wait for room in a lane's channel, or for their range.
    pub(crate) fn drop_waiting(
        &mut self,
        lane: usize,
        pool: &mut Pool,
        is_left: impl Fn(&Ticket) -> bool,
    ) {
        let (lanes, tickets) = (&mut self.lanes, &mut self.tickets);
        let mut dropped = Vec::new();
        lanes[lane].waiting.retain(|id| {
            let is_left = is_left(tickets.get(*id));
            dropped.extend(is_left.then_some(*id));
            !is_left
        });
        lanes[lane].held_back.retain(|id| {
            let is_left = is_left(tickets.get(id));
            dropped.extend(is_left.then_some(id));
            !is_left
        });
        let of_lane = tickets.iter_mut().filter(|(_, ticket)| ticket.lane as usize == lane);
        let wait =
            of_lane.filter(|(_, ticket)| ticket.waits.claim == Claim::Waits && is_left(ticket));
        dropped.extend(wait.map(|(id, _)| id));
        dropped.into_iter().for_each(|id| self.forget(id, pool));
    }

    /// Removes a ticket that no drive has and nobody waits for.
    pub(crate) fn forget(&mut self, id: u32, pool: &mut Pool) {
        let ticket = self.end(id);
        if let Memory::Buffer(buffer) = ticket.memory {
            pool.give(buffer);
        }
    }
}
