//! Retries connections that wait for memory, on this thread and on the others.
//!
//! A connection is retried in two cases: buffers of the connection or of its volume were freed, or
//! the connection is next in the waiting line for its size class (memory/budget.rs, `next`).
//!
//! Invariants: a connection in the waiting line is open, and its state is `Queued`. A thread that
//! wakes the other threads because memory was freed also runs another loop iteration itself. A
//! connection of that thread may wait for the freed memory, too.

use super::Worker;
use crate::nbd::memory::waiting_line::{MemoryWait, SIZE_CLASSES};

impl Worker {
    pub(crate) fn retry_memory_waits(&mut self) {
        while let Some(index) = self.core.submitter.retry.pop() {
            let conn = self.conns[index].as_mut();
            if let Some(conn) = conn.filter(|conn| conn.memory_wait != MemoryWait::None) {
                self.core.take_input(conn);
            }
        }
        if self.core.pool.budget.has_waiters() {
            // Connections with large requests are retried last, so that they do not take all the
            // free memory.
            (0..SIZE_CLASSES).for_each(|class| self.retry_line(class));
        }
    }

    /// Retries connections of this thread that want buffers of size class `class`, in the order of
    /// the waiting line, until one of them has to wait again.
    fn retry_line(&mut self, class: usize) {
        while let Some(turn) = self.core.pool.budget.next(class)
            && turn.thread == self.number
        {
            let conn =
                self.conns[turn.index].as_mut().expect("connections in the waiting line are open");
            assert_eq!(
                conn.serial, turn.serial,
                "connections leave the waiting line before they close"
            );
            self.core.take_input(conn);
            if conn.memory_wait == MemoryWait::Queued {
                return;
            }
        }
    }

    /// If connections wait for memory, unmaps memory that this thread does not use. Wakes the other
    /// threads if mapped memory or the line of waiting connections has changed since the last
    /// wake-up.
    pub(crate) fn share_memory(&mut self) {
        if self.core.pool.budget.is_wanted() {
            self.core.pool.trim_for_others();
            if self.core.pool.budget.take_news() {
                self.ring_others();
            }
        }
    }
}
