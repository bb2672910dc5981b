//! `LocalDevice`: a vhost device whose guest is the calling thread.
//!
//! The caller acts as the guest's driver and calls [`LocalDevice::round`] instead of sending a
//! kick, so that device and driver alternate. `LocalDevice` runs the same code that serves guests.
//! Tests use it, and `millrace-lab bench --virtqueue` measures the cost of the device with it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use millrace_block::{Error, ErrorKind, Features, GroupId, Volume};
use millrace_machine::{Native, debug_fields, nanoseconds};

use super::io_thread::{ExportContext, IoThread, ThreadConfig, ThreadOrder, ThreadState};
use super::log::ExportLog;
use super::memory::GuestMemory;
use super::queue::notifiers::Notifiers;
use super::queue::unflushed::UnflushedWrites;
use super::queue::{DeviceFlags, Queue, QueueParts, RingParts};
use super::ring::{RingAreas, RingFeatures};
use super::{VhostStats, WAIT_MAX};
use crate::virtio::ID_BYTES;

/// A vhost device with one queue, served by the thread that created it.
pub struct LocalDevice {
    thread: IoThread,
    state: Arc<ThreadState>,
}

debug_fields!(LocalDevice);

impl LocalDevice {
    /// Creates a device of a volume. The calling thread becomes I/O thread `number` of the volume's
    /// drives. The ring has `size` entries at three frontend addresses: descriptor table, avail
    /// ring, used ring.
    ///
    /// # Errors
    /// `InvalidSetting` if the ring is not in the memory, `System` if no io_uring or epoll instance
    /// can be made, or the error of opening the drives' queues.
    pub fn new(
        volume: &Arc<Volume<Native>>,
        number: u16,
        memory: &Arc<GuestMemory>,
        (size, features, addresses): (u16, RingFeatures, [u64; 3]),
    ) -> Result<LocalDevice, Error> {
        let areas = RingAreas::find(memory, size, addresses).ok_or_else(|| {
            Error::new(ErrorKind::InvalidSetting, "the ring is not in the guest's memory")
        })?;
        let nobody: super::Say = Arc::new(|_| {});
        let config = ThreadConfig {
            reactor: millrace_reactor::Config::default(),
            poll_max_ns: 0,
            wait_max_ns: nanoseconds(WAIT_MAX),
        };
        let common =
            ExportContext::new(Arc::clone(volume), config, ExportLog::new("local", &nobody), None);
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
            notifiers: Notifiers::default(),
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
