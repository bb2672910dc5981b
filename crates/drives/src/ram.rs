//! `ram`: a drive in sparse memory, whose data are lost when the process ends.
//!
//! All queues use one store. The submitting thread executes a request at once, and the next poll
//! completes it. There is no volatile cache. Kernel counterpart: drivers/block/brd.c.

use std::sync::Arc;

use millrace_block::{
    Driver, DriverQueue, Error, ErrorKind, Extent, Features, HwQueues, QueueKind, QueueLimits,
    Request, Sector, TagScope,
};
use millrace_machine::{Machine, Topology};

use crate::common::procfs::memory_bytes;
use crate::common::store::SparseStore;
use crate::null::{InstantQueue, RequestStore};
use crate::open::{DriveSettings, DriverRow, OpenOptions, Opened};
use crate::spec::{Spec, SpecError};

pub(crate) const ROW: DriverRow = DriverRow {
    name: "ram",
    keys: "size block depth",
    main_key: None,
    path_keys: "",
    queues: QueueKind::AnyThread,
    settings: |spec| Ok(Box::new(settings_of(spec)?)),
};

/// Settings of a memory drive.
#[derive(Debug, Clone)]
pub struct RamConfig {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Logical block size in bytes, a power of two of 512 or more.
    pub block_size: u32,
    /// Number of tags of each queue.
    pub depth: u32,
}

impl Default for RamConfig {
    fn default() -> Self {
        RamConfig { size_bytes: 1 << 30, block_size: 512, depth: 256 }
    }
}

pub(crate) fn settings_of(spec: &Spec) -> Result<RamConfig, SpecError> {
    let default = RamConfig::default();
    let Some(size_bytes) = spec.size("size")? else { return Err(spec.missing("size")) };
    if let Some(has_bytes) = memory_bytes().filter(|has_bytes| size_bytes > *has_bytes) {
        let text = format!(
            "this machine has {} MiB of memory and swap, and a ram drive stores its data there; \
             lower the size, or use a file",
            has_bytes >> 20
        );
        return Err(spec.invalid("size", &text));
    }
    Ok(RamConfig {
        size_bytes,
        block_size: spec.block()?.unwrap_or(default.block_size),
        depth: spec.depth()?.unwrap_or(default.depth),
    })
}

impl DriveSettings for RamConfig {
    fn open(self: Box<Self>, _: u16, _: &OpenOptions) -> Result<Opened, SpecError> {
        Ok(Opened::plain(RamDriver::new(*self)?))
    }
}

/// A drive that keeps its data in memory.
#[derive(Debug)]
pub struct RamDriver {
    config: RamConfig,
    store: Arc<SparseStore>,
}

impl RamDriver {
    /// Creates a drive of zeroes.
    ///
    /// # Errors
    /// Returns `InvalidSetting` for a size of 0, and `System` if there is not enough address space.
    pub fn new(config: RamConfig) -> Result<RamDriver, Error> {
        if config.size_bytes < 512 {
            let text =
                format!("a ram drive of {} bytes is too small; use 512 or more", config.size_bytes);
            return Err(Error::new(ErrorKind::InvalidSetting, text));
        }
        let store = Arc::new(SparseStore::new(config.size_bytes)?);
        Ok(RamDriver { config, store })
    }
}

impl<M: Machine> Driver<M> for RamDriver {
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

    fn is_immediate(&self) -> bool {
        true
    }

    fn open_queue(&self, _index: u16, depth: u32) -> Result<Box<dyn DriverQueue<M>>, Error> {
        Ok(Box::new(InstantQueue::new(Arc::clone(&self.store), depth)))
    }

    fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        self.store.extents(sector, nr_sectors)
    }

    fn reads_as_zeroes(&self, sector: Sector, nr_sectors: u64) -> bool {
        self.store.is_untouched(sector << 9, nr_sectors << 9)
    }
}

impl RequestStore for Arc<SparseStore> {
    fn run<M: Machine>(&self, rq: &Request<M>) {
        SparseStore::run(self, rq);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_drive_without_a_size_is_refused() {
        let config = RamConfig { size_bytes: 0, ..RamConfig::default() };
        let error = RamDriver::new(config).expect_err("nothing to keep data in");
        assert_eq!(error.kind(), ErrorKind::InvalidSetting);
    }
}
