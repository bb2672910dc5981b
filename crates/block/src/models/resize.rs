//! Models of a volume that grows while one thread submits, or while a second thread resizes it.
//!
//! Production code: `Volume::resize`, and a channel's check of a bio's range. The model drive
//! writes its new size to a `CheckedLine`, which is memory without synchronization. If a memory
//! order in the production code is too weak, the model checker reports a data race on this memory.
//! Checked:
//! - A thread whose I/O past the old end is accepted sees the drive's new size.
//! - No two threads write the drive's size at the same time.
#![cfg(test)]
#![allow(unsafe_code)]

extern crate std;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use millrace_checker::plant::Plant;
use millrace_checker::{Checked, CheckedLine, ensure};
use millrace_machine::{Line, Thread, Topology};

use super::drive::{DriveRecord, ModelDrive};
use super::{bounded, holds_but_for, poll_for, small, spawn};
use crate::bio::Bio;
use crate::bio::buffer::Buffer;
use crate::bio::error::{Error, ErrorKind};
use crate::bio::limits::QueueLimits;
use crate::bio::status::Status;
use crate::channel::Channel;
use crate::channel::completion::Reject;
use crate::disk::{Disk, DiskConfig};
use crate::queue::driver::{Driver, DriverQueue, HwQueues, QueueKind, TagScope};
use crate::volume::Volume;

/// A drive of 64 sectors. Each call of `revalidate` makes it grow to 72 sectors, and writes the new
/// size to `medium`.
struct GrowingDrive {
    inner: ModelDrive,
    medium: Arc<CheckedLine<u64>>,
}

impl Driver<Checked> for GrowingDrive {
    fn capacity(&self) -> u64 {
        64
    }
    fn revalidate(&self) -> Result<u64, Error> {
        // SAFETY: one thread resizes at a time, and readers have seen the new size.
        unsafe { *self.medium.write() = 72 };
        Ok(72)
    }
    fn limits(&self) -> QueueLimits {
        self.inner.limits()
    }
    fn hw_queues(&self, topology: &Topology) -> HwQueues {
        self.inner.hw_queues(topology)
    }
    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<Checked>>, Error> {
        self.inner.open_queue(index, depth)
    }
}

fn volume() -> (Arc<Volume<Checked>>, Arc<CheckedLine<u64>>) {
    let medium = Arc::new(CheckedLine::new(64));
    let (kind, tags) = (QueueKind::AnyThread, TagScope::PerDrive);
    let hw = HwQueues { count: 1, depth: 1, kind, tags };
    let inner = ModelDrive { notes: Arc::new(std::sync::Mutex::new(DriveRecord::default())), hw };
    let drive = GrowingDrive { inner, medium: Arc::clone(&medium) };
    let disk = Disk::new(Box::new(drive), DiskConfig::default()).expect("a model drive");
    (Volume::single(disk).expect("one drive"), medium)
}

fn grow_under_a_submitter() {
    let (volume, medium) = volume();
    let theirs = Arc::clone(&volume);
    let reader = spawn(move || {
        let mut channel = Channel::open(&theirs, small()).expect("its queues are served");
        channel.sub.run.hint = 0;
        match channel.submit(Bio::read(64, Buffer::new(512))) {
            Ok(()) => {
                // SAFETY: written before the size grew, and by nobody afterwards.
                ensure(
                    unsafe { *medium.read() } == 72,
                    "the volume accepted an I/O past its old end before the drive had grown",
                );
                poll_for(&mut channel, 1);
            }
            Err(rejected) => {
                let outside = Reject::Invalid(Status::OutOfRange);
                ensure(rejected.reason == outside, "refused for another reason");
            }
        }
    });
    ensure(volume.resize().is_ok_and(|resized| resized.new == 72), "not grown");
    ensure(reader.join(), "the reader failed");
}

/// Two threads resize the volume at the same time. Its size watcher must be called only once.
fn grow_twice_at_a_time() {
    let (volume, _) = volume();
    // The model checker does not track atomics of `core`. So `heard` orders no other memory
    // accesses, and cannot hide a data race.
    let heard = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&heard);
    let watch = volume.watch_size(move |sectors| {
        ensure(sectors == 72, "another size");
        counts.fetch_add(1, Ordering::Relaxed);
    });
    let theirs = Arc::clone(&volume);
    let grow = |volume: &Volume<Checked>| match volume.resize() {
        Ok(resized) => ensure(resized.new == 72 && volume.capacity() == 72, "not grown"),
        Err(error) => ensure(error.kind() == ErrorKind::Busy, "refused for another reason"),
    };
    let other = spawn(move || grow(&theirs));
    grow(&volume);
    ensure(other.join(), "the other thread failed");
    ensure(heard.load(Ordering::Relaxed) == 1, "the size watcher was not called exactly once");
    drop(watch);
}

#[test]
fn who_is_served_behind_old_end_sees_drive_that_has_grown() {
    let bugs = [Plant::RaiseRelaxed, Plant::CapacityRelaxed];
    holds_but_for("growth, a submitter", bounded(2), &bugs, grow_under_a_submitter);
}

#[test]
fn two_who_make_a_volume_grow_take_turns() {
    let bugs = [Plant::SizeTurnRelaxed];
    holds_but_for("growth, twice", bounded(2), &bugs, grow_twice_at_a_time);
}
