//! `Deadline`: a scheduler that sorts bio chains (each becomes one request) by sector and limits
//! how long each may wait.
//!
//! Chains go out in sector order, a batch at a time, reads before writes. Once the oldest chain of
//! a direction has waited for its limit, that chain goes first. Adjacent chains merge at either
//! end. Groups of a higher priority go first, even if their chains wait for tags at another
//! hardware queue. A chain of a lower priority waits for the ageing time at most. All hardware
//! queues of a drive share one lock, as in the kernel. The shared lock suits a rotating disk; on
//! many cores, `Deadline` is the baseline for comparing the other schedulers. Each queue sorts only
//! its own chains, because only its submitters poll for their completions. Lock order: the table of
//! groups is never locked under this lock. Kernel counterpart: block/mq-deadline.c.

mod holders;
pub(crate) mod sorted;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::time::Duration;

use millrace_machine::{Lock, Machine, Stage, debug_fields, nanoseconds};

use crate::account::held::DriveWaits;
use crate::bio::Op;
use crate::bio::group_id::GroupId;
use crate::group::Groups;
use crate::group::config::Priority;
use crate::group::view::GroupView;
use crate::queue::scheduler::deadline::holders::WaitTracker;
use crate::queue::scheduler::deadline::sorted::{SortedChains, WaitingChain};
use crate::queue::scheduler::parts::{DriveScheduler, SchedulerParts};
use crate::queue::scheduler::{ChainBatch, CompletedChain, Leftover, Scheduler, SchedulerPick};

pub(crate) fn of_drive<M: Machine>(parts: &SchedulerParts<M>) -> DriveScheduler<M> {
    let deadline = Deadline::new(DeadlineConfig::default(), parts.drive.tags.queues)
        .with_groups(parts.groups.clone())
        .accounting_to(&parts.drive.holds);
    DriveScheduler { queue: Box::new(move |hctx| deadline.queue(hctx)), piece_sectors: None }
}

/// Nanoseconds between two checks of a hardware queue that waits because another queue of the drive
/// has bio chains of a higher priority.
const LOOK_AGAIN_NS: u64 = 1_000_000;
/// Time, in nanoseconds, for which a hardware queue with I/O of higher priority may delay other
/// queues after the last call of `next` for it. Later, the queue's thread is assumed to hang.
const SERVED_NS: u64 = 100_000_000;
const PRIORITIES: usize = Priority::Idle as usize + 1;

/// Settings that balance sector order against age in [`Deadline`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadlineConfig {
    /// Time that a read may wait before it goes first; default 500 ms.
    pub read_expire: Duration,
    /// Time that a write, discard or write-zeroes may wait before it goes first; default 5 s.
    pub write_expire: Duration,
    /// Largest number of bio chains in a batch, 1 or more; default 16. A batch is dispatched in
    /// sector order, and has either only reads or no reads. Before each batch, the scheduler checks
    /// if a chain has waited too long.
    pub fifo_batch: u32,
    /// Number of batches of reads that may go before waiting writes; default 2.
    pub writes_starved: u32,
    /// Time after which a waiting I/O goes before I/Os of higher priorities; default 10 s.
    pub ageing: Duration,
}

impl DeadlineConfig {
    fn expire_ns(&self, way: IoDirection) -> u64 {
        match way {
            IoDirection::Read => nanoseconds(self.read_expire),
            IoDirection::Write => nanoseconds(self.write_expire),
        }
    }
}

impl Default for DeadlineConfig {
    fn default() -> Self {
        DeadlineConfig {
            read_expire: Duration::from_millis(500),
            write_expire: Duration::from_secs(5),
            fifo_batch: 16,
            writes_starved: 2,
            ageing: Duration::from_secs(10),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IoDirection {
    Read = 0,
    Write = 1,
}

impl IoDirection {
    fn of(op: Op) -> IoDirection {
        if op == Op::Read { IoDirection::Read } else { IoDirection::Write }
    }
}

struct PriorityClass<M: Machine> {
    ways: [SortedChains<M>; 2],
    /// Number of batches of reads dispatched while writes waited.
    starved: u32,
}

impl<M: Machine> PriorityClass<M> {
    fn new() -> Self {
        PriorityClass { ways: [SortedChains::new(), SortedChains::new()], starved: 0 }
    }

    fn is_empty(&self) -> bool {
        self.ways.iter().all(|sorted| sorted.chains.is_empty())
    }

    fn choose(&mut self, config: &DeadlineConfig) -> Option<IoDirection> {
        let [reads, writes] = self.ways.each_ref().map(|sorted| !sorted.chains.is_empty());
        if reads && !(writes && self.starved >= config.writes_starved) {
            self.starved += u32::from(writes);
            return Some(IoDirection::Read);
        }
        self.starved = 0;
        writes.then_some(IoDirection::Write)
    }

    fn oldest(&self) -> Option<(IoDirection, u64)> {
        let came_ns =
            |way: IoDirection| self.ways[way as usize].came_ns().map(|came_ns| (way, came_ns));
        let ways = [IoDirection::Read, IoDirection::Write].into_iter().filter_map(came_ns);
        ways.min_by_key(|(_, came_ns)| *came_ns)
    }
}

struct QueueChains<M: Machine> {
    /// Indexed by [`Priority`].
    classes: [PriorityClass<M>; PRIORITIES],
    /// Priority class and direction of the current batch (a run of dispatches in sector order).
    last: (usize, IoDirection),
    /// Number of bio chains dispatched in the current batch; `u32::MAX` before the first batch.
    batched: u32,
    /// Time when the block layer last asked this queue for a bio chain to dispatch, in nanoseconds.
    asked_ns: u64,
}

impl<M: Machine> QueueChains<M> {
    fn new() -> Self {
        let classes = core::array::from_fn(|_| PriorityClass::new());
        QueueChains { classes, last: (0, IoDirection::Read), batched: u32::MAX, asked_ns: 0 }
    }

    fn next(&mut self, now_ns: u64, config: &DeadlineConfig) -> Option<WaitingChain<M>> {
        let (class, way) = self.last;
        // A batch (a run of dispatches in sector order) ends early for a higher priority.
        if self.batched < config.fifo_batch
            && self.classes[..class].iter().all(PriorityClass::is_empty)
            && let Some(place) = self.classes[class].ways[way as usize].onwards()
        {
            self.batched += 1;
            return self.classes[class].ways[way as usize].take(place);
        }
        let aged = self.aged(now_ns, config);
        let (class, way) = match aged {
            Some(aged) => aged,
            None => self.choose(config)?,
        };
        let sorted = &mut self.classes[class].ways[way as usize];
        let place = match aged.is_some() || sorted.has_expired(now_ns, config.expire_ns(way)) {
            true => sorted.oldest()?,
            // Bio chains go in ascending order of sectors. After the highest, the lowest comes.
            false => sorted.onwards().or_else(|| sorted.lowest())?,
        };
        (self.last, self.batched) = ((class, way), 1);
        sorted.take(place)
    }

    fn choose(&mut self, config: &DeadlineConfig) -> Option<(usize, IoDirection)> {
        let mut classes = self.classes.iter_mut().enumerate();
        classes.find_map(|(number, class)| Some((number, class.choose(config)?)))
    }

    fn highest(&self) -> Option<usize> {
        self.classes.iter().position(|class| !class.is_empty())
    }

    /// Finds the oldest waiting bio chain that is not in the highest priority class with waiting
    /// chains. Returns the chain's class and direction if the chain has waited for the time
    /// `ageing` or longer.
    fn aged(&self, now_ns: u64, config: &DeadlineConfig) -> Option<(usize, IoDirection)> {
        let highest = self.highest()?;
        let lower = self.classes.iter().enumerate().skip(highest + 1);
        let oldest = lower.filter_map(|(number, class)| Some((number, class.oldest()?)));
        let (number, (way, came_ns)) = oldest.min_by_key(|(_, (_, came_ns))| *came_ns)?;
        (came_ns.saturating_add(nanoseconds(config.ageing)) <= now_ns).then_some((number, way))
    }
}

/// The state that all hardware queues of a drive share.
struct DeadlineState<M: Machine> {
    queues: Box<[QueueChains<M>]>,
    waiting: [u32; PRIORITIES],
    /// Arrival number that the next inserted bio chain gets.
    number: u64,
}

impl<M: Machine> DeadlineState<M> {
    /// Returns the priority class for which hardware queue `hctx` must hold back its own bio
    /// chains. Another queue has chains of that class, and all chains of queue `hctx` have lower
    /// priorities. A queue without a call of `next` for [`SERVED_NS`] does not count. Returns
    /// `None` if there is no such class, or if a chain of queue `hctx` has waited for the time
    /// `ageing` or longer.
    fn goes_before(&self, hctx: usize, now_ns: u64, config: &DeadlineConfig) -> Option<usize> {
        let own = self.queues[hctx].highest()?;
        self.waiting[..own].iter().position(|waiting| *waiting > 0)?;
        let is_served = |queue: &&QueueChains<M>| queue.asked_ns.saturating_add(SERVED_NS) > now_ns;
        let first = self.queues.iter().filter(is_served).filter_map(QueueChains::highest).min()?;
        if first >= own {
            return None;
        }
        let oldest = self.queues[hctx].classes[own..].iter().filter_map(PriorityClass::oldest);
        let came_ns = oldest.map(|(_, came_ns)| came_ns).min().unwrap_or(now_ns);
        (came_ns.saturating_add(nanoseconds(config.ageing)) > now_ns).then_some(first)
    }
}

/// The deadline scheduler of a drive. [`Deadline::queue`] creates the [`Scheduler`] of each
/// hardware queue.
pub struct Deadline<M: Machine> {
    config: DeadlineConfig,
    groups: Option<Arc<Groups<M>>>,
    holds: Option<Arc<DriveWaits<M>>>,
    shared: Arc<M::Lock<DeadlineState<M>>>,
}

debug_fields!(Deadline<M: Machine>, config);

impl<M: Machine> Deadline<M> {
    /// Creates a scheduler for a drive with this number of hardware queues.
    #[must_use]
    pub fn new(config: DeadlineConfig, hardware_queues: usize) -> Self {
        let queues = (0..hardware_queues).map(|_| QueueChains::new()).collect();
        let shared = DeadlineState { queues, waiting: [0; PRIORITIES], number: 0 };
        let shared = Arc::new(M::Lock::new("scheduler", shared));
        Deadline { config, groups: None, holds: None, shared }
    }

    /// Sets the groups whose priorities apply to I/O that is inserted later. Without groups, all
    /// I/O has the priority [`Priority::BestEffort`].
    #[must_use]
    pub fn with_groups(self, groups: Option<Arc<Groups<M>>>) -> Self {
        Deadline { groups, ..self }
    }

    pub(crate) fn accounting_to(self, holds: &Arc<DriveWaits<M>>) -> Self {
        Deadline { holds: Some(Arc::clone(holds)), ..self }
    }

    /// Creates the scheduler of hardware queue `hctx`. The number `hctx` must be less than the
    /// number of hardware queues given to [`Deadline::new`].
    #[must_use]
    pub fn queue(&self, hctx: u16) -> Box<dyn Scheduler<M>> {
        let (groups, shared) = (self.groups.clone(), Arc::clone(&self.shared));
        let (config, view) = (self.config, GroupView::new());
        let hctx = hctx.into();
        let holders = self.holds.as_ref().map(|holds| WaitTracker::new(holds, hctx));
        Box::new(DeadlineQueue { config, groups, view, hctx, holders, shared })
    }
}

struct DeadlineQueue<M: Machine> {
    config: DeadlineConfig,
    groups: Option<Arc<Groups<M>>>,
    view: GroupView<M>,
    hctx: usize,
    /// Wait accounts; `None` if wait times are not counted.
    holders: Option<WaitTracker<M>>,
    shared: Arc<M::Lock<DeadlineState<M>>>,
}

impl<M: Machine> Scheduler<M> for DeadlineQueue<M> {
    fn insert(&mut self, batch: &mut ChainBatch<'_, M>) {
        if let Some(groups) = self.groups.as_ref().filter(|groups| self.view.is_old(groups)) {
            self.view.renew(groups);
        }
        let mut shared = self.shared.lock();
        let DeadlineState { queues, waiting, number } = &mut *shared;
        let queue = &mut queues[self.hctx];
        M::work(Stage::Search, batch.len());
        while let Some(chain) = batch.next() {
            let priority = self.view.row(chain.group()).map(|row| row.priority);
            let priority = priority.unwrap_or_default() as usize;
            let sorted = &mut queue.classes[priority].ways[IoDirection::of(chain.op()) as usize];
            let chain = match sorted.merge(chain, batch) {
                Ok(()) => continue,
                Err(chain) => chain,
            };
            if let Some(holders) = &mut self.holders {
                holders.begin((chain.group(), priority), chain.inserted_ns());
            }
            let (came_ns, inserted_ns) = (chain.admitted_ns(), chain.inserted_ns());
            sorted.insert(WaitingChain { chain, came_ns, inserted_ns }, *number);
            *number += 1;
            waiting[priority] += 1;
        }
    }

    fn next(&mut self, now_ns: u64) -> SchedulerPick<M> {
        let mut shared = self.shared.lock();
        M::work(Stage::Search, 1);
        shared.queues[self.hctx].asked_ns = now_ns;
        if let Some(class) = shared.goes_before(self.hctx, now_ns, &self.config) {
            if let Some(holders) = &mut self.holders {
                holders.wait_for(class, now_ns);
            }
            return SchedulerPick::WaitUntil(now_ns + LOOK_AGAIN_NS);
        }
        let queue = &mut shared.queues[self.hctx];
        let Some(next) = queue.next(now_ns, &self.config) else { return SchedulerPick::Nothing };
        let class = queue.last.0;
        shared.waiting[class] -= 1;
        if let Some(holders) = &mut self.holders {
            holders.end((next.chain.group(), class), (next.inserted_ns, now_ns), class);
        }
        SchedulerPick::Chain(next.chain)
    }

    fn completed(&mut self, _: &CompletedChain) {}

    fn pass(&mut self, _: GroupId, _: u64) -> bool {
        false
    }

    fn drain(&mut self, left: &mut Leftover<M>) {
        let mut shared = self.shared.lock();
        let DeadlineState { queues, waiting, .. } = &mut *shared;
        for (class, waiting) in queues[self.hctx].classes.iter_mut().zip(waiting) {
            for sorted in &mut class.ways {
                *waiting -= sorted.ages.len() as u32;
                while let Some((number, sector)) = sorted.ages.pop_first() {
                    let waiting = sorted.chains.remove(&(sector, number));
                    waiting.into_iter().for_each(|waiting| left.push(waiting.chain));
                }
            }
        }
        if let Some(holders) = &mut self.holders {
            holders.drain();
        }
    }
}

#[cfg(test)]
mod tests;
