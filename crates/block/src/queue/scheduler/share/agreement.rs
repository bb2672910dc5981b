//! `SharedAllocation`: periodically divides a shared drive among groups and hardware queues.
//!
//! At most every 50 us, the first hardware queue that finds a new allocation due makes it, under
//! the allocation's lock. That queue reads all queues' mailboxes, and advances each group's virtual
//! time by the cost of the group's I/O over its weight. The allocation then grants each queue a
//! budget for each group: the cost that the queue may dispatch until the next allocation. A group's
//! virtual time may run ahead of the waiting group that is furthest behind, but only by about 2 ms
//! of drive service (the window). Groups that do not wait are left out of this comparison, so a
//! group that does not use its share delays no other group. Weights are relative to those of the
//! other active groups. depth.rs decides how many requests may be in flight in the drive. Kernel
//! counterpart: block/blk-iocost.c, `ioc_timer_fn` and `current_hweight`.

use alloc::vec::Vec;

use millrace_machine::{Lock, Machine, Order, Word};

use crate::account::hold::WaitReason;
use crate::bio::Op;
use crate::bio::group_id::GroupId;
use crate::group::config::Priority;
use crate::group::view::{GroupRow, GroupView};
use crate::queue::scheduler::DriveTags;
use crate::queue::scheduler::cost::REQUEST;
use crate::queue::scheduler::share::SharedDrive;
use crate::queue::scheduler::share::depth::{DriveDepth, Policy};
use crate::queue::scheduler::share::flow::VIRTUAL_BITS;
use crate::queue::scheduler::share::level::{FairShare, ShareDemand};
use crate::queue::scheduler::share::mail::{MailboxEntry, QueueMailbox};
use crate::queue::scheduler::share::piece::{DriveSample, PieceSize};
use crate::queue::scheduler::share::seen::QueueReports;
use crate::queue::scheduler::share::speed::{DriveSpeed, SpeedSample};
use crate::queue::scheduler::share::times::class_of;

/// Maximum age of a queue's report, in nanoseconds, for its groups to count as waiting.
const STALE_NS: u64 = 5_000_000;
/// Maximum age of a queue's report, in nanoseconds, for its demand to count. I/O may take seconds.
/// If the queue has become empty since its report, [`STALE_NS`] applies instead.
const GONE_NS: u64 = 2_000_000_000;
/// Nanoseconds for which a drive still counts as shared after several groups were active.
const CONTENDED_NS: u64 = 20_000_000;
/// Largest lead of a group over the waiting groups, in nanoseconds of the drive's service.
const WINDOW_NS: u64 = 2_000_000;
/// Number of I/Os that a group of average weight may be ahead of the waiting groups on a slow
/// drive, where [`WINDOW_NS`] allows fewer. Each I/O counts as much as the costliest I/O so far.
const WINDOW_IOS: u64 = 4;

/// Nanoseconds between two updates of the groups' average demand and average service.
const SAMPLE_NS: u64 = 400_000;
/// Average amount of I/O, in flight or waiting, from which a group counts as active. The value
/// stands for one 4 KiB request during half of the time.
const HALF: u64 = REQUEST as u64 / 2;

/// Nanoseconds within which both reads and writes must complete for the I/O to count as mixed.
const WAYS_NS: u64 = 50_000_000;
/// Factor on the minimum depth (`floor`) of a drive that does both reads and writes.
const MIXED: u64 = 4;

/// I/O of a group on all hardware queues of a drive, and the group's budget.
#[derive(Default, Clone, Copy)]
struct GroupTotal {
    virtual_ns: u128,
    slope: u64,
    /// Cost, in nanoseconds, of the group's I/O dispatched since budgets were last granted.
    served: u64,
    demand: u64,
    wants: u64,
    /// Average demand, in depth units (16 for a 4 KiB request). Bios that wait only because the
    /// group's budget is used up do not count.
    usually_wants: u64,
    /// Decaying sum of the group's cost, in nanoseconds; loses 1/32 in each [`SAMPLE_NS`].
    usually_served: u64,
    /// Cost, in nanoseconds, of the I/O dispatched since `usually_served` was last updated.
    to_sample: u64,
    /// Group's share of the depth limit, in 16ths of a 4 KiB request; `u64::MAX` without a limit.
    part: u64,
    /// True if the group counts as waiting: it wants more than its share of the depth (`part`), or
    /// it had waiting bios in some hardware queue all the time since the last allocation.
    steady: bool,
    is_active: bool,
    is_heard: bool,
    asks: bool,
    was_active: bool,
    /// Cost of the I/O that the group may dispatch until the next allocation, in nanoseconds.
    budget: u64,
}

impl GroupTotal {
    fn weight(&self) -> u64 {
        (1 << 40) / self.slope.max(1)
    }

    /// Returns true if the group is active, and its usual demand fits into its share of the depth.
    fn has_all(&self) -> bool {
        self.is_active && self.usually_wants <= self.part
    }
}

pub(crate) struct SharedAllocation<M: Machine> {
    /// Time until which the drive counts as shared by several groups.
    contended_ns: u64,
    speed: DriveSpeed,
    way_ns: [u64; 2],
    piece: PieceSize,
    view: GroupView<M>,
    /// State of each group on this drive, by group number; default values for groups without I/O.
    totals: Vec<GroupTotal>,
    /// Group numbers (identifiers) of the groups that have ever had I/O on this drive.
    here: Vec<u16>,
    /// Indexed by group number. The first value is true if the group has ever had I/O on this
    /// drive. The second value is the sum of the weights of the group's active child groups.
    known: Vec<(bool, u64)>,
    /// Lowest virtual time of waiting (`steady`) best-effort groups; never decreases.
    virtual_ns: u128,
    /// Recent throughput of the drive: cost served per nanosecond of real time, in 1,024ths.
    rate: u64,
    sampled_ns: u64,
    /// Largest cost of a request so far, in nanoseconds.
    largest: u64,
    depth: DriveDepth,
    /// Depth limit last shared out among groups, in 16ths of a 4 KiB request; `None` if unlimited.
    level_of: Option<u64>,
}

impl<M: Machine> SharedAllocation<M> {
    pub(crate) fn new(tags: DriveTags) -> Self {
        SharedAllocation {
            contended_ns: 0,
            speed: DriveSpeed::new(),
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
            depth: DriveDepth::new(tags),
            level_of: None,
        }
    }

    /// Sums up the queues' reports, and posts budgets and depth limits to the queues' mailboxes.
    pub(crate) fn make(&mut self, shared: &SharedDrive<M>, now_ns: u64) {
        if self.view.is_old(&shared.groups) {
            shared.renew(&mut self.view);
            self.depth.forget(now_ns);
        }
        self.totals.resize(self.view.len(), GroupTotal::default());
        self.known.resize(self.view.len(), (false, 0));
        let mut seen = self.gather(shared, now_ns);
        for (way, ns) in self.way_ns.iter_mut().enumerate() {
            *ns = if seen.counts.sums.of_way(way) > 0 { now_ns } else { *ns };
        }
        let active = self.here().filter(|(_, total)| total.is_active).count();
        // With `Policy::Targets`, reads and writes of a single group compete as two groups would.
        let targets = shared.policy == Policy::Targets;
        if active > 1 || targets && seen.ways == 0b11 {
            self.contended_ns = now_ns + CONTENDED_NS;
        }
        let contended = now_ns < self.contended_ns;
        self.look_at_speed(shared, &seen, now_ns);
        let bounded = contended || self.speed.needs_limit();
        seen.served = self.here().map(|(_, total)| total.served).sum();
        self.cut(shared, &seen, now_ns);
        if !bounded && self.depth.is_off() {
            // The drive's depth was and stays unlimited, so the queues need no new limits.
            return;
        }
        self.weigh();
        if !contended {
            let is_mixed = self.way_ns.iter().all(|ns| now_ns < ns + WAYS_NS);
            // Mixed I/O needs a higher depth limit, to keep both reads and writes in flight.
            seen.floor = self.usual_load(shared) * if is_mixed { MIXED } else { 1 };
        }
        // `shallow` makes the depth limit fall if a group gets less than its share. If only one
        // group is active, or if latency targets set the limit, `shallow` stays false.
        seen.shallow = self.level(shared.policy) && contended && !targets;
        self.advance();
        if !contended && self.depth.is_off() {
            self.depth.restart();
        }
        let depth = match bounded {
            true => self.depth.next(&seen, shared.policy, now_ns),
            false => self.depth.off(),
        };
        self.share_out(shared, (depth[0], now_ns));
        self.grant(shared, (depth, bounded));
        // Release pairs with the load of `epoch` by which each queue notices its new limits.
        shared.epoch.fetch_add(1, Order::Release);
    }

    fn look_at_speed(&mut self, shared: &SharedDrive<M>, seen: &QueueReports, now_ns: u64) {
        // The demand includes bios that the depth limit holds back.
        let demand = self.here().map(|(_, total)| total.demand).sum::<u64>();
        let is_overloaded = seen.counts.full && (1..=demand).contains(&self.usual_load(shared));
        let sample = SpeedSample {
            sums: &seen.counts.sums,
            is_short: seen.counts.short && shared.mails.len() > 1,
            is_overloaded: (!self.depth.is_off()).then_some(is_overloaded),
        };
        self.speed.look(&sample, now_ns);
    }

    /// Returns the depth at which each request takes [`SLOW_NS`], in depth units (16 for a 4 KiB
    /// request). Returns 0 if the drive's throughput is unknown.
    fn usual_load(&self, shared: &SharedDrive<M>) -> u64 {
        let small = shared.cost.read.of_bytes(4_096);
        self.piece.usual_cost().saturating_mul(REQUEST.into()) / small
    }

    fn cut(&mut self, shared: &SharedDrive<M>, seen: &QueueReports, now_ns: u64) {
        let sectors = self.piece.sectors();
        // Service times are stored by size class. Two sizes in the same class cannot be compared.
        let differs = |other| class_of(Op::Read, other) != class_of(Op::Read, sectors);
        let of_other_kind = |other| self.depth.shortest_ns(other).filter(|_| differs(other));
        let pace = DriveSample {
            served: seen.served,
            small_ios: seen.counts.sums.0[class_of(Op::Read, 0)].0.into(),
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
        // Relaxed: readers use only this number, and no other data depends on it.
        shared.piece_sectors.store(self.piece.sectors().into(), Order::Relaxed);
        if self.piece.sectors() != sectors {
            // Probe soon: a probe measures the service times of requests of the new length.
            self.depth.look_soon(now_ns);
        }
    }

    fn here(&self) -> impl Iterator<Item = (u16, &GroupTotal)> + Clone {
        self.here.iter().map(|at| (*at, &self.totals[usize::from(*at)]))
    }

    fn not_idle(&self) -> impl Iterator<Item = &GroupTotal> {
        let row = |at: u16| self.view.row(GroupId(at));
        let is_it = move |at| row(at).is_some_and(|row| row.priority != Priority::Idle);
        self.here().filter(move |(at, _)| is_it(*at)).map(|(_, total)| total)
    }

    fn gather(&mut self, shared: &SharedDrive<M>, now_ns: u64) -> QueueReports {
        let mut seen = QueueReports::default();
        for at in &self.here {
            let total = &mut self.totals[usize::from(*at)];
            *total = GroupTotal {
                virtual_ns: total.virtual_ns,
                slope: total.slope,
                usually_wants: total.usually_wants,
                usually_served: total.usually_served,
                to_sample: total.to_sample,
                was_active: total.is_active,
                ..GroupTotal::default()
            };
        }
        for mail in &shared.mails {
            let mut mail = mail.lock();
            let is_stale = mail.at_ns + STALE_NS < now_ns;
            let stands_ns = if mail.is_over { STALE_NS } else { GONE_NS };
            let is_gone = mail.at_ns + stands_ns < now_ns;
            let is_fresh = core::mem::take(&mut mail.fresh);
            self.largest = self.largest.max(mail.largest);
            seen.counts.add(&core::mem::take(&mut mail.counts));
            let demands = mail.entries.iter().map(MailboxEntry::demand);
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
                    let shortest_ns = seen.waits_for_ns.unwrap_or(u64::MAX);
                    seen.waits_for_ns = Some(shortest_ns.min(target.ns()));
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
            // A client that sends I/O in batches has nothing in flight between two batches. The
            // client's group stays active, because its average demand is still high.
            total.is_active |= total.usually_wants >= HALF;
        }
        seen
    }

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
                // Rounding towards `wants` lets the average reach 0 when the group has no more I/O.
                total.usually_wants = match total.wants > total.usually_wants {
                    true => sum.div_ceil(16),
                    false => sum / 16,
                };
            }
        }
        if is_due && elapsed_ns < WINDOW_NS * 100 {
            // `rate` rises quickly and falls slowly. Budgets grow with `rate`, so a `rate` that is
            // too low would itself keep the throughput low.
            let rate = (all << 10) / elapsed_ns;
            let weight = if rate > self.rate { 1 } else { 31 };
            self.rate = (self.rate * weight + rate).div_ceil(weight + 1);
        }
        if is_due {
            self.sampled_ns = now_ns;
        }
    }

    /// Divides the drive's depth limit among the groups by weight. A group that wants more than its
    /// share is marked as waiting (`steady`). Returns true if some group that was not `steady`
    /// before wants less depth, or gets less service, than its weight entitles it to.
    fn level(&mut self, policy: Policy) -> bool {
        self.level_of = self.depth.bound();
        let Some(depth) = self.level_of else {
            for at in &self.here {
                self.totals[usize::from(*at)].part = u64::MAX;
            }
            return false;
        };
        // Groups with a latency target have no depth limit. Other groups divide the whole depth.
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

    fn level_among(&mut self, priority: Priority, left: &mut u64) -> bool {
        let view = &self.view;
        let is_one = |at: u16, total: &GroupTotal| {
            let row = view.row(GroupId(at));
            let is_so = row.map_or(Priority::BestEffort, |row| row.priority) == priority;
            is_so && total.is_active && total.part != u64::MAX
        };
        let all = self.here().filter(|(at, total)| is_one(*at, total));
        let wants = all.clone();
        let wants =
            wants.map(|(_, total)| ShareDemand { of: total.usually_wants, weight: total.weight() });
        let level = FairShare::of(*left, wants.clone());
        let even = FairShare::even(*left, wants.clone());
        let served = all.map(|(_, total)| total.usually_served).sum();
        let even_served = FairShare::even(served, wants);
        let (mut is_shallow, mut taken) = (false, 0);
        for at in &self.here {
            let total = &mut self.totals[usize::from(*at)];
            if !is_one(*at, total) {
                continue;
            }
            let weight = total.weight();
            total.part = level.map_or(*left, |level| level.part(weight));
            // True if the group gets less than 7/8 of the service that its weight entitles it to.
            let gets_little = total.usually_served < even_served.part(weight) / 8 * 7;
            let has_little = total.usually_wants < even.part(weight);
            is_shallow |= (has_little || total.has_all() && gets_little) && !total.steady;
            // A group that has requests and wants more depth than its share counts as waiting
            // (`steady`). Budgets then keep other groups from running far ahead of it.
            total.steady |= !total.has_all() && total.asks;
            taken += total.usually_wants.min(total.part);
        }
        // Groups of lower priority keep a depth of one 4 KiB request, so that they do not starve.
        *left = left.saturating_sub(taken).max(REQUEST.into());
        is_shallow
    }

    /// Computes each group's slope: the virtual time charged for a unit of cost.
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
            // Weights are in 1,024ths here. Child groups divide the weight of their parent. The
            // parent's own I/O has the parent's full weight, which the children do not reduce.
            let mut weight = u64::from(row.weight) << 10;
            if let Some(parent) = row.parent {
                let above = self.view.row(parent).map_or(100, |row| u64::from(row.weight));
                weight = weight * above / self.known[usize::from(parent.0)].1.max(1);
            }
            self.totals[usize::from(*at)].slope =
                ((1 << (VIRTUAL_BITS + 10)) / weight.max(1)).max(1);
        }
    }

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

    /// Computes each group's budget: the cost of the I/O that the group may dispatch until it is
    /// too far ahead of the waiting groups. Leads are measured in virtual time.
    fn share_out(&mut self, shared: &SharedDrive<M>, (depth, now_ns): (u32, u64)) {
        let contended = now_ns < self.contended_ns;
        let (active, slopes) = self.here().filter(|(_, total)| total.is_active).fold(
            (0, 0u128),
            |(count, sum), (_, total)| {
                (count + 1, sum + (1 << 64) / u128::from(total.slope.max(1)))
            },
        );
        let cost = (self.rate * WINDOW_NS) >> 10;
        let largest = self.largest * WINDOW_IOS * active;
        // `window` is the largest lead, in virtual time: the drive's service in `WINDOW_NS` or, if
        // that costs more, `WINDOW_IOS` of the costliest I/Os for each active group.
        let window = (u128::from(cost.max(largest)) << 64) / slopes.max(1);
        let window = window.min(1 << 60);
        // While several groups share the drive, groups of idle priority get no budget in two cases.
        // Either a group of higher priority waits, or such groups demand half of the depth or more.
        let (waits, demand) = self.not_idle().fold((false, 0), |(waits, demand), total| {
            (waits || total.steady, demand + total.demand)
        });
        let held_back = waits || demand * 2 >= u64::from(depth);
        // If the drive is not shared, its group gets an unlimited budget. `make` may then return
        // early without granting a new budget, and a limited budget would stop the group.
        let free = !contended || shared.mails.len() == 1 || shared.policy == Policy::Targets;
        for at in &self.here {
            let total = &mut self.totals[usize::from(*at)];
            let priority = self.view.row(GroupId(*at)).map_or(Priority::BestEffort, |r| r.priority);
            let ahead = self.virtual_ns.saturating_add(window);
            // A group that does not wait cannot save up unused service: its virtual time rises to
            // `virtual_ns`. A group that has used service which no other group wanted need not pay
            // for all of it later: its lead is cut to twice the largest lead, `window`.
            if !total.steady {
                total.virtual_ns = total.virtual_ns.max(self.virtual_ns);
            }
            total.virtual_ns = total.virtual_ns.min(ahead.saturating_add(window));
            total.budget = match priority {
                Priority::Idle if contended && held_back => 0,
                Priority::Realtime => u64::MAX,
                _ if free => u64::MAX,
                _ => {
                    // The budget is rounded up, so that a group of any weight can send a request.
                    let behind = ahead.saturating_sub(total.virtual_ns);
                    behind.div_ceil(u128::from(total.slope.max(1))) as u64
                }
            };
        }
    }

    /// Returns a hardware queue's share of the depth limit, in depth units (16 per 4 KiB request).
    /// Groups divide their shares among the queues by demand, and a queue gets the sum of its
    /// parts. Returns `None` if no group with a limit has demand at this queue.
    fn part_of(&self, mail: &QueueMailbox) -> Option<u64> {
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
        // Room for bursts is left only if no group at this queue wants more than its share.
        whole.map(|whole: u64| if is_over { wanted } else { whole })
    }

    /// Returns two reasons for waits at the depth limit (reads, other requests): `LatencyTarget` if
    /// targets set the limit, else `Weight` if several groups wait, else `NoTag` or `Depth`.
    fn held_by(&self) -> [WaitReason; 2] {
        let waiting = self.not_idle().filter(|total| total.steady && total.demand > 0).count();
        let full = if self.depth.by_tags() { WaitReason::NoTag } else { WaitReason::Depth };
        let hold = if waiting > 1 { WaitReason::Weight } else { full };
        self.depth.by_targets().map(|is_so| if is_so { WaitReason::LatencyTarget } else { hold })
    }

    fn grant(&mut self, shared: &SharedDrive<M>, (depth, bounded): ([u32; 2], bool)) {
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
                entry.has_all = total.has_all() && self.depth.is_usual();
                let budget = match total.budget {
                    u64::MAX => u64::MAX,
                    budget if !total.steady => budget,
                    // Each hardware queue gets a part of the group's budget, in proportion to the
                    // group's demand at the queue.
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
