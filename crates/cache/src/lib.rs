//! A cache in memory over a volume: reads are answered from it, writes are acknowledged from it.
//!
//! [`Cache`] is memory and what is known of it, shared by all queues in shards, each under a lock
//! of its own. [`CacheDriver`] makes it a drive: a disk over a volume. Each of its queues belongs
//! to an I/O thread and has a channel of that thread to the volume below. One [`Flusher`] for each
//! cache collects what is dirty, sorts it and makes large writes of it; who serves the drives is
//! the volume's business, so that one flusher does not become the bottleneck (\[FALCON\]).
//!
//! Generic over [`Machine`](millrace_machine::Machine), as the block layer is: no system call.
//! What was written and flushed is below; what was not flushed is lost with the process. Pages that
//! are being written are never changed: a write to one gets a page of its own.
//! Kernel counterpart: mm/filemap.c, mm/page-writeback.c.

#![doc = include_str!("../README.md")]
#![no_std]

extern crate alloc;

mod cache;
mod config;
mod front;
mod memory;
mod read;
mod stats;
mod write_back;

pub use cache::Cache;
pub use cache::first_dirty::DirtyCall;
pub use config::{CacheConfig, CacheMode, Registered};
pub use front::driver::CacheDriver;
pub use stats::{AtRisk, CacheStats, DriveAtRisk};
pub use write_back::flusher::Flusher;
pub use write_back::write_queues::{FlusherConfig, WriteLists};
