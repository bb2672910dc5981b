//! Models of the serve lock and of the bitmap of software queues that have work.
//!
//! No two threads may hold the lock at once. A thread that finds the lock held leaves its work to
//! the holder, and no such work may be lost. Production code: `ServeLock` and the bitmap `pending`
//! of a `HardwareQueue`. The work of a software queue is in a `CheckedLine`, memory without
//! synchronization of its own. So the model checker reports a data race if the memory orders of the
//! lock or of the bitmap are too weak.
#![cfg(test)]
#![allow(unsafe_code)]

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_checker::plant::Plant;
use millrace_checker::{Checked, CheckedLine, Explorer, ensure, meter_locks, unmeter_locks};
use millrace_machine::{Line, Machine, Order, Thread};

use super::{bounded, holds_but_for, spawn};
use crate::queue::HardwareQueue;
use crate::queue::controller::QueueTags;
use crate::queue::driver::QueueKind;
use crate::queue::tag::TagSet;

struct ServeModel {
    hctx: HardwareQueue<Checked>,
    /// State of each software queue's work: 0 for no work, 1 for submitted work, 2 for work that is
    /// done.
    work: Vec<CheckedLine<u32>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MeterUse {
    Never,
    ForAWhile,
    On,
}

/// Runs a submitting thread for each software queue in `ctxs`, with lock statistics on or off as
/// `asks` says. After all threads have ended, all work must be done and the serve lock must be
/// free.
fn submit(ctxs: &'static [usize], asks: MeterUse) {
    unmeter_locks();
    let most = ctxs.iter().max().map_or(0, |ctx| ctx + 1);
    let scene = Arc::new(ServeModel {
        hctx: HardwareQueue::new(
            0,
            QueueKind::AnyThread,
            most,
            QueueTags { tags: Arc::new(TagSet::new(1)), depth_max: None },
        ),
        work: (0..most).map(|_| CheckedLine::new(0)).collect(),
    });
    let submitter = |ctx: usize| {
        let scene = Arc::clone(&scene);
        spawn(move || scene.submit(ctx))
    };
    let threads: Vec<_> = ctxs.iter().map(|ctx| submitter(*ctx)).collect();
    if asks != MeterUse::Never {
        meter_locks();
        scene.hctx.serve.meter();
    }
    if asks == MeterUse::ForAWhile {
        // Lock statistics are on during this fence. The model checker can switch to the submitters
        // here, so that they run with statistics on.
        Checked::fence(Order::SeqCst);
        unmeter_locks();
    }
    threads.into_iter().for_each(|thread| ensure(thread.join(), "a thread failed"));
    for ctx in ctxs {
        // SAFETY: all threads have ended.
        let state = unsafe { *scene.work[*ctx].read() };
        ensure(state == 2, "work was lost");
    }
    let served = scene.hctx.serve.try_enter().map(|serving| serving.in_flight.count());
    ensure(served == Some(ctxs.len() as u32), "the queue was left locked");
}

impl ServeModel {
    fn submit(&self, ctx: usize) {
        // SAFETY: no thread reads the work before it is marked.
        unsafe { *self.work[ctx].write() = 1 };
        self.hctx.pending.mark(ctx);
        let mut inside = self.hctx.serve.enter_or_flag();
        while let Some(mut serving) = inside {
            self.hctx.pending.take(|ctx| {
                // SAFETY: the thread that takes the mark owns the work.
                let work = unsafe { &mut *self.work[ctx].write() };
                ensure(*work == 1, "an item of work was done twice, or before it was submitted");
                *work = 2;
                let done = serving.in_flight.count() + 1;
                serving.in_flight.pretend(done);
            });
            inside = serving.leave();
        }
    }
}

#[test]
fn work_of_latecomers_is_done_and_never_are_two_inside() {
    let bugs =
        [Plant::EnterRelaxed, Plant::LeaveRelaxed, Plant::FlagRelaxed, Plant::TakePendingRelaxed];
    let explorer = Explorer::new().exhaustive();
    holds_but_for("serve lock, 2 threads", explorer, &bugs, || submit(&[0, 1], MeterUse::Never));
}

#[test]
fn a_flag_found_set_publishes_no_work() {
    // The pending marks of software queues 0 and 64 are in two words of the bitmap. A thread that
    // sees the mark in one word has not thereby seen the mark in the other word.
    let explorer = bounded(3);
    let bugs = [Plant::FlagAssumed, Plant::StayRelaxed];
    holds_but_for("serve lock, 3 threads", explorer, &bugs, || {
        submit(&[0, 1, 64], MeterUse::Never);
    });
}

#[test]
fn statistics_in_between_lose_no_work_and_admit_nobody() {
    let bugs =
        [Plant::EnterRelaxed, Plant::LeaveRelaxed, Plant::FlagRelaxed, Plant::TakePendingRelaxed];
    for (name, asks) in [("asked", MeterUse::On), ("asked for a while", MeterUse::ForAWhile)] {
        let name = format!("serve lock, 2 threads, {name}");
        holds_but_for(&name, bounded(3), &bugs, move || submit(&[0, 1], asks));
    }
    unmeter_locks();
}
