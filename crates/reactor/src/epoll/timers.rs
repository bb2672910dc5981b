//! The timers of the epoll back end: a heap of deadlines and keys.
//!
//! If a timer is cancelled, its entry becomes stale. Stale entries are removed when they reach the
//! top of the heap, or all at once when they outnumber the live entries.

use crate::table::{OperationKey, OperationPhase, Table};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Deadlines in `CLOCK_MONOTONIC` nanoseconds, earliest first.
#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(u64, OperationKey)>>,
    stale: usize,
}

impl Timers {
    pub(crate) fn insert(&mut self, deadline_ns: u64, key: OperationKey) {
        self.heap.push(Reverse((deadline_ns, key)));
    }

    /// Counts a cancelled timer. Removes cancelled timers from the heap once they are the majority.
    pub(crate) fn note_cancelled(&mut self, table: &mut Table) {
        self.stale += 1;
        if self.stale > 64 && self.stale * 2 > self.heap.len() {
            self.heap.retain(|Reverse((_, key))| is_live(table, *key));
            self.stale = 0;
        }
    }

    pub(crate) fn next(&mut self, table: &mut Table) -> Option<u64> {
        while let Some(&Reverse((deadline_ns, key))) = self.heap.peek() {
            if is_live(table, key) {
                return Some(deadline_ns);
            }
            self.heap.pop();
            self.stale = self.stale.saturating_sub(1);
        }
        None
    }

    pub(crate) fn expire(&mut self, now_ns: u64, table: &mut Table) {
        while self.next(table).is_some_and(|deadline_ns| deadline_ns <= now_ns) {
            if let Some(Reverse((_, key))) = self.heap.pop() {
                table.complete(key, 0, 0);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

fn is_live(table: &mut Table, key: OperationKey) -> bool {
    table.get(key).is_some_and(|slot| slot.phase == OperationPhase::Timing)
}
