//! Running a hardware queue: from software queues through tags to the driver, and back.
//!
//! Called by channels: `submit_batch` with what a plug held, `run_queue` to poll or to continue.
//! Whoever enters the serve lock does all that is there to do; latecomers insert into their
//! software queue and leave a flag, or ring the owner's bell. Tags are taken here, just before
//! dispatch, for as many as are in hand. Lock order: serve, then software queue or request queue,
//! then flush. Kernel counterpart: block/blk-mq.c, `blk_mq_dispatch_rq_list`,
//! `blk_mq_run_hw_queue`.
#![allow(unsafe_code)]

use millrace_machine::plant::{Plant, planted};
use millrace_machine::{Counter, Lock, Machine, Stage};

use crate::account::DiskStats;
use crate::bio::Op;
use crate::chain::slot::{BioList, BioRef};
use crate::disk::runner::{Runner, Stamp};
use crate::disk::{Disk, Stack, Way};
use crate::queue::driver::{Dispatch, Moment, QueueKind};
use crate::queue::request::{Request, Tag};
use crate::queue::serve::Serving;
use crate::queue::tag::TagBatch;
use crate::queue::{HardwareQueue, Route, Serve};
use crate::trace::Action;

/// How often a server goes round again for latecomers.
const SERVE_ROUNDS: u32 = 32;
/// How long to wait after `HostBusy`.
const HOST_BUSY_RETRY_NS: u64 = 1_000_000;

impl<M: Machine> Disk<M> {
    /// Takes a batch of chains from a plug into the layer and runs the queue; a frozen disk leaves
    /// the batch in the list.
    pub(crate) fn submit_batch(
        &self,
        route: Route,
        list: &mut BioList<M>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) {
        self.begin_insert(list, run);
        let hctx = &self.hctxs[usize::from(route.hctx)];
        let may_serve = self.may_serve(hctx, run);
        let entered = match self.config.stack {
            _ if !may_serve => None,
            // Past the software queue: waits for the driver's queue.
            Stack::Raw => Some(hctx.serve.enter()),
            _ => hctx.serve.enter_within(self.config.serve_wait_ns),
        };
        if let Some(mut serving) = entered {
            if self.is_plain(&serving, run) {
                return self.issue_directly(route.hctx, serving, list, run, stats);
            }
            self.stage(route, list, &mut serving, run, stats);
            self.serve(route.hctx, serving, run, stats);
        } else if self.insert(route, list, run) {
            self.kick(route.hctx, run, stats);
        }
    }

    /// A server's own batch: through the software queue, and all that is there with it. A software
    /// queue that no other hardware queue takes from is private to whoever serves, and passed by.
    #[inline(always)]
    fn stage(
        &self,
        route: Route,
        list: &mut BioList<M>,
        serve: &mut Serve<M>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) {
        if self.way != Way::Queues {
            if self.config.stack != Stack::Raw {
                M::work(Stage::Insert, list.len());
            }
            if !serve.frozen {
                serve.inserted_ns = M::now();
                list.mark_inserted(serve.inserted_ns);
                self.record_inserts(list, run);
                serve.staged.append(list);
            }
            return;
        }
        let mut ctx = self.ctxs[usize::from(route.ctx)].ctx.lock();
        if ctx.frozen {
            return;
        }
        serve.inserted_ns = M::now();
        list.mark_inserted(serve.inserted_ns);
        self.record_inserts(list, run);
        if self.is_workers(route.hctx) {
            drop(ctx);
            return self.stage_sorted(list, serve, run, stats);
        }
        M::work(Stage::Insert, list.len());
        serve.staged.append(ctx.list(route.hctx));
        serve.staged.append(list);
    }

    /// Inserts into the software queue for whoever serves; false if that is frozen.
    #[inline(never)]
    fn insert(&self, route: Route, list: &mut BioList<M>, run: &mut Runner<M>) -> bool {
        list.mark_inserted(M::now());
        let mut ctx = self.ctxs[usize::from(route.ctx)].ctx.lock();
        if ctx.frozen {
            drop(ctx);
            list.unmark_inserted();
            return false;
        }
        self.record_inserts(list, run);
        M::work(Stage::Insert, list.len());
        self.count_handed(route.hctx, list.len());
        ctx.list(route.hctx).append(list);
        drop(ctx);
        self.hctxs[usize::from(route.hctx)].mark_pending(route.ctx.into());
        true
    }

    /// Makes sure that somebody runs a queue that has just been given work.
    pub(crate) fn kick(&self, hctx: u16, run: &mut Runner<M>, stats: &DiskStats<M>) {
        let queue = &self.hctxs[usize::from(hctx)];
        if !self.may_serve(queue, run) {
            queue.ring();
        } else if let Some(serving) = queue.serve.enter_or_flag() {
            self.serve(hctx, serving, run, stats);
        }
    }

    /// Polls a queue and continues what waits in it, if this thread may and nobody else does; says
    /// whether.
    pub(crate) fn run_queue(&self, hctx: u16, run: &mut Runner<M>, stats: &DiskStats<M>) -> bool {
        let queue = &self.hctxs[usize::from(hctx)];
        let entered = match self.try_serve(queue, run) {
            None if self.kind == QueueKind::OwnerOnly => self.insist(hctx, run),
            entered => entered,
        };
        let Some(serving) = entered else { return false };
        self.serve(hctx, serving, run, stats);
        true
    }

    /// An owner found somebody looking at its queue: nobody else polls it, so it comes back. The
    /// mark keeps it from sleeping.
    #[cold]
    fn insist(&self, hctx: u16, run: &Runner<M>) -> Option<Serving<'_, M, Serve<M>>> {
        let queue = &self.hctxs[usize::from(hctx)];
        if !self.may_serve(queue, run) || planted(Plant::OwnerGivesUp) {
            return None;
        }
        queue.mark_pending(self.a_ctx_of(hctx));
        queue.serve.enter_or_flag()
    }

    /// A software queue in which only this hardware queue finds its list, to mark when there is
    /// something to do but nothing new.
    pub(crate) fn a_ctx_of(&self, hctx: u16) -> usize {
        usize::from(hctx) % self.ctxs.len()
    }

    fn try_serve<'a>(
        &self,
        hctx: &'a HardwareQueue<M>,
        run: &Runner<M>,
    ) -> Option<Serving<'a, M, Serve<M>>> {
        if self.may_serve(hctx, run) { hctx.serve.try_enter() } else { None }
    }

    #[inline]
    pub(crate) fn may_serve(&self, hctx: &HardwareQueue<M>, run: &Runner<M>) -> bool {
        self.kind == QueueKind::AnyThread || hctx.is_owned_by(run.owner)
    }

    /// Dispatches and polls until there is nothing left to do, then leaves.
    pub(crate) fn serve<'a>(
        &'a self,
        index: u16,
        mut serving: Serving<'a, M, Serve<M>>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) {
        let hctx = &self.hctxs[usize::from(index)];
        let mut rounds = 0;
        loop {
            self.take_staged(index, &mut serving, run, stats);
            self.dispatch(index, &mut serving, run, stats);
            self.reap(index, &mut serving, run);
            let waiting = !serving.staged.is_empty() || !serving.requeued.is_empty();
            run.left_busy = waiting || serving.in_flight > 0;
            self.note_round(index, &mut serving, run);
            if run.batch.is_full() || (waiting && !run.batch.is_empty()) {
                self.complete(index, run, stats);
                continue;
            }
            let stays = serving.leave();
            let again = self.complete(index, run, stats);
            rounds += 1;
            serving = match stays {
                // Latecomers keep this thread here for a while, not for ever: they have marked
                // their work, and find the mark before they sleep.
                Some(serving) if rounds > SERVE_ROUNDS && serving.staged.is_empty() => {
                    drop(serving);
                    break;
                }
                // Nor do those who pass a wake on, while others wait for their turn: after that.
                Some(serving) if rounds > SERVE_ROUNDS && !run.woken.is_empty() => {
                    drop(serving);
                    run.woken.extend(self.this.upgrade().map(|disk| (disk, index)));
                    break;
                }
                Some(serving) => serving,
                // A flush that others joined is the only work that this thread itself leaves
                // behind.
                None if again => match hctx.serve.enter_or_flag() {
                    Some(serving) => serving,
                    None => {
                        run.left_busy = true;
                        break;
                    }
                },
                None => break,
            };
        }
        run.deliver();
        if !run.woken.is_empty() {
            // Of this queue, not of those that come now.
            let left_busy = run.left_busy;
            self.run_woken(run);
            run.left_busy |= left_busy;
        }
    }

    /// Takes the driver's completions.
    #[inline(always)]
    pub(crate) fn reap(
        &self,
        index: u16,
        serving: &mut Serving<'_, M, Serve<M>>,
        run: &mut Runner<M>,
    ) {
        let serve: &mut Serve<M> = serving;
        if serve.in_flight == 0 {
            return;
        }
        let Some(queue) = &mut serve.queue else { return };
        queue.poll(&mut run.batch);
        if run.trace.is_some() {
            self.trace_reaped(index, &**queue, run);
        }
        self.check_reaped(serve, run);
    }

    /// Checks that each completion names a request in flight.
    #[inline(always)]
    pub(crate) fn check_reaped(&self, serve: &mut Serve<M>, run: &mut Runner<M>) {
        for (tag, _) in run.batch.entries() {
            let issued = &mut serve.issued_ns[tag.0 as usize];
            assert!(*issued != 0, "{}: driver completed idle tag {}", self.config.name, tag.0);
            *issued = 0;
        }
        serve.in_flight -= run.batch.entries().len() as u32;
        run.take_wake();
    }

    /// Hands as much as possible to the driver.
    fn dispatch(
        &self,
        index: u16,
        serving: &mut Serving<'_, M, Serve<M>>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) {
        let serve: &mut Serve<M> = serving;
        let mut now_ns = core::mem::take(&mut serve.inserted_ns);
        if serve.quiesced || serve.queue.is_none() {
            return;
        }
        let mut sent = 0;
        if !serve.requeued.is_empty() {
            sent = self.dispatch_requeued(index, serve, run, stats, &mut now_ns);
        }
        if serve.requeued.is_empty() {
            sent += match self.config.stack {
                Stack::Mq | Stack::Raw => self.dispatch_staged(index, serve, run, stats, now_ns),
                Stack::Sq => self.dispatch_single(serve, run, stats),
            };
        }
        if sent > 0 {
            self.commit(serve, sent, stats);
        }
    }

    /// Requests that were given back as busy, or that got their tags while plugging, go first.
    #[cold]
    fn dispatch_requeued(
        &self,
        index: u16,
        serve: &mut Serve<M>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
        now_ns: &mut u64,
    ) -> u32 {
        let (hctx, mut sent) = (&self.hctxs[usize::from(index)], 0);
        while hctx.room(serve) > 0 {
            let Some(tag) = serve.requeued.pop_front() else { break };
            if *now_ns == 0 {
                *now_ns = M::now();
            }
            if !self.issue_tag(index, serve, (tag, *now_ns), run, stats) {
                break;
            }
            sent += 1;
        }
        sent
    }

    pub(crate) fn dispatch_staged(
        &self,
        index: u16,
        serve: &mut Serve<M>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
        mut now_ns: u64,
    ) -> u32 {
        let hctx = &self.hctxs[usize::from(index)];
        let tags = &*hctx.tags;
        let (mut batch, mut sent) = (TagBatch::EMPTY, 0);
        let plain = run.stamp == Stamp::Batch && !self.is_traced(run);
        while let Some(chain) = serve.staged.pop_front() {
            if chain.op() == Op::Flush {
                match self.dispatch_flush(index, serve, chain, run, stats) {
                    Ok(issued) => sent += issued,
                    Err(chain) => {
                        serve.staged.push_front(chain);
                        break;
                    }
                }
                if serve.requeued.is_empty() {
                    continue;
                }
                // The driver was too busy for the flush, so it is for what follows.
                break;
            }
            if batch.is_empty() {
                let want = (serve.staged.len() + 1).min(64).min(hctx.room(serve));
                let taken = match want {
                    0 => {
                        stats.tag_waits.add(1);
                        None
                    }
                    want => self.take_tags(index, &chain, run, stats, want),
                };
                let Some(taken) = taken else {
                    serve.staged.push_front(chain);
                    break;
                };
                batch = taken;
            }
            if now_ns == 0 || !plain {
                now_ns = M::now();
            }
            let tag = batch.next().expect("the batch is not empty");
            chain.touch();
            // SAFETY: the tag was taken above and is in nobody else's hands.
            let rq = unsafe { tags.request(tag) };
            rq.fill_waited(chain, index, self.flags_taken);
            if !self.issue(serve, rq, now_ns, run) {
                self.requeue(serve, rq, run, stats);
                break;
            }
            sent += 1;
        }
        tags.give_rest(batch);
        sent
    }

    /// Hands one filled request to the driver; false if the driver is busy.
    #[inline(always)]
    pub(crate) fn issue(
        &self,
        serve: &mut Serve<M>,
        rq: &mut Request<M>,
        now_ns: u64,
        run: &mut Runner<M>,
    ) -> bool {
        rq.d_ns = now_ns;
        let queue = serve.queue.as_mut().expect("dispatch checked that the queue is up");
        rq.outcome = queue.queue_rq(rq);
        if rq.outcome != Dispatch::Queued {
            return false;
        }
        serve.issued_ns[rq.tag().0 as usize] = now_ns | 1;
        serve.in_flight += 1;
        if self.is_traced(run) {
            if queue.has_trace_data() {
                self.trace_driver(&**queue, rq, (Moment::Issue, now_ns), run);
            }
            self.trace_request(Action::Issue, rq, now_ns, run);
        }
        true
    }

    /// Issues the filled request of a tag; one that the driver is too busy for is requeued.
    pub(crate) fn issue_tag(
        &self,
        index: u16,
        serve: &mut Serve<M>,
        (tag, now_ns): (Tag, u64),
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) -> bool {
        // SAFETY: the tag is filled and not handed over yet; this thread holds the serve lock.
        let rq = unsafe { self.hctxs[usize::from(index)].tags.request(tag) };
        let issued = self.issue(serve, rq, now_ns, run);
        if !issued {
            self.requeue(serve, rq, run, stats);
        }
        issued
    }

    /// The driver was busy: the request goes first next time.
    #[cold]
    pub(crate) fn requeue(
        &self,
        serve: &mut Serve<M>,
        rq: &mut Request<M>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) {
        rq.mark_inserted(rq.d_ns);
        serve.requeued.push_front(rq.tag());
        stats.requeues.add(1);
        self.trace_request(Action::Requeue, rq, rq.d_ns, run);
        if rq.outcome == Dispatch::HostBusy {
            run.wake_at(rq.d_ns + HOST_BUSY_RETRY_NS);
        }
    }

    /// One flush is issued at a time; what comes meanwhile joins the next. Gives the flush back if
    /// there is no tag for it.
    fn dispatch_flush(
        &self,
        index: u16,
        serve: &mut Serve<M>,
        chain: BioRef<M>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) -> Result<u32, BioRef<M>> {
        let tags = &self.hctxs[usize::from(index)].tags;
        let mut flush = self.flush.lock();
        if flush.issued {
            if flush.pending.is_empty() {
                flush.pending_hctx = index;
            }
            flush.pending.push_back(chain);
            return Ok(0);
        }
        let tag = match tags.take_reserved() {
            Some(tag) => tag,
            None => match self.take_tags(index, &chain, run, stats, 1) {
                Some(mut batch) => batch.next().expect("a batch of one"),
                None => return Err(chain),
            },
        };
        flush.issued = true;
        drop(flush);
        // SAFETY: the tag was taken above and is in nobody else's hands.
        unsafe { tags.request(tag) }.fill_waited(chain, index, self.flags_taken);
        Ok(u32::from(self.issue_tag(index, serve, (tag, M::now()), run, stats)))
    }
}
