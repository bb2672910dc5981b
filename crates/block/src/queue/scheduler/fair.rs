//! `Fair`: a scheduler that divides a drive among groups by weight.
//!
//! Start-time fair queueing over a cost model, with one list for each group at each hardware queue.
//! An I/O takes no lock and writes no shared cache line; see share.rs. A group that uses the drive
//! alone is never held back. Kernel counterpart: block/bfq-iosched.c, block/blk-iocost.c.

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
    let drive = SharedDrive::new(Policy::Weights, shared, parts.cost, parts.tags);
    DriveScheduler {
        queue: Box::new(move |hctx| drive.queue(hctx)),
        piece_sectors: Some(FIRST_SECTORS),
    }
}

/// The fair scheduler of a drive. [`Fair::queue`] creates the part for each hardware queue.
pub struct Fair<M: Machine>(Arc<SharedDrive<M>>);

debug_fields!(Fair<M: Machine>);

impl<M: Machine> Fair<M> {
    /// Creates a scheduler for a drive that all groups in `groups` share.
    #[must_use]
    pub fn new(groups: &Arc<Groups<M>>, cost: CostModel, tags: DriveTags) -> Self {
        let drive = DriveParts::of_no_drive(tags.queues);
        Fair(SharedDrive::new(Policy::Weights, (groups, &drive), cost, tags))
    }

    /// Creates the scheduler of hardware queue `hctx`. The number `hctx` must be less than
    /// `DriveTags::queues`.
    #[must_use]
    pub fn queue(&self, hctx: u16) -> Box<dyn Scheduler<M>> {
        self.0.queue(hctx)
    }
}
