//! `GroupConfig`: the weight, limits, priority and latency target of a group, with their ranges.
//!
//! Plain values, checked by `Groups` (group.rs). Kernel counterpart: the files `io.weight`,
//! `io.max`, `io.latency` and `io.prio.class` of a cgroup.

use alloc::format;
use alloc::string::String;
use core::time::Duration;
use millrace_machine::nanoseconds;

use crate::bio::error::{Error, ErrorKind};
use crate::bio::group_id::GroupId;

/// Priority classes of groups. I/O of a higher class goes first, whatever the groups' weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Priority {
    /// I/Os of this class go before those of all other classes.
    Realtime,
    /// Groups of this class share drives by weight.
    #[default]
    BestEffort,
    /// I/Os of this class are dispatched only while other classes leave the drive idle, except for
    /// a small guaranteed minimum.
    Idle,
}

/// Latency that the scheduler tries to keep for a group's I/Os, from their insertion into the
/// scheduler to their completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LatencyTarget {
    /// Target of the mean latency.
    Mean(Duration),
    /// A percentile as parts of 10,000 (5,000 to 9,999), and its latency.
    Percentile(u16, Duration),
}

impl LatencyTarget {
    /// Returns the latency.
    #[must_use]
    pub fn latency(self) -> Duration {
        match self {
            LatencyTarget::Mean(latency) | LatencyTarget::Percentile(_, latency) => latency,
        }
    }

    pub(crate) fn ns(self) -> u64 {
        nanoseconds(self.latency())
    }
}

/// Rate limits of a group per second, over all its volumes and threads. Discards and write-zeroes
/// count as writes but carry no bytes. Flushes are not limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupLimits {
    /// Largest number of I/Os per second, reads and writes together; 1 or more.
    pub iops: Option<u64>,
    /// Largest number of read I/Os per second, 1 or more.
    pub read_iops: Option<u64>,
    /// Largest number of write I/Os per second, 1 or more.
    pub write_iops: Option<u64>,
    /// Largest number of bytes per second, read and written together; 4,096 or more.
    pub bandwidth: Option<u64>,
    /// Largest number of bytes read per second, 4,096 or more.
    pub read_bandwidth: Option<u64>,
    /// Largest number of bytes written per second, 4,096 or more.
    pub write_bandwidth: Option<u64>,
    /// Time over which unused capacity accumulates: 1 ms to 60 s, default 10 ms.
    pub burst: Duration,
}

impl Default for GroupLimits {
    fn default() -> Self {
        GroupLimits {
            iops: None,
            read_iops: None,
            write_iops: None,
            bandwidth: None,
            read_bandwidth: None,
            write_bandwidth: None,
            burst: Duration::from_millis(10),
        }
    }
}

impl GroupLimits {
    /// Returns true if no rate is limited.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.rates().iter().all(|(_, rate, _)| rate.is_none())
    }

    fn rates(&self) -> [(&'static str, Option<u64>, u64); 6] {
        [
            ("iops", self.iops, 1),
            ("read-iops", self.read_iops, 1),
            ("write-iops", self.write_iops, 1),
            ("bandwidth", self.bandwidth, 4096),
            ("read-bandwidth", self.read_bandwidth, 4096),
            ("write-bandwidth", self.write_bandwidth, 4096),
        ]
    }
}

/// The settings of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupConfig {
    /// Name of the group, unique in the program.
    pub name: String,
    /// Parent group, or `None` at the top level. The children of a parent divide its share of the
    /// drive. Groups have at most two levels.
    pub parent: Option<GroupId>,
    /// Weight relative to the group's siblings, 1 to 10,000, default 100.
    pub weight: u32,
    /// Priority class of the group's I/O.
    pub priority: Priority,
    /// Latency that the scheduler `latency` keeps for this group by slowing others down.
    pub latency_target: Option<LatencyTarget>,
    /// Rate limits of the group.
    pub limits: GroupLimits,
}

impl GroupConfig {
    /// Creates settings with weight 100 and no limits.
    #[must_use]
    pub fn new(name: impl Into<String>) -> GroupConfig {
        GroupConfig {
            name: name.into(),
            parent: None,
            weight: 100,
            priority: Priority::BestEffort,
            latency_target: None,
            limits: GroupLimits::default(),
        }
    }

    /// Checks that all values are in their ranges.
    ///
    /// # Errors
    /// `InvalidSetting` names the first value that is out of range.
    pub fn validate(&self) -> Result<(), Error> {
        let wrong = |text: String| {
            let text = format!("group {}: {text}", self.name);
            Err(Error::new(ErrorKind::InvalidSetting, text))
        };
        if self.name.is_empty() {
            return wrong("a group needs a name".into());
        }
        if !(1..=10_000).contains(&self.weight) {
            return wrong(format!("weight {} is out of range; use 1 to 10000", self.weight));
        }
        for (name, rate, least) in self.limits.rates() {
            if let Some(rate) = rate.filter(|rate| !(least..=1 << 50).contains(rate)) {
                let unit = if least == 1 { "I/Os" } else { "bytes" };
                return wrong(format!(
                    "{name} {rate} is out of range; use {least} to {} {unit} per second, or leave it \
                     out for no limit",
                    1_u64 << 50
                ));
            }
        }
        let burst_ns = nanoseconds(self.limits.burst);
        if !(1_000_000..=60_000_000_000).contains(&burst_ns) {
            return wrong(format!("a burst of {burst_ns} ns is out of range; use 1ms to 60s"));
        }
        match self.latency_target {
            Some(target) if !(1_000..=60_000_000_000).contains(&target.ns()) => wrong(format!(
                "a latency-target of {} ns is out of range; use 1us to 60s",
                target.ns()
            )),
            Some(LatencyTarget::Percentile(of, _)) if !(5_000..=9_999).contains(&of) => {
                let (whole, part) = (of / 100, of % 100);
                wrong(format!(
                    "latency-target p{whole}.{part:02} is out of range; use p50 to p99.99"
                ))
            }
            _ => Ok(()),
        }
    }
}
