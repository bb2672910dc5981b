//! Models of handing work over to the thread that owns or serves a hardware queue.
//!
//! Production code: the whole path of a bio through `Channel` and `Disk`, from submission to
//! completion. The queue's owner may be falling asleep, and a serving thread may be about to leave.
//! Each bio must reach the drive once and complete, and no thread may sleep for ever.
#![cfg(test)]

use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_checker::plant::Plant;
use millrace_checker::{Checked, CheckedParker, ensure};
use millrace_machine::{CpuId, Doorbell, Machine, Parker, Thread};

use super::drive::{locked, volume};
use super::{bounded, holds_but_for, owner, small, spawn};
use crate::bio::Bio;
use crate::bio::buffer::Buffer;
use crate::channel::{Channel, ChannelConfig};
use crate::disk::DiskConfig;
use crate::queue::driver::QueueKind;
use crate::volume::Volume;

fn read_one(volume: &Arc<Volume<Checked>>) {
    one(volume, Bio::read(0, Buffer::new(512)));
}

fn one(volume: &Arc<Volume<Checked>>, bio: Bio) {
    let mut channel = Channel::open(volume, small()).expect("its queues are served");
    channel.sub.run.hint = 0;
    ensure(channel.submit(bio).is_ok(), "refused");
    let mut ok = false;
    channel.wait(1, |done| ok = done.status.is_ok());
    ensure(ok, "not answered");
}

/// A thread without a queue submits a read. The queue's owner serves the queue, or sleeps if idle.
fn serve_another() {
    let (volume, notes) = volume(QueueKind::OwnerOnly, 1, DiskConfig::default());
    let bell = Arc::new(Doorbell::<Checked>::new(CheckedParker::new()));
    let thread = owner(&volume, &bell);
    let theirs = Arc::clone(&volume);
    let reader = spawn(move || read_one(&theirs));
    let config = ChannelConfig { thread: Some(thread), ..small() };
    let mut channel = Channel::open(&volume, config).expect("its queues are served");
    channel.sub.run.hint = 0;
    while locked(&notes).seen == 0 {
        channel.poll(|_| ensure(false, "the channel got a bio of another channel"));
        if locked(&notes).seen == 0 {
            bell.sleep_unless(None, || channel.has_work());
        }
    }
    ensure(reader.join(), "the reader failed");
    ensure(locked(&notes).seen == 1, "the drive did not get the request exactly once");
}

#[test]
fn an_owner_that_goes_to_sleep_misses_no_work() {
    let bugs = [
        Plant::RingSkipped,
        Plant::LastLookSkipped,
        Plant::ArmUnordered,
        Plant::RingUnordered,
        Plant::DeliverRelaxed,
        Plant::TakeDeliveredRelaxed,
    ];
    let explorer = bounded(3);
    holds_but_for("owner asleep", explorer, &bugs, serve_another);
}

fn share_a_queue(threads: usize) {
    let (volume, notes) = volume(QueueKind::AnyThread, 2, DiskConfig::default());
    let reader = |_| {
        let volume = Arc::clone(&volume);
        spawn(move || read_one(&volume))
    };
    let readers: Vec<_> = (0..threads).map(reader).collect();
    readers.into_iter().for_each(|reader| ensure(reader.join(), "a reader failed"));
    ensure(
        locked(&notes).seen == threads as u32,
        "the drive did not get every request exactly once",
    );
    ensure(volume.disks()[0].tags_in_use() == 0, "a tag was lost");
}

#[test]
#[ignore = "slow; `cargo xtask models` runs this test"]
fn a_latecomer_is_served_by_whoever_is_inside() {
    let bugs = [Plant::FlagRelaxed, Plant::EnterRelaxed, Plant::LeaveRelaxed];
    let explorer = bounded(2).patience(60);
    holds_but_for("shared queue, 2 readers", explorer, &bugs, || share_a_queue(2));
}

/// Two threads on different CPUs flush one drive. A flush that arrives while another one is in
/// flight waits, and is sent after that flush has completed.
fn flush_together() {
    let (volume, notes) = volume(QueueKind::AnyThread, 2, DiskConfig::default());
    let flusher = |cpu: u32| {
        let volume = Arc::clone(&volume);
        let run = move || one(&volume, Bio::flush());
        Checked::spawn("flusher", Some(CpuId(cpu)), alloc::boxed::Box::new(run))
    };
    let flushers: Vec<_> = (0..2).map(flusher).collect();
    flushers.into_iter().for_each(|flusher| ensure(flusher.join(), "a flusher failed"));
    ensure(locked(&notes).seen == 2, "not every flush reached the drive");
    ensure(volume.disks()[0].tags_in_use() == 0, "a tag was lost");
}

#[test]
fn a_flush_that_waits_for_another_is_sent_when_that_is_done() {
    let bugs = [Plant::ArmUnordered, Plant::RingUnordered, Plant::LastLookSkipped];
    let explorer = bounded(3).cpus(2).patience(100);
    holds_but_for("two flushes", explorer, &bugs, flush_together);
}
