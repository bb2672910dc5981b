//! Settings of a disk: which design it follows, how its queues are spread, and who looks on.
//!
//! Given to `Disk::new`, which checks what does not fit the driver; kept by the disk and read where
//! it matters.

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

/// Which design the layer follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stack {
    /// Two levels of queues (\[MQ\]).
    #[default]
    Mq,
    /// One request queue under one lock, as before 2013.
    Sq,
    /// Past the layer, straight to the driver's queue.
    Raw,
}

/// Which threads are inside a hardware queue of the `mq` stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inside {
    /// One at a time: whoever comes too late leaves its work to the one inside.
    One {
        /// How long a submitter waits before it leaves its batch; 0 for not at all. A server's
        /// round is shorter than 2 us, and two that serve in turn get more done than one for both.
        wait_ns: u64,
    },
    /// Each that has work for it, as in the kernel: they share the queue's tags and its map of
    /// software queues, and each calls the driver by itself. Kept to be measured against. Only for
    /// drives that complete at once ([`Driver::is_immediate`](crate::Driver::is_immediate)), and
    /// with neither scheduler nor worker.
    Each,
}

impl Inside {
    /// One at a time, for whom a submitter waits 2 us.
    pub const ONE: Inside = Inside::One { wait_ns: 2_000 };

    /// How long a submitter waits for the thread inside.
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

/// How threads get into the queues of a disk.
#[derive(Clone)]
pub struct Entrance<M: Machine> {
    /// The threads that may be inside a hardware queue of the `mq` stack.
    pub inside: Inside,
    /// The lock of the `sq` stack.
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
    /// Name for reports and errors.
    pub name: String,
    /// Design.
    pub stack: Stack,
    /// Software queues.
    pub software_queues: Spread,
    /// Hardware queues, as far as the driver has them.
    pub hardware_queues: Spread,
    /// How threads get into its queues.
    pub entrance: Entrance<M>,
    /// Tags of a set, 1 to 65,536; the driver's depth if not given. Behind a controller that has
    /// more: requests in flight in each hardware queue.
    pub queue_depth: Option<u32>,
    /// A request not answered in this time is given to `DriverQueue::timeout`; 0 for never.
    pub timeout_ns: u64,
    /// I/O threads that will use the drive: each owns a queue of it, or has one for itself as far
    /// as the drive has queues.
    pub io_threads: u16,
    /// The CPU that a worker belongs to which may serve the drive for others; none: the drive has
    /// no place for one.
    pub worker: Option<CpuId>,
    /// What the drive hangs on, and whose tags it therefore uses; the driver's own word if none.
    pub controller: Option<Arc<Controller<M>>>,
    /// What I/Os cost it, for schedulers that share by that.
    pub cost: CostModel,
    /// The groups that share the drive; none: all I/O counts as the default group's.
    pub groups: Option<Arc<Groups<M>>>,
    /// Where events go.
    pub trace: Option<Arc<dyn TraceSink>>,
    /// Where they are recorded, while somebody does.
    pub tracer: Option<Arc<Tracer<M>>>,
    /// The drive's number in records: see [`blktrace::device`](crate::trace::blktrace::device).
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
