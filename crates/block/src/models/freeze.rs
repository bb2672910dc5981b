//! Model of freezing a disk while a thread submits: once drained, nothing reaches the drive.
//!
//! Production code: the whole path of a bio through `Channel` and `Disk` (with private, shared and
//! no software queues), `freeze`, `wait_drained` and `unfreeze`. Checked: no request is dispatched
//! between `wait_drained` and `unfreeze`, and the bio is served once, before or after.
#![cfg(test)]

use alloc::sync::Arc;

use millrace_checker::plant::Plant;
use millrace_checker::{Checked, CheckedParker, ensure};
use millrace_machine::{Doorbell, Parker, Thread};

use super::drive::{locked, volume};
use super::{bounded, freeze_and_look, holds_but_for, owner, poll_for, small, spawn};
use crate::bio::Bio;
use crate::bio::buffer::Buffer;
use crate::channel::{Channel, ChannelConfig};
use crate::disk::baseline::Stack;
use crate::disk::{Disk, DiskConfig};
use crate::queue::Spread;
use crate::queue::driver::QueueKind;

fn freeze(config: &DiskConfig<Checked>) {
    let (volume, notes) = volume(QueueKind::AnyThread, 1, config.clone());
    let theirs = Arc::clone(&volume);
    let reader = spawn(move || {
        let mut channel = Channel::open(&theirs, small()).expect("its queues are served");
        channel.sub.run.hint = 0;
        let bio = Bio::read(0, Buffer::new(512));
        ensure(channel.submit(bio).is_ok(), "refused");
        poll_for(&mut channel, 1);
    });
    freeze_and_look(&volume.disks()[0], &notes);
    ensure(reader.join(), "the reader failed");
    ensure(locked(&notes).seen == 1, "the drive did not get the request exactly once");
}

/// Checks that a queue's owner gets its completion even if another thread holds the serve lock. The
/// owner, an I/O thread, submits a read and sleeps until the drive completes the read. Meanwhile,
/// another thread takes the queue's serve lock for a moment to inspect the disk.
fn look_at_an_owner(look: fn(&Disk<Checked>)) {
    let (volume, notes) = volume(QueueKind::OwnerOnly, 1, DiskConfig::default());
    locked(&notes).held = true;
    let parker = CheckedParker::new();
    let bell = Arc::new(Doorbell::<Checked>::new(parker.clone()));
    let thread = owner(&volume, &bell);
    let theirs = Arc::clone(&volume);
    let owner = spawn(move || {
        let config = ChannelConfig { thread: Some(thread), ..small() };
        let mut channel = Channel::open(&theirs, config).expect("its queues are served");
        channel.sub.run.hint = 0;
        ensure(channel.submit(Bio::read(0, Buffer::new(512))).is_ok(), "refused");
        let mut handed = 0;
        while handed == 0 {
            handed += channel.poll(|done| ensure(done.status.is_ok(), "failed"));
            if handed == 0 {
                bell.sleep_unless(None, || channel.has_work());
            }
        }
    });
    // The drive completes the read and wakes the queue's owner, as an io_uring completion would.
    let drive = spawn(move || {
        locked(&notes).held = false;
        parker.unpark();
    });
    look(&volume.disks()[0]);
    ensure(drive.join() && owner.join(), "a thread failed");
}

#[test]
#[ignore = "slow; `cargo xtask models` runs this test"]
fn an_owner_that_finds_its_queue_looked_at_comes_back() {
    let look = |disk: &Disk<Checked>| {
        let _ = disk.is_drained();
    };
    let (explorer, bugs) = (bounded(2).patience(60), [Plant::OwnerGivesUp]);
    holds_but_for("owner looked at", explorer, &bugs, || look_at_an_owner(look));
}

#[test]
#[ignore = "slow; `cargo xtask models` runs this test"]
fn nothing_reaches_the_drive_between_drained_and_unfreeze() {
    let explorer = bounded(2);
    let bugs = [Plant::FreezeMissesServers];
    holds_but_for("freeze, private queues", explorer, &bugs, || freeze(&DiskConfig::default()));
    let shared = DiskConfig { software_queues: Spread::One, ..DiskConfig::default() };
    let bugs = [Plant::FreezeMissesQueues];
    holds_but_for("freeze, a shared queue", explorer, &bugs, || freeze(&shared));
    let raw = DiskConfig { baseline: Stack::Raw.into(), ..DiskConfig::default() };
    let bugs = [Plant::FreezeMissesServers];
    holds_but_for("freeze, raw", explorer, &bugs, || freeze(&raw));
}
