//! `Fair`: shares of a drive by weights of groups.
//!
//! Start-time fair queueing over a cost model, one list for each group at each hardware queue, with
//! no lock and no written line shared per I/O; see share.rs. Holds back no more than it must: while
//! one group uses the drive alone, nothing. Kernel counterpart: block/bfq-iosched.c,
//! block/blk-iocost.c.

use alloc::boxed::Box;
use alloc::sync::Arc;

use millrace_machine::Machine;

use crate::group::Groups;
use crate::queue::scheduler::cost::CostModel;
use crate::queue::scheduler::share::depth::Policy;
use crate::queue::scheduler::share::{DriveParts, Shared};
use crate::queue::scheduler::{DriveTags, Scheduler};

/// The fair scheduler of a drive, from which each hardware queue gets its part.
pub struct Fair<M: Machine>(Arc<Shared<M>>);

impl<M: Machine> Fair<M> {
    /// A scheduler for a drive, shared by these groups.
    #[must_use]
    pub fn new(groups: &Arc<Groups<M>>, cost: CostModel, tags: DriveTags) -> Self {
        Fair::of_drive(&DriveParts::of_no_drive(tags.queues), groups, cost, tags)
    }

    /// One that accounts what it holds to a drive, and says how long its requests may be.
    pub(crate) fn of_drive(
        drive: &DriveParts<M>,
        groups: &Arc<Groups<M>>,
        cost: CostModel,
        tags: DriveTags,
    ) -> Self {
        Fair(Shared::new(Policy::Weights, (groups, drive), cost, tags))
    }

    /// The part of hardware queue `hctx`, below the number that the drive has.
    #[must_use]
    pub fn queue(&self, hctx: u16) -> Box<dyn Scheduler<M>> {
        self.0.queue(hctx)
    }
}
