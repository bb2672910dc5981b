//! `Controller`: what drives hang on, as far as the layer is told: how many tags, and whose.
//!
//! Hardware has tags in three places: each hardware queue its own (NVMe, 1,024), each drive its own
//! (AHCI, 32), or a controller some for all its drives (SCU 250, HBA 10,140). A driver knows only
//! of its own drive; a `Controller` in a `DiskConfig` says more, and `queue_tags` is where both
//! become tag sets. Invariant: a hardware queue never has more requests in flight than its driver
//! takes, however many tags the controller has: the rest waits without a tag, so that a slow drive
//! keeps none from others. Flushes go beyond it by those reserved. Kernel counterparts: host tags
//! (`scsi_host->can_queue`, `BLK_MQ_F_TAG_HCTX_SHARED`) and a device's `queue_depth`.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::{Machine, NodeId, Topology};

use crate::disk::DiskConfig;
use crate::driver::{HwQueues, TagScope};
use crate::error::{Error, ErrorKind};
use crate::tag::TagSet;

/// Who shares the tags of a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Nobody: each hardware queue of each drive has that many.
    Queue,
    /// The hardware queues of a drive: each drive has that many.
    Drive,
    /// All drives: they have that many together.
    Controller,
}

/// Settings of a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerConfig {
    /// Name, for drives that hang on it and for errors.
    pub name: String,
    /// Tags, 1 to 65,536.
    pub tags: u32,
    /// Who shares them.
    pub sharing: Sharing,
    /// The NUMA node that it hangs on; none if that is not known.
    pub node: Option<NodeId>,
}

impl ControllerConfig {
    /// Most tags.
    pub const TAGS_MAX: u32 = 65_536;

    /// Whether it makes sense on a machine.
    ///
    /// # Errors
    /// `InvalidSetting` with the controller, the value and its range.
    pub fn validate(&self, topology: &Topology) -> Result<(), Error> {
        let wrong = |what: String| {
            let text = format!("controller {}: {what}", self.name);
            Err(Error::new(ErrorKind::InvalidSetting, text))
        };
        if self.tags == 0 || self.tags > Self::TAGS_MAX {
            return wrong(format!("{} tags: 1 to {}", self.tags, Self::TAGS_MAX));
        }
        let nodes = topology.nodes() as u32;
        match self.node {
            Some(node) if node.0 >= nodes && nodes == 1 => {
                wrong(format!("there is no NUMA node {}: this machine has node 0 alone", node.0))
            }
            Some(node) if node.0 >= nodes => {
                let most = nodes - 1;
                wrong(format!("there is no NUMA node {}: this machine has 0 to {most}", node.0))
            }
            _ => Ok(()),
        }
    }
}

/// A controller of a machine, for the `DiskConfig` of each of its drives.
pub struct Controller<M: Machine> {
    config: ControllerConfig,
    /// The one set of all its drives, if they share one.
    shared: Option<Arc<TagSet<M>>>,
}

impl<M: Machine> Controller<M> {
    /// A controller without drives; all its tags are free.
    ///
    /// # Errors
    /// As [`ControllerConfig::validate`].
    pub fn new(config: ControllerConfig) -> Result<Arc<Self>, Error> {
        config.validate(&M::topology())?;
        let shared =
            (config.sharing == Sharing::Controller).then(|| Arc::new(TagSet::new(config.tags)));
        Ok(Arc::new(Controller { config, shared }))
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &ControllerConfig {
        &self.config
    }

    /// Tags of the set that its drives share in use; none if they share none.
    #[must_use]
    pub fn tags_in_use(&self) -> Option<u32> {
        self.shared.as_ref().map(|tags| tags.in_use())
    }
}

/// Tags of one hardware queue.
pub(crate) struct QueueTags<M: Machine> {
    pub(crate) tags: Arc<TagSet<M>>,
    /// Requests that it may have in flight, flushes apart; as many as there are if the set has not
    /// more than the driver takes.
    pub(crate) depth_max: Option<u32>,
}

/// Hardware queues that a disk may have for its tags: a drive that numbers them for all its queues
/// is held to them in one place, so it has one queue behind a controller that has more.
pub(crate) fn queues_max<M: Machine>(config: &DiskConfig<M>, hw: HwQueues) -> u16 {
    let shares = |c: &Controller<M>| c.shared.is_some() && c.config.tags > own_depth(config, hw);
    match (&config.controller, hw.tags) {
        (Some(controller), TagScope::PerDrive) if shares(controller) => 1,
        _ => hw.count,
    }
}

/// Tags that a queue may use by its drive alone.
fn own_depth<M: Machine>(config: &DiskConfig<M>, hw: HwQueues) -> u32 {
    config.queue_depth.unwrap_or(hw.depth).clamp(1, hw.depth)
}

/// The tags of each of `hctxs` hardware queues: the drive's, within the controller's.
pub(crate) fn queue_tags<M: Machine>(
    config: &DiskConfig<M>,
    hw: HwQueues,
    hctxs: usize,
) -> Vec<QueueTags<M>> {
    let own = own_depth(config, hw);
    let given = config.controller.as_ref().map(|controller| &controller.config);
    let (sharing, most) = given.map_or((Sharing::Queue, own), |c| (c.sharing, c.tags));
    let set = |depth: u32| Arc::new(TagSet::new(depth));
    // One set of all queues, or none if each has its own.
    let one = match (config.controller.as_ref().and_then(|c| c.shared.clone()), hw.tags) {
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
