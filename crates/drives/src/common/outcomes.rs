//! `Outcomes`: what a queue has to name, one after the other: requests that ended as they came,
//! and what its engine has completed.
//!
//! Owns both lists, which are preallocated. Completions are taken from the engine all at once, when
//! those of the last time are used up. Used by the queues of file and Ceph drives.

use std::collections::VecDeque;

use millrace_block::{Status, Tag};

/// Requests that have ended, refused or carried out at once, and completions of type `C` that were
/// taken and not looked at yet.
pub(crate) struct Outcomes<C> {
    ended: VecDeque<(Tag, Status)>,
    taken: Vec<C>,
    /// How many of `taken` are done with.
    seen: usize,
}

/// One of them.
pub(crate) enum Outcome<C> {
    Ended(Tag, Status),
    Completed(C),
}

impl<C: Copy> Outcomes<C> {
    /// None, with room for those of `depth` requests.
    pub(crate) fn new(depth: usize) -> Outcomes<C> {
        let (ended, taken) = (VecDeque::with_capacity(depth), Vec::with_capacity(depth));
        Outcomes { ended, taken, seen: 0 }
    }

    /// A request has ended as it came: it cannot be begun, or is done already.
    #[inline]
    pub(crate) fn end(&mut self, tag: Tag, status: Status) {
        self.ended.push_back((tag, status));
    }

    /// The next one; `refill` puts completions into an empty list.
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
