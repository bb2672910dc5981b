//! `ram`: a drive in memory; sparse, lost at the end of the process.
//!
//! One mapping for all queues; a request is done by the thread that hands it over, and completes at
//! the poll that follows. Discard and write-zeroes give memory back. A bit for each 64 KiB granule
//! says whether it was ever written, for `extents`; it is set after the data and cleared before
//! they go, so that a granule with data always has its bit. Nothing is volatile. Kernel
//! counterpart: drivers/block/brd.c.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_block::{
    CompletionBatch, Dispatch, Driver, DriverQueue, Error, ErrorKind, Expired, Extent, Features,
    HwQueues, Op, OpFlags, QueueKind, QueueLimits, Request, Sector, Status, Tag, TagScope,
};
use millrace_machine::{Native, Topology};

use crate::mapping::Mapping;

const GRANULE_SHIFT: u32 = 16;

/// Settings of a memory drive.
#[derive(Debug, Clone)]
pub struct RamConfig {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Logical block size in bytes, a power of two of 512 or more.
    pub block_size: u32,
    /// Tags of each queue.
    pub depth: u32,
}

impl Default for RamConfig {
    fn default() -> Self {
        RamConfig { size_bytes: 1 << 30, block_size: 512, depth: 256 }
    }
}

/// A drive in memory.
#[derive(Debug)]
pub struct RamDriver {
    config: RamConfig,
    store: Arc<Store>,
}

impl RamDriver {
    /// A drive full of zeroes.
    ///
    /// # Errors
    /// `InvalidSetting` for a size of 0, `System` if there is no address space for it.
    pub fn new(config: RamConfig) -> Result<RamDriver, Error> {
        if config.size_bytes < 512 {
            let text = format!("ram drive of {} bytes: give it 512 or more", config.size_bytes);
            return Err(Error::new(ErrorKind::InvalidSetting, text));
        }
        let granules = config.size_bytes.div_ceil(1 << GRANULE_SHIFT);
        let written = (0..granules.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let data = Mapping::new(config.size_bytes)?;
        Ok(RamDriver { config, store: Arc::new(Store { data, written }) })
    }
}

impl Driver<Native> for RamDriver {
    fn capacity(&self) -> Sector {
        self.config.size_bytes >> 9
    }

    fn limits(&self) -> QueueLimits {
        QueueLimits {
            logical_block_size: self.config.block_size,
            physical_block_size: self.config.block_size.max(4096),
            max_segments: 256,
            max_discard_sectors: u32::MAX,
            discard_granularity: 4096,
            max_write_zeroes_sectors: u32::MAX,
            features: Features { fua: true, ..Features::default() },
            ..QueueLimits::default()
        }
    }

    fn hw_queues(&self, _topology: &Topology) -> HwQueues {
        let depth = self.config.depth;
        HwQueues { count: 2048, depth, kind: QueueKind::AnyThread, tags: TagScope::PerQueue }
    }

    fn open_queue(&self, _index: u16, depth: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        let done = Vec::with_capacity(depth as usize);
        Ok(Box::new(RamQueue { store: Arc::clone(&self.store), done }))
    }

    fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        self.store.extents(sector, nr_sectors)
    }

    fn reads_as_zeroes(&self, sector: Sector, nr_sectors: u64) -> bool {
        self.store.is_untouched(sector << 9, nr_sectors << 9)
    }
}

/// The memory and what of it was written.
#[derive(Debug)]
struct Store {
    data: Mapping,
    written: Box<[AtomicU64]>,
}

impl Store {
    fn is_written(&self, granule: u64) -> bool {
        // Acquire pairs with the Release in `note_written`: the data are there with the bit.
        let word = self.written[(granule / 64) as usize].load(Ordering::Acquire);
        word >> (granule % 64) & 1 != 0
    }

    fn is_untouched(&self, offset: u64, len_bytes: u64) -> bool {
        let mut granules =
            offset >> GRANULE_SHIFT..(offset + len_bytes).div_ceil(1 << GRANULE_SHIFT);
        granules.all(|granule| !self.is_written(granule))
    }

    fn note_written(&self, offset: u64, len_bytes: u64) {
        for granule in offset >> GRANULE_SHIFT..=(offset + len_bytes - 1) >> GRANULE_SHIFT {
            if !self.is_written(granule) {
                let bit = 1 << (granule % 64);
                // Release pairs with the Acquire in `is_written`.
                self.written[(granule / 64) as usize].fetch_or(bit, Ordering::Release);
            }
        }
    }

    fn clear(&self, offset: u64, len_bytes: u64) {
        let first = offset.div_ceil(1 << GRANULE_SHIFT);
        for granule in first..(offset + len_bytes) >> GRANULE_SHIFT {
            let bit = 1u64 << (granule % 64);
            // AcqRel: the data go after the bit, and no later writer's bit is lost.
            self.written[(granule / 64) as usize].fetch_and(!bit, Ordering::AcqRel);
        }
        self.data.clear(offset, len_bytes);
    }

    fn transfer(&self, rq: &Request<Native>) {
        let mut offset = rq.sector() << 9;
        for segment in rq.segments() {
            let (start, len_bytes) = (segment.start, segment.len_bytes);
            // SAFETY: the segments of a request in flight are valid memory of its bios.
            unsafe {
                match rq.op() {
                    Op::Read => self.data.read(offset, start, len_bytes),
                    _ => self.data.write(offset, start, len_bytes),
                }
            }
            offset += u64::from(len_bytes);
        }
        if rq.op() == Op::Write {
            self.note_written(rq.sector() << 9, rq.len_bytes().into());
        }
    }

    fn run(&self, rq: &Request<Native>) {
        let (offset, len_bytes) = (rq.sector() << 9, u64::from(rq.nr_sectors()) << 9);
        match rq.op() {
            Op::Read | Op::Write => self.transfer(rq),
            Op::Flush => {}
            Op::WriteZeroes if rq.flags().has(OpFlags::NOUNMAP) => {
                self.data.zero(offset, len_bytes);
                self.note_written(offset, len_bytes);
            }
            Op::Discard | Op::WriteZeroes => self.clear(offset, len_bytes),
        }
    }

    fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        const MOST: usize = 1024;
        let end = sector + nr_sectors;
        let (mut at, mut list) = (sector, Vec::<Extent>::new());
        while at < end {
            let granule = at >> (GRANULE_SHIFT - 9);
            let next = ((granule + 1) << (GRANULE_SHIFT - 9)).min(end);
            let (hole, full) = (!self.is_written(granule), list.len() == MOST);
            match list.last_mut() {
                Some(last) if last.hole == hole => last.nr_sectors += next - at,
                _ if full => break,
                _ => list.push(Extent { nr_sectors: next - at, hole, zero: hole }),
            }
            at = next;
        }
        list
    }
}

/// Completes at the poll that follows.
#[derive(Debug)]
struct RamQueue {
    store: Arc<Store>,
    done: Vec<Tag>,
}

impl DriverQueue<Native> for RamQueue {
    fn queue_rq(&mut self, rq: &Request<Native>) -> Dispatch {
        self.store.run(rq);
        self.done.push(rq.tag());
        Dispatch::Queued
    }

    fn commit_rqs(&mut self) {}

    fn poll(&mut self, batch: &mut CompletionBatch) {
        while !batch.is_full() {
            let Some(tag) = self.done.pop() else { return };
            batch.push(tag, Status::Ok);
        }
    }

    fn timeout(&mut self, _tag: Tag) -> Expired {
        Expired::Extend
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_holes_until_written_and_after_a_discard_of_whole_granules() {
        let ram = RamDriver::new(RamConfig::default()).unwrap();
        let hole = |nr_sectors| Extent { nr_sectors, hole: true, zero: true };
        let data = |nr_sectors| Extent { nr_sectors, hole: false, zero: false };
        assert_eq!(ram.extents(0, 1024), [hole(1024)]);
        ram.store.note_written(64 << 10, 512);
        assert_eq!(ram.extents(0, 1024), [hole(128), data(128), hole(768)]);
        let zeroes = [(0, 128), (0, 129), (255, 1), (256, 768)];
        let zeroes = zeroes.map(|(sector, nr_sectors)| ram.reads_as_zeroes(sector, nr_sectors));
        assert_eq!(zeroes, [true, false, false, true]);
        ram.store.clear(0, 1 << 20);
        assert_eq!(ram.extents(0, 1024), [hole(1024)]);
    }

    #[test]
    fn ram_drive_without_a_size_is_refused() {
        let config = RamConfig { size_bytes: 0, ..RamConfig::default() };
        let error = RamDriver::new(config).expect_err("nothing to keep data in");
        assert_eq!(error.kind(), ErrorKind::InvalidSetting);
    }
}
