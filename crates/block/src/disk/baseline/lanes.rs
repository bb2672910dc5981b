//! Lanes: let several threads serve one hardware queue at the same time.
//!
//! A lane is the part of a hardware queue that one thread serves. On machines whose threads stay on
//! their CPU, one CPU serves it. The driver must allow lanes (`Driver::is_immediate`). Each lane is
//! a `HardwareQueue` with its own driver queue. The lanes of one hardware queue share its tags and
//! its bitmap of software queues. A disk has lanes if its settings say `Inside::Each`. A disk with
//! the `sq` design has lanes whenever its driver allows them. `Disk::new` makes the lanes. Kernel
//! counterpart: `blk_mq_run_hw_queue`, which any number of CPUs run at once.

use alloc::boxed::Box;
use alloc::format;

use millrace_machine::Machine;

use crate::bio::error::{Error, ErrorKind};
use crate::chain::slot::BioList;
use crate::disk::DiskConfig;
use crate::disk::baseline::config::Stack;
use crate::disk::baseline::stack::{BaselineStack, NO_SCHEDULER};
use crate::disk::queue_context::QueueContext;
use crate::disk::queues::QueueUsers;
use crate::queue::controller::queue_tags;
use crate::queue::driver::{Driver, HwQueues, QueueKind};
use crate::queue::pending::PendingQueues;
use crate::queue::{HardwareQueue, QueueRoute, Spread};

pub(crate) struct QueueLanes {
    /// For each lane (part of a hardware queue that one thread serves): the number of the hardware
    /// queue, and the number of the software queue that feeds the lane.
    lanes: Box<[(usize, usize)]>,
}

pub(crate) fn is_possible<M: Machine>(driver: &dyn Driver<M>, hw: HwQueues) -> bool {
    driver.is_immediate() && hw.kind == QueueKind::AnyThread
}

impl QueueLanes {
    /// Creates a lane (part of a hardware queue that one thread serves) for each thread or CPU, or
    /// fewer lanes if the driver has fewer queues.
    pub(crate) fn spread<M: Machine>(
        config: &DiskConfig<M>,
        hw: HwQueues,
        users: QueueUsers<'_>,
    ) -> QueueLanes {
        let QueueUsers { topology, threads } = users;
        let (cpus, most) = (topology.cpus(), usize::from(hw.count.max(1)));
        let count = |spread: Spread| spread.count(topology, threads);
        let lane = |place: usize| {
            let node = topology.node_of(cpus[place % cpus.len()].id).0 as usize;
            let index = |spread: Spread, count| spread.index(place, node, count);
            let (hardware, software) = (config.hardware_queues, config.software_queues);
            (index(hardware, count(hardware).min(most)), index(software, count(software)))
        };
        QueueLanes { lanes: (0..count(Spread::Core).min(most)).map(lane).collect() }
    }

    pub(crate) fn open<M: Machine>(
        &self,
        config: &DiskConfig<M>,
        hw: HwQueues,
    ) -> Box<[HardwareQueue<M>]> {
        // Lanes of one hardware queue share its tags.
        let tags = queue_tags(config.tag_settings(), hw, self.queues());
        let parts = self.lanes.iter().zip(PendingQueues::of_lanes(&self.lanes)).zip(0..);
        let open = |((&(queue, ctx), pending), number): ((&(usize, usize), _), u16)| {
            HardwareQueue::new(number, hw.kind, 1, tags[queue].clone()).lane(ctx, pending)
        };
        parts.map(open).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.lanes.len()
    }

    pub(crate) fn queues(&self) -> usize {
        self.lanes.iter().map(|(queue, _)| queue + 1).max().unwrap_or(0)
    }

    /// Returns the lane (part of a hardware queue that one thread serves) and the software queue of
    /// a submitter. `place` is the index of the submitter's thread or CPU.
    pub(crate) fn route(&self, place: usize) -> QueueRoute {
        let hctx = place % self.lanes.len();
        QueueRoute { ctx: self.lanes[hctx].1 as u16, hctx: hctx as u16, number: 0 }
    }
}

/// The design in which several threads serve one hardware queue at once. Each thread has its own
/// lane, a part of the hardware queue with a driver queue of its own.
pub(crate) struct SharedQueueStack {
    lanes: QueueLanes,
    /// True for the `raw` design: no merging, and no simulated cost of queues.
    is_raw: bool,
}

impl SharedQueueStack {
    /// Creates a `SharedQueueStack` with a lane (part of a hardware queue) for each thread or CPU.
    ///
    /// # Errors
    /// `InvalidSetting` if several threads cannot serve a hardware queue of the drive at once.
    pub(crate) fn new<M: Machine>(
        driver: &dyn Driver<M>,
        config: &DiskConfig<M>,
        hw: HwQueues,
        users: QueueUsers<'_>,
    ) -> Result<Self, Error> {
        let wrong = if !is_possible(driver, hw) {
            "the drive does not complete requests immediately"
        } else if config.worker.is_some() {
            "the drive has a worker thread, which alone serves its queues"
        } else if usize::from(hw.count) < Spread::Core.count(users.topology, users.threads) {
            "the drive has fewer queues than there are threads"
        } else {
            let lanes = QueueLanes::spread(config, hw, users);
            return Ok(SharedQueueStack { lanes, is_raw: config.baseline.stack == Stack::Raw });
        };
        let text = format!(
            "drive {}: several threads cannot serve a hardware queue (inside = each): {wrong}; use \
             inside = one",
            config.name
        );
        Err(Error::new(ErrorKind::InvalidSetting, text))
    }
}

impl<M: Machine> BaselineStack<M> for SharedQueueStack {
    fn lanes(&self) -> Option<&QueueLanes> {
        Some(&self.lanes)
    }

    fn merges_in_plug(&self) -> bool {
        !self.is_raw
    }

    fn has_two_levels(&self) -> bool {
        !self.is_raw
    }

    fn refuses_scheduler(&self) -> &'static str {
        match self.is_raw {
            true => NO_SCHEDULER,
            false => {
                "only one thread at a time may serve a hardware queue with a scheduler; use \
                 inside = one"
            }
        }
    }

    /// Inserts a batch into the submitter's software queue. Then runs the submitter's lane (its
    /// part of a hardware queue), which takes all bios of that software queue.
    fn submit(&self, context: &mut QueueContext<'_, M>, ctx: u16, list: &mut BioList<M>) {
        context.trace().begin_insert(list);
        // As in Linux, the software queue's lock is held until the queue is marked as pending.
        let Some(queue) = context.insert(ctx, list) else { return };
        context.hctx.pending.mark(ctx.into());
        drop(queue);
        context.kick();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::driver::TagScope;
    use millrace_machine::Topology;
    use millrace_simulator::Simulated;

    #[test]
    fn lanes_are_one_for_each_cpu_and_lead_where_the_settings_say() {
        let (topology, kind) = (Topology::uniform(2, 2), QueueKind::AnyThread);
        let queues = |count| HwQueues { count, depth: 8, kind, tags: TagScope::PerQueue };
        let config = |software_queues, hardware_queues| DiskConfig::<Simulated> {
            software_queues,
            hardware_queues,
            ..DiskConfig::default()
        };
        let (core, node, one) = (Spread::Core, Spread::Node, Spread::One);
        let lanes = |config: &DiskConfig<Simulated>, count| {
            QueueLanes::spread(
                config,
                queues(count),
                QueueUsers { topology: &topology, threads: 0 },
            )
        };
        let paper = config(core, node);
        assert_eq!(*lanes(&paper, 64).lanes, [(0, 0), (0, 1), (1, 2), (1, 3)]);
        assert_eq!(*lanes(&paper, 3).lanes, [(0, 0), (0, 1), (1, 2)]);
        assert_eq!(*lanes(&config(one, core), 64).lanes, [(0, 0), (1, 0), (2, 0), (3, 0)]);
        // As with the single queue of `sq`.
        assert_eq!(*lanes(&config(one, one), 64).lanes, [(0, 0); 4]);
        assert_eq!((lanes(&paper, 3).count(), lanes(&paper, 3).queues()), (3, 2));
        let open = lanes(&paper, 64).open(&paper, queues(64));
        let share = |a: usize, b: usize| alloc::sync::Arc::ptr_eq(&open[a].tags, &open[b].tags);
        assert!(share(0, 1) && share(2, 3) && !share(1, 2));
    }
}
