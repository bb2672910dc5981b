//! Models of tag sets, and of hardware queues that share one tag.
//!
//! Production code: `TagSet` alone, then whole disks. Their hardware queues are run by any thread
//! (`AnyThread`), or only by the I/O thread that owns the queue (`OwnerOnly`). Checked:
//! - No two threads hold a tag at once.
//! - The next holder of a tag sees all writes of the previous holder to the tag's request.
//! - A queue that waits for a tag is woken.
#![cfg(test)]

use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_checker::plant::Plant;
use millrace_checker::{Checked, CheckedParker, Explorer, ensure};
use millrace_machine::{CpuId, Doorbell, Machine, Parker, Thread};

use super::drive::{locked, volume};
use super::{bounded, holds_but_for, small, spawn};
use crate::bio::Bio;
use crate::bio::buffer::Buffer;
use crate::channel::{Channel, ChannelConfig};
use crate::disk::DiskConfig;
use crate::queue::driver::QueueKind;
use crate::queue::io_thread::IoThread;
use crate::queue::tag::tests::waiter;
use crate::queue::tag::{TagBatch, TagSet};

fn use_tags(tags: &TagSet<Checked>, mut batch: TagBatch) {
    let mut gather = TagBatch::EMPTY;
    // If two threads held a tag, both would write its request, which is in a `CheckedLine`. The
    // explorer would report a data race.
    while let Some(mut rq) = tags.next(&mut batch) {
        rq.touch();
        rq.hctx += 1;
        tags.give(&mut gather, rq);
    }
    tags.give_rest(gather);
}

/// Runs a thread for each entry of `wants`. Each thread takes tags once, at most as many as its
/// entry says, and frees them.
fn take_and_give(depth: u32, wants: &'static [u32]) {
    let tags = Arc::new(TagSet::<Checked>::new(depth));
    let user = |want: u32| {
        let tags = Arc::clone(&tags);
        spawn(move || {
            let mut taken = None;
            Checked::spin_until(u64::MAX, || {
                taken = tags.take(&mut 0, want);
                taken.is_some()
            });
            use_tags(&tags, taken.unwrap_or(TagBatch::EMPTY));
        })
    };
    let threads: Vec<_> = wants.iter().map(|want| user(*want)).collect();
    threads.into_iter().for_each(|thread| ensure(thread.join(), "a thread failed"));
    ensure(tags.in_use() == 0, "a tag was lost");
}

#[test]
fn no_tag_is_lost_or_held_twice() {
    let bugs = [Plant::TakeRelaxed, Plant::GiveRelaxed];
    let explorer = Explorer::new().exhaustive();
    holds_but_for("1 tag, 2 threads", explorer, &bugs, || take_and_give(1, &[1, 1]));
    let explorer = bounded(3);
    holds_but_for("2 tags, 2 threads", explorer, &bugs, || take_and_give(2, &[2, 1]));
    holds_but_for("1 tag, 3 threads", explorer, &bugs, || take_and_give(1, &[1, 1, 1]));
}

/// Threads compete for a single tag: a thread that finds none joins the waiters, tries again, and
/// sleeps.
fn wait_and_wake(threads: u16) {
    let tags = Arc::new(TagSet::<Checked>::new(1));
    let sleepers: Arc<Vec<CheckedParker>> =
        Arc::new((0..threads).map(|_| CheckedParker::new()).collect());
    let user = |me: u16| {
        let (tags, sleepers) = (Arc::clone(&tags), Arc::clone(&sleepers));
        spawn(move || {
            let batch = loop {
                if let Some(batch) = tags.take(&mut 0, 1) {
                    break batch;
                }
                tags.wait(waiter(me));
                if let Some(batch) = tags.take(&mut 0, 1) {
                    break batch;
                }
                sleepers[usize::from(me)].park(None);
            };
            use_tags(&tags, batch);
            // A thread that frees tags wakes waiters as long as a tag is free, as
            // `QueueContext::run_waiter` does.
            while tags.has_waiters() {
                let Some(first) = tags.wake_one() else { break };
                sleepers[usize::from(first.hctx)].unpark();
                if !tags.has_free() {
                    break;
                }
            }
        })
    };
    let threads: Vec<_> = (0..threads).map(user).collect();
    threads.into_iter().for_each(|thread| ensure(thread.join(), "a thread failed"));
    ensure(tags.in_use() == 0, "a tag was lost");
}

#[test]
fn whoever_waits_for_a_tag_is_woken() {
    let bugs = [Plant::TakeLookRelaxed, Plant::GiveRelease, Plant::WaitersRelaxed];
    let explorer = bounded(3);
    holds_but_for("tag waiters, 2 threads", explorer, &bugs, || wait_and_wake(2));
}

fn share_a_tag(cpus: u32) {
    let (volume, notes) = volume(QueueKind::AnyThread, 1, DiskConfig::default());
    let reader = |cpu: u32| {
        let volume = Arc::clone(&volume);
        let run = move || {
            let mut channel = Channel::open(&volume, small()).expect("its queues are served");
            channel.sub.run.hint = 0;
            let bio = Bio::read(0, Buffer::new(512));
            ensure(channel.submit(bio).is_ok(), "refused");
            let mut ok = false;
            channel.wait(1, |done| ok = done.status.is_ok());
            ensure(ok, "not answered");
        };
        Checked::spawn("reader", Some(CpuId(cpu)), alloc::boxed::Box::new(run))
    };
    let threads: Vec<_> = (0..cpus).map(reader).collect();
    threads.into_iter().for_each(|thread| ensure(thread.join(), "a thread failed"));
    ensure(locked(&notes).seen == cpus, "the drive did not get every request exactly once");
    ensure(volume.disks()[0].tags_in_use() == 0, "a tag was lost");
}

#[test]
fn queue_waiting_for_a_shared_tag_is_run_by_its_giver() {
    let bugs = [Plant::TakeLookRelaxed, Plant::GiveRelease, Plant::WaitersRelaxed];
    let explorer = bounded(3).cpus(2);
    holds_but_for("shared tag, 2 queues", explorer, &bugs, || share_a_tag(2));
}

fn drive(channel: &mut Channel<Checked>, bell: &Doorbell<Checked>, is_done: impl Fn(u32) -> bool) {
    let mut handed = 0;
    loop {
        channel.poll(|done| handed += u32::from(done.status.is_ok()));
        if is_done(handed) {
            return;
        }
        bell.sleep_unless(None, || channel.has_work());
    }
}

/// Checks that two I/O threads wake each other if their hardware queues share one tag. The first
/// thread serves the read of a third thread, which sleeps until the read completes. The second
/// thread submits a read of its own.
fn owners_share_a_tag() {
    let config = DiskConfig { io_threads: 2, ..DiskConfig::default() };
    let (volume, notes) = volume(QueueKind::OwnerOnly, 1, config);
    let bells = [(); 2].map(|()| Arc::new(Doorbell::<Checked>::new(CheckedParker::new())));
    let thread = |number: u16| IoThread {
        number,
        owner: u64::from(number) + 1,
        bell: Arc::clone(&bells[usize::from(number)]),
        turn: None,
    };
    for number in 0..2 {
        let brought = volume.disks()[0].bring_up(number, &thread(number));
        ensure(brought.is_ok(), "the drive's queue was not opened");
    }
    let read = || Bio::read(0, Buffer::new(512));
    let mut mine = Channel::open(&volume, small()).expect("its queues are served");
    ensure(mine.submit(read()).is_ok(), "refused");
    mine.flush();
    let owner = |number: u16| {
        let (volume, notes, thread) = (Arc::clone(&volume), Arc::clone(&notes), thread(number));
        spawn(move || {
            let bell = Arc::clone(&thread.bell);
            let config = ChannelConfig { thread: Some(thread), ..small() };
            let mut channel = Channel::open(&volume, config).expect("its queues are served");
            channel.sub.run.hint = 0;
            if number == 0 {
                return drive(&mut channel, &bell, |_| locked(&notes).by_queue[0] == 1);
            }
            ensure(channel.submit(read()).is_ok(), "refused");
            drive(&mut channel, &bell, |handed| handed == 1);
        })
    };
    let owners = [owner(0), owner(1)];
    let mut ok = false;
    mine.wait(1, |done| ok = done.status.is_ok());
    ensure(ok, "not answered");
    owners.into_iter().for_each(|owner| ensure(owner.join(), "an owner failed"));
    ensure(volume.disks()[0].tags_in_use() == 0, "a tag was lost");
}

#[test]
#[ignore = "slow; `cargo xtask models` runs this test"]
fn owner_waiting_for_a_shared_tag_is_woken_by_its_giver() {
    let bugs = [
        Plant::SecondTakeSkipped,
        Plant::TakeLookRelaxed,
        Plant::GiveRelease,
        Plant::WaitersRelaxed,
        Plant::RingSkipped,
    ];
    let explorer = bounded(3);
    holds_but_for("shared tag, 2 owners", explorer, &bugs, owners_share_a_tag);
}
