//! Threads that run the block layer on this machine: I/O threads, drives' workers, and the trace
//! recorder.
//!
//! This crate connects the block layer and the reactor, which do not know each other: [`IoContext`]
//! runs a thread's ring for its channels, [`DriveWorkers`] serves drives from threads of their own,
//! and [`Recorder`] writes traces to files. Drivers use this crate because a file drive opens its
//! queue on the ring of the calling thread ([`current`]); servers use it because they run I/O
//! threads.

#![doc = include_str!("../README.md")]

mod cache_flusher;
mod drive_workers;
mod io_context;
mod join;
mod recorder;

pub use cache_flusher::CacheFlusher;
pub use drive_workers::{DriveWorkers, Pinning, WorkerCpus, disks_by_worker, worker_cpus};
pub use io_context::{Current, IoConfig, IoContext, current, current_reactor};
pub use join::{JoinOutcome, NativeThread, join_within};
pub use recorder::{
    DEVICE_NAME, Recorded, Recorder, RecorderConfig, Recording, TraceFilter, categories_of,
    trace_file,
};
