//! What must not be held up: by whoever went away with tags, by a drive that was busy, by another
//! drive that answers nothing, or by a time limit too long to be added to a clock.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, CompletionBatch, Disk, DiskConfig, Dispatch, Driver,
    DriverQueue, Error, Expired, HwQueues, Layout, QueueKind, QueueLimits, Request, Sector,
    Serving, ServingConfig, Stack, Status, Tag, TagScope, Volume,
};
use millrace_machine::{Native, Topology};
use support::TestDrive;

fn read(sector: Sector) -> Bio {
    Bio::read(sector, Buffer::new(4096))
}

/// Submits, without waiting for anything.
fn start(channel: &mut Channel<Native>, bio: Bio) {
    channel.submit(bio).map_err(|refused| refused.reason).unwrap();
    channel.flush();
}

#[test]
fn the_longest_timeout_never_passes() {
    let drive = TestDrive::new(64);
    let knobs = Arc::clone(&drive.knobs);
    // What `timeout = "18446744073s"` comes to.
    let config = DiskConfig { timeout_ns: 18_446_744_073_000_000_000, ..DiskConfig::default() };
    let disk = Disk::new(Box::new(drive), config).unwrap();
    let mut channel =
        Channel::open(&Volume::single(disk).unwrap(), ChannelConfig::default()).unwrap();
    knobs.held.store(true, Ordering::SeqCst);
    start(&mut channel, read(0));
    channel.tick();
    assert_eq!(channel.poll(|done| panic!("{} at once", done.status)), 0);
    knobs.held.store(false, Ordering::SeqCst);
    let mut status = None;
    channel.wait(1, |done| status = Some(done.status));
    assert_eq!(status, Some(Status::Ok));
}

#[test]
fn tags_of_a_channel_that_is_gone_come_back_to_a_volume_with_one_list() {
    for stack in [Stack::Mq, Stack::Sq, Stack::Raw] {
        let drive = TestDrive { queues: 1, depth: 1, ..TestDrive::new(64) };
        let knobs = Arc::clone(&drive.knobs);
        let disk = Disk::new(Box::new(drive), DiskConfig { stack, ..DiskConfig::default() });
        let serving = ServingConfig::of(Serving::PerVolume);
        let disks = vec![disk.unwrap()];
        let volume = Volume::with_serving("v", Layout::Linear, disks, serving).unwrap();
        knobs.held.store(true, Ordering::SeqCst);
        let mut gone = Channel::open(&volume, ChannelConfig::default()).unwrap();
        gone.set_drain_ns(0);
        start(&mut gone, read(0));
        drop(gone);
        knobs.held.store(false, Ordering::SeqCst);
        let mut channel = Channel::open(&volume, ChannelConfig::default()).unwrap();
        start(&mut channel, read(16));
        let polls = (0..16).take_while(|_| channel.poll(|_| ()) == 0).count();
        assert!(polls < 16, "{stack:?}: nobody looks for the tag");
    }
}

/// A drive that takes one request at a time, and is too busy for more until it is asked.
struct OneAtATime(TestDrive);

impl Driver<Native> for OneAtATime {
    fn capacity(&self) -> Sector {
        self.0.capacity()
    }
    fn limits(&self) -> QueueLimits {
        self.0.limits()
    }
    fn hw_queues(&self, _: &Topology) -> HwQueues {
        HwQueues { count: 64, depth: 64, kind: QueueKind::AnyThread, tags: TagScope::PerQueue }
    }
    fn open_queue(&self, _: u16, _: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        Ok(Box::new(Narrow(None)))
    }
}

struct Narrow(Option<Tag>);

impl DriverQueue<Native> for Narrow {
    fn queue_rq(&mut self, rq: &Request<Native>) -> Dispatch {
        if self.0.is_some() {
            return Dispatch::DeviceBusy;
        }
        self.0 = Some(rq.tag());
        Dispatch::Queued
    }
    fn commit_rqs(&mut self) {}
    fn poll(&mut self, batch: &mut CompletionBatch) {
        if let Some(tag) = self.0.take() {
            batch.push(tag, Status::Ok);
        }
    }
    fn timeout(&mut self, _: Tag) -> Expired {
        Expired::Extend
    }
}

#[test]
fn what_a_busy_drive_refused_goes_out_with_the_completion_that_it_waited_for() {
    for stack in [Stack::Mq, Stack::Sq, Stack::Raw] {
        let config = DiskConfig { stack, ..DiskConfig::default() };
        let disk = Disk::new(Box::new(OneAtATime(TestDrive::new(256))), config).unwrap();
        let volume = Volume::single(disk).unwrap();
        let mut channel = Channel::open(&volume, ChannelConfig::default()).unwrap();
        (0..2).for_each(|n| channel.submit(read(n * 24)).map_err(|r| r.reason).unwrap());
        // Nobody else would try the second again: no completion is under way, no time is set.
        channel.flush();
        assert_eq!(volume.disks()[0].stats().requests, 2, "{stack:?}");
        assert_eq!(channel.poll(|done| assert_eq!(done.status, Status::Ok)), 2, "{stack:?}");
    }
}

#[test]
fn parts_for_a_drive_that_answers_nothing_leave_room_for_those_of_others() {
    let mut knobs = Vec::new();
    let mut disk = || {
        let mut drive = TestDrive::new(4096);
        // So that one bio is more parts than a channel has room for.
        drive.limits.max_write_zeroes_sectors = 1;
        knobs.push(Arc::clone(&drive.knobs));
        Disk::new(Box::new(drive), DiskConfig::default()).unwrap()
    };
    let disks = vec![disk(), disk(), disk()];
    let volume = Volume::new("v", Layout::Linear, disks).unwrap();
    let config = ChannelConfig { depth: 4, ..ChannelConfig::default() };
    let mut channel = Channel::open(&volume, config).unwrap();
    knobs[0].held.store(true, Ordering::SeqCst);
    start(&mut channel, Bio::write_zeroes(0, 1024).with_user_data(1));
    for round in 0..3 {
        start(&mut channel, Bio::write_zeroes(4096, 1024).with_user_data(2));
        start(&mut channel, Bio::write_zeroes(8000, 600).with_user_data(3));
        let mut done = Vec::new();
        for _ in 0..10_000 {
            channel.poll(|one| done.push((one.user_data, one.status)));
        }
        done.sort_by_key(|one| one.0);
        assert_eq!(done, [(2, Status::Ok), (3, Status::Ok)], "round {round}");
    }
    assert_eq!(channel.in_flight(), 1);
    knobs[0].held.store(false, Ordering::SeqCst);
    let mut last = None;
    channel.wait(1, |one| last = Some((one.user_data, one.status)));
    assert_eq!(last, Some((1, Status::Ok)));
}
