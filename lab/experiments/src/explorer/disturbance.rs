//! Disturbances of a volume in use: freeze, quiesce, dropped channels, shutdown, serving mode
//! switches, workers that leave, drives that grow or change scheduler, and a stopped process; also
//! the watchdog.
//!
//! Each disturbance is a thread that sleeps until its time. After a freeze has drained, and after a
//! quiesce has returned, the oracle treats any request that enters the drive as a violation. The
//! watchdog ends a run in which some I/O waits beyond its bound.

use std::sync::Arc;

use millrace_block::ErrorKind;
use millrace_machine::{Machine, Order, Parker, Word};
use millrace_simulator::Simulated;

use super::oracle_lock::lock_oracle;
use super::scenario::{Disturbance, DisturbanceKind};
use super::serving::ModeSpec;
use super::sharing::regroup;
use super::submitter::RunState;
use super::time::NS_PER_US;

/// Longest wait, in nanoseconds, until a drive has no requests in flight. This limit applies only
/// if some request may never complete.
const ABANDONED_NS: u64 = 10_000_000_000;

pub(super) fn disturb(state: &Arc<RunState>, disturbance: Disturbance) {
    sleep_until(state.start_ns + u64::from(disturbance.at_us) * NS_PER_US);
    match disturbance.what {
        DisturbanceKind::Freeze(drive, for_us) => freeze(state, drive as usize, for_us),
        DisturbanceKind::Quiesce(drive, for_us) => quiesce(state, drive as usize, for_us),
        DisturbanceKind::Drop(channel) => stop(state, channel as usize..channel as usize + 1),
        DisturbanceKind::Shutdown => stop(state, 0..state.scenario.channels.len()),
        DisturbanceKind::Stop(for_us) => Simulated::stop_all(u64::from(for_us) * NS_PER_US),
        DisturbanceKind::Switch(mode) => switch(state, mode),
        DisturbanceKind::Grow(drive, _) => grow(state, drive as usize),
        DisturbanceKind::Schedule(drive, order) => {
            state.volume.drives().get(drive as usize).into_iter().for_each(|disk| order.set(disk));
        }
        DisturbanceKind::Regroup(group, spec) => regroup(state.volume.groups(), group, spec),
        DisturbanceKind::Leave(worker, back_us) => {
            if let Some(handle) = state.workers.get(worker as usize) {
                handle.leave(back_us);
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

/// Returns the longest time, in nanoseconds, to wait until a drive has no request in flight. If
/// some request may never complete, the wait is at most `ABANDONED_NS`, so that the run ends before
/// the simulator's time limit.
fn drain_bound_ns(state: &RunState) -> u64 {
    let bound_ns = state.scenario.bound_ns() + state.scenario.stall_ns();
    match lock_oracle(&state.oracle).may_keep_requests() {
        true => bound_ns.min(ABANDONED_NS),
        false => bound_ns,
    }
}

fn freeze(state: &RunState, drive: usize, for_us: u32) {
    let Some(disk) = state.volume.drives().get(drive) else { return };
    disk.freeze();
    let bound_ns = drain_bound_ns(state);
    if disk.wait_drained(Simulated::now() + bound_ns) {
        let mut oracle = lock_oracle(&state.oracle);
        let inside = oracle.media[drive].inside;
        if inside > 0 {
            let text =
                format!("drive {drive} reports drained, but has {inside} requests in flight");
            oracle.accuse("freeze", text);
        }
        oracle.media[drive].frozen = true;
    } else {
        let mut oracle = lock_oracle(&state.oracle);
        if !oracle.may_keep_requests() {
            let text = format!("drive {drive} is not drained {bound_ns} ns after a freeze");
            oracle.accuse("starvation", text);
        }
    }
    sleep_until(Simulated::now() + u64::from(for_us) * NS_PER_US);
    lock_oracle(&state.oracle).media[drive].frozen = false;
    disk.unfreeze();
}

/// Grows the drive, then resizes the volume. The volume's size watcher reports the new size to the
/// oracle.
fn grow(state: &RunState, drive: usize) {
    lock_oracle(&state.oracle).media[drive].grow();
    let resized = loop {
        match state.volume.resize() {
            Err(error) if error.kind() == ErrorKind::Busy => Simulated::charge(1_000),
            resized => break resized,
        }
    };
    let mut oracle = lock_oracle(&state.oracle);
    match resized {
        Ok(resized) if resized.new <= oracle.map.told => {}
        resized => oracle
            .accuse("capacity", format!("the volume did not announce its new size: {resized:?}")),
    }
}

fn switch(state: &RunState, mode: ModeSpec) {
    // Load `switching` before the compare-exchange, because a failed compare-exchange also takes
    // the cache line away from the other waiting threads.
    let turn = || {
        state.switching.load(Order::Relaxed) == 0
            && state.switching.compare_exchange(0, 1, Order::Acquire, Order::Relaxed).is_ok()
    };
    Simulated::spin_until(u64::MAX, turn);
    let bound_ns = drain_bound_ns(state);
    let switched = state.volume.switch_serving(mode.into(), Simulated::now() + bound_ns);
    state.switching.store(0, Order::Release);
    let mut oracle = lock_oracle(&state.oracle);
    if !switched && !oracle.may_keep_requests() {
        let text = format!(
            "the volume still has requests in flight {bound_ns} ns after it began to change its \
             serving mode"
        );
        oracle.accuse("starvation", text);
    }
}

fn quiesce(state: &RunState, drive: usize, for_us: u32) {
    let Some(disk) = state.volume.drives().get(drive) else { return };
    disk.quiesce();
    lock_oracle(&state.oracle).media[drive].quiesced = true;
    sleep_until(Simulated::now() + u64::from(for_us) * NS_PER_US);
    lock_oracle(&state.oracle).media[drive].quiesced = false;
    disk.unquiesce();
}

fn stop(state: &RunState, channels: std::ops::Range<usize>) {
    for channel in channels {
        if let Some(stop) = lock_oracle(&state.oracle).stop.get_mut(channel) {
            *stop = true;
        }
        if let Some(bell) = state.bells.get(channel) {
            bell.ring();
        }
    }
}

/// Watchdog: panics if an I/O takes longer than the scenario allows, as in a livelock of polling
/// threads. Returns when all submitters are done.
pub(super) fn watch(state: &RunState) {
    let bound_ns = state.scenario.bound_ns();
    while state.busy() > 0 {
        let now_ns = Simulated::now();
        let mut oracle = lock_oracle(&state.oracle);
        oracle.check_patience(now_ns);
        let guilty = oracle.violation.clone();
        drop(oracle);
        if let Some(violation) = guilty {
            panic!("{}: {}", violation.kind, violation.detail);
        }
        state.watchdog.park(Some(now_ns + bound_ns / 2));
    }
}
