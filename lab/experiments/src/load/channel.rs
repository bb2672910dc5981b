//! `ChannelTarget`: a volume of this process as the target of a job.
//!
//! Owns the job's channel and its thread's `IoContext` during the run. I/Os are bios with their own
//! memory. The job can submit a completed bio again at once, without moving the bio out of the
//! block layer. job.rs calls this file.

use std::fmt::Display;

use millrace_block::{Bio, Buffer, Channel, Op, Reject, Sector};
use millrace_machine::Native;
use millrace_runtime::IoContext;

use crate::load::error::BenchError;
use crate::load::job::{CompletionHandler, JobIo, Target};

pub(crate) struct ChannelTarget<'a> {
    pub(crate) context: &'a mut IoContext,
    pub(crate) channel: &'a mut Channel<Native>,
    pub(crate) iodepth: u32,
    pub(crate) bs_bytes: u32,
    pub(crate) spare: Option<Bio>,
}

impl JobIo for Bio {
    #[inline(always)]
    fn aim(&mut self, op: Op, sector: Sector, stamp_ns: u64) {
        self.set_sector(sector);
        self.set_user_data(stamp_ns);
        if self.op() != op {
            self.set_op(op);
        }
    }

    #[inline(always)]
    fn stamp_ns(&self) -> u64 {
        self.user_data()
    }

    #[inline(always)]
    fn op(&self) -> Op {
        self.op()
    }

    #[inline(always)]
    fn sector(&self) -> Sector {
        self.sector()
    }

    fn memory(&mut self) -> &mut [u8] {
        self.memory().expect("jobs use owned buffers")
    }

    fn failure(&self, status: &dyn Display) -> String {
        format!("{:?} at sector {}: {status}", self.op(), self.sector())
    }
}

impl Target for ChannelTarget<'_> {
    type Io = Bio;

    #[inline(always)]
    fn in_flight(&self) -> u32 {
        self.channel.in_flight()
    }

    fn fill(&mut self, most: u64, mut aim: impl FnMut(&mut Bio)) -> Result<u64, BenchError> {
        let room = u64::from(self.iodepth - self.channel.in_flight());
        for filled in 0..room.min(most) {
            let bio = self.spare.take().unwrap_or_else(|| {
                let mut bio = Bio::read(0, Buffer::new(self.bs_bytes as usize));
                aim(&mut bio);
                bio
            });
            if let Err(rejected) = self.channel.submit(bio) {
                assert_eq!(
                    rejected.reason,
                    Reject::Full,
                    "the job's offsets must lie within the volume"
                );
                self.spare = Some(rejected.bio);
                return Ok(filled);
            }
        }
        Ok(room.min(most))
    }

    #[inline(always)]
    fn turn(&mut self, to: &mut impl CompletionHandler<Bio>) -> Result<usize, BenchError> {
        let ChannelTarget { channel, bs_bytes, .. } = self;
        Ok(channel.poll_again(|bio, status| {
            if status.is_ok() {
                return to.done(bio);
            }
            restore(bio, *bs_bytes);
            to.failed(bio, &status)
        }))
    }

    fn wait(&mut self) -> Result<(), BenchError> {
        let deadline_ns = self.channel.sleep_until();
        let channel = &*self.channel;
        self.context.turn(deadline_ns, || channel.has_work())?;
        self.channel.tick();
        Ok(())
    }

    fn tick(&mut self) {
        self.channel.tick();
    }

    fn withdraw(&mut self) -> Option<Sector> {
        self.spare.take().filter(|bio| bio.op() == Op::Write).map(|bio| bio.sector())
    }
}

/// Gives new memory to a bio that timed out. The block layer has kept the bio's old memory, because
/// the drive may still write to it.
#[cold]
fn restore(bio: &mut Bio, bs_bytes: u32) {
    if !bio.op().has_data() || bio.nr_segments() > 0 {
        return;
    }
    let mut fresh = Bio::read(bio.sector(), Buffer::new(bs_bytes as usize));
    fresh.aim(bio.op(), bio.sector(), bio.user_data());
    *bio = fresh;
}
