//! A buffer for the next request of a connection, or the reason why there is none now.
//!
//! Called by execute.rs for every request with payload; memory/budget.rs has the rules. A
//! connection that waits receives nothing, so its client waits too; worker/memory_retry.rs tries it
//! again.
//!
//! Invariant: a connection that holds nothing waits in the line, or for its volume. One that holds
//! something is tried again whenever some of that came back, so none is forgotten.

use millrace_block::Op;

use super::{Core, Taken};
use crate::nbd::connection::{Connection, Granted};
use crate::nbd::memory::budget::MemoryPart;
use crate::nbd::memory::waiting_line::{GroupAccount, MemoryWait, Waiter};
use crate::nbd::memory::{PoolBuffer, buffer_bytes};
use millrace_nbd::{Command, Errno, Request};

impl Core {
    /// A buffer of so many bytes for the next request of a connection; without one, what became of
    /// the request.
    #[inline]
    pub(crate) fn buffer(
        &mut self,
        conn: &mut Connection,
        granted: &Granted,
        request: &Request,
        len_bytes: usize,
    ) -> Result<PoolBuffer, Taken> {
        let bytes = buffer_bytes(len_bytes).unwrap_or(usize::MAX / 2);
        let (thread, index, serial) = (self.pool.thread(), conn.index, conn.serial);
        let mut waiter = Waiter { thread, index, serial, bytes, account: None };
        let (mut part, held_bytes) = (MemoryPart::Window, conn.held_bytes + bytes);
        if held_bytes > self.pool.budget().window_bytes {
            part = MemoryPart::Shared;
            if !self.lane_may_hold(granted, bytes) {
                return Err(self.wait_for_lane(conn, granted, request));
            }
            let share_bytes = self.pool.budget().share_bytes(self.pool.idle_bytes());
            if conn.held_bytes > 0 && held_bytes > share_bytes {
                return Err(self.wait(conn, waiter));
            }
            waiter.account = self.account(granted, request);
        }
        let Some(buffer) = self.pool.take(waiter, part) else {
            return Err(match self.pool.budget().refusal(bytes, part) {
                Some(why) => self.refuse(conn, granted, request, (Errno::Enomem, why)),
                None => self.wait(conn, waiter),
            });
        };
        conn.held_bytes = held_bytes;
        Ok(buffer)
    }

    /// Returns true if the started requests of a volume may have so much more of the memory: no
    /// more in all than what is left for other volumes, so that a stuck one leaves some.
    fn lane_may_hold(&self, granted: &Granted, bytes: usize) -> bool {
        let held_bytes = self.submitter.lanes[granted.lane as usize].held_bytes;
        let free_bytes = self.pool.budget().free_bytes() + self.pool.idle_bytes();
        let is_alone = self.submitter.lanes.count() == 1 || held_bytes == 0;
        is_alone || held_bytes + bytes <= free_bytes / self.threads
    }

    /// The account of a read or write, if a limit of its group holds for it: the request may have
    /// to wait with its buffer.
    fn account(&mut self, granted: &Granted, request: &Request) -> Option<GroupAccount> {
        let (lane, group) = (granted.lane as usize, granted.group);
        let op = match request.command {
            Command::Read => Op::Read,
            Command::Write => Op::Write,
            _ => return None,
        };
        let is_limited = self.submitter.lanes[lane].channel.is_limited(group, op);
        is_limited.then_some(GroupAccount { group, is_read: op == Op::Read })
    }

    /// The connection waits for what it holds, or if that is nothing, in the line.
    #[cold]
    fn wait(&mut self, conn: &mut Connection, waiter: Waiter) -> Taken {
        let is_new = conn.memory_wait == MemoryWait::None && waiter.account.is_none();
        self.counts.memory_waits += u64::from(is_new);
        if conn.held_bytes > 0 {
            conn.memory_wait = MemoryWait::Buffers;
        } else if conn.memory_wait != MemoryWait::Queued {
            conn.memory_wait = MemoryWait::Queued;
            self.pool.budget().change_line(|line| line.waiters.push_back(waiter));
        }
        Taken::NoMemory
    }

    /// The connection waits for its volume, or is refused if that does not answer.
    #[cold]
    fn wait_for_lane(
        &mut self,
        conn: &mut Connection,
        granted: &Granted,
        request: &Request,
    ) -> Taken {
        let lane = granted.lane as usize;
        if self.submitter.lanes[lane].overdue > 0 {
            return self.refuse_stuck(conn, granted, request);
        }
        self.submitter.lanes[lane].memory_waiters.push(conn.index);
        // The connection must not keep others from their turn meanwhile.
        conn.stop_waiting(&mut self.pool);
        conn.memory_wait = MemoryWait::Buffers;
        Taken::NoMemory
    }
}

#[cfg(test)]
mod tests;
