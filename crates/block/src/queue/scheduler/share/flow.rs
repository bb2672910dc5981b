//! `GroupFlow`: the waiting I/O of a group at one hardware queue of a shared drive.
//!
//! A flow holds the group's waiting bio chains (each becomes one request) in order of arrival, and
//! the group's virtual time for fair queueing. Called by share.rs under the queue's serve lock,
//! which lets one thread at a time serve the queue.

use alloc::boxed::Box;

use millrace_machine::Machine;

use crate::account::waits::ReportedWaits;
use crate::bio::Sector;
use crate::bio::group_id::GroupId;
use crate::chain::slot::BioList;
use crate::group::config::Priority;
use crate::group::view::GroupView;
use crate::queue::scheduler::share::depth::Policy;
use crate::queue::scheduler::share::times::LatencyCounts;

/// Number of fraction bits of virtual times: at weight 1, a nanosecond of cost takes
/// `1 << VIRTUAL_BITS` of virtual time.
pub(crate) const VIRTUAL_BITS: u32 = 24;

pub(crate) type ShareTerms<'a, M> = (&'a GroupView<M>, Policy);

/// Depth units that a group's requests at one hardware queue take: waiting requests, and requests
/// in flight. A 4 KiB request takes 16.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FlowLoad {
    pub(crate) waiting: u32,
    pub(crate) in_flight: u32,
    /// True if the group usually needs no more than its share of the drive's depth limit. False
    /// while a probe lowers the limit.
    pub(crate) has_all: bool,
}

/// Waiting bio chains (each becomes one request) of a group at one hardware queue. With
/// [`Policy::Targets`], a group has two flows: one for reads, one for other operations.
pub(crate) struct GroupFlow<M: Machine> {
    pub(crate) group: GroupId,
    pub(crate) way: usize,
    pub(crate) list: BioList<M>,
    /// Virtual time at which the group's next bio chain starts; 128 bits, because 64 bits would
    /// overflow within hours.
    pub(crate) start: u128,
    /// Virtual time charged to the group for each nanosecond that its dispatched I/O costs. A group
    /// with a larger weight is charged less.
    pub(crate) slope: u64,
    pub(crate) priority: Priority,
    pub(crate) has_target: bool,
    /// Total cost of the group's I/O dispatched from this hardware queue, in nanoseconds.
    pub(crate) served: u64,
    /// Limit of `served`: when `served` reaches it, the group has used up its budget at this queue.
    pub(crate) ceiling: u64,
    pub(crate) load: FlowLoad,
    /// True if the group had waiting bio chains all the time since this hardware queue's last
    /// report.
    pub(crate) steady: bool,
    pub(crate) last_end: Sector,
    pub(crate) sent_ns: u64,
    pub(crate) latencies: Option<Box<LatencyCounts>>,
    pub(crate) said: ReportedWaits,
}

impl<M: Machine> GroupFlow<M> {
    pub(crate) fn new(
        (group, way): (GroupId, usize),
        start: u128,
        terms: ShareTerms<'_, M>,
    ) -> Self {
        let mut flow = GroupFlow {
            group,
            way,
            list: BioList::new(),
            start,
            slope: 1,
            priority: Priority::BestEffort,
            has_target: false,
            served: 0,
            ceiling: u64::MAX,
            load: FlowLoad::default(),
            steady: false,
            last_end: Sector::MAX,
            sent_ns: 0,
            latencies: None,
            said: ReportedWaits::default(),
        };
        flow.follow(terms);
        flow
    }

    pub(crate) fn follow(&mut self, (view, policy): ShareTerms<'_, M>) {
        let Some(row) = view.row(self.group) else { return };
        self.slope = (1 << VIRTUAL_BITS) / u64::from(row.weight.max(1));
        self.priority = row.priority;
        self.has_target = policy == Policy::Targets && row.target.is_some();
        if !self.has_target {
            self.latencies = None;
        } else if self.latencies.is_none() {
            self.latencies = Some(Box::default());
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.priority == Priority::Idle
    }
}
