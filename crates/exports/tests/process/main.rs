//! Tests that measure the whole process: its allocator, its descriptors, the CPU time of its
//! threads. One runs at a time.

#![allow(clippy::print_stderr, clippy::unwrap_used, missing_docs, unsafe_code)]

mod allocation;
mod server_stuck;
#[path = "../exports/server_support/mod.rs"]
mod server_support;
mod vhost_idle;
#[path = "../exports/vhost_support/mod.rs"]
mod vhost_support;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keeps every other test of this program waiting until it is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
