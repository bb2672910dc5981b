//! Settings of a disk: its design, the spread of its queues, and its tracing.
//!
//! Passed to `Disk::new`, which checks them against the driver; the disk keeps them.

use alloc::string::String;
use alloc::sync::Arc;

use millrace_machine::{CpuId, Machine};

use crate::disk::baseline::request_lock::RequestLock;
use crate::group::Groups;
use crate::queue::Spread;
use crate::queue::controller::{Controller, TagSettings};
use crate::queue::scheduler::cost::CostModel;
use crate::trace::TraceSink;
use crate::trace::tracer::Tracer;

/// The design of the block layer that a disk follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stack {
    /// Multi-queue: two levels of queues (\[MQ\]).
    #[default]
    Mq,
    /// Single queue: one request queue under one lock, as before 2013.
    Sq,
    /// No queues: bios go straight to the driver's queue.
    Raw,
}

/// The number of threads that may serve a hardware queue of the `mq` stack at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inside {
    /// One thread at a time; a thread that comes too late leaves its work to the one inside.
    One {
        /// Nanoseconds that a submitter waits before it leaves its batch; 0 for not at all. Serving
        /// takes less than 2 us as a rule, and two threads that take turns get more done than one
        /// that serves for both.
        wait_ns: u64,
    },
    /// Every thread with work for the queue, as in the kernel: the threads share the queue's tags
    /// and its bitmap of software queues, and each calls the driver by itself. For comparison. Only
    /// for drives that complete at once ([`Driver::is_immediate`](crate::Driver::is_immediate)),
    /// without scheduler or worker.
    Each,
}

impl Inside {
    /// One thread at a time; a submitter waits up to 2 us for it.
    pub const ONE: Inside = Inside::One { wait_ns: 2_000 };

    /// Returns the nanoseconds that a submitter waits for the serving thread.
    #[inline]
    pub(crate) fn wait_ns(self) -> u64 {
        if let Inside::One { wait_ns } = self { wait_ns } else { 0 }
    }
}

impl Default for Inside {
    fn default() -> Self {
        Inside::ONE
    }
}

/// Settings of how threads enter the queues of a disk.
#[derive(Clone)]
pub struct Entrance<M: Machine> {
    /// Threads that may serve a hardware queue of the `mq` stack at once.
    pub inside: Inside,
    /// The request lock of the `sq` stack.
    pub request_lock: RequestLock<M>,
}

impl<M: Machine> Default for Entrance<M> {
    fn default() -> Self {
        Entrance { inside: Inside::ONE, request_lock: RequestLock::default() }
    }
}

/// Settings of a disk.
#[derive(Clone)]
pub struct DiskConfig<M: Machine> {
    /// Name in reports and error messages.
    pub name: String,
    /// Design of the block layer.
    pub stack: Stack,
    /// Spread of the software queues.
    pub software_queues: Spread,
    /// Spread of the hardware queues, limited by the number that the driver supports.
    pub hardware_queues: Spread,
    /// How threads enter the disk's queues.
    pub entrance: Entrance<M>,
    /// Number of tags of a set, 1 to 65,536; `None` for the driver's depth. Behind a controller
    /// with more tags it limits the requests in flight in each hardware queue.
    pub queue_depth: Option<u32>,
    /// Request timeout in nanoseconds, after which `DriverQueue::timeout` is called; 0 for none.
    pub timeout_ns: u64,
    /// Number of I/O threads that will use the drive. Each owns a queue, as far as the drive has
    /// queues.
    pub io_threads: u16,
    /// CPU of the worker that may serve the drive for other threads; `None` if it cannot have a
    /// worker.
    pub worker: Option<CpuId>,
    /// Controller that the drive is attached to and whose tags it uses; `None` to use the driver's
    /// own.
    pub controller: Option<Arc<Controller<M>>>,
    /// Cost model of the drive's I/O, for schedulers that divide the drive by cost.
    pub cost: CostModel,
    /// Groups that share the drive; `None` accounts all I/O to the default group.
    pub groups: Option<Arc<Groups<M>>>,
    /// Sink that gets every trace event of the disk.
    pub trace: Option<Arc<dyn TraceSink>>,
    /// Tracer that records events while a recording runs.
    pub tracer: Option<Arc<Tracer<M>>>,
    /// Device number in trace records; see [`blktrace::device`](crate::trace::blktrace::device).
    pub device: u32,
}

impl<M: Machine> Default for DiskConfig<M> {
    fn default() -> Self {
        DiskConfig {
            name: String::from("disk"),
            stack: Stack::Mq,
            software_queues: Spread::Core,
            hardware_queues: Spread::Core,
            entrance: Entrance::default(),
            queue_depth: None,
            timeout_ns: 30_000_000_000,
            io_threads: 0,
            worker: None,
            controller: None,
            cost: CostModel::default(),
            groups: None,
            trace: None,
            tracer: None,
            device: 0,
        }
    }
}

impl<M: Machine> DiskConfig<M> {
    pub(crate) fn tag_settings(&self) -> TagSettings<'_, M> {
        TagSettings { controller: self.controller.as_deref(), queue_depth: self.queue_depth }
    }
}
