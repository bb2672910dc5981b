//! `RequestOutcomes`: the requests that a queue of a file or Ceph drive must complete.
//!
//! Two preallocated lists hold the requests that ended at submission, and the completions from the
//! I/O engine. When all completions are processed, the queue fetches further ones from the engine.

use std::collections::VecDeque;
use std::fmt;

use millrace_block::{DriverData, Moment, Status, Tag};

/// Requests that a queue must complete. `ended` contains requests that were refused or executed at
/// submission. `taken` contains completions of type `C` from the I/O engine.
pub(crate) struct RequestOutcomes<C> {
    ended: VecDeque<(Tag, Status)>,
    taken: Vec<C>,
    seen: usize,
}

pub(crate) enum RequestOutcome<C> {
    Ended(Tag, Status),
    Completed(C),
}

impl<C: Copy> RequestOutcomes<C> {
    pub(crate) fn new(depth: usize) -> RequestOutcomes<C> {
        let (ended, taken) = (VecDeque::with_capacity(depth), Vec::with_capacity(depth));
        RequestOutcomes { ended, taken, seen: 0 }
    }

    #[inline]
    pub(crate) fn end(&mut self, tag: Tag, status: Status) {
        self.ended.push_back((tag, status));
    }

    /// Returns the next request to complete. If none is left, calls `refill` to fetch completions.
    #[inline]
    pub(crate) fn next(&mut self, refill: impl FnOnce(&mut Vec<C>)) -> Option<RequestOutcome<C>> {
        if let Some((tag, status)) = self.ended.pop_front() {
            return Some(RequestOutcome::Ended(tag, status));
        }
        if self.seen == self.taken.len() {
            self.taken.clear();
            self.seen = 0;
            refill(&mut self.taken);
        }
        let completion = self.taken.get(self.seen).copied()?;
        self.seen += 1;
        Some(RequestOutcome::Completed(completion))
    }
}

pub(crate) fn completion_data(moment: Moment, text: fmt::Arguments<'_>) -> DriverData {
    match moment {
        Moment::Issue => DriverData::default(),
        Moment::Complete => DriverData::text(text),
    }
}
