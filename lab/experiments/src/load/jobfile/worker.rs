//! The loop of one job's thread: issues the I/Os of the job's source, within the rate limits, until
//! the job is done.
//!
//! A worker owns a channel of an `IoContext` and the channel's I/Os in flight. `run` starts each
//! worker on a thread of its own. Each round has fio's order: a pause that is due, a flush that is
//! due, then the next I/O if the rate limit allows it. All I/Os that may be issued are submitted
//! together. A job ends after its bytes, its number of I/Os or its time, at the first error, or
//! when it is interrupted; it then waits for its I/Os in flight.

use millrace_block::{Bio, Channel, Completion, Error, Reject, Status};
use millrace_machine::{Machine, Native};
use millrace_runtime::IoContext;

use super::depth_search::DepthSearch;
use super::flow::FlowMember;
use super::io_slots::{FlushAccounting, IoInFlight, Slots};
use super::job_step::{JobStep, Progress};
use super::page_cache::CachedRange;
use super::rate_limit::RateLimit;
use super::source::{Io, READ, Source, Span, WRITE};
use super::spec::{Engine, JobSpec};
use super::tally::{Tally, Usage, level};
use crate::load::bench::{Interrupt, thread_usage};
use crate::load::verify::{self, WrittenBlocks};

const SAMPLE_NS: u64 = 500_000_000;
/// Interval, in nanoseconds, at which a waiting job checks for an interrupt of the run.
const LOOK_NS: u64 = 50_000_000;

fn is_write(io: &Io) -> bool {
    io.direction == WRITE
}

pub(super) struct Setting<'a> {
    pub(super) job: &'a JobSpec,
    pub(super) span: Span,
    pub(super) cached: Option<CachedRange>,
    pub(super) clone: u64,
    /// Number from the clock that is XORed with the seed, so that each run differs; 0 if every run
    /// uses the same seed.
    pub(super) salt: u64,
    pub(super) interrupt: &'a Interrupt,
}

pub(super) struct Worker<'a> {
    pub(super) setting: &'a Setting<'a>,
    context: &'a mut IoContext,
    pub(super) channel: &'a mut Channel<Native>,
    pub(super) source: Source,
    pub(super) pace: RateLimit,
    pub(super) slots: Slots,
    /// I/Os that the job has chosen but not issued. The first element is the next I/O. The second
    /// element is an I/O in the opposite direction, which the job may issue while the rate limit
    /// delays the first one.
    pub(super) held: [Option<Io>; 2],
    pub(super) written: Option<WrittenBlocks>,
    pub(super) search: Option<DepthSearch>,
    pub(super) flow: Option<FlowMember<'a>>,
    pub(super) at: Progress,
    pub(super) tally: Tally,
    pub(super) clock: Clock,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    measured_ns: u64,
    sampled_ns: u64,
    seen_ns: u64,
    ramp_ns: Option<u64>,
    pub(super) end_ns: u64,
    usage: Usage,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        setting: &'a Setting<'a>,
        source: Source,
        context: &'a mut IoContext,
        channel: &'a mut Channel<Native>,
    ) -> Worker<'a> {
        let (job, now_ns) = (setting.job, Native::now());
        let depth = job.flow.iodepth;
        let ramp_ns = now_ns.saturating_add(job.span.ramp_ns);
        let runtime_ns = job.span.runtime_ns.unwrap_or(u64::MAX);
        let seed = job.shape.seed.wrapping_add(setting.clone) ^ setting.salt;
        Worker {
            setting,
            source,
            pace: RateLimit::new(job, now_ns, seed),
            slots: Slots::new(depth, job.buffer_bytes(), seed),
            held: [None; 2],
            written: job.verifies_writes().then(WrittenBlocks::by_offset),
            search: job.flow.latency.map(|target| DepthSearch::new(target, depth, now_ns)),
            flow: None,
            at: Progress::default(),
            tally: Tally::default(),
            clock: Clock {
                measured_ns: now_ns,
                sampled_ns: now_ns,
                seen_ns: 0,
                ramp_ns: (job.span.ramp_ns > 0).then_some(ramp_ns),
                end_ns: ramp_ns.saturating_add(runtime_ns),
                usage: thread_usage(),
            },
            context,
            channel,
        }
    }

    pub(super) fn with_flow(self, flow: Option<FlowMember<'a>>) -> Worker<'a> {
        Worker { flow, ..self }
    }

    pub(super) fn run(mut self) -> Result<Tally, Error> {
        self.setting.cached.iter().for_each(CachedRange::forget);
        loop {
            let wake_ns = self.fill()?;
            self.commit()?;
            if self.channel.in_flight() == 0 && wake_ns.is_none() {
                break;
            }
            if !self.reap() {
                self.sleep(wake_ns.unwrap_or(0))?;
            }
        }
        if self.setting.job.flow.end_fsync && self.tally.errno == 0 {
            self.end_flush()?;
        }
        self.measure_end();
        if let Some(search) = &self.search {
            match search.result() {
                Ok(depth) => {
                    self.tally.depth_found = depth.map(|depth| (depth, search.is_settled()));
                }
                Err(text) => self.fail(Status::TimedOut, text),
            }
        }
        if let Some(written) = self.written.take()
            && self.setting.job.shape.verify.is_some_and(|verify| verify.read_back)
            && self.tally.errno == 0
        {
            self.read_back(&written)?;
        }
        Ok(self.tally)
    }

    fn is_sync(&self) -> bool {
        self.setting.job.access.engine == Engine::Sync
    }

    /// Submits as many I/Os as the limits allow. Returns the time of the next attempt, 0 to wait
    /// for a completion, or `None` at the job's end.
    fn fill(&mut self) -> Result<Option<u64>, Error> {
        let most = self.setting.job.flow.batch.unwrap_or(u32::MAX) as usize;
        loop {
            let in_flight = self.slots.flights.len() - self.slots.free.len();
            let depth = self.search.as_ref().map_or(usize::MAX, DepthSearch::depth);
            if self.slots.free.is_empty() || in_flight >= depth {
                return Ok(Some(0));
            }
            let now_ns = match std::mem::take(&mut self.clock.seen_ns) {
                0 => Native::now(),
                seen_ns => seen_ns,
            };
            let is_taken = match self.next(now_ns) {
                JobStep::End => return Ok(None),
                JobStep::Wait(wake_ns) => return Ok(Some(wake_ns)),
                JobStep::Flush(counted) => self.submit(None, counted, now_ns),
                JobStep::Io(io) => self.submit(Some(io), FlushAccounting::Yes, now_ns),
            };
            if !is_taken {
                return Ok(Some(0));
            }
            if self.slots.batch.len() >= most {
                self.commit()?;
            }
        }
    }

    /// Submits an I/O, or a flush if `io` is `None`. Returns false if the channel has no room.
    fn submit(&mut self, io: Option<Io>, counted: FlushAccounting, now_ns: u64) -> bool {
        let Some(slot) = self.slots.free.pop() else { return false };
        let bio = match io {
            None => Bio::flush(),
            Some(io) => self.slots.bio(io, self.written.as_mut()),
        };
        if let Err(rejected) = self.channel.submit(bio.with_user_data(slot.into())) {
            self.slots.free.push(slot);
            if let (Some(written), Some(io)) = (&mut self.written, io.filter(is_write)) {
                written.landed(io.offset);
            }
            if let Reject::Invalid(status) = rejected.reason {
                let what = || format!("{:?}: {status}", rejected.bio.op());
                self.fail(status, what());
            }
            return false;
        }
        self.slots.flights[slot as usize] =
            IoInFlight { io, counted, start_ns: now_ns, issue_ns: 0 };
        self.slots.batch.push(slot);
        let depth = (self.slots.flights.len() - self.slots.free.len()) as u32;
        self.tally.depth[level(depth)] += 1;
        self.at.last_was_flush = io.is_none();
        if let Some(io) = io {
            if let Some(held) = self.held.iter_mut().find(|held| **held == Some(io)) {
                *held = None;
            }
            self.at.ios += 1;
            self.at.writes += u64::from(io.direction == WRITE);
            self.at.bytes += u64::from(io.bytes);
            self.pace.issued(io.direction, io.bytes);
            self.flow.iter_mut().for_each(FlowMember::issued);
        }
        true
    }

    /// Records the send time of the batch. With `iodepth_batch_submit`, also sends the batch now,
    /// unless the I/O depth is reached: the job then waits for completions, and that wait sends the
    /// batch.
    fn commit(&mut self) -> Result<(), Error> {
        if self.slots.batch.is_empty() {
            return Ok(());
        }
        if self.setting.job.flow.batch.is_some() {
            self.channel.flush();
            if !self.slots.free.is_empty() {
                self.context.turn(None, || true)?;
            }
        }
        self.tally.submitted[level(self.slots.batch.len() as u32)] += 1;
        // A synchronous I/O is one system call, so it has no submission latency.
        let issued_ns = if self.is_sync() { None } else { Some(Native::now()) };
        let Slots { batch, flights, .. } = &mut self.slots;
        for slot in batch.drain(..) {
            let flight = &mut flights[slot as usize];
            flight.issue_ns = issued_ns.unwrap_or(flight.start_ns);
        }
        Ok(())
    }

    fn reap(&mut self) -> bool {
        let is_sync = self.is_sync();
        let mut now_ns = 0;
        let (mut failed, mut is_full) = (None, false);
        let fills_device = self.setting.job.fills_device();
        let checks_reads = self.setting.job.verifies_reads();
        let Worker { channel, slots, tally, written, search, .. } = self;
        let Slots { flights, free, idle, .. } = slots;
        let handed = channel.poll(|Completion { user_data: slot, status, mut bio, q_ns, c_ns }| {
            let mut flight = flights[slot as usize];
            if is_sync {
                // Take the times from the completion (`q_ns`, `c_ns`), to save a read of the clock
                // for each I/O.
                (flight.start_ns, flight.issue_ns, now_ns) = (q_ns, q_ns, c_ns.max(q_ns));
            } else if now_ns == 0 {
                now_ns = Native::now();
            }
            free.push(slot as u32);
            if status == Status::NoSpace && fills_device {
                is_full = true;
                if let (Some(written), Some(io)) = (written.as_mut(), flight.io) {
                    written.forget(io.offset);
                }
            } else if !status.is_ok() {
                let op = bio.op();
                failed.get_or_insert_with(|| {
                    (status, format!("{op:?} at sector {}: {status}", bio.sector()))
                });
            }
            let slat = flight.issue_ns.saturating_sub(flight.start_ns);
            let clat = now_ns.saturating_sub(flight.issue_ns);
            let Some(io) = flight.io else {
                if flight.counted == FlushAccounting::Yes {
                    tally.sync.add(slat + clat);
                }
                return;
            };
            if status.is_ok() {
                tally.done(io.direction, io.bytes, (slat, clat));
                search.iter_mut().for_each(|search| search.note(flight.issue_ns, clat));
            }
            if checks_reads && status.is_ok() && io.direction == READ {
                let data = bio.memory().expect("jobs use owned buffers");
                tally.check(verify::check(data, io.offset, None));
            }
            if let Some(written) = written
                && io.direction == WRITE
            {
                written.landed(io.offset);
            }
            // Do not reuse a bio that timed out, because the block layer has kept its memory.
            if bio.op().has_data() && bio.nr_segments() > 0 {
                idle.push(bio);
            }
        });
        // As in fio, a job with `fill_device` ends when its device has no space left.
        self.at.has_drawn_all |= is_full;
        if let Some((status, text)) = failed {
            self.fail(status, text);
        }
        if let Some(search) = &mut self.search {
            search.turn(if now_ns == 0 { Native::now() } else { now_ns });
        }
        if handed > 0 {
            self.tally.completed[level(handed as u32)] += 1;
            self.tick(now_ns);
            self.clock.seen_ns = if is_sync { now_ns } else { 0 };
        }
        handed > 0
    }

    #[cold]
    fn fail(&mut self, status: Status, text: String) {
        self.tally.errors += 1;
        if self.tally.errno == 0 {
            self.tally.errno = status.errno();
        }
        self.tally.first_error.get_or_insert(text);
    }

    /// Does the periodic work: detects the end of the ramp time, takes samples, and checks the
    /// channel's timeouts.
    fn tick(&mut self, now_ns: u64) {
        if self.clock.ramp_ns.is_some_and(|ramp_ns| now_ns >= ramp_ns) {
            let errors = (self.tally.errors, self.tally.errno, self.tally.first_error.take());
            self.tally = Tally::default();
            (self.tally.errors, self.tally.errno, self.tally.first_error) = errors;
            self.clock.ramp_ns = None;
            (self.clock.measured_ns, self.clock.sampled_ns) = (now_ns, now_ns);
            self.clock.usage = thread_usage();
        }
        let length_ns = now_ns.saturating_sub(self.clock.sampled_ns);
        if length_ns >= SAMPLE_NS {
            self.tally.flows.iter_mut().for_each(|flow| flow.sample(length_ns));
            self.clock.sampled_ns = now_ns;
            self.channel.tick();
        }
    }

    /// Sleeps until an I/O completes or until the time `wake_ns`; 0 means no time limit.
    pub(super) fn sleep(&mut self, wake_ns: u64) -> Result<(), Error> {
        // Check for request timeouts, because no completion has arrived.
        self.channel.tick();
        let now_ns = Native::now();
        let channel_ns = self.channel.sleep_until().unwrap_or(u64::MAX);
        let wake_ns = if wake_ns == 0 { u64::MAX } else { wake_ns };
        let end_ns = Some(self.clock.end_ns).filter(|end_ns| *end_ns > now_ns);
        let until_ns = channel_ns.min(wake_ns).min(now_ns + LOOK_NS);
        let until_ns = end_ns.map_or(until_ns, |end_ns| until_ns.min(end_ns));
        let channel = &*self.channel;
        self.context.turn(Some(until_ns), || channel.has_work())?;
        Ok(())
    }

    fn end_flush(&mut self) -> Result<(), Error> {
        while !self.submit(None, FlushAccounting::No, Native::now()) {
            self.sleep(0)?;
        }
        self.commit()?;
        while self.channel.in_flight() > 0 {
            if !self.reap() {
                self.sleep(0)?;
            }
        }
        Ok(())
    }

    fn measure_end(&mut self) {
        let now_ns = Native::now();
        let runtime_ns = now_ns - self.clock.measured_ns;
        self.tally.runtime_ns = runtime_ns;
        for flow in self.tally.flows.iter_mut().filter(|flow| flow.ios > 0) {
            flow.runtime_ns = runtime_ns;
        }
        self.tally.usage = thread_usage().since(self.clock.usage);
    }
}
