//! Baselines: other designs of the block layer for comparison, each in a file of its own.
//!
//! A disk follows the multi-queue design and has no baseline, unless its settings name one: a
//! single request queue under one lock (sq.rs), straight to the driver (raw.rs), or several threads
//! serving a hardware queue at once (lanes.rs). `Disk::new` chooses the design. The code on the
//! path of an I/O calls a baseline only through the trait `BaselineStack` (stack.rs); the fast path
//! (direct.rs) never calls one. Baselines are not part of the block layer's public interface.
//! Sources: Bjorling et al., SYSTOR 2013; the OLS 2002 paper.

pub(crate) mod config;
pub(crate) mod filled;
pub(crate) mod lanes;
pub(crate) mod raw;
pub(crate) mod sq;
pub(crate) mod stack;

use alloc::boxed::Box;

use millrace_machine::Machine;

use crate::bio::error::Error;
use crate::disk::DiskConfig;
use crate::disk::baseline::lanes::{QueueLanes, SharedQueueStack};
use crate::disk::baseline::raw::RawStack;
use crate::disk::baseline::sq::SingleQueueStack;
use crate::disk::baseline::stack::BaselineStack;
use crate::disk::queues::{DiskQueues, QueueShape, QueueUsers, hardware_queues, one_to_one};
use crate::queue::Spread;
use crate::queue::driver::{Driver, HwQueues};

pub use config::{BaselineConfig, Inside, QueuePlug, RequestLock, Stack};

pub(crate) struct Baseline<M: Machine> {
    pub(crate) stack: Box<dyn BaselineStack<M>>,
    pub(crate) has_two_levels: bool,
}

pub(crate) fn lanes<M: Machine>(baseline: Option<&Baseline<M>>) -> Option<&QueueLanes> {
    baseline.and_then(|baseline| baseline.stack.lanes())
}

pub(crate) fn queues<M: Machine>(
    baseline: &Baseline<M>,
    config: &DiskConfig<M>,
    shape: &QueueShape,
) -> DiskQueues<M> {
    let lanes = baseline.stack.lanes();
    let hctxs = match lanes {
        Some(lanes) => lanes.open(config, shape.hw),
        None => hardware_queues(config, shape.hw, shape.counts()),
    };
    let is_pairs = lanes.is_none() && one_to_one(config, shape.shared.0, shape.shared.1);
    let path = baseline.stack.submit_path(config, &hctxs[0]);
    let feeds = if is_pairs { 1 } else { hctxs.len() };
    DiskQueues::of(shape, hctxs, feeds, path)
}

/// Creates the design that the disk's settings select for comparison, and adapts the queue settings
/// to it. Returns `None` for the multi-queue design.
///
/// # Errors
/// `InvalidSetting` if the design does not support the drive.
pub(crate) fn of<M: Machine>(
    driver: &dyn Driver<M>,
    config: &mut DiskConfig<M>,
    hw: HwQueues,
    users: QueueUsers<'_>,
) -> Result<Option<Baseline<M>>, Error> {
    let stack: Box<dyn BaselineStack<M>> = match (config.baseline.stack, config.baseline.inside) {
        (Stack::Sq, _) => {
            (config.software_queues, config.hardware_queues) = (Spread::One, Spread::One);
            config.worker = None;
            let lanes =
                lanes::is_possible(driver, hw).then(|| QueueLanes::spread(config, hw, users));
            let request_lock = config.baseline.request_lock.clone();
            Box::new(SingleQueueStack::new(request_lock, lanes, hw.depth))
        }
        (_, Inside::Each) => Box::new(SharedQueueStack::new(driver, config, hw, users)?),
        (Stack::Raw, Inside::One { .. }) => Box::new(RawStack),
        (Stack::Mq, Inside::One { .. }) => return Ok(None),
    };
    Ok(Some(Baseline { has_two_levels: stack.has_two_levels(), stack }))
}
