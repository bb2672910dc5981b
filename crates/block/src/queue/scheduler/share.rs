//! `Share`: a drive shared by groups; the machinery of `fair` and `latency`.
//!
//! Each hardware queue has a `ShareQueue` of its own: a list for each group, from which chains go
//! out by start-time fair queueing (SFQ: the group with the lowest virtual start time first; a
//! chain moves its group on by its cost over the group's weight). Per I/O nothing is shared between
//! queues. What needs all of them (a group's shares over several queues, how much may be at the
//! drive) they agree on now and then: every half millisecond a queue posts what it served, and
//! whichever comes first makes the sums (agreement.rs) and posts budgets and depths back. While
//! only one group uses the drive, nobody holds anything back. Lock order: serve, agreement, mail.
//! Source: Goyal et al., SIGCOMM 1996 (SFQ); Jin et al., SIGMETRICS 2004 (SFQ(D)). Kernel
//! counterpart: block/blk-iocost.c (global and local virtual time), block/bfq-iosched.c.

pub(crate) mod agreement;
pub(crate) mod depth;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::{Lock, Machine, Order, Stage, Word};

use crate::account::held::{DriveHolds, Hold, Holds};
use crate::bio::group_id::GroupId;
use crate::bio::{Op, Sector};
use crate::chain::slot::BioList;
use crate::group::Groups;
use crate::group::config::Priority;
use crate::group::view::GroupView;
use crate::queue::scheduler::cost::CostModel;
use crate::queue::scheduler::share::agreement::{Agreement, Mail};
use crate::queue::scheduler::share::depth::{ClassSums, LatencyCounts, Policy};
use crate::queue::scheduler::{Batch, Chain, Done, Leftover, Pick, Scheduler};

/// How often a queue posts what it did.
const PERIOD_NS: u64 = 500_000;
/// How often one posts that is held back.
const BLOCKED_PERIOD_NS: u64 = 50_000;
/// A group of priority idle gets at least one I/O in this time.
const IDLE_STARVED_NS: u64 = 100_000_000;
/// Virtual time of a nanosecond of cost at weight 1.
pub(crate) const VIRTUAL_BITS: u32 = 24;

/// What all hardware queues of a drive share.
pub(crate) struct Shared<M: Machine> {
    pub(crate) policy: Policy,
    pub(crate) groups: Arc<Groups<M>>,
    /// The drive's accounts of what was held.
    holds: Arc<DriveHolds<M>>,
    cost: CostModel,
    /// Raised when grants were posted; nobody writes it per I/O.
    pub(crate) epoch: M::Word,
    /// When the next agreement is due.
    pub(crate) due_ns: M::Word,
    pub(crate) mails: Box<[M::Lock<Mail>]>,
    agreement: M::Lock<Agreement<M>>,
}

impl<M: Machine> Shared<M> {
    pub(crate) fn new(
        policy: Policy,
        (groups, holds): (&Arc<Groups<M>>, &Arc<DriveHolds<M>>),
        cost: CostModel,
        (queues, tags): (usize, u32),
    ) -> Arc<Self> {
        let mail = |_| M::Lock::new("share-mail", Mail::default());
        Arc::new(Shared {
            policy,
            groups: Arc::clone(groups),
            holds: Arc::clone(holds),
            cost,
            epoch: M::Word::new(0),
            due_ns: M::Word::new(0),
            mails: (0..queues).map(mail).collect(),
            agreement: M::Lock::new("share-agreement", Agreement::new(queues, tags)),
        })
    }

    /// The part of hardware queue `hctx`.
    pub(crate) fn queue(self: &Arc<Self>, hctx: u16) -> Box<dyn Scheduler<M>> {
        Box::new(ShareQueue::new(Arc::clone(self), hctx.into()))
    }
}

/// A group at one hardware queue; with [`Policy::Targets`], its reads or its writes.
struct Flow<M: Machine> {
    group: GroupId,
    way: usize,
    list: BioList<M>,
    /// Virtual time at which its next chain starts. 64 bits would be full within hours.
    start: u128,
    /// Virtual time of a nanosecond of cost, by its weight among those that are active.
    slope: u64,
    priority: Priority,
    has_target: bool,
    /// Cost of all that went out.
    served: u64,
    /// What that may come to.
    ceiling: u64,
    in_flight: u32,
    /// Something waited all the time since the last post.
    steady: bool,
    last_end: Sector,
    /// When it last sent something out.
    sent_ns: u64,
    latencies: Option<Box<LatencyCounts>>,
}

/// A hardware queue's part of a shared drive.
pub(crate) struct ShareQueue<M: Machine> {
    shared: Arc<Shared<M>>,
    hctx: usize,
    view: GroupView<M>,
    /// Append-only: the mail's entries stand in the same order.
    flows: Vec<Flow<M>>,
    /// Places of flows, two for each group, by its number; `u16::MAX`: none yet.
    places: Vec<u16>,
    last_place: usize,
    /// Places of flows in which something waits, in no order.
    active: Vec<u16>,
    waiting: u32,
    in_flight: u32,
    /// How much may be in flight of this queue, by way; with targets, of the groups without one.
    depth: [u32; 2],
    /// What counts towards that.
    counted: [u32; 2],
    /// Start of the chain that went out last.
    virtual_now: u128,
    met: Met,
    holds: Holds<M>,
}

/// What a queue tells the others, and has heard of them.
#[derive(Default)]
struct Met {
    /// Number of the agreement that it knows.
    epoch: u64,
    /// Several groups use the drive.
    contended: bool,
    /// When it posts next.
    post_ns: u64,
    sums: ClassSums,
    /// Most that a request cost.
    largest: u64,
    /// The depth held something back since the last post.
    full: bool,
    /// Until when waiting times are accounted.
    held_ns: u64,
}

impl<M: Machine> ShareQueue<M> {
    fn new(shared: Arc<Shared<M>>, hctx: usize) -> Self {
        ShareQueue {
            shared,
            hctx,
            view: GroupView::new(),
            flows: Vec::new(),
            places: Vec::new(),
            last_place: usize::MAX,
            active: Vec::new(),
            waiting: 0,
            in_flight: 0,
            depth: [u32::MAX; 2],
            counted: [0; 2],
            virtual_now: 0,
            met: Met::default(),
            holds: Holds::new(),
        }
    }

    /// The place of a group's flow, made if it is the first time.
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
            let mut flow = Flow {
                group,
                way,
                list: BioList::new(),
                start: self.virtual_now,
                slope: 1,
                priority: Priority::BestEffort,
                has_target: false,
                served: 0,
                ceiling: u64::MAX,
                in_flight: 0,
                steady: false,
                last_end: Sector::MAX,
                sent_ns: 0,
                latencies: None,
            };
            follow(&mut flow, &self.view);
            self.flows.push(flow);
            // The others are to hear of it soon.
            self.met.post_ns = 0;
        }
        self.last_place = usize::from(self.places[at]);
        self.last_place
    }

    /// Learns what groups are promised now.
    #[cold]
    fn renew(&mut self) {
        self.view.renew(&self.shared.groups);
        self.flows.iter_mut().for_each(|flow| follow(flow, &self.view));
        self.counted = [0; 2];
        for flow in self.flows.iter().filter(|flow| !flow.has_target) {
            self.counted[flow.way] += flow.in_flight;
        }
        (self.last_place, self.met.post_ns) = (usize::MAX, 0);
    }

    /// The flow whose chain goes out next, or why none may.
    fn choose(&self, now_ns: u64) -> Result<usize, Hold> {
        let mut best = None;
        let mut hold = Hold::Weight;
        for &at in &self.active {
            let flow = &self.flows[usize::from(at)];
            match self.hold_of(flow, now_ns) {
                Some(held) => hold = held,
                None => {
                    // One of priority idle that had nothing for too long goes first.
                    let starved = flow.is_idle() && self.others_wait();
                    let priority = if starved { Priority::Realtime } else { flow.priority };
                    let key = (priority, !flow.has_target, flow.start, at);
                    best = Some(best.map_or(key, |best: (_, _, _, _)| best.min(key)));
                }
            }
        }
        best.map(|(.., at)| usize::from(at)).ok_or(hold)
    }

    /// Whether a group waits that goes before those of priority idle.
    fn others_wait(&self) -> bool {
        self.active.iter().any(|at| !self.flows[usize::from(*at)].is_idle())
    }

    /// What holds a flow's first chain, if anything does.
    #[inline]
    fn hold_of(&self, flow: &Flow<M>, now_ns: u64) -> Option<Hold> {
        if self.counted[flow.way] >= self.depth[flow.way] && !flow.has_target {
            let targets = self.shared.policy == Policy::Targets;
            return Some(if targets { Hold::LatencyTarget } else { Hold::Depth });
        }
        let starved = || now_ns.saturating_sub(flow.sent_ns) >= IDLE_STARVED_NS;
        if flow.is_idle() && !starved() && (flow.served >= flow.ceiling || self.others_wait()) {
            return Some(Hold::Weight);
        }
        (flow.served >= flow.ceiling && !flow.is_idle()).then_some(Hold::Weight)
    }

    /// Takes the next chain of a flow out.
    #[inline]
    fn send(&mut self, at: usize, now_ns: u64) -> Pick<M> {
        let flow = &mut self.flows[at];
        let Some(chain) = flow.list.pop_front().map(Chain) else { return Pick::Nothing };
        let range = (chain.sector(), chain.nr_sectors());
        let cost = self.shared.cost.of(chain.op(), range, flow.last_end);
        flow.last_end = chain.end();
        flow.served += cost;
        self.met.largest = self.met.largest.max(cost);
        // A flow that had nothing to send starts where the others are.
        flow.start = flow.start.max(self.virtual_now);
        self.virtual_now = flow.start;
        flow.start += u128::from(cost) * u128::from(flow.slope);
        flow.in_flight += 1;
        flow.sent_ns = now_ns;
        if flow.list.is_empty() {
            flow.steady = false;
            self.active.retain(|place| usize::from(*place) != at);
        }
        self.waiting -= 1;
        self.in_flight += 1;
        self.counted[flow.way] += u32::from(!flow.has_target);
        Pick::Chain(chain)
    }

    /// Adds the time since it was last done to the account of what holds each flow's chains.
    #[cold]
    fn account(&mut self, now_ns: u64) {
        let since_ns = now_ns.saturating_sub(self.met.held_ns);
        self.met.held_ns = now_ns;
        let stopped_by = self.shared.holds.stopped_by(self.hctx);
        for at in 0..self.active.len() {
            let flow = &self.flows[usize::from(self.active[at])];
            let hold = self.hold_of(flow, now_ns).unwrap_or(stopped_by);
            let (group, ns) = (flow.group, since_ns * u64::from(flow.list.len()));
            let drive = &self.shared.holds;
            self.holds.of(group, |account| drive.open(account)).add(hold, ns);
        }
    }

    /// Posts what was done, sums up with the others if that is due, and takes what was agreed on.
    #[inline(never)]
    fn meet(&mut self, now_ns: u64, period_ns: u64) {
        self.met.post_ns = now_ns + period_ns;
        self.account(now_ns);
        self.post(now_ns);
        let shared = Arc::clone(&self.shared);
        // Relaxed: only when to look; the agreement's lock orders the rest.
        if now_ns >= shared.due_ns.load(Order::Relaxed)
            && let Some(mut agreement) = shared.agreement.try_lock()
        {
            shared.due_ns.store(now_ns + BLOCKED_PERIOD_NS, Order::Relaxed);
            agreement.make(&shared, now_ns);
        }
    }

    fn post(&mut self, now_ns: u64) {
        let mut mail = self.shared.mails[self.hctx].lock();
        (mail.at_ns, mail.fresh, mail.largest) = (now_ns, true, self.met.largest);
        mail.full |= core::mem::take(&mut self.met.full);
        mail.sums.add(&core::mem::take(&mut self.met.sums));
        for (flow, at) in self.flows.iter_mut().zip(0..) {
            let entry = mail.entry(at, (flow.group, flow.way));
            entry.served = flow.served;
            (entry.waiting, entry.in_flight) = (flow.list.len(), flow.in_flight);
            entry.steady &= flow.steady;
            flow.steady = !flow.list.is_empty();
            if let Some(latencies) = &mut flow.latencies {
                entry.latencies.get_or_insert_default().take(latencies);
            }
        }
    }

    /// Takes budgets and depth from the mail.
    #[cold]
    fn take_grants(&mut self, epoch: u64) {
        self.met.epoch = epoch;
        let mail = self.shared.mails[self.hctx].lock();
        (self.depth, self.met.contended) = (mail.depth, mail.contended);
        for (flow, entry) in self.flows.iter_mut().zip(&mail.entries) {
            if entry.slope != 0 {
                (flow.ceiling, flow.slope) = (entry.ceiling, entry.slope);
            }
        }
    }
}

impl<M: Machine> Flow<M> {
    fn is_idle(&self) -> bool {
        self.priority == Priority::Idle
    }
}

/// Gives a flow what its group is promised.
fn follow<M: Machine>(flow: &mut Flow<M>, view: &GroupView<M>) {
    let Some(row) = view.row(flow.group) else { return };
    flow.slope = (1 << VIRTUAL_BITS) / u64::from(row.weight.max(1));
    flow.priority = row.priority;
    flow.has_target = row.target.is_some();
    if flow.has_target && flow.latencies.is_none() {
        flow.latencies = Some(Box::default());
    }
}

impl<M: Machine> Scheduler<M> for ShareQueue<M> {
    fn insert(&mut self, batch: &mut Batch<'_, M>) {
        M::work(Stage::Search, batch.len());
        if self.view.is_old(&self.shared.groups) {
            self.renew();
        }
        for chain in batch {
            let at = self.place(chain.group(), chain.op());
            let flow = &mut self.flows[at];
            if self.waiting == 0 {
                // Nothing waited before, so nothing is accounted for that time.
                self.met.held_ns = self.met.held_ns.max(chain.inserted_ns());
            }
            self.waiting += 1;
            if flow.list.is_empty() {
                self.active.push(at as u16);
            }
            flow.list.push_back(chain.0);
        }
    }

    fn next(&mut self, now_ns: u64) -> Pick<M> {
        // Acquire: pairs with the agreement's Release; the mail's lock orders the rest.
        let epoch = self.shared.epoch.load(Order::Acquire);
        if epoch != self.met.epoch {
            self.take_grants(epoch);
        }
        if now_ns >= self.met.post_ns {
            self.meet(now_ns, PERIOD_NS);
        }
        if !self.met.contended && self.flows.len() == 1 && self.depth == [u32::MAX; 2] {
            return self.send(0, now_ns);
        }
        let hold = match self.choose(now_ns) {
            Ok(at) => return self.send(at, now_ns),
            Err(hold) => hold,
        };
        self.account(now_ns);
        self.met.full |= matches!(hold, Hold::Depth | Hold::LatencyTarget);
        if hold == Hold::Weight && now_ns + PERIOD_NS - BLOCKED_PERIOD_NS >= self.met.post_ns {
            self.meet(now_ns, PERIOD_NS);
        }
        match hold {
            // Completions make room.
            Hold::Depth | Hold::LatencyTarget if self.in_flight > 0 => Pick::Nothing,
            _ => Pick::WaitUntil(now_ns + 2 * BLOCKED_PERIOD_NS),
        }
    }

    fn completed(&mut self, done: &Done) {
        let at = self.place(done.group, done.op);
        let flow = &mut self.flows[at];
        flow.in_flight = flow.in_flight.saturating_sub(1);
        self.in_flight = self.in_flight.saturating_sub(1);
        if !flow.has_target {
            let counted = &mut self.counted[flow.way];
            *counted = counted.saturating_sub(1);
        }
        if self.met.contended {
            self.met.sums.count(done);
        }
        if let Some(latencies) = &mut flow.latencies {
            latencies.count(done.done_ns.saturating_sub(done.queued_ns));
        }
    }

    #[inline]
    fn pass(&mut self, group: GroupId, ios: u32, queued_ns: u64) -> bool {
        let Some(flow) = self.flows.get_mut(self.last_place) else { return false };
        let passes = !self.met.contended
            && flow.group == group
            && queued_ns < self.met.post_ns
            // Acquire: pairs with the agreement's Release, as in `next`.
            && self.met.epoch == self.shared.epoch.load(Order::Acquire)
            && !self.view.is_old(&self.shared.groups);
        if passes {
            // So that others see that it is active; while it is alone, how much does not matter.
            flow.served += u64::from(ios);
        }
        passes
    }

    fn drain(&mut self, left: &mut Leftover<M>) {
        for flow in &mut self.flows {
            while let Some(chain) = flow.list.pop_front() {
                left.push(Chain(chain));
            }
        }
        self.active.clear();
        self.waiting = 0;
    }
}
