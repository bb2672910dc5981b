//! `GroupSpec`: an I/O group (weight, priority, limits) of a scenario, as plain data.
//!
//! The choice of each bio's group, and the checks on groups, are in sharing.rs.

use std::time::Duration;

use millrace_block::{GroupConfig, GroupId, GroupLimits, LatencyTarget, Priority};
use serde::{Deserialize, Serialize};

use super::random::Random;

/// Burst of a group's IOPS limit, as a time in nanoseconds: the shortest that the block layer
/// accepts.
pub(super) const BURST_NS: u64 = 1_000_000;

/// Settings of one I/O group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    /// Weight, 1 to 10,000.
    pub weight: u32,
    /// If true, the group is a child of the first group.
    pub below: bool,
    /// I/O priority class: 0 realtime, 1 best-effort, 2 idle.
    pub priority: u8,
    /// Limit in I/Os per second; 0 for no limit.
    pub iops: u32,
    /// Latency target for the 99th percentile of the group, in microseconds; 0 for none.
    pub target_us: u32,
}

impl GroupSpec {
    pub(super) fn draw(random: &mut Random, index: u32) -> GroupSpec {
        GroupSpec {
            weight: random.pick(&[1, 10, 100, 100, 400, 10_000]),
            below: index > 0 && random.per_mille(300),
            priority: random.pick(&[0, 1, 1, 1, 2]),
            iops: random.pick(&[0, 0, 0, 2_000, 20_000, 200_000]),
            target_us: random.pick(&[0, 0, 1, 50, 1_000]),
        }
    }

    pub(super) fn config(&self, index: usize) -> GroupConfig {
        let limits = GroupLimits {
            iops: (self.iops > 0).then_some(self.iops.into()),
            burst: Duration::from_nanos(BURST_NS),
            ..GroupLimits::default()
        };
        let target = LatencyTarget::Percentile(9_900, Duration::from_micros(self.target_us.into()));
        GroupConfig {
            weight: self.weight,
            parent: self.below.then_some(GroupId(1)),
            priority: match self.priority {
                0 => Priority::Realtime,
                1 => Priority::BestEffort,
                _ => Priority::Idle,
            },
            latency_target: (self.target_us > 0).then_some(target),
            limits,
            ..GroupConfig::new(format!("group{index}"))
        }
    }
}
