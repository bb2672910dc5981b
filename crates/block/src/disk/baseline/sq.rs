//! `sq`: the single-queue design, with one lock for merging, insertion, removal and completion.
//!
//! The design exists for comparison (Bjorling et al., SYSTOR 2013, problem statement). A single I/O
//! takes the queue's lock four times:
//! - to merge the bio, or to get a request with a tag (G);
//! - to insert the request and fetch the first request of the queue;
//! - after a request was handed to the driver;
//! - to end a request.
//!
//! If the driver allows it (`Driver::is_immediate`), several submitters dispatch at once. Each of
//! them then has its own hardware queue, and all hardware queues share the tags. Otherwise one
//! thread serves the only hardware queue and dispatches for all. Called by member.rs, dispatch.rs
//! and complete.rs, which have the rest of the path. Kernel counterpart: blk-core.c before 5.0,
//! `blk_queue_bio`, `blk_flush_plug_list`, `blk_fetch_request`, `blk_end_request_all`.

use alloc::collections::VecDeque;

use millrace_machine::{Lock, Machine, Stage};

use crate::account::disk_counter::DiskCounter;
use crate::bio::Op;
use crate::chain::merge::try_merge;
use crate::chain::slot::{BioList, BioRef, WaitTimes};
use crate::disk::baseline::config::{QueuePlug, RequestLock};
use crate::disk::baseline::lanes::QueueLanes;
use crate::disk::baseline::stack::BaselineStack;
use crate::disk::complete;
use crate::disk::queue_context::QueueContext;
use crate::disk::submit_context::Stamp;
use crate::queue::request::RequestRef;
use crate::queue::tag::TagBatch;
use crate::queue::{HardwareQueue, HctxState, LockGuard};
use crate::trace::blktrace::EventCode;

/// Largest number of requests in a submitter's plug: `BLK_MAX_REQUEST_COUNT`.
const PLUGGED_MAX: usize = 16;

struct SubmitterPlug<'a, M: Machine> {
    sq: &'a SingleQueueStack<M>,
    requests: [Option<RequestRef<M>>; PLUGGED_MAX],
    len: usize,
}

pub(crate) struct SingleQueueStack<M: Machine> {
    single: M::Lock<SingleQueue<M>>,
    request_lock: RequestLock<M>,
    lanes: Option<QueueLanes>,
}

struct SingleQueue<M: Machine> {
    queue: VecDeque<RequestRef<M>>,
    frozen: bool,
    /// Number of requests that have tags but are still in submitters' plugs, not in the queue.
    plugged: u32,
    in_flight: u32,
}

impl<M: Machine> SingleQueueStack<M> {
    pub(crate) fn new(request_lock: RequestLock<M>, lanes: Option<QueueLanes>, depth: u32) -> Self {
        let queue = VecDeque::with_capacity(depth as usize);
        let single = SingleQueue { queue, frozen: false, plugged: 0, in_flight: 0 };
        SingleQueueStack { single: M::Lock::new("request-queue", single), request_lock, lanes }
    }

    /// Takes the lock that several disks share, if any, and then the queue's own lock.
    #[track_caller]
    fn lock(&self) -> LockedQueue<'_, M> {
        let _shared = self.request_lock.hold();
        LockedQueue { single: self.single.lock(), _shared }
    }
}

impl<M: Machine> BaselineStack<M> for SingleQueueStack<M> {
    fn lanes(&self) -> Option<&QueueLanes> {
        self.lanes.as_ref()
    }

    fn gets_request_late(&self) -> bool {
        true
    }

    /// Gets a request for each bio, inserts the requests into the queue and runs the queue. Bios
    /// for which no request is free stay in the list.
    fn submit(&self, context: &mut QueueContext<'_, M>, _ctx: u16, list: &mut BioList<M>) {
        let mut now_ns = M::now();
        if self.request_lock.plug == QueuePlug::Queue {
            return submit_each(self, context, list, now_ns);
        }
        let mut plugged =
            SubmitterPlug { sq: self, requests: [const { None }; PLUGGED_MAX], len: 0 };
        let mut refused = false;
        while let Some(bio) = list.pop_front() {
            if let Err(bio) = get(context, bio, &mut plugged, now_ns) {
                list.push_front(bio);
                refused = true;
            }
            if refused || list.is_empty() || plugged.len == PLUGGED_MAX {
                insert(context, &mut plugged);
                if refused || list.is_empty() {
                    break;
                }
                // Running the queue took time, so the next requests get a new time stamp.
                now_ns = M::now();
            }
        }
    }

    fn dispatch(
        &self,
        context: &mut QueueContext<'_, M>,
        serve: &mut HctxState<M>,
        mut now_ns: u64,
    ) -> u32 {
        let mut sent = context.dispatch_staged(serve, now_ns);
        // A request in `requeued` means that the driver is busy. `dispatch_staged` and `issue` put
        // requests there that the driver refused.
        while serve.requeued.is_empty() {
            let rq = fetch(context, &mut self.lock().single);
            let Some(rq) = rq else { break };
            if now_ns == 0 || context.run.stamp == Stamp::Io {
                now_ns = M::now();
            }
            sent += u32::from(context.issue(serve, rq, now_ns));
        }
        sent
    }

    fn complete(&self, context: &mut QueueContext<'_, M>) -> bool {
        let hctx = context.hctx;
        let again = complete::end_requests(context, |rq| end(self, hctx, rq));
        context.wake_waiter();
        again
    }

    fn freeze(&self) {
        self.single.lock().frozen = true;
    }

    fn unfreeze(&self) {
        self.single.lock().frozen = false;
    }

    fn is_empty(&self) -> bool {
        let single = self.single.lock();
        single.queue.is_empty() && single.plugged == 0
    }

    fn take_waiting(&self, hctx: &HardwareQueue<M>) -> BioList<M> {
        let mut left = BioList::new();
        for rq in core::mem::take(&mut self.single.lock().queue) {
            left.push_back(hctx.tags.take_apart(rq));
        }
        left
    }

    fn forget_issued(&self) {
        let mut single = self.single.lock();
        single.in_flight = single.in_flight.saturating_sub(1);
    }

    fn leak(&self) {
        self.single.lock().queue.drain(..).for_each(core::mem::forget);
    }
}

struct LockedQueue<'a, M: Machine> {
    // Fields drop in order of declaration: the queue's own lock (`single`) is released first.
    single: LockGuard<'a, M, SingleQueue<M>>,
    _shared: Option<LockGuard<'a, M, ()>>,
}

/// Puts each bio into the request queue, and takes the queue's lock again for each. Then runs the
/// queue.
fn submit_each<M: Machine>(
    sq: &SingleQueueStack<M>,
    context: &mut QueueContext<'_, M>,
    list: &mut BioList<M>,
    now_ns: u64,
) {
    while let Some(bio) = list.pop_front() {
        if let Err(bio) = make_request(sq, context, bio, now_ns) {
            list.push_front(bio);
            break;
        }
    }
    unplug(context);
}

/// Merges a bio with the queue's last request or queues a new request for it. Flushes go to a
/// separate list. Kernel counterpart: `__make_request` of 2.4.
fn make_request<M: Machine>(
    sq: &SingleQueueStack<M>,
    context: &mut QueueContext<'_, M>,
    bio: BioRef<M>,
    now_ns: u64,
) -> Result<(), BioRef<M>> {
    if bio.op() == Op::Flush {
        return wait_apart(context, bio, now_ns);
    }
    let mut locked = sq.lock();
    let now_ns = stamp(context, now_ns);
    let Some((bio, rq)) = claim(context, &mut locked.single, bio, now_ns)? else { return Ok(()) };
    let rq = fill(context, rq, bio, now_ns);
    M::work(Stage::Insert, 1);
    locked.single.queue.push_back(rq);
    Ok(())
}

/// Runs the queue at the end of a batch. Kernel counterpart: `generic_unplug_device`.
fn unplug<M: Machine>(context: &mut QueueContext<'_, M>) {
    if !context.may_serve() {
        // Only the owner of the hardware queue may run it. Before the owner sleeps, it checks for
        // queues that are marked as pending.
        context.hctx.pending.mark(0);
    }
    context.kick();
}

/// Returns the time at which a bio got its request (G): now, or the time stamp of its batch.
#[inline]
fn stamp<M: Machine>(context: &QueueContext<'_, M>, batch_ns: u64) -> u64 {
    if context.run.stamp == Stamp::Io { M::now() } else { batch_ns }
}

fn insert<M: Machine>(context: &mut QueueContext<'_, M>, plugged: &mut SubmitterPlug<'_, M>) {
    let sq = plugged.sq;
    let entered = if context.may_serve() { context.hctx.serve.try_enter() } else { None };
    let Some(mut serving) = entered else {
        sq.lock().single.take_in(plugged);
        return unplug(context);
    };
    let serve: &mut HctxState<M> = &mut serving;
    let mut locked = sq.lock();
    locked.single.take_in(plugged);
    if serve.requeued.is_empty() && serve.queue.is_some() && !serve.quiesced {
        // The first request is fetched while the queue is still locked, so that the lock need not
        // be taken again.
        serve.requeued.extend(fetch(context, &mut locked.single));
    }
    drop(locked);
    context.serve(serving);
}

fn fetch<M: Machine>(
    context: &QueueContext<'_, M>,
    single: &mut SingleQueue<M>,
) -> Option<RequestRef<M>> {
    let mut rq = single.queue.pop_front()?;
    single.in_flight += 1;
    M::work(Stage::Dispatch, 1);
    rq.touch();
    rq.hctx = context.hctx.number;
    Some(rq)
}

impl<M: Machine> SingleQueue<M> {
    fn take_in(&mut self, plugged: &mut SubmitterPlug<'_, M>) {
        M::work(Stage::Insert, plugged.len as u32);
        let all = plugged.requests[..plugged.len].iter_mut();
        self.queue.extend(all.filter_map(Option::take));
        self.plugged -= plugged.len as u32;
        plugged.len = 0;
    }
}

/// Merges a bio with the plug's last request, or gets a request for it. A flush goes to the
/// software queue instead.
fn get<M: Machine>(
    context: &mut QueueContext<'_, M>,
    bio: BioRef<M>,
    plugged: &mut SubmitterPlug<'_, M>,
    now_ns: u64,
) -> Result<(), BioRef<M>> {
    if bio.op() == Op::Flush {
        return wait_apart(context, bio, now_ns);
    }
    // Like the kernel's `attempt_plug_merge`, tries a merge in the plug first, without the lock.
    let last = plugged.len.checked_sub(1).and_then(|last| plugged.requests[last].as_mut());
    let bio = match last {
        Some(last) => merge(context, last, bio, now_ns),
        None => Some(bio),
    };
    let Some(bio) = bio else {
        // In simulation, a merge costs the same in the plug as in the queue, except for the lock.
        M::work(Stage::Submit, 1);
        return Ok(());
    };
    let mut locked = plugged.sq.lock();
    let now_ns = stamp(context, now_ns);
    let Some((bio, rq)) = claim(context, &mut locked.single, bio, now_ns)? else { return Ok(()) };
    locked.single.plugged += 1;
    drop(locked);
    let rq = fill(context, rq, bio, now_ns);
    plugged.requests[plugged.len] = Some(rq);
    plugged.len += 1;
    Ok(())
}

type ClaimedRequest<M> = (BioRef<M>, RequestRef<M>);

/// Merges a bio with the queue's last request, or takes a request for it. The caller holds the
/// queue's lock. Returns the bio if no request is free.
fn claim<M: Machine>(
    context: &mut QueueContext<'_, M>,
    single: &mut SingleQueue<M>,
    bio: BioRef<M>,
    now_ns: u64,
) -> Result<Option<ClaimedRequest<M>>, BioRef<M>> {
    if single.frozen {
        return Err(bio);
    }
    let hctx = context.hctx;
    // Old kernels got a request and did accounting under the queue's lock. So the simulator charges
    // the cost of this work here.
    M::work(Stage::Submit, 1);
    let bio = match single.queue.back_mut() {
        Some(last) => merge(context, last, bio, now_ns),
        None => Some(bio),
    };
    let Some(mut bio) = bio else { return Ok(None) };
    // Limits the number of requests that hold a tag (queued, plugged or in flight). The other tags
    // are left for drives that share the tag set.
    let held = single.queue.len() as u32 + single.plugged + single.in_flight;
    let taken = match held < hctx.depth_max {
        true => hctx.tags.take_one(&mut context.run.hint),
        false => None,
    };
    if let Some(rq) = taken {
        return Ok(Some((bio, rq)));
    }
    context.stats.add(DiskCounter::TagWaits, 1);
    if bio.waited == WaitTimes::NOT {
        // The trace records only the first failed attempt to get a tag.
        context.trace().slot(EventCode::Sleep, &bio);
        bio.mark_admitted(now_ns);
    }
    Err(bio)
}

/// Fills a request that has just got a tag. The bio's times G (got a request) and I (inserted) are
/// equal. The trace event I has the present time, which may be later.
fn fill<M: Machine>(
    context: &mut QueueContext<'_, M>,
    mut rq: RequestRef<M>,
    mut bio: BioRef<M>,
    now_ns: u64,
) -> RequestRef<M> {
    context.trace().record_get(&bio, now_ns);
    context.trace().slot(EventCode::Insert, &bio);
    bio.mark_admitted(now_ns);
    bio.mark_inserted(now_ns);
    rq.touch();
    rq.fill_waited(bio, context.hctx.number, context.disk.flags_taken);
    rq
}

/// Puts a flush into the software queue, not into the request queue.
fn wait_apart<M: Machine>(
    context: &mut QueueContext<'_, M>,
    mut bio: BioRef<M>,
    now_ns: u64,
) -> Result<(), BioRef<M>> {
    let hctx = context.hctx;
    let mut ctx = context.disk.queues.ctxs()[0].lock();
    if ctx.frozen {
        return Err(bio);
    }
    context.trace().slot(EventCode::Insert, &bio);
    bio.mark_inserted(now_ns);
    ctx.list(hctx.number).push_back(bio);
    hctx.pending.mark(0);
    Ok(())
}

fn merge<M: Machine>(
    context: &mut QueueContext<'_, M>,
    rq: &mut RequestRef<M>,
    bio: BioRef<M>,
    now_ns: u64,
) -> Option<BioRef<M>> {
    rq.touch();
    let mut chain = rq.empty();
    let merged = try_merge(&mut chain, bio, &context.disk.limits);
    if let Ok(kind) = merged {
        // After a front merge, the request begins with the new bio, which has no insertion time
        // yet.
        chain.mark_inserted(now_ns);
        context.stats.count_merge(chain.op());
        context.trace().merged(kind, &chain);
    }
    let hctx = rq.hctx;
    rq.fill_waited(chain, hctx, context.disk.flags_taken);
    merged.err()
}

fn end<M: Machine>(sq: &SingleQueueStack<M>, hctx: &HardwareQueue<M>, rq: RequestRef<M>) {
    let single = &mut sq.lock().single;
    M::work(Stage::Complete, 1);
    // `in_flight` counts only requests from the request queue. Flushes do not go through this
    // queue.
    single.in_flight = single.in_flight.saturating_sub((rq.op() != Op::Flush).into());
    let mut batch = TagBatch::EMPTY;
    hctx.tags.give(&mut batch, rq);
    hctx.tags.give_rest(batch);
}
