//! Shared code of the schedulers `fair` and `latency`, which divide a drive among groups.
//!
//! Each hardware queue has a `ShareQueue`, with a list of waiting bio chains for each group. A bio
//! chain becomes one request. Chains are dispatched by start-time fair queueing (SFQ): the group
//! with the lowest virtual start time goes first. Each dispatch advances the group's virtual time
//! by the cost of the chain, divided by the group's weight. An I/O writes no memory that hardware
//! queues share. Decisions that concern all queues are made periodically: a group's share over
//! several queues, and the depth of the drive. Every half millisecond, a queue posts a report about
//! its I/O to its mailbox. The first queue to find that a new allocation is due sums up all
//! reports. For each queue, it posts the cost that each group may dispatch (budget) and the limit
//! on requests in flight (depth); see agreement.rs. A group that uses the drive alone is never held
//! back. Lock order: serve, allocation, mailbox. Source: Goyal et al., SIGCOMM 1996 (SFQ); Jin et
//! al., SIGMETRICS 2004 (SFQ(D)). Kernel counterpart: block/blk-iocost.c (global and local virtual
//! time), block/bfq-iosched.c.

pub(crate) mod agreement;
pub(crate) mod depth;
pub(crate) mod flow;
pub(crate) mod level;
pub(crate) mod mail;
pub(crate) mod piece;
pub(crate) mod said;
pub(crate) mod seen;
pub(crate) mod speed;
pub(crate) mod target_depth;
pub(crate) mod times;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::{Lock, Machine, Order, Stage, Word};

use crate::account::held::{DriveWaits, WaitAccounts};
use crate::account::hold::WaitReason;
use crate::account::waits::ReportedWaits;
use crate::bio::Op;
use crate::bio::group_id::GroupId;
use crate::group::Groups;
use crate::group::config::Priority;
use crate::group::view::GroupView;
use crate::queue::scheduler::cost::{CostModel, DepthWeights, REQUEST};
use crate::queue::scheduler::parts::DriveParts;
use crate::queue::scheduler::share::agreement::SharedAllocation;
use crate::queue::scheduler::share::depth::Policy;
use crate::queue::scheduler::share::flow::GroupFlow;
use crate::queue::scheduler::share::mail::{DepthLimit, QueueMailbox};
use crate::queue::scheduler::share::said::ReportedDecisions;
use crate::queue::scheduler::share::seen::QueueCounts;
use crate::queue::scheduler::{
    ChainBatch, CompletedChain, DriveMark, Leftover, Scheduler, SchedulerPick,
};

/// Time between two reports that a hardware queue posts to its mailbox, in nanoseconds. The reports
/// are the input for dividing the drive among groups.
const PERIOD_NS: u64 = 500_000;
/// Replaces [`PERIOD_NS`] while I/O bypasses the scheduler. One batch in each period takes the way
/// through the scheduler, which costs several times as much CPU time.
const BYPASS_PERIOD_NS: u64 = 2_000_000;
/// Shortest time between two allocations (divisions of the drive among groups), in nanoseconds.
/// Also the shortest time between two reports of a hardware queue while its groups have used up
/// their budgets.
const BLOCKED_PERIOD_NS: u64 = 50_000;
/// Nanoseconds after which a waiting group gets an I/O even if groups of higher priority wait.
const STARVED_NS: u64 = 100_000_000;

pub(crate) struct SharedDrive<M: Machine> {
    pub(crate) policy: Policy,
    pub(crate) groups: Arc<Groups<M>>,
    holds: Arc<DriveWaits<M>>,
    pub(crate) cost: CostModel,
    weights: DepthWeights,
    /// Length of the longest request, in sectors. Channels split longer reads and writes.
    pub(crate) piece_sectors: Arc<M::Word>,
    /// Number of allocations (divisions of the drive among groups and queues) so far. A queue that
    /// sees a new number takes its new limits from its mailbox in `mails`.
    pub(crate) epoch: M::Word,
    pub(crate) due_ns: M::Word,
    pub(crate) mails: Box<[M::Lock<QueueMailbox>]>,
    agreement: M::Lock<SharedAllocation<M>>,
}

impl<M: Machine> SharedDrive<M> {
    pub(crate) fn new(policy: Policy, groups: &Arc<Groups<M>>, drive: &DriveParts<M>) -> Arc<Self> {
        let DriveParts { cost, tags, .. } = *drive;
        let mail = |_| M::Lock::new("share-mail", QueueMailbox::default());
        Arc::new(SharedDrive {
            policy,
            groups: Arc::clone(groups),
            holds: Arc::clone(&drive.holds),
            piece_sectors: Arc::clone(&drive.piece_sectors),
            weights: DepthWeights::of(&cost),
            cost,
            epoch: M::Word::new(0),
            due_ns: M::Word::new(0),
            mails: (0..tags.queues).map(mail).collect(),
            agreement: M::Lock::new("share-agreement", SharedAllocation::new(tags)),
        })
    }

    pub(crate) fn renew(&self, view: &mut GroupView<M>) {
        view.renew(&self.groups);
        if self.policy == Policy::Targets {
            view.serve_targets();
        }
    }

    pub(crate) fn queue(self: &Arc<Self>, hctx: u16) -> Box<dyn Scheduler<M>> {
        Box::new(ShareQueue::new(Arc::clone(self), hctx.into()))
    }
}

pub(crate) struct ShareQueue<M: Machine> {
    shared: Arc<SharedDrive<M>>,
    hctx: usize,
    view: GroupView<M>,
    /// Each flow holds the waiting bio chains and the state of one group at this queue. A flow has
    /// the same index as the group's entry in the queue's mailbox. Flows are never removed.
    flows: Vec<GroupFlow<M>>,
    /// For each group number, two indices in `flows`: one for reads, one for other operations.
    /// Without `Policy::Targets`, the first index is for all operations. `u16::MAX` if there is no
    /// flow yet.
    places: Vec<u16>,
    last_place: usize,
    /// Indices in `flows` of the groups that have waiting bio chains, in no order.
    active: Vec<u16>,
    waiting: WaitingChains,
    in_flight: u32,
    bound: DepthLimit,
    /// Depth units that the requests in flight take, by direction; a 4 KiB request takes 16.
    /// Requests of groups with a latency target are not counted, because the limit `bound` does not
    /// apply to them.
    counted: [u32; 2],
    /// Virtual start time (in start-time fair queueing) of the bio chain dispatched last.
    virtual_now: u128,
    met: ReportState,
    holds: WaitAccounts<M>,
    /// Recent trace messages, not to be repeated for a while; `None` unless a trace is recorded.
    said: Option<Box<ReportedDecisions>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlowStop {
    Depth,
    /// The group has dispatched as much I/O as it may before the drive is next divided among
    /// groups.
    Budget,
    /// The group has idle priority, and other groups are active.
    Priority,
}

struct WaitingChains {
    count: u32,
    drive: DriveMark,
}

/// State of a hardware queue's reports. The queue posts reports about its I/O to its mailbox. In
/// return, it gets a budget for each group: the cost that the group may dispatch.
#[derive(Default)]
struct ReportState {
    /// Value of `SharedDrive::epoch` (number of allocations) when the queue last took its limits.
    epoch: u64,
    /// True if the last allocation limited the depth of the drive. A drive has a limit if several
    /// groups use it, or if it is not known to be fast.
    bounded: bool,
    post_ns: u64,
    counts: QueueCounts,
    /// Largest cost of a request so far, in nanoseconds.
    largest: u64,
    /// True if the report that this queue posted last contained waiting or in-flight requests.
    said_demand: bool,
    /// Index in `flows` of the group that was last asked for in `pass`.
    passing: usize,
}

impl<M: Machine> ShareQueue<M> {
    fn new(shared: Arc<SharedDrive<M>>, hctx: usize) -> Self {
        ShareQueue {
            holds: WaitAccounts::at(&shared.holds, hctx),
            shared,
            hctx,
            view: GroupView::new(),
            flows: Vec::new(),
            places: Vec::new(),
            last_place: usize::MAX,
            active: Vec::new(),
            waiting: WaitingChains { count: 0, drive: DriveMark::NONE },
            in_flight: 0,
            bound: DepthLimit::default(),
            counted: [0; 2],
            virtual_now: 0,
            met: ReportState::default(),
            said: None,
        }
    }

    /// Returns the index in `flows` of a group's list of waiting bio chains, made on first use.
    /// With `Policy::Targets`, a group has one list for reads and one for other operations.
    #[inline]
    fn place(&mut self, group: GroupId, op: Op) -> usize {
        let way = usize::from(self.shared.policy == Policy::Targets && op != Op::Read);
        match self.flows.get(self.last_place) {
            Some(flow) if flow.group == group && flow.way == way => self.last_place,
            _ => self.find_place(group, way),
        }
    }

    #[inline(never)]
    fn find_place(&mut self, group: GroupId, way: usize) -> usize {
        let group = self.view.known(group);
        let at = usize::from(group.0) * 2 + way;
        if self.places.len() <= at {
            self.places.resize(at + 1, u16::MAX);
        }
        if self.places[at] == u16::MAX {
            self.places[at] = self.flows.len() as u16;
            let flow =
                GroupFlow::new((group, way), self.virtual_now, (&self.view, self.shared.policy));
            self.flows.push(flow);
            // Makes this queue post a report soon, because a new group has I/O here. The next
            // allocation of the drive then includes the group.
            self.met.post_ns = 0;
        }
        self.last_place = usize::from(self.places[at]);
        self.last_place
    }

    /// Applies changed group settings.
    #[cold]
    fn renew(&mut self) {
        self.shared.renew(&mut self.view);
        let terms = (&self.view, self.shared.policy);
        self.flows.iter_mut().for_each(|flow| flow.follow(terms));
        self.counted = [0; 2];
        for flow in self.flows.iter().filter(|flow| !flow.has_target) {
            self.counted[flow.way] += flow.load.in_flight;
        }
        (self.last_place, self.met.post_ns) = (usize::MAX, 0);
    }

    /// Returns the index in `flows` of the group whose first bio chain is dispatched next, or the
    /// reason why no chain may be dispatched.
    fn choose(&self, now_ns: u64) -> Result<usize, FlowStop> {
        let mut best = None;
        let mut hold = FlowStop::Budget;
        let look = (now_ns, self.others_wait());
        for &at in &self.active {
            let flow = &self.flows[usize::from(at)];
            match self.stop_of(flow, look) {
                // `Depth` overrides the other reasons to hold back a group. The next completion may
                // make room, so the queue needs no timer.
                Some(stop) if hold != FlowStop::Depth => hold = stop,
                Some(_) => {}
                None => {
                    // A group without a dispatch for `STARVED_NS` gets the highest priority.
                    let starved = match flow.priority {
                        Priority::Idle => look.1,
                        _ => now_ns.saturating_sub(flow.sent_ns) >= STARVED_NS,
                    };
                    let priority = if starved { Priority::Realtime } else { flow.priority };
                    let key = (priority, !flow.has_target, flow.start, at);
                    best = Some(best.map_or(key, |best: (_, _, _, _)| best.min(key)));
                }
            }
        }
        best.map(|(.., at)| usize::from(at)).ok_or(hold)
    }

    fn others_wait(&self) -> bool {
        self.active.iter().any(|at| !self.flows[usize::from(*at)].is_idle())
    }

    /// Returns the reason why the first waiting bio chain of a group must not be dispatched now;
    /// `None` if it may be. `others_wait` is true if groups above idle priority have waiting bio
    /// chains.
    #[inline]
    fn stop_of(&self, flow: &GroupFlow<M>, (now_ns, others_wait): (u64, bool)) -> Option<FlowStop> {
        let starved = || now_ns.saturating_sub(flow.sent_ns) >= STARVED_NS;
        if flow.is_idle() && !starved() && (flow.served >= flow.ceiling || others_wait) {
            return Some(FlowStop::Priority);
        }
        let counted = self.counted[flow.way];
        // A request may exceed the depth limit, which long requests of other groups may have used
        // up, in two cases:
        // - No request counts against the limit at present (`counted` is 0).
        // - The group has no request in flight, and usually needs no more than its share of the
        //   depth limit (`has_all`).
        let is_first = counted == 0 || flow.load.has_all && flow.load.in_flight == 0;
        if !is_first && counted + REQUEST > self.bound.depth[flow.way] && !flow.has_target {
            return Some(FlowStop::Depth);
        }
        (flow.served >= flow.ceiling && !flow.is_idle()).then_some(FlowStop::Budget)
    }

    fn hold_of(&self, flow: &GroupFlow<M>, look: (u64, bool)) -> Option<WaitReason> {
        self.stop_of(flow, look).map(|stop| match stop {
            FlowStop::Depth => self.bound.held_by[flow.way],
            FlowStop::Budget => WaitReason::Weight,
            FlowStop::Priority => WaitReason::Priority,
        })
    }

    /// Returns the groups that are held back, with the reason and the depth limit in requests.
    fn held(&self, now_ns: u64) -> impl Iterator<Item = (GroupId, WaitReason, u32)> {
        let look = (now_ns, self.others_wait());
        self.active.iter().filter_map(move |at| {
            let flow = &self.flows[usize::from(*at)];
            let depth = requests_of(self.bound.depth[flow.way]);
            self.hold_of(flow, look).map(|hold| (flow.group, hold, depth))
        })
    }

    #[cold]
    fn say_holds(&mut self, now_ns: u64) {
        let mut said = self.said.take().unwrap_or_default();
        said.holds(self.held(now_ns), now_ns, self.shared.holds.decisions(self.hctx));
        self.said = Some(said);
    }

    #[inline]
    fn send(&mut self, at: usize, now_ns: u64) -> SchedulerPick<M> {
        let flow = &mut self.flows[at];
        let Some(bio) = flow.list.pop_front() else { return SchedulerPick::Nothing };
        let chain = self.waiting.drive.chain(bio);
        let range = (chain.sector(), chain.nr_sectors());
        let cost = self.shared.cost.of(chain.op(), range, flow.last_end);
        let weight = self.shared.weights.weight(chain.op(), chain.nr_sectors());
        flow.last_end = chain.end();
        flow.served += cost;
        self.met.largest = self.met.largest.max(cost);
        // A group gets no credit for idle time: its next bio chain starts no earlier than the
        // present virtual time.
        flow.start = flow.start.max(self.virtual_now);
        self.virtual_now = flow.start;
        flow.start += u128::from(cost) * u128::from(flow.slope);
        flow.load.in_flight += weight;
        flow.load.waiting = flow.load.waiting.saturating_sub(weight);
        flow.sent_ns = now_ns;
        if flow.list.is_empty() {
            flow.steady = false;
            self.active.retain(|place| usize::from(*place) != at);
        }
        if flow.said.waiting() > flow.list.len() {
            self.say(at, (now_ns, self.others_wait()));
        }
        let flow = &mut self.flows[at];
        self.waiting.count -= 1;
        self.in_flight += 1;
        if !flow.has_target {
            self.counted[flow.way] += weight;
        }
        SchedulerPick::Chain(chain)
    }

    #[cold]
    fn account(&mut self, now_ns: u64) {
        let (_, watched) = self.shared.holds.stopped_and_watched(self.hctx, now_ns);
        match watched {
            true => self.say_holds(now_ns),
            false => self.said = None,
        }
        let look = (now_ns, self.others_wait());
        for at in 0..self.active.len() {
            self.say(usize::from(self.active[at]), look);
        }
    }

    #[cold]
    fn say(&mut self, at: usize, look: (u64, bool)) {
        let (hold, now_ns) = (self.hold_of(&self.flows[at], look), look.0);
        let flow = &mut self.flows[at];
        let since_ns = flow.list.first().map_or(0, |first| first.inserted_ns());
        let next = ReportedWaits::all(hold, flow.list.len(), since_ns);
        let drive = &self.shared.holds;
        let account = self.holds.of(flow.group, |account| drive.open(account));
        // `settle` adds the waiting time up to now to the counter of the reason why the queue
        // dispatches nothing. `say` then reports the bio chains that wait at present. In the
        // counters by reason, the wait of a chain that was not reported before begins now.
        account.settle(now_ns);
        account.say(&mut flow.said, next, now_ns);
    }

    /// Posts the queue's report to its mailbox. If a new allocation is due, divides the drive anew
    /// among groups and queues; each queue takes its new limits when `next` is called.
    #[inline(never)]
    fn meet(&mut self, now_ns: u64, period_ns: u64) {
        self.met.post_ns = now_ns + period_ns;
        self.account(now_ns);
        self.post(now_ns);
        let shared = Arc::clone(&self.shared);
        // Relaxed: `due_ns` only decides when a queue tries to make a new allocation. The lock
        // `agreement` orders all other data of the allocation.
        if now_ns >= shared.due_ns.load(Order::Relaxed)
            && let Some(mut agreement) = shared.agreement.try_lock()
        {
            shared.due_ns.store(now_ns + BLOCKED_PERIOD_NS, Order::Relaxed);
            agreement.make(&shared, now_ns);
        }
    }

    fn post(&mut self, now_ns: u64) {
        self.met.said_demand = self.in_flight > 0 || self.waiting.count > 0;
        let mut mail = self.shared.mails[self.hctx].lock();
        (mail.at_ns, mail.fresh, mail.largest) = (now_ns, true, self.met.largest);
        (mail.is_over, mail.requests) = (false, self.in_flight);
        self.met.counts.short = self.shared.holds.stopped_by(self.hctx) == WaitReason::NoTag;
        mail.counts.add(&core::mem::take(&mut self.met.counts));
        for (flow, at) in self.flows.iter_mut().zip(0..) {
            let entry = mail.entry(at, (flow.group, flow.way));
            entry.served = flow.served;
            (entry.waiting, entry.in_flight) = (flow.load.waiting, flow.load.in_flight);
            entry.steady &= flow.steady;
            flow.steady = !flow.list.is_empty();
            if let Some(latencies) = &mut flow.latencies {
                entry.latencies.get_or_insert_default().take(latencies);
            }
        }
    }

    #[cold]
    fn take_grants(&mut self, epoch: u64, now_ns: u64) {
        self.met.epoch = epoch;
        // Changed group settings are applied here as well as in `insert`: they matter to bio chains
        // that wait already, even if no new ones are inserted.
        if self.view.is_old(&self.shared.groups) {
            self.renew();
        }
        let mail = self.shared.mails[self.hctx].lock();
        (self.bound, self.met.bounded) = (mail.bound, mail.bounded);
        self.met.post_ns = self.met.post_ns.min(now_ns + PERIOD_NS);
        for (flow, entry) in self.flows.iter_mut().zip(&mail.entries) {
            if entry.slope != 0 {
                (flow.ceiling, flow.slope) = (entry.ceiling, entry.slope);
                flow.load.has_all = entry.has_all;
            }
        }
        drop(mail);
        if let Some(said) = &mut self.said {
            // Under `fair`, one depth limits reads and writes together.
            let depth = match self.shared.policy {
                Policy::Weights => [self.bound.depth[0]; 2],
                Policy::Targets => self.bound.depth,
            }
            .map(requests_of);
            said.depth(depth, now_ns, self.shared.holds.decisions(self.hctx));
        }
    }
}

/// Converts depth units (16 for a 4 KiB request) to a number of 4 KiB requests, at least 1.
fn requests_of(depth: u32) -> u32 {
    if depth == u32::MAX { depth } else { (depth / REQUEST).max(1) }
}

impl<M: Machine> Scheduler<M> for ShareQueue<M> {
    fn insert(&mut self, batch: &mut ChainBatch<'_, M>) {
        M::work(Stage::Search, batch.len());
        if self.view.is_old(&self.shared.groups) {
            self.renew();
        }
        let is_one_drive = self.waiting.count == 0 || self.waiting.drive == batch.drive();
        assert!(is_one_drive, "a scheduler received bio chains of two drives in one queue");
        self.waiting.drive = batch.drive();
        // Usually, `next` updates the wait statistics. While the block layer cannot dispatch from
        // this queue, `next` is not called, so `insert` updates them.
        let stuck =
            self.waiting.count > 0 || self.shared.holds.stopped_by(self.hctx) != WaitReason::Order;
        let mut last_ns = 0;
        for chain in batch {
            last_ns = chain.inserted_ns();
            let at = self.place(chain.group(), chain.op());
            let weight = self.shared.weights.weight(chain.op(), chain.nr_sectors());
            let flow = &mut self.flows[at];
            flow.load.waiting = flow.load.waiting.saturating_add(weight);
            self.waiting.count += 1;
            if flow.list.is_empty() {
                self.active.push(at as u16);
            }
            flow.list.push_back(chain.bio);
        }
        if stuck {
            self.account(last_ns);
        }
    }

    fn next(&mut self, now_ns: u64) -> SchedulerPick<M> {
        // Acquire pairs with the Release that increments `epoch` after an allocation. The new
        // limits are read under the mailbox lock.
        let epoch = self.shared.epoch.load(Order::Acquire);
        if epoch != self.met.epoch {
            self.take_grants(epoch, now_ns);
        }
        if now_ns >= self.met.post_ns {
            self.meet(now_ns, if self.met.bounded { PERIOD_NS } else { BYPASS_PERIOD_NS });
        }
        if !self.met.bounded && self.flows.len() == 1 && self.bound.depth == [u32::MAX; 2] {
            return self.send(0, now_ns);
        }
        let stop = match self.choose(now_ns) {
            Ok(at) => return self.send(at, now_ns),
            Err(stop) => stop,
        };
        self.account(now_ns);
        self.met.counts.full |= stop == FlowStop::Depth;
        if stop != FlowStop::Depth && now_ns + PERIOD_NS - BLOCKED_PERIOD_NS >= self.met.post_ns {
            self.meet(now_ns, PERIOD_NS);
        }
        match stop {
            // The next completion frees a part of the depth, and the block layer then calls `next`
            // again. So no timer is needed.
            FlowStop::Depth if self.in_flight > 0 => SchedulerPick::Nothing,
            _ => {
                if let Some(mut said) = self.said.take() {
                    let times = (now_ns, 2 * BLOCKED_PERIOD_NS);
                    said.rest(self.held(now_ns), times, self.shared.holds.decisions(self.hctx));
                    self.said = Some(said);
                }
                SchedulerPick::WaitUntil(now_ns + 2 * BLOCKED_PERIOD_NS)
            }
        }
    }

    fn completed(&mut self, done: &CompletedChain) {
        let at = self.place(done.group, done.op);
        let weight = self.shared.weights.weight(done.op, done.nr_sectors);
        let flow = &mut self.flows[at];
        flow.load.in_flight = flow.load.in_flight.saturating_sub(weight);
        self.in_flight = self.in_flight.saturating_sub(1);
        if !flow.has_target {
            let counted = &mut self.counted[flow.way];
            *counted = counted.saturating_sub(weight);
        }
        // A request without a status never reached the driver, so its time does not count.
        let was_there = done.status.is_some();
        if was_there {
            self.met.counts.sums.count(done);
            if flow.list.is_empty() {
                self.met.counts.light.count(done);
            }
        }
        let is_empty = self.in_flight == 0 && self.waiting.count == 0;
        if let Some(latencies) = flow.latencies.as_mut().filter(|_| was_there) {
            latencies.count(done.done_ns.saturating_sub(done.queued_ns));
            let service_ns = done.done_ns.saturating_sub(done.picked_ns);
            self.holds.was_at(&self.shared.holds, done.group, service_ns);
        }
        // An empty hardware queue may post no new report for a long time, and its last report still
        // shows demand. `is_over` makes that report expire early, after `STALE_NS`.
        if is_empty && core::mem::take(&mut self.met.said_demand) {
            self.shared.mails[self.hctx].lock().is_over = true;
        }
    }

    #[inline]
    fn pass(&mut self, group: GroupId, queued_ns: u64) -> bool {
        self.met.passing = self.last_place;
        let Some(flow) = self.flows.get(self.last_place) else { return false };
        // The scheduler does not learn when an I/O that bypasses it completes, so it could not
        // measure the I/O's latency. Groups with a latency target must not bypass the scheduler.
        !self.met.bounded
            && !flow.has_target
            && flow.group == group
            && queued_ns < self.met.post_ns
            // Acquire pairs with the Release that increments `epoch` after an allocation.
            && self.met.epoch == self.shared.epoch.load(Order::Acquire)
            && !self.view.is_old(&self.shared.groups)
    }

    /// Counts I/O that bypasses the scheduler as served, so that other queues see the group's
    /// activity and the drive's throughput.
    #[inline]
    fn passed(&mut self, chains: u32, sectors: u64) {
        let (flow, cost) = (&mut self.flows[self.met.passing], &self.shared.cost.read);
        flow.served += u64::from(chains - 1) * u64::from(cost.random_ns);
        flow.served += cost.of_bytes(sectors << 9);
    }

    fn drain(&mut self, left: &mut Leftover<M>) {
        for flow in &mut self.flows {
            while let Some(bio) = flow.list.pop_front() {
                left.push(self.waiting.drive.chain(bio));
            }
        }
        let now_ns = if self.active.is_empty() { 0 } else { M::now() };
        self.account(now_ns);
        self.active.clear();
        self.flows.iter_mut().for_each(|flow| flow.load.waiting = 0);
        self.waiting.count = 0;
    }
}
