//! `LocalDevice`: a vhost device whose guest is the calling thread.
//!
//! The caller acts as the guest's driver and calls [`LocalDevice::round`] instead of sending a
//! kick. Each call runs one iteration of the device's loop on the calling thread. `LocalDevice`
//! runs the same code that serves guests. Tests use it, and `millrace-lab bench --virtqueue`
//! measures the cost of the device with it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use millrace_block::{Error, ErrorKind, Features, GroupId, Volume};
use millrace_machine::{Native, debug_fields, nanoseconds};

use super::io_thread::{ExportContext, IoThread, ThreadConfig, ThreadOrder, ThreadState};
use super::log::ExportLog;
use super::memory::GuestMemory;
use super::queue::notifiers::QueueNotifiers;
use super::queue::unflushed::UnflushedWrites;
use super::queue::{DeviceFlags, Queue, QueueParts};
use super::ring::{RingAreas, RingFeatures, RingParts};
use super::{VhostStats, WAIT_MAX};
use crate::virtio::ID_BYTES;

/// Ring of a [`LocalDevice`].
#[derive(Debug, Clone, Copy)]
pub struct LocalRing {
    /// Number of descriptors.
    pub size: u16,
    /// Features of the ring.
    pub features: RingFeatures,
    /// Frontend addresses: descriptor table, avail ring, used ring.
    pub addresses: [u64; 3],
}

/// A vhost device with one queue, served by the thread that created it.
pub struct LocalDevice {
    thread: IoThread,
    state: Arc<ThreadState>,
}

debug_fields!(LocalDevice);

impl LocalDevice {
    /// Creates a device of a volume. The calling thread becomes I/O thread `number` of the volume's
    /// drives.
    ///
    /// # Errors
    /// `InvalidSetting` if the ring is not in the memory, `System` if no io_uring or epoll instance
    /// can be made, or the error of opening the drives' queues.
    pub fn new(
        volume: &Arc<Volume<Native>>,
        number: u16,
        memory: &Arc<GuestMemory>,
        ring: LocalRing,
    ) -> Result<LocalDevice, Error> {
        let LocalRing { size, features, addresses } = ring;
        let areas = RingAreas::find(memory, size, addresses).ok_or_else(|| {
            Error::new(ErrorKind::InvalidSetting, "the ring is not in the guest's memory")
        })?;
        let nobody: super::Say = Arc::new(|_| {});
        let (reactor, wait_max_ns) = (millrace_reactor::Config::default(), nanoseconds(WAIT_MAX));
        let config = ThreadConfig { reactor, poll_max_ns: 0, wait_max_ns };
        let log = ExportLog::new("local", &nobody);
        let common = ExportContext::new(Arc::clone(volume), config, log, None);
        let state = Arc::<ThreadState>::default();
        let mut thread = IoThread::new(&Arc::new(common), &state, number)?;
        let flags = DeviceFlags {
            write_back: AtomicBool::new(true),
            read_only: false,
            id: [0; ID_BYTES],
            tenant: number,
            group: GroupId::DEFAULT,
            unflushed: Arc::new(UnflushedWrites::of(Features::default())),
        };
        let queue = Queue::new(QueueParts {
            number: 0,
            enabled: true,
            ring: RingParts { areas, size, features, taken: 0, used: areas.used_idx(memory) },
            notifiers: QueueNotifiers::default(),
            memory: Arc::clone(memory),
            inflight: None,
            again: Vec::new(),
            flags: Arc::new(flags),
        });
        state.orders.put(ThreadOrder::Start(Box::new(queue)));
        thread.take_orders();
        Ok(LocalDevice { thread, state })
    }

    /// Takes, submits and completes requests, and publishes answers. Returns false if there was
    /// nothing to do.
    ///
    /// # Errors
    /// `System` if io_uring or epoll fails.
    pub fn round(&mut self) -> Result<bool, Error> {
        self.thread.round()
    }

    /// Returns the device's counters since its start.
    pub fn stats(&mut self) -> VhostStats {
        self.thread.publish();
        self.state.published.read()
    }
}
