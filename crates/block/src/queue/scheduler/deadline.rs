//! `Deadline`: sorted by sector, each chain by a time.
//!
//! Chains go out in the order of their sectors, a batch at a time, reads before writes, until the
//! oldest one of a direction has waited as long as it may: then that one goes first. Neighbours
//! merge at either end. All hardware queues of a drive share one lock, as the kernel's do: right
//! for a disk that rotates, and what the others are measured against where there are many cores.
//! Each queue sorts what is its own, since only its submitters look for what it completes. Kernel
//! counterpart: block/mq-deadline.c.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use millrace_machine::{Lock, Machine, Stage};

use crate::bio::group_id::GroupId;
use crate::bio::{Op, Sector};
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

/// Place in the order of sectors: two chains may begin at one sector, the older one goes first.
type Place = (Sector, u64);

/// A chain that waits.
struct Waiting<M: Machine> {
    chain: Chain<M>,
    /// When it is to go first.
    expires_ns: u64,
}

/// Chains of one way at one hardware queue.
struct Sorted<M: Machine> {
    chains: BTreeMap<Place, Waiting<M>>,
    /// Places by age: number of arrival to sector.
    ages: BTreeMap<u64, Sector>,
    /// Where the last one that went out ended.
    head: Sector,
}

impl<M: Machine> Sorted<M> {
    fn new() -> Self {
        Sorted { chains: BTreeMap::new(), ages: BTreeMap::new(), head: 0 }
    }

    /// Merges a chain with a neighbour that waits; gives the chain back if there is none.
    fn merge(&mut self, chain: Chain<M>, batch: &mut Batch<'_, M>) -> Result<(), Chain<M>> {
        let before = self.chains.range_mut(..(chain.sector(), 0)).next_back();
        let chain = match before {
            Some((_, found)) if found.chain.end() == chain.sector() => {
                match batch.merge(&mut found.chain, chain) {
                    Ok(()) => return Ok(()),
                    Err(chain) => chain,
                }
            }
            _ => chain,
        };
        let end = chain.end();
        let Some((&place, _)) = self.chains.range((end, 0)..=(end, u64::MAX)).next() else {
            return Err(chain);
        };
        let Some(mut found) = self.chains.remove(&place) else { return Err(chain) };
        // It keeps its age, and begins earlier if the two are one.
        let merged = batch.merge(&mut found.chain, chain);
        let sector = found.chain.sector();
        self.ages.insert(place.1, sector);
        self.chains.insert((sector, place.1), found);
        merged
    }

    fn insert(&mut self, waiting: Waiting<M>, number: u64) {
        let sector = waiting.chain.sector();
        self.ages.insert(number, sector);
        self.chains.insert((sector, number), waiting);
    }

    /// The place of the oldest one.
    fn oldest(&self) -> Option<Place> {
        self.ages.first_key_value().map(|(number, sector)| (*sector, *number))
    }

    /// Whether the oldest one has waited as long as it may.
    fn has_expired(&self, now_ns: u64) -> bool {
        let oldest = self.oldest().and_then(|place| self.chains.get(&place));
        oldest.is_some_and(|waiting| waiting.expires_ns <= now_ns)
    }

    /// The place of the next one behind the last that went out.
    fn onwards(&self) -> Option<Place> {
        self.chains.range((self.head, 0)..).next().map(|(place, _)| *place)
    }

    /// The place of the first one of all.
    fn lowest(&self) -> Option<Place> {
        self.chains.first_key_value().map(|(place, _)| *place)
    }

    fn take(&mut self, place: Place) -> Option<Chain<M>> {
        let waiting = self.chains.remove(&place)?;
        self.ages.remove(&place.1);
        self.head = waiting.chain.end();
        Some(waiting.chain)
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

    fn pass(&mut self, _: GroupId, _: u32, _: u64) -> bool {
        false
    }

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
mod tests {
    use super::*;
    use crate::bio::Bio;
    use crate::bio::limits::QueueLimits;
    use crate::chain::bio_set::BioSet;
    use crate::chain::bio_set::tests::bio_set;
    use crate::chain::slot::BioList;
    use crate::queue::request::Tag;
    use crate::queue::scheduler::Scheduling;
    use alloc::vec;
    use alloc::vec::Vec;
    use core::mem::ManuallyDrop;
    use millrace_machine::Native;
    use proptest::prelude::*;

    /// A chain that comes: operation, first sector, length, time of its coming.
    #[derive(Debug, Clone, Copy)]
    struct Io(Op, u64, u32, u64);

    const CONFIG: DeadlineConfig = DeadlineConfig {
        read_expire_ns: 100,
        write_expire_ns: 300,
        fifo_batch: 4,
        writes_starved: 2,
    };

    /// The one queue of a drive, with room for so many chains.
    struct Rig {
        bio_set: alloc::boxed::Box<BioSet<Native>>,
        scheduling: Scheduling<Native>,
        coming: usize,
    }

    impl Rig {
        fn new(chains: usize) -> Rig {
            let deadline = Deadline::new(CONFIG, 1);
            let scheduling = Scheduling::new(None, deadline.queue(0), 1);
            Rig { bio_set: bio_set(chains), scheduling, coming: 0 }
        }

        /// Inserts these; how many merges there were.
        fn insert(&mut self, ios: &[Io]) -> u32 {
            let first = self.coming;
            self.coming += ios.len();
            let mut free = self.bio_set.handles(first..self.coming);
            let mut list = BioList::new();
            for (Io(op, sector, nr_sectors, queued_ns), number) in ios.iter().zip(first..) {
                let mut slot = free.pop_front().expect("one for each");
                let mut bio = Bio::discard(0, *nr_sectors).with_user_data(number as u64);
                bio.op = *op;
                slot.bio = ManuallyDrop::new(bio);
                (slot.dev_sector, slot.chain_sectors, slot.q_ns) =
                    (*sector, *nr_sectors, *queued_ns);
                slot.chain_segments = 1;
                slot.tail = slot.as_ptr();
                list.push_back(slot);
            }
            let mut merges = 0;
            self.scheduling.insert(list, &QueueLimits::default(), &mut |_, _| merges += 1);
            merges
        }

        /// First sector and numbers of the bios of the next chain.
        fn next(&mut self, now_ns: u64) -> Option<(u64, Vec<u64>)> {
            let Pick::Chain(chain) = self.scheduling.next(now_ns) else { return None };
            let mut next = Some(self.scheduling.issue(chain, Tag(0), now_ns));
            let sector = next.as_ref().map_or(0, |chain| chain.dev_sector);
            let mut bios = Vec::new();
            while let Some(mut bio) = next {
                bios.push(bio.bio.user_data());
                next = bio.chained.take();
                core::mem::forget(bio);
            }
            Some((sector, bios))
        }

        fn sectors(&mut self, now_ns: u64, count: usize) -> Vec<u64> {
            (0..count).filter_map(|_| self.next(now_ns)).map(|(sector, _)| sector).collect()
        }
    }

    fn reads(sectors: &[u64]) -> Vec<Io> {
        sectors.iter().map(|sector| Io(Op::Read, *sector, 1, 0)).collect()
    }

    #[test]
    fn chains_go_out_by_sector_and_a_pass_that_ended_begins_with_the_lowest() {
        let mut rig = Rig::new(7);
        rig.insert(&reads(&[50, 10, 30]));
        assert_eq!(rig.sectors(0, 2), [10, 30]);
        rig.insert(&reads(&[5, 40, 1, 3]));
        // 40 and 50 lie ahead; the next pass has the others.
        assert_eq!(rig.sectors(0, 9), [40, 50, 1, 3, 5]);
        assert_eq!(rig.scheduling.len(), 0);
    }

    #[test]
    fn the_oldest_goes_first_once_it_has_waited_as_long_as_it_may() {
        for (now_ns, order) in [(99, [20, 30, 10]), (100, [10, 20, 30])] {
            let mut rig = Rig::new(8);
            // So that the head stands behind sector 10.
            rig.insert(&reads(&[11, 13, 15, 17]));
            assert_eq!(rig.sectors(0, 4).len(), 4);
            rig.insert(&[Io(Op::Read, 10, 1, 0), Io(Op::Read, 20, 1, 50), Io(Op::Read, 30, 1, 50)]);
            assert_eq!(rig.sectors(now_ns, 3), order, "at {now_ns}");
        }
    }

    #[test]
    fn reads_go_before_writes_but_not_for_ever() {
        let mut rig = Rig::new(40);
        let writes: Vec<Io> = (0..6).map(|at| Io(Op::Write, 1000 + at * 10, 1, 0)).collect();
        rig.insert(&writes);
        rig.insert(&reads(&(0..20).map(|at| at * 10).collect::<Vec<_>>()));
        let is_write = |sector: u64| u64::from(sector >= 1000);
        let found: Vec<u64> = rig.sectors(0, 26).into_iter().map(is_write).collect();
        // Two batches of four reads, then one of four writes, and so on.
        let mut expected = vec![0; 8];
        expected.extend([1; 4].iter().chain(&[0; 8]).chain(&[1; 2]).chain(&[0; 4]));
        assert_eq!(found, expected);
    }

    #[test]
    fn neighbours_of_one_operation_merge_at_both_ends_and_keep_the_older_ones_age() {
        let mut rig = Rig::new(9);
        let io = |op, sector, queued_ns| Io(op, sector, 8, queued_ns);
        rig.insert(&[io(Op::Read, 100, 0), io(Op::Read, 500, 40)]);
        assert_eq!(rig.insert(&[io(Op::Read, 108, 40), io(Op::Read, 92, 40)]), 2);
        assert_eq!(rig.insert(&[io(Op::Write, 116, 40), io(Op::Write, 84, 40)]), 0);
        assert_eq!(rig.scheduling.len(), 4);
        // A read that expired, although its first bio is younger.
        assert_eq!(rig.next(120), Some((92, vec![3, 0, 2])));
        assert_eq!(rig.next(120), Some((500, vec![1])));
        assert_eq!(rig.sectors(120, 2), [84, 116]);
    }

    #[test]
    fn what_is_taken_out_comes_oldest_first_and_may_come_back() {
        let mut rig = Rig::new(4);
        rig.insert(&[Io(Op::Write, 9, 1, 0), Io(Op::Read, 5, 1, 1), Io(Op::Read, 1, 1, 2)]);
        let mut left = rig.scheduling.empty();
        assert_eq!((left.len(), rig.scheduling.len(), rig.next(0)), (3, 0, None));
        rig.scheduling.insert(left.take(), &QueueLimits::default(), &mut |_, _| ());
        assert_eq!(rig.sectors(0, 3), [1, 5, 9]);
    }

    fn io() -> impl Strategy<Value = Io> {
        let op = prop_oneof![3 => Just(Op::Read), 3 => Just(Op::Write), 1 => Just(Op::Discard)];
        (op, 0u64..200, 1u32..6).prop_map(|(op, sector, nr)| Io(op, sector, nr, 0))
    }

    proptest! {
        #[test]
        fn every_bio_comes_out_once_and_none_waits_much_longer_than_it_may(
            rounds in proptest::collection::vec(
                (proptest::collection::vec(io(), 0..8), 0usize..6, 0u64..60), 1..40,
            ),
        ) {
            let count = rounds.iter().map(|(ios, ..)| ios.len()).sum::<usize>();
            let mut rig = Rig::new(count);
            // Of each bio: whether it reads, when it came, and how many chains went past it since
            // it expired.
            let mut waiting: Vec<Option<(bool, u64, u32)>> = Vec::new();
            let (mut now_ns, mut out) = (0, 0);
            let all = rounds.into_iter().chain([(Vec::new(), usize::MAX, 0)]);
            for (mut ios, picks, pause_ns) in all {
                now_ns += pause_ns;
                ios.iter_mut().for_each(|io| io.3 = now_ns);
                waiting.extend(ios.iter().map(|io| Some((io.0 == Op::Read, now_ns, 0))));
                rig.insert(&ios);
                for _ in 0..picks {
                    let Some((_, bios)) = rig.next(now_ns) else { break };
                    for bio in bios {
                        prop_assert!(waiting[bio as usize].take().is_some(), "bio {bio} twice");
                        out += 1;
                    }
                    let mut expired = 0;
                    for (is_read, came_ns, passed) in waiting.iter_mut().flatten() {
                        let expire_ns = if *is_read { 100 } else { 300 };
                        if came_ns.saturating_add(expire_ns) <= now_ns {
                            expired += 1;
                            *passed += 1;
                        }
                        // The batch under way, and for each that expired before it, one batch of
                        // its own way and as many of the other as may go before.
                        let most = 4 + 4 * (1 + 2) * (expired + 8);
                        prop_assert!(*passed <= most, "{passed} went past it");
                    }
                }
            }
            prop_assert_eq!((out, rig.scheduling.len()), (count, 0));
        }
    }
}
