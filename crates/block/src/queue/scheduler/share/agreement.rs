//! `Agreement`: what the hardware queues of a shared drive agree on now and then.
//!
//! Under its lock, entered by whichever queue finds it due, at most every 50 us. Reads all queues'
//! mail, moves each group's virtual time on by the cost of what it got over its weight, and grants
//! each queue how much its groups may send until the next time: as far as a window ahead of the
//! group that is behind and waits. So groups that wait on different queues get on side by side, and
//! one that does not use its share holds nobody up. Weights are of two levels, among those that are
//! active. How much may be at the drive is depth.rs's. Kernel counterpart: block/blk-iocost.c,
//! `ioc_timer_fn` and `current_hweight`.

use alloc::vec::Vec;
use core::marker::PhantomData;

use millrace_machine::{Lock, Machine, Order, Word};

use crate::account::hold::Hold;
use crate::bio::Op;
use crate::bio::group_id::GroupId;
use crate::group::config::Priority;
use crate::group::view::{GroupRow, GroupView};
use crate::queue::scheduler::DriveTags;
use crate::queue::scheduler::cost::{REQUEST, SLOW_NS};
use crate::queue::scheduler::share::Shared;
use crate::queue::scheduler::share::depth::{Depth, Policy};
use crate::queue::scheduler::share::flow::VIRTUAL_BITS;
use crate::queue::scheduler::share::level::{Level, Want};
use crate::queue::scheduler::share::mail::{Mail, MailEntry};
use crate::queue::scheduler::share::piece::{Pace, PieceSize};
use crate::queue::scheduler::share::seen::Seen;
use crate::queue::scheduler::share::times::class_of;

/// What waited all the time does so no more if its queue has not posted for so long.
const STALE_NS: u64 = 5_000_000;
/// What a queue said stands for so long, since requests may take long at a drive. What has all come
/// back counts for [`STALE_NS`]: a client that sends in batches has nothing there in between.
const GONE_NS: u64 = 2_000_000_000;
/// How long a drive counts as contended after several groups were last active.
const CONTENDED_NS: u64 = 20_000_000;
/// How far ahead of those that wait a group may get, in time of the drive at its present rate.
const WINDOW_NS: u64 = 2_000_000;
/// And at least so many I/Os of the largest cost, for each active group.
const WINDOW_IOS: u64 = 4;

/// How often what is usual is looked at.
const SAMPLE_NS: u64 = 400_000;
/// A group that usually has less than half of a request has gone.
const HALF: u64 = REQUEST as u64 / 2;
/// How long a drive that was found to be slow has no more than keeps it busy, at least.
const SLOW_FOR_NS: u64 = 1_000_000_000;

/// How long a group is taken to read and write after it has done both, and how much more of it may
/// be at the drive then.
const WAYS_NS: u64 = 50_000_000;
const MIXED: u64 = 4;

/// A group over all queues.
#[derive(Default, Clone, Copy)]
struct Total {
    /// Virtual time that it has got to.
    virtual_ns: u128,
    slope: u64,
    /// Since the last agreement.
    served: u64,
    demand: u64,
    wants: u64,
    /// What it usually wants, in 16ths of a small request, and what it is usually served, in 32nds.
    usually_wants: u64,
    usually_served: u64,
    /// Served since the last sample.
    to_sample: u64,
    /// How much of the depth it is due, in 16ths; `u64::MAX`: the depth does not bind it.
    part: u64,
    /// Something waited all the time, or it wants more than it is due.
    steady: bool,
    is_active: bool,
    /// Some queue posted of it lately, and of something that it wants.
    is_heard: bool,
    asks: bool,
    /// It was, at the last agreement.
    was_active: bool,
    /// What it may send until the next agreement.
    budget: u64,
}

impl Total {
    /// Its weight among those that are active.
    fn weight(&self) -> u64 {
        (1 << 40) / self.slope.max(1)
    }
}

/// What was agreed on.
pub(crate) struct Agreement<M: Machine> {
    /// Until when several groups count as using the drive, and until when it counts as slow.
    contended_ns: u64,
    slow_ns: u64,
    /// When something was read last, and written.
    way_ns: [u64; 2],
    piece: PieceSize,
    view: GroupView<M>,
    /// By number of the group; all but those that are here is as it was at first.
    totals: Vec<Total>,
    /// Numbers of the groups of which something was at this drive, ever: of all that are opened,
    /// most may be elsewhere.
    here: Vec<u16>,
    /// By number of the group: whether it stands in `here`, and the weights of its active children.
    known: Vec<(bool, u64)>,
    /// Where those that wait have got to.
    virtual_ns: u128,
    /// Cost in a nanosecond, in 1,024ths; when that was looked at last.
    rate: u64,
    sampled_ns: u64,
    /// Most that a request cost.
    largest: u64,
    depth: Depth,
    /// The depth that the groups' parts come to, in 16ths.
    level_of: Option<u64>,
    machine: PhantomData<M>,
}

impl<M: Machine> Agreement<M> {
    pub(crate) fn new(tags: DriveTags) -> Self {
        Agreement {
            contended_ns: 0,
            slow_ns: 0,
            way_ns: [0; 2],
            piece: PieceSize::new(),
            view: GroupView::new(),
            totals: Vec::new(),
            here: Vec::new(),
            known: Vec::new(),
            virtual_ns: 0,
            rate: 1024,
            sampled_ns: 0,
            largest: 0,
            depth: Depth::new(tags),
            level_of: None,
            machine: PhantomData,
        }
    }

    /// Sums up what queues have posted, and posts what each may do.
    pub(crate) fn make(&mut self, shared: &Shared<M>, now_ns: u64) {
        if self.view.is_old(&shared.groups) {
            self.view.renew(&shared.groups);
        }
        self.totals.resize(self.view.len(), Total::default());
        self.known.resize(self.view.len(), (false, 0));
        let mut seen = self.gather(shared, now_ns);
        for (way, ns) in self.way_ns.iter_mut().enumerate() {
            *ns = if seen.sums.of_way(way) > 0 { now_ns } else { *ns };
        }
        let active = self.here().filter(|(_, total)| total.is_active).count();
        // With targets, reads and writes of one group stand in each other's way, too.
        let targets = shared.policy == Policy::Targets;
        if active > 1 || targets && seen.ways == 0b11 {
            self.contended_ns = now_ns + CONTENDED_NS;
        }
        let contended = now_ns < self.contended_ns;
        self.look_for_slowness(shared, &seen, now_ns);
        let bounded = contended || now_ns < self.slow_ns;
        seen.served = self.here().map(|(_, total)| total.served).sum();
        self.cut(shared, &seen, now_ns);
        if !bounded && self.depth.is_off() {
            // As it was: nobody is told anything new.
            return;
        }
        self.weigh();
        if !contended {
            let is_mixed = self.way_ns.iter().all(|ns| now_ns < ns + WAYS_NS);
            // A drive that reads and writes at the same time needs some of both at any time.
            seen.floor = self.usual_load(shared) * if is_mixed { MIXED } else { 1 };
        }
        // A group that is alone stands in nobody's way, and targets say themselves who does.
        seen.shallow = self.level(shared.policy) && contended && !targets;
        self.advance();
        let depth = match bounded {
            true => self.depth.next(&seen, shared.policy, now_ns),
            false => self.depth.off(),
        };
        self.share_out(shared, (depth[0], now_ns));
        self.grant(shared, (depth, bounded));
        // Release: pairs with the queues' look at it.
        shared.epoch.fetch_add(1, Order::Release);
    }

    /// Finds whether what the drive has at once is to be bounded although one group uses it.
    fn look_for_slowness(&mut self, shared: &Shared<M>, seen: &Seen, now_ns: u64) {
        let is_slow = match self.depth.is_off() {
            true => seen.sums.usual_ns() >= SLOW_NS,
            // What is held back would be at the drive, too.
            false => {
                let demand = self.here().map(|(_, total)| total.demand).sum::<u64>();
                seen.full && demand >= self.usual_load(shared)
            }
        };
        if is_slow {
            self.slow_ns = now_ns + SLOW_FOR_NS;
        }
    }

    /// As much as the drive does until it counts as slow, in 16ths of a small request.
    fn usual_load(&self, shared: &Shared<M>) -> u64 {
        let small = shared.cost.read.of_bytes(4_096);
        self.piece.usual_cost().saturating_mul(REQUEST.into()) / small
    }

    /// Says how long the drive's requests may be from now on.
    fn cut(&mut self, shared: &Shared<M>, seen: &Seen, now_ns: u64) {
        let sectors = self.piece.sectors();
        // Times are kept by kinds of sizes, the longest of which are one kind.
        let differs = |other| class_of(Op::Read, other) != class_of(Op::Read, sectors);
        let of_other_kind = |other| self.depth.shortest_ns(other).filter(|_| differs(other));
        let pace = Pace {
            served: seen.served,
            small_ios: seen.sums.0[class_of(Op::Read, 0)].0,
            small_ns: self.depth.shortest_ns(0),
            piece_ns: self.depth.shortest_ns(sectors),
            half_ns: of_other_kind(sectors / 2),
            double_ns: of_other_kind(sectors * 2),
            may_double: differs(sectors * 2),
            busy: self.depth.is_usual(),
        };
        if !self.piece.look(&pace, &shared.cost.read, now_ns) {
            return;
        }
        // Relaxed: a size, read as such.
        shared.piece_sectors.store(self.piece.sectors().into(), Order::Relaxed);
        if self.piece.sectors() != sectors {
            // How long such requests take at least is not known.
            self.depth.look_soon(now_ns);
        }
    }

    /// The groups that are here.
    fn here(&self) -> impl Iterator<Item = (u16, &Total)> + Clone {
        self.here.iter().map(|at| (*at, &self.totals[usize::from(*at)]))
    }

    /// Groups that are here and not of priority idle.
    fn not_idle(&self) -> impl Iterator<Item = &Total> {
        let row = |at: u16| self.view.row(GroupId(at));
        let is_it = move |at| row(at).is_some_and(|row| row.priority != Priority::Idle);
        self.here().filter(move |(at, _)| is_it(*at)).map(|(_, total)| total)
    }

    /// Reads the mail.
    fn gather(&mut self, shared: &Shared<M>, now_ns: u64) -> Seen {
        let mut seen = Seen::default();
        for at in &self.here {
            let total = &mut self.totals[usize::from(*at)];
            *total = Total {
                virtual_ns: total.virtual_ns,
                slope: total.slope,
                usually_wants: total.usually_wants,
                usually_served: total.usually_served,
                to_sample: total.to_sample,
                was_active: total.is_active,
                ..Total::default()
            };
        }
        for mail in &shared.mails {
            let mut mail = mail.lock();
            let is_stale = mail.at_ns + STALE_NS < now_ns;
            let stands_ns = if mail.is_over { STALE_NS } else { GONE_NS };
            let is_gone = mail.at_ns + stands_ns < now_ns;
            let is_fresh = core::mem::take(&mut mail.fresh);
            self.largest = self.largest.max(mail.largest);
            seen.full |= core::mem::take(&mut mail.full);
            seen.sums.add(&core::mem::take(&mut mail.sums));
            let demands = mail.entries.iter().map(MailEntry::demand);
            seen.queues += u32::from(!is_gone && demands.sum::<u64>() > 0);
            seen.in_flight += if is_gone { 0 } else { mail.requests };
            for entry in &mut mail.entries {
                let Some(total) = self.totals.get_mut(usize::from(entry.group.0)) else { continue };
                let known = &mut self.known[usize::from(entry.group.0)];
                if !core::mem::replace(&mut known.0, true) {
                    self.here.push(entry.group.0);
                }
                let served = entry.served - entry.known;
                entry.known = entry.served;
                total.served += served;
                let demand = if is_gone { 0 } else { entry.demand() };
                seen.taken += if is_gone { 0 } else { entry.in_flight.into() };
                total.demand += demand;
                total.wants += if is_gone { 0 } else { entry.wants() };
                if is_fresh {
                    entry.was_steady = core::mem::replace(&mut entry.steady, true);
                }
                total.steady |= entry.was_steady && !is_stale;
                total.is_heard |= !is_stale || demand > 0;
                total.asks |= !is_stale && demand > 0;
                let is_active = served > 0 || demand > 0;
                total.is_active |= is_active;
                seen.ways |= u8::from(is_active) << entry.way;
                let target = self.view.row(entry.group).and_then(|row| row.target);
                if let Some(target) = target.filter(|_| demand > 0) {
                    seen.waits_for_ns = seen.waits_for_ns.min(target.ns());
                }
                match (&mut entry.latencies, target) {
                    (Some(latencies), Some(target)) => {
                        seen.count_target(entry.group, target, latencies);
                    }
                    _ => entry.latencies = None,
                }
            }
        }
        self.sample(now_ns);
        for at in &self.here {
            let total = &mut self.totals[usize::from(*at)];
            // A client that takes answers and sends again in batches has nothing there in between.
            total.is_active |= total.usually_wants >= HALF;
        }
        seen
    }

    /// Follows what groups usually want and are served, and how much the drive does.
    fn sample(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.sampled_ns);
        let is_due = elapsed_ns >= SAMPLE_NS;
        let mut all = 0;
        for at in &self.here {
            let total = &mut self.totals[usize::from(*at)];
            total.to_sample += total.served;
            if !total.is_heard {
                total.usually_wants = 0;
            }
            if is_due {
                let served = core::mem::take(&mut total.to_sample);
                all += served;
                total.usually_served = total.usually_served * 31 / 32 + served;
                let sum = total.usually_wants * 15 + total.wants;
                // Rounded towards what it wants, so that one that has gone comes to nothing.
                total.usually_wants = match total.wants > total.usually_wants {
                    true => sum.div_ceil(16),
                    false => sum / 16,
                };
            }
        }
        if is_due && elapsed_ns < WINDOW_NS * 100 {
            // Up fast: what a window holds back would never be seen. Down slowly: a shorter window
            // forgives debts.
            let rate = (all << 10) / elapsed_ns;
            let weight = if rate > self.rate { 1 } else { 31 };
            self.rate = (self.rate * weight + rate).div_ceil(weight + 1);
        }
        if is_due {
            self.sampled_ns = now_ns;
        }
    }

    /// Divides the depth among groups, and finds who wants more than its part. Whether some group
    /// wants less than its weight stands for.
    fn level(&mut self, policy: Policy) -> bool {
        self.level_of = self.depth.bound();
        let Some(depth) = self.level_of else {
            for at in &self.here {
                self.totals[usize::from(*at)].part = u64::MAX;
            }
            return false;
        };
        // What has a target is not held back, nor counted.
        let is_free = |row: &GroupRow<M>| policy == Policy::Targets && row.target.is_some();
        for at in &self.here {
            let is_free = self.view.row(GroupId(*at)).is_some_and(is_free);
            self.totals[usize::from(*at)].part = if is_free { u64::MAX } else { 0 };
        }
        let (mut left, mut is_shallow) = (depth, false);
        for priority in [Priority::Realtime, Priority::BestEffort] {
            is_shallow |= self.level_among(priority, &mut left);
        }
        for at in &self.here {
            let (row, total) = (self.view.row(GroupId(*at)), &mut self.totals[usize::from(*at)]);
            if row.is_some_and(|row| row.priority == Priority::Idle) && total.part != u64::MAX {
                total.part = left;
            }
        }
        is_shallow
    }

    /// Divides what is left of the depth among groups of a priority.
    fn level_among(&mut self, priority: Priority, left: &mut u64) -> bool {
        let view = &self.view;
        let is_one = |at: u16, total: &Total| {
            let row = view.row(GroupId(at));
            let is_so = row.map_or(Priority::BestEffort, |row| row.priority) == priority;
            is_so && total.is_active && total.part != u64::MAX
        };
        let all = self.here().filter(|(at, total)| is_one(*at, total));
        let wants = all.clone();
        let wants =
            wants.map(|(_, total)| Want { of: total.usually_wants, weight: total.weight() });
        let level = Level::of(*left, wants.clone());
        let even = Level::even(*left, wants.clone());
        let served = all.map(|(_, total)| total.usually_served).sum();
        let even_served = Level::even(served, wants);
        let (mut is_shallow, mut taken) = (false, 0);
        for at in &self.here {
            let total = &mut self.totals[usize::from(*at)];
            if !is_one(*at, total) {
                continue;
            }
            let weight = total.weight();
            total.part = level.map_or(*left, |level| level.part(weight));
            // An eighth less is noise.
            let gets_little = total.usually_served < even_served.part(weight) / 8 * 7;
            let has_little = total.usually_wants < even.part(weight);
            let has_all = total.usually_wants <= total.part;
            is_shallow |= (has_little || has_all && gets_little) && !total.steady;
            // Whoever has nobody to send for it waits for no one: others would wait for it.
            total.steady |= !has_all && total.asks;
            taken += total.usually_wants.min(total.part);
        }
        // One is left to those of lower priorities, who would wait for ever.
        *left = left.saturating_sub(taken).max(REQUEST.into());
        is_shallow
    }

    /// The slope of each active group: by its weight among its active siblings, and theirs.
    fn weigh(&mut self) {
        let parents = |at: &u16| {
            let row = self.view.row(GroupId(*at))?;
            Some((usize::from(row.parent?.0), u64::from(row.weight)))
        };
        for (parent, _) in self.here.iter().filter_map(parents) {
            self.known[parent].1 = 0;
        }
        for at in &self.here {
            if self.totals[usize::from(*at)].is_active
                && let Some((parent, weight)) = parents(at)
            {
                self.known[parent].1 += weight;
            }
        }
        for at in &self.here {
            let Some(row) = self.view.row(GroupId(*at)) else { continue };
            // In 1,024ths; a parent that does I/O itself has its weight beside its children's sum.
            let mut weight = u64::from(row.weight) << 10;
            if let Some(parent) = row.parent {
                let above = self.view.row(parent).map_or(100, |row| u64::from(row.weight));
                weight = weight * above / self.known[usize::from(parent.0)].1.max(1);
            }
            self.totals[usize::from(*at)].slope =
                ((1 << (VIRTUAL_BITS + 10)) / weight.max(1)).max(1);
        }
    }

    /// Moves virtual times on.
    fn advance(&mut self) {
        let mut behind = u128::MAX;
        for at in &self.here {
            let (row, total) = (self.view.row(GroupId(*at)), &mut self.totals[usize::from(*at)]);
            let is_usual = row.is_none_or(|row| row.priority == Priority::BestEffort);
            if !total.was_active {
                total.virtual_ns = total.virtual_ns.max(self.virtual_ns);
            }
            total.virtual_ns += u128::from(total.served) * u128::from(total.slope);
            if total.steady && is_usual {
                behind = behind.min(total.virtual_ns);
            }
        }
        if behind != u128::MAX {
            self.virtual_ns = self.virtual_ns.max(behind);
        }
    }

    /// What each group may send: up to a window ahead of those that wait.
    fn share_out(&mut self, shared: &Shared<M>, (depth, now_ns): (u32, u64)) {
        let contended = now_ns < self.contended_ns;
        let (active, slopes) = self.here().filter(|(_, total)| total.is_active).fold(
            (0, 0u128),
            |(count, sum), (_, total)| {
                (count + 1, sum + (1 << 64) / u128::from(total.slope.max(1)))
            },
        );
        let cost = (self.rate * WINDOW_NS) >> 10;
        let largest = self.largest * WINDOW_IOS * active;
        // In virtual time: that much cost by all of them together.
        let window = (u128::from(cost.max(largest)) << 64) / slopes.max(1);
        let window = window.min(1 << 60);
        // Those of priority idle get what is left: nothing while others wait, or fill the drive.
        let (waits, demand) = self.not_idle().fold((false, 0), |(waits, demand), total| {
            (waits || total.steady, demand + total.demand)
        });
        let held_back = waits || demand * 2 >= u64::from(depth);
        // What is granted last stands until groups meet again.
        let free = !contended || shared.mails.len() == 1 || shared.policy == Policy::Targets;
        for at in &self.here {
            let total = &mut self.totals[usize::from(*at)];
            let priority = self.view.row(GroupId(*at)).map_or(Priority::BestEffort, |r| r.priority);
            let ahead = self.virtual_ns.saturating_add(window);
            // Those who do not wait owe nothing, and what was free is no debt.
            if !total.steady {
                total.virtual_ns = total.virtual_ns.max(self.virtual_ns);
            }
            total.virtual_ns = total.virtual_ns.min(ahead.saturating_add(window));
            total.budget = match priority {
                Priority::Idle if contended && held_back => 0,
                Priority::Realtime => u64::MAX,
                _ if free => u64::MAX,
                _ => {
                    // Rounded up: whoever is farthest behind may send one, whatever its weight.
                    let behind = ahead.saturating_sub(total.virtual_ns);
                    behind.div_ceil(u128::from(total.slope.max(1))) as u64
                }
            };
        }
    }

    /// How much of the depth a queue is due, in 16ths of that of the last agreement: as much as its
    /// groups are, by how much of each is here. None: nothing is here.
    fn part_of(&self, mail: &Mail) -> Option<u64> {
        let (mut whole, mut wanted, mut is_over) = (None, 0, false);
        for entry in mail.entries.iter().filter(|entry| entry.demand() > 0) {
            let Some(total) = self.totals.get(usize::from(entry.group.0)) else { continue };
            if total.part == u64::MAX {
                continue;
            }
            let here = |of: u64| {
                let of = u128::from(of) * u128::from(entry.demand());
                (of / u128::from(total.demand.max(1))) as u64
            };
            whole = Some(whole.unwrap_or(0) + here(total.part));
            wanted += here(total.part.min(total.usually_wants));
            is_over |= total.usually_wants > total.part;
        }
        // Where all have what they want, a burst may take what they are due.
        whole.map(|whole: u64| if is_over { wanted } else { whole })
    }

    /// What holds those for which there is no room in the depth, by way: the drive, unless targets
    /// leave less than it takes, or several groups wait for their turns.
    fn held_by(&self) -> [Hold; 2] {
        let waiting = self.not_idle().filter(|total| total.steady && total.demand > 0).count();
        let hold = if waiting > 1 { Hold::Weight } else { Hold::Depth };
        self.depth.by_targets().map(|is_so| if is_so { Hold::LatencyTarget } else { hold })
    }

    /// Posts budgets and depths to all queues.
    fn grant(&mut self, shared: &Shared<M>, (depth, bounded): ([u32; 2], bool)) {
        let base = self.level_of;
        let held_by = self.held_by();
        for mail in &shared.mails {
            let mut mail = mail.lock();
            (mail.bounded, mail.bound.held_by) = (bounded, held_by);
            let part = self.part_of(&mail);
            mail.bound.depth = depth.map(|depth| match (part, base) {
                (Some(part), Some(base)) if depth != u32::MAX => {
                    let own = u128::from(part) * u128::from(depth) + u128::from(base / 2);
                    let least = REQUEST.min(depth);
                    (own / u128::from(base)).clamp(least.into(), depth.into()) as u32
                }
                _ => depth,
            });
            for entry in &mut mail.entries {
                let Some(total) = self.totals.get(usize::from(entry.group.0)) else { continue };
                entry.slope = total.slope;
                let budget = match total.budget {
                    u64::MAX => u64::MAX,
                    budget if !total.steady => budget,
                    // Each queue by what is there of the group.
                    budget => {
                        let own = u128::from(budget) * u128::from(entry.demand());
                        (own / u128::from(total.demand.max(1))) as u64
                    }
                };
                entry.ceiling = entry.known.saturating_add(budget);
            }
        }
    }
}

#[cfg(test)]
mod tests;
