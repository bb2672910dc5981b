//! `Throttle`: delays bios that exceed a limit of their group, before they are plugged.
//!
//! Owned by a channel's `BioSubmission`. A bio passes the token buckets of its group, then those of
//! the group's parent (group/gate.rs). Each bucket reserves a time at which the bio may pass. Until
//! then the bio waits here, in a slot of the channel. So a submitter that exceeds a limit finds its
//! channel full. While the last reserved time of a queue is far ahead ([`AHEAD_NS`]), further bios
//! of the queue reserve no time, so a submitter that stops leaves few unused reservations. Waiting
//! bios use at most half of the slots, not counting bios that `poll_again` submits again. A group
//! may use at most half of the slots that are free for waiting bios. No thread spins: the channel
//! asks to be polled at the earliest reserved time. Flushes are not limited. Kernel counterpart:
//! `struct throtl_service_queue`.

use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::Machine;

use crate::account::held::WaitAccounts;
use crate::account::hold::WaitReason;
use crate::account::tenants::TenantLedger;
use crate::account::waits::ReportedWaits;
use crate::bio::group_id::GroupId;
use crate::bio::{Bio, Op};
use crate::chain::slot::{BioList, BioRef};
use crate::group::Groups;
use crate::group::gate::{BUCKETS_PER_BIO, IoAtBucket, PLACES};
use crate::group::view::GroupView;

/// Longest sleep in nanoseconds while bios wait, because limits may change during the sleep.
const LOOK_NS: u64 = 20_000_000;
/// While the last reserved time of a queue is more nanoseconds than this ahead of the present time,
/// further bios of the queue wait without a reserved time. Limits how long a client with one I/O in
/// flight waits behind a client with many.
const AHEAD_NS: u64 = 1_000_000;
/// Marks a waiting bio that has no reserved time at its token bucket yet. Stored in `dev_sector`,
/// which otherwise holds the reserved time in nanoseconds.
const NO_TIME: u64 = u64::MAX;

/// Index of the token bucket at which a bio continues (`from`). A bio passes its token buckets in
/// order of their indices.
#[derive(Clone, Copy)]
struct BucketStep {
    from: usize,
    /// True if the bio is the first in its queue without a reserved time. Such a bio reserves a
    /// time now. Without this flag, `pass_from` could put it back at the end of the queue.
    is_first: bool,
}

impl BucketStep {
    fn from(from: usize) -> BucketStep {
        BucketStep { from, is_first: false }
    }
}

/// Treatment of the cost of a bio that is taken out of a `Throttle` before its reserved time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldCharge {
    /// The cost reserved for the bio is given back to its token bucket, so later bios wait less.
    Returned,
    /// The cost is charged to all token buckets of the bio, so later bios of its group wait longer.
    Paid,
}

/// Bios of a group that wait at one token bucket, in the order in which they may pass.
struct BucketQueue<M: Machine> {
    group: GroupId,
    /// Index of the token bucket among those that a bio passes.
    place: usize,
    /// True if the bios are reads. Reads and writes wait in separate queues, because a limit may
    /// apply to reads only or to writes only.
    is_read: bool,
    /// Waiting bios that have a reserved time at which they may pass the token bucket. The time is
    /// stored in `dev_sector`, which is unused until a bio is mapped to a drive.
    timed: BioList<M>,
    /// Time, in nanoseconds, at which the bio added to `timed` last may pass the token bucket.
    last_ns: u64,
    /// Bios without a reserved time, queued behind the bios in `timed`. After a call of `take_due`,
    /// the list is empty if `timed` is empty.
    behind: BioList<M>,
}

impl<M: Machine> BucketQueue<M> {
    /// Returns true if a new bio must wait here before it reserves a time. Either older bios have
    /// no reserved time yet, or the last reserved time is more than [`AHEAD_NS`] ahead.
    fn is_ahead(&self, now_ns: u64) -> bool {
        !self.behind.is_empty() || (!self.timed.is_empty() && self.last_ns > now_ns + AHEAD_NS)
    }
}

pub(crate) struct Throttle<M: Machine> {
    groups: Option<Arc<Groups<M>>>,
    pub(crate) view: GroupView<M>,
    /// True if any group has limits or any bio waits.
    pub(crate) is_on: bool,
    pub(crate) held: u32,
    held_max: u32,
    /// Earliest time, in nanoseconds, at which the bio queued last may continue. Used only in trace
    /// messages.
    pub(crate) held_until_ns: u64,
    lines: Vec<BucketQueue<M>>,
    /// Indexed by group number: the last report of the group's waiting bios, and the group whose
    /// account has these waits. Bios with an unknown group number are accounted to the default
    /// group.
    held_of: Vec<(ReportedWaits, GroupId)>,
    next_ns: u64,
    ledger: Arc<TenantLedger<M>>,
    holds: WaitAccounts<M>,
}

impl<M: Machine> Throttle<M> {
    pub(crate) fn new(
        groups: Option<Arc<Groups<M>>>,
        ledger: &Arc<TenantLedger<M>>,
        depth: u32,
    ) -> Self {
        Throttle {
            groups,
            view: GroupView::new(),
            is_on: false,
            held: 0,
            held_max: (depth / 2).max(1),
            held_until_ns: 0,
            lines: Vec::new(),
            held_of: Vec::new(),
            next_ns: u64::MAX,
            ledger: Arc::clone(ledger),
            holds: WaitAccounts::new(),
        }
    }

    #[inline(always)]
    pub(crate) fn is_old(&self) -> bool {
        self.groups.as_ref().is_some_and(|groups| self.view.is_old(groups))
    }

    /// Copies the changed group table. Bios that wait for a changed limit cancel their reserved
    /// times, and reserve new times under the new limit.
    #[cold]
    pub(crate) fn renew(&mut self, now_ns: u64) {
        let Some(groups) = &self.groups else { return };
        let mut old = GroupView::new();
        core::mem::swap(&mut self.view, &mut old);
        self.view.renew(groups);
        self.is_on = self.view.has_limits || self.held > 0;
        // Each change of a group's limits makes new token buckets.
        let buckets_in = |view: &GroupView<M>, line: &BucketQueue<M>| {
            let id = view.at_level(line.group, line.place / BUCKETS_PER_BIO)?;
            view.row(id)?.limits.as_ref().map(Arc::as_ptr)
        };
        let is_same =
            |line: &BucketQueue<M>| buckets_in(&old, line) == buckets_in(&self.view, line);
        let (same, changed): (Vec<_>, Vec<_>) =
            core::mem::take(&mut self.lines).into_iter().partition(is_same);
        self.lines = same;
        for mut line in changed {
            let place = line.place;
            let first = place - place % BUCKETS_PER_BIO;
            line.timed.for_each(|slot| {
                old.bucket_of(&slot.bio, place).iter().for_each(IoAtBucket::give_back);
            });
            let mut all = line.timed.take();
            all.append(&mut line.behind);
            while let Some(slot) = all.pop_front() {
                self.count_out(&slot, now_ns);
                // The bio has already paid at the old token buckets before index `place`. Of the
                // buckets of the changed group, which begin at index `first`, the bio continues at
                // the first one before `place` that did not exist, because there may be a new one.
                // At later indices before `place`, the bio pays a second time. If there was an old
                // bucket at each index, the bio continues at `place`.
                let is_new = |at: &usize| old.bucket_of(&slot.bio, *at).is_none();
                let from = (first..place).find(is_new).unwrap_or(place);
                // If the bio has now passed all its token buckets, it is queued again with the
                // reserved time 0. The next call of `take_due` then returns it.
                if let Some(mut slot) = self.pass_from(BucketStep::from(from), slot, now_ns) {
                    slot.dev_sector = 0;
                    self.hold(slot, PLACES, now_ns);
                }
            }
        }
        self.next_ns = self.earliest();
    }

    /// Returns true if no further bio of a group may wait. Each group may use half of the waiting
    /// places that are still free. So a new group finds room, however many bios of other groups
    /// wait. Source: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
    /// switches", 1998.
    #[cold]
    pub(crate) fn is_full(&self, group: GroupId) -> bool {
        let held = self.held_of.get(usize::from(group.0)).map_or(0, |(said, _)| said.waiting());
        let room = self.held_max.saturating_sub(self.held);
        2 * held >= room && (held > 0 || self.view.is_limited(group))
    }

    /// Returns true if a limit applies now to a group's bios of this operation.
    #[inline]
    pub(crate) fn is_limited(&mut self, group: GroupId, op: Op) -> bool {
        if self.is_old() {
            self.renew(M::now());
        }
        let has_toll = |place| self.view.buckets_at(group, op, place).is_some();
        self.view.has_limits && (0..PLACES).any(has_toll)
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Bio> {
        let slots = self.lines.iter().flat_map(|line| line.timed.iter().chain(line.behind.iter()));
        slots.map(|slot| &*slot.bio)
    }

    /// Removes the waiting bios for which `is_meant` returns true.
    pub(crate) fn take(
        &mut self,
        mut is_meant: impl FnMut(&Bio) -> bool,
        charge: HeldCharge,
    ) -> BioList<M> {
        let mut taken = BioList::new();
        for at in 0..self.lines.len() {
            let line = &mut self.lines[at];
            let place = line.place;
            for (mut all, is_timed) in [(line.timed.take(), true), (line.behind.take(), false)] {
                while let Some(slot) = all.pop_front() {
                    if !is_meant(&slot.bio) {
                        let line = &mut self.lines[at];
                        if is_timed { &mut line.timed } else { &mut line.behind }.push_back(slot);
                        continue;
                    }
                    self.count_out(&slot, M::now());
                    if is_timed && let Some(bucket) = self.view.bucket_of(&slot.bio, place) {
                        match charge {
                            HeldCharge::Returned => bucket.give_back(),
                            HeldCharge::Paid => bucket.leave(),
                        }
                    }
                    if charge == HeldCharge::Paid {
                        self.pay(&slot, place + usize::from(is_timed));
                    }
                    taken.push_back(slot);
                }
            }
        }
        // After the loop, the first bio of a queue may have no reserved time. With a `next_ns` of
        // 0, the next call of `take_due` checks all queues.
        self.next_ns = 0;
        taken
    }

    /// Charges the cost of a bio to its token buckets from index `unpaid` on.
    fn pay(&self, slot: &BioRef<M>, unpaid: usize) {
        for bucket in (unpaid..PLACES).filter_map(|place| self.view.bucket_of(&slot.bio, place)) {
            bucket.reserve(M::now());
        }
    }

    /// Returns the bio if no limit delays it now. Otherwise queues the bio and returns `None`.
    #[inline(never)]
    pub(crate) fn pass(&mut self, slot: BioRef<M>, now_ns: u64) -> Option<BioRef<M>> {
        self.pass_from(BucketStep::from(0), slot, now_ns)
    }

    /// Charges the cost of a bio to its token buckets in order, from index `way.from` on. If the
    /// bio must wait at a bucket, queues the bio there and returns `None`.
    fn pass_from(
        &mut self,
        way: BucketStep,
        mut slot: BioRef<M>,
        now_ns: u64,
    ) -> Option<BioRef<M>> {
        if slot.op() == Op::Flush {
            return Some(slot);
        }
        for place in way.from..PLACES {
            let Some(bucket) = self.view.bucket_of(&slot.bio, place) else { continue };
            if self.held > 0
                && !(way.is_first && place == way.from)
                && let Some(line) = self.line_of(&slot, place)
                && self.lines[line].is_ahead(now_ns)
            {
                slot.dev_sector = NO_TIME;
                self.hold(slot, place, now_ns);
                return None;
            }
            let due_ns = bucket.reserve(now_ns);
            if due_ns > now_ns {
                bucket.wait();
                slot.dev_sector = due_ns;
                self.hold(slot, place, now_ns);
                return None;
            }
        }
        Some(slot)
    }

    /// Returns the index of the queue for the bio's group and direction at token bucket `place`.
    /// Returns `None` if there is no such queue.
    fn line_of(&self, slot: &BioRef<M>, place: usize) -> Option<usize> {
        let key = (slot.bio.account_key.group, place, slot.op() == Op::Read);
        self.lines.iter().position(|line| (line.group, line.place, line.is_read) == key)
    }

    /// Queues a bio at its token bucket with index `place`. `slot.dev_sector` holds the time in
    /// nanoseconds (not a sector) at which the bio may pass the bucket, or `NO_TIME`.
    fn hold(&mut self, slot: BioRef<M>, place: usize, now_ns: u64) {
        let (group, is_read) = (slot.bio.account_key.group, slot.op() == Op::Read);
        self.held += 1;
        self.say(group, now_ns, |said| said.with(slot.q_ns));
        let at = self.line_of(&slot, place).unwrap_or_else(|| {
            let (timed, behind) = (BioList::new(), BioList::new());
            self.lines.push(BucketQueue { group, place, is_read, timed, last_ns: 0, behind });
            self.lines.len() - 1
        });
        let line = &mut self.lines[at];
        if slot.dev_sector == NO_TIME {
            self.held_until_ns = line.last_ns;
            return line.behind.push_back(slot);
        }
        (line.last_ns, self.held_until_ns) = (slot.dev_sector, slot.dev_sector);
        self.next_ns = self.next_ns.min(slot.dev_sector);
        line.timed.push_back(slot);
    }

    fn count_out(&mut self, slot: &BioRef<M>, now_ns: u64) {
        self.held -= 1;
        self.say(slot.bio.account_key.group, now_ns, |said| said.without(slot.q_ns));
    }

    fn say(
        &mut self,
        group: GroupId,
        now_ns: u64,
        next: impl FnOnce(ReportedWaits) -> ReportedWaits,
    ) {
        let of_group = usize::from(group.0);
        if self.held_of.len() <= of_group {
            self.held_of
                .resize(of_group + 1, (ReportedWaits::all(Some(WaitReason::Limit), 0, 0), group));
        }
        let (said, known) = &mut self.held_of[of_group];
        if said.waiting() == 0 {
            *known = self.view.known(group);
        }
        let account = self.holds.of(*known, |account| self.ledger.open_held(account));
        account.say(said, next(*said), now_ns);
    }

    /// Returns the time by which `take_due` must be called; `None` if no bio waits.
    pub(crate) fn wake_ns(&self, now_ns: u64) -> Option<u64> {
        (self.held > 0).then(|| self.next_ns.min(now_ns + LOOK_NS))
    }

    /// Removes and returns the bios that have passed all their token buckets at `now_ns`.
    pub(crate) fn take_due(&mut self, now_ns: u64) -> BioList<M> {
        let mut due = BioList::new();
        if self.is_old() {
            self.renew(now_ns);
        }
        if now_ns < self.next_ns {
            return due;
        }
        let mut at = 0;
        while at < self.lines.len() {
            while let Some((slot, next)) = self.next_of(at, now_ns) {
                self.count_out(&slot, now_ns);
                if let Some(mut slot) = self.pass_from(next, slot, now_ns) {
                    slot.mark_admitted(now_ns);
                    due.push_back(slot);
                }
            }
            at += 1;
        }
        self.lines.retain(|line| !line.timed.is_empty());
        self.next_ns = self.earliest();
        self.is_on = self.view.has_limits || self.held > 0;
        due
    }

    /// Removes the next bio that may continue from queue `lines[at]`. A bio may continue if its
    /// reserved time has come, or if it may reserve a time now. Also returns the token bucket at
    /// which the bio continues.
    fn next_of(&mut self, at: usize, now_ns: u64) -> Option<(BioRef<M>, BucketStep)> {
        let line = &mut self.lines[at];
        let place = line.place;
        if line.timed.first().is_some_and(|slot| slot.dev_sector <= now_ns) {
            let slot = line.timed.pop_front()?;
            self.view.bucket_of(&slot.bio, place).iter().for_each(IoAtBucket::leave);
            return Some((slot, BucketStep::from(place + 1)));
        }
        let may_ask = line.timed.is_empty() || line.last_ns <= now_ns + AHEAD_NS;
        let next = if may_ask { line.behind.pop_front() } else { None };
        next.map(|slot| (slot, BucketStep { from: place, is_first: true }))
    }

    /// Takes out all waiting bios, and ignores limits from now on, because the program stops.
    pub(crate) fn lift(&mut self) -> BioList<M> {
        let mut all = BioList::new();
        for mut line in self.lines.drain(..) {
            line.timed.for_each(|slot| {
                self.view.bucket_of(&slot.bio, line.place).iter().for_each(IoAtBucket::leave);
            });
            all.append(&mut line.timed);
            all.append(&mut line.behind);
        }
        let now_ns = if all.is_empty() { 0 } else { M::now() };
        for group in 0..self.held_of.len() as u16 {
            if self.held_of[usize::from(group)].0.waiting() > 0 {
                self.say(GroupId(group), now_ns, |said| ReportedWaits::all(said.hold, 0, 0));
            }
        }
        (self.held, self.is_on, self.groups) = (0, false, None);
        all
    }

    #[cold]
    pub(crate) fn count_hold(&mut self, group: GroupId, hold: WaitReason, ns: u64) {
        let group = self.view.known(group);
        self.holds.of(group, |account| self.ledger.open_held(account)).add(hold, ns);
    }

    fn earliest(&self) -> u64 {
        let firsts = self.lines.iter().filter_map(|line| line.timed.first());
        firsts.map(|slot| slot.dev_sector).min().unwrap_or(u64::MAX)
    }
}
