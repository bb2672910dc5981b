//! Input and result of the functions that create a drive's scheduler.
//!
//! disk/scheduled.rs passes `SchedulerParts`, the state of a drive, to a scheduler's function
//! `of_drive`, which returns a `DriveScheduler`. builtin.rs lists the functions.

use alloc::boxed::Box;
use alloc::sync::Arc;

use millrace_machine::{Machine, Word};

use crate::account::held::DriveWaits;
use crate::group::Groups;
use crate::queue::scheduler::cost::CostModel;
use crate::queue::scheduler::{DriveTags, Scheduler};

pub(crate) struct SchedulerParts<M: Machine> {
    pub(crate) drive: DriveParts<M>,
    /// The groups that share the drive; `None` if all I/O counts as one group.
    pub(crate) groups: Option<Arc<Groups<M>>>,
}

pub(crate) struct DriveScheduler<M: Machine> {
    /// Creates the scheduler object of one hardware queue, given the queue's number.
    pub(crate) queue: Box<dyn Fn(u16) -> Box<dyn Scheduler<M>>>,
    /// Initial limit of a request's length in sectors; `None` for no limit.
    pub(crate) piece_sectors: Option<u32>,
}

pub(crate) struct DriveParts<M: Machine> {
    pub(crate) holds: Arc<DriveWaits<M>>,
    pub(crate) piece_sectors: Arc<M::Word>,
    pub(crate) cost: CostModel,
    pub(crate) tags: DriveTags,
}

impl<M: Machine> DriveParts<M> {
    /// Creates the drive state of a built-in scheduler that a program creates by itself. Such a
    /// scheduler belongs to no disk, which would otherwise provide the state.
    pub(crate) fn of_no_drive(cost: CostModel, tags: DriveTags) -> Self {
        DriveParts {
            holds: Arc::new(DriveWaits::new(tags.queues)),
            piece_sectors: Arc::new(M::Word::new(0)),
            cost,
            tags,
        }
    }
}
