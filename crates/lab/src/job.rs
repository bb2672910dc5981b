//! The loop of one job: keep `iodepth` I/Os in flight on a channel until told to stop.
//!
//! Runs on its own thread with its own `IoContext`; called by bench.rs. The loop does what a good
//! program would: one flush for all that came back, one poll, and a turn of the ring only when
//! nothing is done. Latency is taken from the layer's accounting where every bio goes to one drive
//! whole, and measured here, by batch, where the layer may split.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millrace_block::{BUFFER_ALIGN, Bio, Buffer, Channel, Completion, Error, Op, Reject, Snapshot};
use millrace_drives::IoContext;
use millrace_machine::{Machine, Native};

use crate::verify;
use crate::workload::{Offsets, Workload};

/// When a job stops.
pub(crate) struct Until {
    /// After this many I/Os.
    pub(crate) ios: Option<u64>,
    /// When this is set.
    pub(crate) stop: AtomicBool,
    /// I/Os done so far by all jobs, for a progress bar.
    pub(crate) done: AtomicU64,
}

/// What a job did.
#[derive(Debug, Default)]
pub(crate) struct JobResult {
    pub(crate) ios: u64,
    pub(crate) errors: u64,
    pub(crate) verified: u64,
    pub(crate) first_error: Option<String>,
    /// Only if measured here.
    pub(crate) latencies: Snapshot,
}

/// One job.
pub(crate) struct Job<'a> {
    pub(crate) context: &'a mut IoContext,
    pub(crate) channel: &'a mut Channel<Native>,
    pub(crate) workload: Workload,
    pub(crate) offsets: Offsets,
    pub(crate) measure: bool,
    /// Last generation written, by block; only with `verify`.
    pub(crate) written: HashMap<u64, u64>,
}

impl Job<'_> {
    /// Runs until told to stop, and drains; then reads back what it wrote if it is to verify.
    pub(crate) fn run(&mut self, until: &Until) -> Result<JobResult, Error> {
        let mut result = JobResult::default();
        let mut ready: Vec<Bio> = (0..self.workload.iodepth).map(|_| self.fresh()).collect();
        let quota = until.ios.unwrap_or(u64::MAX);
        let (mut submitted, mut reported, mut round) = (0, 0, 0u32);
        loop {
            let stopping = submitted >= quota || until.stop.load(Ordering::Relaxed);
            if !stopping {
                submitted += self.submit_ready(&mut ready, quota - submitted);
                self.channel.flush();
            }
            if self.channel.in_flight() == 0 {
                break;
            }
            if self.reap(&mut ready, &mut result) == 0 {
                self.sleep()?;
            }
            round = round.wrapping_add(1);
            if round.is_multiple_of(1024) {
                until.done.fetch_add(result.ios - reported, Ordering::Relaxed);
                reported = result.ios;
                self.channel.tick();
            }
        }
        until.done.fetch_add(result.ios - reported, Ordering::Relaxed);
        if self.workload.verify {
            self.read_back(&mut result)?;
        }
        Ok(result)
    }

    fn fresh(&self) -> Bio {
        debug_assert!(BUFFER_ALIGN >= 512);
        Bio::read(0, Buffer::new(self.workload.bs_bytes as usize))
    }

    #[inline]
    fn submit_ready(&mut self, ready: &mut Vec<Bio>, most: u64) -> u64 {
        let sectors = u64::from(self.workload.bs_bytes >> 9);
        let now_ns = if self.measure { Native::now() } else { 0 };
        let (mut submitted, verify) = (0, self.workload.verify);
        while submitted < most {
            let Some(mut bio) = ready.pop() else { break };
            let (block, op) = self.offsets.next_io();
            bio.set_sector(block * sectors);
            bio.set_user_data(now_ns);
            if bio.op() != op || verify {
                bio = self.rewrite(bio, block, op);
            }
            match self.channel.submit(bio) {
                Ok(()) => submitted += 1,
                Err(rejected) => {
                    assert!(rejected.reason == Reject::Full, "{:?}", rejected.reason);
                    ready.push(rejected.bio);
                    break;
                }
            }
        }
        submitted
    }

    /// Turns a read into a write or back, and stamps what is to be verified.
    #[inline(never)]
    fn rewrite(&mut self, bio: Bio, block: u64, op: Op) -> Bio {
        let (sector, user_data) = (bio.sector(), bio.user_data());
        let mut buffer = bio.into_buffer().expect("jobs use owned buffers");
        if op == Op::Read {
            return Bio::read(sector, buffer).with_user_data(user_data);
        }
        if self.workload.verify {
            let generation = self.written.entry(block).or_insert(0);
            *generation += 1;
            verify::stamp(&mut buffer, sector << 9, *generation);
        }
        Bio::write(sector, buffer).with_user_data(user_data)
    }

    #[inline]
    fn reap(&mut self, ready: &mut Vec<Bio>, result: &mut JobResult) -> usize {
        let (mut errors, mut first) = (0, None);
        let (mut equal, mut now_ns) = ((0, 0), 0);
        let (measure, latencies) = (self.measure, &mut result.latencies);
        let handed = self.channel.poll(|Completion { user_data, status, bio }| {
            if measure {
                if now_ns == 0 {
                    now_ns = Native::now();
                }
                if equal.0 != user_data && equal.1 != 0 {
                    latencies.add(now_ns.saturating_sub(equal.0), equal.1);
                    equal.1 = 0;
                }
                equal = (user_data, equal.1 + 1);
            }
            if !status.is_ok() {
                errors += 1;
                first.get_or_insert((bio.op(), bio.sector(), status));
            }
            ready.push(bio);
        });
        if equal.1 != 0 {
            latencies.add(now_ns.saturating_sub(equal.0), equal.1);
        }
        result.ios += handed as u64;
        result.errors += errors;
        if let (None, Some((op, sector, status))) = (&result.first_error, first) {
            result.first_error = Some(format!("{op:?} at sector {sector}: {status}"));
        }
        handed
    }

    /// Sleeps in the ring until something completes.
    fn sleep(&mut self) -> Result<(), Error> {
        let deadline_ns = self.channel.sleep_until();
        let channel = &*self.channel;
        self.context.turn(deadline_ns, || channel.has_work())?;
        Ok(())
    }

    /// Reads every block written and compares it with its last generation.
    fn read_back(&mut self, result: &mut JobResult) -> Result<(), Error> {
        let bs = self.workload.bs_bytes;
        let sectors = u64::from(bs >> 9);
        let written = std::mem::take(&mut self.written);
        let mut left = written.keys();
        let mut wrong = Vec::new();
        loop {
            let room = self.workload.iodepth - self.channel.in_flight();
            for block in left.by_ref().take(room as usize) {
                let bio = Bio::read(block * sectors, Buffer::new(bs as usize));
                let bio = bio.with_user_data(*block);
                self.channel.submit(bio).expect("below the channel's depth");
            }
            if self.channel.in_flight() == 0 {
                break;
            }
            let mut verified = 0;
            let handed = self.channel.poll(|Completion { user_data: block, status, bio }| {
                let offset = bio.sector() << 9;
                let data = bio.into_buffer().expect("jobs use owned buffers");
                let outcome = match status.is_ok() {
                    true => verify::check(&data, offset, written[&block]),
                    false => Err(format!("offset {offset}: {status}")),
                };
                match outcome {
                    Ok(()) => verified += 1,
                    Err(text) => wrong.push(text),
                }
            });
            result.verified += verified;
            if handed == 0 {
                self.sleep()?;
            }
        }
        result.errors += wrong.len() as u64;
        if let (None, Some(text)) = (&result.first_error, wrong.first()) {
            result.first_error = Some(format!("verify: {text}"));
        }
        Ok(())
    }
}
