//! Running a hardware queue: from software queues through tags to the driver, and back.
//!
//! Called by channels: `submit_batch` with what a plug held, `run_queue` to poll or to continue.
//! Whoever enters the serve lock does all that is there to do; latecomers insert into their
//! software queue and leave a flag, or ring the owner's bell. Tags are taken here, just before
//! dispatch, for as many as are in hand. Lock order: serve, then software queue or request queue,
//! then flush. Kernel counterpart: block/blk-mq.c, `blk_mq_dispatch_rq_list`,
//! `blk_mq_run_hw_queue`.

use millrace_machine::{Lock, Machine, Stage};

use crate::account::disk_counter::DiskCounter;
use crate::bio::Op;
use crate::chain::slot::{BioList, BioRef};
use crate::disk::handover::count_handed;
use crate::disk::runner::Stamp;
use crate::disk::scheduled;
use crate::disk::visit::Visit;
use crate::disk::{SubmitPath, direct};
use crate::queue::driver::{Moment, QueueKind};
use crate::queue::request::{Dispatch, RequestRef};
use crate::queue::serve::ServeGuard;
use crate::queue::tag::TagBatch;
use crate::queue::{Ctx, Serve};
use crate::trace::Action;

/// The lock of a software queue, held.
pub(crate) type CtxGuard<'a, M> = <<M as Machine>::Lock<Ctx<M>> as Lock<Ctx<M>>>::Guard<'a>;

/// How often a server goes round again for latecomers.
const SERVE_ROUNDS: u32 = 32;
/// How long to wait after `HostBusy`.
const HOST_BUSY_RETRY_NS: u64 = 1_000_000;

impl<'a, M: Machine> Visit<'a, M> {
    /// Takes a batch of chains from a plug into the layer and runs the queue; a frozen disk leaves
    /// the batch in the list.
    pub(crate) fn submit_batch(&mut self, ctx: u16, list: &mut BioList<M>) {
        let disk = self.disk;
        if let Some(baseline) = &disk.baseline {
            return baseline.stack.submit(self, ctx, list);
        }
        self.trace().begin_insert(list);
        let hctx = self.hctx;
        let entered = match self.may_serve() {
            true => hctx.serve.enter_within(disk.config.entrance.inside.wait_ns()),
            false => None,
        };
        match entered {
            Some(serving) => submit_inside(self, ctx, serving, list),
            None => leave_to_others(self, ctx, list),
        }
    }

    /// A server's own batch: through the software queue, and all that is there with it. A software
    /// queue that no other hardware queue takes from is private to whoever serves, and passed by.
    #[inline(always)]
    fn stage(&mut self, ctx: u16, list: &mut BioList<M>, serve: &mut Serve<M>) {
        if self.disk.queues.path() != SubmitPath::Queues {
            self.work(Stage::Insert, list.len());
            if !serve.frozen {
                serve.inserted_ns = M::now();
                list.mark_inserted(serve.inserted_ns);
                self.trace().record_inserts(list);
                serve.staged.append(list);
            }
            return;
        }
        let mut ctx = self.disk.queues.ctxs()[usize::from(ctx)].ctx.lock();
        if ctx.frozen {
            return;
        }
        serve.inserted_ns = M::now();
        list.mark_inserted(serve.inserted_ns);
        self.trace().record_inserts(list);
        if self.disk.is_workers(self.hctx.number) {
            drop(ctx);
            return self.stage_sorted(list, serve);
        }
        M::work(Stage::Insert, list.len());
        serve.staged.append(ctx.list(self.hctx.number));
        serve.staged.append(list);
    }

    /// Inserts into the software queue for whoever serves, to be marked as pending; none if that is
    /// frozen.
    #[inline(never)]
    pub(crate) fn insert(&mut self, ctx: u16, list: &mut BioList<M>) -> Option<CtxGuard<'a, M>> {
        list.mark_inserted(M::now());
        let mut queue = self.disk.queues.ctxs()[usize::from(ctx)].ctx.lock();
        if queue.frozen {
            drop(queue);
            list.unmark_inserted();
            return None;
        }
        self.trace().record_inserts(list);
        M::work(Stage::Insert, list.len());
        count_handed(self.disk, self.hctx.number, list.len());
        queue.list(self.hctx.number).append(list);
        Some(queue)
    }

    /// Makes sure that somebody runs the queue, which has just been given work.
    pub(crate) fn kick(&mut self) {
        let hctx = self.hctx;
        if !self.may_serve() {
            hctx.ring();
        } else if let Some(serving) = hctx.serve.enter_or_flag() {
            self.serve(serving);
        }
    }

    /// Polls the queue and continues what waits in it, if this thread may and nobody else does;
    /// whether it did.
    pub(crate) fn run_queue(&mut self) -> bool {
        let hctx = self.hctx;
        let entered = match self.may_serve() {
            true => hctx.serve.try_enter(),
            false => None,
        };
        let entered = match entered {
            None if self.disk.kind == QueueKind::OwnerOnly => self.insist(),
            entered => entered,
        };
        let Some(serving) = entered else { return false };
        self.serve(serving);
        true
    }

    /// An owner found somebody looking at its queue: nobody else polls it, so it comes back. The
    /// mark keeps it from sleeping.
    #[cold]
    fn insist(&self) -> Option<ServeGuard<'a, M, Serve<M>>> {
        if !self.may_serve() {
            return None;
        }
        self.hctx.mark_own();
        self.hctx.serve.enter_or_flag()
    }

    /// Dispatches and polls until there is nothing left to do, then leaves.
    pub(crate) fn serve(&mut self, mut serving: ServeGuard<'a, M, Serve<M>>) {
        let hctx = self.hctx;
        let mut rounds = 0;
        loop {
            self.take_staged(&mut serving);
            self.dispatch(&mut serving);
            self.reap(&mut serving);
            let waiting = serving.has_waiting();
            self.run.left_busy = waiting || serving.in_flight.count() > 0;
            self.note_round(&mut serving);
            if self.run.batch.is_full() || (waiting && !self.run.batch.is_empty()) {
                self.complete();
                continue;
            }
            let stays = serving.leave();
            let again = self.complete();
            rounds += 1;
            serving = match stays {
                // Latecomers keep this thread here for a while, not for ever: they have marked
                // their work, and find the mark before they sleep.
                Some(serving) if rounds > SERVE_ROUNDS && serving.staged.is_empty() => {
                    drop(serving);
                    break;
                }
                // Nor do those who pass a wake on, while others wait for their turn: after that.
                Some(serving) if rounds > SERVE_ROUNDS && !self.run.woken.is_empty() => {
                    drop(serving);
                    self.run.woken.extend(self.disk.this.upgrade().map(|disk| (disk, hctx.number)));
                    break;
                }
                Some(serving) => serving,
                // A flush that others joined is the only work that this thread itself leaves
                // behind.
                None if again => match hctx.serve.enter_or_flag() {
                    Some(serving) => serving,
                    None => {
                        self.run.left_busy = true;
                        break;
                    }
                },
                None => break,
            };
        }
        self.run.deliver();
        if !self.run.woken.is_empty() {
            // Of this queue, not of those that come now.
            let left_busy = self.run.left_busy;
            self.run_woken();
            self.run.left_busy |= left_busy;
        }
    }

    /// Takes the driver's completions.
    #[inline(always)]
    pub(crate) fn reap(&mut self, serving: &mut ServeGuard<'_, M, Serve<M>>) {
        let serve: &mut Serve<M> = serving;
        let driver = &self.disk.driver;
        if serve.in_flight.count() == 0 && !driver.is_stacked() && !driver.is_polled_idle() {
            return;
        }
        let Some(queue) = &mut serve.queue else { return };
        queue.poll(&mut self.run.batch);
        if self.run.trace.is_some() {
            let tags = &*self.hctx.tags;
            self.trace().reaped(&**queue, tags, &mut serve.in_flight);
        }
        self.check_reaped(serve);
    }

    /// Checks that each completion names a request in flight.
    #[inline(always)]
    pub(crate) fn check_reaped(&mut self, serve: &mut Serve<M>) {
        serve.in_flight.take_back(&mut self.run.batch, &self.disk.config.name);
        if serve.scheduling.is_some() {
            scheduled::tell(self, serve);
        }
        self.run.take_wake();
    }

    /// Hands as much as possible to the driver.
    fn dispatch(&mut self, serving: &mut ServeGuard<'_, M, Serve<M>>) {
        let serve: &mut Serve<M> = serving;
        let mut now_ns = core::mem::take(&mut serve.inserted_ns);
        if serve.quiesced || serve.queue.is_none() {
            return;
        }
        let mut sent = 0;
        if !serve.requeued.is_empty() {
            sent = self.dispatch_requeued(serve, &mut now_ns);
        }
        if serve.requeued.is_empty() {
            let disk = self.disk;
            sent += match &disk.baseline {
                _ if serve.scheduling.is_some() => scheduled::dispatch(self, serve, now_ns),
                None => self.dispatch_staged(serve, now_ns),
                Some(baseline) => baseline.stack.dispatch(self, serve, now_ns),
            };
        }
        if sent > 0 {
            self.commit(serve, sent);
        }
    }

    /// Requests that were given back as busy, or that got their tags while plugging, go first.
    #[cold]
    fn dispatch_requeued(&mut self, serve: &mut Serve<M>, now_ns: &mut u64) -> u32 {
        let (hctx, mut sent) = (self.hctx, 0);
        while hctx.room(serve) > 0 {
            let Some(rq) = serve.requeued.pop_front() else { break };
            if *now_ns == 0 {
                *now_ns = M::now();
            }
            rq.touch();
            if !self.issue(serve, rq, *now_ns) {
                break;
            }
            sent += 1;
        }
        sent
    }

    pub(crate) fn dispatch_staged(&mut self, serve: &mut Serve<M>, mut now_ns: u64) -> u32 {
        let hctx = self.hctx;
        let tags = &*hctx.tags;
        let (mut batch, mut sent) = (TagBatch::EMPTY, 0);
        let plain = self.run.stamp == Stamp::Batch && !self.is_traced();
        while let Some(chain) = serve.staged.pop_front() {
            if chain.op() == Op::Flush {
                match self.dispatch_flush(serve, chain) {
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
                        self.stats.add(DiskCounter::TagWaits, 1);
                        None
                    }
                    want => self.take_tags(&chain, want),
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
            let mut rq = tags.next(&mut batch).expect("the batch is not empty");
            chain.touch();
            rq.touch();
            rq.fill_waited(chain, self.hctx.number, self.disk.flags_taken);
            if !self.issue(serve, rq, now_ns) {
                break;
            }
            sent += 1;
        }
        tags.give_rest(batch);
        sent
    }

    /// Hands one filled request to the driver; false if the driver is busy: the request goes first
    /// next time.
    #[inline(always)]
    pub(crate) fn issue(
        &mut self,
        serve: &mut Serve<M>,
        mut rq: RequestRef<M>,
        now_ns: u64,
    ) -> bool {
        rq.d_ns = now_ns;
        let queue = serve.queue.as_mut().expect("dispatch checked that the queue is up");
        rq.outcome = queue.queue_rq(&rq);
        if rq.outcome != Dispatch::Queued {
            self.requeue(serve, rq);
            return false;
        }
        if self.is_traced() {
            if queue.has_trace_data() {
                self.trace().driver(&**queue, &rq, (Moment::Issue, now_ns));
            }
            self.trace().request(Action::Issue, &rq, now_ns);
        }
        serve.in_flight.lend(rq, now_ns);
        true
    }

    /// The driver was busy: the request goes first next time.
    #[cold]
    pub(crate) fn requeue(&mut self, serve: &mut Serve<M>, mut rq: RequestRef<M>) {
        let d_ns = rq.d_ns;
        rq.mark_inserted(d_ns);
        self.stats.add(DiskCounter::Requeues, 1);
        self.trace().request(Action::Requeue, &rq, d_ns);
        if rq.outcome == Dispatch::HostBusy {
            self.run.wake_at(d_ns + HOST_BUSY_RETRY_NS);
        }
        serve.requeued.push_front(rq);
    }

    /// One flush is issued at a time; what comes meanwhile joins the next. Gives the flush back if
    /// there is no tag for it.
    fn dispatch_flush(&mut self, serve: &mut Serve<M>, chain: BioRef<M>) -> Result<u32, BioRef<M>> {
        let tags = &self.hctx.tags;
        let mut flush = self.disk.flush.lock();
        if flush.issued {
            if flush.pending.is_empty() {
                flush.pending_hctx = self.hctx.number;
            }
            flush.pending.push_back(chain);
            return Ok(0);
        }
        let mut rq = match tags.take_reserved() {
            Some(rq) => rq,
            None => match self.take_tags(&chain, 1) {
                Some(mut batch) => tags.next(&mut batch).expect("a batch of one"),
                None => return Err(chain),
            },
        };
        flush.issued = true;
        drop(flush);
        rq.touch();
        rq.fill_waited(chain, self.hctx.number, self.disk.flags_taken);
        Ok(u32::from(self.issue(serve, rq, M::now())))
    }

    /// Starts what was handed to the driver.
    #[inline(always)]
    pub(crate) fn commit(&mut self, serve: &mut Serve<M>, sent: u32) {
        self.charge(sent);
        if let Some(queue) = &mut serve.queue {
            queue.commit_rqs();
        }
    }

    /// Counts requests handed to the driver, and charges for them.
    #[inline(always)]
    pub(crate) fn charge(&self, sent: u32) {
        self.work(Stage::Dispatch, sent);
        M::work(Stage::Driver, sent);
        self.stats.count_batch(sent);
    }
}

/// Takes a batch into the queue that the thread is inside, and serves.
#[inline(always)]
pub(crate) fn submit_inside<'a, M: Machine>(
    visit: &mut Visit<'a, M>,
    ctx: u16,
    mut serving: ServeGuard<'a, M, Serve<M>>,
    list: &mut BioList<M>,
) {
    if direct::is_plain(visit, &mut serving, list) {
        return direct::issue_batch(visit, serving, list);
    }
    visit.stage(ctx, list, &mut serving);
    visit.serve(serving);
}

/// Leaves a batch in its software queue, and makes sure that somebody takes it from there.
#[inline(always)]
pub(crate) fn leave_to_others<M: Machine>(
    visit: &mut Visit<'_, M>,
    ctx: u16,
    list: &mut BioList<M>,
) {
    let Some(queue) = visit.insert(ctx, list) else { return };
    drop(queue);
    visit.hctx.mark_pending(ctx.into());
    visit.kick();
}
