//! Models of the lock-free parts, run on the checked machine: small scenes of the production code,
//! each passing under every choice within its bound, and, in the patched tree of `cargo xtask
//! models`, failing with a bug planted in one line.
//!
//! Bounds: maps of one word, tag sets of depth 1 or 2, two or three threads, two or three
//! preemptions, or any number. `cargo xtask models` runs them, those that take long included, and
//! prints how many executions each took. No deadline ever passes here, so a lost wake-up cannot
//! hide behind a timeout.
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

use millrace_checker::{Checked, CheckedThread, Explorer, ensure};
use millrace_machine::plant::{self, Plant};
use millrace_machine::{Doorbell, Machine};

use crate::channel::{Channel, ChannelConfig};
use crate::disk::Disk;
use crate::queue::io_thread::IoThread;
use crate::volume::Volume;
use drive::{Notes, locked};

/// Starts a thread of a model.
fn spawn(body: impl FnOnce() + Send + 'static) -> CheckedThread {
    Checked::spawn("t", None, Box::new(body))
}

/// Explores with at most this many preemptions, and at most two without optimisation, to save time.
fn bounded(preemptions: u32) -> Explorer {
    let most = if cfg!(debug_assertions) { 2 } else { u32::MAX };
    Explorer::new().preemptions(preemptions.min(most))
}

/// A channel with few slots: models open many.
fn small() -> ChannelConfig<Checked> {
    ChannelConfig { depth: 1, ..ChannelConfig::default() }
}

/// Brings the first drive's first queue up, for the I/O thread given, which owns it.
fn owner(volume: &Volume<Checked>, bell: &Arc<Doorbell<Checked>>) -> IoThread<Checked> {
    let thread = IoThread { number: 0, owner: 1, bell: Arc::clone(bell), turn: None };
    ensure(volume.disks()[0].bring_up(0, &thread).is_ok(), "not brought up");
    thread
}

/// Polls until so many bios are back, all well.
fn poll_for(channel: &mut Channel<Checked>, count: usize) {
    let mut handed = 0;
    Checked::spin_until(u64::MAX, || {
        handed += channel.poll(|done| ensure(done.status.is_ok(), "failed"));
        handed == count
    });
}

/// Freezes a disk, looks, and lets it go on: from when it is drained until then nothing comes in.
fn freeze_and_look(disk: &Disk<Checked>, notes: &Mutex<Notes>) {
    disk.freeze();
    ensure(disk.wait_drained(u64::MAX), "drained at its deadline");
    ensure(locked(notes).inside == 0, "drained, and a request is in the drive");
    locked(notes).closed = true;
    // Anything that others do now, they do in this window.
    ensure(disk.is_drained(), "something came in after it was drained");
    locked(notes).closed = false;
    disk.unfreeze();
}

/// `body` holds within the bounds, and fails with each of the bugs planted, where there are hooks
/// for them: in the tree of `cargo xtask models`.
fn holds_but_for(name: &str, explorer: Explorer, bugs: &[Plant], body: impl Fn()) {
    println!("{name}: {}", explorer.check(&body));
    for bug in bugs.iter().filter(|_| plant::HOOKS) {
        let found = plant::with(*bug, || explorer.find(&body));
        let failure = found.unwrap_or_else(|| panic!("{name}: {bug:?} is not found"));
        let (reason, executions) = (failure.reason, failure.executions);
        println!("{name}: {bug:?} found by execution {executions}: {reason}");
    }
}
