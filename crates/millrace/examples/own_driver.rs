//! A custom driver: a drive in a plain vector that stores its bytes inverted.
//!
//! The driver itself is everything between `use` and `main`, less than 70 lines. A driver reports
//! its size and features, and opens hardware queues. A queue gets requests, each with a tag, starts
//! them, and reports the tags of completed ones. The block layer does the rest: splitting, merging,
//! tags, timeouts and statistics. `cargo run -p millrace --example own_driver`

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use millrace::driver::{
    CompletionBatch, Dispatch, Driver, DriverQueue, Expired, HwQueues, QueueKind, Request, Tag,
    TagScope, copy_from_request, copy_to_request,
};
use millrace::{
    BlockDevice, Disk, DiskConfig, Layout, Native, Op, QueueLimits, Sector, Status, Topology,
    Volume,
};

/// Drive whose bytes are shared by all its queues.
struct Inverted(Arc<Mutex<Vec<u8>>>);

impl Driver<Native> for Inverted {
    fn capacity(&self) -> Sector {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() as Sector / 512
    }

    fn limits(&self) -> QueueLimits {
        QueueLimits::default()
    }

    /// Offers up to 64 queues with 32 tags each, which any submitting thread may run.
    fn hw_queues(&self, _: &Topology) -> HwQueues {
        HwQueues { count: 64, depth: 32, kind: QueueKind::AnyThread, tags: TagScope::PerQueue }
    }

    fn open_queue(&self, _: u16, _: u32) -> Result<Box<dyn DriverQueue<Native>>, millrace::Error> {
        Ok(Box::new(Queue { bytes: Arc::clone(&self.0), done: Vec::new() }))
    }
}

/// Hardware queue that executes a request at once and reports it at the next poll.
struct Queue {
    bytes: Arc<Mutex<Vec<u8>>>,
    done: Vec<(Tag, Status)>,
}

impl DriverQueue<Native> for Queue {
    fn queue_rq(&mut self, rq: &Request<Native>) -> Dispatch {
        let start = rq.sector() as usize * 512;
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        // The block layer has checked that the request lies within the capacity.
        let place = &mut bytes[start..start + rq.len_bytes() as usize];
        let status = match rq.op() {
            Op::Read => {
                let plain: Vec<u8> = place.iter().map(|byte| !byte).collect();
                copy_to_request(rq, &plain);
                Status::Ok
            }
            Op::Write => {
                copy_from_request(rq, place);
                place.iter_mut().for_each(|byte| *byte = !*byte);
                Status::Ok
            }
            Op::Flush => Status::Ok,
            Op::Discard | Op::WriteZeroes => Status::NotSupported,
        };
        self.done.push((rq.tag(), status));
        Dispatch::Queued
    }

    /// A driver that collects requests would start them all here, with one system call.
    fn commit_rqs(&mut self) {}

    fn poll(&mut self, batch: &mut CompletionBatch) {
        while !batch.is_full() {
            let Some((tag, status)) = self.done.pop() else { return };
            batch.push(tag, status);
        }
    }

    fn timeout(&mut self, _: Tag) -> Expired {
        Expired::Extend
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    run()
}

/// Makes a disk of the driver and a volume of the disk, and does I/O on it.
pub fn run() -> Result<(), Box<dyn Error>> {
    let bytes = Arc::new(Mutex::new(vec![!0; 1 << 20]));
    let config = DiskConfig { name: "inverted".into(), ..DiskConfig::default() };
    let disk = Disk::new(Box::new(Inverted(Arc::clone(&bytes))), config)?;
    let volume = Volume::new("v", Layout::Linear, vec![disk])?;
    let mut device = BlockDevice::open(&volume)?;
    device.write_at(512, &[0x0f; 512])?;
    let mut read = [0; 1024];
    device.read_at(0, &mut read)?;
    assert!(read[..512] == [0; 512] && read[512..] == [0x0f; 512]);
    let kept = bytes.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(kept[512], 0xf0, "the drive keeps it inverted");
    Ok(())
}
