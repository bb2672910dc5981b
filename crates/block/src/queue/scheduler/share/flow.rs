//! `Flow`: a group at one hardware queue of a shared drive.
//!
//! What waits of it there, in the order in which it came, and how far it has got. Called by
//! share.rs, under the queue's serve lock.

use alloc::boxed::Box;

use millrace_machine::Machine;

use crate::account::waits::Said;
use crate::bio::Sector;
use crate::bio::group_id::GroupId;
use crate::chain::slot::BioList;
use crate::group::config::Priority;
use crate::group::view::GroupView;
use crate::queue::scheduler::share::depth::Policy;
use crate::queue::scheduler::share::times::LatencyCounts;

/// Virtual time of a nanosecond of cost at weight 1.
pub(crate) const VIRTUAL_BITS: u32 = 24;

/// What groups are promised, and by what the drive is shared.
pub(crate) type Terms<'a, M> = (&'a GroupView<M>, Policy);

/// What of a flow waits, and what is at the drive, in 16ths of a small request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Load {
    pub(crate) waiting: u32,
    pub(crate) in_flight: u32,
}

/// A group at one hardware queue; with [`Policy::Targets`], its reads or its writes.
pub(crate) struct Flow<M: Machine> {
    pub(crate) group: GroupId,
    pub(crate) way: usize,
    pub(crate) list: BioList<M>,
    /// Virtual time at which its next chain starts. 64 bits would be full within hours.
    pub(crate) start: u128,
    /// Virtual time of a nanosecond of cost, by its weight among those that are active.
    pub(crate) slope: u64,
    pub(crate) priority: Priority,
    /// Its group has a latency target, and the drive is shared by those.
    pub(crate) has_target: bool,
    /// Cost of all that went out.
    pub(crate) served: u64,
    /// What that may come to.
    pub(crate) ceiling: u64,
    pub(crate) load: Load,
    /// Something waited all the time since the last post.
    pub(crate) steady: bool,
    pub(crate) last_end: Sector,
    /// When it last sent something out.
    pub(crate) sent_ns: u64,
    pub(crate) latencies: Option<Box<LatencyCounts>>,
    /// What its group's account says of what waits here.
    pub(crate) said: Said,
}

impl<M: Machine> Flow<M> {
    /// An empty one, which starts at a virtual time.
    pub(crate) fn new((group, way): (GroupId, usize), start: u128, terms: Terms<'_, M>) -> Self {
        let mut flow = Flow {
            group,
            way,
            list: BioList::new(),
            start,
            slope: 1,
            priority: Priority::BestEffort,
            has_target: false,
            served: 0,
            ceiling: u64::MAX,
            load: Load::default(),
            steady: false,
            last_end: Sector::MAX,
            sent_ns: 0,
            latencies: None,
            said: Said::default(),
        };
        flow.follow(terms);
        flow
    }

    /// Learns what its group is promised.
    pub(crate) fn follow(&mut self, (view, policy): Terms<'_, M>) {
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
