//! Models of the lock-free parts, run on the checked machine: small scenes of the production code,
//! each passing under every choice within its bound, and failing with a bug planted in one line.
//!
//! Bounds: maps of one word, tag sets of depth 1 or 2, two or three threads, two or three
//! preemptions, or any number. `cargo xtask models` runs them in release and prints how many
//! executions each took. No deadline ever passes here, so a lost wake-up cannot hide behind a
//! timeout.
#![cfg(test)]

extern crate std;

mod delivery;
mod drive;
mod freeze;
mod handover;
mod serve;
mod tags;
mod worker;

use alloc::boxed::Box;
use std::println;

use millrace_machine::Machine;
use millrace_machine::checked::{Checked, CheckedThread, Explorer};
use millrace_machine::plant::{self, Plant};

use crate::channel::ChannelConfig;

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

/// `body` holds within the bounds, and fails with each of the bugs planted.
fn holds_but_for(name: &str, explorer: Explorer, bugs: &[Plant], body: impl Fn()) {
    println!("{name}: {}", explorer.check(&body));
    for bug in bugs {
        let found = plant::with(*bug, || explorer.find(&body));
        let failure = found.unwrap_or_else(|| panic!("{name}: {bug:?} is not found"));
        let (reason, executions) = (failure.reason, failure.executions);
        println!("{name}: {bug:?} found by execution {executions}: {reason}");
    }
}
