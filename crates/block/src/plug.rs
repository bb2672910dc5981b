//! `Plug`: the private list in which a channel gathers bios of one drive before it goes to its queues.
//!
//! Owned by a channel, one for each drive of its volume: no lock, no atomic. A bio is merged with the
//! last one of the same drive or appended: O(1). Kernel counterpart: `struct blk_plug`.

use millrace_machine::Machine;

use crate::limits::QueueLimits;
use crate::merge::{Merged, touch, try_merge};
use crate::slot::{BioList, BioRef, Slot};

/// Bios of one drive, gathered.
pub(crate) struct Plug<M: Machine> {
    list: BioList<M>,
    /// The last chain, apart so that a front merge can replace its head.
    last: Option<BioRef<M>>,
    /// Bios in it, merged ones too.
    bios: u32,
}

impl<M: Machine> Plug<M> {
    pub(crate) fn new() -> Self {
        Plug { list: BioList::new(), last: None, bios: 0 }
    }

    /// Appends without looking for a merge.
    #[inline]
    pub(crate) fn push(&mut self, bio: BioRef<M>) {
        self.bios += 1;
        if let Some(last) = self.last.replace(bio) {
            self.list.push_back(last);
        }
    }

    /// Merges with the last bio if they touch, else appends.
    #[inline]
    pub(crate) fn merge_or_push(&mut self, bio: BioRef<M>, limits: &QueueLimits) -> Option<Merged> {
        let bio = match &mut self.last {
            Some(last) if touch(last, &bio) => match try_merge(last, bio, limits) {
                Ok(merged) => {
                    self.bios += 1;
                    return Some(merged);
                }
                Err(bio) => bio,
            },
            _ => bio,
        };
        self.push(bio);
        None
    }

    /// The chain that was touched last.
    pub(crate) fn last(&self) -> Option<&Slot<M>> {
        self.last.as_deref()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// How many bios were added since the last call.
    #[inline]
    pub(crate) fn take_count(&mut self) -> u32 {
        core::mem::take(&mut self.bios)
    }

    /// All of it, in order of submission.
    #[inline]
    pub(crate) fn take(&mut self) -> BioList<M> {
        let mut list = self.list.take();
        if let Some(last) = self.last.take() {
            list.push_back(last);
        }
        list
    }

    /// Puts back what a queue refused, in front.
    pub(crate) fn put_back(&mut self, mut refused: BioList<M>) {
        let mut newer = self.take();
        refused.append(&mut newer);
        self.list = refused;
        self.last = self.list.pop_back();
    }
}
