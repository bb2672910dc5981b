//! `CacheQueue`: one queue of a cache, on the I/O thread that owns it.
//!
//! Hits are answered at once, with a shard locked. A request that must wait becomes a `CacheJob`
//! (read.rs, write.rs, sync.rs). A job that waits for another thread is retried when the queue is
//! woken (signal.rs). The block layer calls the queue on one thread at a time, the holder of the
//! queue's serve lock.
#![allow(unsafe_code)]

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use millrace_block::{
    Bio, Channel, CompletionBatch, Dispatch, DriverQueue, Expired, IoThread, Op, Reject, Rejected,
    Request, Status, Tag,
};
use millrace_machine::{Machine, Order, Word};
use slab::Slab;

use crate::cache::Cache;
use crate::cache::signal::QueueSignal;
use crate::front::jobs::{CacheJob, JobStep, VolumeRead};
use crate::front::write::release_claims;
use crate::memory::cursor::span_of;
use crate::read::hits::{CopyOutcome, PendingHits};
use crate::read::streams::StreamDetector;
use crate::write_back::write_queues::FlusherConfig;
use crate::write_back::writeout::Writeout;

/// Number of polls of the queue for each poll of the volume below, while all requests are cache
/// hits.
const POLLS_PER_LOOK: u32 = 16;
/// Kinds of bios that the queue submits to the volume below. The low `KIND_BITS` of a bio's
/// `user_data` hold the kind.
const FILL: u64 = 0;
const WRITE: u64 = 1;
const LAST: u64 = 2;
const KIND_BITS: u32 = 2;

pub(crate) struct ReadState<M: Machine> {
    pub(crate) streams: StreamDetector,
    hits: PendingHits<M>,
}

pub(crate) struct CacheQueue<M: Machine> {
    pub(crate) cache: Arc<Cache<M>>,
    below: Option<Channel<M>>,
    thread: IoThread<M>,
    pub(crate) signal: Arc<QueueSignal<M>>,
    pub(crate) jobs: Slab<CacheJob<M>>,
    pub(crate) fills: Slab<VolumeRead>,
    pub(crate) writeout: Writeout,
    pub(crate) reads: ReadState<M>,
    unsent: VecDeque<Bio>,
    blocked: Vec<usize>,
    /// Writes whose completion is delayed to slow the writer down, each with the time at which the
    /// completion is due.
    held: VecDeque<(u64, Tag)>,
    done: VecDeque<(Tag, Status)>,
    /// Bios that the channel to the volume below has completed or refused, and that are not
    /// processed yet.
    ended: Vec<(u64, Status)>,
    was_submitted: bool,
    polls: u32,
}

impl<M: Machine> CacheQueue<M> {
    /// Creates a queue. `below` is the thread's channel to the volume; `config` says how the queue
    /// writes dirty pages.
    pub(crate) fn new(
        cache: &Arc<Cache<M>>,
        (below, config): (Channel<M>, FlusherConfig),
        thread: &IoThread<M>,
    ) -> Self {
        let signal = QueueSignal::new(&thread.bell);
        cache.signals.join(&signal);
        CacheQueue {
            below: Some(below),
            thread: thread.clone(),
            signal,
            jobs: Slab::new(),
            fills: Slab::new(),
            writeout: Writeout::new(cache, config),
            reads: ReadState {
                streams: StreamDetector::new(cache.page, cache.config.read_ahead_bytes),
                hits: PendingHits::new(),
            },
            unsent: VecDeque::new(),
            blocked: Vec::new(),
            held: VecDeque::new(),
            done: VecDeque::new(),
            ended: Vec::new(),
            was_submitted: false,
            polls: 0,
            cache: Arc::clone(cache),
        }
    }

    fn below(&mut self) -> &mut Channel<M> {
        self.below.as_mut().expect("the channel exists until the queue is dropped")
    }

    /// Submits a bio to the volume below: a read of pages that are not in memory, or the flush,
    /// discard or write of zeroes that completes a client's request.
    fn send(&mut self, bio: Bio) {
        self.was_submitted = true;
        let number = bio.user_data();
        match self.below().submit(bio) {
            Ok(()) => {}
            Err(Rejected { bio, reason: Reject::Full }) => self.unsent.push_back(bio),
            Err(Rejected { reason: Reject::Invalid(status), .. }) => {
                self.ended.push((number, status));
            }
        }
    }

    pub(crate) fn start_fill(&mut self, fill: VolumeRead, sector: u64) {
        if let Some(job) = fill.job {
            self.jobs[job].fills += 1;
        }
        let at = self.fills.insert(fill);
        let list = &raw const self.fills[at].segments[..];
        // SAFETY: until the read has ended, its slot keeps the segment list and owns the memory.
        let bio = unsafe { Bio::foreign_vectored(Op::Read, sector, list) };
        self.send(bio.with_user_data((at as u64) << KIND_BITS | FILL));
    }

    pub(crate) fn start_last(&mut self, job: usize, bio: Bio) {
        self.jobs[job].step = JobStep::Below;
        self.send(bio.with_user_data((job as u64) << KIND_BITS | LAST));
    }

    fn start_job(&mut self, rq: &Request<M>, step: JobStep, todo: Option<core::ops::Range<u64>>) {
        let mut job = CacheJob::new(rq, step, self.cache.write_errors());
        job.todo.extend(todo);
        let at = self.jobs.insert(job);
        self.advance(at);
    }

    pub(crate) fn advance(&mut self, at: usize) {
        match self.jobs[at].step {
            JobStep::Read => self.advance_read(at),
            JobStep::Write => self.advance_write(at),
            JobStep::SyncAll { epoch } => self.advance_sync_all(at, epoch),
            JobStep::SyncRange { epoch } => self.advance_sync_range(at, epoch),
            JobStep::Clear => self.advance_clear(at),
            JobStep::Below => {}
        }
    }

    /// Adds a job to the list of jobs that are retried when another thread wakes the queue.
    pub(crate) fn block(&mut self, at: usize) {
        if !core::mem::replace(&mut self.jobs[at].is_blocked, true) {
            self.blocked.push(at);
        }
    }

    pub(crate) fn end_job(&mut self, at: usize, status: Status) {
        let job = self.jobs.remove(at);
        release_claims(&self.cache, &job);
        self.done.push_back((job.tag, status));
    }

    /// Completes a write whose data are in the cache, with a delay if much of the cache is dirty.
    pub(crate) fn end_write(&mut self, rq: &Request<M>) {
        let cache = &self.cache;
        let (dirty, most) = (cache.live_pages(0), cache.dirty_max_pages());
        match cache.pace.due_ns(rq.len_bytes().into(), dirty, most) {
            None => self.done.push_back((rq.tag(), Status::Ok)),
            Some(due_ns) => {
                // Relaxed: these are statistics; no other memory access depends on them.
                cache.counts.throttled.fetch_add(1, Order::Relaxed);
                self.held.push_back((due_ns, rq.tag()));
            }
        }
    }

    /// Returns true if this poll of the queue must also poll the volume below. While requests or
    /// I/Os are in flight, every poll must. Otherwise, every 16th poll must (`POLLS_PER_LOOK`) if
    /// the queue has work.
    fn is_turn_due(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.has_under_way() || (self.polls.is_multiple_of(POLLS_PER_LOOK) && self.has_work())
    }

    fn has_under_way(&self) -> bool {
        !self.fills.is_empty()
            || !self.jobs.is_empty()
            || !self.unsent.is_empty()
            || !self.held.is_empty()
            || self.writeout.pages > 0
    }

    /// Polls the volume below, processes its completions, and advances the client requests (jobs)
    /// that waited for these completions.
    fn turn(&mut self) {
        let (mut ended, below) = (core::mem::take(&mut self.ended), self.below());
        below.poll(|done| ended.push((done.user_data, done.status)));
        below.tick();
        let wakes = !ended.is_empty();
        while !ended.is_empty() {
            for (number, status) in ended.drain(..) {
                self.end_below(number, status);
            }
            core::mem::swap(&mut ended, &mut self.ended);
        }
        self.ended = ended;
        if wakes {
            self.cache.signals.wake();
        }
        self.retry();
        self.send_unsent();
        if core::mem::take(&mut self.was_submitted) {
            self.below().flush();
        }
        let now_ns = M::now();
        while self.held.front().is_some_and(|(due_ns, _)| *due_ns <= now_ns) {
            let (_, tag) = self.held.pop_front().expect("looked at just now");
            self.done.push_back((tag, Status::Ok));
        }
    }

    fn end_below(&mut self, number: u64, status: Status) {
        let at = (number >> KIND_BITS) as usize;
        match number & ((1 << KIND_BITS) - 1) {
            FILL => self.end_fill(at, status),
            WRITE => self.writeout.ended(&self.cache, at, status),
            _ => self.end_last(at, status),
        }
    }

    fn retry(&mut self) {
        self.signal.take_woken();
        if self.blocked.is_empty() {
            return;
        }
        self.signal.begin_wait();
        for at in core::mem::take(&mut self.blocked) {
            self.jobs[at].is_blocked = false;
            self.advance(at);
        }
        if self.blocked.is_empty() {
            self.signal.end_wait();
        }
    }

    fn send_unsent(&mut self) {
        let cache = Arc::clone(&self.cache);
        let below = self.below.as_mut().expect("the channel exists until the queue is dropped");
        let number = |at: usize| (at as u64) << KIND_BITS | WRITE;
        self.was_submitted |= self.writeout.send((&cache, below), number);
        while let Some(bio) = self.unsent.pop_front() {
            let before = self.unsent.len();
            self.send(bio);
            if self.unsent.len() > before {
                self.unsent.rotate_right(1);
                break;
            }
        }
    }

    #[inline]
    fn read(&mut self, rq: &Request<M>) {
        let rest = self.read_hits(rq, self.pages_of(rq));
        match rest.is_empty() {
            true => self.done.push_back((rq.tag(), Status::Ok)),
            false => self.start_job(rq, JobStep::Read, Some(rest)),
        }
    }

    #[inline]
    fn copy_hits(&mut self) {
        while let Some(copied) = self.reads.hits.copy_next(&self.cache) {
            match copied {
                CopyOutcome::Done(tag) => self.done.push_back((tag, Status::Ok)),
                CopyOutcome::Missed(rq) => self.read(rq),
            }
        }
    }

    pub(crate) fn pages_of(&self, rq: &Request<M>) -> core::ops::Range<u64> {
        let (start, end) = span_of(rq);
        self.cache.page.pages_of(start, end)
    }
}

impl<M: Machine> DriverQueue<M> for CacheQueue<M> {
    fn queue_rq(&mut self, rq: &Request<M>) -> Dispatch {
        match rq.op() {
            Op::Read => {
                let pages = self.pages_of(rq);
                match self.reads.hits.find(&self.cache, rq, &pages) {
                    true if self.reads.hits.is_full() => self.copy_hits(),
                    true => {}
                    false => self.read(rq),
                }
                self.read_ahead(&pages);
            }
            Op::Write => {
                let rest = self.write_pages(rq, self.pages_of(rq), 0);
                match rest.is_empty() && !self.is_durable(rq) {
                    true => self.end_write(rq),
                    false => self.start_job(rq, JobStep::Write, Some(rest)),
                }
            }
            Op::Flush => {
                let epoch = self.cache.end_epoch();
                self.start_job(rq, JobStep::SyncAll { epoch }, None);
            }
            Op::Discard | Op::WriteZeroes => self.start_job(rq, JobStep::Clear, None),
        }
        Dispatch::Queued
    }

    fn has_trace_data(&self) -> bool {
        false
    }

    fn commit_rqs(&mut self) {
        self.copy_hits();
        if self.was_submitted || !self.blocked.is_empty() {
            self.retry();
            self.send_unsent();
            self.was_submitted = false;
            self.below().flush();
        }
    }

    fn poll(&mut self, batch: &mut CompletionBatch) {
        // If no request is complete (`done` is empty), the thread may sleep after this poll, so the
        // volume below must be polled first.
        if self.is_turn_due() || self.done.is_empty() {
            self.turn();
        }
        while !batch.is_full() {
            let Some((tag, status)) = self.done.pop_front() else { break };
            batch.push(tag, status);
        }
        if !self.done.is_empty() || !self.ended.is_empty() {
            batch.wake_at(M::now());
        }
        if let Some((due_ns, _)) = self.held.front() {
            batch.wake_at(*due_ns);
        }
        if self.has_under_way()
            && let Some(wake_ns) = self.below().sleep_until()
        {
            batch.wake_at(wake_ns);
        }
        if let Some(stuck_ns) = self.writeout.look_at_ns() {
            batch.wake_at(stuck_ns);
        }
    }

    fn has_work(&self) -> bool {
        !self.done.is_empty()
            || !self.ended.is_empty()
            || self.signal.is_woken()
            || self.below.as_ref().is_some_and(Channel::has_work)
    }

    fn timeout(&mut self, _tag: Tag) -> Expired {
        // A request waits for I/Os of the volume below, which have their own timeouts. So the
        // request never times out: each time its timeout expires, the timeout is extended.
        Expired::Extend
    }
}

impl<M: Machine> Drop for CacheQueue<M> {
    /// Waits for reads and writes in flight, up to the channel's time limit. If any are left after
    /// that, leaks the cache's memory, because a drive may still use it.
    fn drop(&mut self) {
        self.cache.signals.leave(&self.signal);
        let mut is_drained = true;
        while is_drained && (!self.fills.is_empty() || self.writeout.pages > 0) {
            let mut ended = Vec::new();
            self.send_unsent();
            is_drained = self.below().drain(|done| ended.push((done.user_data, done.status)));
            ended.append(&mut self.ended);
            ended.into_iter().for_each(|(number, status)| self.end_below(number, status));
        }
        if !is_drained {
            self.below().set_drain_timeout(Duration::ZERO);
            core::mem::forget(Arc::clone(&self.cache));
            core::mem::forget(core::mem::take(&mut self.fills));
            self.writeout.forget();
        }
        self.cache.signals.wake();
        self.below = None;
        for disk in self.cache.below.disks() {
            disk.bring_down(&self.thread);
        }
    }
}
