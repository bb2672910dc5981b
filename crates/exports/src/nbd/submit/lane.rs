//! Lane: one I/O thread's access to a volume, with its channel and the requests that wait for it.
//!
//! Most lanes are opened for the first client of a volume on a thread, so volumes without clients
//! cost neither memory nor time.
//!
//! Invariants: `held_bytes` is the total size of the pool buffers of requests that were submitted
//! on this lane, including requests whose clients have left. `overdue` counts the requests that
//! were answered with a timeout although a drive still uses their memory. Both numbers are bounded,
//! so that drives that hang cannot use up the memory of other volumes.

use std::sync::Arc;

use millrace_block::{Channel, GroupId, Volume};
use millrace_machine::{Machine, Native, nanoseconds};

use super::super::exports::ServedVolume;
use super::ticket::{Ticket, TicketState};
use super::waiting_tickets::WaitingTickets;

pub(crate) const CHANNEL_DEPTH: u32 = 1024;
/// Number of channel entries that only groups with at most `FEW` unfinished requests may use.
/// Otherwise a busy group could fill the channel. The block layer's scheduler orders only requests
/// in the channel, so it would not see the requests of other groups.
const RESERVED: u32 = 64;
const FEW: u32 = 16;
/// Number of overdue requests (not answered by drives in time) at which a volume counts as stuck.
const OVERDUE_MAX: u32 = 64;

pub(crate) struct VolumeLane {
    pub(crate) channel: Channel<Native>,
    pub(crate) served: Arc<ServedVolume>,
    pub(crate) clients: u32,
    /// True if the volume stays open while it has no client, because opening its drives again could
    /// be slow or fail.
    pub(crate) is_kept: bool,
    /// Requests that wait for a place in the channel, or for a limit of their group.
    pub(crate) waiting: WaitingTickets,
    /// Number of unfinished requests of each group, indexed by group number.
    by_group: Vec<u32>,
    /// Time limit of the volume's drives for one request, in nanoseconds; 0 for no limit.
    pub(crate) timeout_ns: u64,
    pub(crate) look_ns: u64,
    /// Total number of timeouts of the volume's drives, as read at the last search for overdue
    /// requests.
    pub(crate) timeouts: u64,
    /// Number of further searches for overdue requests during which a drive of the volume counts as
    /// late. A timeout of a drive sets the number to `2 * LOOKS`, and each search without a new
    /// timeout decrements the number.
    pub(crate) late_looks: u8,
    /// Number of unfinished requests, not counting overdue ones.
    pub(crate) started: u32,
    /// Number of requests that were answered with a timeout while the drive keeps their memory.
    pub(crate) overdue: u32,
    pub(crate) held_bytes: usize,
    pub(crate) tracks: bool,
    /// Indices of connections that wait for memory held by requests of this volume.
    pub(crate) memory_waiters: Vec<usize>,
}

impl VolumeLane {
    pub(crate) fn new(channel: Channel<Native>, served: &Arc<ServedVolume>) -> VolumeLane {
        let timeout_ns = longest_timeout(channel.volume());
        let mut lane = VolumeLane {
            channel,
            served: Arc::clone(served),
            clients: 0,
            is_kept: false,
            waiting: WaitingTickets::default(),
            by_group: Vec::new(),
            timeout_ns,
            look_ns: 0,
            timeouts: 0,
            late_looks: 0,
            started: 0,
            overdue: 0,
            held_bytes: 0,
            tracks: served.ranges.enter_lane(),
            memory_waiters: Vec::new(),
        };
        // Timeouts from before the lane was opened do not count.
        lane.has_late_drive();
        lane.late_looks = 0;
        lane
    }

    #[inline]
    pub(crate) fn is_stuck(&self) -> bool {
        self.overdue >= OVERDUE_MAX
    }

    /// Returns true if `group` may not submit now: only reserved places are free in the channel
    /// (see `RESERVED`), and the group has more than `FEW` unfinished requests.
    #[inline]
    pub(crate) fn is_reserved_for_others(&self, group: GroupId) -> bool {
        self.channel.in_flight() >= CHANNEL_DEPTH - RESERVED
            && self.by_group[usize::from(group.0)] > FEW
    }

    #[cold]
    pub(crate) fn has_waited(&mut self, ticket: &mut Ticket) {
        let ns = Native::now().saturating_sub(std::mem::take(&mut ticket.waits.since_ns));
        self.channel.count_back_pressure(ticket.owner.group, ns);
    }

    #[inline]
    pub(crate) fn start(&mut self, ticket: &Ticket) {
        self.started += 1;
        self.held_bytes += ticket.memory.pool_bytes();
        let group = usize::from(ticket.owner.group.0);
        if group >= self.by_group.len() {
            self.by_group.resize(group + 1, 0);
        }
        self.by_group[group] += 1;
    }

    /// Returns true if the I/O thread can close the volume: no client uses it, no request is left,
    /// no drive may still access a request's memory, and `is_kept` is false.
    pub(crate) fn is_unused(&self) -> bool {
        (self.clients, self.started, self.overdue) == (0, 0, 0)
            && !self.is_kept
            && self.memory_waiters.is_empty()
            && self.waiting.is_empty()
            && self.channel.in_flight() == 0
            && self.channel.quarantined_bios() == 0
    }

    #[inline]
    pub(crate) fn end(&mut self, ticket: &Ticket) {
        self.held_bytes -= ticket.memory.pool_bytes();
        self.by_group[usize::from(ticket.owner.group.0)] -= 1;
        match ticket.state {
            TicketState::Overdue => self.overdue -= 1,
            _ => self.started -= 1,
        }
    }
}

/// Timeout of a cached volume, as a multiple of the longest timeout of its drives. The timeout must
/// be long, because a flush of the cache writes all dirty pages.
const CACHE_TIMEOUTS: u64 = 20;

/// Returns a volume's timeout in nanoseconds: the longest timeout of its drives, times
/// `CACHE_TIMEOUTS` if the volume is cached; 0 if some drive has no timeout.
fn longest_timeout(volume: &Volume<Native>) -> u64 {
    let timeouts = volume.drives().iter().map(|disk| nanoseconds(disk.timeout()));
    let longest = timeouts.reduce(|a, b| if a == 0 || b == 0 { 0 } else { a.max(b) }).unwrap_or(0);
    match volume.below() {
        Some(_) => longest.saturating_mul(CACHE_TIMEOUTS),
        None => longest,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millrace_block::{Disk, DiskConfig, Layout, Op};

    use super::super::ticket::TicketMemory;
    use super::*;
    use crate::nbd::memory::budget::MemoryPart;
    use crate::nbd::tests::{Rig, ticket, volume, waiter};

    #[test]
    fn a_lane_counts_what_is_started_and_is_stuck_with_64_overdue() {
        let mut rig = Rig::new(&["null:size=1m"], |_| ());
        let buffer =
            rig.core.pool.take(waiter(0, 0, 4096), MemoryPart::Window).expect("the pool is empty");
        let mut ticket = ticket(Op::Read, 1, TicketMemory::Buffer(buffer));
        ticket.state = TicketState::Started(0);
        let lane = &mut rig.core.submitter.lanes[0];
        lane.start(&ticket);
        lane.start(&ticket);
        assert_eq!((lane.started, lane.held_bytes), (2, 8192));
        lane.start(&ticket);
        lane.held_bytes -= 4096;
        (lane.started, lane.overdue) = (1, 64);
        assert!(lane.is_stuck());
        ticket.state = TicketState::Overdue;
        lane.end(&ticket);
        assert_eq!((lane.started, lane.overdue, lane.held_bytes), (1, 63, 4096));
        assert!(!lane.is_stuck());
        ticket.state = TicketState::Started(0);
        lane.end(&ticket);
        assert_eq!((lane.started, lane.overdue, lane.held_bytes), (0, 63, 0));
        lane.overdue = 0;
    }

    #[test]
    fn a_volume_has_the_timeout_of_its_drive() {
        for timeout in [Duration::ZERO, Duration::from_secs(7)] {
            let volume = volume("null:size=1m", 1, timeout);
            assert_eq!(longest_timeout(&volume), nanoseconds(timeout));
        }
    }

    #[test]
    fn volume_has_the_longest_timeout_or_none_if_one_has_none() {
        for (timeouts, longest) in
            [([5, 7, 6], 7), ([7, 5, 5], 7), ([0, 7, 5], 0), ([7, 0, 5], 0), ([5, 7, 0], 0)]
        {
            let disk = |timeout_ns| {
                let opened = millrace_drives::open(&"null:size=1m".parse().unwrap(), 1).unwrap();
                let timeout = Duration::from_nanos(timeout_ns);
                let config = DiskConfig { timeout, ..DiskConfig::default() };
                Disk::new(opened.driver, config).unwrap()
            };
            let disks = timeouts.map(disk).to_vec();
            let volume = Volume::new("several", Layout::Linear, disks).unwrap();
            assert_eq!(longest_timeout(&volume), longest, "{timeouts:?}");
        }
    }
}
