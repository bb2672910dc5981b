//! The loop of one job: keep `iodepth` I/Os in flight on a channel until told to stop.
//!
//! Runs on its own thread with its own `IoContext`; called by bench.rs. The loop does what a good
//! program would: one flush for all that came back, one poll, and a turn of the ring only when
//! nothing is done. Latency is taken from the layer's accounting where every bio goes to one drive
//! whole, and measured here, by batch, where the layer may split.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millrace_block::{
    AfterCompletion, Bio, Buffer, Channel, Completion, Error, Op, Reject, Sector, Snapshot,
};
use millrace_machine::{Machine, Native};
use millrace_runtime::IoContext;

use crate::load::verify::WrittenBlocks;
use crate::load::workload::{Offsets, Workload};

/// When a job stops.
pub(crate) struct StopCondition {
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
    /// Of virtqueues: kicks written, and interrupts that ended a sleep.
    pub(crate) kicks: u64,
    pub(crate) interrupts: u64,
    /// Only if measured here.
    pub(crate) latencies: Snapshot,
}

impl JobResult {
    /// Counts an error and keeps the text of the first.
    #[cold]
    pub(crate) fn fail(&mut self, text: impl FnOnce() -> String) {
        self.errors += 1;
        self.first_error.get_or_insert_with(text);
    }
}

/// Points a bio at the next place and says what it does there.
#[inline(always)]
fn aim(
    bio: &mut Bio,
    (workload, offsets, written): (&Workload, &mut Offsets, &mut Option<WrittenBlocks>),
    now_ns: u64,
) {
    let (block, op) = match written {
        None => offsets.next_io(),
        Some(written) => written.next_io(offsets),
    };
    bio.set_sector(block * u64::from(workload.bs_bytes >> 9));
    bio.set_user_data(now_ns);
    bio.set_op(op);
    if let Some(written) = written
        && op == Op::Write
    {
        written.stamp(block, bio.memory().expect("jobs use owned buffers"));
    }
}

/// A bio of a job with memory of its own.
#[cold]
fn bio_of(op: Op, sector: Sector, bs_bytes: u32) -> Bio {
    let mut bio = Bio::read(sector, Buffer::new(bs_bytes as usize));
    bio.set_op(op);
    bio
}

/// One job.
pub(crate) struct Job<'a> {
    pub(crate) context: &'a mut IoContext,
    pub(crate) channel: &'a mut Channel<Native>,
    pub(crate) workload: Workload,
    pub(crate) offsets: Offsets,
    pub(crate) measure: bool,
    pub(crate) written: Option<WrittenBlocks>,
    /// An I/O that the stack did not take yet.
    pub(crate) spare: Option<Bio>,
}

impl Job<'_> {
    /// Runs until told to stop, and drains; then reads back what it wrote if it is to verify.
    pub(crate) fn run(&mut self, until: &StopCondition) -> Result<JobResult, Error> {
        let mut result = JobResult::default();
        let quota = until.ios.unwrap_or(u64::MAX);
        let mut submitted = self.fill(quota);
        let (mut reported, mut round) = (0, 0u32);
        while self.channel.in_flight() > 0 {
            let stopping = until.stop.load(Ordering::Relaxed);
            let left = if stopping { 0 } else { quota - submitted };
            let (handed, again) = self.turn(left, &mut result);
            submitted += again;
            if handed == 0 {
                // What back pressure kept out may be let in now.
                match self.fill(left) {
                    0 => self.sleep()?,
                    filled => submitted += filled,
                }
            }
            round = round.wrapping_add(1);
            if round.is_multiple_of(1024) {
                until.done.fetch_add(result.ios - reported, Ordering::Relaxed);
                reported = result.ios;
                self.channel.tick();
            }
        }
        until.done.fetch_add(result.ios - reported, Ordering::Relaxed);
        if let Some(written) = self.written.take() {
            self.read_back(&written, &mut result)?;
        }
        Ok(result)
    }

    /// Brings the job up to its depth, with `most` I/Os at most and as many as the stack takes.
    fn fill(&mut self, most: u64) -> u64 {
        let room = u64::from(self.workload.iodepth - self.channel.in_flight());
        for filled in 0..room.min(most) {
            let bio = self.spare.take().unwrap_or_else(|| {
                let mut bio = Bio::read(0, Buffer::new(self.workload.bs_bytes as usize));
                let aimed = (&self.workload, &mut self.offsets, &mut self.written);
                aim(&mut bio, aimed, Native::now());
                bio
            });
            if let Err(rejected) = self.channel.submit(bio) {
                assert_eq!(rejected.reason, Reject::Full, "offsets lie inside");
                self.spare = Some(rejected.bio);
                return filled;
            }
        }
        room.min(most)
    }

    /// One poll: completed bios go off again, up to `left` of them. Returns how many came back and
    /// how many went off.
    #[inline(always)]
    fn turn(&mut self, left: u64, result: &mut JobResult) -> (usize, u64) {
        let measure = self.measure;
        let (mut again, mut equal) = (0, (0, 0));
        let mut now_ns = 0;
        // The channel and the rest of the job are borrowed apart.
        let Job { channel, workload, offsets, written, .. } = self;
        let handed = channel.poll_again(|bio, status| {
            if measure {
                if now_ns == 0 {
                    now_ns = Native::now();
                }
                if equal.0 != bio.user_data() && equal.1 != 0 {
                    result.latencies.add(now_ns.saturating_sub(equal.0), equal.1);
                    equal.1 = 0;
                }
                equal = (bio.user_data(), equal.1 + 1);
            }
            if !status.is_ok() {
                result.fail(|| format!("{:?} at sector {}: {status}", bio.op(), bio.sector()));
                if bio.op().has_data() && bio.nr_segments() == 0 {
                    // The drive may still write what it had: the layer has kept it.
                    *bio = bio_of(bio.op(), bio.sector(), workload.bs_bytes);
                }
            }
            if let Some(written) = written
                && bio.op() == Op::Write
            {
                written.landed(bio.sector() / u64::from(workload.bs_bytes >> 9));
            }
            if again == left {
                return AfterCompletion::Drop;
            }
            again += 1;
            aim(bio, (workload, offsets, written), now_ns);
            AfterCompletion::Submit
        });
        if equal.1 != 0 {
            result.latencies.add(now_ns.saturating_sub(equal.0), equal.1);
        }
        result.ios += handed as u64;
        (handed, again)
    }

    /// Sleeps in the ring until something completes, or it is time to look for timeouts.
    fn sleep(&mut self) -> Result<(), Error> {
        let deadline_ns = self.channel.sleep_until();
        let channel = &*self.channel;
        self.context.turn(deadline_ns, || channel.has_work())?;
        self.channel.tick();
        Ok(())
    }

    /// Reads every block written and compares it with its last generation.
    fn read_back(&mut self, written: &WrittenBlocks, result: &mut JobResult) -> Result<(), Error> {
        let bs = self.workload.bs_bytes;
        let sectors = u64::from(bs >> 9);
        let mut left = written.blocks().peekable();
        loop {
            while let Some(block) = left.peek().copied()
                && self.channel.in_flight() < self.workload.iodepth
            {
                let bio = Bio::read(block * sectors, Buffer::new(bs as usize));
                if let Err(rejected) = self.channel.submit(bio.with_user_data(block)) {
                    assert_eq!(rejected.reason, Reject::Full, "offsets lie inside");
                    break;
                }
                left.next();
            }
            if self.channel.in_flight() == 0 {
                break;
            }
            let handed =
                self.channel.poll(|Completion { user_data: block, status, bio, .. }| {
                    let data = bio.into_buffer().expect("jobs use owned buffers");
                    let read = if status.is_ok() { Ok(&data[..]) } else { Err(status) };
                    written.check(block, read, result);
                });
            if handed == 0 {
                self.sleep()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use millrace_block::{Disk, DiskConfig, Stamp, Volume};
    use millrace_runtime::IoConfig;

    use super::*;
    use crate::load::workload::Rw;

    #[test]
    fn an_io_after_one_that_timed_out_has_memory_of_its_own() {
        // Each is answered long after its time.
        let spec = "fault:drive=(ram:size=16m),latency=2500ms".parse().unwrap();
        let driver = millrace_drives::open(&spec, 8).unwrap().driver;
        let timeout_ns = Duration::from_millis(20).as_nanos() as u64;
        let disk = Disk::new(driver, DiskConfig { timeout_ns, ..DiskConfig::default() }).unwrap();
        let volume = Volume::single(disk).unwrap();
        let mut context = IoContext::new(IoConfig::default()).unwrap();
        let mut channel = context.channel(&volume, 4, Stamp::Batch).unwrap();
        let workload =
            Workload { rw: Rw::RandRead, bs_bytes: 4096, iodepth: 4, verify: false, seed: 1 };
        let offsets = Offsets::new(&workload, 4096, (0, 1));
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut job = Job {
            context: &mut context,
            channel: &mut channel,
            workload,
            offsets,
            measure: true,
            written: None,
            spare: None,
        };
        let result = job.run(&StopCondition { ios: Some(8), stop, done }).unwrap();
        assert_eq!(result.ios, 8);
        assert!(result.errors >= 4, "{}", result.errors);
        // The drive had each of them; none was refused for its lack of memory.
        assert_eq!(volume.disks()[0].failures().count, result.errors);
    }
}
