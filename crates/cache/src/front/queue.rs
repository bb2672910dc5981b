//! `CacheQueue`: one queue of a cache, on the I/O thread that owns it.
//!
//! Owns a channel to the volume below, requests under way (`Job`), and reads of the volume
//! (`Fill`). Hits are answered at once, under the lock of a shard; whatever must wait becomes a
//! job: read.rs, write.rs and sync.rs say what each does. A job that waits for something others do
//! is tried again when the cache's signal says that something happened. Called by the block layer
//! under the queue's serve lock.
#![allow(unsafe_code)]

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_block::{
    Bio, Channel, CompletionBatch, Dispatch, DriverQueue, Expired, IoThread, Op, Reject, Rejected,
    Request, Status, Tag,
};
use millrace_machine::{Machine, Order, Word};
use slab::Slab;

use crate::cache::Cache;
use crate::cache::signal::Signal;
use crate::front::jobs::{Fill, Job, JobStep, SyncScope};
use crate::front::write::release_claims;
use crate::read::hits::{CopyOutcome, Hits};
use crate::read::streams::Streams;
use crate::write_back::write_queues::FlusherConfig;
use crate::write_back::writeout::Writeout;

/// While all is hits, the channel below is looked at every so many polls.
const POLLS_PER_LOOK: u32 = 16;
/// Bios of the channel below are numbered by what they are of.
const FILL: u64 = 0;
const WRITE: u64 = 1;
const LAST: u64 = 2;
const KIND_BITS: u32 = 2;

/// What a queue keeps of its reads.
pub(crate) struct Reads<M: Machine> {
    pub(crate) streams: Streams,
    /// Reads that are copied before the batch ends.
    hits: Hits<M>,
}

/// One queue of a cache.
pub(crate) struct CacheQueue<M: Machine> {
    pub(crate) cache: Arc<Cache<M>>,
    below: Option<Channel<M>>,
    thread: IoThread<M>,
    pub(crate) signal: Arc<Signal<M>>,
    pub(crate) jobs: Slab<Job<M>>,
    pub(crate) fills: Slab<Fill>,
    pub(crate) writeout: Writeout,
    pub(crate) reads: Reads<M>,
    /// Bios that the channel below had no room for.
    unsent: VecDeque<Bio>,
    /// Jobs that wait for others.
    blocked: Vec<usize>,
    /// Writes whose answer is held back, by time.
    held: VecDeque<(u64, Tag)>,
    done: VecDeque<(Tag, Status)>,
    /// What the channel below has brought, while it is looked at.
    ended: Vec<(u64, Status)>,
    was_submitted: bool,
    polls: u32,
}

impl<M: Machine> CacheQueue<M> {
    /// A queue on the thread given, with this channel of it to the volume below, and how it sends
    /// what it writes itself.
    pub(crate) fn new(
        cache: &Arc<Cache<M>>,
        (below, config): (Channel<M>, FlusherConfig),
        thread: &IoThread<M>,
    ) -> Self {
        let signal = Signal::new(&thread.bell);
        cache.signals.join(&signal);
        CacheQueue {
            below: Some(below),
            thread: thread.clone(),
            signal,
            jobs: Slab::new(),
            fills: Slab::new(),
            writeout: Writeout::new(cache, config),
            reads: Reads {
                streams: Streams::new(cache.page, cache.config.read_ahead_bytes),
                hits: Hits::new(),
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
        self.below.as_mut().expect("gone only while the queue is dropped")
    }

    /// Sends a bio of a fill, or of a job's last operation, to the volume below.
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

    /// Starts a read of the volume below.
    pub(crate) fn start_fill(&mut self, fill: Fill, sector: u64) {
        if let Some(job) = fill.job {
            self.jobs[job].fills += 1;
        }
        let at = self.fills.insert(fill);
        let list = &raw const self.fills[at].segments[..];
        // SAFETY: the list stays in its slot, and the memory is the fill's, until it has ended.
        let bio = unsafe { Bio::foreign_vectored(Op::Read, sector, list) };
        self.send(bio.with_user_data((at as u64) << KIND_BITS | FILL));
    }

    /// Hands a job's last operation to the volume below.
    pub(crate) fn start_last(&mut self, job: usize, bio: Bio) {
        self.jobs[job].step = JobStep::Below;
        self.send(bio.with_user_data((job as u64) << KIND_BITS | LAST));
    }

    /// Failed writes to the volume so far.
    pub(crate) fn errors(&self) -> u64 {
        self.cache.counts.write_errors.load(Order::SeqCst)
    }

    /// Makes a job of a request, and goes as far with it as that gets now.
    fn start_job(&mut self, rq: &Request<M>, step: JobStep, todo: Option<core::ops::Range<u64>>) {
        let mut job = Job::new(rq, step, self.errors());
        job.todo.extend(todo);
        let at = self.jobs.insert(job);
        self.advance(at);
    }

    /// Goes on with a job.
    pub(crate) fn advance(&mut self, at: usize) {
        match self.jobs[at].step {
            JobStep::Read => self.advance_read(at),
            JobStep::Write => self.advance_write(at),
            JobStep::Sync { epoch, scope } => self.advance_sync(at, epoch, scope),
            JobStep::Clear => self.advance_clear(at),
            JobStep::Below => {}
        }
    }

    /// A job waits until others have done something.
    pub(crate) fn block(&mut self, at: usize) {
        if !core::mem::replace(&mut self.jobs[at].is_blocked, true) {
            self.blocked.push(at);
        }
    }

    /// A job is done.
    pub(crate) fn end_job(&mut self, at: usize, status: Status) {
        let job = self.jobs.remove(at);
        release_claims(&self.cache, &job);
        self.done.push_back((job.tag, status));
    }

    /// A write is in memory: its answer may be held back.
    pub(crate) fn end_write(&mut self, rq: &Request<M>) {
        let cache = &self.cache;
        let (dirty, most) = (cache.live_pages(0), cache.dirty_max_pages());
        match cache.pace.due_ns(rq.len_bytes().into(), dirty, most) {
            None => self.done.push_back((rq.tag(), Status::Ok)),
            Some(due_ns) => {
                // Relaxed: a number that nothing depends on.
                cache.counts.throttled.fetch_add(1, Order::Relaxed);
                self.held.push_back((due_ns, rq.tag()));
            }
        }
    }

    /// Whether something is under way, or a look at the channel below is due: others may have given
    /// its drives' queues work, and hits alone never look there.
    fn is_turn_due(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.has_under_way() || (self.polls.is_multiple_of(POLLS_PER_LOOK) && self.has_work())
    }

    /// Whether something is under way.
    fn has_under_way(&self) -> bool {
        !self.fills.is_empty()
            || !self.jobs.is_empty()
            || !self.unsent.is_empty()
            || !self.held.is_empty()
            || self.writeout.pages() > 0
    }

    /// Takes what the volume below has done, and goes on with what waited for it.
    fn turn(&mut self) {
        let (mut ended, below) = (core::mem::take(&mut self.ended), self.below());
        below.poll(|done| ended.push((done.user_data, done.status)));
        below.tick();
        let wakes = !ended.is_empty();
        while !ended.is_empty() {
            for (number, status) in ended.drain(..) {
                self.end_below(number, status);
            }
            // What the channel refused is there now.
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

    /// Tries again what waits for others.
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
        let below = self.below.as_mut().expect("gone only while the queue is dropped");
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

    /// Answers a read, or makes a job of what memory has not.
    #[inline]
    fn read(&mut self, rq: &Request<M>) {
        let rest = self.read_hits(rq, self.pages_of(rq));
        match rest.is_empty() {
            true => self.done.push_back((rq.tag(), Status::Ok)),
            false => self.start_job(rq, JobStep::Read, Some(rest)),
        }
    }

    /// Answers the reads that were found in memory.
    #[inline]
    fn copy_hits(&mut self) {
        while let Some(copied) = self.reads.hits.copy_next(&self.cache) {
            match copied {
                CopyOutcome::Done(tag) => self.done.push_back((tag, Status::Ok)),
                CopyOutcome::Missed(rq) => self.read(rq),
            }
        }
    }

    /// The pages of a request.
    pub(crate) fn pages_of(&self, rq: &Request<M>) -> core::ops::Range<u64> {
        self.cache.page.pages_of(rq.sector(), rq.sector() + u64::from(rq.nr_sectors()))
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
                let rest = self.write_pages(rq, self.pages_of(rq));
                match rest.is_empty() && !self.is_durable(rq) {
                    true => self.end_write(rq),
                    false => self.start_job(rq, JobStep::Write, Some(rest)),
                }
            }
            Op::Flush => {
                let epoch = self.cache.end_epoch();
                self.start_job(rq, JobStep::Sync { epoch, scope: SyncScope::All }, None);
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
        // A poll without completions is one of a thread that is about to sleep.
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
        // What it waits for is looked after below.
        Expired::Extend
    }
}

impl<M: Machine> Drop for CacheQueue<M> {
    /// Reads ahead and writes on their way are waited for, as long as a channel that is dropped
    /// waits; then the cache's memory is given up for lost, since a drive may still use it.
    fn drop(&mut self) {
        self.cache.signals.leave(&self.signal);
        let mut is_drained = true;
        while is_drained && (!self.fills.is_empty() || self.writeout.pages() > 0) {
            let mut ended = Vec::new();
            self.send_unsent();
            is_drained = self.below().drain(|done| ended.push((done.user_data, done.status)));
            ended.append(&mut self.ended);
            ended.into_iter().for_each(|(number, status)| self.end_below(number, status));
        }
        if !is_drained {
            self.below().set_drain_ns(0);
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
