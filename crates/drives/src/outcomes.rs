//! `Outcomes`: what a queue has to name, one after the other: requests that it refused, and what
//! its engine has completed.
//!
//! Owns both lists, which are preallocated. Completions are taken from the engine all at once, when
//! those of the last time are used up. Used by the queues of file and Ceph drives.

use millrace_block::{Status, Tag};

/// Refused requests, and completions of type `C` that were taken and not looked at yet.
pub(crate) struct Outcomes<C> {
    refused: Vec<(Tag, Status)>,
    taken: Vec<C>,
    /// How many of `taken` are done with.
    seen: usize,
}

/// One of them.
pub(crate) enum Outcome<C> {
    Refused(Tag, Status),
    Completed(C),
}

impl<C: Copy> Outcomes<C> {
    /// None, with room for those of `depth` requests.
    pub(crate) fn new(depth: usize) -> Outcomes<C> {
        let (refused, taken) = (Vec::with_capacity(depth), Vec::with_capacity(depth));
        Outcomes { refused, taken, seen: 0 }
    }

    /// A request cannot be begun.
    pub(crate) fn refuse(&mut self, tag: Tag, status: Status) {
        self.refused.push((tag, status));
    }

    /// The next one; `refill` puts completions into an empty list.
    #[inline]
    pub(crate) fn next(&mut self, refill: impl FnOnce(&mut Vec<C>)) -> Option<Outcome<C>> {
        if let Some((tag, status)) = self.refused.pop() {
            return Some(Outcome::Refused(tag, status));
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
