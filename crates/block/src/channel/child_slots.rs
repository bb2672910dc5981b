//! `ChildSlots`: a drive's share of a channel's child slots, and the parents that wait for one.
//!
//! Owned by a `Member`; used by the splitter (split.rs). A share for each drive keeps a drive that
//! answers nothing from taking the slots that parts for the others need.

use millrace_machine::Machine;

use crate::chain::slot::BioList;

/// A drive's share of a channel's child slots.
pub(crate) struct ChildSlots<M: Machine> {
    pub(crate) free: BioList<M>,
    /// Parents that wait for one.
    pub(crate) stalled: BioList<M>,
}

impl<M: Machine> ChildSlots<M> {
    pub(crate) fn of(free: BioList<M>) -> Self {
        ChildSlots { free, stalled: BioList::new() }
    }
}
