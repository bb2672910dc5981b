//! Timeouts: ends requests that a drive did not complete in time.
//!
//! Channels and workers call this code periodically for the queues that they run. A timed-out
//! request is abandoned: its bios end, but it keeps its tag until the drive completes it
//! (complete.rs). Until then, its memory stays in quarantine (`AbandonedRequest`). If the submitter
//! owns the memory, the request does not end, and the timeout is only recorded as a failure. A long
//! time without a call does not count towards the timeout, because the process may have been
//! stopped. Completions are collected before requests are timed out. Lock order: as in dispatch.rs;
//! the lock of abandoned requests comes last. Kernel counterpart: `blk_mq_timeout_work`.

use millrace_machine::{Lock, Machine};

use crate::account::EqualIos;
use crate::account::disk_counter::DiskCounter;
use crate::bio::Op;
use crate::bio::status::Status;
use crate::chain::bio_set::BioSetRef;
use crate::disk::AbandonedRequest;
use crate::disk::complete::RequestEnd;
use crate::disk::queue_context::QueueContext;
use crate::queue::HctxState;
use crate::queue::driver::Expired;
use crate::queue::request::{Request, RequestState, Tag, bios_of};
use crate::trace::blktrace::EventCode;

/// Longest time, in nanoseconds, between two checks of requests in flight.
const LOOK_MAX_NS: u64 = 1_000_000_000;
/// Shortest time, in nanoseconds, between two checks of requests in flight.
const LOOK_MIN_NS: u64 = 1_000_000;
/// Usual number of checks during one timeout. If the process pauses, only part of the pause counts
/// towards a timeout: about two check intervals, plus up to 100 ms.
const LOOKS: u64 = 8;

pub(crate) fn look_period_ns(timeout_ns: u64) -> u64 {
    match timeout_ns {
        0 => LOOK_MAX_NS,
        _ => (timeout_ns / LOOKS).clamp(LOOK_MIN_NS, LOOK_MAX_NS),
    }
}

/// Ends requests of the queue that have been at the driver for at least the timeout. `now_ns` is
/// the present time.
pub(crate) fn check<M: Machine>(context: &mut QueueContext<'_, M>, now_ns: u64) {
    let timeout_ns = context.disk.config.timeout_ns();
    let hctx = context.hctx;
    if timeout_ns == 0 || !context.may_serve() {
        return;
    }
    let Some(mut serving) = hctx.serve.try_enter() else { return };
    let was_paused = serving.in_flight.look(now_ns, look_period_ns(timeout_ns));
    let is_late = serving.in_flight.next_overdue(0, now_ns, timeout_ns).is_some();
    // Polls before any request is timed out, because overdue requests may have completed.
    context.serve(serving);
    if was_paused || !is_late {
        return;
    }
    let Some(mut serving) = hctx.serve.try_enter() else { return };
    let mut from = 0;
    while let Some(tag) = serving.in_flight.next_overdue(from, now_ns, timeout_ns) {
        expire(context, &mut serving, tag, now_ns);
        from = tag.0 + 1;
    }
    // Serves work that waited for a flush, because that flush may just have timed out.
    context.serve(serving);
}

fn expire<M: Machine>(
    context: &mut QueueContext<'_, M>,
    serve: &mut HctxState<M>,
    tag: Tag,
    now_ns: u64,
) {
    let (tags, HctxState { queue, in_flight, .. }) = (&*context.hctx.tags, serve);
    if in_flight.lent(tags, tag).is_none_or(|rq| rq.state == RequestState::Abandoned) {
        return;
    }
    context.stats.add(DiskCounter::Timeouts, 1);
    in_flight.restart(tag, now_ns);
    let Some(queue) = queue else { return };
    if queue.timeout(tag) == Expired::Extend {
        return;
    }
    let Some(rq) = in_flight.lent(tags, tag) else { return };
    if has_foreign_memory(rq) {
        // The drive may still access memory that belongs to the submitter, so the request stays in
        // flight until the drive completes it. The timeout is recorded as a failure of the drive.
        if rq.state != RequestState::Overdue {
            rq.state = RequestState::Overdue;
            let accounts = &context.disk.accounts;
            rq.bios().for_each(|bio| accounts.note_failure(bio, Status::TimedOut));
        }
        return;
    }
    if context.run.trace.is_some() {
        context.trace().record_request(EventCode::Complete, rq, (now_ns, Status::TimedOut));
    }
    let (op, d_ns, chain) = (rq.op(), rq.d_ns, rq.empty());
    rq.state = RequestState::Abandoned;
    let bio_sets = bios_of(&chain).map(|bio| BioSetRef::new(bio.bio_set)).collect();
    let abandoned = AbandonedRequest { hctx: context.hctx.number, tag, bio_sets };
    context.disk.abandoned.lock().push(abandoned);
    let mut equal = EqualIos::EMPTY;
    context.run.accounts.c_ns = now_ns;
    let end = RequestEnd { status: Status::TimedOut, d_ns, c_ns: now_ns, is_logged: false };
    context.end_bios(chain, end, &mut equal);
    context.stats.record(&mut equal, &mut context.run.accounts.tenants);
    if op == Op::Flush {
        context.flush_done();
    }
}

/// Returns true if the request transfers data to or from memory that the submitter owns. The block
/// layer keeps its own buffers allocated after a timeout, because the drive may still write them.
/// For the submitter's memory, it cannot do so.
fn has_foreign_memory<M: Machine>(rq: &Request<M>) -> bool {
    rq.bios().any(|bio| bio.is_foreign() && bio.bio.op.has_data())
}
