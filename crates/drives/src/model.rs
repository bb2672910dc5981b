//! `model`: a simulated SSD with the timing of a real one. The drive runs on any `Machine`, and
//! uses that machine's clock.
//!
//! A request starts when its batch is committed, as with a doorbell, and is completed by the first
//! poll after its completion time. A plain mutex protects the device's state. A simulated machine
//! does not know this mutex, so waiting for the mutex takes no virtual time. No function of the
//! `Machine` is called under the mutex. The drive keeps no data unless `contents` is set. Lock
//! order: the drive's state, then its controller's. Kernel counterpart: null_blk with
//! completion_nsec.

mod config;
mod controller;
mod link;
mod open;
mod preset;
mod queue;
mod rotating;
mod timing;

use std::sync::{Arc, Mutex};

use millrace_block::{
    Driver, DriverQueue, Error, ErrorKind, Extent, Features, HwQueues, QueueKind, QueueLimits,
    Sector, TagScope,
};
use millrace_machine::{Machine, Topology};

pub use config::{ModelConfig, ModelContents, ModelTiming};
use controller::ControllerPort;
pub use controller::ModelController;
pub(crate) use open::{ROW, config_of};
pub use open::{UsualTimes, usual_times};
pub use preset::{ModelPreset, model_presets};
use queue::ModelQueue;
pub use rotating::ModelDisk;
use timing::ServiceTiming;

use crate::common::store::SparseStore;

/// Driver of a simulated SSD.
#[derive(Debug)]
pub struct ModelDriver {
    config: ModelConfig,
    shared: Arc<ModelState>,
}

#[derive(Debug)]
struct ModelState {
    timing: Mutex<ServiceTiming>,
    store: Option<SparseStore>,
    port: Option<ControllerPort>,
}

impl ModelDriver {
    /// Creates an idle drive. If the drive keeps data ([`ModelContents::Ram`]), all data are zeroes
    /// at first.
    ///
    /// # Errors
    /// Returns `InvalidSetting` if a setting is out of range, and `System` if there is not enough
    /// address space for the data.
    pub fn new(config: ModelConfig) -> Result<ModelDriver, Error> {
        config.validate().map_err(|text| Error::new(ErrorKind::InvalidSetting, text))?;
        let store = match config.contents {
            ModelContents::None => None,
            ModelContents::Ram => Some(SparseStore::new(config.size_bytes)?),
        };
        let port = config.controller.clone().map(ControllerPort::new);
        let timing = Mutex::new(ServiceTiming::new(&config.timing));
        Ok(ModelDriver { config, shared: Arc::new(ModelState { timing, store, port }) })
    }
}

impl<M: Machine> Driver<M> for ModelDriver {
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
            features: Features {
                volatile_cache: self.config.timing.buffer_bytes > 0,
                fua: true,
                no_payload: self.shared.store.is_none(),
                ..Features::default()
            },
            ..QueueLimits::default()
        }
    }

    fn hw_queues(&self, _topology: &Topology) -> HwQueues {
        let (count, depth) = (self.config.queues, self.config.depth);
        HwQueues { count, depth, kind: QueueKind::AnyThread, tags: TagScope::PerQueue }
    }

    fn open_queue(&self, _index: u16, depth: u32) -> Result<Box<dyn DriverQueue<M>>, Error> {
        Ok(Box::new(ModelQueue::new(Arc::clone(&self.shared), depth)))
    }

    fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        match &self.shared.store {
            Some(store) => store.extents(sector, nr_sectors),
            None => vec![Extent { nr_sectors, hole: true, zero: true }],
        }
    }
}
