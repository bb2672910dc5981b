//! The built-in schedulers by name: the one place that lists them.
//!
//! A scheduler is a file of this directory with a function that makes a [`DriveScheduler`], and a
//! variant, a name and an arm below. Configurations, reports and error messages take the names from
//! here. Called by disk/scheduled.rs. Kernel counterpart: `elv_register`.

use alloc::boxed::Box;
use alloc::sync::Arc;

use millrace_machine::Machine;

use crate::group::Groups;
use crate::queue::scheduler::cost::CostModel;
use crate::queue::scheduler::share::DriveParts;
use crate::queue::scheduler::{DriveTags, Scheduler, deadline, fair, latency};

/// The built-in schedulers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SchedulerKind {
    /// No scheduler: chains are served in order of arrival.
    #[default]
    None,
    /// [`Deadline`](crate::Deadline) with default settings.
    Deadline,
    /// [`Fair`](crate::Fair): divides the drive by the groups' weights.
    Fair,
    /// [`Latency`](crate::Latency): keeps the groups' latency targets.
    Latency,
}

impl SchedulerKind {
    /// All schedulers with their names in configurations and tables.
    pub const NAMES: &'static [(SchedulerKind, &'static str)] = &[
        (SchedulerKind::None, "none"),
        (SchedulerKind::Deadline, "deadline"),
        (SchedulerKind::Fair, "fair"),
        (SchedulerKind::Latency, "latency"),
    ];

    /// Makes the scheduler of a drive; `None` for no scheduler, which takes no parts.
    pub(crate) fn make<M: Machine>(
        self,
        parts: impl FnOnce() -> SchedulerParts<M>,
    ) -> Option<DriveScheduler<M>> {
        match self {
            SchedulerKind::None => None,
            SchedulerKind::Deadline => Some(deadline::of_drive(&parts())),
            SchedulerKind::Fair => Some(fair::of_drive(&parts())),
            SchedulerKind::Latency => Some(latency::of_drive(&parts())),
        }
    }
}

/// The parts of a drive that a scheduler is made of.
pub(crate) struct SchedulerParts<M: Machine> {
    pub(crate) drive: DriveParts<M>,
    /// The groups that share the drive; `None` if nobody is told apart.
    pub(crate) groups: Option<Arc<Groups<M>>>,
    pub(crate) cost: CostModel,
    pub(crate) tags: DriveTags,
}

/// A scheduler for all hardware queues of a drive.
pub(crate) struct DriveScheduler<M: Machine> {
    /// Makes the part of a hardware queue, by its number.
    pub(crate) queue: Box<dyn Fn(u16) -> Box<dyn Scheduler<M>>>,
    /// Sectors of the largest request at first; `None` for no bound.
    pub(crate) piece_sectors: Option<u32>,
}
