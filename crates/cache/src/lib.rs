//! Page cache in memory over a volume: answers reads from memory and acknowledges writes from
//! memory.
//!
//! [`Cache`] holds the memory and the state of its pages, in shards, each with a lock of its own.
//! [`CacheDriver`] presents it as a drive; each of its queues belongs to an I/O thread and uses
//! that thread's channel to the volume below. One [`Flusher`] for each cache collects dirty pages,
//! sorts them and makes large writes of them. The volume decides which threads serve its drives, so
//! the flusher does not become the bottleneck (\[FALCON\]).
//!
//! Like the block layer, the crate is generic over [`Machine`](millrace_machine::Machine) and makes
//! no system call. Data that were written and flushed are on the volume; data that were not flushed
//! are lost with the process. Kernel counterpart: mm/filemap.c, mm/page-writeback.c.

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
