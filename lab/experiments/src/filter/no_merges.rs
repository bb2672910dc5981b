//! `Unmerged`: a drive whose requests are one bio each, for measuring what single requests cost.
//!
//! Stands around a drive's driver and states its limits so that neighbours stay apart; all else is
//! the driver's. Made by calibration, here and on simulated machines. Kernel counterpart: the
//! queue's attribute `nomerges`.

use millrace_block::{Driver, QueueLimits};
use millrace_machine::Machine;

use crate::filter::Around;

/// A driver that takes no merged requests.
pub(crate) struct Unmerged<M: Machine>(pub(crate) Box<dyn Driver<M>>);

impl<M: Machine> Around<M> for Unmerged<M> {
    fn inner(&self) -> &dyn Driver<M> {
        &*self.0
    }

    fn limits(&self) -> QueueLimits {
        QueueLimits { merge_sectors: 1, ..self.0.limits() }
    }
}
