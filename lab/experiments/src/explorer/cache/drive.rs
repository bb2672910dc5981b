//! `BackingDrive`: a model drive that keeps one stamp per sector, answers late, and fails as the
//! scenario says.
//!
//! The drive has a volatile write cache: a flush covers the writes completed before the flush was
//! submitted, and a FUA write is durable on completion. The oracle holds the drive's content.
//! Called by the block layer under a queue's serve lock.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex};

use millrace_block::{
    CompletionBatch, Dispatch, Driver, DriverQueue, Error, Expired, Features, HwQueues, Op,
    OpFlags, QueueKind, QueueLimits, Request, Sector, Status, Tag, TagScope,
};
use millrace_machine::{Machine, Topology};
use millrace_random::SplitMix64 as Random;
use millrace_simulator::Simulated;

use super::oracle::{CacheOracle, GrowthStep};
use super::scenario::CacheScenario;
use crate::explorer::oracle_lock::lock_oracle;

#[derive(Clone)]
pub(super) struct BackingDrive {
    scenario: CacheScenario,
    number: usize,
    oracle: Arc<Mutex<CacheOracle>>,
}

impl BackingDrive {
    pub(super) fn new(
        scenario: &CacheScenario,
        number: usize,
        oracle: &Arc<Mutex<CacheOracle>>,
    ) -> BackingDrive {
        BackingDrive { scenario: scenario.clone(), number, oracle: Arc::clone(oracle) }
    }

    /// Returns the drive's current size in sectors, rounded down to whole blocks.
    fn sectors(&self) -> u64 {
        match lock_oracle(&self.oracle).size.step {
            GrowthStep::Before => self.scenario.shape.drive_sectors,
            GrowthStep::Underway | GrowthStep::Done => self.scenario.drive_sectors_max(self.number),
        }
    }

    /// Converts a sector of this drive to the sector of the volume that is stored there.
    fn place(&self, sector: u64) -> usize {
        self.scenario.shape.place_of(self.number, sector)
    }

    /// Returns the sectors past the last whole block, which no request may touch.
    fn ragged_sectors(&self) -> u64 {
        self.scenario.seed % self.scenario.shape.block_sectors
    }

    /// Returns the logical block size in sectors.
    fn block_sectors(&self) -> u64 {
        match self.number {
            0 => self.scenario.shape.block_sectors,
            _ => self.scenario.shape.other_block_sectors,
        }
    }
}

impl Driver<Simulated> for BackingDrive {
    fn capacity(&self) -> Sector {
        self.scenario.shape.drive_sectors + self.ragged_sectors()
    }

    fn revalidate(&self) -> Result<Sector, Error> {
        Ok(self.sectors() + self.ragged_sectors())
    }

    fn limits(&self) -> QueueLimits {
        QueueLimits {
            logical_block_size: self.block_sectors() as u32 * 512,
            max_discard_sectors: u32::MAX,
            max_write_zeroes_sectors: u32::MAX,
            features: Features {
                volatile_cache: true,
                fua: self.scenario.fua,
                ..Features::default()
            },
            ..QueueLimits::default()
        }
    }

    fn hw_queues(&self, _: &Topology) -> HwQueues {
        let kind = match self.scenario.owned {
            true => QueueKind::OwnerOnly,
            false => QueueKind::AnyThread,
        };
        HwQueues { count: 64, depth: 16, kind, tags: TagScope::PerQueue }
    }

    fn open_queue(&self, index: u16, _: u32) -> Result<Box<dyn DriverQueue<Simulated>>, Error> {
        let seed = self.scenario.seed ^ (self.number as u64) << 32 ^ u64::from(index) << 40;
        let random = Random::new(seed ^ 0xd41e);
        Ok(Box::new(BackingQueue { drive: self.clone(), random, inside: Vec::new() }))
    }
}

/// A request that the drive has not completed yet.
struct BackingRequest {
    tag: Tag,
    due_ns: u64,
    op: Op,
    sector: u64,
    nr: u64,
    /// Address of each sector's memory, and the first 8 bytes found there at submission.
    memory: Vec<(*mut u64, u64)>,
    fails: bool,
    /// The request carries FUA.
    is_durable: bool,
    /// Event count at submission. A flush makes writes durable that completed up to this number.
    covers: u64,
}

struct BackingQueue {
    drive: BackingDrive,
    random: Random,
    inside: Vec<BackingRequest>,
}

// SAFETY: the pointers are into memory of requests in flight, which the drive may access until it
// completes them.
unsafe impl Send for BackingQueue {}

impl BackingQueue {
    /// Returns true if the drive is dead, and the time until which it hangs, if it does.
    fn state(&self, now_ns: u64) -> (bool, Option<u64>) {
        let (scenario, number) = (&self.drive.scenario, self.drive.number);
        let is_dead = scenario.dead.is_some_and(|dead| dead.is_now(number, now_ns));
        let stuck = scenario.stuck.filter(|stuck| stuck.is_now(number, now_ns));
        (is_dead, stuck.map(|stuck| stuck.until_ns))
    }

    /// Returns true for the scenario's one failing request: a write, with FUA if drives support
    /// FUA.
    fn fails_once(&self, rq: &Request<Simulated>, now_ns: u64, oracle: &mut CacheOracle) -> bool {
        let scenario = &self.drive.scenario;
        let is_wanted = rq.flags().has(OpFlags::FUA) || !scenario.fua;
        let is_now = scenario.once.is_some_and(|once| once.is_now(self.drive.number, now_ns));
        let is_it = is_now && is_wanted && rq.op() == Op::Write;
        is_it && !std::mem::replace(&mut oracle.has_failed, true)
    }

    fn end(&self, rq: &BackingRequest, oracle: &mut CacheOracle) -> Status {
        if rq.fails {
            return Status::IoError;
        }
        let now = oracle.tick();
        for at in 0..rq.nr {
            let place = self.drive.place(rq.sector + at);
            let value = match rq.op {
                Op::Write => {
                    let (memory, before) = rq.memory[at as usize];
                    // SAFETY: the request is in flight, so the drive may access its memory.
                    let after = unsafe { memory.read_unaligned() };
                    if after != before {
                        let text = format!("sector {place} changed while a drive read it");
                        oracle.accuse("frame", text);
                    }
                    after
                }
                Op::Read => {
                    let current = oracle.media[place].current;
                    for word in 0..64 {
                        let memory = rq.memory[at as usize].0.wrapping_add(word);
                        // SAFETY: the request is in flight, so the drive may access its memory; a
                        // sector has 64 words.
                        unsafe { memory.write_unaligned(current) };
                    }
                    continue;
                }
                _ => 0,
            };
            let media = &mut oracle.media[place];
            media.current = value;
            match rq.is_durable {
                true => (media.durable, media.volatile) = (value, Vec::new()),
                false => media.volatile.push((now, value)),
            }
        }
        if rq.op == Op::Flush {
            let number = self.drive.number;
            for sector in 0..self.drive.scenario.drive_sectors_max(number) {
                let media = &mut oracle.media[self.drive.place(sector)];
                debug_assert!(number < self.drive.scenario.shape.drives);
                while media.volatile.first().is_some_and(|(at, _)| *at <= rq.covers) {
                    media.durable = media.volatile.remove(0).1;
                }
            }
        }
        Status::Ok
    }
}

impl DriverQueue<Simulated> for BackingQueue {
    fn queue_rq(&mut self, rq: &Request<Simulated>) -> Dispatch {
        let mut memory = Vec::new();
        for piece in rq.segments() {
            for at in (0..piece.len_bytes as usize).step_by(512) {
                let place = piece.start.wrapping_add(at).cast::<u64>();
                // SAFETY: the address is inside a segment of a request in flight.
                memory.push((place, unsafe { place.read_unaligned() }));
            }
        }
        let (delay, per_mille) = (self.drive.scenario.delay_ns, self.random.below(1000));
        let oracle = Arc::clone(&self.drive.oracle);
        let (end, sectors) = (rq.sector() + u64::from(rq.nr_sectors()), self.drive.sectors());
        if end > sectors {
            let text = format!("a request up to sector {end} reached a drive of {sectors} sectors");
            lock_oracle(&oracle).accuse("size", text);
        }
        let block = self.drive.block_sectors();
        if !(rq.sector() | u64::from(rq.nr_sectors())).is_multiple_of(block) {
            let (sector, nr) = (rq.sector(), rq.nr_sectors());
            let text =
                format!("{nr} sectors at {sector} reached a drive with blocks of {block} sectors");
            lock_oracle(&oracle).accuse("block", text);
        }
        let now_ns = Simulated::now();
        let (is_dead, stuck_until_ns) = self.state(now_ns);
        let due_ns = stuck_until_ns.unwrap_or(now_ns) + self.random.below(delay + 1);
        let fails_now = self.fails_once(rq, now_ns, &mut lock_oracle(&oracle));
        self.inside.push(BackingRequest {
            tag: rq.tag(),
            due_ns,
            op: rq.op(),
            sector: rq.sector(),
            nr: rq.nr_sectors().into(),
            memory,
            fails: per_mille < self.drive.scenario.fails_per_mille || is_dead || fails_now,
            is_durable: rq.flags().has(OpFlags::FUA),
            covers: lock_oracle(&oracle).tick(),
        });
        Dispatch::Queued
    }

    fn commit_rqs(&mut self) {}

    fn poll(&mut self, batch: &mut CompletionBatch) {
        let now_ns = Simulated::now();
        let shared = Arc::clone(&self.drive.oracle);
        let mut oracle = lock_oracle(&shared);
        while !batch.is_full() {
            let due = self.inside.iter().position(|rq| rq.due_ns <= now_ns);
            let Some(at) = due else { break };
            let rq = self.inside.swap_remove(at);
            let status = self.end(&rq, &mut oracle);
            batch.push(rq.tag, status);
        }
        if let Some(next_ns) = self.inside.iter().map(|rq| rq.due_ns).min() {
            batch.wake_at(next_ns);
        }
    }

    fn timeout(&mut self, _: Tag) -> Expired {
        Expired::Extend
    }
}
