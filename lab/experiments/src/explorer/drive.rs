//! `ModelDrive`: a model driver for the simulated machine that stores data and injects faults.
//!
//! The drive's queues check every request against the driver's limits, and complete requests in the
//! order of random deadlines. The scenario decides when queues are busy, slow, stuck or dead. A
//! sector's content is a number (stamp) that names the writing bio. `Oracle`, the model of a
//! correct run, holds the contents. The block layer calls a queue under its serve lock, which one
//! thread at a time holds. Invariant: no thread holds the oracle's lock while it calls the machine.
#![allow(unsafe_code)]

use std::sync::Arc;

use millrace_block::{
    CompletionBatch, Dispatch, Driver, DriverQueue, Error, Expired, HwQueues, Op, OpFlags,
    QueueKind, QueueLimits, Request, Sector, Status, Tag, TagScope,
};
use millrace_machine::{Machine, Topology};
use millrace_simulator::Simulated;

use super::disk_image::RequestOutcome;
use super::oracle::{FailedRequest, MemoryRange, Oracle, SharedOracle};
use super::oracle_lock::lock_oracle;
use super::scenario::DriveSpec;

pub(super) struct ModelDrive {
    pub(super) number: usize,
    pub(super) spec: DriveSpec,
    pub(super) oracle: SharedOracle,
    pub(super) immediate: bool,
}

impl Driver<Simulated> for ModelDrive {
    fn capacity(&self) -> Sector {
        lock_oracle(&self.oracle).media[self.number].sectors
    }

    fn revalidate(&self) -> Result<Sector, Error> {
        Ok(self.capacity())
    }

    fn limits(&self) -> QueueLimits {
        self.spec.limits.limits()
    }

    fn hw_queues(&self, _: &Topology) -> HwQueues {
        let kind = if self.spec.owned { QueueKind::OwnerOnly } else { QueueKind::AnyThread };
        let tags = if self.spec.drive_tags { TagScope::PerDrive } else { TagScope::PerQueue };
        HwQueues { count: self.spec.queues, depth: self.spec.depth, kind, tags }
    }

    fn is_immediate(&self) -> bool {
        self.immediate
    }

    fn open_queue(&self, _: u16, depth: u32) -> Result<Box<dyn DriverQueue<Simulated>>, Error> {
        Ok(Box::new(ModelQueue {
            drive: self.number,
            limits: self.spec.limits.limits(),
            depth,
            oracle: Arc::clone(&self.oracle),
            immediate: self.immediate,
            inside: Vec::new(),
            given_up: 0,
        }))
    }
}

struct HeldRequest {
    tag: Tag,
    op: Op,
    flags: OpFlags,
    sector: u64,
    nr: u64,
    memory: Vec<MemoryRange>,
    /// For each sector of the request: the address of the sector's first word in memory, and the
    /// word's value at submission.
    stamps: Vec<(*mut u64, u64)>,
    covered: Vec<(u32, u32)>,
    done_ns: u64,
    fate: RequestOutcome,
    given_up: bool,
}

// SAFETY: the stamps lie in memory that the drive may access until it completes the tag.
unsafe impl Send for HeldRequest {}

struct ModelQueue {
    drive: usize,
    limits: QueueLimits,
    depth: u32,
    oracle: SharedOracle,
    immediate: bool,
    inside: Vec<HeldRequest>,
    given_up: usize,
}

impl DriverQueue<Simulated> for ModelQueue {
    fn queue_rq(&mut self, rq: &Request<Simulated>) -> Dispatch {
        let now_ns = Simulated::now();
        let shared = Arc::clone(&self.oracle);
        let mut oracle = lock_oracle(&shared);
        let oracle = &mut *oracle;
        if !self.immediate && oracle.media[self.drive].is_busy() {
            // `DeviceBusy` is retried only when a request of the queue completes. So return it only
            // if some request will complete.
            let waits = self.inside.len() > self.given_up && oracle.media[self.drive].coin();
            return if waits { Dispatch::DeviceBusy } else { Dispatch::HostBusy };
        }
        oracle.note(rq.sector() << 24 | u64::from(rq.nr_sectors()) << 4 | rq.op() as u64);
        let media = &oracle.media[self.drive];
        let closed = [(media.frozen, "freeze"), (media.quiesced, "quiesce")];
        for (closed, kind) in closed {
            if closed {
                oracle
                    .accuse(kind, format!("{} entered closed drive {}", describe(rq), self.drive));
                break;
            }
        }
        if rq.sector() + u64::from(rq.nr_sectors()) > oracle.media[self.drive].sectors {
            let text = format!("{} is beyond the end of drive {}", describe(rq), self.drive);
            oracle.accuse("capacity", text);
        }
        let (memory, stamps) = self.take_memory(oracle, rq);
        let nr = u64::from(rq.nr_sectors());
        let media = &mut oracle.media[self.drive];
        let fate = media.fate((rq.op(), rq.flags()), (rq.sector(), nr), now_ns);
        let done_ns = match self.immediate {
            true => now_ns,
            false => media.after_stall(now_ns + fate.takes_ns),
        };
        media.inside += 1;
        let covered = if rq.op() == Op::Flush { media.begin_flush() } else { Vec::new() };
        oracle.hold_memory(&memory);
        self.inside.push(HeldRequest {
            tag: rq.tag(),
            op: rq.op(),
            flags: rq.flags(),
            sector: rq.sector(),
            nr,
            memory,
            stamps,
            covered,
            done_ns,
            fate,
            given_up: false,
        });
        Dispatch::Queued
    }

    fn commit_rqs(&mut self) {}

    fn poll(&mut self, batch: &mut CompletionBatch) {
        if self.inside.is_empty() {
            return;
        }
        let now_ns = Simulated::now();
        let shared = Arc::clone(&self.oracle);
        let mut oracle = lock_oracle(&shared);
        while !batch.is_full() {
            let due = self.inside.iter().enumerate().filter(|(_, rq)| rq.done_ns <= now_ns);
            let Some((place, _)) = due.min_by_key(|(_, rq)| (rq.done_ns, rq.tag.0)) else { break };
            let rq = self.inside.remove(place);
            self.given_up -= usize::from(rq.given_up);
            let status = self.finish(&mut oracle, &rq, now_ns);
            batch.push(rq.tag, status);
        }
        let next_ns = self.inside.iter().filter(|rq| !rq.fate.stuck).map(|rq| rq.done_ns).min();
        if let Some(next_ns) = next_ns {
            batch.wake_at(next_ns);
        }
    }

    fn timeout(&mut self, tag: Tag) -> Expired {
        let shared = Arc::clone(&self.oracle);
        let mut oracle = lock_oracle(&shared);
        let drive = self.drive;
        let Some(rq) = self.inside.iter_mut().find(|rq| rq.tag == tag) else {
            oracle.accuse(
                "timeout",
                format!(
                    "timeout of tag {} on drive {drive}, which has no request with this tag",
                    tag.0
                ),
            );
            return Expired::Extend;
        };
        if oracle.media[drive].coin() {
            return Expired::Extend;
        }
        rq.given_up = oracle.given_up(&suspect(drive, rq));
        self.given_up += usize::from(rq.given_up);
        Expired::Abandon
    }
}

impl ModelQueue {
    fn finish(&self, oracle: &mut Oracle, rq: &HeldRequest, now_ns: u64) -> Status {
        oracle.release_memory(&rq.memory);
        oracle.media[self.drive].inside -= 1;
        for (place, before) in &rq.stamps {
            // SAFETY: the drive may access the memory, because it has not completed the tag yet.
            if unsafe { place.read_unaligned() } != *before {
                let drive = self.drive;
                let text = format!(
                    "the block layer changed the memory of a request in flight on drive {drive}"
                );
                oracle.accuse("memory", text);
                return Status::IoError;
            }
        }
        let status = match oracle.media[self.drive].is_dead(now_ns) {
            true => Status::Offline,
            false => rq.fate.status,
        };
        if !status.is_ok() {
            if !rq.given_up {
                oracle.failed(&suspect(self.drive, rq), status);
            }
            return status;
        }
        let media = &mut oracle.media[self.drive];
        match rq.op {
            Op::Flush => media.end_flush(&rq.covered),
            Op::Read => {
                for (sector, (place, _)) in (rq.sector..).zip(&rq.stamps) {
                    // SAFETY: only the drive writes to the memory of a read in flight.
                    unsafe { place.write_unaligned(media.stamp(sector)) };
                }
            }
            Op::Write => {
                for (sector, (_, stamp)) in (rq.sector..).zip(&rq.stamps) {
                    media.write(sector, *stamp, rq.flags);
                }
            }
            Op::Discard | Op::WriteZeroes => {
                (rq.sector..rq.sector + rq.nr).for_each(|sector| media.write(sector, 0, rq.flags));
            }
        }
        status
    }

    fn take_memory(
        &self,
        oracle: &mut Oracle,
        rq: &Request<Simulated>,
    ) -> (Vec<MemoryRange>, Vec<(*mut u64, u64)>) {
        let (mut memory, mut bytes) = (Vec::with_capacity(rq.nr_segments().into()), 0u64);
        let has_data = rq.op().has_data();
        let mut stamps = Vec::with_capacity(if has_data { rq.nr_sectors() as usize } else { 0 });
        let mut wrong = self.broken_limit(rq);
        for piece in rq.segments_within(&self.limits) {
            let (start, len) = (piece.start as usize, piece.len_bytes as usize);
            memory.push((start, start + len));
            let first = bytes.next_multiple_of(512);
            for at in (first..bytes + len as u64).step_by(512) {
                let place = piece.start.wrapping_add((at - bytes) as usize).cast::<u64>();
                // SAFETY: the word lies inside a segment of a request that is in flight.
                stamps.push((place, unsafe { place.read_unaligned() }));
            }
            bytes += len as u64;
            let mask = self.limits.seg_boundary_mask;
            let crosses = start as u64 & !mask != (start + len - 1) as u64 & !mask;
            if crosses || piece.len_bytes > self.limits.max_segment_size {
                wrong = wrong.or(Some("a memory segment exceeds the limits"));
            }
        }
        if memory.len() > self.limits.max_segments.into() {
            wrong = wrong.or(Some("the request has too many memory segments"));
        }
        if bytes != u64::from(rq.len_bytes()) {
            wrong = wrong.or(Some("the memory segments do not add up to the request's length"));
        }
        if let Some(wrong) = wrong {
            oracle.accuse("limits", format!("{} on drive {}: {wrong}", describe(rq), self.drive));
        }
        (memory, stamps)
    }

    /// Returns the limit that a request breaks, if any. `take_memory` checks the limits on memory.
    fn broken_limit(&self, rq: &Request<Simulated>) -> Option<&'static str> {
        let (limits, nr) = (&self.limits, rq.nr_sectors());
        let longest = match rq.op() {
            Op::Flush => return (nr != 0).then_some("a flush has no length"),
            Op::Read | Op::Write => limits.max_sectors,
            Op::Discard => limits.max_discard_sectors,
            Op::WriteZeroes => limits.max_write_zeroes_sectors,
        };
        let (chunk, last) = (u64::from(limits.chunk_sectors), rq.sector() + u64::from(nr) - 1);
        let block = u64::from(limits.logical_block_size >> 9);
        let has_data = rq.op().has_data();
        [
            (nr == 0 || nr > longest, "its length exceeds the limit"),
            (!(rq.sector() | u64::from(nr)).is_multiple_of(block), "it is not whole blocks"),
            (
                chunk != 0 && has_data && rq.sector() / chunk != last / chunk,
                "the request crosses a chunk boundary of the drive",
            ),
            (rq.flags().has(OpFlags::PREFLUSH), "PREFLUSH is not for drives"),
            (rq.flags().has(OpFlags::FUA) && !limits.features.fua, "the drive has no FUA"),
            (rq.tag().0 >= self.depth, "its tag is too high"),
            (self.inside.iter().any(|inside| inside.tag == rq.tag()), "its tag is in use"),
        ]
        .into_iter()
        .find_map(|(broken, what)| broken.then_some(what))
    }
}

fn suspect(drive: usize, rq: &HeldRequest) -> FailedRequest<'_> {
    FailedRequest { drive, op: rq.op, sector: rq.sector, nr: rq.nr, memory: &rq.memory }
}

fn describe(rq: &Request<Simulated>) -> String {
    format!("request {:?} {} + {}, tag {}", rq.op(), rq.sector(), rq.nr_sectors(), rq.tag().0)
}
