//! `ChildSlots`: a drive's share of a channel's child slots, and the parents that wait for one.
//!
//! Owned by a `Member`; used by the splitter (split.rs). A share for each drive keeps a drive that
//! answers nothing from taking the slots that parts for the others need. Groups take turns: the
//! large I/Os of one are not all before those of another.

use alloc::collections::VecDeque;

use millrace_machine::Machine;

use crate::bio::group_id::GroupId;
use crate::chain::slot::{BioList, BioRef};

/// A drive's share of a channel's child slots.
pub(crate) struct ChildSlots<M: Machine> {
    pub(crate) free: BioList<M>,
    /// Parents that wait for one, by group; the group whose turn is next comes first. No list is
    /// empty.
    stalled: VecDeque<(GroupId, BioList<M>)>,
}

impl<M: Machine> ChildSlots<M> {
    pub(crate) fn of(free: BioList<M>) -> Self {
        ChildSlots { free, stalled: VecDeque::new() }
    }

    /// A parent waits for a slot: before others of its group if it has parts for the drive already.
    pub(crate) fn stall(&mut self, parent: BioRef<M>) {
        let group = parent.bio.payer.group;
        let place = self.stalled.iter().position(|(of, _)| *of == group);
        let place = place.unwrap_or_else(|| {
            self.stalled.push_back((group, BioList::new()));
            self.stalled.len() - 1
        });
        let list = &mut self.stalled[place].1;
        match parent.dev_sector > 0 {
            true => list.push_front(parent),
            false => list.push_back(parent),
        }
    }

    /// Returns true if no slot is left for another part.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Returns true if parents of a group wait.
    pub(crate) fn has_stalled(&self, group: GroupId) -> bool {
        self.stalled.iter().any(|(of, _)| *of == group)
    }

    /// The parent that a free slot is for, if there is one and some parent waits.
    pub(crate) fn next_stalled(&mut self) -> Option<BioRef<M>> {
        if self.free.is_empty() {
            return None;
        }
        let (group, mut list) = self.stalled.pop_front()?;
        let parent = list.pop_front();
        if !list.is_empty() {
            self.stalled.push_back((group, list));
        }
        parent
    }

    /// Forgets the parents that wait: only for a `BioSet` that is leaked.
    pub(crate) fn leak(&mut self) {
        self.stalled.iter_mut().for_each(|(_, list)| list.leak());
    }
}
