//! `Plug`: the private list in which a channel gathers bios for one drive before it submits them.
//!
//! A channel owns one plug for each drive of its volume, so adding a bio takes no lock and no
//! atomic operation. A bio is merged with the last one of the same drive or appended, in constant
//! time. Kernel counterpart: `struct blk_plug`.

use millrace_machine::Machine;

use crate::bio::limits::QueueLimits;
use crate::chain::merge::{MergeKind, touch, try_merge};
use crate::chain::slot::{BioList, BioRef};

pub(crate) struct Plug<M: Machine> {
    /// All bio chains (bios merged into one future request) of the plug, except the last one.
    pub(crate) older: BioList<M>,
    /// The last bio chain (bios merged into one future request). Kept outside `older`, so that a
    /// front merge can replace the first bio of the chain.
    pub(crate) last: Option<BioRef<M>>,
    /// Number of bios, including merged ones.
    pub(crate) bios: u32,
}

impl<M: Machine> Plug<M> {
    pub(crate) fn new() -> Self {
        Plug { older: BioList::new(), last: None, bios: 0 }
    }

    #[inline]
    pub(crate) fn push(&mut self, bio: BioRef<M>) {
        self.bios += 1;
        if let Some(last) = self.last.replace(bio) {
            self.older.push_back(last);
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

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.last.is_none() && self.older.is_empty()
    }

    /// Returns the plug's list of bio chains (bios merged into one future request), in order of
    /// submission. The caller takes bio chains out; those that the drive refuses stay plugged.
    #[inline]
    pub(crate) fn list(&mut self) -> &mut BioList<M> {
        if let Some(last) = self.last.take() {
            self.older.push_back(last);
        }
        &mut self.older
    }
}
