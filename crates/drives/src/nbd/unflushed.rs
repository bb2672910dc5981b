//! `UnflushedWrites`: tracks whether a drive has acknowledged a write that no successful flush
//! covers yet.
//!
//! All connections of a drive share one tracker. Only the first write after each flush changes it;
//! other writes only read it, so that threads do not contend for its cache line.
//!
//! A flush covers the writes that were acknowledged before it was submitted. So flushes are
//! numbered from 1 in the order of submission, and an acknowledged write is covered by the next
//! flush to be submitted.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(crate) struct UnflushedWrites {
    /// Sequence number of the last flush submitted.
    begun: AtomicU64,
    /// Sequence number of the first flush that covers all acknowledged writes.
    needed: AtomicU64,
    /// Sequence number of the last flush that succeeded.
    done: AtomicU64,
}

impl UnflushedWrites {
    /// Records that a non-durable write was acknowledged. SeqCst here and below: if a connection's
    /// loss is handled at the same time, at least one of the two threads sees the other's change.
    #[inline]
    pub(crate) fn note_write(&self) {
        let needed = self.begun.load(Ordering::SeqCst) + 1;
        if self.needed.load(Ordering::SeqCst) < needed {
            self.needed.fetch_max(needed, Ordering::SeqCst);
        }
    }

    pub(crate) fn begin_flush(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn end_flush(&self, number: u64) {
        self.done.fetch_max(number, Ordering::SeqCst);
    }

    /// Returns true if an acknowledged write is not covered by a successful flush.
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
