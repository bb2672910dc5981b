//! What is done to a volume while it is used: freeze, quiesce, drop, shutdown, switch of its mode,
//! workers that leave, drives that grow; and the watchdog.
//!
//! Each disturbance is a thread of its own that sleeps until its time. After a freeze has drained,
//! and after a quiesce has returned, the drive is closed in the judge: a request that enters it is
//! a violation. The watchdog ends a run in which some I/O waits beyond its bound.

use std::sync::Arc;

use millrace_block::ErrorKind;
use millrace_machine::{Machine, Order, Parker, Simulated, Word};

use super::judge::hold;
use super::scenario::{Disturbance, What};
use super::serving::ModeSpec;
use super::submitter::Stage;

/// Sleeps until a time, and does one thing.
pub(super) fn disturb(stage: &Arc<Stage>, disturbance: Disturbance, start_ns: u64) {
    sleep_until(start_ns + u64::from(disturbance.at_us) * 1_000);
    match disturbance.what {
        What::Freeze(drive, for_us) => freeze(stage, drive as usize, for_us),
        What::Quiesce(drive, for_us) => quiesce(stage, drive as usize, for_us),
        What::Drop(channel) => stop(stage, channel as usize..channel as usize + 1),
        What::Shutdown => stop(stage, 0..stage.scenario.channels.len()),
        What::Switch(mode) => switch(stage, mode),
        What::Grow(drive, _) => grow(stage, drive as usize),
        What::Leave(worker, back_us) => {
            if let Some(post) = stage.workers.get(worker as usize) {
                post.leave(back_us);
            }
        }
    }
}

fn sleep_until(time_ns: u64) {
    let parker = <Simulated as Machine>::Parker::new();
    while Simulated::now() < time_ns {
        parker.park(Some(time_ns));
    }
}

fn freeze(stage: &Stage, drive: usize, for_us: u32) {
    let Some(disk) = stage.volume.disks().get(drive) else { return };
    let bound_ns = stage.scenario.bound_ns();
    disk.freeze();
    let bound_ns = bound_ns + stage.scenario.stall_ns();
    if disk.wait_drained(Simulated::now() + bound_ns) {
        let mut judge = hold(&stage.court);
        let inside = judge.media[drive].inside;
        if inside > 0 {
            let text = format!("drive {drive} is drained, with {inside} requests inside");
            judge.accuse("freeze", text);
        }
        judge.media[drive].frozen = true;
    } else {
        let mut judge = hold(&stage.court);
        if !judge.may_keep_requests() {
            let text = format!("drive {drive} is not drained {bound_ns} ns after a freeze");
            judge.accuse("starvation", text);
        }
    }
    sleep_until(Simulated::now() + u64::from(for_us) * 1_000);
    hold(&stage.court).media[drive].frozen = false;
    disk.unfreeze();
}

/// The drive grows, then the volume; who watches tells the judge.
fn grow(stage: &Stage, drive: usize) {
    hold(&stage.court).media[drive].grow();
    let resized = loop {
        match stage.volume.resize() {
            Err(error) if error.kind() == ErrorKind::Busy => Simulated::charge(1_000),
            resized => break resized,
        }
    };
    let mut judge = hold(&stage.court);
    match resized {
        Ok(resized) if resized.new <= judge.map.told => {}
        resized => judge.accuse("capacity", format!("it was not told of {resized:?}")),
    }
}

/// Changes the mode, one change at a time.
fn switch(stage: &Stage, mode: ModeSpec) {
    // A look first: failed exchanges of two threads would wake each other for ever.
    let turn = || {
        stage.switching.load(Order::Relaxed) == 0
            && stage.switching.compare_exchange(0, 1, Order::Acquire, Order::Relaxed).is_ok()
    };
    Simulated::spin_until(u64::MAX, turn);
    let bound_ns = stage.scenario.bound_ns() + stage.scenario.stall_ns();
    let switched = stage.volume.switch_serving(mode.into(), Simulated::now() + bound_ns);
    stage.switching.store(0, Order::Release);
    let mut judge = hold(&stage.court);
    if !switched && !judge.may_keep_requests() {
        let text = format!("the volume is not drained {bound_ns} ns after a switch began");
        judge.accuse("starvation", text);
    }
}

fn quiesce(stage: &Stage, drive: usize, for_us: u32) {
    let Some(disk) = stage.volume.disks().get(drive) else { return };
    disk.quiesce();
    hold(&stage.court).media[drive].quiesced = true;
    sleep_until(Simulated::now() + u64::from(for_us) * 1_000);
    hold(&stage.court).media[drive].quiesced = false;
    disk.unquiesce();
}

fn stop(stage: &Stage, channels: std::ops::Range<usize>) {
    for channel in channels {
        if let Some(stop) = hold(&stage.court).stop.get_mut(channel) {
            *stop = true;
        }
        if let Some(bell) = stage.bells.get(channel) {
            bell.ring();
        }
    }
}

/// Looks now and then whether some I/O waits for too long, until all submitters are done.
///
/// # Panics
/// If one does: nothing else ends a run whose threads wait for each other by polling.
pub(super) fn watch(stage: &Stage) {
    let bound_ns = stage.scenario.bound_ns();
    while stage.busy() > 0 {
        let now_ns = Simulated::now();
        let mut judge = hold(&stage.court);
        judge.check_patience(now_ns);
        let guilty = judge.violation.clone();
        drop(judge);
        if let Some(violation) = guilty {
            panic!("{}: {}", violation.kind, violation.detail);
        }
        stage.watchdog.park(Some(now_ns + bound_ns / 2));
    }
}
