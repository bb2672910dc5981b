//! `ChildSlots`: bio slots that a channel reserves for one drive, and the split bios that wait for
//! such a slot.
//!
//! Each part of a split bio takes a bio slot. Each drive has its own slots, so a drive that does
//! not answer cannot use up another drive's slots. Groups with waiting bios take turns, so the
//! large I/Os of one group do not delay all I/Os of another group. Owned by a `VolumeMember`; used
//! by split.rs.

use alloc::collections::VecDeque;

use millrace_machine::Machine;

use crate::bio::group_id::GroupId;
use crate::chain::slot::{BioList, BioRef};

pub(crate) struct ChildSlots<M: Machine> {
    pub(crate) free: BioList<M>,
    /// Split bios that wait for a free bio slot for their next part: one list for each group, in
    /// the order in which groups are served. No list is empty.
    stalled: VecDeque<(GroupId, BioList<M>)>,
}

impl<M: Machine> ChildSlots<M> {
    pub(crate) fn of(free: BioList<M>) -> Self {
        ChildSlots { free, stalled: VecDeque::new() }
    }

    /// Adds a split bio to the bios of its group that wait for a free bio slot: in front if some of
    /// its parts for this drive were already made, otherwise at the end.
    pub(crate) fn stall(&mut self, parent: BioRef<M>) {
        let group = parent.bio.account_key.group;
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

    pub(crate) fn has_stalled(&self, group: GroupId) -> bool {
        self.stalled.iter().any(|(of, _)| *of == group)
    }

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

    pub(crate) fn leak(&mut self) {
        self.stalled.iter_mut().for_each(|(_, list)| list.leak());
    }
}
