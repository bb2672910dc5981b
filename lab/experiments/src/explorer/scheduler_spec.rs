//! `SchedulerSpec`: the scheduler of a drive in a scenario.
//!
//! The choices include the deadline scheduler with expiries of microseconds. A test scheduler holds
//! back I/O although the drive is free, to exercise the block layer's timers. generator.rs,
//! scenario.rs and disturbance.rs call this file.

use std::collections::VecDeque;
use std::time::Duration;

use millrace_block::{
    BioChain, ChainBatch, CompletedChain, Deadline, DeadlineConfig, Disk, GroupId, Leftover,
    Scheduler, SchedulerKind, SchedulerPick,
};
use millrace_simulator::Simulated;
use serde::{Deserialize, Serialize};

use super::random::Random;
use super::time::NS_PER_US;

/// Scheduler of a drive. In JSON, a scheduler has the same name as in configuration files, such as
/// `deadline`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SchedulerSpec {
    /// No scheduler: first come, first served.
    None,
    /// Deadline: reads expire after this many microseconds, writes after four times as many.
    Deadline(u32),
    /// Dispatches bios in order of arrival. The field is the delay of each bio, in microseconds.
    Delay(u32),
    /// Fair queueing: shares the drive by the groups' weights.
    Fair,
    /// Latency scheduler: serves groups by their latency targets.
    Latency,
}

impl SchedulerSpec {
    /// Returns the longest time, in microseconds, for which the scheduler may hold back an I/O.
    pub(super) fn longest_us(self) -> u64 {
        match self {
            SchedulerSpec::None => 0,
            SchedulerSpec::Deadline(expire_us) => 4 * u64::from(expire_us),
            SchedulerSpec::Delay(us) => us.into(),
            // Longest wait of an I/O, in microseconds, if its group has idle priority.
            SchedulerSpec::Fair | SchedulerSpec::Latency => 200_000,
        }
    }

    pub(super) fn draw(random: &mut Random) -> SchedulerSpec {
        match random.below(10) {
            6 | 7 => SchedulerSpec::Fair,
            8 | 9 => SchedulerSpec::Latency,
            0 => SchedulerSpec::None,
            1 => SchedulerSpec::Delay(random.pick(&[1, 20, 200])),
            _ => SchedulerSpec::Deadline(random.pick(&[1, 20, 200, 1_000])),
        }
    }

    pub(super) fn set(self, disk: &Disk<Simulated>) {
        let set = match self {
            SchedulerSpec::None => disk.set_scheduler(SchedulerKind::None),
            SchedulerSpec::Deadline(expire_us) => {
                let read_expire = Duration::from_micros(expire_us.into());
                let config = DeadlineConfig {
                    read_expire,
                    write_expire: 4 * read_expire,
                    fifo_batch: 1 + expire_us % 16,
                    ..DeadlineConfig::default()
                };
                let deadline = Deadline::new(config, disk.queue_count().1);
                disk.set_own_scheduler(|hctx| deadline.queue(hctx))
            }
            SchedulerSpec::Fair => disk.set_scheduler(SchedulerKind::Fair),
            SchedulerSpec::Latency => disk.set_scheduler(SchedulerKind::Latency),
            SchedulerSpec::Delay(us) => disk.set_own_scheduler(|_| {
                let delay_ns = u64::from(us) * NS_PER_US;
                Box::new(DelayScheduler { chains: VecDeque::new(), delay_ns })
            }),
        };
        set.expect("the scheduler is valid, because the scenario was checked before");
    }
}

struct DelayScheduler {
    chains: VecDeque<BioChain<Simulated>>,
    delay_ns: u64,
}

impl Scheduler<Simulated> for DelayScheduler {
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

    fn pass(&mut self, _: GroupId, _: u64) -> bool {
        false
    }

    fn drain(&mut self, left: &mut Leftover<Simulated>) {
        self.chains.drain(..).for_each(|chain| left.push(chain));
    }
}
