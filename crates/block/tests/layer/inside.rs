//! Threads that find another one inside a queue that any thread may run: natively they sleep for a
//! moment, since the one inside may wait for their CPU, and lose nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::{TestDrive, thread_of};
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, CompletionBatch, Disk, DiskConfig, Dispatch, Driver,
    DriverQueue, Error, Expired, HwQueues, QueueKind, QueueLimits, Request, Sector, Status, Tag,
    TagScope, Volume, Worker,
};
use millrace_machine::{CpuId, Doorbell, Machine, Native, NativeParker, Parker, Topology};

/// Keeps a thread that polls the drive inside its queue while closed.
#[derive(Default)]
struct Gate {
    closed: AtomicBool,
    inside: AtomicBool,
}

impl Gate {
    fn wait_until(value: &AtomicBool, wanted: bool) {
        while value.load(Ordering::SeqCst) != wanted {
            thread::yield_now();
        }
    }
}

/// A drive of one queue.
struct Gated(TestDrive, Arc<Gate>);

impl Driver<Native> for Gated {
    fn capacity(&self) -> Sector {
        self.0.capacity()
    }
    fn limits(&self) -> QueueLimits {
        self.0.limits()
    }
    fn hw_queues(&self, _: &Topology) -> HwQueues {
        HwQueues { count: 1, depth: 64, kind: QueueKind::AnyThread, tags: TagScope::PerQueue }
    }
    fn open_queue(&self, _: u16, _: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        Ok(Box::new(GatedQueue(Vec::new(), Arc::clone(&self.1))))
    }
}

struct GatedQueue(Vec<Tag>, Arc<Gate>);

impl DriverQueue<Native> for GatedQueue {
    fn queue_rq(&mut self, rq: &Request<Native>) -> Dispatch {
        self.0.push(rq.tag());
        Dispatch::Queued
    }
    fn commit_rqs(&mut self) {}
    fn poll(&mut self, batch: &mut CompletionBatch) {
        if self.1.closed.load(Ordering::SeqCst) {
            self.1.inside.store(true, Ordering::SeqCst);
            Gate::wait_until(&self.1.closed, false);
        }
        while let Some(tag) = if batch.is_full() { None } else { self.0.pop() } {
            batch.push(tag, Status::Ok);
        }
    }
    fn timeout(&mut self, _: Tag) -> Expired {
        Expired::Extend
    }
}

fn volume(config: DiskConfig<Native>) -> (Arc<Volume<Native>>, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let disk = Disk::new(Box::new(Gated(TestDrive::new(64), Arc::clone(&gate))), config).unwrap();
    (Volume::single(disk).unwrap(), gate)
}

/// A thread that submits an I/O, and is kept inside the drive's queue from now on.
fn someone_inside(volume: &Arc<Volume<Native>>, gate: &Arc<Gate>) -> thread::JoinHandle<()> {
    gate.closed.store(true, Ordering::SeqCst);
    let theirs = Arc::clone(volume);
    let inside = thread::spawn(move || {
        let mut channel = Channel::open(&theirs, ChannelConfig::default()).unwrap();
        submit(&mut channel, 0);
        channel.wait(1, |done| assert_eq!(done.status, Status::Ok));
    });
    Gate::wait_until(&gate.inside, true);
    inside
}

fn submit(channel: &mut Channel<Native>, sector: Sector) {
    channel.submit(Bio::read(sector, Buffer::new(4096))).map_err(|r| r.reason).unwrap();
    channel.flush();
}

#[test]
fn who_waits_for_one_inside_sleeps_for_ten_microseconds_at_most() {
    let (volume, gate) = volume(DiskConfig::default());
    let mut channel = Channel::open(&volume, ChannelConfig::default()).unwrap();
    let inside = someone_inside(&volume, &gate);
    submit(&mut channel, 16);
    assert_eq!(channel.poll(|_| ()), 0);
    assert!(!channel.has_work(), "it would spin");
    let wake_ns = channel.sleep_until();
    assert!(wake_ns.unwrap() <= Native::now() + 10_000);
    gate.closed.store(false, Ordering::SeqCst);
    inside.join().unwrap();
    channel.wait(1, |done| assert_eq!(done.status, Status::Ok));
}

#[test]
fn worker_that_was_kept_out_sleeps_for_ten_microseconds_at_most() {
    let (volume, gate) = volume(DiskConfig { worker: Some(CpuId(0)), ..DiskConfig::default() });
    let bell = Arc::new(Doorbell::new(NativeParker::new()));
    let mut worker = Worker::new(&thread_of(u64::MAX, &bell));
    assert!(worker.serve(&volume.disks()[0]).unwrap());
    let inside = someone_inside(&volume, &gate);
    worker.turn();
    assert!(!worker.has_work(), "it would spin");
    let wake_ns = worker.sleep_until();
    assert!(wake_ns.unwrap() <= Native::now() + 10_000);
    gate.closed.store(false, Ordering::SeqCst);
    inside.join().unwrap();
    // No thread is inside the queue any more: now the worker looks again at once.
    assert!(worker.has_work());
    worker.turn();
    assert!(!worker.has_work());
}
