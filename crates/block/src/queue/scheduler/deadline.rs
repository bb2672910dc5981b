//! `Deadline`: sorted by sector, each chain by a time.
//!
//! Chains go out in the order of their sectors, a batch at a time, reads before writes, until the
//! oldest one of a direction has waited as long as it may: then that one goes first. Neighbours
//! merge at either end. All hardware queues of a drive share one lock, as the kernel's do: right
//! for a disk that rotates, and what the others are measured against where there are many cores.
//! Each queue sorts what is its own, since only its submitters look for what it completes. Kernel
//! counterpart: block/mq-deadline.c.

pub(crate) mod sorted;

use alloc::boxed::Box;
use alloc::sync::Arc;

use millrace_machine::{Lock, Machine, Stage};

use crate::bio::Op;
use crate::queue::scheduler::deadline::sorted::{Sorted, Waiting};
use crate::queue::scheduler::{Batch, Chain, Done, Leftover, Pick, Scheduler};

/// How [`Deadline`] weighs order against age.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadlineConfig {
    /// How long a read may wait before it goes first, in nanoseconds; 500 ms.
    pub read_expire_ns: u64,
    /// How long a write, discard or write of zeroes may wait, in nanoseconds; 5 s.
    pub write_expire_ns: u64,
    /// Most chains of one direction in the order of their sectors before ages are looked at again,
    /// 1 or more; 16.
    pub fifo_batch: u32,
    /// How often reads may go before writes that wait; 2.
    pub writes_starved: u32,
}

impl Default for DeadlineConfig {
    fn default() -> Self {
        DeadlineConfig {
            read_expire_ns: 500_000_000,
            write_expire_ns: 5_000_000_000,
            fifo_batch: 16,
            writes_starved: 2,
        }
    }
}

/// Reads, or all that changes the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Read = 0,
    Write = 1,
}

impl Way {
    fn of(op: Op) -> Way {
        if op == Op::Read { Way::Read } else { Way::Write }
    }
}

/// What waits at one hardware queue, and what went out last.
struct Queue<M: Machine> {
    ways: [Sorted<M>; 2],
    last: Way,
    /// Chains that went out of the batch under way; at first, as if one had ended.
    batched: u32,
    /// How often reads went before writes that waited.
    starved: u32,
}

impl<M: Machine> Queue<M> {
    fn new() -> Self {
        let ways = [Sorted::new(), Sorted::new()];
        Queue { ways, last: Way::Read, batched: u32::MAX, starved: 0 }
    }

    /// The next chain.
    fn next(&mut self, now_ns: u64, config: &DeadlineConfig) -> Option<Chain<M>> {
        if self.batched < config.fifo_batch
            && let Some(place) = self.ways[self.last as usize].onwards()
        {
            self.batched += 1;
            return self.ways[self.last as usize].take(place);
        }
        let way = self.choose(config)?;
        let sorted = &mut self.ways[way as usize];
        let place = match sorted.has_expired(now_ns) {
            true => sorted.oldest()?,
            // Upwards, and at the end once more from below.
            false => sorted.onwards().or_else(|| sorted.lowest())?,
        };
        (self.last, self.batched) = (way, 1);
        sorted.take(place)
    }

    /// Which way the next batch is; none if nothing waits.
    fn choose(&mut self, config: &DeadlineConfig) -> Option<Way> {
        let [reads, writes] = self.ways.each_ref().map(|sorted| !sorted.chains.is_empty());
        if reads && !(writes && self.starved >= config.writes_starved) {
            self.starved += u32::from(writes);
            return Some(Way::Read);
        }
        self.starved = 0;
        writes.then_some(Way::Write)
    }
}

/// What all hardware queues of a drive share.
struct Shared<M: Machine> {
    queues: Box<[Queue<M>]>,
    /// Number of the next chain that comes.
    number: u64,
}

/// The deadline scheduler of a drive, from which each hardware queue gets its part.
pub struct Deadline<M: Machine> {
    config: DeadlineConfig,
    shared: Arc<M::Lock<Shared<M>>>,
}

impl<M: Machine> Deadline<M> {
    /// A scheduler for a drive with so many hardware queues.
    #[must_use]
    pub fn new(config: DeadlineConfig, hardware_queues: usize) -> Self {
        let queues = (0..hardware_queues).map(|_| Queue::new()).collect();
        let shared = Shared { queues, number: 0 };
        Deadline { config, shared: Arc::new(M::Lock::new("scheduler", shared)) }
    }

    /// The part of hardware queue `hctx`, below the number that the drive has.
    #[must_use]
    pub fn queue(&self, hctx: u16) -> Box<dyn Scheduler<M>> {
        let (config, shared) = (self.config, Arc::clone(&self.shared));
        Box::new(DeadlineQueue { config, hctx: hctx.into(), shared })
    }
}

/// A hardware queue's part of a [`Deadline`].
struct DeadlineQueue<M: Machine> {
    config: DeadlineConfig,
    hctx: usize,
    shared: Arc<M::Lock<Shared<M>>>,
}

impl<M: Machine> Scheduler<M> for DeadlineQueue<M> {
    fn insert(&mut self, batch: &mut Batch<'_, M>) {
        let mut shared = self.shared.lock();
        let Shared { queues, number } = &mut *shared;
        let queue = &mut queues[self.hctx];
        M::work(Stage::Search, batch.len());
        while let Some(chain) = batch.next() {
            let way = Way::of(chain.op());
            let sorted = &mut queue.ways[way as usize];
            let chain = match sorted.merge(chain, batch) {
                Ok(()) => continue,
                Err(chain) => chain,
            };
            let expire_ns = match way {
                Way::Read => self.config.read_expire_ns,
                Way::Write => self.config.write_expire_ns,
            };
            let expires_ns = chain.queued_ns().saturating_add(expire_ns);
            sorted.insert(Waiting { chain, expires_ns }, *number);
            *number += 1;
        }
    }

    fn next(&mut self, now_ns: u64) -> Pick<M> {
        let mut shared = self.shared.lock();
        M::work(Stage::Search, 1);
        let next = shared.queues[self.hctx].next(now_ns, &self.config);
        next.map_or(Pick::Nothing, Pick::Chain)
    }

    fn completed(&mut self, _: &Done) {}

    fn drain(&mut self, left: &mut Leftover<M>) {
        let mut shared = self.shared.lock();
        for sorted in &mut shared.queues[self.hctx].ways {
            while let Some((number, sector)) = sorted.ages.pop_first() {
                let waiting = sorted.chains.remove(&(sector, number));
                waiting.into_iter().for_each(|waiting| left.push(waiting.chain));
            }
        }
    }
}

#[cfg(test)]
mod tests;
