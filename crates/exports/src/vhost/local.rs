//! `LocalDevice`: a device whose guest is this thread.
//!
//! The rings and requests of a guest without a guest, a frontend or another core: whoever plays the
//! driver's part calls [`LocalDevice::round`] where a guest would kick, and device and driver take
//! turns. For measurements of what the device costs (`millrace-lab bench --virtqueue`) and for
//! tests; all that runs is what serves guests.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use millrace_block::{Error, ErrorKind, Features, GroupId, Volume};
use millrace_machine::Native;

use super::io_thread::{Common, IoThread, Order, ThreadConfig, ThreadState};
use super::log::Log;
use super::memory::GuestMemory;
use super::queue::notifiers::Notifiers;
use super::queue::unflushed::UnflushedWrites;
use super::queue::{DeviceFlags, Queue, QueueParts, RingParts};
use super::ring::{Areas, RingFeatures};
use super::{VhostStats, WAIT_MAX_NS};
use crate::virtio::ID_BYTES;

/// A device with one queue, on the thread that made it.
pub struct LocalDevice {
    thread: IoThread,
    state: Arc<ThreadState>,
}

impl LocalDevice {
    /// A device of a volume, on a thread that becomes I/O thread `number` of its drives, with a
    /// ring of `size` at these frontend addresses: descriptor table, avail ring, used ring.
    ///
    /// # Errors
    /// `InvalidSetting` if the ring is not in the memory, `System` if the thread gets no ring of
    /// the system, or what opening the drives' queues says.
    pub fn new(
        volume: &Arc<Volume<Native>>,
        number: u16,
        memory: &Arc<GuestMemory>,
        (size, features, addresses): (u16, RingFeatures, [u64; 3]),
    ) -> Result<LocalDevice, Error> {
        let areas = Areas::find(memory, size, addresses).ok_or_else(|| {
            Error::new(ErrorKind::InvalidSetting, "the ring is not in the guest's memory")
        })?;
        let nobody: super::Say = Arc::new(|_| {});
        let config = ThreadConfig {
            reactor: millrace_reactor::Config::default(),
            poll_max_ns: 0,
            wait_max_ns: WAIT_MAX_NS,
        };
        let common = Common::new(Arc::clone(volume), config, Log::new("local", &nobody), None);
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
        state.orders.put(Order::Start(Box::new(queue)));
        thread.take_orders();
        Ok(LocalDevice { thread, state })
    }

    /// Takes, submits, completes and shows what there is; false if nothing was to be done.
    ///
    /// # Errors
    /// `System` if the ring of the system fails.
    pub fn round(&mut self) -> Result<bool, Error> {
        self.thread.round()
    }

    /// What it did so far.
    pub fn stats(&mut self) -> VhostStats {
        self.thread.publish();
        self.state.published.read()
    }
}
