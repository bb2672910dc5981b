//! Measures a benchmark configuration through virtqueues, with guest and device on the same thread.
//!
//! The result is the cost of a vhost-user-blk request without a second core or process: the
//! thread of each job runs the guest (vhost.rs) and the device alternately. So no thread waits, no
//! cache line moves between caches, and instructions can be counted. The device is the production
//! code that serves guests.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use millrace_block::Volume;
use millrace_clients::vhost::{
    Counters, Descriptors, DriverRing, RingLayout, RingOptions, Status, Wait,
};
use millrace_exports::vhost::memory::{GuestMemory, Region};
use millrace_exports::vhost::ring::RingFeatures;
use millrace_exports::vhost::{LocalDevice, LocalRing};
use millrace_machine::Native;

use crate::load::bench::{BenchError, Plan, Progress, check};
use crate::load::client::{Client, ClientIo, DataMemory, DoneSlot, run_clients};
use crate::load::row::{Queues, Row};
use crate::load::vhost::{done_slot, read_all, request, ring_size};

/// Guest physical address of the memory. `USER` is the frontend's address of this memory.
const GUEST: u64 = 0x4000_0000;
const USER: u64 = 0x7000_0000_0000;

/// Measures one configuration, `plan`, on a volume that was created for this measurement, so that
/// the volume's accounting starts at zero.
///
/// # Errors
/// If the workload does not fit the volume, or a thread cannot be set up.
pub fn run_virtqueue_row(
    volume: &Arc<Volume<Native>>,
    plan: &Plan,
    progress: Progress<'_>,
) -> Result<Row, BenchError> {
    check(volume, plan)?;
    let (depth, size) = ring_size(plan)?;
    let options = RingOptions {
        size,
        depth,
        data_bytes: plan.workload.bs_bytes,
        descriptors: match 3 * u32::from(depth) <= u32::from(size) {
            true => Descriptors::Chained,
            false => Descriptors::Indirect,
        },
        event_idx: true,
        wait: Wait::Poll,
    };
    let queue = {
        let volume = Arc::clone(volume);
        move |job| LocalQueue::new(&volume, job as u16, options)
    };
    let (mut row, _) = run_clients(plan, volume.capacity() << 9, queue, progress)?;
    row.queues = Queues { stack: "virtqueue".to_owned(), ..row.queues };
    Ok(row)
}

/// Virtqueue with guest and device on the same thread. `wait` runs the device instead of sleeping.
struct LocalQueue {
    ring: DriverRing,
    device: LocalDevice,
    _memory: Arc<GuestMemory>,
}

impl LocalQueue {
    fn new(
        volume: &Arc<Volume<Native>>,
        number: u16,
        options: RingOptions,
    ) -> Result<LocalQueue, BenchError> {
        let wrong = |text: String| BenchError::Workload(text);
        let layout = RingLayout::new(&options).map_err(|error| wrong(error.to_string()))?;
        let region = Region::anonymous(GUEST, USER, layout.end as u64)?;
        let start = NonNull::new(region.start()).expect("a mapping is never at address 0");
        let memory = Arc::new(GuestMemory::new(vec![Arc::new(region)])?);
        // SAFETY: `start` is a page-aligned mapping of the ring's length, which outlives the ring.
        // Only the ring and the device access this mapping.
        let ring = unsafe { DriverRing::new(start, GUEST, options) };
        let ring = ring.map_err(|error| wrong(error.to_string()))?;
        let parts = [layout.descriptors, layout.available, layout.used];
        let features = RingFeatures { event_idx: options.event_idx, indirect: true };
        let addresses = parts.map(|part| USER + part as u64);
        let ring_parts = LocalRing { size: options.size, features, addresses };
        let device = LocalDevice::new(volume, number, &memory, ring_parts)?;
        Ok(LocalQueue { ring, device, _memory: memory })
    }
}

impl Client for LocalQueue {
    const DATA: DataMemory = DataMemory::OfClient;
    type Failure = Status;

    #[inline(always)]
    fn in_flight(&self) -> u32 {
        self.ring.in_flight().into()
    }

    #[inline(always)]
    fn submit(&mut self, slot: u32, io: &mut ClientIo) -> Result<(), BenchError> {
        let request = request(io, |data| self.ring.write_data(slot as u16, data));
        self.ring.submit(slot as u16, request);
        Ok(())
    }

    #[inline(always)]
    fn start(&mut self) -> Result<(), BenchError> {
        // Do not notify the device: `wait` runs the device, which then checks the ring.
        let _wanted = self.ring.publish();
        Ok(())
    }

    #[inline(always)]
    fn reap(
        &mut self,
        ios: &mut [ClientIo],
        done: &mut Vec<DoneSlot<Status>>,
    ) -> Result<(), BenchError> {
        let reaped = self.ring.reap(|slot, status| done.push(done_slot(slot, status)));
        reaped.map_err(|error| BenchError::Workload(error.to_string()))?;
        read_all(ios, done, |slot, memory| self.ring.read_data(slot, memory));
        Ok(())
    }

    #[inline(always)]
    fn wait(&mut self) -> Result<(), BenchError> {
        self.device.round()?;
        Ok(())
    }

    fn wait_any(queues: &mut [LocalQueue], _most: Duration) -> Result<(), BenchError> {
        queues.iter_mut().try_for_each(LocalQueue::wait)
    }

    fn counters(&mut self) -> Counters {
        let system_calls = self.device.stats().thread.system_calls;
        Counters { system_calls, ..Counters::default() }
    }
}
