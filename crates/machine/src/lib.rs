//! The machine that millrace's code runs on: CPUs, locks, cache lines, clock, threads, parking.
//!
//! This crate owns the [`Machine`] trait and `Native` (feature `std`), the machine that the process
//! runs on. On `Native` each primitive is the ordinary one, and `work` does nothing; its locks keep
//! statistics while a `LockMeter` exists. No other crate uses real threads, atomics or clocks.
//! `millrace-block` is generic over `Machine` and built without std. millrace-simulator has a
//! machine that charges virtual time in the same calls, and millrace-checker has one that explores
//! interleavings. [`Doorbell`] is written once over the primitives, so the sleep protocol that is
//! checked is the one that runs.

#![doc = include_str!("../README.md")]
#![no_std]

#[cfg(feature = "std")]
extern crate std;

#[cfg(feature = "std")]
mod cpu_share;
mod deadline;
mod debug_fields;
mod doorbell;
#[cfg(feature = "std")]
mod lock_meter;
mod lock_row;
mod machine;
#[cfg(feature = "std")]
mod native;
#[cfg(feature = "std")]
mod native_lock;
pub mod payload;
#[cfg(feature = "std")]
mod sysfs;
mod topology;

#[cfg(feature = "std")]
pub use cpu_share::{CpuShare, Poll, Polled};
pub use deadline::{Deadline, LOOK_NS, RunningClock, nanoseconds};
pub use doorbell::Doorbell;
#[cfg(feature = "std")]
pub use lock_meter::{LockMeter, NativeMeter};
#[cfg(feature = "std")]
pub use lock_row::lock_table;
pub use lock_row::{CallSite, Hold, LockCounts, LockRow, Site};
pub use machine::{
    Counter, CpuId, Line, Lock, Machine, Meter, NodeId, Order, Parker, Stage, Thread, Word,
    spin_backoff,
};
#[cfg(feature = "std")]
pub use native::{
    Native, NativeParker, NativeThread, ThreadRefused, run_on_any_cpu, thread_limits,
};
#[cfg(feature = "std")]
pub use native_lock::{NativeGuard, NativeLock, lock_unpoisoned};
#[cfg(feature = "std")]
pub use sysfs::topology_from;
pub use topology::{Cpu, Topology};

extern crate alloc;
