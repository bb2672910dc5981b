//! Connections that wait for memory try again, here and on the other threads.
//!
//! Called by the worker's turn. A connection is tried again when its volume, itself, its group or
//! its turn on the budget's list has given it reason to (memory_wait.rs says which); what this
//! thread has to spare goes back to the system while somebody waits, and the other threads hear of
//! it.
//!
//! Invariant: whatever changes what another thread waits for is noted before that thread is rung.

use super::Worker;
use crate::nbd::memory::budget::{Budget, FirstRequest, MemoryWait, Waiter};
use crate::nbd::memory::group_parts::Next;

impl Worker {
    /// Connections that wait for memory try again, if they have reason to.
    pub(crate) fn retry_memory_waits(&mut self) {
        while let Some(index) = self.core.submitter.retry.pop() {
            let conn = self.conns[index].as_mut();
            let Some(conn) = conn.filter(|conn| conn.memory_wait != MemoryWait::None) else {
                continue;
            };
            self.core.take_input(conn);
            conn.touch(&mut self.touched);
        }
        self.retry_part_waits();
        // Larger ones last: what is free now should not be theirs alone.
        retry_line(self, |budget| budget.first_of(FirstRequest::Little));
        retry_line(self, |budget| budget.first_of(FirstRequest::Medium));
        retry_line(self, Budget::first);
    }

    /// Connections that wait for their groups' parts go on, each in its turn, as far as there is
    /// room; the other threads hear of it if it is theirs.
    fn retry_part_waits(&mut self) {
        while self.core.pool.budget().parts.is_wanted() {
            match self.core.pool.budget().parts.next(self.number) {
                Next::Nobody => return,
                Next::Elsewhere => {
                    if self.core.pool.take_part_freed() {
                        self.ring_others();
                    }
                    return;
                }
                Next::Here(turn) => {
                    // Off its line now: those behind it may go on, wherever they are.
                    self.core.pool.note_part_freed();
                    let conn = self.conns[turn.index].as_mut();
                    let Some(conn) = conn.filter(|conn| {
                        conn.serial == turn.serial && conn.memory_wait == MemoryWait::Group
                    }) else {
                        continue;
                    };
                    conn.memory_wait = MemoryWait::GroupTurn;
                    self.core.take_input(conn);
                    if conn.memory_wait == MemoryWait::GroupTurn {
                        // The connection takes no request now: replies have to leave before.
                        conn.memory_wait = MemoryWait::None;
                    }
                    conn.touch(&mut self.touched);
                }
            }
        }
    }

    /// While somebody waits: gives back what is unused here, and tells the other threads if
    /// something changed.
    pub(crate) fn share_memory(&mut self) {
        let changes = std::mem::take(&mut self.core.waiters_changed);
        if self.core.pool.budget().is_wanted() {
            let returned = self.core.pool.trim_for_others();
            if changes || returned {
                self.ring_others();
            }
        }
    }

    /// Looks at what other threads did with ranges, if they did something.
    pub(crate) fn follow_changes(&mut self) {
        let changes = self.shared.changes();
        if changes != self.seen_changes {
            self.seen_changes = changes;
            self.core.submitter.follow_ranges();
        }
    }

    /// Tells all other threads that there is something to look at.
    pub(crate) fn ring_others(&self) {
        // Before the bells. This thread has one more turn, too: what it gave back may be its own.
        self.shared.note_change();
        let others = self.shared.mailboxes.iter().enumerate();
        others.filter(|(thread, _)| *thread != self.number).for_each(|(_, mailbox)| mailbox.ring());
    }
}

/// Those on the budget's list go on, each in its turn, until one has to wait further or is another
/// thread's.
fn retry_line(worker: &mut Worker, first: fn(&Budget) -> Option<Waiter>) {
    while let Some(turn) = first(worker.core.pool.budget()) {
        if turn.thread != worker.number {
            return;
        }
        let conn = worker.conns[turn.index].as_mut();
        let Some(conn) = conn
            .filter(|conn| conn.serial == turn.serial && conn.memory_wait == MemoryWait::Queued)
        else {
            worker.core.pool.budget().leave(turn.thread, turn.serial);
            continue;
        };
        worker.core.take_input(conn);
        conn.touch(&mut worker.touched);
        if conn.memory_wait == MemoryWait::Queued {
            return;
        }
    }
}
