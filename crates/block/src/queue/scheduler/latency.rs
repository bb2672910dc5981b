//! `Latency`: a scheduler that keeps latency targets of groups by slowing down groups without one.
//!
//! While a target is missed, fewer requests of groups without a target may be at the drive; when
//! all targets are met the number grows again. Groups with a target go first. Among the groups with
//! a target, and among those without, weights work as in `fair`. See share.rs. Kernel counterpart:
//! block/kyber-iosched.c, block/blk-iolatency.c.

use alloc::boxed::Box;
use alloc::sync::Arc;

use millrace_machine::{Machine, debug_fields};

use crate::group::Groups;
use crate::queue::scheduler::cost::CostModel;
use crate::queue::scheduler::parts::{DriveScheduler, SchedulerParts};
use crate::queue::scheduler::share::depth::Policy;
use crate::queue::scheduler::share::piece::FIRST_SECTORS;
use crate::queue::scheduler::share::{DriveParts, SharedDrive};
use crate::queue::scheduler::{DriveTags, Scheduler};

/// Makes a drive's scheduler, which adds wait times to the drive's accounts and limits the size of
/// the drive's requests.
pub(crate) fn of_drive<M: Machine>(parts: &SchedulerParts<M>) -> DriveScheduler<M> {
    let groups = parts.groups.clone().unwrap_or_else(Groups::new);
    let shared = (&groups, &parts.drive);
    let drive = SharedDrive::new(Policy::Targets, shared, parts.cost, parts.tags);
    DriveScheduler {
        queue: Box::new(move |hctx| drive.queue(hctx)),
        piece_sectors: Some(FIRST_SECTORS),
    }
}

/// The latency scheduler of a drive. [`Latency::queue`] creates the part for each hardware queue.
pub struct Latency<M: Machine>(Arc<SharedDrive<M>>);

debug_fields!(Latency<M: Machine>);

impl<M: Machine> Latency<M> {
    /// Creates a scheduler for a drive that these groups share.
    #[must_use]
    pub fn new(groups: &Arc<Groups<M>>, cost: CostModel, tags: DriveTags) -> Self {
        let drive = DriveParts::of_no_drive(tags.queues);
        Latency(SharedDrive::new(Policy::Targets, (groups, &drive), cost, tags))
    }

    /// Creates the scheduler of hardware queue `hctx`. The number `hctx` must be less than
    /// `DriveTags::queues`.
    #[must_use]
    pub fn queue(&self, hctx: u16) -> Box<dyn Scheduler<M>> {
        self.0.queue(hctx)
    }
}
