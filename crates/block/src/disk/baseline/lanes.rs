//! Lanes: the ways of several threads into one hardware queue, for drives that complete at once.
//!
//! A disk has them if its settings say `Inside::Each`, and always with the `sq` stack. Each lane is
//! a `HardwareQueue` of one thread, or of one CPU where threads stay on theirs, with a driver's
//! queue of its own; what the lanes of a hardware queue share is its tags and its map of software
//! queues. Made once, by `Disk::new`. Kernel counterpart: `blk_mq_run_hw_queue`, which any number
//! of CPUs run at once.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;

use millrace_machine::{Machine, Topology};

use crate::bio::error::{Error, ErrorKind};
use crate::disk::{DiskConfig, Inside, Stack};
use crate::queue::controller::lane_tags;
use crate::queue::driver::{Driver, HwQueues, QueueKind};
use crate::queue::pending::Pending;
use crate::queue::{HardwareQueue, Spread};

/// The hardware queue that a lane leads into, and the software queue that it takes from.
pub(crate) type Lane = (usize, usize);

/// The lanes of a disk, if it has any.
///
/// # Errors
/// `InvalidSetting` if they are asked for and cannot be had.
pub(crate) fn of<M: Machine>(
    driver: &dyn Driver<M>,
    config: &DiskConfig<M>,
    hw: HwQueues,
    (topology, threads): (&Topology, u16),
) -> Result<Option<Vec<Lane>>, Error> {
    let possible = driver.is_immediate() && hw.kind == QueueKind::AnyThread;
    let wanted = config.entrance.inside == Inside::Each && config.stack != Stack::Sq;
    let enough = usize::from(hw.count) >= Spread::Core.count(topology, threads);
    let wrong = match (wanted, config.worker) {
        (true, _) if !possible => "inside each: the drive answers later; use inside one",
        (true, Some(_)) => "inside each: a worker serves alone; use inside one",
        (true, _) if !enough => "inside each: fewer queues than threads; use inside one",
        _ if wanted || config.stack == Stack::Sq && possible => {
            return Ok(Some(spread(config, hw, (topology, threads))));
        }
        _ => return Ok(None),
    };
    Err(Error::new(ErrorKind::InvalidSetting, format!("drive {}: {wrong}", config.name)))
}

/// A lane for each thread or CPU, as far as the driver has queues.
fn spread<M: Machine>(
    config: &DiskConfig<M>,
    hw: HwQueues,
    (topology, threads): (&Topology, u16),
) -> Vec<Lane> {
    let (cpus, most) = (topology.cpus(), usize::from(hw.count.max(1)));
    let count = |spread: Spread| spread.count(topology, threads);
    let lane = |place: usize| {
        if config.stack == Stack::Sq {
            return (0, 0);
        }
        let node = topology.node_of(cpus[place % cpus.len()].id).0 as usize;
        let index = |spread: Spread, count| spread.index(place, node, count);
        let (hardware, software) = (config.hardware_queues, config.software_queues);
        (index(hardware, count(hardware).min(most)), index(software, count(software)))
    };
    (0..count(Spread::Core).min(most)).map(lane).collect()
}

/// The hardware queues that are these lanes.
pub(crate) fn open<M: Machine>(
    lanes: &[Lane],
    config: &DiskConfig<M>,
    hw: HwQueues,
) -> Box<[HardwareQueue<M>]> {
    let queues: Vec<usize> = lanes.iter().map(|(queue, _)| *queue).collect();
    let tags = lane_tags(config.tag_settings(), hw, &queues);
    let parts = lanes.iter().zip(Pending::of_lanes(lanes)).zip(tags).zip(0..);
    let open = |(((lane, pending), tags), number): (((&Lane, Pending<M>), _), u16)| {
        HardwareQueue::new(number, hw.kind, 1, tags).lane(lane.1, pending)
    };
    parts.map(open).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::driver::TagScope;
    use millrace_simulator::Simulated;

    #[test]
    fn lanes_are_one_for_each_cpu_and_lead_where_the_settings_say() {
        let (topology, kind) = (Topology::uniform(2, 2), QueueKind::AnyThread);
        let queues = |count| HwQueues { count, depth: 8, kind, tags: TagScope::PerQueue };
        let config = |software_queues, hardware_queues, stack| DiskConfig::<Simulated> {
            software_queues,
            hardware_queues,
            stack,
            ..DiskConfig::default()
        };
        let (core, node, one) = (Spread::Core, Spread::Node, Spread::One);
        let lanes =
            |config: &DiskConfig<Simulated>, count| spread(config, queues(count), (&topology, 0));
        let paper = config(core, node, Stack::Mq);
        assert_eq!(lanes(&paper, 64), [(0, 0), (0, 1), (1, 2), (1, 3)]);
        assert_eq!(lanes(&paper, 3), [(0, 0), (0, 1), (1, 2)]);
        assert_eq!(lanes(&config(one, core, Stack::Mq), 64), [(0, 0), (1, 0), (2, 0), (3, 0)]);
        assert_eq!(lanes(&config(core, core, Stack::Sq), 64), [(0, 0); 4]);
        let open = open(&lanes(&paper, 64), &paper, queues(64));
        let share = |a: usize, b: usize| alloc::sync::Arc::ptr_eq(&open[a].tags, &open[b].tags);
        assert!(share(0, 1) && share(2, 3) && !share(1, 2));
    }
}
