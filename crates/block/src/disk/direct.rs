//! The fast path through a free hardware queue: insertion, dispatch and completion in one call.
//!
//! A batch takes this path if no other work waits, no trace sink is set, each batch gets one time
//! stamp, and no other software queue feeds its hardware queue. Called by dispatch.rs, and by
//! channels for a single bio. In any other case (no tag, a busy driver, a flush, a full completion
//! batch, work that another thread left) `QueueContext::serve` takes over. issue.rs issues the
//! batch like any other; only a single bio has separate code here. Kernel counterpart:
//! `blk_mq_try_issue_list_directly`.

use millrace_machine::{Machine, Stage};

use crate::bio::Op;
use crate::chain::slot::{BioList, BioRef};
use crate::disk::issue::{IssueBatch, MOST_AT_ONCE, issue_list};
use crate::disk::queue_context::{QueueContext, work};
use crate::disk::submit_context::{Stamp, SubmitContext};
use crate::disk::{SubmitPath, complete};
use crate::queue::HctxState;
use crate::queue::driver::Moment;
use crate::queue::request::Dispatch;
use crate::queue::serve::ServeGuard;
use crate::trace::tracer::TraceStamp;

/// Returns true if a batch may take the fast path. Work that other threads left needs no check
/// here: those threads also set the serve lock's flag, which this thread checks on release, or ring
/// the doorbell of the queue's owner.
#[inline(always)]
pub(crate) fn is_plain<M: Machine>(
    context: &QueueContext<'_, M>,
    serve: &mut HctxState<M>,
    list: &BioList<M>,
) -> bool {
    // With `Stamp::Batch`, one clock reading serves the whole batch.
    context.disk.queues.path() == SubmitPath::Direct
        && context.run.stamp == Stamp::Batch
        && is_open(context.run, serve)
        && (serve.scheduling.is_none() || passes(serve, list))
}

#[inline(never)]
fn passes<M: Machine>(serve: &mut HctxState<M>, list: &BioList<M>) -> bool {
    serve.scheduling.as_deref_mut().is_none_or(|scheduling| scheduling.passes(list))
}

/// Returns true if the queue may dispatch now, and neither an older bio nor a queue woken for a tag
/// must go first.
#[inline(always)]
fn is_open<M: Machine>(run: &SubmitContext<M>, serve: &HctxState<M>) -> bool {
    run.woken.is_empty()
        && serve.staged.is_empty()
        && serve.requeued.is_empty()
        && !(serve.quiesced | serve.frozen | run.trace_context.has_waited)
}

#[inline(never)]
pub(crate) fn issue_batch<'a, M: Machine>(
    context: &mut QueueContext<'a, M>,
    mut serving: ServeGuard<'a, M, HctxState<M>>,
    list: &mut BioList<M>,
) {
    context.work(Stage::Insert, list.len());
    let recorded = context.run.trace.is_some();
    if recorded {
        context.trace().record_inserts_if(TraceStamp::Event, list);
    }
    loop {
        let batch = IssueBatch { list, now_ns: M::now() };
        let sent = match recorded {
            false => issue_list::<M, false>(context, &mut serving, batch, |_, _, _, _| ()),
            true => issue_recorded(context, &mut serving, batch),
        };
        if sent > 0 {
            context.commit(&mut serving, sent);
        }
        if list.is_empty() {
            break;
        }
        // Some tags may belong to requests that the drive has already completed. Polling frees
        // them.
        context.reap(&mut serving);
        let again = !context.run.batch.is_empty() && complete::end_batch(context);
        if again || sent < MOST_AT_ONCE || !context.run.woken.is_empty() {
            list.mark_inserted(M::now());
            context.trace().record_inserts_if(TraceStamp::Batch, list);
            serving.staged.append(list);
            return context.serve(serving);
        }
    }
    context.reap(&mut serving);
    if !serving.requeued.is_empty() {
        // The driver may have been busy only with requests that have just completed. Then no later
        // completion triggers a retry, so `serve` retries now.
        if !context.run.batch.is_empty() {
            complete::end_batch(context);
        }
        return context.serve(serving);
    }
    leave_and_end(context, serving);
}

#[inline(never)]
fn issue_recorded<M: Machine>(
    context: &mut QueueContext<'_, M>,
    serve: &mut HctxState<M>,
    batch: IssueBatch<'_, M>,
) -> u32 {
    let has_data = serve.queue.as_ref().is_some_and(|queue| queue.has_trace_data());
    issue_list::<M, false>(context, serve, batch, |context, queue, rq, outcome| {
        if has_data && outcome == Dispatch::Queued {
            context.trace().driver(queue, rq, (Moment::Issue, rq.d_ns));
        }
        context.trace().record_issue(rq, outcome);
    })
}

/// Dispatches a single bio, as submitted by a program with one I/O in flight. The drive often
/// completes such a bio at once. Returns the bio if it heads a longer bio chain or is a flush, or
/// if this thread cannot serve the queue. The caller checks that the disk has the fast path.
///
/// Takes half the instructions of [`issue_batch`] (479 instead of 922 for a whole I/O to a null
/// drive), because a single request needs no list, no table of requests in flight and no completion
/// batch. With one I/O in flight, a call costs as much as a clock read. So this function is
/// inlined, and takes `context` apart: a `QueueContext` in memory exists only off the fast path.
#[inline(always)]
pub(crate) fn issue_single<M: Machine>(
    context: QueueContext<'_, M>,
    bio: BioRef<M>,
) -> Result<(), BioRef<M>> {
    let QueueContext { disk, hctx, run, stats } = context;
    if bio.op() == Op::Flush || bio.chained.is_some() || !hctx.may_serve(run.owner) {
        return Err(bio);
    }
    let Some(mut serving) = hctx.serve.try_enter() else { return Err(bio) };
    work(disk, Stage::Insert, 1);
    let serve: &mut HctxState<M> = &mut serving;
    if !is_open(run, serve)
        || serve.scheduling.as_deref_mut().is_some_and(|inside| !inside.passes_single(&bio))
    {
        return stage_single(QueueContext { disk, hctx, run, stats }, serving, bio);
    }
    let Some(queue) = serve.queue.as_deref_mut() else {
        return stage_single(QueueContext { disk, hctx, run, stats }, serving, bio);
    };
    let tags = &*hctx.tags;
    let Some(mut rq) = tags.take_one(&mut run.hint) else {
        return stage_single(QueueContext { disk, hctx, run, stats }, serving, bio);
    };
    bio.touch();
    rq.touch();
    rq.fill(bio, hctx.number, disk.flags_taken);
    let d_ns = M::now();
    let outcome = queue.queue_rq(&rq);
    if outcome != Dispatch::Queued {
        rq.d_ns = d_ns;
        let mut context = QueueContext { disk, hctx, run, stats };
        context.requeue(serve, rq, outcome);
        context.serve(serving);
        return Ok(());
    }
    work(disk, Stage::Dispatch, 1);
    M::work(Stage::Driver, 1);
    stats.count_batch(1);
    queue.commit_rqs();
    queue.poll(&mut run.batch);
    if !run.batch.is_just(rq.tag()) {
        rq.d_ns = d_ns;
        serve.in_flight.lend(rq, d_ns);
        end_single(QueueContext { disk, hctx, run, stats }, serving);
        return Ok(());
    }
    run.batch.clear_untaken();
    let stays = serving.leave();
    M::work(Stage::Complete, 1);
    let bio = rq.empty();
    bio.touch();
    debug_assert!(bio.status.is_ok());
    let c_ns = M::now();
    run.accounts.c_ns = c_ns;
    stats.record_one(&bio, (d_ns, c_ns), &mut run.accounts.tenants);
    tags.give_one(rq);
    // The bio belongs to this channel, so it needs no delivery to another one.
    run.done.push_back(bio);
    match stays {
        None if run.woken.is_empty() && !tags.has_waiters() => {}
        stays => end_single_late(QueueContext { disk, hctx, run, stats }, stays),
    }
    Ok(())
}

#[inline(never)]
fn end_single_late<'a, M: Machine>(
    mut context: QueueContext<'a, M>,
    stays: Option<ServeGuard<'a, M, HctxState<M>>>,
) {
    context.wake_waiter();
    go_on(&mut context, stays);
}

/// Hands a single bio to the general path, because the queue is busy or no tag is free.
#[inline(never)]
fn stage_single<'a, M: Machine>(
    mut context: QueueContext<'a, M>,
    mut serving: ServeGuard<'a, M, HctxState<M>>,
    mut bio: BioRef<M>,
) -> Result<(), BioRef<M>> {
    if serving.frozen {
        let stays = serving.leave();
        go_on(&mut context, stays);
        return Err(bio);
    }
    bio.mark_inserted(M::now());
    serving.staged.push_back(bio);
    context.serve(serving);
    Ok(())
}

#[inline(never)]
fn end_single<'a, M: Machine>(
    mut context: QueueContext<'a, M>,
    mut serving: ServeGuard<'a, M, HctxState<M>>,
) {
    context.check_reaped(&mut serving);
    leave_and_end(&mut context, serving);
}

#[inline(always)]
fn leave_and_end<'a, M: Machine>(
    context: &mut QueueContext<'a, M>,
    serving: ServeGuard<'a, M, HctxState<M>>,
) {
    if context.run.batch.is_full() {
        // The driver may have completed more than a batch holds, so the general path polls again.
        context.complete();
        return context.serve(serving);
    }
    let stays = serving.leave();
    let again = !context.run.batch.is_empty() && complete::end_batch(context);
    if again && stays.is_none() {
        context.kick();
    }
    go_on(context, stays);
}

/// Ends the fast path of a batch. Serves work that other threads left while this thread held the
/// serve lock, delivers completions to other channels, and runs queues woken for a free tag.
#[inline(never)]
fn go_on<'a, M: Machine>(
    context: &mut QueueContext<'a, M>,
    stays: Option<ServeGuard<'a, M, HctxState<M>>>,
) {
    if let Some(serving) = stays {
        return context.serve(serving);
    }
    context.run.deliver();
    if !context.run.woken.is_empty() {
        context.run_woken();
    }
}
