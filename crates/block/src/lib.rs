//! The multi-queue block layer: from a program's bio to a driver's request and back.
//!
//! Owns queues, tags, merging, splitting, volumes and accounting. Generic over
//! [`Machine`](millrace_machine::Machine): no system call, no thread-local, no clock or atomic of
//! its own, and it never reads payload. Programs and exports use [`Channel`]; drives implement
//! [`Driver`]. Source: \[MQ\] (Bjorling et al., SYSTOR 2013); kernel counterpart: block/.
//!
//! The walk of one I/O: `Channel::submit` (checks, maps, plugs) -> `Channel::flush` (one lock
//! acquisition per drive) -> `Disk::submit_batch` / `serve` (software queue, tag, `queue_rq`) ->
//! `Disk::complete` (tag to request to bios) -> `Channel::poll` (the bio comes back).

#![no_std]

extern crate alloc;

mod account;
mod bio;
pub mod blktrace;
mod buffer;
mod channel;
mod claim;
mod complete;
mod controller;
mod direct;
mod disk;
mod dispatch;
mod driver;
mod entry;
mod error;
mod failures;
mod freeze;
mod gate;
mod handover;
mod histogram;
mod home;
mod ledger;
mod limits;
mod member;
mod merge;
#[cfg(test)]
mod models;
mod plug;
mod queues;
mod reap;
mod request;
mod resize;
mod runner;
mod sbitmap;
mod serve;
mod served;
mod serving;
mod slot;
mod sort;
mod split;
mod sq;
mod stats;
mod status;
mod tag;
mod tenants;
mod trace;
mod tracer;
mod volume;
mod volume_plug;
mod waiters;
mod worker;

pub use account::BATCH_SIZES;
pub use bio::{Bio, OPS, Op, OpFlags, SECTOR_SHIFT, Sector, SectorCount, Segment};
pub use buffer::{BUFFER_ALIGN, Buffer};
pub use channel::{Channel, ChannelConfig, IoThread, Reject, Rejected, Turn};
pub use controller::{Controller, ControllerConfig, Sharing};
pub use disk::{Disk, DiskConfig, Stack};
pub use driver::{
    CompletionBatch, Dispatch, Driver, DriverData, DriverQueue, Expired, Extent, HwQueues, Moment,
    QueueKind, TagScope, align_inwards,
};
pub use entry::Entry;
pub use error::{Error, ErrorKind};
pub use failures::{Failure, Failures};
pub use histogram::{Snapshot, bucket_of, bucket_start};
pub use limits::{Features, QueueLimits};
pub use queues::Spread;
pub use reap::{Again, Completion};
pub use request::{Request, Segments, Tag};
pub use resize::{DriveResized, Resized, SizeWatch};
pub use runner::Stamp;
pub use serving::{Serving, ServingConfig};
pub use stats::{OpSnapshot, StatsSnapshot};
pub use status::Status;
pub use tag::TagSet;
pub use tenants::{TenantOpSnapshot, TenantSnapshot};
pub use trace::{Action, Event, TraceSink};
pub use tracer::{TRACE_RING_EVENTS, TraceStamp, TraceStatus, Tracer};
pub use volume::{Layout, Volume};
pub use worker::{WORKER_SPIN_NS, Worker};
