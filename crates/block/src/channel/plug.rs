//! `Plug`: the private list in which a channel gathers bios of one drive before it goes to its
//! queues.
//!
//! Owned by a channel, one for each drive of its volume: no lock, no atomic. A bio is merged with
//! the last one of the same drive or appended: O(1). Kernel counterpart: `struct blk_plug`.

use millrace_machine::Machine;

use crate::bio::limits::QueueLimits;
use crate::chain::merge::{Merged, touch, try_merge};
use crate::chain::slot::{BioList, BioRef, Slot};

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

    /// Merges with the last bio if they touch and fit, else appends.
    #[inline(always)]
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
        self.last.is_none() && self.list.is_empty()
    }

    /// How many bios were added since the last call.
    #[inline]
    pub(crate) fn take_count(&mut self) -> u32 {
        core::mem::take(&mut self.bios)
    }

    /// Whether it holds no more than one chain, the last.
    #[inline(always)]
    pub(crate) fn is_short(&self) -> bool {
        self.list.is_empty()
    }

    /// The last chain.
    #[inline(always)]
    pub(crate) fn take_last(&mut self) -> Option<BioRef<M>> {
        self.last.take()
    }

    /// Returns the bio from [`Plug::take_last`] to the list.
    pub(crate) fn put_back(&mut self, bio: BioRef<M>) {
        self.list.push_back(bio);
    }

    /// All of it, in order of submission. What a queue refuses is left there for the next time.
    #[inline]
    pub(crate) fn list(&mut self) -> &mut BioList<M> {
        if let Some(last) = self.last.take() {
            self.list.push_back(last);
        }
        &mut self.list
    }
}
