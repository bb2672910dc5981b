//! Workers and back pressure, on the drive made for tests.
//!
//! What a volume's submitters may rely on when others serve its drives: that they are let in again,
//! and that a worker which goes away leaves nothing behind.
#![allow(missing_docs)]

mod support;

use std::sync::Arc;

use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, Disk, DiskConfig, IoThread, Layout, Reject, Serving,
    ServingConfig, Volume, Worker,
};
use millrace_machine::{CpuId, Doorbell, Machine, Native, NativeParker, Parker};
use support::TestDrive;

/// A stripe of two drives with a place for a worker each.
fn volume(serving: ServingConfig) -> Arc<Volume<Native>> {
    let disk = |name: &str| {
        let cpu = Native::topology().cpus()[0].id;
        let config =
            DiskConfig { name: name.into(), worker: Some(CpuId(cpu.0)), ..DiskConfig::default() };
        Disk::new(Box::new(TestDrive::new(4096)), config).expect("a valid drive")
    };
    let layout = Layout::Stripe { chunk_sectors: 8 };
    Volume::with_serving("v", layout, vec![disk("a"), disk("b")], serving).expect("two disks")
}

fn worker(volume: &Volume<Native>, owner: u64) -> Worker<Native> {
    let bell = Arc::new(Doorbell::new(NativeParker::new()));
    let thread = IoThread { number: 0, owner, bell, turn: || () };
    let mut worker = Worker::new(&thread);
    let disks = volume.disks().iter();
    disks.for_each(|disk| assert!(worker.serve(disk).expect("queues are open")));
    worker
}

/// Submits reads of blocks that are no neighbours, and starts them.
fn read(channel: &mut Channel<Native>, bios: u64) {
    let bio = |n| Bio::read(n * 24, Buffer::new(4096));
    (0..bios).for_each(|n| channel.submit(bio(n)).map_err(|r| r.reason).expect("room"));
    channel.flush();
}

#[test]
fn a_channel_with_nothing_in_flight_is_let_in_however_much_waits() {
    let serving = ServingConfig {
        plug_low: 1,
        pressure_high: 1,
        pressure_low: 0,
        ..ServingConfig::of(Serving::PerDrive)
    };
    let volume = volume(serving);
    let mut worker = worker(&volume, 1);
    let open = || Channel::open(&volume, ChannelConfig::default());
    let (mut first, mut second) = (open(), open());
    read(&mut first, 16);
    read(&mut second, 4);
    assert_eq!(volume.waiting(), 20);
    let refused = second.submit(Bio::read(0, Buffer::new(512))).expect_err("too much waits");
    assert_eq!(refused.reason, Reject::Full);
    worker.turn();
    assert_eq!((first.poll(|_| ()), second.poll(|_| ()), volume.waiting()), (16, 4, 0));
    read(&mut first, 16);
    second.submit(refused.bio).map_err(|r| r.reason).expect("it has nothing in flight");
    let more = second.submit(Bio::read(0, Buffer::new(512))).expect_err("now it has");
    assert_eq!(more.reason, Reject::Full);
    worker.turn();
    assert_eq!((first.wait(16, |_| ()), second.wait(1, |_| ())), (16, 1));
}

#[test]
fn what_a_worker_was_handed_is_served_by_the_submitters_when_it_goes() {
    let volume = volume(ServingConfig { plug_low: 1, ..ServingConfig::of(Serving::PerDrive) });
    let mut worker = worker(&volume, 1);
    let mut channel = Channel::open(&volume, ChannelConfig::default());
    read(&mut channel, 32);
    assert_eq!(volume.waiting(), 32);
    worker.close();
    assert!(worker.is_idle() && !volume.disks()[0].has_worker());
    let mut next = self::worker(&volume, 2);
    drop(worker);
    assert!(volume.disks()[0].has_worker(), "the next one stays");
    next.close();
    assert_eq!(channel.wait(32, |done| assert!(done.status.is_ok())), 32);
}
