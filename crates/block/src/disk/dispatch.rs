//! Runs a hardware queue: from software queues through tags to the driver, and back.
//!
//! Channels call `submit_batch` with a plug's contents, and `run_queue` to poll for completions and
//! to dispatch bios that wait. The thread that gets the queue's serve lock serves the queue: it
//! does all pending work. Threads that find the lock taken insert their bios into their software
//! queue and leave a flag, or ring the owner's doorbell. Tags are taken here, just before dispatch,
//! for as many bio chains (one request each) as are ready. Lock order: serve, then software queue
//! or request queue, then flush. Kernel counterpart: block/blk-mq.c, `blk_mq_dispatch_rq_list`,
//! `blk_mq_run_hw_queue`.

use millrace_machine::{Lock, Machine, Stage};

use crate::bio::Op;
use crate::chain::slot::{BioList, BioRef};
use crate::disk::handover::count_handed;
use crate::disk::issue::{IssueBatch, issue_list, trace_issue};
use crate::disk::queue_context::QueueContext;
use crate::disk::scheduled;
use crate::disk::{SubmitPath, direct};
use crate::queue::driver::QueueKind;
use crate::queue::serve::ServeGuard;
use crate::queue::{HctxState, LockGuard, SoftwareQueue};

/// Number of dispatch rounds after which a thread stops serving the work of other threads. Each
/// round takes bios from the software queues, dispatches them and polls the driver.
const SERVE_ROUNDS: u32 = 32;

impl<'a, M: Machine> QueueContext<'a, M> {
    /// Takes a batch of bio chains (bios merged into one future request) out of a plug and runs the
    /// hardware queue. If the disk is frozen, the batch stays in `list`.
    pub(crate) fn submit_batch(&mut self, ctx: u16, list: &mut BioList<M>) {
        let disk = self.disk;
        if let Some(baseline) = &disk.baseline {
            return baseline.stack.submit(self, ctx, list);
        }
        self.trace().begin_insert(list);
        let hctx = self.hctx;
        let entered = match self.may_serve() {
            true => hctx.serve.enter_within(disk.enter_wait_ns),
            false => None,
        };
        match entered {
            Some(serving) => submit_inside(self, ctx, serving, list),
            None => leave_to_others(self, ctx, list),
        }
    }

    /// Moves the serving thread's own batch to `staged`, the list of bio chains that wait for
    /// dispatch. A chain is bios merged into one future request. Bios that already wait in software
    /// queue `ctx` go first, unless the disk's batches bypass the software queues.
    #[inline(always)]
    fn stage(&mut self, ctx: u16, list: &mut BioList<M>, serve: &mut HctxState<M>) {
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
        let mut ctx = self.disk.queues.ctx(ctx).lock();
        if ctx.frozen {
            return;
        }
        serve.inserted_ns = M::now();
        list.mark_inserted(serve.inserted_ns);
        self.trace().record_inserts(list);
        if self.disk.worker_of(self.hctx.number).is_some() {
            drop(ctx);
            return self.stage_sorted(list, serve);
        }
        M::work(Stage::Insert, list.len());
        serve.staged.append(ctx.list(self.hctx.number));
        serve.staged.append(list);
    }

    /// Inserts a batch into the software queue, from which the serving thread takes it. The caller
    /// must then mark the queue as pending. Returns `None` if the queue is frozen.
    #[inline(never)]
    pub(crate) fn insert(
        &mut self,
        ctx: u16,
        list: &mut BioList<M>,
    ) -> Option<LockGuard<'a, M, SoftwareQueue<M>>> {
        list.mark_inserted(M::now());
        let mut queue = self.disk.queues.ctx(ctx).lock();
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

    /// Runs the queue, which has just received new work, or wakes the thread that must run it.
    pub(crate) fn kick(&mut self) {
        let hctx = self.hctx;
        if !self.may_serve() {
            hctx.ring();
        } else if let Some(serving) = hctx.serve.enter_or_flag() {
            self.serve(serving);
        }
    }

    /// Dispatches bios that wait in the hardware queue, and polls for completions. Returns false
    /// and does nothing if this thread may not run the queue or another thread serves it.
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

    /// Tries once more to take the serve lock, if the calling thread owns the hardware queue.
    /// Another thread holds the lock to inspect the queue, but must not serve it. So the owner
    /// first marks the queue as pending, which makes the owner serve the queue before it sleeps.
    #[cold]
    fn insist(&self) -> Option<ServeGuard<'a, M, HctxState<M>>> {
        if !self.may_serve() {
            return None;
        }
        self.hctx.mark_own();
        self.hctx.serve.enter_or_flag()
    }

    /// Dispatches and polls until there is nothing left to do, then releases the serve lock.
    pub(crate) fn serve(&mut self, mut serving: ServeGuard<'a, M, HctxState<M>>) {
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
                // After `SERVE_ROUNDS` dispatch rounds, the thread stops serving other threads.
                // Their work stays pending, and they check for pending work before they sleep.
                Some(serving) if rounds > SERVE_ROUNDS && serving.staged.is_empty() => {
                    drop(serving);
                    break;
                }
                // Queues that were woken for a tag run first, and this queue runs after them.
                // Otherwise new work in this queue could keep the woken queues waiting for ever.
                Some(serving) if rounds > SERVE_ROUNDS && !self.run.woken.is_empty() => {
                    drop(serving);
                    self.run.woken.extend(self.disk.this.upgrade().map(|disk| (disk, hctx.number)));
                    break;
                }
                Some(serving) => serving,
                // The serve lock was released, but then a flush completed (`again` is true). The
                // next flush now waits in this queue, so the thread takes the lock again.
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
            // `run_woken` overwrites `left_busy` with the state of other queues. If `left_busy` was
            // true for this queue, it must stay true.
            let left_busy = self.run.left_busy;
            self.run_woken();
            self.run.left_busy |= left_busy;
        }
    }

    #[inline(always)]
    pub(crate) fn reap(&mut self, serving: &mut ServeGuard<'_, M, HctxState<M>>) {
        let serve: &mut HctxState<M> = serving;
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

    /// Checks that each completion is of a request in flight, and reports it to the scheduler.
    #[inline(always)]
    pub(crate) fn check_reaped(&mut self, serve: &mut HctxState<M>) {
        serve.in_flight.take_back(&mut self.run.batch, &self.disk.config.name);
        if serve.scheduling.is_some() {
            scheduled::tell(self, serve);
        }
        self.run.take_wake();
    }

    fn dispatch(&mut self, serving: &mut ServeGuard<'_, M, HctxState<M>>) {
        let serve: &mut HctxState<M> = serving;
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

    /// Dispatches the requests in `requeued`, which already have tags, such as those that a busy
    /// driver returned. Returns the number of requests dispatched.
    #[cold]
    fn dispatch_requeued(&mut self, serve: &mut HctxState<M>, now_ns: &mut u64) -> u32 {
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

    /// Hands the bio chains (bios merged into one future request) in `staged` to the driver, in
    /// order. A flush is handed over after all chains before it. Returns the number of requests.
    pub(crate) fn dispatch_staged(&mut self, serve: &mut HctxState<M>, now_ns: u64) -> u32 {
        let (mut list, mut sent) = (serve.staged.take(), 0);
        loop {
            let batch = IssueBatch { list: &mut list, now_ns, may_go: |_: &_| true };
            sent += issue_list::<M, true>(self, serve, batch, trace_issue);
            if !serve.requeued.is_empty() || list.first().is_none_or(|next| next.op() != Op::Flush)
            {
                break;
            }
            let Some(flush) = list.pop_front() else { break };
            match self.dispatch_flush(serve, flush) {
                Ok(issued) => sent += issued,
                Err(flush) => {
                    list.push_front(flush);
                    break;
                }
            }
            // A driver too busy for the flush is too busy for the bios behind it.
            if !serve.requeued.is_empty() {
                break;
            }
        }
        serve.staged = list;
        sent
    }

    /// Issues a flush. While another flush is in flight, adds the flush to `pending`; all flushes
    /// that wait there later become one request. Returns the flush if no tag is free.
    fn dispatch_flush(
        &mut self,
        serve: &mut HctxState<M>,
        chain: BioRef<M>,
    ) -> Result<u32, BioRef<M>> {
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
}

/// Adds a batch to the queue and serves the queue. The calling thread holds the queue's serve lock.
#[inline(always)]
pub(crate) fn submit_inside<'a, M: Machine>(
    context: &mut QueueContext<'a, M>,
    ctx: u16,
    mut serving: ServeGuard<'a, M, HctxState<M>>,
    list: &mut BioList<M>,
) {
    if direct::is_plain(context, &mut serving, list) {
        return direct::issue_batch(context, serving, list);
    }
    context.stage(ctx, list, &mut serving);
    context.serve(serving);
}

/// Puts a batch into its software queue, for the thread that serves the hardware queue, and
/// notifies that thread. If no thread serves the queue any more, this thread does.
#[inline(always)]
pub(crate) fn leave_to_others<M: Machine>(
    context: &mut QueueContext<'_, M>,
    ctx: u16,
    list: &mut BioList<M>,
) {
    let Some(queue) = context.insert(ctx, list) else { return };
    drop(queue);
    context.hctx.pending.mark(ctx.into());
    context.kick();
}
