//! `Latency`: groups that have a latency target get it, at the cost of those that have none.
//!
//! How many requests of groups without a target may be at the drive shrinks while a target is
//! missed, and grows again when all are met; those with a target go first. Within that, weights
//! hold as in `fair`. See share.rs. Kernel counterpart: block/kyber-iosched.c,
//! block/blk-iolatency.c.

use alloc::boxed::Box;
use alloc::sync::Arc;

use millrace_machine::Machine;

use crate::group::Groups;
use crate::queue::scheduler::cost::CostModel;
use crate::queue::scheduler::share::depth::Policy;
use crate::queue::scheduler::share::{DriveParts, Shared};
use crate::queue::scheduler::{DriveTags, Scheduler};

/// The latency scheduler of a drive, from which each hardware queue gets its part.
pub struct Latency<M: Machine>(Arc<Shared<M>>);

impl<M: Machine> Latency<M> {
    /// A scheduler for a drive, shared by these groups.
    #[must_use]
    pub fn new(groups: &Arc<Groups<M>>, cost: CostModel, tags: DriveTags) -> Self {
        Latency::of_drive(&DriveParts::of_no_drive(tags.queues), groups, cost, tags)
    }

    /// One that accounts what it holds to a drive, and says how long its requests may be.
    pub(crate) fn of_drive(
        drive: &DriveParts<M>,
        groups: &Arc<Groups<M>>,
        cost: CostModel,
        tags: DriveTags,
    ) -> Self {
        Latency(Shared::new(Policy::Targets, (groups, drive), cost, tags))
    }

    /// The part of hardware queue `hctx`, below the number that the drive has.
    #[must_use]
    pub fn queue(&self, hctx: u16) -> Box<dyn Scheduler<M>> {
        self.0.queue(hctx)
    }
}
