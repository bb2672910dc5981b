//! Completion: finds the requests of completed tags, and returns their bios to the channels.
//!
//! dispatch.rs calls this code with a batch of completions from the driver. Usually, dispatch.rs
//! has released the hardware queue's serve lock, which the one thread that serves the queue holds.
//! The lock is still held if the batch is full or other work waits in the queue. A request needs no
//! search, because the tag is its index (Bjorling et al., SYSTOR 2013, point 4). Timed-out requests
//! end in timeouts.rs. Lock order: as in dispatch.rs; the lock of abandoned requests comes last.
//! Kernel counterpart: `blk_mq_end_request_batch`.

use millrace_machine::{Lock, Machine, Stage};

use crate::account::{EqualIos, IoOwner, IoTimes};
use crate::bio::Op;
use crate::bio::status::Status;
use crate::chain::bio_set::BioSet;
use crate::chain::merge;
use crate::chain::slot::{BioList, BioRef, WaitTimes};
use crate::disk::SubmitPath;
use crate::disk::handover::count_handed;
use crate::disk::queue_context::QueueContext;
use crate::disk::submit_context::{Stamp, SubmitContext};
use crate::queue::request::{Request, RequestRef, RequestState};
use crate::queue::tag::TagBatch;
use crate::trace::blktrace::EventCode;

/// Outcome of a request: status, and the times of its dispatch (D) and completion (C).
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestEnd {
    pub(crate) status: Status,
    pub(crate) d_ns: u64,
    pub(crate) c_ns: u64,
    /// True if the bios are in the failure log already, because their request timed out earlier.
    pub(crate) is_logged: bool,
}

impl<'a, M: Machine> QueueContext<'a, M> {
    /// Ends all requests of the completion batch. Returns true if a flush ended and the flushes
    /// that waited for it are now in this hardware queue, merged into one.
    pub(crate) fn complete(&mut self) -> bool {
        if self.run.batch.entries().is_empty() {
            return false;
        }
        let disk = self.disk;
        match &disk.baseline {
            None => end_batch(self),
            Some(baseline) => baseline.stack.complete(self),
        }
    }

    /// Ends one request, but does not free its tag. Returns true if the request was a flush, and
    /// the next flush is now queued in this hardware queue. The next flush consists of all flushes
    /// that waited for the ended one.
    pub(crate) fn end_request(
        &mut self,
        rq: &mut Request<M>,
        (status, c_ns): (Status, u64),
        equal: &mut EqualIos,
    ) -> bool {
        if !rq.is_in_flight() {
            self.confirm_abandoned(rq);
            return false;
        }
        if self.run.trace.is_some() {
            self.trace().record_request(EventCode::Complete, rq, (c_ns, status));
        }
        let is_logged = rq.state == RequestState::Overdue;
        let (op, d_ns, chain) = (rq.op(), rq.d_ns, rq.empty());
        self.end_bios(chain, RequestEnd { status, d_ns, c_ns, is_logged }, equal);
        op == Op::Flush && self.flush_done()
    }

    #[inline(always)]
    pub(crate) fn end_bios(&mut self, chain: BioRef<M>, end: RequestEnd, equal: &mut EqualIos) {
        let RequestEnd { status, d_ns, c_ns, is_logged } = end;
        let times = IoTimes { q_ns: chain.q_ns, waits: chain.waits(), d_ns, c_ns };
        let bio_set = self.run.bio_set;
        let next = EqualIos::like(chain.op(), IoOwner::of(&chain, bio_set), times);
        self.stats.begin(equal, next, &mut self.run.accounts.tenants);
        let mut next = Some(chain);
        while let Some(mut bio) = next {
            next = bio.chained.take();
            bio.touch();
            bio.status = status;
            bio.waited = WaitTimes::NOT;
            let whose = IoOwner::of(&bio, bio_set);
            self.stats.count(equal, &bio, whose, &mut self.run.accounts.tenants);
            if !status.is_ok() {
                if !is_logged {
                    self.disk.accounts.note_failure(&bio, status);
                }
                self.stats.count_error(bio.bio.op);
                if whose.is_counted() {
                    self.run.accounts.tenants.count_error(&bio);
                }
            }
            if self.disk.config.trace.is_some() {
                self.trace().tell(EventCode::Complete, &bio, c_ns);
            }
            self.run.finish(bio);
        }
    }

    /// Ends the flush in flight. Then queues the flushes that were submitted meanwhile, merged into
    /// one. Returns true if the merged flush is in this hardware queue. The merged flush is sent
    /// even if the ended flush failed, because only the driver knows if that affects later flushes.
    pub(crate) fn flush_done(&mut self) -> bool {
        let (mut pending, target) = {
            let mut flush = self.disk.flush.lock();
            flush.issued = false;
            flush.moves += u64::from(!flush.pending.is_empty());
            (flush.pending.take(), flush.pending_hctx)
        };
        let Some(mut first) = pending.pop_front() else { return false };
        while let Some(other) = pending.pop_front() {
            self.trace().flush_joined(&other, &first);
            self.stats.count_merge(Op::Flush);
            merge::join(&mut first, other);
        }
        // The merged flush is queued even if the disk is frozen, because the disk accepted it
        // earlier. The thread that serves hardware queue `target` polls for its completion.
        let (hctx, bell) = (self.disk.queues.hctx(target), BioSet::bell_of(&first));
        count_handed(self.disk, target, 1);
        self.disk.queues.ctx(hctx.own_ctx).lock().list(target).push_back(first);
        self.disk.flush.lock().moves += 1;
        hctx.mark_own();
        let is_here = target == self.hctx.number;
        if !is_here {
            hctx.ring();
            bell.ring();
        }
        is_here
    }

    /// Handles the late completion of a request that was abandoned after its timeout. The drive no
    /// longer writes the request's memory.
    #[cold]
    fn confirm_abandoned(&self, rq: &mut Request<M>) {
        assert!(rq.state == RequestState::Abandoned, "tag {} completed twice", rq.tag().0);
        rq.state = RequestState::Idle;
        let mut list = self.disk.abandoned.lock();
        let place = list.iter().position(|a| a.tag == rq.tag() && a.hctx == self.hctx.number);
        let place = place.expect("the drive's list of abandoned requests must contain this one");
        let entry = list.swap_remove(place);
        drop(entry.bio_sets);
    }
}

/// Ends all requests of a non-empty batch. Returns true if a flush ended and this hardware queue
/// got the next flush: all flushes that had waited, merged into one.
#[inline(always)]
pub(crate) fn end_batch<M: Machine>(context: &mut QueueContext<'_, M>) -> bool {
    M::work(Stage::Complete, context.run.batch.entries().len() as u32);
    let (tags, mut given) = (&*context.hctx.tags, TagBatch::EMPTY);
    let again = end_requests(context, |rq| tags.give(&mut given, rq));
    tags.give_rest(given);
    context.wake_waiter();
    again
}

/// Ends all requests of a batch that is not empty, and calls `give` to free each tag.
#[inline(always)]
pub(crate) fn end_requests<M: Machine>(
    context: &mut QueueContext<'_, M>,
    mut give: impl FnMut(RequestRef<M>),
) -> bool {
    let tags = &*context.hctx.tags;
    let (mut c_ns, mut again) = (M::now(), false);
    context.run.accounts.c_ns = c_ns;
    // On the fast path, most requests of a batch have the same times of submission (Q) and dispatch
    // (D). Requests with equal times are counted and ended together.
    let may_be_alike =
        context.disk.queues.path() == SubmitPath::Direct && context.run.stamp == Stamp::Batch;
    let first = if may_be_alike { context.run.batch.looks(tags).next() } else { None };
    let mut equal = first.map_or(EqualIos::EMPTY, |(rq, _)| rq.times(c_ns));
    loop {
        if may_be_alike {
            if context.run.trace.is_some() {
                record_alike(context, &equal);
            }
            end_alike(context, &mut equal, &mut give);
        }
        let Some((mut rq, status)) = context.run.batch.take(tags) else { break };
        if context.run.stamp == Stamp::Io {
            c_ns = M::now();
            context.run.accounts.c_ns = c_ns;
        }
        again |= context.end_request(&mut rq, (status, c_ns), &mut equal);
        if may_be_alike && !equal.is_straight() {
            context.stats.record(&mut equal, &mut context.run.accounts.tenants);
            equal.forget();
        }
        give(rq);
    }
    context.stats.record(&mut equal, &mut context.run.accounts.tenants);
    context.run.batch.clear();
    again
}

/// Ends the next requests of the completion batch that can be counted with the I/Os in `equal`.
/// Stops at the first request with an error, with several bios, or from another channel. Also stops
/// at a request that waited in a queue, or differs in operation, group, tenant, stage or times.
#[inline(always)]
fn end_alike<M: Machine>(
    context: &mut QueueContext<'_, M>,
    equal: &mut EqualIos,
    give: &mut impl FnMut(RequestRef<M>),
) {
    let (tags, bio_set) = (&*context.hctx.tags, context.run.bio_set);
    let SubmitContext { batch, done, .. } = &mut *context.run;
    let (mut ended, mut sectors, mut rest) = (BioList::new(), 0, batch.rest(tags));
    let before = rest.taken();
    while let Some((rq, status)) = rest.peek() {
        if !status.is_ok() || !rq.ends_alike(bio_set, equal) {
            break;
        }
        let Some((mut rq, _)) = rest.take() else { break };
        let bio = rq.empty();
        bio.touch();
        debug_assert!(bio.status.is_ok());
        sectors += u64::from(bio.bio.nr_sectors);
        ended.link_back(bio);
        give(rq);
    }
    let ios = rest.taken() - before;
    ended.count_linked(ios as u32);
    equal.add(ios as u64, sectors);
    done.append(&mut ended);
}

#[inline(never)]
fn record_alike<M: Machine>(context: &mut QueueContext<'_, M>, equal: &EqualIos) {
    let (tags, bio_set) = (&*context.hctx.tags, context.run.bio_set);
    let mut tracing = context.disk.trace(context.run);
    tracing.record_successes(tags, equal.c_ns(), |rq| rq.ends_alike(bio_set, equal));
}
