//! `BioAtBucket`: a bio at one token bucket of its group, and the cost that it pays there.
//!
//! A bio passes the token buckets of its group and then those of the group's parent; `place` is a
//! bucket's number in this order. Each channel has a copy of the group table with its buckets
//! (group/view.rs). If a channel gets a new copy while a bio waits, the bio gives back its cost to
//! the buckets of the old copy. Used by throttle.rs.

use millrace_machine::Machine;

use crate::bio::Op;
use crate::bio::group_id::GroupId;
use crate::chain::slot::BioSlot;
use crate::group::gate::{BUCKETS_PER_BIO, BucketIo, LimitCosts, TokenBuckets};
use crate::group::view::GroupView;

const LEVELS: usize = 2;
/// Largest number of token buckets that a bio may pass.
pub(super) const PLACES: usize = LEVELS * BUCKETS_PER_BIO;

/// Returns the group whose limits apply at `level`: `group` itself at 0, its parent at 1.
pub(super) fn at_level<M: Machine>(
    view: &GroupView<M>,
    group: GroupId,
    level: usize,
) -> Option<GroupId> {
    let id = view.known(group);
    match level {
        0 => Some(id),
        1 => view.row(id)?.parent,
        _ => None,
    }
}

/// Returns the limits and token buckets that a bio meets at index `place`; `None` without a limit.
pub(super) fn buckets_at<M: Machine>(
    view: &GroupView<M>,
    (group, op): (GroupId, Op),
    place: usize,
) -> Option<(&LimitCosts, &TokenBuckets<M>)> {
    let id = at_level(view, group, place / BUCKETS_PER_BIO)?;
    let (costs, buckets, _) = view.row(id)?.limits.as_ref()?;
    (!costs.at(place % BUCKETS_PER_BIO, op).is_free()).then_some((costs, &**buckets))
}

pub(super) struct BioAtBucket<'a, M: Machine> {
    costs: &'a LimitCosts,
    buckets: &'a TokenBuckets<M>,
    io: BucketIo,
}

impl<'a, M: Machine> BioAtBucket<'a, M> {
    pub(super) fn of(view: &'a GroupView<M>, slot: &BioSlot<M>, place: usize) -> Option<Self> {
        let op = slot.op();
        let (costs, buckets) = buckets_at(view, (slot.bio.account_key.group, op), place)?;
        let sectors = if op.has_data() { slot.bio.nr_sectors } else { 0 };
        Some(BioAtBucket { costs, buckets, io: (place % BUCKETS_PER_BIO, op, sectors) })
    }

    /// Books the bio's cost at the token bucket; returns the time at which the bio may go on.
    pub(super) fn reserve(&self, now_ns: u64) -> u64 {
        self.buckets.reserve(self.costs, self.io, now_ns)
    }

    pub(super) fn wait(&self) {
        self.buckets.wait(self.costs, self.io);
    }

    /// Records that the bio no longer waits at the bucket. Its cost stays booked.
    pub(super) fn leave(&self) {
        self.buckets.leave(self.costs, self.io);
    }

    /// Records that the bio no longer waits at the bucket, and cancels the booking of its cost.
    pub(super) fn give_back(&self) {
        self.buckets.give_back(self.costs, self.io);
    }
}
