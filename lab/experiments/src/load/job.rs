//! The loop of one job: keeps `iodepth` I/Os in flight on a target until the job must stop.
//!
//! Each job runs on its own thread. The target of its I/Os is a volume of this process
//! (channel.rs), or a client's connection or virtqueue (client.rs). Like an efficient program, the
//! loop submits all completed I/Os again together, and waits only if no I/O has completed. The loop
//! measures the latencies of batches, unless the block layer's accounting measures latencies.
//! bench.rs and client.rs call this file.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millrace_block::{AfterCompletion, Op, Sector, Snapshot};
use millrace_machine::{Machine, Native};

use crate::load::error::BenchError;
use crate::load::verify::WrittenBlocks;
use crate::load::workload::{Offsets, Workload};

const IOS_PER_REPORT: u64 = 1024;

pub(crate) struct StopCondition {
    pub(crate) ios: Option<u64>,
    pub(crate) stop: AtomicBool,
    pub(crate) done: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct JobResult {
    pub(crate) ios: u64,
    pub(crate) errors: u64,
    pub(crate) verified: u64,
    pub(crate) first_error: Option<String>,
    pub(crate) kicks: u64,
    pub(crate) interrupts: u64,
    pub(crate) latencies: Snapshot,
}

impl JobResult {
    #[cold]
    pub(crate) fn fail(&mut self, text: impl FnOnce() -> String) {
        self.errors += 1;
        self.first_error.get_or_insert_with(text);
    }
}

/// An I/O of a job. The job submits it again, with the same memory, after each completion.
pub(crate) trait JobIo {
    fn aim(&mut self, op: Op, sector: Sector, stamp_ns: u64);
    fn stamp_ns(&self) -> u64;
    fn op(&self) -> Op;
    fn sector(&self) -> Sector;
    fn memory(&mut self) -> &mut [u8];
    fn failure(&self, status: &dyn Display) -> String;
}

/// Handler that a target calls for each completion. If the handler returns `Submit`, the target
/// submits the I/O again, with the operation and offset that the handler has set.
pub(crate) trait CompletionHandler<Io> {
    fn done(&mut self, io: &mut Io) -> AfterCompletion;
    fn failed(&mut self, io: &mut Io, status: &dyn Display) -> AfterCompletion;
}

/// Target of a job's I/Os. Counterpart: `ioengine_ops` of fio.
pub(crate) trait Target {
    type Io: JobIo;
    /// Returns the number of submitted I/Os whose completions the handler has not received yet.
    fn in_flight(&self) -> u32;
    /// Submits up to `most` idle I/Os. Calls `aim` for each I/O first, to set its operation and
    /// offset. Returns the number of I/Os that the target accepted.
    fn fill(&mut self, most: u64, aim: impl FnMut(&mut Self::Io)) -> Result<u64, BenchError>;
    fn turn(&mut self, to: &mut impl CompletionHandler<Self::Io>) -> Result<usize, BenchError>;
    fn wait(&mut self) -> Result<(), BenchError>;
    /// Checks for request timeouts. Called from time to time while I/Os are in flight.
    fn tick(&mut self) {}
    /// Cancels a prepared write that the target did not accept, and returns the write's offset.
    fn withdraw(&mut self) -> Option<Sector> {
        None
    }
}

pub(crate) struct Aim {
    sectors: u64,
    offsets: Offsets,
    written: Option<WrittenBlocks>,
}

impl Aim {
    pub(crate) fn new(workload: Workload, blocks: u64, place: (u64, u64)) -> Aim {
        let offsets = Offsets::new(&workload, blocks, place);
        let sectors = u64::from(workload.bs_bytes >> 9);
        Aim { sectors, offsets, written: WrittenBlocks::new(&workload) }
    }

    #[inline(always)]
    fn next(&mut self, io: &mut impl JobIo, now_ns: u64) {
        match &mut self.written {
            None => {
                let (block, op) = self.offsets.next_io();
                io.aim(op, block * self.sectors, now_ns);
            }
            Some(written) => {
                let (block, op) = written.next_io(&mut self.offsets);
                io.aim(op, block * self.sectors, now_ns);
                if op == Op::Write {
                    written.stamp(block, io.memory());
                }
            }
        }
    }

    fn done(&mut self, io: &impl JobIo) {
        if let Some(written) = &mut self.written
            && io.op() == Op::Write
        {
            written.landed(io.sector() / self.sectors);
        }
    }
}

struct JobTurn<'a> {
    aim: &'a mut Aim,
    result: &'a mut JobResult,
    measure: bool,
    left: u64,
    /// Time of the present batch of completions in nanoseconds; 0 if not read yet.
    now_ns: u64,
    /// Start time of the most recent completions in this batch, and their number. All of them have
    /// the same latency, because `now_ns` is the same, too. So they are recorded together.
    equal: (u64, u64),
}

impl JobTurn<'_> {
    #[inline(always)]
    fn measure(&mut self, stamp_ns: u64) {
        if self.now_ns == 0 {
            self.now_ns = Native::now();
        }
        if self.equal.0 != stamp_ns {
            self.record();
            self.equal = (stamp_ns, 0);
        }
        self.equal.1 += 1;
    }

    #[inline(always)]
    fn next(&mut self, io: &mut impl JobIo) -> AfterCompletion {
        let Some(left) = self.left.checked_sub(1) else { return AfterCompletion::Drop };
        self.left = left;
        self.aim.next(io, self.now_ns);
        AfterCompletion::Submit
    }

    #[cold]
    fn next_verified(&mut self, io: &mut impl JobIo) -> AfterCompletion {
        self.aim.done(io);
        self.next(io)
    }

    fn record(&mut self) {
        if self.equal.1 != 0 {
            self.result.latencies.add(self.now_ns.saturating_sub(self.equal.0), self.equal.1);
            self.equal.1 = 0;
        }
    }

    #[inline(always)]
    fn end(&mut self, handed: usize) {
        self.result.ios += handed as u64;
        if self.measure {
            self.record();
            self.now_ns = 0;
        }
    }

    fn fill(&mut self, target: &mut impl Target) -> Result<u64, BenchError> {
        let aim = &mut *self.aim;
        let filled = target.fill(self.left, |io| aim.next(io, Native::now()))?;
        self.left -= filled;
        Ok(filled)
    }
}

impl<Io: JobIo> CompletionHandler<Io> for JobTurn<'_> {
    #[inline(always)]
    fn done(&mut self, io: &mut Io) -> AfterCompletion {
        if self.measure {
            self.measure(io.stamp_ns());
        }
        match self.aim.written {
            None => self.next(io),
            Some(_) => self.next_verified(io),
        }
    }

    #[cold]
    fn failed(&mut self, io: &mut Io, status: &dyn Display) -> AfterCompletion {
        self.result.fail(|| io.failure(status));
        self.done(io)
    }
}

struct ReadBack<'a> {
    written: &'a WrittenBlocks,
    result: &'a mut JobResult,
    sectors: u64,
}

impl<Io: JobIo> CompletionHandler<Io> for ReadBack<'_> {
    fn done(&mut self, io: &mut Io) -> AfterCompletion {
        let block = io.sector() / self.sectors;
        self.written.check(block, Ok::<_, &dyn Display>(&*io.memory()), self.result);
        AfterCompletion::Drop
    }

    fn failed(&mut self, io: &mut Io, status: &dyn Display) -> AfterCompletion {
        self.written.check(io.sector() / self.sectors, Err(status), self.result);
        AfterCompletion::Drop
    }
}

pub(crate) struct Job<T> {
    pub(crate) target: T,
    pub(crate) aim: Aim,
    pub(crate) measure: bool,
}

impl<T: Target> Job<T> {
    pub(crate) fn run(&mut self, until: &StopCondition) -> Result<JobResult, BenchError> {
        let mut result = JobResult::default();
        let Job { target, aim, measure } = self;
        let (left, measure) = (until.ios.unwrap_or(u64::MAX), *measure);
        let mut turn =
            JobTurn { aim, result: &mut result, measure, left, now_ns: 0, equal: (0, 0) };
        turn.fill(target)?;
        let mut reported = 0;
        loop {
            if until.stop.load(Ordering::Relaxed) {
                turn.left = 0;
            }
            let handed = target.turn(&mut turn)?;
            turn.end(handed);
            // After a poll without completions, try to submit: the target may accept I/Os that it
            // rejected before.
            if handed == 0 && turn.fill(target)? == 0 {
                if target.in_flight() == 0 {
                    break;
                }
                target.wait()?;
            }
            if turn.result.ios >= reported + IOS_PER_REPORT {
                until.done.fetch_add(turn.result.ios - reported, Ordering::Relaxed);
                reported = turn.result.ios;
                target.tick();
            }
        }
        until.done.fetch_add(result.ios - reported, Ordering::Relaxed);
        Ok(result)
    }

    /// If the job verifies, reads each written block back and compares the block with its last
    /// write.
    pub(crate) fn read_back(&mut self, result: &mut JobResult) -> Result<(), BenchError> {
        let Some(mut written) = self.aim.written.take() else { return Ok(()) };
        let (target, sectors) = (&mut self.target, self.aim.sectors);
        if let Some(sector) = target.withdraw() {
            written.unstamp(sector / sectors);
        }
        let blocks: Vec<u64> = written.blocks().collect();
        let (mut left, mut submitted) = (blocks.iter(), 0);
        let mut aim = |io: &mut T::Io| {
            let block =
                left.next().expect("reading back must end once all written blocks are read");
            io.aim(Op::Read, block * sectors, 0);
        };
        loop {
            submitted += target.fill(blocks.len() as u64 - submitted, &mut aim)?;
            if target.in_flight() == 0 {
                return Ok(());
            }
            let handed = target.turn(&mut ReadBack { written: &written, result, sectors })?;
            if handed == 0 {
                target.wait()?;
            }
        }
    }
}
