//! Queues that belong to threads, on the drive made for tests.
//!
//! An owner-only queue is opened by its thread, serves it, and nobody else gets it.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, Disk, DiskConfig, ErrorKind, IoThread, Op, QueueKind,
    Status, Volume,
};
use millrace_machine::{Doorbell, Native, NativeParker, Parker};
use support::{Knobs, TestDrive, pattern, run};

fn owned_disk(io_threads: u16) -> (Arc<Disk<Native>>, Arc<Knobs>) {
    let mut drive = TestDrive::new(4096);
    drive.kind = QueueKind::OwnerOnly;
    let knobs = Arc::clone(&drive.knobs);
    let config = DiskConfig { io_threads, ..DiskConfig::default() };
    (Disk::new(Box::new(drive), config).unwrap(), knobs)
}

fn bell() -> Arc<Doorbell<Native>> {
    Arc::new(Doorbell::new(NativeParker::new()))
}

fn open(disk: &Arc<Disk<Native>>, number: u16, owner: u64) -> Channel<Native> {
    let thread = Some(IoThread { number, owner, bell: bell(), turn: None });
    let volume = Volume::single(Arc::clone(disk)).unwrap();
    Channel::open(&volume, ChannelConfig { thread, ..ChannelConfig::default() }).unwrap()
}

#[test]
fn a_queue_of_a_thread_serves_that_thread_and_is_refused_to_others() {
    let (disk, knobs) = owned_disk(2);
    disk.bring_up(0, 1, bell()).unwrap();
    disk.bring_up(0, 1, bell()).expect("it is this thread's already");
    let refused = disk.bring_up(0, 2, bell()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    disk.bring_up(1, 2, bell()).expect("the other queue is free");
    let mut channel = open(&disk, 0, 1);
    assert_eq!(run(&mut channel, Bio::write(16, pattern(8, 7))).0, Status::Ok);
    let (_, bio) = run(&mut channel, Bio::read(16, Buffer::new(4096)));
    assert_eq!(bio.into_buffer().as_deref(), Some(&pattern(8, 7)[..]));
    assert_eq!(knobs.given(Op::Write).len(), 1);
}

#[test]
fn a_channel_of_no_thread_is_refused_where_queues_belong_to_threads() {
    let (disk, _) = owned_disk(1);
    let volume = Volume::single(disk).unwrap();
    let refused = Channel::open(&volume, ChannelConfig::default()).err().expect("nobody serves it");
    assert_eq!(refused.kind(), ErrorKind::NotSupported);
}
