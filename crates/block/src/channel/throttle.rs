//! `Throttle`: bios that wait for a limit of their group, before they get into a plug.
//!
//! Owned by a channel's `Submission`. A bio asks each gate of its group and of that one's parent in
//! turn (group/gate.rs) and gets a time; until then it waits here, in a slot of the channel, so that
//! back pressure reaches whoever submits. Nobody spins: the earliest time is when the channel asks
//! to be polled. A flush waits for no limit. Kernel counterpart: `struct throtl_service_queue`.

use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::Machine;

use crate::account::held::{Hold, Holds};
use crate::bio::Op;
use crate::bio::group_id::GroupId;
use crate::chain::slot::{BioList, BioRef};
use crate::group::Groups;
use crate::group::gate::GATES;
use crate::group::view::{GroupRow, GroupView};

/// Longest sleep while bios wait: limits may be changed meanwhile.
const LOOK_NS: u64 = 20_000_000;
/// Levels of groups.
const LEVELS: usize = 2;

/// Bios of a group that wait at one gate, in the order of their times.
struct Line<M: Machine> {
    group: GroupId,
    /// Level, gate and way of it.
    gate: (usize, usize, bool),
    /// When each may go stands in its `dev_sector`, which has no meaning yet.
    list: BioList<M>,
}

/// What a channel's bios wait for before they are plugged.
pub(crate) struct Throttle<M: Machine> {
    groups: Option<Arc<Groups<M>>>,
    view: GroupView<M>,
    /// Some group has limits.
    pub(crate) is_on: bool,
    /// Bios that wait.
    pub(crate) held: u32,
    /// When the last one that began to wait may go on.
    pub(crate) held_until_ns: u64,
    lines: Vec<Line<M>>,
    next_ns: u64,
    holds: Holds<M>,
}

impl<M: Machine> Throttle<M> {
    pub(crate) fn new(groups: Option<Arc<Groups<M>>>) -> Self {
        Throttle {
            groups,
            view: GroupView::new(),
            is_on: false,
            held: 0,
            held_until_ns: 0,
            lines: Vec::new(),
            next_ns: u64::MAX,
            holds: Holds::new(),
        }
    }

    /// Whether the table of groups has changed since [`Throttle::renew`].
    #[inline(always)]
    pub(crate) fn is_old(&self) -> bool {
        self.groups.as_ref().is_some_and(|groups| self.view.is_old(groups))
    }

    /// The group that a bio's number stands for.
    pub(crate) fn known(&self, group: GroupId) -> GroupId {
        self.view.known(group)
    }

    /// Learns what the limits are. Who waits for one that is another now asks again.
    #[cold]
    pub(crate) fn renew(&mut self, now_ns: u64) {
        let Some(groups) = &self.groups else { return };
        let mut old = GroupView::new();
        core::mem::swap(&mut self.view, &mut old);
        self.view.renew(groups);
        self.is_on = self.view.has_limits || self.held > 0;
        for mut line in core::mem::take(&mut self.lines) {
            let level = line.gate.0;
            let id = at_level(&self.view, line.group, level);
            let turns = |view: &GroupView<M>| id.and_then(|id| view.row(id)).and_then(turns_of);
            if turns(&old) == turns(&self.view) {
                self.lines.push(line);
                continue;
            }
            while let Some(slot) = line.list.pop_front() {
                self.held -= 1;
                // One that may go at once has a time that has come.
                if let Some(mut slot) = self.pass_from(level * GATES, slot, now_ns) {
                    slot.dev_sector = 0;
                    self.hold(slot, LEVELS * GATES);
                }
            }
        }
        self.next_ns = self.earliest();
    }

    /// Gives a bio back that may go now, and keeps it if it has to wait.
    #[inline(never)]
    pub(crate) fn pass(&mut self, slot: BioRef<M>, now_ns: u64) -> Option<BioRef<M>> {
        self.pass_from(0, slot, now_ns)
    }

    fn pass_from(&mut self, from: usize, mut slot: BioRef<M>, now_ns: u64) -> Option<BioRef<M>> {
        let (op, group) = (slot.op(), slot.bio.payer.group);
        if op == Op::Flush {
            return Some(slot);
        }
        let sectors = if op.has_data() { slot.bio.nr_sectors } else { 0 };
        for place in from..LEVELS * GATES {
            let (level, stage) = (place / GATES, place % GATES);
            let Some(id) = at_level(&self.view, group, level) else { break };
            let Some((tolls, gates, _)) = self.view.row(id).and_then(|row| row.limits.as_ref())
            else {
                continue;
            };
            if tolls.at(stage, op).is_free() {
                continue;
            }
            let due_ns = gates.reserve(tolls, (stage, op, sectors), now_ns);
            if due_ns > now_ns {
                slot.dev_sector = due_ns;
                self.hold(slot, place);
                return None;
            }
        }
        Some(slot)
    }

    /// Keeps a bio until the time in it.
    fn hold(&mut self, slot: BioRef<M>, place: usize) {
        let (group, read) = (slot.bio.payer.group, slot.op() == Op::Read);
        self.held += 1;
        self.held_until_ns = slot.dev_sector;
        self.next_ns = self.next_ns.min(slot.dev_sector);
        let gate = (place / GATES, place % GATES, read);
        let line = self.lines.iter_mut().find(|line| line.group == group && line.gate == gate);
        if let Some(line) = line {
            return line.list.push_back(slot);
        }
        let mut list = BioList::new();
        list.push_back(slot);
        self.lines.push(Line { group, gate, list });
    }

    /// When the first of those that wait may go on, if any waits; limits may change before that.
    pub(crate) fn wake_ns(&self, now_ns: u64) -> Option<u64> {
        (self.held > 0).then(|| self.next_ns.min(now_ns + LOOK_NS))
    }

    /// Takes out those whose time has come at all their gates.
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
            let (level, stage, _) = self.lines[at].gate;
            while self.lines[at].list.first().is_some_and(|slot| slot.dev_sector <= now_ns) {
                let Some(slot) = self.lines[at].list.pop_front() else { break };
                self.held -= 1;
                if let Some(mut slot) = self.pass_from(level * GATES + stage + 1, slot, now_ns) {
                    self.count(&slot, now_ns);
                    slot.mark_admitted(now_ns);
                    due.push_back(slot);
                }
            }
            at += 1;
        }
        self.lines.retain(|line| !line.list.is_empty());
        self.next_ns = self.earliest();
        self.is_on = self.view.has_limits || self.held > 0;
        due
    }

    /// Lets all go, whatever the limits: nobody will be there to wait for them.
    pub(crate) fn lift(&mut self) -> BioList<M> {
        let mut all = BioList::new();
        self.lines.drain(..).for_each(|mut line| all.append(&mut line.list));
        (self.held, self.is_on, self.groups) = (0, false, None);
        all
    }

    /// What it waited for limits is in its group's account.
    fn count(&mut self, slot: &BioRef<M>, now_ns: u64) {
        let Some(groups) = &self.groups else { return };
        let group = self.view.known(slot.bio.payer.group);
        self.holds.of(groups.holds(), group).add(Hold::Limit, now_ns.saturating_sub(slot.q_ns));
    }

    fn earliest(&self) -> u64 {
        let firsts = self.lines.iter().filter_map(|line| line.list.first());
        firsts.map(|slot| slot.dev_sector).min().unwrap_or(u64::MAX)
    }
}

/// The group whose gates a group's bios go through at a level: its own, then its parent's.
fn at_level<M: Machine>(view: &GroupView<M>, group: GroupId, level: usize) -> Option<GroupId> {
    let id = view.known(group);
    if level == 0 { Some(id) } else { view.row(id)?.parent }
}

/// How often a group's limits were changed; none: it has none.
fn turns_of<M: Machine>(row: &GroupRow<M>) -> Option<u64> {
    row.limits.as_ref().map(|limits| limits.2)
}
