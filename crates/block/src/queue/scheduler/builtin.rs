//! The built-in schedulers and their names. Only this file lists them.
//!
//! A new scheduler needs two additions:
//! - A file in this directory, with a function that makes a `DriveScheduler` from the state of a
//!   drive.
//! - A variant, a name and a match arm in [`SchedulerKind`].
//!
//! Configurations, reports and error messages take the names from here. Called by
//! disk/scheduled.rs. Kernel counterpart: `elv_register`.

use millrace_machine::Machine;

use crate::queue::scheduler::parts::{DriveScheduler, SchedulerParts};
use crate::queue::scheduler::share::depth::Policy;
use crate::queue::scheduler::{deadline, fair};

/// The built-in schedulers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SchedulerKind {
    /// No scheduler: bio chains (each becomes one request) are served in order of arrival.
    #[default]
    None,
    /// [`Deadline`](crate::Deadline) with default settings.
    Deadline,
    /// [`Fair`](crate::Fair): divides the drive by the groups' weights.
    Fair,
    /// [`Latency`](crate::Latency): delays other groups' I/O so that groups meet their latency
    /// targets.
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

    /// Returns the scheduler's name in configurations and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    pub(crate) fn of_name(name: &str) -> Option<SchedulerKind> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(kind, _)| *kind)
    }

    pub(crate) fn make<M: Machine>(
        self,
        parts: impl FnOnce() -> SchedulerParts<M>,
    ) -> Option<DriveScheduler<M>> {
        match self {
            SchedulerKind::None => None,
            SchedulerKind::Deadline => Some(deadline::of_drive(&parts())),
            SchedulerKind::Fair => Some(fair::of_drive(Policy::Weights, &parts())),
            SchedulerKind::Latency => Some(fair::of_drive(Policy::Targets, &parts())),
        }
    }
}
