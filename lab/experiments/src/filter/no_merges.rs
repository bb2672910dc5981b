//! `NoMerges`: keeps adjacent bios in requests of their own, to measure the cost of one request.
//!
//! The filter limits the length of a merged request to one sector and changes nothing else. Kernel
//! counterpart: the queue attribute `nomerges`.

use millrace_block::{Driver, QueueLimits};
use millrace_machine::Machine;

use crate::filter::DriverFilter;

pub(crate) struct NoMerges<M: Machine>(pub(crate) Box<dyn Driver<M>>);

impl<M: Machine> DriverFilter<M> for NoMerges<M> {
    fn inner(&self) -> &dyn Driver<M> {
        &*self.0
    }

    fn limits(&self) -> QueueLimits {
        QueueLimits { merge_sectors: 1, ..self.0.limits() }
    }
}
