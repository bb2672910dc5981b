//! Types that a built-in scheduler is made from and made into.
//!
//! `SchedulerParts` is the state of a drive that disk/scheduled.rs gives to a scheduler's function
//! `of_drive`; `DriveScheduler` is what the function returns. builtin.rs lists the functions.

use alloc::boxed::Box;
use alloc::sync::Arc;

use millrace_machine::Machine;

use crate::group::Groups;
use crate::queue::scheduler::cost::CostModel;
use crate::queue::scheduler::share::DriveParts;
use crate::queue::scheduler::{DriveTags, Scheduler};

pub(crate) struct SchedulerParts<M: Machine> {
    pub(crate) drive: DriveParts<M>,
    /// The groups that share the drive; `None` if all I/O counts as one group.
    pub(crate) groups: Option<Arc<Groups<M>>>,
    pub(crate) cost: CostModel,
    pub(crate) tags: DriveTags,
}

pub(crate) struct DriveScheduler<M: Machine> {
    /// Makes the scheduler's part for the hardware queue with this number.
    pub(crate) queue: Box<dyn Fn(u16) -> Box<dyn Scheduler<M>>>,
    /// Initial limit of a request's length in sectors; `None` for no limit.
    pub(crate) piece_sectors: Option<u32>,
}
