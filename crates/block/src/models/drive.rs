//! The drive of the model-checked tests. The drive completes requests at the next poll, and a test
//! can declare that no request may arrive.
//!
//! The drive's record (`DriveRecord`) is ordinary memory under a `std` mutex, which the explorer
//! does not see. Accesses to the record add no step to explore, and order no accesses of the tested
//! code.
#![cfg(test)]

extern crate std;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_checker::{Checked, ensure};
use millrace_machine::{CpuId, Machine, Topology};

use crate::bio::error::Error;
use crate::bio::limits::{Features, QueueLimits};
use crate::bio::status::Status;
use crate::disk::baseline::{BaselineConfig, Inside};
use crate::disk::{Disk, DiskConfig};
use crate::queue::driver::{
    CompletionBatch, Driver, DriverQueue, Expired, HwQueues, QueueKind, TagScope,
};
use crate::queue::request::{Dispatch, Request, Tag};
use crate::volume::serving::{Serving, ServingConfig};
use crate::volume::{Layout, Volume};

#[derive(Default)]
pub(super) struct DriveRecord {
    pub(super) closed: bool,
    /// Number of requests that the block layer has handed to the drive so far.
    pub(super) seen: u32,
    pub(super) by_queue: [u32; 2],
    pub(super) held: bool,
    pub(super) inside: u32,
}

pub(super) struct ModelDrive {
    pub(super) notes: Arc<Mutex<DriveRecord>>,
    pub(super) hw: HwQueues,
}

struct ModelQueue {
    notes: Arc<Mutex<DriveRecord>>,
    index: u16,
    inside: Vec<Tag>,
    depth: u32,
}

pub(super) fn locked(notes: &Mutex<DriveRecord>) -> MutexGuard<'_, DriveRecord> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver<Checked> for ModelDrive {
    fn capacity(&self) -> u64 {
        64
    }
    fn limits(&self) -> QueueLimits {
        let features = Features { volatile_cache: true, ..Features::default() };
        QueueLimits { features, ..QueueLimits::default() }
    }
    fn hw_queues(&self, _: &Topology) -> HwQueues {
        self.hw
    }
    fn open_queue(&self, index: u16, _: u32) -> Result<Box<dyn DriverQueue<Checked>>, Error> {
        let (notes, depth) = (Arc::clone(&self.notes), self.hw.depth);
        Ok(Box::new(ModelQueue { notes, index, inside: Vec::new(), depth }))
    }
}

impl DriverQueue<Checked> for ModelQueue {
    fn queue_rq(&mut self, rq: &Request<Checked>) -> Dispatch {
        let (closed, full) = {
            let mut notes = locked(&self.notes);
            notes.seen += 1;
            notes.by_queue[usize::from(self.index)] += 1;
            notes.inside += 1;
            (notes.closed, notes.inside > self.depth)
        };
        ensure(!closed, "a request reached a drive that was drained");
        ensure(!full, "more requests in flight than there are tags");
        self.inside.push(rq.tag());
        Dispatch::Queued
    }
    fn commit_rqs(&mut self) {}
    fn poll(&mut self, batch: &mut CompletionBatch) {
        if locked(&self.notes).held {
            return;
        }
        for tag in self.inside.drain(..) {
            batch.push(tag, Status::Ok);
            locked(&self.notes).inside -= 1;
        }
    }
    fn timeout(&mut self, _: Tag) -> Expired {
        Expired::Extend
    }
}

pub(super) fn volume(
    kind: QueueKind,
    depth: u32,
    config: DiskConfig<Checked>,
) -> (Arc<Volume<Checked>>, Arc<Mutex<DriveRecord>>) {
    let (disk, notes) = disk(kind, depth, config);
    let volume = Volume::new("v", Layout::Linear, [disk].into()).expect("one drive");
    (volume, notes)
}

fn disk(
    kind: QueueKind,
    depth: u32,
    config: DiskConfig<Checked>,
) -> (Arc<Disk<Checked>>, Arc<Mutex<DriveRecord>>) {
    let notes = Arc::new(Mutex::new(DriveRecord::default()));
    let hw = HwQueues { count: 2, depth, kind, tags: TagScope::PerDrive };
    let drive = ModelDrive { notes: Arc::clone(&notes), hw };
    // Deadlines never pass in models, so a positive wait for the serve lock would last until the
    // lock is free. With a wait of 0, a submitter that finds the lock held leaves its batch to the
    // holder. The models must cover that case.
    let config = DiskConfig {
        baseline: BaselineConfig {
            inside: Inside::One { wait: Duration::ZERO },
            ..BaselineConfig::default()
        },
        ..config
    };
    (Disk::new(Box::new(drive), config).expect("the model's settings are valid"), notes)
}

/// Creates a volume whose first drive may have a worker, which gets all batches of two or more
/// bios. The second drive is never used.
pub(super) fn served_volume(kind: QueueKind) -> (Arc<Volume<Checked>>, Arc<Mutex<DriveRecord>>) {
    let last = CpuId(Checked::topology().cpus().len() as u32 - 1);
    let config = DiskConfig { worker: Some(last), io_threads: 1, ..DiskConfig::default() };
    let (first, notes) = disk(kind, 2, config);
    let (second, _) = disk(QueueKind::AnyThread, 1, DiskConfig::default());
    let serving = ServingConfig { plug_low: 1, ..ServingConfig::of(Serving::PerDrive) };
    let volume = Volume::with_serving("v", Layout::Linear, [first, second].into(), serving);
    (volume.expect("two drives"), notes)
}
