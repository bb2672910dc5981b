//! The loop of one job: keep `iodepth` I/Os in flight on a target until told to stop.
//!
//! Runs on its own thread. A target is whatever takes the I/Os: a volume of this process
//! (channel.rs), or a client's connection or virtqueue (client.rs). The loop does what a good
//! program would: all that came back goes off again together, and it waits only when nothing is
//! done. Latency is measured here, by batch, unless the layer's accounting has it. Called by
//! bench.rs and client.rs.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millrace_block::{AfterCompletion, Op, Sector, Snapshot};
use millrace_machine::{Machine, Native};

use crate::load::error::BenchError;
use crate::load::verify::WrittenBlocks;
use crate::load::workload::{Offsets, Workload};

/// Number of a job's turns after which the job reports its progress.
const TURNS_PER_REPORT: u32 = 1024;

/// Conditions that stop a job.
pub(crate) struct StopCondition {
    /// Number of I/Os after which a job stops.
    pub(crate) ios: Option<u64>,
    /// Flag that stops the jobs when it is set.
    pub(crate) stop: AtomicBool,
    /// Number of I/Os done so far by all jobs, for a progress bar.
    pub(crate) done: AtomicU64,
}

/// Counts of a job's I/Os and errors.
#[derive(Debug, Default)]
pub(crate) struct JobResult {
    pub(crate) ios: u64,
    pub(crate) errors: u64,
    pub(crate) verified: u64,
    pub(crate) first_error: Option<String>,
    /// Number of kicks written to virtqueues, and of interrupts that ended a sleep.
    pub(crate) kicks: u64,
    pub(crate) interrupts: u64,
    /// Latencies, if the job measures them itself.
    pub(crate) latencies: Snapshot,
}

impl JobResult {
    /// Counts an error, and keeps the text of the first one.
    #[cold]
    pub(crate) fn fail(&mut self, text: impl FnOnce() -> String) {
        self.errors += 1;
        self.first_error.get_or_insert_with(text);
    }
}

/// I/O of a job, with the memory that it keeps for the next one.
pub(crate) trait JobIo {
    /// Sets the operation and the place of the next submission.
    fn aim(&mut self, op: Op, sector: Sector, stamp_ns: u64);
    /// Returns the time at which `aim` was called, in nanoseconds.
    fn stamp_ns(&self) -> u64;
    fn op(&self) -> Op;
    fn sector(&self) -> Sector;
    /// Returns the data of the I/O, for jobs that verify.
    fn memory(&mut self) -> &mut [u8];
    /// Returns the text of a failure with this status.
    fn failure(&self, status: &dyn Display) -> String;
}

/// Receiver of a job's I/Os, as fio's `ioengine_ops`.
pub(crate) trait Target {
    type Io: JobIo;
    /// Returns the number of I/Os that were submitted and have not been handed out.
    fn in_flight(&self) -> u32;
    /// Aims and submits idle I/Os, `most` at most; returns the number that the target accepted.
    fn fill(&mut self, most: u64, aim: impl FnMut(&mut Self::Io)) -> Result<u64, BenchError>;
    /// Hands out completions, with the status of failed ones. An I/O for which `next` returns
    /// `Submit`, having aimed it, is submitted again. Returns the number of completions.
    fn turn(
        &mut self,
        next: impl FnMut(&mut Self::Io, Option<&dyn Display>) -> AfterCompletion,
    ) -> Result<usize, BenchError>;
    /// Waits until an I/O may be done.
    fn wait(&mut self) -> Result<(), BenchError>;
    /// Checks for timeouts; called from time to time while I/Os are in flight.
    fn tick(&mut self) {}
    /// Returns the place of a write that was aimed and not accepted; it will not be submitted.
    fn withdraw(&mut self) -> Option<Sector> {
        None
    }
}

/// Places that a job's I/Os go to.
pub(crate) struct Aim {
    workload: Workload,
    offsets: Offsets,
    written: Option<WrittenBlocks>,
}

impl Aim {
    /// Creates the aim of job `job` of `jobs`, on a device with `blocks` blocks of the workload's
    /// size.
    pub(crate) fn new(workload: Workload, blocks: u64, place: (u64, u64)) -> Aim {
        let offsets = Offsets::new(&workload, blocks, place);
        Aim { offsets, written: WrittenBlocks::new(&workload), workload }
    }

    fn sectors(&self) -> u64 {
        u64::from(self.workload.bs_bytes >> 9)
    }

    /// Aims an I/O at the next place, with the operation to do there.
    #[inline(always)]
    fn next(&mut self, io: &mut impl JobIo, now_ns: u64) {
        let (block, op) = match &mut self.written {
            None => self.offsets.next_io(),
            Some(written) => written.next_io(&mut self.offsets),
        };
        io.aim(op, block * self.sectors(), now_ns);
        if let Some(written) = &mut self.written
            && op == Op::Write
        {
            written.stamp(block, io.memory());
        }
    }
}

/// Job with its target.
pub(crate) struct Job<T> {
    pub(crate) target: T,
    pub(crate) aim: Aim,
    /// The job measures latencies itself.
    pub(crate) measure: bool,
}

impl<T: Target> Job<T> {
    /// Runs the job until it is told to stop, and drains it.
    pub(crate) fn run(&mut self, until: &StopCondition) -> Result<JobResult, BenchError> {
        let mut result = JobResult::default();
        let quota = until.ios.unwrap_or(u64::MAX);
        let mut submitted = self.fill(quota)?;
        let (mut reported, mut round) = (0, 0u32);
        while self.target.in_flight() > 0 {
            let stopping = until.stop.load(Ordering::Relaxed);
            let left = if stopping { 0 } else { quota - submitted };
            let (handed, again) = self.turn(left, &mut result)?;
            submitted += again;
            if handed == 0 {
                // I/Os that back pressure kept out may be accepted now.
                match self.fill(left)? {
                    0 => self.target.wait()?,
                    filled => submitted += filled,
                }
            }
            round = round.wrapping_add(1);
            if round.is_multiple_of(TURNS_PER_REPORT) {
                until.done.fetch_add(result.ios - reported, Ordering::Relaxed);
                reported = result.ios;
                self.target.tick();
            }
        }
        until.done.fetch_add(result.ios - reported, Ordering::Relaxed);
        Ok(result)
    }

    /// Brings the job up to its depth, with `most` I/Os at most and as many as the target accepts.
    fn fill(&mut self, most: u64) -> Result<u64, BenchError> {
        let Job { target, aim, .. } = self;
        target.fill(most, |io| aim.next(io, Native::now()))
    }

    /// Submits I/Os that completed again, up to `left` of them. Returns the number of completions,
    /// and of submissions.
    #[inline(always)]
    fn turn(&mut self, left: u64, result: &mut JobResult) -> Result<(usize, u64), BenchError> {
        let (mut again, mut equal) = (0, (0, 0));
        let mut now_ns = 0;
        let Job { target, aim, measure, .. } = self;
        let handed = target.turn(|io, failed| {
            if *measure {
                if now_ns == 0 {
                    now_ns = Native::now();
                }
                if equal.0 != io.stamp_ns() && equal.1 != 0 {
                    result.latencies.add(now_ns.saturating_sub(equal.0), equal.1);
                    equal.1 = 0;
                }
                equal = (io.stamp_ns(), equal.1 + 1);
            }
            if let Some(status) = failed {
                result.fail(|| io.failure(status));
            }
            if let Some(written) = &mut aim.written
                && io.op() == Op::Write
            {
                written.landed(io.sector() / u64::from(aim.workload.bs_bytes >> 9));
            }
            if again == left {
                return AfterCompletion::Drop;
            }
            again += 1;
            aim.next(io, now_ns);
            AfterCompletion::Submit
        })?;
        if equal.1 != 0 {
            result.latencies.add(now_ns.saturating_sub(equal.0), equal.1);
        }
        result.ios += handed as u64;
        Ok((handed, again))
    }

    /// Reads every block written and compares it with its last generation, if the job is to verify.
    pub(crate) fn read_back(&mut self, result: &mut JobResult) -> Result<(), BenchError> {
        let Some(mut written) = self.aim.written.take() else { return Ok(()) };
        let (target, sectors) = (&mut self.target, self.aim.sectors());
        if let Some(sector) = target.withdraw() {
            written.unstamp(sector / sectors);
        }
        let blocks: Vec<u64> = written.blocks().collect();
        let (mut left, mut submitted) = (blocks.iter(), 0);
        let mut aim = |io: &mut T::Io| {
            let block = left.next().expect("no more are filled than there are");
            io.aim(Op::Read, block * sectors, 0);
        };
        loop {
            submitted += target.fill(blocks.len() as u64 - submitted, &mut aim)?;
            if target.in_flight() == 0 {
                return Ok(());
            }
            let handed = target.turn(|io, failed| {
                let block = io.sector() / sectors;
                written.check(block, failed.map_or_else(|| Ok(&*io.memory()), Err), result);
                AfterCompletion::Drop
            })?;
            if handed == 0 {
                target.wait()?;
            }
        }
    }
}
