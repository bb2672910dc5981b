//! `CacheDriver`: presents a cache as a drive, so that a disk can be created on it.
//!
//! Each queue belongs to one I/O thread and has its own channel to the volume below.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_block::{
    Channel, ChannelConfig, Driver, DriverQueue, Error, ErrorKind, Extent, HwQueues, IoThread,
    QueueKind, QueueLimits, Sector, TagScope, Unwritten,
};
use millrace_machine::{Machine, Topology};

use crate::cache::Cache;
use crate::front::queue::CacheQueue;
use crate::write_back::write_queues::{FlusherConfig, WriteLists};

/// Number of tags of each queue. The number is high, because requests that wait for a hanging drive
/// keep their tags, and requests to other drives need tags, too.
const DEPTH: u32 = 1024;
/// Maximum number of a queue's bios in flight to the volume below: four for each tag.
const BELOW_DEPTH: u32 = 4096;
/// Maximum number of write-backs in flight from one queue, over all drives.
const WRITES: u32 = 128;
const EXTENTS_MAX: usize = 1024;
const SECTORS_MAX: u32 = 2048;

/// A cache presented as a drive.
#[derive(Debug)]
pub struct CacheDriver<M: Machine> {
    cache: Arc<Cache<M>>,
}

impl<M: Machine> CacheDriver<M> {
    /// Creates the driver of a cache.
    #[must_use]
    pub fn new(cache: &Arc<Cache<M>>) -> CacheDriver<M> {
        CacheDriver { cache: Arc::clone(cache) }
    }
}

impl<M: Machine> Driver<M> for CacheDriver<M> {
    fn capacity(&self) -> Sector {
        self.cache.sectors()
    }

    /// Returns the current size of the volume below. A resize must revalidate that volume first.
    fn revalidate(&self) -> Result<Sector, Error> {
        Ok(self.cache.sectors())
    }

    fn limits(&self) -> QueueLimits {
        let below = *self.cache.below.limits();
        let mut features = below.features;
        features.volatile_cache |= !self.cache.is_write_through();
        features.process_cache |= !self.cache.is_write_through();
        features.fua = true;
        // A drive of the volume below may ignore the payload of writes, but the cache stores the
        // payload, so clients must pass one.
        features.no_payload = false;
        QueueLimits {
            physical_block_size: below.physical_block_size.max(4096),
            max_sectors: SECTORS_MAX,
            // No merging: a merged request of two clients could span two drives, and if one drive
            // were dead, both clients would get the error.
            merge_sectors: if self.cache.below.disks().len() == 1 { u32::MAX } else { 0 },
            max_segments: 256,
            max_segment_size: u32::MAX,
            seg_boundary_mask: u64::MAX,
            dma_alignment: 0,
            chunk_sectors: 0,
            features,
            ..below
        }
    }

    fn hw_queues(&self, _: &Topology) -> HwQueues {
        let (count, tags) = (2048, TagScope::PerQueue);
        HwQueues { count, depth: DEPTH, kind: QueueKind::OwnerOnly, tags }
    }

    fn is_stacked(&self) -> bool {
        true
    }

    fn open_queue(&self, _: u16, _: u32) -> Result<Box<dyn DriverQueue<M>>, Error> {
        let text = "open a cache's queue with open_queue_on, on the I/O thread that owns it";
        Err(Error::new(ErrorKind::NotSupported, text))
    }

    fn open_queue_on(
        &self,
        thread: &IoThread<M>,
        index: u16,
        _: u32,
    ) -> Result<Box<dyn DriverQueue<M>>, Error> {
        // A queue of the cache uses the hardware queue with the same index on each drive below.
        let thread = IoThread { number: index, ..thread.clone() };
        let below = &self.cache.below;
        let up = below.disks().iter().try_for_each(|disk| disk.bring_up(index, &thread));
        let config = ChannelConfig {
            depth: BELOW_DEPTH,
            thread: Some(thread.clone()),
            ..ChannelConfig::default()
        };
        let channel = up.and_then(|()| Channel::open(below, config));
        let channel = channel.inspect_err(|_| {
            below.disks().iter().for_each(|disk| disk.bring_down(&thread));
        })?;
        let drive_writes = WRITES / below.disks().len() as u32;
        let writes = FlusherConfig { drive_writes, lists: WriteLists::PerDrive };
        Ok(Box::new(CacheQueue::new(&self.cache, (channel, writes), &thread)))
    }

    /// Returns 0 pages for a write-through cache, because all its acknowledged data are on the
    /// volume. Dirty pages of such a cache belong to writes that are not answered yet, or that were
    /// answered with an error.
    fn unwritten(&self) -> Unwritten {
        match self.cache.is_write_through() {
            true => Unwritten::default(),
            false => self.cache.unwritten(),
        }
    }

    fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        if self.cache.owes_some(sector, nr_sectors) {
            return alloc::vec![Extent { nr_sectors, hole: false, zero: false }];
        }
        self.cache.below.extents(sector, nr_sectors, EXTENTS_MAX)
    }

    fn reads_as_zeroes(&self, sector: Sector, nr_sectors: u64) -> bool {
        !self.cache.owes_some(sector, nr_sectors)
            && u32::try_from(nr_sectors)
                .is_ok_and(|nr_sectors| self.cache.below.reads_as_zeroes(sector, nr_sectors))
    }
}
