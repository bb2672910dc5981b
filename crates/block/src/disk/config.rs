//! Settings of a disk, such as the numbers of its queues and tags, and its tracing.
//!
//! Passed to `Disk::new`, which checks them against the driver; the disk keeps them.

use alloc::string::String;
use alloc::sync::Arc;
use core::time::Duration;

use millrace_machine::{CpuId, Machine, debug_fields, nanoseconds};

use crate::disk::baseline::config::BaselineConfig;
use crate::group::Groups;
use crate::queue::Spread;
use crate::queue::controller::{Controller, TagSettings};
use crate::queue::scheduler::cost::CostModel;
use crate::trace::TraceSink;
use crate::trace::tracer::Tracer;

/// Settings of a disk.
#[derive(Clone)]
pub struct DiskConfig<M: Machine> {
    /// Name in reports and error messages.
    pub name: String,
    /// Number of software queues: one for each core, one for each NUMA node, or only one.
    pub software_queues: Spread,
    /// Number of hardware queues: one for each core, one for each NUMA node, or only one; at most
    /// as many as the driver supports.
    pub hardware_queues: Spread,
    /// Number of tags, 1 to 65,536, but at most the depth of the driver; `None` for that depth. If
    /// the drive uses a controller's tags, the number limits each hardware queue's requests in
    /// flight instead.
    pub queue_depth: Option<u32>,
    /// Time after which `DriverQueue::timeout` is called for a request; zero for no timeout.
    pub timeout: Duration,
    /// Number of I/O threads that will use the drive. Each of them owns a hardware queue, if the
    /// drive has enough queues.
    pub io_threads: u16,
    /// CPU of the worker thread that may serve the drive for other threads; `None` for no worker.
    /// Has no effect if the drive cannot have a worker.
    pub worker: Option<CpuId>,
    /// Controller whose tags the drive uses; `None` if the drive uses the tags of its own driver.
    pub controller: Option<Arc<Controller<M>>>,
    /// Cost model of the drive's I/O, for schedulers that divide the drive by cost.
    pub cost: CostModel,
    /// Groups that share the drive; `None` accounts all I/O to the default group.
    pub groups: Option<Arc<Groups<M>>>,
    /// Sink that gets every trace event of the disk.
    pub trace: Option<Arc<dyn TraceSink>>,
    /// Tracer that records events while a recording runs.
    pub tracer: Option<Arc<Tracer<M>>>,
    /// Design of the block layer that the disk follows, for comparisons; multi-queue by default.
    pub baseline: BaselineConfig<M>,
    /// Device number in trace records; see [`blktrace::device`](crate::trace::blktrace::device).
    pub device: u32,
}

debug_fields!(
    DiskConfig<M: Machine>,
    name,
    queue_depth,
    timeout,
    io_threads,
    worker,
    controller,
    cost,
    baseline
);

impl<M: Machine> DiskConfig<M> {
    pub(crate) fn timeout_ns(&self) -> u64 {
        nanoseconds(self.timeout)
    }
}

impl<M: Machine> Default for DiskConfig<M> {
    fn default() -> Self {
        DiskConfig {
            name: String::from("disk"),
            software_queues: Spread::Core,
            hardware_queues: Spread::Core,
            queue_depth: None,
            timeout: Duration::from_secs(30),
            io_threads: 0,
            worker: None,
            controller: None,
            cost: CostModel::default(),
            groups: None,
            trace: None,
            tracer: None,
            baseline: BaselineConfig::default(),
            device: 0,
        }
    }
}

impl<M: Machine> DiskConfig<M> {
    pub(crate) fn tag_settings(&self) -> TagSettings<'_, M> {
        TagSettings { controller: self.controller.as_deref(), queue_depth: self.queue_depth }
    }
}
