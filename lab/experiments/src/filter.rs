//! `DriverFilter`: a driver that wraps another one and changes a few of its methods.
//!
//! `FilteredDriver` turns a filter into a `Driver`: it forwards every method that the filter does
//! not define to the inner driver, so that a new method of `Driver` is forwarded in one place.
//! Counterpart: the filters of nbdkit.

pub(crate) mod no_merges;

use std::sync::Arc;

use millrace_block::{Arena, Driver, DriverQueue, Error, Extent, HwQueues, QueueLimits, Sector};
use millrace_machine::{Machine, Topology};

/// Methods of a driver that a filter can change. The inner driver handles all others.
pub(crate) trait DriverFilter<M: Machine>: Send + Sync {
    fn inner(&self) -> &dyn Driver<M>;

    fn limits(&self) -> QueueLimits {
        self.inner().limits()
    }

    fn is_immediate(&self) -> bool {
        self.inner().is_immediate()
    }

    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<M>>, Error> {
        self.inner().open_queue(index, depth)
    }
}

pub(crate) struct FilteredDriver<A>(pub(crate) A);

impl<M: Machine, A: DriverFilter<M>> Driver<M> for FilteredDriver<A> {
    fn capacity(&self) -> Sector {
        self.0.inner().capacity()
    }

    fn size_bytes(&self) -> u64 {
        self.0.inner().size_bytes()
    }

    fn revalidate(&self) -> Result<Sector, Error> {
        self.0.inner().revalidate()
    }

    fn limits(&self) -> QueueLimits {
        self.0.limits()
    }

    fn hw_queues(&self, topology: &Topology) -> HwQueues {
        self.0.inner().hw_queues(topology)
    }

    fn map(&self, ctx: usize, ctxs: usize, hctxs: usize) -> usize {
        self.0.inner().map(ctx, ctxs, hctxs)
    }

    fn is_immediate(&self) -> bool {
        self.0.is_immediate()
    }

    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<M>>, Error> {
        self.0.open_queue(index, depth)
    }

    fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        self.0.inner().extents(sector, nr_sectors)
    }

    fn reads_as_zeroes(&self, sector: Sector, nr_sectors: u64) -> bool {
        self.0.inner().reads_as_zeroes(sector, nr_sectors)
    }

    fn is_polled_idle(&self) -> bool {
        self.0.inner().is_polled_idle()
    }

    fn is_reconnecting(&self) -> bool {
        self.0.inner().is_reconnecting()
    }

    fn trouble(&self) -> Option<String> {
        self.0.inner().trouble()
    }

    fn flush_trouble(&self) -> Option<String> {
        self.0.inner().flush_trouble()
    }

    fn prepare_stop(&self) {
        self.0.inner().prepare_stop();
    }

    fn lend(&self, arena: &Arc<Arena>) {
        self.0.inner().lend(arena);
    }

    fn take_news(&self) -> Vec<String> {
        self.0.inner().take_news()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.0.inner().counts()
    }
}
