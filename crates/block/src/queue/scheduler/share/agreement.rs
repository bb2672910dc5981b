//! `Agreement`: what the hardware queues of a shared drive agree on now and then.
//!
//! Under its lock, entered by whichever queue finds it due, at most every 50 us. Reads all queues'
//! mail, moves each group's virtual time on by the cost of what it got over its weight, and grants
//! each queue how much its groups may send until the next time: as far as a window ahead of the
//! group that is behind and waits. So groups that wait on different queues get on side by side, and
//! one that does not use its share holds nobody up. Weights are of two levels, among those that are
//! active. How much may be at the drive is depth.rs's. Kernel counterpart: block/blk-iocost.c,
//! `ioc_timer_fn` and `current_hweight`.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::marker::PhantomData;

use millrace_machine::{Lock, Machine, Order, Word};

use crate::bio::group_id::GroupId;
use crate::group::config::Priority;
use crate::group::view::GroupView;
use crate::queue::scheduler::share::depth::{ClassSums, Depth, LatencyCounts, Policy, Seen};
use crate::queue::scheduler::share::{Shared, VIRTUAL_BITS};

/// What a queue posted before this is taken for gone: its thread is elsewhere.
const STALE_NS: u64 = 5_000_000;
/// How long a drive counts as contended after several groups were last active.
const CONTENDED_NS: u64 = 20_000_000;
/// How far ahead of those that wait a group may get, in time of the drive at its present rate.
const WINDOW_NS: u64 = 2_000_000;
/// And at least so many I/Os of the largest cost, for each active group.
const WINDOW_IOS: u64 = 4;

/// A group at one queue, as its mail has it.
#[derive(Default)]
pub(crate) struct MailEntry {
    group: GroupId,
    way: usize,
    /// By the queue: cost of all that it sent, and what is there now.
    pub(crate) served: u64,
    pub(crate) waiting: u32,
    pub(crate) in_flight: u32,
    /// Something waited all the time since the agreement looked last.
    pub(crate) steady: bool,
    /// And what that was, when the queue had posted.
    was_steady: bool,
    pub(crate) latencies: Option<Box<LatencyCounts>>,
    /// By the agreement: how much of `served` it knows.
    known: u64,
    /// What `served` may come to, and the group's slope; 0: nothing was agreed on yet.
    pub(crate) ceiling: u64,
    pub(crate) slope: u64,
}

impl MailEntry {
    fn demand(&self) -> u64 {
        u64::from(self.waiting) + u64::from(self.in_flight)
    }
}

/// What a queue and the agreement tell each other.
pub(crate) struct Mail {
    pub(crate) at_ns: u64,
    /// It posted since the agreement looked last.
    pub(crate) fresh: bool,
    pub(crate) full: bool,
    /// Most that one of its requests cost.
    pub(crate) largest: u64,
    pub(crate) sums: ClassSums,
    pub(crate) entries: Vec<MailEntry>,
    pub(crate) depth: [u32; 2],
    pub(crate) contended: bool,
}

impl Default for Mail {
    fn default() -> Self {
        Mail {
            at_ns: 0,
            fresh: false,
            full: false,
            largest: 0,
            sums: ClassSums::default(),
            entries: Vec::new(),
            depth: [u32::MAX; 2],
            contended: false,
        }
    }
}

impl Mail {
    /// The entry of the queue's flow number `at`.
    pub(crate) fn entry(&mut self, at: usize, (group, way): (GroupId, usize)) -> &mut MailEntry {
        if self.entries.len() <= at {
            self.entries.push(MailEntry { group, way, steady: true, ..MailEntry::default() });
        }
        &mut self.entries[at]
    }
}

/// A group over all queues.
#[derive(Default, Clone, Copy)]
struct Total {
    /// Virtual time that it has got to.
    virtual_ns: u128,
    slope: u64,
    /// Since the last agreement.
    served: u64,
    demand: u64,
    steady: bool,
    is_active: bool,
    /// It was, at the last agreement.
    was_active: bool,
    /// What it may send until the next agreement.
    budget: u64,
}

/// What was agreed on.
pub(crate) struct Agreement<M: Machine> {
    at_ns: u64,
    contended_ns: u64,
    view: GroupView<M>,
    /// By number of the group.
    totals: Vec<Total>,
    /// Where those that wait have got to.
    virtual_ns: u128,
    /// Cost in a nanosecond, in 1,024ths.
    rate: u64,
    /// Most that a request cost.
    largest: u64,
    depth: Depth,
    /// Share of each queue in what waits, in 65,536ths.
    shares: Vec<u64>,
    machine: PhantomData<M>,
}

impl<M: Machine> Agreement<M> {
    pub(crate) fn new(queues: usize, tags: u32) -> Self {
        Agreement {
            at_ns: 0,
            contended_ns: 0,
            view: GroupView::new(),
            totals: Vec::new(),
            virtual_ns: 0,
            rate: 1024,
            largest: 0,
            depth: Depth::new(queues, tags),
            shares: alloc::vec![0; queues],
            machine: PhantomData,
        }
    }

    /// Sums up what queues have posted, and posts what each may do.
    pub(crate) fn make(&mut self, shared: &Shared<M>, now_ns: u64) {
        if self.view.is_old(&shared.groups) {
            self.view.renew(&shared.groups);
        }
        self.totals.resize(self.view.len(), Total::default());
        let mut seen = self.gather(shared, now_ns);
        let idle = |at| self.view.row(GroupId(at)).is_some_and(|r| r.priority == Priority::Idle);
        let mut all = self.totals.iter().zip(0..);
        seen.shallow = all.any(|(total, at)| total.is_active && !total.steady && !idle(at));
        let active = self.totals.iter().filter(|total| total.is_active).count();
        // With targets, reads and writes of one group stand in each other's way, too.
        let targets = shared.policy == Policy::Targets;
        if active > 1 || targets && seen.ways == 0b11 {
            self.contended_ns = now_ns + CONTENDED_NS;
        }
        let contended = now_ns < self.contended_ns;
        if !contended && self.depth.is_off() {
            // As it was: nobody is told anything new.
            self.at_ns = now_ns;
            return;
        }
        self.weigh();
        self.advance(now_ns);
        let depth = match contended {
            true => self.depth.next(&seen, shared.policy, now_ns),
            false => self.depth.off(),
        };
        self.share_out(shared, (depth[0], now_ns));
        self.grant(shared, (depth, contended));
        self.at_ns = now_ns;
        // Release: pairs with the queues' look at it.
        shared.epoch.fetch_add(1, Order::Release);
    }

    /// Reads the mail.
    fn gather(&mut self, shared: &Shared<M>, now_ns: u64) -> Seen {
        let mut seen = Seen::default();
        for total in &mut self.totals {
            *total = Total {
                virtual_ns: total.virtual_ns,
                slope: total.slope,
                was_active: total.is_active,
                ..Total::default()
            };
        }
        for mail in &shared.mails {
            let mut mail = mail.lock();
            let is_stale = mail.at_ns + STALE_NS < now_ns;
            let is_fresh = core::mem::take(&mut mail.fresh);
            self.largest = self.largest.max(mail.largest);
            seen.full |= core::mem::take(&mut mail.full);
            seen.sums.add(&core::mem::take(&mut mail.sums));
            for entry in &mut mail.entries {
                let Some(total) = self.totals.get_mut(usize::from(entry.group.0)) else { continue };
                let served = entry.served - entry.known;
                entry.known = entry.served;
                total.served += served;
                // What a queue said long ago may be gone, and nobody there to say so.
                let demand = if is_stale { 0 } else { entry.demand() };
                seen.in_flight += if is_stale { 0 } else { entry.in_flight };
                total.demand += demand;
                if is_fresh {
                    entry.was_steady = core::mem::replace(&mut entry.steady, true);
                }
                total.steady |= entry.was_steady && !is_stale;
                let is_active = served > 0 || demand > 0;
                total.is_active |= is_active;
                seen.ways |= u8::from(is_active) << entry.way;
                let target = self.view.row(entry.group).and_then(|row| row.target);
                if let (Some(latencies), Some(target)) = (&mut entry.latencies, target) {
                    seen.count_target(entry.group, target, latencies);
                }
            }
        }
        seen
    }

    /// The slope of each active group: by its weight among its active siblings, and theirs.
    fn weigh(&mut self) {
        let mut family = alloc::vec![0u64; self.totals.len()];
        let active = |totals: &[Total], at: usize| totals[at].is_active;
        for at in 0..self.totals.len() {
            let Some(row) = self.view.row(GroupId(at as u16)) else { continue };
            if active(&self.totals, at)
                && let Some(parent) = row.parent
            {
                family[usize::from(parent.0)] += u64::from(row.weight);
            }
        }
        for at in 0..self.totals.len() {
            let Some(row) = self.view.row(GroupId(at as u16)) else { continue };
            // In 1,024ths; a parent that does I/O itself has its weight beside its children's sum.
            let mut weight = u64::from(row.weight) << 10;
            if let Some(parent) = row.parent {
                let above = self.view.row(parent).map_or(100, |row| u64::from(row.weight));
                weight = weight * above / family[usize::from(parent.0)].max(1);
            }
            self.totals[at].slope = ((1 << (VIRTUAL_BITS + 10)) / weight.max(1)).max(1);
        }
    }

    /// Moves virtual times on.
    fn advance(&mut self, now_ns: u64) {
        let served: u64 = self.totals.iter().map(|total| total.served).sum();
        let elapsed_ns = now_ns.saturating_sub(self.at_ns).max(1);
        if elapsed_ns < WINDOW_NS * 100 {
            let rate = (served << 10) / elapsed_ns;
            self.rate = (self.rate * 7 + rate).div_ceil(8);
        }
        let mut behind = u128::MAX;
        for (total, at) in self.totals.iter_mut().zip(0..) {
            let row = self.view.row(GroupId(at));
            let is_idle = row.is_some_and(|row| row.priority == Priority::Idle);
            if !total.was_active {
                total.virtual_ns = total.virtual_ns.max(self.virtual_ns);
            }
            total.virtual_ns += u128::from(total.served) * u128::from(total.slope);
            if total.steady && !is_idle {
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
        let (active, slopes) = self
            .totals
            .iter()
            .filter(|total| total.is_active)
            .fold((0, 0u128), |(count, sum), total| {
                (count + 1, sum + (1 << 64) / u128::from(total.slope.max(1)))
            });
        let cost = (self.rate * WINDOW_NS) >> 10;
        let largest = self.largest * WINDOW_IOS * active;
        // In virtual time: that much cost by all of them together.
        let window = (u128::from(cost.max(largest)) << 64) / slopes.max(1);
        let window = window.min(1 << 60);
        // Those of priority idle get what is left: nothing while others wait, or fill the drive.
        let others = self.totals.iter().zip(0..).filter(|(_, at)| {
            let row = self.view.row(GroupId(*at));
            row.is_some_and(|row| row.priority != Priority::Idle)
        });
        let (waits, demand) = others.fold((false, 0), |(waits, demand), (total, _)| {
            (waits || total.steady, demand + total.demand)
        });
        let held_back = waits || demand * 2 >= u64::from(depth);
        // What is granted last stands until groups meet again.
        let free = !contended || shared.mails.len() == 1 || shared.policy == Policy::Targets;
        for (total, at) in self.totals.iter_mut().zip(0..) {
            let priority = self.view.row(GroupId(at)).map_or(Priority::BestEffort, |r| r.priority);
            let ahead = self.virtual_ns.saturating_add(window);
            // Those who do not wait owe nothing, and what was free is no debt.
            if !total.steady {
                total.virtual_ns = total.virtual_ns.max(self.virtual_ns);
            }
            total.virtual_ns = total.virtual_ns.min(ahead);
            total.budget = match priority {
                Priority::Idle if contended && held_back => 0,
                Priority::Realtime => u64::MAX,
                _ if free => u64::MAX,
                _ => ((ahead - total.virtual_ns) / u128::from(total.slope.max(1))) as u64,
            };
        }
    }

    /// Posts budgets and depths to all queues.
    fn grant(&mut self, shared: &Shared<M>, (depth, contended): ([u32; 2], bool)) {
        let mut all = 0;
        for (mail, share) in shared.mails.iter().zip(&mut self.shares) {
            let mail = mail.lock();
            *share = 0;
            for entry in &mail.entries {
                let Some(total) = self.totals.get(usize::from(entry.group.0)) else { continue };
                if total.steady && entry.waiting > 0 {
                    let weight = (1 << 40) / total.slope.max(1);
                    *share += weight * entry.demand() / total.demand.max(1);
                }
            }
            all += *share;
        }
        for (mail, share) in shared.mails.iter().zip(&self.shares) {
            let mut mail = mail.lock();
            mail.contended = contended;
            mail.depth = depth.map(|depth| match *share {
                _ if depth == u32::MAX => u32::MAX,
                0 => depth,
                share => {
                    let own = u128::from(depth) * u128::from(share) / u128::from(all.max(1));
                    (own as u32).max(1)
                }
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
