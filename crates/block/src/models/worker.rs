//! Model-checked tests of `Worker`: a submitter hands batches over to a drive's worker. Meanwhile
//! the worker goes to sleep or leaves, or another thread runs or inspects the drive's queue.
//!
//! Production code: `Worker`, its `WorkerState` in a `Disk`, and the whole path of bios through
//! `Channel` in per-drive mode. Checked: each bio completes, and no thread sleeps for ever.
//! Deadlines never pass in models. So a worker that has set a time for its next turn takes that
//! turn at once, instead of sleeping until then.
#![cfg(test)]

use alloc::sync::Arc;

use millrace_checker::plant::Plant;
use millrace_checker::{Checked, CheckedParker, ensure};
use millrace_machine::{CpuId, Doorbell, Machine, Parker, Thread};

use super::drive::{locked, served_volume};
use super::{bounded, freeze_and_look, holds_but_for, owner, poll_for, spawn};
use crate::bio::Bio;
use crate::bio::buffer::Buffer;
use crate::channel::worker::Worker;
use crate::channel::{Channel, ChannelConfig};
use crate::disk::Disk;
use crate::queue::driver::QueueKind;
use crate::queue::io_thread::IoThread;
use crate::volume::Volume;

type CheckedBell = Arc<Doorbell<Checked>>;

fn bell() -> CheckedBell {
    Arc::new(Doorbell::new(CheckedParker::new()))
}

fn worker(volume: &Volume<Checked>, bell: CheckedBell) -> Worker<Checked> {
    let mut worker = Worker::new(&IoThread { number: 0, owner: 9, bell, turn: None });
    ensure(
        worker.serve(&volume.disks()[0]).is_ok_and(|taken| taken),
        "the drive already has a worker",
    );
    worker
}

fn hand_over(volume: &Arc<Volume<Checked>>, thread: Option<IoThread<Checked>>) -> Channel<Checked> {
    let config = ChannelConfig { depth: 3, thread, ..ChannelConfig::default() };
    let mut channel = Channel::open(volume, config).expect("its queues are served");
    channel.sub.run.hint = 0;
    submit_two(&mut channel);
    channel
}

fn submit_two(channel: &mut Channel<Checked>) {
    for sector in 0..2 {
        ensure(channel.submit(Bio::read(sector, Buffer::new(512))).is_ok(), "refused");
    }
    channel.flush();
}

fn wait_for(channel: &mut Channel<Checked>, count: usize) {
    let handed = channel.wait(count, |done| ensure(done.status.is_ok(), "failed"));
    ensure(handed == count, "not all bios completed");
}

fn serve_until(worker: &mut Worker<Checked>, done: impl Fn() -> bool) {
    while !done() {
        worker.turn();
        if !done() && !worker.asks_for_turn() {
            Arc::clone(worker.bell()).sleep_unless(None, || worker.has_work() || done());
        }
    }
}

fn asleep(kind: QueueKind) {
    let (volume, notes) = served_volume(kind);
    let mut worker = worker(&volume, bell());
    let theirs = Arc::clone(&volume);
    // `Channel::open` fails if the `OwnerOnly` queue has no owner, unless the caller is an I/O
    // thread. So the submitting thread poses as an I/O thread.
    let thread = (kind == QueueKind::OwnerOnly).then(|| IoThread {
        number: 0,
        owner: 8,
        bell: bell(),
        turn: None,
    });
    let reader = Checked::spawn(
        "reader",
        Some(CpuId(0)),
        alloc::boxed::Box::new(move || wait_for(&mut hand_over(&theirs, thread), 2)),
    );
    serve_until(&mut worker, || {
        let notes = locked(&notes);
        notes.seen > 0 && notes.inside == 0
    });
    ensure(reader.join(), "the reader failed");
    ensure(locked(&notes).seen == 1, "the drive did not get the request exactly once");
}

#[test]
#[ignore = "slow; `cargo xtask models` runs this test"]
fn a_worker_that_goes_to_sleep_misses_no_batch() {
    let bugs = [
        Plant::HandoverUnmarked,
        Plant::RingSkipped,
        Plant::LastLookSkipped,
        Plant::ArmUnordered,
        Plant::RingUnordered,
        Plant::DeliverRelaxed,
        Plant::TakeDeliveredRelaxed,
    ];
    for (name, kind) in [
        ("worker asleep, anybody's queue", QueueKind::AnyThread),
        ("worker asleep, its own queue", QueueKind::OwnerOnly),
    ] {
        holds_but_for(name, bounded(3).cpus(2), &bugs, || asleep(kind));
    }
}

fn leave(kind: QueueKind) {
    let (volume, notes) = served_volume(kind);
    let bell = bell();
    let thread = match kind {
        QueueKind::AnyThread => None,
        QueueKind::OwnerOnly => Some(owner(&volume, &bell)),
    };
    let theirs = Arc::clone(&volume);
    let mut worker = worker(&volume, self::bell());
    let leaver = spawn(move || {
        worker.turn();
        drop(worker);
        drop(theirs);
    });
    let mut channel = hand_over(&volume, thread);
    wait_for(&mut channel, 2);
    ensure(leaver.join(), "the worker failed");
    ensure(locked(&notes).seen == 1, "the drive did not get the request exactly once");
    ensure(volume.disks()[0].tags_in_use() == 0, "a tag was lost");
    ensure(volume.waiting() == 0, "the volume reports waiting bio chains, but none is left");
}

#[test]
#[ignore = "slow; `cargo xtask models` runs this test"]
fn a_batch_for_a_worker_that_leaves_is_served_by_its_submitter() {
    let bugs = [Plant::LeaveUnrung, Plant::LastLookSkipped];
    for (name, kind) in [
        ("worker leaves, anybody's queue", QueueKind::AnyThread),
        ("worker leaves, its own queue", QueueKind::OwnerOnly),
    ] {
        holds_but_for(name, bounded(2).cpus(2).patience(60), &bugs, || leave(kind));
    }
}

/// A worker has a request at the drive, and another thread inspects the worker's queue just as the
/// request completes.
fn look_at_a_worker(look: fn(&Disk<Checked>)) {
    let (volume, notes) = served_volume(QueueKind::AnyThread);
    locked(&notes).held = true;
    let parker = CheckedParker::new();
    let mut worker = worker(&volume, Arc::new(Doorbell::new(parker.clone())));
    let mut channel = hand_over(&volume, None);
    let (drive_notes, worker_notes) = (Arc::clone(&notes), Arc::clone(&notes));
    worker.turn();
    let serving = spawn(move || {
        serve_until(&mut worker, || locked(&worker_notes).inside == 0);
    });
    // Lets the drive complete its request, and wakes the worker as the deadline of the worker's
    // sleep would.
    let drive = spawn(move || {
        locked(&drive_notes).held = false;
        parker.unpark();
    });
    look(&volume.disks()[0]);
    wait_for(&mut channel, 2);
    ensure(drive.join() && serving.join(), "a thread failed");
}

#[test]
#[ignore = "slow; `cargo xtask models` runs this test"]
fn a_worker_whose_queue_was_looked_at_comes_back() {
    let look = |disk: &Disk<Checked>| {
        let _ = disk.is_drained();
    };
    let (explorer, bugs) = (bounded(1).cpus(2).patience(60), [Plant::MissForgotten]);
    holds_but_for("worker looked at", explorer, &bugs, || look_at_a_worker(look));
}

/// A worker stops serving a drive, and the submitter takes its waiting bios back to a queue of its
/// own. Meanwhile another thread freezes the disk, which must not seem drained during that move.
fn leave_while_frozen() {
    let (volume, notes) = served_volume(QueueKind::OwnerOnly);
    let bell = bell();
    let thread = owner(&volume, &bell);
    let left = worker(&volume, self::bell());
    let theirs = Arc::clone(&volume);
    let reader = spawn(move || {
        let mut channel = hand_over(&theirs, Some(thread));
        drop(left);
        poll_for(&mut channel, 2);
    });
    freeze_and_look(&volume.disks()[0], &notes);
    ensure(reader.join(), "the reader failed");
    ensure(locked(&notes).seen == 1, "the drive did not get the request exactly once");
}

#[test]
#[ignore = "slow; `cargo xtask models` runs this test"]
fn a_disk_is_not_drained_while_a_workers_batch_goes_elsewhere() {
    holds_but_for("worker leaves, frozen", bounded(1), &[], leave_while_frozen);
}
