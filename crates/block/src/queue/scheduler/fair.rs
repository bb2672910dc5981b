//! `Fair` and `Latency`: schedulers that divide a drive among groups.
//!
//! `Fair` divides by weight: start-time fair queueing over a cost model, with one list for each
//! group at each hardware queue. An I/O takes no lock and writes no shared cache line; see
//! share.rs. A group that uses the drive alone is never held back. `Latency` keeps latency targets
//! of groups. While a target is missed, fewer requests of groups without a target may be at the
//! drive; when all targets are met the number grows again. Groups with a target go first. Among the
//! groups with a target, and among those without, weights work as in `Fair`. Kernel counterparts:
//! block/bfq-iosched.c, block/blk-iocost.c; block/kyber-iosched.c, block/blk-iolatency.c.

use alloc::boxed::Box;
use alloc::sync::Arc;

use millrace_machine::{Machine, debug_fields};

use crate::group::Groups;
use crate::queue::scheduler::cost::CostModel;
use crate::queue::scheduler::parts::{DriveParts, DriveScheduler, SchedulerParts};
use crate::queue::scheduler::share::SharedDrive;
use crate::queue::scheduler::share::depth::Policy;
use crate::queue::scheduler::share::piece::FIRST_SECTORS;
use crate::queue::scheduler::{DriveTags, Scheduler};

/// Makes a drive's scheduler, which counts wait times and limits the size of requests.
pub(crate) fn of_drive<M: Machine>(policy: Policy, parts: &SchedulerParts<M>) -> DriveScheduler<M> {
    let groups = parts.groups.clone().unwrap_or_else(Groups::new);
    let drive = SharedDrive::new(policy, &groups, &parts.drive);
    DriveScheduler {
        queue: Box::new(move |hctx| drive.queue(hctx)),
        piece_sectors: Some(FIRST_SECTORS),
    }
}

/// The fair scheduler of a drive. [`Fair::queue`] creates the [`Scheduler`] of each hardware queue.
pub struct Fair<M: Machine>(Arc<SharedDrive<M>>);

debug_fields!(Fair<M: Machine>);

impl<M: Machine> Fair<M> {
    /// Creates a scheduler for a drive that all groups in `groups` share.
    #[must_use]
    pub fn new(groups: &Arc<Groups<M>>, cost: CostModel, tags: DriveTags) -> Self {
        let drive = DriveParts::of_no_drive(cost, tags);
        Fair(SharedDrive::new(Policy::Weights, groups, &drive))
    }

    /// Creates the scheduler of hardware queue `hctx`. The number `hctx` must be less than
    /// `DriveTags::queues`.
    #[must_use]
    pub fn queue(&self, hctx: u16) -> Box<dyn Scheduler<M>> {
        self.0.queue(hctx)
    }
}

/// The latency scheduler of a drive. [`Latency::queue`] creates the [`Scheduler`] of each hardware
/// queue.
pub struct Latency<M: Machine>(Arc<SharedDrive<M>>);

debug_fields!(Latency<M: Machine>);

impl<M: Machine> Latency<M> {
    /// Creates a scheduler for a drive that all groups in `groups` share.
    #[must_use]
    pub fn new(groups: &Arc<Groups<M>>, cost: CostModel, tags: DriveTags) -> Self {
        let drive = DriveParts::of_no_drive(cost, tags);
        Latency(SharedDrive::new(Policy::Targets, groups, &drive))
    }

    /// Creates the scheduler of hardware queue `hctx`. The number `hctx` must be less than
    /// `DriveTags::queues`.
    #[must_use]
    pub fn queue(&self, hctx: u16) -> Box<dyn Scheduler<M>> {
        self.0.queue(hctx)
    }
}
