//! `NoMerges`: keeps adjacent bios in requests of their own, to measure the cost of one request.
//!
//! Limits the length of a merged request to one sector; all else is the inner driver's. Made by
//! calibration, here and on simulated machines. Kernel counterpart: the
//! queue's attribute `nomerges`.

use millrace_block::{Driver, QueueLimits};
use millrace_machine::Machine;

use crate::filter::DriverFilter;

/// Filter of a driver whose bios must not be merged.
pub(crate) struct NoMerges<M: Machine>(pub(crate) Box<dyn Driver<M>>);

impl<M: Machine> DriverFilter<M> for NoMerges<M> {
    fn inner(&self) -> &dyn Driver<M> {
        &*self.0
    }

    fn limits(&self) -> QueueLimits {
        QueueLimits { merge_sectors: 1, ..self.0.limits() }
    }
}
