//! Threads that run the block layer on this machine: I/O threads, drives' workers, the recorder.
//!
//! Stands on the block layer and the reactor, which do not know each other, and puts them together:
//! [`IoContext`] turns a thread's ring for its channels, [`DriveWorkers`] serves drives from
//! threads of their own, [`Recorder`] writes traces to files. Stands below the drivers, since a
//! file drive opens its queue on the ring of the thread that calls ([`current`]), and below the
//! servers and the lab, which run I/O threads; it knows none of them.

#![doc = include_str!("../README.md")]

mod cache_flusher;
mod drive_workers;
mod io_context;
mod join;
mod recorder;

pub use cache_flusher::CacheFlusher;
pub use drive_workers::{DriveWorkers, Pinning, WorkerCpus, disks_by_worker, worker_cpus};
pub use io_context::{Current, IoConfig, IoContext, current, current_reactor};
pub use join::{Joined, NativeThread, join_within};
pub use recorder::{
    DEVICE_NAME, Recorded, Recorder, RecorderConfig, Recording, TraceFilter, categories_of,
    trace_file,
};
