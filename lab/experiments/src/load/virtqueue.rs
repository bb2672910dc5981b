//! One row through virtqueues, with guest and device on the same thread.
//!
//! What a vhost-user-blk request costs, without a second core and a second process: each job plays
//! its guest (vhost.rs) and runs its device in turn, so nothing is waited for, no line moves
//! between caches, and instructions can be counted. The device is the one that serves guests.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use millrace_block::Volume;
use millrace_clients::vhost::{
    Counters, Descriptors, DriverRing, Request, RingLayout, RingOptions, Status, Wait,
};
use millrace_exports::vhost::LocalDevice;
use millrace_exports::vhost::memory::{GuestMemory, Region};
use millrace_exports::vhost::ring::RingFeatures;
use millrace_machine::{CpuId, Machine, Native};

use crate::load::bench::{BenchError, Plan, Progress, RowState, check, client_row};
use crate::load::job::JobResult;
use crate::load::row::{Queues, Row};
use crate::load::vhost::{GuestQueue, Job, ring_size};

/// Where the memory of a guest is, for it and for its frontend.
const GUEST: u64 = 0x4000_0000;
const USER: u64 = 0x7000_0000_0000;

/// Runs one row on a volume made for it (its accounting starts at zero).
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
    let shared = Arc::new(RowState::new(plan));
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
    let threads = (0..plan.jobs).map(|job| spawn(volume, plan, &shared, (options, job)));
    let threads: Vec<_> = threads.collect();
    let (mut row, _) = client_row(threads, &shared, plan, progress)?;
    row.queues =
        Queues { stack: "virtqueue".to_owned(), cpus: plan.cpus.len() as u32, ..Queues::default() };
    Ok(row)
}

fn spawn(
    volume: &Arc<Volume<Native>>,
    plan: &Plan,
    shared: &Arc<RowState>,
    (options, job): (RingOptions, u32),
) -> <Native as Machine>::Thread {
    let cpu = plan.cpu_of(job).map(CpuId);
    let (volume, plan, shared) = (Arc::clone(volume), plan.clone(), Arc::clone(shared));
    let body = move || {
        let made = LocalQueue::new(&volume, job as u16, options);
        shared.ready();
        let result = made.and_then(|queue| {
            let mut job = Job::new(queue, volume.capacity(), &plan, job);
            let result: JobResult = job.run(&shared.until)?;
            shared.add_system_calls(job.queue.device.stats().thread.system_calls);
            Ok(result)
        });
        shared.finish(result);
    };
    Native::spawn(&format!("guest-{job}"), cpu, Box::new(body))
}

/// A virtqueue whose device runs where others would wait for it.
struct LocalQueue {
    ring: DriverRing,
    device: LocalDevice,
    /// Keeps the ring's memory mapped.
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
        // SAFETY: a mapping of the layout's length, aligned to a page, which this keeps; the device
        // alone uses it beside the ring.
        let ring = unsafe { DriverRing::new(start, GUEST, options) };
        let ring = ring.map_err(|error| wrong(error.to_string()))?;
        let parts = [layout.descriptors, layout.available, layout.used];
        let features = RingFeatures { event_idx: options.event_idx, indirect: true };
        let device = LocalDevice::new(
            volume,
            number,
            &memory,
            (options.size, features, parts.map(|part| USER + part as u64)),
        )?;
        Ok(LocalQueue { ring, device, _memory: memory })
    }
}

impl GuestQueue for LocalQueue {
    fn depth(&self) -> u16 {
        self.ring.options().depth
    }

    fn in_flight(&self) -> u16 {
        self.ring.in_flight()
    }

    #[inline(always)]
    fn submit(&mut self, slot: u16, request: Request) {
        self.ring.submit(slot, request);
    }

    #[inline(always)]
    fn kick(&mut self) -> Result<(), BenchError> {
        // Its device looks when this waits.
        let _wanted = self.ring.publish();
        Ok(())
    }

    #[inline(always)]
    fn reap(&mut self, done: impl FnMut(u16, Status)) -> Result<u16, BenchError> {
        self.ring.reap(done).map_err(|error| BenchError::Workload(error.to_string()))
    }

    #[inline(always)]
    fn wait(&mut self) -> Result<(), BenchError> {
        self.device.round()?;
        Ok(())
    }

    fn write_data(&mut self, slot: u16, bytes: &[u8]) {
        self.ring.write_data(slot, bytes);
    }

    fn read_data(&self, slot: u16, bytes: &mut [u8]) {
        self.ring.read_data(slot, bytes);
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}
