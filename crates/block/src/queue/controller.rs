//! `Controller`: the hardware that limits and shares the tags of the drives attached to it.
//!
//! Hardware keeps tags in one of three places: in each hardware queue (NVMe, 1,024), in each drive
//! (AHCI, 32), or in a controller for all its drives (SCU 250, HBA 10,140). A driver knows only its
//! own drive. A `Controller` in a `DiskConfig` adds the limits that several drives share, and
//! `queue_tags` makes tag sets within the limits of driver and controller. Invariant: a hardware
//! queue never has more requests in flight than its driver accepts, however many tags the
//! controller has. Further requests wait without a tag, so that a slow drive does not take the tags
//! of other drives. Flushes may exceed this limit by the reserved tags. Kernel counterparts: host
//! tags (`scsi_host->can_queue`, `BLK_MQ_F_TAG_HCTX_SHARED`) and a device's `queue_depth`.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::{Machine, NodeId, Topology, debug_fields};

use crate::bio::error::{Error, ErrorKind};
use crate::queue::driver::{HwQueues, TagScope};
use crate::queue::tag::TagSet;

/// The hardware queues that share a controller's tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// Each hardware queue of each drive has `tags` tags of its own.
    Queue,
    /// The hardware queues of each drive share `tags` tags.
    Drive,
    /// All drives of the controller share `tags` tags.
    Controller,
}

/// Settings of a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerConfig {
    /// Name by which drives and error messages refer to the controller.
    pub name: String,
    /// Number of tags, 1 to 65,536.
    pub tags: u32,
    /// Scope in which hardware queues share the tags: none, a drive, or the whole controller.
    pub sharing: Sharing,
    /// NUMA node that the controller is attached to; `None` if unknown.
    pub node: Option<NodeId>,
}

impl ControllerConfig {
    /// Largest number of tags that a controller may have.
    pub const TAGS_MAX: u32 = 65_536;

    /// Checks the settings against the machine.
    ///
    /// # Errors
    /// `InvalidSetting` with the controller, the value and its range.
    pub fn validate(&self, topology: &Topology) -> Result<(), Error> {
        let wrong = |what: String| {
            let text = format!("controller {}: {what}", self.name);
            Err(Error::new(ErrorKind::InvalidSetting, text))
        };
        if self.tags == 0 || self.tags > Self::TAGS_MAX {
            let (tags, most) = (self.tags, Self::TAGS_MAX);
            return wrong(format!("tags = {tags} is out of range; use 1 to {most}"));
        }
        let nodes = topology.nodes() as u32;
        match self.node {
            Some(NodeId(node)) if node >= nodes => {
                let has = match nodes {
                    1 => "only node 0".into(),
                    _ => format!("nodes 0 to {}", nodes - 1),
                };
                wrong(format!("there is no NUMA node {node}: this machine has {has}"))
            }
            _ => Ok(()),
        }
    }
}

/// A controller. The `DiskConfig` of each of its drives refers to it.
pub struct Controller<M: Machine> {
    config: ControllerConfig,
    /// Tag set of all drives of the controller; `None` if each drive or queue has its own.
    shared: Option<Arc<TagSet<M>>>,
}

debug_fields!(Controller<M: Machine>, config);

impl<M: Machine> Controller<M> {
    /// Creates a controller without drives, with all tags free.
    ///
    /// # Errors
    /// The errors of [`ControllerConfig::validate`].
    pub fn new(config: ControllerConfig) -> Result<Arc<Self>, Error> {
        config.validate(&M::topology())?;
        let shared =
            (config.sharing == Sharing::Controller).then(|| Arc::new(TagSet::new(config.tags)));
        Ok(Arc::new(Controller { config, shared }))
    }

    /// Returns the controller's settings.
    #[must_use]
    pub fn config(&self) -> &ControllerConfig {
        &self.config
    }

    /// Returns the number of tags in use if all drives share a tag set, else `None`.
    #[must_use]
    pub fn tags_in_use(&self) -> Option<u32> {
        self.shared.as_ref().map(|tags| tags.in_use())
    }
}

pub(crate) struct QueueTags<M: Machine> {
    pub(crate) tags: Arc<TagSet<M>>,
    /// Limit of requests in flight in the queue, flushes not counted; `None` if only tags limit it.
    pub(crate) depth_max: Option<u32>,
}

impl<M: Machine> Clone for QueueTags<M> {
    fn clone(&self) -> Self {
        QueueTags { tags: Arc::clone(&self.tags), depth_max: self.depth_max }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct TagSettings<'a, M: Machine> {
    pub(crate) controller: Option<&'a Controller<M>>,
    /// Number of tags that the drive uses, if fewer than its driver accepts.
    pub(crate) queue_depth: Option<u32>,
}

/// Returns the largest number of hardware queues that a disk may have: `hw.count`, or 1. A drive
/// with [`TagScope::PerDrive`] gets one queue if its controller's shared tag set is larger than the
/// drive's own limit of requests. Several queues could exceed the limit together, because each
/// queue counts only its own requests.
pub(crate) fn queues_max<M: Machine>(settings: TagSettings<'_, M>, hw: HwQueues) -> u16 {
    let own = own_depth(settings.queue_depth, hw);
    let shares = |c: &Controller<M>| c.shared.is_some() && c.config.tags > own;
    match (settings.controller, hw.tags) {
        (Some(controller), TagScope::PerDrive) if shares(controller) => 1,
        _ => hw.count,
    }
}

const DEPTH_MAX: u32 = 65_536;

/// Returns the drive's own limit of requests in flight. With [`TagScope::PerDrive`], the limit
/// applies to all queues together, else to each queue.
fn own_depth(queue_depth: Option<u32>, hw: HwQueues) -> u32 {
    queue_depth.unwrap_or(hw.depth).clamp(1, hw.depth.clamp(1, DEPTH_MAX))
}

pub(crate) fn queue_tags<M: Machine>(
    settings: TagSettings<'_, M>,
    hw: HwQueues,
    hctxs: usize,
) -> Vec<QueueTags<M>> {
    let own = own_depth(settings.queue_depth, hw);
    let given = settings.controller.map(|controller| &controller.config);
    let (sharing, most) = given.map_or((Sharing::Queue, own), |c| (c.sharing, c.tags));
    let set = |depth: u32| Arc::new(TagSet::new(depth));
    // The tag set that all queues share; `None` if each queue has its own set.
    let one = match (settings.controller.and_then(|c| c.shared.clone()), hw.tags) {
        (Some(shared), _) => Some((shared, most)),
        (None, TagScope::PerDrive) => Some((set(most.min(own)), most.min(own))),
        (None, TagScope::PerQueue) if sharing == Sharing::Drive => {
            let depth = most.min(own.saturating_mul(hctxs as u32));
            Some((set(depth), depth))
        }
        (None, TagScope::PerQueue) => None,
    };
    let tags = |_| match &one {
        Some((tags, depth)) => {
            QueueTags { tags: Arc::clone(tags), depth_max: (*depth > own).then_some(own) }
        }
        None => QueueTags { tags: set(most.min(own)), depth_max: None },
    };
    (0..hctxs).map(tags).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::driver::QueueKind;
    use alloc::string::ToString;
    use millrace_machine::Native;

    fn settings(tags: u32, sharing: Sharing) -> ControllerConfig {
        ControllerConfig { name: "hba".into(), tags, sharing, node: None }
    }

    #[test]
    fn a_setting_that_makes_no_sense_is_named_with_its_range() {
        let said = |tags, node: Option<u32>, nodes| {
            let node = node.map(NodeId);
            let config = ControllerConfig { node, ..settings(tags, Sharing::Queue) };
            let error = config.validate(&Topology::uniform(nodes, 2)).err();
            error.map_or("fine".to_string(), |error| error.to_string())
        };
        let fine = [said(1, None, 1), said(65_536, Some(0), 1), said(5, Some(2), 3)];
        assert_eq!(fine, ["fine"; 3]);
        assert_eq!(said(0, None, 1), "controller hba: tags = 0 is out of range; use 1 to 65536");
        assert_eq!(
            said(65_537, None, 1),
            "controller hba: tags = 65537 is out of range; use 1 to 65536"
        );
        let alone = "controller hba: there is no NUMA node 1: this machine has only node 0";
        assert_eq!(said(1, Some(1), 1), alone);
        let three = "controller hba: there is no NUMA node 3: this machine has nodes 0 to 2";
        assert_eq!(said(1, Some(3), 3), three);
    }

    #[test]
    fn controller_reports_its_limits_and_its_tags_in_use() {
        let shared = Controller::<Native>::new(settings(9, Sharing::Controller)).expect("valid");
        assert_eq!(shared.config(), &settings(9, Sharing::Controller));
        assert_eq!(shared.tags_in_use(), Some(0));
        let tags = shared.shared.as_ref().expect("one set");
        let taken = [tags.take(&mut 0, 2), tags.take(&mut 1, 2)];
        assert_eq!(shared.tags_in_use(), Some(4));
        taken.into_iter().flatten().for_each(|batch| tags.give_rest(batch));
        let apart = Controller::<Native>::new(settings(9, Sharing::Drive)).expect("valid");
        assert_eq!(apart.tags_in_use(), None);
    }

    /// For a drive of 4 queues of 8 tags: queues, tags in the first queue's set, tag sets, and the
    /// limit of I/Os in flight in a queue where that is below its tags.
    fn tags_of(
        scope: TagScope,
        controller: Option<(u32, Sharing)>,
        queue_depth: Option<u32>,
    ) -> (u16, u32, usize, Option<u32>) {
        let controller = controller
            .map(|(tags, sharing)| Controller::new(settings(tags, sharing)).expect("valid"));
        let settings = TagSettings { controller: controller.as_deref(), queue_depth };
        let hw = HwQueues { count: 4, depth: 8, kind: QueueKind::AnyThread, tags: scope };
        let count = queues_max(settings, hw);
        let queues = queue_tags(settings, hw, usize::from(count));
        assert_eq!(queues.len(), usize::from(count));
        let first = |queue: &QueueTags<Native>| {
            queues.iter().position(|other| Arc::ptr_eq(&other.tags, &queue.tags))
        };
        let mut sets: Vec<_> = queues.iter().map(first).collect();
        sets.dedup();
        let (tags, depth_max) = (&queues[0].tags, queues[0].depth_max);
        assert!(queues.iter().all(|queue| queue.depth_max == depth_max));
        (count, tags.depth_with_reserved() - 2, sets.len(), depth_max)
    }

    #[test]
    fn a_drive_has_its_own_tags_within_those_of_its_controller() {
        use Sharing::{Controller, Drive, Queue};
        use TagScope::{PerDrive, PerQueue};
        for (scope, controller, depth, expected) in [
            (PerQueue, None, None, (4, 8, 4, None)),
            (PerQueue, None, Some(3), (4, 3, 4, None)),
            (PerQueue, None, Some(100), (4, 8, 4, None)),
            (PerDrive, None, None, (4, 8, 1, None)),
            (PerQueue, Some((5, Queue)), None, (4, 5, 4, None)),
            (PerQueue, Some((20, Queue)), None, (4, 8, 4, None)),
            (PerDrive, Some((20, Queue)), None, (4, 8, 1, None)),
            // All queues of the drive share the tags; each queue has at most as many requests in
            // flight as the driver accepts there.
            (PerQueue, Some((5, Drive)), None, (4, 5, 1, None)),
            (PerQueue, Some((8, Drive)), None, (4, 8, 1, None)),
            (PerQueue, Some((9, Drive)), None, (4, 9, 1, Some(8))),
            (PerQueue, Some((100, Drive)), None, (4, 32, 1, Some(8))),
            (PerDrive, Some((100, Drive)), None, (4, 8, 1, None)),
            // A drive that numbers tags across its queues gets a single queue if the controller has
            // more tags than the drive.
            (PerQueue, Some((20, Controller)), None, (4, 20, 1, Some(8))),
            (PerDrive, Some((20, Controller)), None, (1, 20, 1, Some(8))),
            (PerDrive, Some((9, Controller)), None, (1, 9, 1, Some(8))),
            (PerDrive, Some((8, Controller)), None, (4, 8, 1, None)),
            (PerDrive, Some((8, Controller)), Some(7), (1, 8, 1, Some(7))),
            (PerDrive, Some((5, Controller)), None, (4, 5, 1, None)),
        ] {
            let case = (scope, controller, depth);
            assert_eq!(tags_of(scope, controller, depth), expected, "{case:?}");
        }
    }
}
