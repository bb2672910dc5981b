//! Finds overdue requests, which the drives of a volume have not answered in time. Removes requests
//! that no drive has received yet, for example after their connection was closed.
//!
//! A search runs a few times per timeout of the drives. A request is overdue if it is still in the
//! block layer after the timeout. A request that waits for space in a channel or for its range lock
//! has not reached a drive. Such a request can be removed.
//!
//! Invariants: the search adds no cost to a request, and never reports a request too early. A
//! volume is searched only while it has submitted requests.

use millrace_block::Bio;

use super::Submitter;
use super::lane::VolumeLane;
use super::ticket::{RangeClaim, Ticket, TicketMemory, TicketState};
use crate::nbd::memory::BufferPool;

/// Number of searches for overdue requests during one timeout of the volume's drives. A search
/// reports a request as overdue only if `LOOKS` earlier searches have found the request. The first
/// search may come right after the request's start. So after fewer searches, the request's timeout
/// may not have elapsed yet.
pub(crate) const LOOKS: u8 = 4;

impl VolumeLane {
    fn is_watched(&self) -> bool {
        self.started > 0 && self.timeout_ns > 0
    }

    /// Returns true if a drive of the volume is late: the drive has timed out recently. If a
    /// request never completes, the block layer counts a timeout of the drive again and again, each
    /// time the timeout elapses. So a drive that hangs stays late.
    pub(crate) fn has_late_drive(&mut self) -> bool {
        let volume = self.channel.volume();
        let below = volume.below().map_or(&[][..], |below| below.drives());
        let drives = volume.drives().iter().chain(below);
        let timeouts = drives.map(|disk| disk.stats().timeouts()).sum();
        let is_new = std::mem::replace(&mut self.timeouts, timeouts) != timeouts;
        self.late_looks = if is_new { 2 * LOOKS } else { self.late_looks.saturating_sub(1) };
        self.late_looks > 0
    }

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
    pub(crate) fn overdue_deadline(&self) -> Option<u64> {
        let watched = self.lanes.iter().filter(|lane| lane.is_watched());
        watched.map(|lane| lane.look_ns).min()
    }

    /// Searches a volume's started requests once and returns the overdue ones.
    /// - A request that waits for a limit of its group is not overdue.
    /// - While a drive reconnects, no request is overdue, because the drive itself limits the time
    ///   of its requests.
    /// - While no drive is late, no request is overdue, because old requests merely wait in a
    ///   queue.
    pub(crate) fn find_overdue(&mut self, lane: usize) -> Vec<u32> {
        let (mut found, tickets, its) = (Vec::new(), &mut self.tickets, &mut self.lanes[lane]);
        let is_late = its.has_late_drive();
        let reconnects =
            its.channel.volume().drives().iter().any(|disk| disk.failures().reconnecting);
        let is_throttled = |id: &u32| its.channel.is_throttled(tickets.get(*id).owner.group);
        let throttled: Vec<u32> = its.waiting.iter().filter(is_throttled).collect();
        for id in its.channel.held().map(|bio| bio.user_data() as u32).chain(throttled) {
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
                TicketState::Started(looks) if *looks < LOOKS => *looks += 1,
                TicketState::Started(_) if is_late => found.push(id),
                TicketState::Started(_) => {}
                TicketState::Filling | TicketState::Overdue => {}
            }
        }
        found
    }

    /// Drops a closed connection's requests that wait for space in a channel or for a limit of
    /// their group. Requests that are already submitted complete later; until such a write
    /// completes, newer writes to the same blocks wait.
    pub(crate) fn drop_waiting_of(&mut self, serial: u64, pool: &mut BufferPool) {
        for lane in 0..self.lanes.numbers() {
            if self.lanes.get_mut(lane).is_none() {
                continue;
            }
            self.drop_waiting(lane, pool, |ticket| ticket.owner.serial == serial);
            let tickets = &mut self.tickets;
            let is_left = |bio: &Bio| tickets.get(bio.user_data() as u32).owner.serial == serial;
            self.lanes[lane].channel.abort_held(is_left);
        }
        let is_left =
            |ticket: &Ticket| ticket.owner.serial == serial && ticket.state != TicketState::Filling;
        let left: Vec<u32> = self
            .tickets
            .iter_mut()
            .filter(|(_, ticket)| is_left(ticket))
            .map(|(id, _)| id)
            .collect();
        for id in left {
            self.fence(id);
        }
    }

    pub(crate) fn drop_waiting(
        &mut self,
        lane: usize,
        pool: &mut BufferPool,
        is_left: impl Fn(&Ticket) -> bool,
    ) {
        let (lanes, tickets) = (&mut self.lanes, &mut self.tickets);
        let mut dropped = Vec::new();
        lanes[lane].waiting.retain(|id| {
            let is_left = is_left(tickets.get(id));
            dropped.extend(is_left.then_some(id));
            !is_left
        });
        let of_lane = tickets.iter_mut().filter(|(_, ticket)| ticket.lane as usize == lane);
        let wait = of_lane
            .filter(|(_, ticket)| ticket.waits.claim == RangeClaim::Waiting && is_left(ticket));
        dropped.extend(wait.map(|(id, _)| id));
        dropped.into_iter().for_each(|id| self.forget(id, pool));
    }

    pub(crate) fn forget(&mut self, id: u32, pool: &mut BufferPool) {
        let ticket = self.end(id);
        if let TicketMemory::Buffer(buffer) = ticket.memory {
            pool.give(buffer);
        }
    }
}
