//! Verification: reads back the blocks that a job wrote, and checks them.
//!
//! At the end of a job with `verify`, its `Worker` reads once each block that it wrote, and
//! compares the block with the last generation written. The job's counts include these reads, as in
//! fio.

use millrace_block::{Completion, Error};
use millrace_machine::{Machine, Native};

use super::io_slots::{FlushAccounting, IoInFlight, Slots};
use super::source::{Io, READ, WRITE};
use super::worker::Worker;
use crate::load::job::JobResult;
use crate::load::verify::WrittenBlocks;

impl Worker<'_> {
    pub(super) fn read_back(&mut self, written: &WrittenBlocks) -> Result<(), Error> {
        let bytes = self.setting.job.shape.sizes[WRITE].least();
        let began_ns = Native::now();
        let mut result = JobResult::default();
        let mut left: Vec<u64> = written.blocks().collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        while !left.is_empty() || self.channel.in_flight() > 0 {
            while let (Some(offset), Some(slot)) =
                (left.last().copied(), self.slots.free.last().copied())
                && !self.setting.interrupt.is_set()
            {
                let io = Io { direction: READ, offset, bytes };
                let (bio, now_ns) = (self.slots.bio(io, None), Native::now());
                if self.channel.submit(bio.with_user_data(slot.into())).is_err() {
                    break;
                }
                self.slots.flights[slot as usize] = IoInFlight {
                    io: Some(io),
                    counted: FlushAccounting::Yes,
                    start_ns: now_ns,
                    issue_ns: now_ns,
                };
                left.pop();
                self.slots.free.pop();
            }
            if self.setting.interrupt.is_set() {
                left.clear();
            }
            let Worker { channel, slots, tally, .. } = self;
            let Slots { flights, free, idle, .. } = slots;
            let handed = channel.poll(|Completion { user_data: slot, status, bio, .. }| {
                let flight = flights[slot as usize];
                free.push(slot as u32);
                let Some(io) = flight.io else { return };
                let mut bio = bio;
                let data = bio.memory().expect("jobs use owned buffers");
                let read = if status.is_ok() { Ok(&*data) } else { Err(status) };
                written.check(io.offset, read, &mut result);
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
            // Errno that fio reports for blocks that fail verification.
            self.tally.errno = libc::EILSEQ;
            self.tally.errors += result.errors;
            self.tally.first_error = Some(text);
        }
        Ok(())
    }
}
