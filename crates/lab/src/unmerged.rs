//! `Unmerged`: a drive whose requests are one bio each, for measuring what single requests cost.
//!
//! Stands around a drive's driver and states its limits so that neighbours stay apart; all else is
//! the driver's. Made by calibration, here and on simulated machines. Kernel counterpart: the
//! queue's attribute `nomerges`.

use millrace_block::{Driver, DriverQueue, Error, Extent, HwQueues, QueueLimits, Sector};
use millrace_machine::{Machine, Topology};

/// A driver that takes no merged requests.
pub(crate) struct Unmerged<M: Machine>(pub(crate) Box<dyn Driver<M>>);

impl<M: Machine> Driver<M> for Unmerged<M> {
    fn capacity(&self) -> Sector {
        self.0.capacity()
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn revalidate(&self) -> Result<Sector, Error> {
        self.0.revalidate()
    }

    fn limits(&self) -> QueueLimits {
        QueueLimits { merge_sectors: 1, ..self.0.limits() }
    }

    fn hw_queues(&self, topology: &Topology) -> HwQueues {
        self.0.hw_queues(topology)
    }

    fn map(&self, ctx: usize, ctxs: usize, hctxs: usize) -> usize {
        self.0.map(ctx, ctxs, hctxs)
    }

    fn is_immediate(&self) -> bool {
        self.0.is_immediate()
    }

    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<M>>, Error> {
        self.0.open_queue(index, depth)
    }

    fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        self.0.extents(sector, nr_sectors)
    }

    fn reads_as_zeroes(&self, sector: Sector, nr_sectors: u64) -> bool {
        self.0.reads_as_zeroes(sector, nr_sectors)
    }
}
