//! `OrderSpec`: the scheduler of a drive in a scenario, and when it changes.
//!
//! Deadline with expiries of microseconds, and a scheduler that only this crate has: it keeps each
//! chain for a while although the drive has room, so that the layer's timers are used. Derived from
//! a seed apart from all else. Called by generator.rs, scenario.rs and disturbance.rs.

use std::collections::VecDeque;

use millrace_block::{
    BioChain, ChainBatch, CompletedChain, Deadline, DeadlineConfig, Disk, GroupId, Leftover,
    Scheduler, SchedulerKind, SchedulerPick,
};
use millrace_simulator::Simulated;
use serde::{Deserialize, Serialize};

use super::random::Random;
use super::time::NS_PER_US;

/// A scheduler, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OrderSpec {
    /// First come, first served.
    None,
    /// Deadline: a read goes first after so many microseconds, a write after four times as many.
    Deadline(u32),
    /// First come, first served, but each chain waits for so many microseconds.
    Delay(u32),
    /// By weights of groups.
    Fair,
    /// By latency targets of groups.
    Latency,
}

impl OrderSpec {
    /// How long it may keep a chain back, or let others go before, in microseconds.
    pub(super) fn longest_us(self) -> u64 {
        match self {
            OrderSpec::None => 0,
            OrderSpec::Deadline(expire_us) => 4 * u64::from(expire_us),
            OrderSpec::Delay(us) => us.into(),
            // A group of priority idle waits longest.
            OrderSpec::Fair | OrderSpec::Latency => 200_000,
        }
    }

    /// A scheduler, drawn.
    pub(super) fn draw(random: &mut Random) -> OrderSpec {
        match random.below(10) {
            6 | 7 => OrderSpec::Fair,
            8 | 9 => OrderSpec::Latency,
            0 => OrderSpec::None,
            1 => OrderSpec::Delay(random.pick(&[1, 20, 200])),
            _ => OrderSpec::Deadline(random.pick(&[1, 20, 200, 1_000])),
        }
    }

    /// Gives a drive this scheduler.
    pub(super) fn set(self, disk: &Disk<Simulated>) {
        let set = match self {
            OrderSpec::None => disk.set_scheduler(SchedulerKind::None),
            OrderSpec::Deadline(expire_us) => {
                let read_expire_ns = u64::from(expire_us) * NS_PER_US;
                let config = DeadlineConfig {
                    read_expire_ns,
                    write_expire_ns: 4 * read_expire_ns,
                    fifo_batch: 1 + expire_us % 16,
                    ..DeadlineConfig::default()
                };
                let deadline = Deadline::new(config, disk.queue_count().1);
                disk.set_own_scheduler(|hctx| deadline.queue(hctx))
            }
            OrderSpec::Fair => disk.set_scheduler(SchedulerKind::Fair),
            OrderSpec::Latency => disk.set_scheduler(SchedulerKind::Latency),
            OrderSpec::Delay(us) => disk.set_own_scheduler(|_| {
                let delay_ns = u64::from(us) * NS_PER_US;
                Box::new(Delay { chains: VecDeque::new(), delay_ns })
            }),
        };
        set.expect("a checked scenario");
    }
}

/// First come, first served, each chain after a while.
struct Delay {
    chains: VecDeque<BioChain<Simulated>>,
    delay_ns: u64,
}

impl Scheduler<Simulated> for Delay {
    fn insert(&mut self, batch: &mut ChainBatch<'_, Simulated>) {
        self.chains.extend(batch);
    }

    fn next(&mut self, now_ns: u64) -> SchedulerPick<Simulated> {
        let Some(first) = self.chains.front() else { return SchedulerPick::Nothing };
        let due_ns = first.queued_ns() + self.delay_ns;
        if due_ns > now_ns {
            return SchedulerPick::WaitUntil(due_ns);
        }
        self.chains.pop_front().map_or(SchedulerPick::Nothing, SchedulerPick::Chain)
    }

    fn completed(&mut self, _: &CompletedChain) {}

    fn pass(&mut self, _: GroupId, _: (u32, u64), _: u64) -> bool {
        false
    }

    fn drain(&mut self, left: &mut Leftover<Simulated>) {
        self.chains.drain(..).for_each(|chain| left.push(chain));
    }
}
