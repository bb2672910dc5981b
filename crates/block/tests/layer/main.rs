//! The block layer through its public interface, on drives made for tests: one program, because
//! linking a test program takes longer than most of these tests run.

#![allow(clippy::unwrap_used, missing_docs, unsafe_code)]

mod accounts;
mod allocation;
mod charges;
mod controller;
mod groups;
mod handed;
mod held;
mod histories;
mod inside;
mod lanes;
mod layer;
mod order;
mod owners;
mod pieces;
mod promises;
mod request_lock;
mod resize;
mod serving;
mod simulated;
mod stuck;
mod support;
mod tracing;
mod workers;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keeps other tests that count the locks or the allocations of this process waiting until it is
/// dropped: a lock that is counted allocates.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
