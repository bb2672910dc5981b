//! `Outcomes`: lists of the requests that a queue must complete, those that ended at submission and
//! those that its I/O engine has completed.
//!
//! `Outcomes` owns both lists, which are preallocated. When all completions of the list are
//! processed, the queue fetches all available ones from the engine. The queues of file and Ceph
//! drives use it.

use std::collections::VecDeque;
use std::fmt;

use millrace_block::{DriverData, Moment, Status, Tag};

/// Requests that ended at submission (refused, or executed at once), and completions of type `C`
/// that were taken from the engine and not processed yet.
pub(crate) struct Outcomes<C> {
    ended: VecDeque<(Tag, Status)>,
    taken: Vec<C>,
    /// Number of entries of `taken` that are already processed.
    seen: usize,
}

/// One request to complete.
pub(crate) enum Outcome<C> {
    Ended(Tag, Status),
    Completed(C),
}

impl<C: Copy> Outcomes<C> {
    /// Creates empty lists with room for `depth` requests.
    pub(crate) fn new(depth: usize) -> Outcomes<C> {
        let (ended, taken) = (VecDeque::with_capacity(depth), Vec::with_capacity(depth));
        Outcomes { ended, taken, seen: 0 }
    }

    /// Records a request that ended at submission, because it was refused or executed at once.
    #[inline]
    pub(crate) fn end(&mut self, tag: Tag, status: Status) {
        self.ended.push_back((tag, status));
    }

    /// Returns the next request to complete. Calls `refill` to put completions into the list when
    /// it is empty.
    #[inline]
    pub(crate) fn next(&mut self, refill: impl FnOnce(&mut Vec<C>)) -> Option<Outcome<C>> {
        if let Some((tag, status)) = self.ended.pop_front() {
            return Some(Outcome::Ended(tag, status));
        }
        if self.seen == self.taken.len() {
            self.taken.clear();
            self.seen = 0;
            refill(&mut self.taken);
        }
        let completion = self.taken.get(self.seen).copied()?;
        self.seen += 1;
        Some(Outcome::Completed(completion))
    }
}

/// Returns trace data that only the completion of a request has.
pub(crate) fn completion_data(moment: Moment, text: fmt::Arguments<'_>) -> DriverData {
    match moment {
        Moment::Issue => DriverData::default(),
        Moment::Complete => DriverData::text(text),
    }
}
