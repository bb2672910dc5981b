//! The multi-queue block layer: from a program's bio to a driver's request and back.
//!
//! Owns queues, tags, merging, splitting, volumes and accounting. Generic over
//! [`Machine`](millrace_machine::Machine): it makes no system call, has no thread-local, clock or
//! atomic of its own, and never reads payload. Programs and servers use [`Channel`]; drives
//! implement [`Driver`]. Source: \[MQ\] (Bjorling et al., SYSTOR 2013); kernel counterpart: block/.
//!
//! The walk of one I/O: `Channel::submit` (checks, maps, plugs) -> `Channel::flush` (one lock
//! acquisition per drive) -> `QueueContext::submit_batch` / `serve` (software queue, tag,
//! `queue_rq`) -> `QueueContext::complete` (tag to request to bios) -> `Channel::poll` (returns the
//! bio).

#![doc = include_str!("../README.md")]
#![no_std]

extern crate alloc;

mod account;
mod bio;
mod chain;
mod channel;
mod disk;
mod group;
#[cfg(test)]
mod models;
mod queue;
mod trace;
mod volume;

pub use account::disk_counter::DiskCounter;
pub use account::failures::{Failure, Failures};
pub use account::held::WaitSnapshot;
pub use account::histogram::{Snapshot, bucket_of, bucket_start};
pub use account::hold::WaitReason;
pub use account::stats::{BATCH_SIZES, OpSnapshot, StatsSnapshot};
pub use account::tenants::{TenantOpSnapshot, TenantSnapshot};
pub use bio::arena::Arena;
pub use bio::buffer::{BUFFER_ALIGN, Buffer};
pub use bio::error::{Error, ErrorKind};
pub use bio::group_id::GroupId;
pub use bio::limits::{Features, QueueLimits};
pub use bio::status::Status;
pub use bio::{Bio, OPS, Op, OpFlags, SECTOR_SHIFT, Sector, SectorCount, Segment};
pub use channel::completion::{AfterCompletion, Completion, Reject, Rejected};
pub use channel::worker::{WORKER_SPIN_NS, Worker};
pub use channel::{Channel, ChannelConfig};
pub use disk::claim::{is_unused, may_open_late};
pub use disk::submit_context::Stamp;
pub use disk::{Disk, DiskConfig, baseline, cuts_requests, driver_counts, prepare_stop};
pub use group::config::{GroupConfig, GroupLimits, LatencyTarget, Priority};
pub use group::{GROUPS_MAX, Groups};
pub use queue::Spread;
pub use queue::controller::{Controller, ControllerConfig, Sharing};
pub use queue::driver::{
    CompletionBatch, Driver, DriverData, DriverQueue, Expired, Extent, HwQueues, Moment, QueueKind,
    TagScope, Unwritten, align_inwards,
};
pub use queue::io_thread::{IoThread, ThreadTurn};
pub use queue::request::{Dispatch, Request, Segments, Tag};
pub use queue::scheduler::builtin::SchedulerKind;
pub use queue::scheduler::cost::{CostModel, OpCost, OpRates};
pub use queue::scheduler::deadline::{Deadline, DeadlineConfig};
pub use queue::scheduler::fair::{Fair, Latency};
pub use queue::scheduler::{
    BioChain, ChainBatch, CompletedChain, DriveTags, Leftover, Scheduler, SchedulerPick,
};
pub use queue::tag::TagSet;
pub use trace::blktrace;
pub use trace::entry::TraceEntry;
pub use trace::note::{DROPPED_EVENTS, TraceMessage, TraceNote};
pub use trace::tracer::{TRACE_RING_EVENTS, TraceStamp, TraceStatus, Tracer};
pub use trace::{TraceEvent, TraceSink};
pub use volume::resize::{DriveNeed, DriveResized, Resized, SizeWatch};
pub use volume::serving::{Serving, ServingConfig};
pub use volume::{CHUNK_SECTORS_MAX, Layout, Volume};
