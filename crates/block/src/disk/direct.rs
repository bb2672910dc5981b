//! Fast path: inserts, dispatches and completes a batch in one call, through a free hardware queue.
//!
//! A batch takes the fast path under these conditions:
//! - no other work waits in the hardware queue;
//! - all bios of a batch have the same time stamp;
//! - batches of the disk bypass the software queues, and no trace sink is set.
//!
//! In any other case (such as no free tag, a busy driver, or a flush), `QueueContext::serve` takes
//! over. Called by dispatch.rs, and by channels for a single bio. issue.rs issues the batch like
//! any other; only a single bio has its own code here. Kernel counterpart:
//! `blk_mq_try_issue_list_directly`.

use millrace_machine::{Machine, Stage};

use crate::bio::Op;
use crate::bio::group_id::GroupId;
use crate::chain::slot::{BioList, BioRef, BioSlot};
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
/// here. The other threads either set the flag of the serve lock, or ring the doorbell of the
/// queue's owner. This thread checks the flag when it releases the lock.
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
    let scheduling = serve.scheduling.as_deref_mut();
    scheduling.is_none_or(|scheduling| list.first().is_some_and(|first| scheduling.passes(first)))
}

/// Returns true if the queue may dispatch a new batch now. Older bios in the queue must go first,
/// and so must queues that this thread has woken for a tag.
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
    // The scheduler has let only this group pass.
    let group = list.first().map(|first| first.bio.account_key.group);
    let group = group.filter(|_| serving.scheduling.is_some());
    loop {
        let sent = match group {
            _ if recorded => issue_recorded(context, &mut serving, list, group),
            Some(group) => issue_passed(context, &mut serving, list, group),
            None => {
                let batch = IssueBatch { list, now_ns: M::now(), may_go: |_: &_| true };
                issue_list::<M, false>(context, &mut serving, batch, |_, _, _, _| ())
            }
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

/// Issues the bio chains at the front of a batch that bypass the scheduler: those of `group`.
#[inline(never)]
fn issue_passed<M: Machine>(
    context: &mut QueueContext<'_, M>,
    serve: &mut HctxState<M>,
    list: &mut BioList<M>,
    group: GroupId,
) -> u32 {
    let mut sectors = 0;
    let may_go = |chain: &BioSlot<M>| chain.bio.account_key.group == group;
    let batch = IssueBatch { list, now_ns: M::now(), may_go };
    let sent = issue_list::<M, false>(context, serve, batch, |_, _, rq, _| {
        sectors += u64::from(rq.nr_sectors());
    });
    count_passed(serve, sent, sectors);
    sent
}

fn count_passed<M: Machine>(serve: &mut HctxState<M>, sent: u32, sectors: u64) {
    // A request that the driver refused goes to the driver again, and never to the scheduler.
    let chains = sent + u32::from(!serve.requeued.is_empty());
    if let Some(scheduling) = serve.scheduling.as_deref_mut().filter(|_| chains > 0) {
        scheduling.passed(chains, sectors);
    }
}

/// Issues a batch of which a trace is recorded; with a scheduler, only the bio chains of `group`.
#[inline(never)]
fn issue_recorded<M: Machine>(
    context: &mut QueueContext<'_, M>,
    serve: &mut HctxState<M>,
    list: &mut BioList<M>,
    group: Option<GroupId>,
) -> u32 {
    let has_data = serve.queue.as_ref().is_some_and(|queue| queue.has_trace_data());
    let mut sectors = 0;
    let may_go =
        |chain: &BioSlot<M>| group.is_none_or(|group| chain.bio.account_key.group == group);
    let batch = IssueBatch { list, now_ns: M::now(), may_go };
    let sent = issue_list::<M, false>(context, serve, batch, |context, queue, rq, outcome| {
        if has_data && outcome == Dispatch::Queued {
            context.trace().driver(queue, rq, (Moment::Issue, rq.d_ns));
        }
        context.trace().record_issue(rq, outcome);
        sectors += u64::from(rq.nr_sectors());
    });
    count_passed(serve, sent, sectors);
    sent
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
