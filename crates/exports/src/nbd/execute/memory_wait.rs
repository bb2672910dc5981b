//! Which connections get a buffer now, and which wait: for their own, their volume,
//! their group, or their turn.
//!
//! Called by execute.rs for every request with payload; asks the pool, by the rules of the
//! `Budget`. A connection that waits receives nothing, so its client waits too; nobody is refused
//! because of somebody else. Whoever waits is tried again by the worker's turn (memory_retry.rs).
//!
//! Invariants: a connection that holds nothing waits on the budget's list, or for its volume; one
//! that holds something is tried again whenever some of that came back, so none is forgotten. On
//! the list the first is tried, and the first of those that may overtake.

use crate::nbd::connection::{Connection, Granted};
use millrace_block::Op;
use millrace_machine::{Machine, Native};

use super::{Core, Taken};
use crate::nbd::memory::budget::{MemoryWait, Waiter};
use crate::nbd::memory::group_parts::{Part, Place};
use crate::nbd::memory::{PoolBuffer, buffer_bytes};
use millrace_nbd::{Errno, Request};

/// How long a request waits for room that those who overtake it may take, once stuck drives keep
/// the rest.
const LONG_NS: u64 = 2_000_000_000;

/// In whose turn a request gets a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// In its own.
    Own,
    /// Before larger first requests that wait.
    Overtakes,
}

/// Why a request gets no buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoBuffer {
    /// There is none now; the connection is tried again.
    Wait,
    /// There is less memory than that in all.
    TooLong,
    /// The volume's drives do not answer and hold all that they may.
    Stuck,
    /// Drives that do not answer, of any volume, hold so much that no room for it is left.
    HeldByStuck,
}

impl Core {
    /// A buffer for the next request of a connection.
    #[inline]
    pub(crate) fn buffer(
        &mut self,
        len_bytes: usize,
        conn: &mut Connection,
        lane: u32,
    ) -> Result<PoolBuffer, NoBuffer> {
        let Some(bytes) = buffer_bytes(len_bytes) else { return Err(NoBuffer::TooLong) };
        let held_bytes = conn.held_bytes + bytes;
        // No other client of the volume holds up a request within the connection's guarantee.
        let is_guaranteed = held_bytes <= self.pool.budget().guarantee_bytes();
        let has_lanes = self.submitter.lanes.count() > 1;
        if has_lanes && !is_guaranteed && !self.lane_may_hold(lane, bytes) {
            return Err(self.wait_for_lane(conn, lane));
        }
        let (limit, turn) = match is_guaranteed {
            true => (usize::MAX, Turn::Own),
            false => self.limit_for(conn, held_bytes, bytes)?,
        };
        match self.pool.take(len_bytes, limit) {
            Some(mut buffer) => {
                conn.held_bytes += buffer.len();
                if turn == Turn::Overtakes {
                    self.pool.begin_overtaking(&mut buffer);
                }
                Ok(buffer)
            }
            // It is the connection's first request once those before have given theirs back.
            None if conn.held_bytes > 0 && !is_guaranteed => Err(self.wait(conn, bytes)),
            None => {
                let budget = self.pool.budget();
                let limit = match is_guaranteed {
                    true => usize::MAX,
                    false if has_waited_long(conn) => budget.patience_limit(bytes),
                    false => budget.first_limit(bytes),
                };
                match self.pool.can_wait(len_bytes, limit) {
                    true => Err(self.wait(conn, bytes)),
                    false => Err(NoBuffer::HeldByStuck),
                }
            }
        }
    }

    /// A buffer for the payload of a request, which counts in the part of its group if a limit of
    /// that holds for the operation: the buffer may have to wait for long. What each connection is
    /// guaranteed is nobody else's, so it does not count.
    #[inline]
    pub(crate) fn payload_buffer(
        &mut self,
        conn: &mut Connection,
        granted: &Granted,
        (op, len_bytes): (Op, usize),
    ) -> Result<PoolBuffer, NoBuffer> {
        let lane = granted.lane;
        let channel = &mut self.submitter.lanes[lane as usize].channel;
        let bytes = buffer_bytes(len_bytes).unwrap_or(usize::MAX);
        let is_guaranteed =
            conn.held_bytes.saturating_add(bytes) <= self.pool.budget().guarantee_bytes();
        if is_guaranteed || !channel.is_limited(granted.group, op) || !self.pool.can_ever(len_bytes)
        {
            return self.buffer(len_bytes, conn, lane);
        }
        let part = Part { group: granted.group, is_read: op == Op::Read };
        let place = match conn.memory_wait {
            MemoryWait::GroupTurn => Place::First,
            _ => Place::Last,
        };
        if !self.pool.budget().parts.take(part, bytes, place) {
            return Err(self.wait_for_group(conn, (part, place), bytes));
        }
        match self.buffer(len_bytes, conn, lane) {
            Ok(mut buffer) => {
                self.pool.enter_part(&mut buffer, part, bytes);
                Ok(buffer)
            }
            Err(none) => {
                self.pool.give_part(part, bytes);
                Err(none)
            }
        }
    }

    /// The connection waits until its group holds less.
    #[cold]
    fn wait_for_group(
        &mut self,
        conn: &mut Connection,
        (part, place): (Part, Place),
        bytes: usize,
    ) -> NoBuffer {
        if conn.memory_wait != MemoryWait::Group {
            // It must not keep others from their turn meanwhile.
            self.end_memory_wait(conn);
            conn.memory_wait = MemoryWait::Group;
            let waiter =
                Waiter { thread: self.pool.thread(), index: conn.index, serial: conn.serial };
            self.pool.join_part_line(part, (waiter, bytes), place);
        }
        NoBuffer::Wait
    }

    /// How much may be mapped in all for a connection to hold more than it is guaranteed, and
    /// whether it overtakes others that wait.
    fn limit_for(
        &mut self,
        conn: &mut Connection,
        held_bytes: usize,
        bytes: usize,
    ) -> Result<(usize, Turn), NoBuffer> {
        if !self.pool.can_ever(bytes) {
            return Err(NoBuffer::TooLong);
        }
        let budget = self.pool.budget();
        let limit = budget.limit(held_bytes);
        let is_crowded = budget.is_wanted();
        if conn.held_bytes == 0 {
            // Its first request: in its turn, whatever it takes, or in that of those of its kind.
            let limit = budget.first_limit(bytes);
            let me = |turn: Waiter| (turn.thread, turn.serial) == (self.pool.thread(), conn.serial);
            if !is_crowded || budget.first().is_none_or(me) {
                return Ok((limit, Turn::Own));
            }
            let of_kind = budget.first_of(budget.first_request(bytes));
            return match budget.may_overtake(bytes) && of_kind.is_none_or(me) {
                true => Ok((limit, Turn::Overtakes)),
                false => Err(self.wait(conn, bytes)),
            };
        }
        if held_bytes > budget.share(held_bytes, self.pool.idle_bytes()) {
            return Err(self.wait(conn, bytes));
        }
        // While others wait for their first, what is mapped may be used, and no more is mapped.
        Ok((if is_crowded { 0 } else { limit }, Turn::Own))
    }

    /// A request for which there is no buffer waits, or is refused.
    #[cold]
    pub(crate) fn without_buffer(
        &mut self,
        conn: &mut Connection,
        granted: &Granted,
        request: &Request,
        none: NoBuffer,
    ) -> Taken {
        match none {
            NoBuffer::Wait => Taken::NoMemory,
            NoBuffer::Stuck => self.refuse_stuck(conn, granted, request),
            NoBuffer::TooLong => {
                let why = "longer than the server's memory-max allows";
                self.refuse(conn, granted, request, (Errno::Enomem, why))
            }
            NoBuffer::HeldByStuck => {
                let why = "drives that do not answer hold too much of the server's memory-max";
                self.refuse(conn, granted, request, (Errno::Enomem, why))
            }
        }
    }

    /// The connection waits for what it holds, or if that is nothing, for its turn; so many bytes
    /// are what it wants.
    #[cold]
    fn wait(&mut self, conn: &mut Connection, bytes: usize) -> NoBuffer {
        if conn.memory_wait == MemoryWait::Group {
            // Its group's limits are gone meanwhile.
            self.end_memory_wait(conn);
        }
        self.counts.payload.memory_waits +=
            u64::from(!matches!(conn.memory_wait, MemoryWait::Own | MemoryWait::Queued));
        if conn.held_bytes > 0 {
            conn.memory_wait = MemoryWait::Own;
            return NoBuffer::Wait;
        }
        if conn.memory_wait != MemoryWait::Queued {
            conn.memory_wait = MemoryWait::Queued;
            let (thread, index, serial) = (self.pool.thread(), conn.index, conn.serial);
            let budget = self.pool.budget();
            budget.join(Waiter { thread, index, serial }, budget.first_request(bytes));
            self.waiters_changed = true;
        }
        NoBuffer::Wait
    }

    /// The connection's request waits no longer.
    #[cold]
    pub(crate) fn end_memory_wait(&mut self, conn: &mut Connection) {
        self.waiters_changed |= conn.memory_wait == MemoryWait::Queued;
        conn.stop_waiting(&mut self.pool);
    }

    /// Whether the started requests of a volume may have so much more of the memory: as much as is
    /// left for others, or its part of a quarter of all.
    fn lane_may_hold(&self, lane: u32, bytes: usize) -> bool {
        let budget = self.pool.budget();
        let threads = self.threads.max(1);
        let held_bytes = self.submitter.lanes[lane as usize].held_bytes;
        let free_bytes = budget.max_bytes().saturating_sub(budget.mapped_bytes());
        let free_bytes = (free_bytes + self.pool.idle_bytes()) / threads;
        let least_bytes = budget.max_bytes() / (4 * threads * self.submitter.lanes.count());
        held_bytes == 0 || held_bytes + bytes <= free_bytes.max(least_bytes)
    }

    #[cold]
    fn wait_for_lane(&mut self, conn: &mut Connection, lane: u32) -> NoBuffer {
        let lane = &mut self.submitter.lanes[lane as usize];
        if lane.overdue > 0 {
            return NoBuffer::Stuck;
        }
        lane.memory_waiters.push(conn.index);
        // It must not keep others from their turn meanwhile.
        self.end_memory_wait(conn);
        conn.memory_wait = MemoryWait::Volume;
        NoBuffer::Wait
    }
}

/// Returns true if a connection has waited for so long that others may be overtaking it all the
/// time.
fn has_waited_long(conn: &Connection) -> bool {
    let since_ns = conn.history.stopped_ns;
    since_ns != 0 && Native::now().saturating_sub(since_ns) > LONG_NS
}

#[cfg(test)]
mod tests;
