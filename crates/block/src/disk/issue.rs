//! Issue: bio chains (bios merged into one future request) become requests for the driver.
//!
//! All dispatch goes through [`issue_list`] or, request by request, through `QueueContext::issue`:
//! a batch on the fast path (direct.rs), bios that wait in the hardware queue (dispatch.rs), bios
//! that a scheduler picked (scheduled.rs), and requests that the driver had returned as busy. The
//! caller holds the hardware queue's serve lock. Only a single bio on the fast path has separate
//! code, in direct.rs. Kernel counterpart: `blk_mq_dispatch_rq_list`, `__blk_mq_issue_directly`.

use millrace_machine::{Machine, Stage};

use crate::account::disk_counter::DiskCounter;
use crate::bio::Op;
use crate::chain::slot::{BioList, BioSlot};
use crate::disk::queue_context::QueueContext;
use crate::disk::submit_context::Stamp;
use crate::queue::HctxState;
use crate::queue::driver::{CompletionBatch, DriverQueue, Moment};
use crate::queue::request::{Dispatch, Request, RequestRef};
use crate::queue::tag::TagBatch;
use crate::trace::blktrace::EventCode;

/// Nanoseconds after which a request that the driver refused with `HostBusy` is tried again.
const HOST_BUSY_RETRY_NS: u64 = 1_000_000;
/// On the fast path, the driver is polled after about this many requests.
pub(crate) const MOST_AT_ONCE: u32 = CompletionBatch::CAPACITY as u32;

/// Bio chains (each becomes one request) to be issued, and their time of dispatch. A time of 0,
/// allowed for chains that waited in a queue, makes `issue_list` read the clock.
pub(crate) struct IssueBatch<'a, M: Machine, F> {
    pub(crate) list: &'a mut BioList<M>,
    pub(crate) now_ns: u64,
    /// Called for each bio chain. If it returns false, this chain and all later ones stay in the
    /// list.
    pub(crate) may_go: F,
}

/// Turns the bio chains of `batch` into requests and hands them to the driver. Stops at the first
/// chain that must wait, because no tag is free, the driver is busy, the chain is a flush, or
/// `may_go` refuses it. Calls `trace` for each request. Returns the number of requests handed over.
///
/// `WAITED` is true for bios that waited in a queue. If no tag is free, the hardware queue is then
/// added to the queues that wait for tags. On the fast path `WAITED` is false, and at most about
/// [`MOST_AT_ONCE`] requests are handed over.
#[inline(always)]
pub(crate) fn issue_list<M: Machine, const WAITED: bool>(
    context: &mut QueueContext<'_, M>,
    serve: &mut HctxState<M>,
    batch: IssueBatch<'_, M, impl Fn(&BioSlot<M>) -> bool>,
    mut trace: impl FnMut(&mut QueueContext<'_, M>, &dyn DriverQueue<M>, &Request<M>, Dispatch),
) -> u32 {
    let IssueBatch { list, mut now_ns, may_go } = batch;
    let HctxState { queue: Some(queue), in_flight, .. } = serve else { return 0 };
    // Local copies avoid reloads after each driver call: the compiler cannot know that the call
    // leaves these values unchanged.
    let (queue, hctx, flags_taken) = (&mut **queue, context.hctx, context.disk.flags_taken);
    let (tags, number) = (&*hctx.tags, hctx.number);
    let stamps_each = WAITED && (context.run.stamp == Stamp::Io || context.is_traced());
    let (mut batch, mut sent, mut refused) = (TagBatch::EMPTY, 0, None);
    let mut rest = list.take();
    loop {
        if batch.is_empty() {
            let Some(next) = rest.first().filter(|next| next.op() != Op::Flush) else { break };
            let more = match WAITED {
                true => {
                    let room = hctx.depth_max.saturating_sub(in_flight.count());
                    context.take_tags(next, rest.len().min(room))
                }
                false if sent < MOST_AT_ONCE => tags.take(&mut context.run.hint, rest.len()),
                false => None,
            };
            // One call takes tags from one bitmap word only, so the batch may need several calls.
            let Some(more) = more else { break };
            batch = more;
        }
        let Some(chain) = rest.pop_front() else { break };
        if chain.op() == Op::Flush || !may_go(&chain) {
            rest.push_front(chain);
            break;
        }
        let mut rq = tags.next(&mut batch).expect("the batch is not empty");
        if WAITED && (now_ns == 0 || stamps_each) {
            now_ns = M::now();
        }
        chain.touch();
        rq.touch();
        match WAITED {
            true => rq.fill_waited(chain, number, flags_taken),
            false => rq.fill(chain, number, flags_taken),
        }
        rq.d_ns = now_ns;
        let outcome = queue.queue_rq(&rq);
        trace(context, queue, &rq, outcome);
        if outcome != Dispatch::Queued {
            refused = Some((rq, outcome));
            break;
        }
        in_flight.lend(rq, now_ns);
        sent += 1;
    }
    list.append(&mut rest);
    tags.give_rest(batch);
    if let Some((rq, outcome)) = refused {
        context.requeue(serve, rq, outcome);
    }
    sent
}

impl<M: Machine> QueueContext<'_, M> {
    /// Hands a filled request to the driver. If the driver is busy, returns false; the request is
    /// then the first to be dispatched next time.
    pub(crate) fn issue(
        &mut self,
        serve: &mut HctxState<M>,
        mut rq: RequestRef<M>,
        now_ns: u64,
    ) -> bool {
        let HctxState { queue: Some(queue), in_flight, .. } = serve else {
            unreachable!("dispatch has checked that the driver's queue is open");
        };
        rq.d_ns = now_ns;
        let outcome = queue.queue_rq(&rq);
        trace_issue(self, &**queue, &rq, outcome);
        if outcome == Dispatch::Queued {
            in_flight.lend(rq, now_ns);
        } else {
            self.requeue(serve, rq, outcome);
        }
        outcome == Dispatch::Queued
    }

    /// Puts a request that the driver refused with `outcome` in front of all other waiting
    /// requests.
    #[cold]
    pub(crate) fn requeue(
        &mut self,
        serve: &mut HctxState<M>,
        mut rq: RequestRef<M>,
        outcome: Dispatch,
    ) {
        let d_ns = rq.d_ns;
        rq.mark_inserted(d_ns);
        self.stats.add(DiskCounter::Requeues, 1);
        self.trace().request(EventCode::Requeue, &rq, d_ns);
        if outcome == Dispatch::HostBusy {
            self.run.wake_at(d_ns + HOST_BUSY_RETRY_NS);
        }
        serve.requeued.push_front(rq);
    }

    #[inline(always)]
    pub(crate) fn commit(&mut self, serve: &mut HctxState<M>, sent: u32) {
        self.charge(sent);
        if let Some(queue) = &mut serve.queue {
            queue.commit_rqs();
        }
    }

    #[inline(always)]
    pub(crate) fn charge(&self, sent: u32) {
        self.work(Stage::Dispatch, sent);
        M::work(Stage::Driver, sent);
        self.stats.count_batch(sent);
    }
}

/// Emits the trace events of a request that was offered to the driver, if the drive is traced.
#[inline(always)]
pub(crate) fn trace_issue<M: Machine>(
    context: &mut QueueContext<'_, M>,
    queue: &dyn DriverQueue<M>,
    rq: &Request<M>,
    outcome: Dispatch,
) {
    if context.is_traced() && outcome == Dispatch::Queued {
        if queue.has_trace_data() {
            context.trace().driver(queue, rq, (Moment::Issue, rq.d_ns));
        }
        context.trace().request(EventCode::Issue, rq, rq.d_ns);
    }
}
