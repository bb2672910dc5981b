//! `GroupConfig`: what a group is promised, with ranges.
//!
//! Plain values, checked by `Groups` (group.rs). Kernel counterpart: the files `io.weight`,
//! `io.max`, `io.latency` and `io.prio.class` of a cgroup.

use alloc::format;
use alloc::string::String;

use crate::bio::error::{Error, ErrorKind};
use crate::bio::group_id::GroupId;

/// Classes of groups: the higher goes first, whatever the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Priority {
    /// Before all others.
    Realtime,
    /// As weights say.
    #[default]
    BestEffort,
    /// What the others leave, and a little in any case.
    Idle,
}

/// How long I/Os of a group may take at the drive and in its queues, if the scheduler can help it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatencyTarget {
    /// The mean, in nanoseconds.
    Mean(u64),
    /// So many of 10,000 I/Os (5,000 to 9,999) in no more than this time in nanoseconds.
    Percentile(u16, u64),
}

impl LatencyTarget {
    /// The time in nanoseconds.
    #[must_use]
    pub fn ns(self) -> u64 {
        match self {
            LatencyTarget::Mean(ns) | LatencyTarget::Percentile(_, ns) => ns,
        }
    }
}

/// How much a group may do in a second, over all its volumes and threads. A write is whatever
/// changes the drive: a write, a discard, a write of zeroes; only writes carry bytes. Flushes are
/// not limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupLimits {
    /// I/Os of both kinds, 1 or more.
    pub iops: Option<u64>,
    /// Reads, 1 or more.
    pub read_iops: Option<u64>,
    /// Writes, 1 or more.
    pub write_iops: Option<u64>,
    /// Bytes of both kinds, 4,096 or more.
    pub bandwidth: Option<u64>,
    /// Bytes read, 4,096 or more.
    pub read_bandwidth: Option<u64>,
    /// Bytes written, 4,096 or more.
    pub write_bandwidth: Option<u64>,
    /// For how long what is not used is saved up, in nanoseconds: 1 ms to 60 s; 10 ms.
    pub burst_ns: u64,
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
            burst_ns: 10_000_000,
        }
    }
}

impl GroupLimits {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.rates().iter().all(|(_, rate, _)| rate.is_none())
    }

    /// Name, rate and least rate of each limit.
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

/// A group's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupConfig {
    /// Name, unlike those of all others.
    pub name: String,
    /// The group that it shares with its siblings; groups have two levels.
    pub parent: Option<GroupId>,
    /// Its share beside its siblings', 1 to 10,000; 100.
    pub weight: u32,
    /// Its class.
    pub priority: Priority,
    /// What the scheduler `latency` keeps for it at others' cost.
    pub latency_target: Option<LatencyTarget>,
    /// How much it may do.
    pub limits: GroupLimits,
}

impl GroupConfig {
    /// Weight 100, no limits.
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

    /// Whether all values are in their ranges.
    ///
    /// # Errors
    /// `InvalidSetting` names the first that is not.
    pub fn validate(&self) -> Result<(), Error> {
        let wrong = |text: String| {
            let text = format!("group {}: {text}", self.name);
            Err(Error::new(ErrorKind::InvalidSetting, text))
        };
        if self.name.is_empty() {
            return wrong("a group needs a name".into());
        }
        if !(1..=10_000).contains(&self.weight) {
            return wrong(format!("weight {}: 1 to 10000", self.weight));
        }
        for (name, rate, least) in self.limits.rates() {
            if let Some(rate) = rate.filter(|rate| !(least..=1 << 50).contains(rate)) {
                let unit = if least == 1 { "I/O" } else { "bytes" };
                return wrong(format!(
                    "{name} {rate}: below one I/O a second or absurdly high; {least} {unit} a \
                     second or more, or leave it out for no limit"
                ));
            }
        }
        let burst_ns = self.limits.burst_ns;
        if !(1_000_000..=60_000_000_000).contains(&burst_ns) {
            return wrong(format!("burst of {burst_ns} ns: 1ms to 60s"));
        }
        match self.latency_target {
            Some(target) if !(1_000..=60_000_000_000).contains(&target.ns()) => {
                wrong(format!("latency-target of {} ns: 1us to 60s", target.ns()))
            }
            Some(LatencyTarget::Percentile(of, _)) if !(5_000..=9_999).contains(&of) => {
                wrong(format!("latency-target: percentile {of} of 10000; p50 to p99.99"))
            }
            _ => Ok(()),
        }
    }
}
