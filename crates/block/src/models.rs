//! Model-checked tests of the lock-free code, on a machine that explores all interleavings.
//!
//! Small tests run production code, and each must pass under every schedule that is explored.
//! `cargo xtask models` runs all tests, including slow ones, and prints the number of executions of
//! each. It uses a patched source tree that can plant bugs in single lines; a test must fail with
//! each of its planted bugs. To keep the search small:
//! - A test uses two or three threads, and tag sets of depth 1 or 2.
//! - Most tests explore only schedules with at most one, two or three preemptions.
//!
//! Deadlines never pass on this machine, so no timeout can hide a lost wake-up.
#![cfg(test)]

extern crate std;

mod delivery;
mod drive;
mod freeze;
mod groups;
mod handover;
mod resize;
mod serve;
mod tags;
mod worker;

use alloc::boxed::Box;
use alloc::sync::Arc;
use std::println;
use std::sync::Mutex;

use millrace_checker::plant::{self, Plant};
use millrace_checker::{Checked, CheckedThread, Explorer, ensure};
use millrace_machine::{Doorbell, Machine};

use crate::channel::{Channel, ChannelConfig};
use crate::disk::Disk;
use crate::queue::io_thread::IoThread;
use crate::volume::Volume;
use drive::{DriveRecord, locked};

fn spawn(body: impl FnOnce() + Send + 'static) -> CheckedThread {
    Checked::spawn("t", None, Box::new(body))
}

/// Returns an explorer with at most this many preemptions; at most two in unoptimised builds, to
/// save time.
fn bounded(preemptions: u32) -> Explorer {
    let most = if cfg!(debug_assertions) { 2 } else { u32::MAX };
    Explorer::new().preemptions(preemptions.min(most))
}

/// Returns settings of a channel that has room for one I/O. A small channel is cheap to open, and
/// the model checker opens several in each of the many executions of a test.
fn small() -> ChannelConfig<Checked> {
    ChannelConfig { depth: 1, ..ChannelConfig::default() }
}

/// Opens the first drive's first queue for an I/O thread, and returns the thread, which owns the
/// queue.
fn owner(volume: &Volume<Checked>, bell: &Arc<Doorbell<Checked>>) -> IoThread<Checked> {
    let thread = IoThread { number: 0, owner: 1, bell: Arc::clone(bell), turn: None };
    ensure(volume.disks()[0].bring_up(0, &thread).is_ok(), "the drive's queue was not opened");
    thread
}

fn poll_for(channel: &mut Channel<Checked>, count: usize) {
    let mut handed = 0;
    Checked::spin_until(u64::MAX, || {
        handed += channel.poll(|done| ensure(done.status.is_ok(), "failed"));
        handed == count
    });
}

/// Freezes a disk, and checks that nothing is dispatched between its drain and its unfreezing.
fn freeze_and_look(disk: &Disk<Checked>, notes: &Mutex<DriveRecord>) {
    disk.freeze();
    ensure(disk.wait_drained(u64::MAX), "the disk was not drained before the deadline");
    ensure(
        locked(notes).inside == 0,
        "the drive has a request in flight, but the disk was reported as drained",
    );
    locked(notes).closed = true;
    // While `closed` is true, a request that reaches the model drive fails the test.
    ensure(disk.is_drained(), "the disk got new work after it was drained");
    locked(notes).closed = false;
    disk.unfreeze();
}

/// Explores the test `body`, which must pass. If the build can plant bugs (`cargo xtask models`),
/// also checks that `body` fails with each bug in `bugs`.
fn holds_but_for(name: &str, explorer: Explorer, bugs: &[Plant], body: impl Fn()) {
    println!("{name}: {}", explorer.check(&body));
    for bug in bugs.iter().filter(|_| plant::HOOKS) {
        let found = plant::with(*bug, || explorer.find(&body));
        let failure = found.unwrap_or_else(|| panic!("{name}: {bug:?} is not found"));
        let (reason, executions) = (failure.reason, failure.executions);
        println!("{name}: {bug:?} found in execution {executions}: {reason}");
    }
}
