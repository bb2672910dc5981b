//! Completion: from a tag to its request to its bios to the channels that submitted them.
//!
//! Called by dispatch.rs with the batch that a driver named, outside the serve lock unless more is
//! to be dispatched. No search: the tag is the index of the request (\[MQ\] point 4). Also the
//! clock's side of it: requests that no drive answers. Lock order: as dispatch.rs; the abandoned
//! list last. Kernel counterpart: `blk_mq_end_request_batch`, `blk_mq_timeout_work`.
#![allow(unsafe_code)]

use alloc::vec::Vec;

use millrace_machine::plant::{Plant, planted};
use millrace_machine::{Counter, Lock, Machine, Stage};

use crate::account::failures::Failure;
use crate::account::{DiskStats, Run, Times, Whose};
use crate::bio::Op;
use crate::bio::status::Status;
use crate::chain::home::{Home, HomeRef};
use crate::chain::merge;
use crate::chain::slot::{BioRef, Slot, Waited};
use crate::disk::runner::{Runner, Stamp};
use crate::disk::{AbandonedRequest, Disk, Stack};
use crate::queue::Serve;
use crate::queue::driver::{DriverQueue, Expired, Moment, QueueKind};
use crate::queue::request::{Request, State, Tag};
use crate::queue::tag::TagBatch;
use crate::trace::Action;

impl<M: Machine> Disk<M> {
    /// Ends all requests of the runner's batch and empties it; true if that put new work into the
    /// queue (a flush that others joined).
    pub(crate) fn complete(&self, index: u16, run: &mut Runner<M>, stats: &DiskStats<M>) -> bool {
        let count = run.batch.entries().len();
        if count == 0 {
            return false;
        }
        if self.config.stack != Stack::Sq {
            M::work(Stage::Complete, count as u32);
        }
        let tags = &self.hctxs[usize::from(index)].tags;
        let (mut given, mut equal) = (TagBatch::EMPTY, Run::EMPTY);
        let (mut c_ns, mut again) = (M::now(), false);
        for entry in 0..count {
            let (tag, status) = run.batch.entries()[entry];
            if run.stamp == Stamp::Io {
                c_ns = M::now();
            }
            // SAFETY: the driver named it, and `reap` checked that it was in flight here.
            let rq = unsafe { tags.request(tag) };
            again |= self.end_request(index, rq, (status, c_ns), run, stats, &mut equal);
            match self.config.stack {
                Stack::Sq => self.single_queue_done(tags, rq),
                Stack::Mq | Stack::Raw => tags.give(&mut given, rq),
            }
        }
        run.accounts.c_ns = c_ns;
        stats.record(&mut equal, &mut run.accounts.tenants);
        tags.give_rest(given);
        run.batch.clear();
        self.wake_waiter(&self.hctxs[usize::from(index)], run);
        again
    }

    /// What the driver has to say of what it has just named.
    #[cold]
    pub(crate) fn trace_reaped(&self, index: u16, queue: &dyn DriverQueue<M>, run: &mut Runner<M>) {
        if !queue.has_trace_data() {
            return;
        }
        let (now_ns, tags) = (M::now(), &self.hctxs[usize::from(index)].tags);
        for entry in 0..run.batch.entries().len() {
            let (tag, _) = run.batch.entries()[entry];
            // SAFETY: the driver has just given it back, and this thread holds the serve lock.
            let rq = unsafe { tags.request(tag) };
            self.trace_driver(queue, rq, (Moment::Complete, now_ns), run);
        }
    }

    /// Ends one request, but for its tag; true if that put new work into the queue.
    pub(crate) fn end_request(
        &self,
        index: u16,
        rq: &mut Request<M>,
        (status, c_ns): (Status, u64),
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
        equal: &mut Run,
    ) -> bool {
        if !rq.is_in_flight() {
            self.confirm_abandoned(index, rq);
            return false;
        }
        if run.trace.is_some() {
            self.record_request(Action::Complete, rq, (c_ns, status), run);
        }
        let (op, d_ns, mut chain) = (rq.op(), rq.d_ns, rq.empty());
        if planted(Plant::FlushJoinedTooLate) && matches!(op, Op::Flush) {
            let mut late = self.flush.lock().pending.take();
            core::iter::from_fn(|| late.pop_front()).for_each(|bio| merge::join(&mut chain, bio));
        }
        self.end_bios(chain, status, (d_ns, c_ns), run, stats, equal);
        op == Op::Flush && self.flush_done(index, run, stats)
    }

    /// Gives each bio of a chain its status and sends it home.
    #[inline(always)]
    fn end_bios(
        &self,
        chain: BioRef<M>,
        status: Status,
        (d_ns, c_ns): (u64, u64),
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
        equal: &mut Run,
    ) {
        let times = Times { q_ns: chain.q_ns, waits: chain.waits(), d_ns, c_ns };
        let home = run.home();
        let (op, whose) = (chain.op(), Whose::of(&chain, home));
        stats.begin(equal, (op, whose), times, &mut run.accounts.tenants);
        let mut next = Some(chain);
        while let Some(mut bio) = next {
            next = bio.chained.take();
            bio.touch();
            bio.status = status;
            bio.waited = Waited::NOT;
            let whose = Whose::of(&bio, home);
            stats.count(equal, (bio.q_ns, whose), bio.bio.nr_sectors, &mut run.accounts.tenants);
            if !status.is_ok() {
                let (op, sector, nr_sectors) = (bio.bio.op, bio.bio.sector, bio.bio.nr_sectors);
                self.note_failure(Failure { op, sector, nr_sectors, status });
                stats.count_error(op);
                if whose.is_counted() {
                    run.accounts.tenants.count_error(&bio);
                }
            }
            if self.config.trace.is_some() {
                self.tell(Action::Complete, &bio, c_ns);
            }
            run.finish(bio);
        }
    }

    /// The flush in flight is done: those that joined meanwhile become the next one.
    /// Also after a failure: whether an earlier loss concerns them, the driver knows.
    fn flush_done(&self, index: u16, run: &mut Runner<M>, stats: &DiskStats<M>) -> bool {
        let (mut pending, target) = {
            let mut flush = self.flush.lock();
            flush.issued = false;
            flush.moves += u64::from(!flush.pending.is_empty());
            (flush.pending.take(), flush.pending_hctx)
        };
        let Some(mut first) = pending.pop_front() else { return false };
        while let Some(other) = pending.pop_front() {
            self.trace_slot(Action::BackMerge, &other, run);
            stats.count_merge(Op::Flush);
            merge::join(&mut first, other);
        }
        // Admitted before: a freeze does not stop it. Which software queue does not matter, but it
        // goes through the hardware queue of its submitter, who is there to poll for it.
        let (ctx, bell) = (self.a_ctx_of(target), Home::bell_of(&first));
        self.count_handed(target, 1);
        self.ctxs[ctx].ctx.lock().list(target).push_back(first);
        self.flush.lock().moves += 1;
        self.hctxs[usize::from(target)].mark_pending(ctx);
        if target != index {
            self.hctxs[usize::from(target)].ring();
            bell.ring();
        }
        target == index
    }

    /// Looks for requests that this queue handed over before `now_ns` less the timeout.
    pub(crate) fn check_timeouts(
        &self,
        index: u16,
        now_ns: u64,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) {
        let timeout_ns = self.config.timeout_ns;
        let hctx = &self.hctxs[usize::from(index)];
        if timeout_ns == 0 || !self.may_serve(hctx, run) {
            return;
        }
        let Some(mut serving) = hctx.serve.try_enter() else { return };
        for tag in 0..serving.issued_ns.len() {
            let issued = serving.issued_ns[tag];
            if issued != 0 && now_ns.saturating_sub(issued) >= timeout_ns {
                self.expire(index, &mut serving, Tag(tag as u32), now_ns, run, stats);
            }
        }
        // Goes on with what an expired flush held up, or a latecomer left.
        self.serve(index, serving, run, stats);
    }

    fn expire(
        &self,
        index: u16,
        serve: &mut Serve<M>,
        tag: Tag,
        now_ns: u64,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) {
        // SAFETY: in flight in this queue, whose serve lock is held; the driver only reads it.
        let rq = unsafe { self.hctxs[usize::from(index)].tags.request(tag) };
        if rq.state == State::Abandoned {
            return;
        }
        stats.timeouts.add(1);
        serve.issued_ns[tag.0 as usize] = now_ns | 1;
        let Some(queue) = &mut serve.queue else { return };
        if queue.timeout(tag) == Expired::Extend {
            return;
        }
        if has_foreign_memory(rq) {
            // Whoever owns the memory decides what becomes of the request; the drive is at fault.
            if rq.state != State::Overdue {
                rq.state = State::Overdue;
                let (op, sector, nr_sectors) = (rq.op(), rq.sector(), rq.nr_sectors());
                self.note_failure(Failure { op, sector, nr_sectors, status: Status::TimedOut });
            }
            return;
        }
        if run.trace.is_some() {
            self.record_request(Action::Complete, rq, (now_ns, Status::TimedOut), run);
        }
        let (op, d_ns, chain) = (rq.op(), rq.d_ns, rq.empty());
        rq.state = State::Abandoned;
        let homes = homes_of(&chain);
        self.abandoned.lock().push(AbandonedRequest { hctx: index, tag, homes });
        let mut equal = Run::EMPTY;
        let stamps = (d_ns, now_ns);
        run.accounts.c_ns = now_ns;
        self.end_bios(chain, Status::TimedOut, stamps, run, stats, &mut equal);
        stats.record(&mut equal, &mut run.accounts.tenants);
        if op == Op::Flush {
            self.flush_done(index, run, stats);
        }
    }

    /// A drive answered a request that was given up on: its memory is no longer written.
    #[cold]
    fn confirm_abandoned(&self, index: u16, rq: &mut Request<M>) {
        assert!(rq.state == State::Abandoned, "tag {} completed twice", rq.tag().0);
        rq.state = State::Idle;
        let mut list = self.abandoned.lock();
        let place = list.iter().position(|a| a.tag == rq.tag() && a.hctx == index);
        let entry = list.swap_remove(place.expect("abandoned requests are on the list"));
        drop(entry.homes);
    }

    /// Whether a queue that this thread may run has been given work that nobody took yet.
    pub(crate) fn has_pending_for(&self, index: u16, owner: u64) -> bool {
        let hctx = &self.hctxs[usize::from(index)];
        (self.kind() == QueueKind::AnyThread || hctx.is_owned_by(owner)) && hctx.has_pending()
    }

    /// Whether a queue that belongs to this thread has tags in use, as far as its set tells.
    pub(crate) fn owner_has_tags(&self, index: u16, owner: u64) -> bool {
        let hctx = &self.hctxs[usize::from(index)];
        hctx.is_owned_by(owner) && hctx.tags.in_use() > 0
    }
}

/// Whether the drive might write memory that cannot be put into quarantine here.
fn has_foreign_memory<M: Machine>(rq: &Request<M>) -> bool {
    let mut next = rq.chain.as_deref();
    while let Some(bio) = next {
        if bio.foreign && bio.bio.op.has_data() {
            return true;
        }
        next = bio.chained.as_deref();
    }
    false
}

fn homes_of<M: Machine>(chain: &BioRef<M>) -> Vec<HomeRef<M>> {
    let mut homes = Vec::new();
    let mut next: Option<&Slot<M>> = Some(chain);
    while let Some(bio) = next {
        homes.push(HomeRef::new(bio.home));
        next = bio.chained.as_deref();
    }
    homes
}
