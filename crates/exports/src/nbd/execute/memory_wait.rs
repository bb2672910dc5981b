//! Takes a payload buffer for a connection's next request, or makes the connection wait for one.
//!
//! memory/budget.rs has the rules for sharing the memory. The server receives nothing from a
//! waiting connection, so its client waits too. worker/memory_retry.rs retries the request.
//!
//! Invariant: no connection waits forever. A waiting connection is retried as follows:
//! - If the connection holds buffers, whenever one of these buffers is freed.
//! - If its volume holds too much memory, whenever a request of the volume ends.
//! - Otherwise, when its turn in the waiting line comes (memory/waiting_line.rs).

use millrace_block::Op;

use super::{ClientRequest, TakeResult, WorkerContext};
use crate::nbd::connection::Connection;
use crate::nbd::memory::budget::MemoryPart;
use crate::nbd::memory::waiting_line::{GroupAccount, MemoryWait, MemoryWaiter};
use crate::nbd::memory::{PoolBuffer, buffer_bytes};
use millrace_nbd::{Command, Errno};

impl WorkerContext {
    /// Returns a buffer of `len_bytes` for the connection's next request. The error says whether
    /// the request is refused or the connection waits.
    #[inline]
    pub(crate) fn buffer(
        &mut self,
        conn: &mut Connection,
        request: ClientRequest<'_>,
        len_bytes: usize,
    ) -> Result<PoolBuffer, TakeResult> {
        let bytes = buffer_bytes(len_bytes).unwrap_or(usize::MAX / 2);
        let (thread, index, serial) = (self.pool.thread, conn.index, conn.serial);
        let mut waiter = MemoryWaiter { thread, index, serial, bytes, account: None };
        let (mut part, held_bytes) = (MemoryPart::Window, conn.held_bytes + bytes);
        if held_bytes > self.pool.budget.window_bytes {
            part = MemoryPart::Shared;
            if !self.lane_may_hold(request.granted.lane, bytes) {
                return Err(self.wait_for_lane(conn, request));
            }
            let share_bytes = self.pool.budget.share_bytes(self.pool.idle_bytes());
            if conn.held_bytes > 0 && held_bytes > share_bytes {
                return Err(self.wait(conn, waiter));
            }
            waiter.account = self.account(request);
        }
        let Some(buffer) = self.pool.take(waiter, part) else {
            return Err(match self.pool.budget.refusal(bytes, part) {
                Some(why) => self.refuse(conn, request, (Errno::Enomem, why)),
                None => self.wait(conn, waiter),
            });
        };
        conn.held_bytes = held_bytes;
        Ok(buffer)
    }

    /// Returns true if the volume's requests on this thread may take `bytes` more memory. The limit
    /// is the free memory divided by the number of threads, so that a stuck volume cannot take all
    /// memory. A thread's only volume, and a volume that holds no memory, have no limit.
    fn lane_may_hold(&self, lane: u32, bytes: usize) -> bool {
        let held_bytes = self.submitter.lanes[lane as usize].held_bytes;
        let free_bytes = self.pool.budget.free_bytes() + self.pool.idle_bytes();
        let is_alone = self.submitter.lanes.count() == 1 || held_bytes == 0;
        is_alone || held_bytes + bytes <= free_bytes / self.threads
    }

    /// Returns the memory account of the request's group, if a limit of the group applies to the
    /// request. A request keeps its buffer while it waits for such a limit.
    fn account(&mut self, request: ClientRequest<'_>) -> Option<GroupAccount> {
        let (lane, group) = (request.granted.lane as usize, request.granted.group);
        let op = match request.command {
            Command::Read => Op::Read,
            Command::Write => Op::Write,
            _ => return None,
        };
        let is_limited = self.submitter.lanes[lane].channel.is_limited(group, op);
        is_limited.then_some(GroupAccount { group, is_read: op == Op::Read })
    }

    /// Makes a connection wait for payload memory. A connection that holds buffers waits until one
    /// of them is freed; any other connection joins the server's waiting line.
    #[cold]
    fn wait(&mut self, conn: &mut Connection, waiter: MemoryWaiter) -> TakeResult {
        let is_new = conn.memory_wait == MemoryWait::None;
        let is_short = is_new && !self.pool.budget.is_own_account_full(&waiter);
        self.counts.memory_waits += u64::from(is_short);
        if conn.held_bytes > 0 {
            conn.memory_wait = MemoryWait::Buffers;
        } else if conn.memory_wait != MemoryWait::Queued {
            conn.memory_wait = MemoryWait::Queued;
            self.pool.budget.change_line(|line| line.waiters.push_back(waiter));
        }
        TakeResult::NoMemory
    }

    /// Makes the connection wait for memory that other requests of its volume hold, or refuses the
    /// request if the volume does not answer.
    #[cold]
    fn wait_for_lane(&mut self, conn: &mut Connection, request: ClientRequest<'_>) -> TakeResult {
        let lane = request.granted.lane as usize;
        if self.submitter.lanes[lane].overdue > 0 {
            return self.refuse_stuck(conn, request);
        }
        self.submitter.lanes[lane].memory_waiters.push(conn.index);
        // The connection waits for memory that requests of its volume hold. Connections to other
        // volumes must not wait behind it, so the connection leaves the server's waiting line for
        // memory.
        conn.stop_waiting(&mut self.pool);
        conn.memory_wait = MemoryWait::Buffers;
        TakeResult::NoMemory
    }
}

#[cfg(test)]
mod tests;
