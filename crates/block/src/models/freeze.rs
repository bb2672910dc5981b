//! Freezing a disk against a submitter: once it is drained, nothing reaches the drive.
//!
//! Production code: the whole path of a bio through `Channel` and `Disk` in three settings, against
//! `freeze`, `wait_drained` and `unfreeze`. Checked: the window between the last two is empty, and
//! the bio is served afterwards or before, once.
#![cfg(test)]

use alloc::sync::Arc;

use millrace_machine::checked::{Checked, ensure};
use millrace_machine::plant::Plant;
use millrace_machine::{Machine, Thread};

use super::drive::{locked, volume};
use super::{bounded, holds_but_for, small, spawn};
use crate::bio::Bio;
use crate::buffer::Buffer;
use crate::channel::Channel;
use crate::disk::{DiskConfig, Stack};
use crate::driver::QueueKind;
use crate::queues::Spread;

/// One thread reads, another freezes the disk, looks, and lets it go on.
fn freeze(config: &DiskConfig<Checked>) {
    let (volume, notes) = volume(QueueKind::AnyThread, 1, config.clone());
    let theirs = Arc::clone(&volume);
    let reader = spawn(move || {
        let mut channel = Channel::open(&theirs, small());
        channel.run.hint = 0;
        let bio = Bio::read(0, Buffer::new(512));
        ensure(channel.submit(bio).is_ok(), "refused");
        let mut handed = 0;
        Checked::spin_until(u64::MAX, || {
            handed += channel.poll(|done| ensure(done.status.is_ok(), "failed"));
            handed == 1
        });
    });
    let disk = &volume.disks()[0];
    disk.freeze();
    ensure(disk.wait_drained(u64::MAX), "drained at its deadline");
    ensure(locked(&notes).inside == 0, "drained, and a request is in the drive");
    locked(&notes).closed = true;
    // Anything that others do now, they do in this window.
    ensure(disk.is_drained(), "something came in after it was drained");
    locked(&notes).closed = false;
    disk.unfreeze();
    ensure(reader.join(), "the reader failed");
    ensure(locked(&notes).seen == 1, "the request did not reach the drive once");
}

#[test]
fn nothing_reaches_the_drive_between_drained_and_unfreeze() {
    let explorer = bounded(2);
    let bugs = [Plant::FreezeMissesServers];
    holds_but_for("freeze, private queues", explorer, &bugs, || freeze(&DiskConfig::default()));
    let shared = DiskConfig { software_queues: Spread::One, ..DiskConfig::default() };
    let bugs = [Plant::FreezeMissesQueues];
    holds_but_for("freeze, a shared queue", explorer, &bugs, || freeze(&shared));
    let raw = DiskConfig { stack: Stack::Raw, ..DiskConfig::default() };
    let bugs = [Plant::FreezeMissesServers];
    holds_but_for("freeze, raw", explorer, &bugs, || freeze(&raw));
}
