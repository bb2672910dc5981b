//! The loop of one job's thread: I/Os of its source, at its pace, until it is done.
//!
//! Owns a channel of an `IoContext` and what is in flight on it; called by `run` on a thread of its
//! own. The order of a round is fio's: a pause that is due, a flush that is due, the next I/O when
//! its pace lets it go; all that may go are submitted together. A job ends after its bytes, its
//! number of I/Os, its time, at the first error, or when it is interrupted; what is in flight is
//! waited for.

use std::sync::atomic::{AtomicU64, Ordering};

use millrace_block::{Bio, Buffer, Channel, Completion, Error, Op, Reject, SectorCount, Status};
use millrace_machine::{Machine, Native};
use millrace_random::SplitMix64;
use millrace_runtime::IoContext;

use super::pace::Pace;
use super::source::{Io, READ, Source, Span, WRITE};
use super::spec::JobSpec;
use super::tally::{Tally, Usage, level};
use crate::bench::{Interrupt, thread_usage};
use crate::job::JobResult;
use crate::verify::Written;
use crate::workload::{Rw, Workload};

/// How long samples of bandwidth are.
const SAMPLE_NS: u64 = 500_000_000;
/// How often a job that waits looks whether it is interrupted.
const LOOK_NS: u64 = 50_000_000;

/// What a job runs with.
pub(super) struct Setting<'a> {
    pub(super) job: &'a JobSpec,
    pub(super) span: Span,
    /// Which clone of the job it is.
    pub(super) clone: u64,
    /// Added to the seed, where every run is to be another.
    pub(super) salt: u64,
    pub(super) interrupt: &'a Interrupt,
    /// Bytes done by all jobs, for a progress bar.
    pub(super) done: &'a AtomicU64,
}

/// An I/O in flight.
#[derive(Debug, Clone, Copy)]
struct Flight {
    /// None for a flush.
    io: Option<Io>,
    /// Whether a flush is counted: fio counts those of `fsync`, not those of `fdatasync`.
    counted: bool,
    start_ns: u64,
    issue_ns: u64,
}

/// What goes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Io(Io),
    /// A flush, which may be counted.
    Flush(bool),
    /// Nothing until then; 0 for until something completes.
    Wait(u64),
    /// Nothing ever.
    End,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// Bytes issued in this loop, and I/Os and writes in all.
    bytes: u64,
    ios: u64,
    writes: u64,
    completed: u64,
    loops: u64,
    last_was_flush: bool,
    has_drawn_all: bool,
    /// I/Os completed at the last pause, and until when there is one.
    thought_at: u64,
    thinks_until_ns: Option<u64>,
}

/// What is in flight, by the user data of its bio.
struct Slots {
    flights: Vec<Flight>,
    free: Vec<u32>,
    /// Submitted since the last flush of the channel.
    batch: Vec<u32>,
    idle: Vec<Bio>,
}

pub(super) struct Worker<'a> {
    setting: &'a Setting<'a>,
    context: &'a mut IoContext,
    channel: &'a mut Channel<Native>,
    source: Source,
    pace: Pace,
    random: SplitMix64,
    slots: Slots,
    /// Drawn, and not gone yet; the second one of the other direction of a mix.
    held: [Option<Io>; 2],
    written: Option<Written>,
    at: Progress,
    tally: Tally,
    clock: Clock,
}

/// When a job began, and when it ends.
#[derive(Debug, Clone, Copy)]
struct Clock {
    measured_ns: u64,
    sampled_ns: u64,
    ramp_ns: Option<u64>,
    end_ns: u64,
    usage: Usage,
}

impl<'a> Worker<'a> {
    /// A worker that begins now.
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
        let (flight, bs) = (
            Flight { io: None, counted: false, start_ns: 0, issue_ns: 0 },
            &job.shape.sizes[WRITE],
        );
        let workload = Workload {
            rw: Rw::Write,
            bs_bytes: bs.least(),
            iodepth: depth,
            verify: job.shape.verify.is_some(),
            seed,
        };
        Worker {
            setting,
            source,
            pace: Pace::new(job, now_ns, seed),
            random: SplitMix64::new(seed),
            slots: Slots {
                flights: vec![flight; depth as usize],
                free: (0..depth).rev().collect(),
                batch: Vec::new(),
                idle: Vec::new(),
            },
            held: [None; 2],
            written: Written::new(&workload),
            at: Progress::default(),
            tally: Tally::default(),
            clock: Clock {
                measured_ns: now_ns,
                sampled_ns: now_ns,
                ramp_ns: (job.span.ramp_ns > 0).then_some(ramp_ns),
                end_ns: ramp_ns.saturating_add(runtime_ns),
                usage: thread_usage(),
            },
            context,
            channel,
        }
    }

    /// Runs the job to its end.
    pub(super) fn run(mut self) -> Result<Tally, Error> {
        loop {
            let wake_ns = self.fill();
            self.commit();
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
        if let Some(written) = self.written.take()
            && self.setting.job.shape.verify.is_some_and(|verify| verify.read_back)
            && self.tally.errno == 0
        {
            self.read_back(&written)?;
        }
        Ok(self.tally)
    }

    /// Submits what may go; when to come back if there is room, or none if nothing is left.
    fn fill(&mut self) -> Option<u64> {
        let most = self.setting.job.flow.batch.unwrap_or(u32::MAX) as usize;
        loop {
            if self.slots.free.is_empty() {
                return Some(0);
            }
            let now_ns = Native::now();
            let is_taken = match self.next(now_ns) {
                Next::End => return None,
                Next::Wait(wake_ns) => return Some(wake_ns),
                Next::Flush(counted) => self.submit(None, counted, now_ns),
                Next::Io(io) => self.submit(Some(io), true, now_ns),
            };
            if !is_taken {
                return Some(0);
            }
            if self.slots.batch.len() >= most {
                self.commit();
            }
        }
    }

    /// What goes next.
    fn next(&mut self, now_ns: u64) -> Next {
        let job = self.setting.job;
        let is_over = now_ns >= self.clock.end_ns
            || self.tally.errno != 0
            || self.setting.interrupt.is_set()
            || job.region.number_ios.is_some_and(|most| self.at.ios >= most);
        if is_over {
            return Next::End;
        }
        if job.flow.think.time_ns > 0
            && let Some(next) = self.think(now_ns)
        {
            return next;
        }
        let writes = self.at.writes;
        let due = |every: u64| every > 0 && writes.is_multiple_of(every);
        let may_flush = self.at.writes > 0 && !self.at.last_was_flush;
        if self.held[0].is_none() && !self.draw() {
            return Next::End;
        }
        if may_flush && (due(job.flow.fsync) || due(job.flow.fdatasync)) {
            return Next::Flush(due(job.flow.fsync));
        }
        let io = self.held[0].expect("drawn above");
        let due_ns = self.pace.due_ns(io.direction);
        if due_ns > now_ns {
            return self.other_way(io.direction, now_ns).map_or(Next::Wait(due_ns), Next::Io);
        }
        if let Some(written) = &self.written
            && written.is_in_flight(io.offset / u64::from(io.bytes))
        {
            return Next::Wait(0);
        }
        Next::Io(io)
    }

    /// A pause: what to do instead of an I/O, if there is one.
    fn think(&mut self, now_ns: u64) -> Option<Next> {
        let think = self.setting.job.flow.think;
        if let Some(until_ns) = self.at.thinks_until_ns {
            if now_ns < until_ns {
                return Some(Next::Wait(until_ns));
            }
            self.at.thinks_until_ns = None;
            self.at.thought_at = self.at.completed;
            return None;
        }
        if self.at.completed - self.at.thought_at < think.blocks {
            return None;
        }
        if self.channel.in_flight() > 0 {
            return Some(Next::Wait(0));
        }
        let spin_ns = now_ns + think.spin_ns.min(think.time_ns);
        while Native::now() < spin_ns && !self.setting.interrupt.is_set() {
            std::hint::spin_loop();
        }
        let until_ns = now_ns.saturating_add(think.time_ns);
        self.at.thinks_until_ns = Some(until_ns);
        Some(Next::Wait(until_ns))
    }

    /// Draws the next I/O; false if there is none any more.
    fn draw(&mut self) -> bool {
        let (span, job) = (self.setting.span, self.setting.job);
        if self.at.has_drawn_all {
            return false;
        }
        // A pass without any I/O, as of a mix without one of its directions, does not come twice.
        for _ in 0..2 {
            if self.at.bytes < span.io_size || job.span.time_based {
                let direction = self.source.direction();
                self.held[0] = self.source.next(direction);
                if self.held[0].is_some() {
                    return true;
                }
            }
            let left = span.io_size.saturating_sub(self.at.bytes);
            let goes_on = job.region.io_size.is_some() && left >= self.source.least().into();
            if !goes_on && !job.span.time_based {
                self.at.loops += 1;
                if self.at.loops >= job.span.loops {
                    self.at.has_drawn_all = true;
                    return false;
                }
                self.at.bytes = 0;
            }
            self.source.restart();
        }
        self.at.has_drawn_all = true;
        false
    }

    /// Where the direction that was drawn must wait and the other one of a mix has a pace of its
    /// own, an I/O of that one, if it may go now.
    fn other_way(&mut self, drawn: usize, now_ns: u64) -> Option<Io> {
        let other = match drawn {
            READ => WRITE,
            WRITE => READ,
            _ => return None,
        };
        let due_ns = self.pace.due_ns(other);
        if !self.setting.job.kind.has[other] || due_ns == 0 || due_ns > now_ns {
            return None;
        }
        if self.held[1].is_none() {
            self.held[1] = self.source.next(other);
        }
        self.held[1].filter(|io| io.direction == other)
    }

    /// Submits an I/O or a flush; false if the channel has no room.
    fn submit(&mut self, io: Option<Io>, counted: bool, now_ns: u64) -> bool {
        let Some(slot) = self.slots.free.pop() else { return false };
        let bio = match io {
            None => Bio::flush(),
            Some(io) => self.bio(io),
        };
        if let Err(rejected) = self.channel.submit(bio.with_user_data(slot.into())) {
            self.slots.free.push(slot);
            if let Reject::Invalid(status) = rejected.reason {
                let what = || format!("{:?}: {status}", rejected.bio.op());
                self.fail(status, what());
            }
            return false;
        }
        self.slots.flights[slot as usize] = Flight { io, counted, start_ns: now_ns, issue_ns: 0 };
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
        }
        true
    }

    /// A bio of an I/O, with memory that another one left if it has the length.
    fn bio(&mut self, io: Io) -> Bio {
        let sector = io.offset >> 9;
        let op = match io.direction {
            READ => Op::Read,
            WRITE => Op::Write,
            _ => return Bio::discard(sector, SectorCount::from(io.bytes >> 9)),
        };
        let fits = |bio: &Bio| bio.len_bytes() == io.bytes as usize;
        let mut bio = match self.slots.idle.iter().rposition(fits) {
            Some(place) => self.slots.idle.swap_remove(place),
            None => {
                // What has another length makes room: as many as are in flight are kept.
                self.slots.idle.pop();
                let mut buffer = Buffer::new(io.bytes as usize);
                for word in buffer.chunks_exact_mut(8) {
                    word.copy_from_slice(&self.random.next().to_le_bytes());
                }
                Bio::read(0, buffer)
            }
        };
        bio.set_sector(sector);
        bio.set_op(op);
        if let Some(written) = &mut self.written
            && op == Op::Write
        {
            let memory = bio.memory().expect("jobs use owned buffers");
            written.stamp(io.offset / u64::from(io.bytes), memory);
        }
        bio
    }

    /// Sends off what was submitted and notes when.
    fn commit(&mut self) {
        if self.slots.batch.is_empty() {
            return;
        }
        self.channel.flush();
        let now_ns = Native::now();
        let Slots { batch, flights, .. } = &mut self.slots;
        self.tally.submitted[level(batch.len() as u32)] += 1;
        for slot in batch.drain(..) {
            flights[slot as usize].issue_ns = now_ns;
        }
    }

    /// Takes what is done; false if nothing is.
    fn reap(&mut self) -> bool {
        let mut now_ns = 0;
        let mut failed = None;
        let Worker { channel, slots, tally, written, at, .. } = self;
        let Slots { flights, free, idle, .. } = slots;
        let handed = channel.poll(|Completion { user_data: slot, status, bio }| {
            if now_ns == 0 {
                now_ns = Native::now();
            }
            let flight = flights[slot as usize];
            free.push(slot as u32);
            if !status.is_ok() {
                let op = bio.op();
                failed.get_or_insert_with(|| {
                    (status, format!("{op:?} at sector {}: {status}", bio.sector()))
                });
            }
            let slat = flight.issue_ns.saturating_sub(flight.start_ns);
            let clat = now_ns.saturating_sub(flight.issue_ns);
            let Some(io) = flight.io else {
                if flight.counted {
                    tally.sync.add(slat + clat);
                }
                return;
            };
            at.completed += 1;
            if status.is_ok() {
                tally.done(io.direction, io.bytes, (slat, clat));
            }
            if let Some(written) = written
                && io.direction == WRITE
            {
                written.landed(io.offset / u64::from(io.bytes));
            }
            if bio.op().has_data() {
                idle.push(bio);
            }
        });
        if let Some((status, text)) = failed {
            self.fail(status, text);
        }
        if handed > 0 {
            self.tally.completed[level(handed as u32)] += 1;
            self.tick(now_ns);
        }
        handed > 0
    }

    /// Notes an error, which ends the job.
    #[cold]
    fn fail(&mut self, status: Status, text: String) {
        self.tally.errors += 1;
        if self.tally.errno == 0 {
            self.tally.errno = status.errno();
        }
        self.tally.first_error.get_or_insert(text);
    }

    /// What happens now and then: the end of the ramp, samples, timeouts of the channel.
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
            let done = self.tally.flows.iter().map(|flow| flow.bytes).sum();
            self.setting.done.fetch_max(done, Ordering::Relaxed);
            self.channel.tick();
        }
    }

    /// Sleeps until something completes, or until a time; 0 for no time.
    fn sleep(&mut self, wake_ns: u64) -> Result<(), Error> {
        let channel_ns = self.channel.sleep_until().unwrap_or(u64::MAX);
        let wake_ns = if wake_ns == 0 { u64::MAX } else { wake_ns };
        let now_ns = Native::now();
        let end_ns = Some(self.clock.end_ns).filter(|end_ns| *end_ns > now_ns);
        let until_ns = channel_ns.min(wake_ns).min(now_ns + LOOK_NS);
        let until_ns = end_ns.map_or(until_ns, |end_ns| until_ns.min(end_ns));
        let channel = &*self.channel;
        self.context.turn(Some(until_ns), || channel.has_work())?;
        Ok(())
    }

    /// A flush behind all I/Os, which is not counted.
    fn end_flush(&mut self) -> Result<(), Error> {
        while !self.submit(None, false, Native::now()) {
            self.sleep(0)?;
        }
        self.commit();
        while self.channel.in_flight() > 0 {
            if !self.reap() {
                self.sleep(0)?;
            }
        }
        Ok(())
    }

    /// The measured time ends.
    fn measure_end(&mut self) {
        let now_ns = Native::now();
        let runtime_ns = now_ns - self.clock.measured_ns;
        self.tally.runtime_ns = runtime_ns;
        for flow in self.tally.flows.iter_mut().filter(|flow| flow.ios > 0) {
            flow.runtime_ns = runtime_ns;
        }
        self.tally.usage = thread_usage().since(self.clock.usage);
    }

    /// Reads every block back that was written, and checks it; these reads are counted, as in fio.
    fn read_back(&mut self, written: &Written) -> Result<(), Error> {
        let bytes = self.setting.job.shape.sizes[WRITE].least();
        let began_ns = Native::now();
        let mut result = JobResult::default();
        let mut left: Vec<u64> = written.blocks().collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        while !left.is_empty() || self.channel.in_flight() > 0 {
            while let (Some(block), Some(slot)) =
                (left.last().copied(), self.slots.free.last().copied())
                && !self.setting.interrupt.is_set()
            {
                let io = Io { direction: READ, offset: block * u64::from(bytes), bytes };
                let (bio, now_ns) = (self.bio(io), Native::now());
                if self.channel.submit(bio.with_user_data(slot.into())).is_err() {
                    break;
                }
                self.slots.flights[slot as usize] =
                    Flight { io: Some(io), counted: true, start_ns: now_ns, issue_ns: now_ns };
                (left.pop(), self.slots.free.pop());
            }
            if self.setting.interrupt.is_set() {
                left.clear();
            }
            let Worker { channel, slots, tally, .. } = self;
            let Slots { flights, free, idle, .. } = slots;
            let handed = channel.poll(|Completion { user_data: slot, status, bio }| {
                let flight = flights[slot as usize];
                free.push(slot as u32);
                let Some(io) = flight.io else { return };
                let mut bio = bio;
                let data = bio.memory().expect("jobs use owned buffers");
                let read = if status.is_ok() { Ok(&*data) } else { Err(status) };
                written.check(io.offset / u64::from(io.bytes), read, &mut result);
                let clat = Native::now().saturating_sub(flight.issue_ns);
                tally.done(READ, io.bytes, (0, clat));
                idle.push(bio);
            });
            if handed == 0 && self.channel.in_flight() > 0 {
                self.sleep(0)?;
            }
        }
        self.tally.flows[READ].runtime_ns = Native::now() - began_ns;
        self.tally.verified = result.verified;
        if let Some(text) = result.first_error {
            // fio's errno of what does not verify.
            self.tally.errno = libc::EILSEQ;
            self.tally.errors += result.errors;
            self.tally.first_error = Some(text);
        }
        Ok(())
    }
}
