//! The short way through a hardware queue that is free: tag, driver, completion, all in one piece.
//!
//! Most batches find nothing waiting, are told to no sink and stamped once, and go to a queue that
//! no other software queue feeds. Called by dispatch.rs for those; whatever turns out otherwise on
//! the way (no tag, a busy driver, a flush, a full completion batch, a latecomer's flag) goes on in
//! `Disk::serve`, which takes over at any point. Does just what that does, in fewer instructions.
//! Kernel counterpart: `blk_mq_try_issue_list_directly`.
#![allow(unsafe_code)]

use millrace_machine::plant::{Plant, planted};
use millrace_machine::{Machine, Stage};

use crate::account::{DiskStats, Run};
use crate::bio::Op;
use crate::bio::status::Status;
use crate::chain::slot::{BioList, BioRef};
use crate::disk::runner::{Runner, Stamp};
use crate::disk::{Disk, Stack, Way};
use crate::queue::Serve;
use crate::queue::driver::{CompletionBatch, Dispatch, Moment};
use crate::queue::serve::Serving;
use crate::queue::tag::{TagBatch, TagSet};
use crate::trace::tracer::TraceStamp;

/// How many requests go to the driver before it is asked what it has answered: as many as a batch
/// of completions holds, or a little more.
const MOST_AT_ONCE: u32 = CompletionBatch::CAPACITY as u32;

impl<M: Machine> Disk<M> {
    /// Whether a batch may go the short way. What others marked as pending meanwhile is no
    /// obstacle: they have left a flag, or rung the owner, who polls all its queues.
    #[inline(always)]
    pub(crate) fn is_plain(&self, serve: &Serve<M>, run: &Runner<M>) -> bool {
        self.way == Way::Direct && Self::is_free(serve, run)
    }

    /// The same where the way is known to be the short one.
    #[inline(always)]
    fn is_free(serve: &Serve<M>, run: &Runner<M>) -> bool {
        run.stamp == Stamp::Batch
            && run.woken.is_empty()
            && serve.staged.is_empty()
            && serve.requeued.is_empty()
            && !(serve.quiesced | serve.frozen)
    }

    /// Issues a batch and takes back what the driver has completed.
    #[inline(never)]
    pub(crate) fn issue_directly<'a>(
        &'a self,
        index: u16,
        mut serving: Serving<'a, M, Serve<M>>,
        list: &mut BioList<M>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) {
        if self.config.stack == Stack::Mq {
            M::work(Stage::Insert, list.len());
        }
        let recorded = run.trace.is_some();
        if recorded {
            self.record_inserts_if(TraceStamp::Event, list, run);
        }
        loop {
            let more = match recorded {
                false => self.issue_list::<false>(index, &mut serving, list, run, stats),
                true => self.issue_recorded(index, &mut serving, list, run, stats),
            };
            if list.is_empty() {
                break;
            }
            // What the drive has answered already makes room for more.
            self.reap(index, &mut serving, run);
            let again = !run.batch.is_empty() && self.complete_directly(index, run, stats);
            if again || !more || !run.woken.is_empty() {
                list.mark_inserted(M::now());
                self.record_inserts_if(TraceStamp::Batch, list, run);
                serving.staged.append(list);
                return self.serve(index, serving, run, stats);
            }
        }
        self.reap(index, &mut serving, run);
        if !serving.requeued.is_empty() && !planted(Plant::BusyForgotten) {
            // The driver may have been too busy for it just because of what it has answered now:
            // then no completion is to come that would have it tried again.
            if !run.batch.is_empty() {
                self.complete_directly(index, run, stats);
            }
            return self.serve(index, serving, run, stats);
        }
        self.leave_and_end(index, serving, run, stats);
    }

    /// [`Disk::issue_list`] while somebody records.
    #[inline(never)]
    fn issue_recorded(
        &self,
        index: u16,
        serve: &mut Serve<M>,
        list: &mut BioList<M>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) -> bool {
        self.issue_list::<true>(index, serve, list, run, stats)
    }

    /// A batch of one, which is what a program with one I/O in flight submits each time; the drive
    /// often answers with that one at once. Gives it back if it is more than one bio, or this
    /// thread cannot serve the queue or must not. The disk's way is the short one.
    #[inline(never)]
    pub(crate) fn issue_single(
        &self,
        index: u16,
        bio: BioRef<M>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) -> Result<(), BioRef<M>> {
        let hctx = &self.hctxs[usize::from(index)];
        if bio.op() == Op::Flush || bio.chained.is_some() || !self.may_serve(hctx, run) {
            return Err(bio);
        }
        let Some(mut serving) = hctx.serve.try_enter() else { return Err(bio) };
        if self.config.stack == Stack::Mq {
            M::work(Stage::Insert, 1);
        }
        if !Self::is_free(&serving, run) || serving.queue.is_none() {
            return self.stage_single(index, serving, bio, run, stats);
        }
        let tags = &*hctx.tags;
        let tag = tags.take(&mut run.hint, 1).and_then(|mut one| one.next());
        let serve: &mut Serve<M> = &mut serving;
        let (Some(tag), Some(queue)) = (tag, &mut serve.queue) else {
            return self.stage_single(index, serving, bio, run, stats);
        };
        bio.touch();
        // SAFETY: the tag was taken above and is in nobody else's hands; the driver only reads it.
        let rq = unsafe { tags.request(tag) };
        rq.fill(bio, index, self.flags_taken);
        let d_ns = M::now();
        rq.d_ns = d_ns;
        let outcome = queue.queue_rq(rq);
        if outcome != Dispatch::Queued {
            rq.outcome = outcome;
            self.requeue(serve, rq, run, stats);
            self.serve(index, serving, run, stats);
            return Ok(());
        }
        self.charge(1, stats);
        queue.commit_rqs();
        queue.poll(&mut run.batch);
        if !run.batch.is_just(tag) {
            serve.issued_ns[tag.0 as usize] = d_ns | 1;
            serve.in_flight += 1;
            self.end_single(index, serving, run, stats);
            return Ok(());
        }
        run.batch.clear();
        let stays = serving.leave();
        M::work(Stage::Complete, 1);
        let mut bio = rq.empty();
        bio.touch();
        bio.status = Status::Ok;
        let c_ns = M::now();
        run.accounts.c_ns = c_ns;
        stats.record_one(&bio, (d_ns, c_ns), &mut run.accounts.tenants);
        tags.give_rest(TagBatch::of(rq));
        // From this channel's own plug, so that is where it goes home to.
        run.done.push_back(bio);
        self.wake_waiter(hctx, run);
        if stays.is_some() || !run.woken.is_empty() {
            self.go_on(index, stays, run, stats);
        }
        Ok(())
    }

    /// The queue is not free, or there is no tag.
    #[inline(never)]
    fn stage_single<'a>(
        &'a self,
        index: u16,
        mut serving: Serving<'a, M, Serve<M>>,
        mut bio: BioRef<M>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) -> Result<(), BioRef<M>> {
        if serving.frozen {
            let stays = serving.leave();
            self.go_on(index, stays, run, stats);
            return Err(bio);
        }
        bio.mark_inserted(M::now());
        serving.staged.push_back(bio);
        self.serve(index, serving, run, stats);
        Ok(())
    }

    /// What the driver has completed is not just the one.
    #[inline(never)]
    fn end_single<'a>(
        &'a self,
        index: u16,
        mut serving: Serving<'a, M, Serve<M>>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) {
        self.check_reaped(&mut serving, run);
        self.leave_and_end(index, serving, run, stats);
    }

    /// Leaves the queue and ends what the driver has completed.
    #[inline(always)]
    fn leave_and_end<'a>(
        &'a self,
        index: u16,
        serving: Serving<'a, M, Serve<M>>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) {
        if run.batch.is_full() {
            // More may be done, and a full batch has no room for it: the general way looks again,
            // with an empty one.
            self.complete(index, run, stats);
            return self.serve(index, serving, run, stats);
        }
        let stays = serving.leave();
        let again = !run.batch.is_empty() && self.complete_directly(index, run, stats);
        if again && stays.is_none() {
            self.kick(index, run, stats);
        }
        self.go_on(index, stays, run, stats);
    }

    /// The rest of a round: latecomers, other channels' completions, queues that got tags.
    #[inline(never)]
    fn go_on<'a>(
        &'a self,
        index: u16,
        stays: Option<Serving<'a, M, Serve<M>>>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) {
        if let Some(serving) = stays {
            return self.serve(index, serving, run, stats);
        }
        run.deliver();
        if !run.woken.is_empty() {
            self.run_woken(run);
        }
    }

    /// Gives bios of a list tags and requests and hands them to the driver, up to the first that
    /// cannot go this way; true if it is only that enough have gone at once.
    #[inline(always)]
    fn issue_list<const RECORDED: bool>(
        &self,
        index: u16,
        serve: &mut Serve<M>,
        list: &mut BioList<M>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) -> bool {
        let tags = &*self.hctxs[usize::from(index)].tags;
        let Serve { queue: Some(queue), issued_ns, in_flight, .. } = serve else { return false };
        let Some(mut batch) = tags.take(&mut run.hint, list.len().min(64)) else { return false };
        let now_ns = M::now();
        let (mut sent, mut refused) = (0, None);
        let has_data = RECORDED && queue.has_trace_data();
        let mut rest = list.take();
        while let Some(chain) = rest.pop_front() {
            let mut tag = None;
            if chain.op() != Op::Flush {
                tag = batch.next();
                if tag.is_none() && sent < MOST_AT_ONCE {
                    // The set's words may hold less than is in hand.
                    batch = tags.take(&mut run.hint, rest.len() + 1).unwrap_or(TagBatch::EMPTY);
                    tag = batch.next();
                }
            }
            let Some(tag) = tag else {
                rest.push_front(chain);
                break;
            };
            chain.touch();
            // SAFETY: the tag was taken above and is in nobody else's hands.
            let rq = unsafe { tags.request(tag) };
            rq.fill(chain, index, self.flags_taken);
            rq.d_ns = now_ns;
            let outcome = queue.queue_rq(rq);
            if RECORDED {
                if has_data && outcome == Dispatch::Queued {
                    self.trace_driver(&**queue, rq, (Moment::Issue, now_ns), run);
                }
                self.record_issue(rq, now_ns, outcome, run);
            }
            if outcome != Dispatch::Queued {
                rq.outcome = outcome;
                refused = Some(rq);
                break;
            }
            issued_ns[tag.0 as usize] = now_ns | 1;
            sent += 1;
        }
        *in_flight += sent;
        list.append(&mut rest);
        tags.give_rest(batch);
        if let Some(rq) = refused {
            self.requeue(serve, rq, run, stats);
        }
        if sent > 0 {
            self.commit(serve, sent, stats);
        }
        sent >= MOST_AT_ONCE
    }

    /// Starts what was handed to the driver.
    #[inline(always)]
    pub(crate) fn commit(&self, serve: &mut Serve<M>, sent: u32, stats: &DiskStats<M>) {
        self.charge(sent, stats);
        if let Some(queue) = &mut serve.queue {
            queue.commit_rqs();
        }
    }

    /// Counts requests handed to the driver, and charges for them.
    #[inline(always)]
    fn charge(&self, sent: u32, stats: &DiskStats<M>) {
        if self.config.stack == Stack::Mq {
            M::work(Stage::Dispatch, sent);
        }
        M::work(Stage::Driver, sent);
        stats.count_batch(sent);
    }

    /// [`end_alike`] while somebody records.
    #[inline(never)]
    fn end_recorded(
        &self,
        tags: &TagSet<M>,
        at: usize,
        run: &mut Runner<M>,
        given: &mut TagBatch,
        equal: &mut Run,
    ) -> usize {
        let mut end = at;
        while let Some((tag, status)) = run.batch.entries().get(end).copied() {
            // SAFETY: the driver named it, and `reap` checked that it was in flight here.
            let rq = unsafe { tags.request(tag) };
            if !status.is_ok() || !rq.ends_alike(run.home(), equal) {
                break;
            }
            self.record_success(rq, equal.c_ns(), run);
            end += 1;
        }
        if end == at { at } else { end_alike(tags, at, run, given, equal) }
    }

    /// [`Disk::complete`] of a batch that is not empty, most of which is alike.
    #[inline(always)]
    fn complete_directly(&self, index: u16, run: &mut Runner<M>, stats: &DiskStats<M>) -> bool {
        let tags = &*self.hctxs[usize::from(index)].tags;
        let count = run.batch.entries().len();
        M::work(Stage::Complete, count as u32);
        let c_ns = M::now();
        run.accounts.c_ns = c_ns;
        let (mut given, mut again, mut at) = (TagBatch::EMPTY, false, 0);
        // SAFETY: the driver named it, and `reap` checked that it was in flight here.
        let mut equal = unsafe { tags.request(run.batch.entries()[0].0) }.times(c_ns);
        loop {
            at = match run.trace.is_some() {
                false => end_alike(tags, at, run, &mut given, &mut equal),
                true => self.end_recorded(tags, at, run, &mut given, &mut equal),
            };
            if at == count {
                break;
            }
            let (tag, status) = run.batch.entries()[at];
            // SAFETY: as above.
            let rq = unsafe { tags.request(tag) };
            again |= self.end_request(index, rq, (status, c_ns), run, stats, &mut equal);
            if !equal.is_straight() {
                stats.record(&mut equal, &mut run.accounts.tenants);
                equal.forget();
            }
            tags.give(&mut given, rq);
            at += 1;
        }
        stats.record(&mut equal, &mut run.accounts.tenants);
        tags.give_rest(given);
        run.batch.clear();
        self.wake_waiter(&self.hctxs[usize::from(index)], run);
        again
    }
}

/// Ends the requests of the batch from `at` on, up to the first one that failed, is no plain
/// request of one bio of this channel, or has other times; returns its place, or the length.
#[inline(always)]
fn end_alike<M: Machine>(
    tags: &TagSet<M>,
    mut at: usize,
    run: &mut Runner<M>,
    given: &mut TagBatch,
    equal: &mut Run,
) -> usize {
    let (home, done, batch) = run.parts();
    let (mut ios, mut sectors) = (0, 0);
    for (tag, status) in &batch.entries()[at..] {
        // SAFETY: the driver named it, and `reap` checked that it was in flight here.
        let rq = unsafe { tags.request(*tag) };
        if !status.is_ok() || !rq.ends_alike(home, equal) {
            break;
        }
        let mut bio = rq.empty();
        bio.touch();
        bio.status = Status::Ok;
        ios += 1;
        sectors += u64::from(bio.bio.nr_sectors);
        done.push_back(bio);
        tags.give(given, rq);
        at += 1;
    }
    equal.add(ios, sectors);
    at
}
