//! `Plug`: the private list in which a channel gathers bios for one drive before it submits them.
//!
//! A channel owns one plug for each drive of its volume, so adding a bio takes no lock and no
//! atomic operation. A bio is merged with the last one of the same drive or appended, in constant
//! time. Kernel counterpart: `struct blk_plug`.

use millrace_machine::Machine;

use crate::bio::limits::QueueLimits;
use crate::chain::merge::{MergeKind, touch, try_merge};
use crate::chain::slot::{BioList, BioRef, BioSlot};

pub(crate) struct Plug<M: Machine> {
    list: BioList<M>,
    /// The last bio chain (bios merged into one future request). Kept outside `list`, so that a
    /// front merge can replace the first bio of the chain.
    last: Option<BioRef<M>>,
    /// Number of bios, including merged ones.
    bios: u32,
}

impl<M: Machine> Plug<M> {
    pub(crate) fn new() -> Self {
        Plug { list: BioList::new(), last: None, bios: 0 }
    }

    #[inline]
    pub(crate) fn push(&mut self, bio: BioRef<M>) {
        self.bios += 1;
        if let Some(last) = self.last.replace(bio) {
            self.list.push_back(last);
        }
    }

    /// Merges a bio with the last bio chain (bios merged into one future request) if the two are
    /// adjacent and fit into one request. Otherwise appends the bio.
    #[inline(always)]
    pub(crate) fn merge_or_push(
        &mut self,
        bio: BioRef<M>,
        limits: &QueueLimits,
    ) -> Option<MergeKind> {
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

    pub(crate) fn last(&self) -> Option<&BioSlot<M>> {
        self.last.as_deref()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.last.is_none() && self.list.is_empty()
    }

    #[inline]
    pub(crate) fn take_count(&mut self) -> u32 {
        core::mem::take(&mut self.bios)
    }

    /// Returns true if the plug holds at most one bio chain (bios merged into one future request).
    #[inline(always)]
    pub(crate) fn is_short(&self) -> bool {
        self.list.is_empty()
    }

    #[inline(always)]
    pub(crate) fn take_last(&mut self) -> Option<BioRef<M>> {
        self.last.take()
    }

    pub(crate) fn put_back(&mut self, bio: BioRef<M>) {
        self.list.push_back(bio);
    }

    /// Returns the plug's list of bio chains (bios merged into one future request), in order of
    /// submission. The caller takes bio chains out; those that the drive refuses stay plugged.
    #[inline]
    pub(crate) fn list(&mut self) -> &mut BioList<M> {
        if let Some(last) = self.last.take() {
            self.list.push_back(last);
        }
        &mut self.list
    }
}
