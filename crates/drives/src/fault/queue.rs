//! `FaultQueue`: a hardware queue that passes requests on to another queue or to the cache, and
//! injects faults.
//!
//! The faults of a request are chosen once, when it is submitted. A request that must fail never
//! reaches the inner queue. A delayed or stuck request reaches the inner queue, and this queue
//! holds the completion back. While a request is stuck, the queue asks to be polled every few
//! milliseconds, because the release comes from another thread.

use std::collections::VecDeque;
use std::sync::Arc;

use millrace_block::{
    CompletionBatch, Dispatch, DriverData, DriverQueue, Expired, Moment, Op, Request, Status, Tag,
};
use millrace_machine::{Machine, Native};

use super::control::{FaultState, FaultVerdict};

const STUCK_LOOK_NS: u64 = 2_000_000;

#[derive(Clone, Copy, Default)]
struct TagState {
    /// Faults chosen for a request that the inner queue refused as busy. The next submission of the
    /// request uses these faults.
    decided: Option<FaultVerdict>,
    /// Earliest time of completion, in nanoseconds; 0 for no delay.
    deadline_ns: u64,
    /// Value of `FaultState::releases` at the time when the request became stuck; `None` if the
    /// request is not stuck. A release of stuck requests increments `releases`, and the request
    /// then completes.
    stuck_at: Option<u64>,
    cuts: u64,
    inside: bool,
    /// True if the inner drive has accepted the request.
    entered: bool,
    verdict: FaultVerdict,
}

pub(crate) struct FaultQueue {
    state: Arc<FaultState>,
    /// Queue of the drive below. `None` if the simulated cache executes the requests.
    inner: Option<Box<dyn DriverQueue<Native>>>,
    tags: Box<[TagState]>,
    held: Vec<(Tag, Status)>,
    ready: VecDeque<(Tag, Status)>,
    scratch: CompletionBatch,
}

impl FaultQueue {
    pub(crate) fn new(
        state: Arc<FaultState>,
        inner: Option<Box<dyn DriverQueue<Native>>>,
        depth: u32,
    ) -> FaultQueue {
        let depth = depth as usize;
        FaultQueue {
            state,
            inner,
            tags: vec![TagState::default(); depth].into(),
            held: Vec::with_capacity(depth),
            ready: VecDeque::with_capacity(depth),
            scratch: CompletionBatch::new(),
        }
    }

    fn poll_inner(&mut self, batch: &mut CompletionBatch) {
        while let Some(queue) = &mut self.inner {
            self.scratch.clear();
            queue.poll(&mut self.scratch);
            if let Some(wake_ns) = self.scratch.take_wake() {
                batch.wake_at(wake_ns);
            }
            for at in 0..self.scratch.entries().len() {
                let (tag, status) = self.scratch.entries()[at];
                self.done(tag, status);
            }
            if !self.scratch.is_full() {
                return;
            }
        }
    }

    fn done(&mut self, tag: Tag, status: Status) {
        let state = &mut self.tags[tag.0 as usize];
        state.inside = false;
        match state.deadline_ns == 0 && state.stuck_at.is_none() {
            true => self.ready.push_back((tag, status)),
            false => self.held.push((tag, status)),
        }
    }

    /// Completes requests whose delay has passed or that were released. Returns the time of the
    /// next check.
    fn let_go(&mut self) -> Option<u64> {
        if self.held.is_empty() {
            return None;
        }
        let (now_ns, releases) = (Native::now(), self.state.releases());
        let (dead, mut wake_ns) = (self.state.is_dead(), None::<u64>);
        let (tags, ready) = (&self.tags, &mut self.ready);
        self.held.retain(|&(tag, status)| {
            let state = tags[tag.0 as usize];
            let stuck = state.stuck_at.is_some_and(|count| count >= releases);
            let holds = !dead && (stuck || state.deadline_ns > now_ns);
            if holds {
                let look_ns = if stuck { now_ns + STUCK_LOOK_NS } else { state.deadline_ns };
                wake_ns = Some(wake_ns.map_or(look_ns, |old| old.min(look_ns)));
            } else {
                ready.push_back((tag, status));
            }
            holds
        });
        wake_ns
    }

    fn final_status(&self, tag: Tag, status: Status, cuts: u64) -> Status {
        if self.state.is_dead() {
            return Status::Offline;
        }
        let cut = self.state.cache.is_some() && self.tags[tag.0 as usize].cuts != cuts;
        if cut { Status::IoError } else { status }
    }

    fn cuts(&self) -> u64 {
        self.state.cache.as_ref().map_or(0, |cache| cache.cuts())
    }
}

impl DriverQueue<Native> for FaultQueue {
    fn queue_rq(&mut self, rq: &Request<Native>) -> Dispatch {
        let (tag, index) = (rq.tag(), rq.tag().0 as usize);
        let end = match rq.op() {
            Op::Flush => rq.sector(),
            _ => rq.sector() + u64::from(rq.nr_sectors()),
        };
        let state = &mut self.tags[index];
        let decide = || self.state.verdict(rq.op(), rq.sector()..end);
        let verdict = state.decided.take().unwrap_or_else(decide);
        let deadline_ns =
            if verdict.delay_ns > 0 { Native::now().saturating_add(verdict.delay_ns) } else { 0 };
        let stuck_at = verdict.sticks.then(|| self.state.releases());
        *state = TagState { deadline_ns, stuck_at, verdict, ..TagState::default() };
        let fails = if self.state.is_dead() { Some(Status::Offline) } else { verdict.fails };
        if let Some(status) = fails {
            self.tags[index].cuts = self.cuts();
            self.done(tag, status);
            return Dispatch::Queued;
        }
        if let Some(queue) = &mut self.inner {
            let outcome = queue.queue_rq(rq);
            let queued = outcome == Dispatch::Queued;
            (self.tags[index].inside, self.tags[index].entered) = (queued, queued);
            self.tags[index].decided = (!queued).then_some(verdict);
            return outcome;
        }
        let cache = self.state.cache.as_ref();
        let cache = cache.expect("a fault queue must have an inner queue or a simulated cache");
        self.tags[index].cuts = cache.run(rq);
        self.done(tag, Status::Ok);
        Dispatch::Queued
    }

    fn is_bounced(&self, tag: Tag) -> bool {
        let is_bounced = |queue: &dyn DriverQueue<Native>| queue.is_bounced(tag);
        self.tags[tag.0 as usize].inside && self.inner.as_deref().is_some_and(is_bounced)
    }

    fn trace_data(&self, tag: Tag, moment: Moment) -> DriverData {
        let TagState { verdict, entered, .. } = self.tags[tag.0 as usize];
        match &self.inner {
            _ if moment == Moment::Issue && verdict != FaultVerdict::default() => verdict.data(),
            Some(queue) if entered => queue.trace_data(tag, moment),
            _ => DriverData::default(),
        }
    }

    fn commit_rqs(&mut self) {
        if let Some(queue) = &mut self.inner {
            queue.commit_rqs();
        }
    }

    fn poll(&mut self, batch: &mut CompletionBatch) {
        self.poll_inner(batch);
        if let Some(wake_ns) = self.let_go() {
            batch.wake_at(wake_ns);
        }
        let cuts = self.cuts();
        while !batch.is_full() {
            let Some((tag, status)) = self.ready.pop_front() else { return };
            batch.push(tag, self.final_status(tag, status, cuts));
        }
    }

    fn timeout(&mut self, tag: Tag) -> Expired {
        match &mut self.inner {
            Some(queue) if self.tags[tag.0 as usize].inside => queue.timeout(tag),
            _ => Expired::Abandon,
        }
    }
}
