//! `UnflushedWrites`: whether a drive has answered a write that no successful flush covers yet.
//!
//! One for each drive, shared by its connections. Writes only look at it, but for the first one
//! after each flush, so that threads do not pass a cache line around for each I/O. Called by
//! `link.rs` with answers and by `queue.rs` with flushes; read when a connection is lost and when
//! the daemon stops.
//!
//! A flush covers the writes that were answered before it was handed over. So flushes are numbered
//! from 1 as they are handed over, and a write that is answered needs the flush after those.

use std::sync::atomic::{AtomicU64, Ordering};

/// Flushes handed over, needed and done, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct UnflushedWrites {
    /// The last flush that was handed over.
    begun: AtomicU64,
    /// The first flush that covers all writes that were answered.
    needed: AtomicU64,
    /// The last flush that succeeded.
    done: AtomicU64,
}

impl UnflushedWrites {
    /// A write that is not durable was answered. SeqCst here and below: a write and the loss of its
    /// connection see each other, one way or the other.
    #[inline]
    pub(crate) fn note_write(&self) {
        let needed = self.begun.load(Ordering::SeqCst) + 1;
        if self.needed.load(Ordering::SeqCst) < needed {
            self.needed.fetch_max(needed, Ordering::SeqCst);
        }
    }

    /// A flush is handed over; returns its number.
    pub(crate) fn begin_flush(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The flush of this number has succeeded.
    pub(crate) fn end_flush(&self, number: u64) {
        self.done.fetch_max(number, Ordering::SeqCst);
    }

    /// Whether a write was answered that no successful flush covers.
    pub(crate) fn exist(&self) -> bool {
        self.needed.load(Ordering::SeqCst) > self.done.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_covers_what_was_answered_before_it_was_handed_over() {
        let writes = UnflushedWrites::default();
        assert!(!writes.exist());
        let empty = writes.begin_flush();
        writes.note_write();
        writes.end_flush(empty);
        assert!(writes.exist(), "the write came behind the flush");
        let (failed, covers) = (writes.begin_flush(), writes.begin_flush());
        assert!(failed < covers && writes.exist());
        writes.end_flush(covers);
        assert!(!writes.exist());
        writes.end_flush(failed);
        writes.note_write();
        assert!(writes.exist());
    }
}
