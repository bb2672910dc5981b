//! `FlowGroups`: keeps the numbers of several jobs' I/Os in proportion to the jobs' `flow` weights,
//! as in fio.
//!
//! Jobs with the same `flow_id` form a group, which counts the I/Os of all its jobs. A job whose
//! fraction of these I/Os exceeds its weight's fraction of all weights waits until the other jobs
//! have caught up. A job that has ended no longer counts. `run` creates the groups for the jobs
//! that run at the same time; workers ask the group before each I/O.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::spec::Flow;

const LOOK_NS: u64 = 20_000;

#[derive(Debug, Default)]
pub(super) struct FlowGroups(BTreeMap<u64, FlowGroup>);

#[derive(Debug, Default)]
struct FlowGroup {
    ios: AtomicU64,
    weight: AtomicU64,
}

#[derive(Debug)]
pub(super) struct FlowMember<'a> {
    group: &'a FlowGroup,
    flow: Flow,
    ios: u64,
}

impl FlowGroups {
    pub(super) fn new(flows: impl Iterator<Item = Flow>) -> FlowGroups {
        let mut groups = FlowGroups::default();
        for flow in flows {
            *groups.0.entry(flow.id).or_default().weight.get_mut() += flow.weight;
        }
        groups
    }

    /// Creates a member of the job's group. The member leaves the group when it is dropped.
    pub(super) fn member(&self, flow: Flow) -> FlowMember<'_> {
        FlowMember { group: &self.0[&flow.id], flow, ios: 0 }
    }
}

impl FlowMember<'_> {
    /// Returns how long the job must wait for the other jobs, in nanoseconds; `None` if it may go
    /// on.
    pub(super) fn wait_ns(&self) -> Option<u64> {
        // Relaxed: no data depends on the counts. A job that sees old counts checks again later.
        let all = self.group.ios.load(Ordering::Relaxed);
        let weights = self.group.weight.load(Ordering::Relaxed);
        let is_ahead = u128::from(self.ios) * u128::from(weights)
            > u128::from(all) * u128::from(self.flow.weight);
        is_ahead.then_some(self.flow.sleep_ns.max(LOOK_NS))
    }

    pub(super) fn issued(&mut self) {
        self.ios += 1;
        self.group.ios.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for FlowMember<'_> {
    fn drop(&mut self) {
        self.group.ios.fetch_sub(self.ios, Ordering::Relaxed);
        self.group.weight.fetch_sub(self.flow.weight, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_ahead_waits_until_others_catch_up_or_leave() {
        let flow = |weight| Flow { id: 7, weight, sleep_ns: 1_000_000 };
        let groups = FlowGroups::new([flow(1), flow(3)].into_iter());
        let (mut one, mut three) = (groups.member(flow(1)), groups.member(flow(3)));
        assert_eq!(one.wait_ns(), None);
        one.issued();
        assert_eq!((one.wait_ns(), three.wait_ns()), (Some(1_000_000), None));
        (0..3).for_each(|_| three.issued());
        assert_eq!((one.wait_ns(), three.wait_ns()), (None, None));
        one.issued();
        assert_eq!(one.wait_ns(), Some(1_000_000));
        drop(three);
        assert_eq!(one.wait_ns(), None);
    }
}
