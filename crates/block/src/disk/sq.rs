//! `sq`: the single-queue design, one lock for insert, merge, remove and completion.
//!
//! Kept to be measured against (\[MQ\] problem statement): a request with its tag is taken when the
//! bio comes (G), merged with the last one queued, removed one at a time for the driver, and ended
//! one at a time, each under the one lock of the queue. Called by dispatch.rs and complete.rs,
//! which have the rest of the path. Kernel counterpart: blk-core.c before 5.0, `blk_queue_bio`,
//! `blk_fetch_request`.

use millrace_machine::{Counter, Lock, Machine, Stage};

use crate::bio::Op;
use crate::chain::merge::try_merge;
use crate::chain::slot::{BioList, BioRef, Waited};
use crate::disk::runner::Stamp;
use crate::disk::visit::Visit;
use crate::queue::Serve;
use crate::queue::request::RequestRef;
use crate::queue::tag::{TagBatch, TagSet};
use crate::trace::Action;

/// Inserts each bio under the lock and runs the queue; what found no request stays in the list.
pub(crate) fn submit<M: Machine>(visit: &mut Visit<'_, M>, list: &mut BioList<M>) {
    let now_ns = M::now();
    while let Some(bio) = list.pop_front() {
        if let Err(bio) = insert(visit, bio, now_ns) {
            list.push_front(bio);
            break;
        }
    }
    if !visit.may_serve() {
        // So that the owner sees it in its last look before it sleeps.
        visit.hctx.mark_pending(0);
    }
    visit.kick();
}

fn insert<M: Machine>(
    visit: &mut Visit<'_, M>,
    mut bio: BioRef<M>,
    now_ns: u64,
) -> Result<(), BioRef<M>> {
    let hctx = visit.hctx;
    if bio.op() == Op::Flush {
        // Flushes wait apart, as they did: the lock of their list is the software queue's.
        let mut ctx = visit.disk.ctxs[0].ctx.lock();
        if ctx.frozen {
            return Err(bio);
        }
        visit.trace().slot(Action::Insert, &bio);
        bio.mark_inserted(now_ns);
        ctx.list(0).push_back(bio);
        hctx.mark_pending(0);
        return Ok(());
    }
    let disk = visit.disk;
    let mut single = disk.sq.lock();
    if single.frozen {
        return Err(bio);
    }
    // All of it inside the lock, as it was: search for a request, accounting, insertion.
    M::work(Stage::Submit, 1);
    M::work(Stage::Insert, 1);
    let bio = match single.queue.back_mut() {
        Some(last) => merge(visit, last, bio, now_ns),
        None => Some(bio),
    };
    let Some(mut bio) = bio else { return Ok(()) };
    // Queued requests have tags: no more of them than the drive takes, or they would keep
    // those of other drives.
    let held = single.queue.len() as u32 + single.in_flight;
    let taken = match held < hctx.depth_max {
        true => hctx.tags.take_one(&mut visit.run.hint),
        false => None,
    };
    let Some(mut rq) = taken else {
        visit.stats.tag_waits.add(1);
        if bio.waited == Waited::NOT {
            // For the first time; the next ones are looks.
            visit.trace().slot(Action::Sleep, &bio);
            bio.mark_admitted(now_ns);
        }
        return Err(bio);
    };
    // The tag is taken here, so this is G, too.
    visit.trace().record_get(&bio, now_ns);
    visit.trace().slot(Action::Insert, &bio);
    bio.mark_admitted(now_ns);
    bio.mark_inserted(now_ns);
    rq.touch();
    rq.fill_waited(bio, 0, visit.disk.flags_taken);
    single.queue.push_back(rq);
    Ok(())
}

/// Merges a bio with a queued request, or gives it back.
fn merge<M: Machine>(
    visit: &mut Visit<'_, M>,
    rq: &mut RequestRef<M>,
    bio: BioRef<M>,
    now_ns: u64,
) -> Option<BioRef<M>> {
    rq.touch();
    let mut chain = rq.empty();
    let merged = try_merge(&mut chain, bio, &visit.disk.limits);
    if let Ok(kind) = merged {
        // It may be the first of the chain now.
        chain.mark_inserted(now_ns);
        visit.stats.count_merge(chain.op());
        visit.trace().merged(kind, &chain);
    }
    rq.fill_waited(chain, 0, visit.disk.flags_taken);
    merged.err()
}

/// Removes one request after another under the lock and hands it to the driver.
pub(crate) fn dispatch<M: Machine>(visit: &mut Visit<'_, M>, serve: &mut Serve<M>) -> u32 {
    let mut sent = visit.dispatch_staged(serve, 0);
    let mut now_ns = 0;
    // Until the driver is too busy, perhaps for a flush already.
    while serve.requeued.is_empty() {
        let rq = {
            let mut single = visit.disk.sq.lock();
            let rq = single.queue.pop_front();
            single.in_flight += u32::from(rq.is_some());
            M::work(Stage::Dispatch, rq.is_some().into());
            rq
        };
        let Some(rq) = rq else { break };
        if now_ns == 0 || visit.run.stamp == Stamp::Io {
            now_ns = M::now();
        }
        rq.touch();
        sent += u32::from(visit.issue(serve, rq, now_ns));
    }
    sent
}

/// Ends one request under the lock.
pub(crate) fn end<M: Machine>(visit: &Visit<'_, M>, tags: &TagSet<M>, rq: RequestRef<M>) {
    let mut single = visit.disk.sq.lock();
    M::work(Stage::Complete, 1);
    // Flushes were never queued.
    single.in_flight = single.in_flight.saturating_sub((rq.op() != Op::Flush).into());
    let mut batch = TagBatch::EMPTY;
    tags.give(&mut batch, rq);
    tags.give_rest(batch);
}
