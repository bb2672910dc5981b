//! Tests of `Deadline`.

use super::*;
use crate::account::held::DriveWaits;
use crate::bio::Bio;
use crate::bio::limits::QueueLimits;
use crate::chain::bio_set::BioSet;
use crate::chain::bio_set::tests::bio_set;
use crate::chain::slot::BioList;
use crate::group::config::GroupConfig;
use crate::queue::request::Tag;
use crate::queue::scheduler::QueueScheduler;
use alloc::vec;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use core::time::Duration;
use millrace_machine::{Native, nanoseconds};
use proptest::prelude::*;

/// A chain to insert: operation, first sector, length, time of insertion.
#[derive(Debug, Clone, Copy)]
struct Io(Op, u64, u32, u64);

const CONFIG: DeadlineConfig = DeadlineConfig {
    read_expire: Duration::from_nanos(100),
    write_expire: Duration::from_nanos(300),
    fifo_batch: 4,
    writes_starved: 2,
    ageing: Duration::from_nanos(500),
};

/// The first of two queues of a drive, with room for a fixed number of chains.
struct Rig {
    bio_set: alloc::boxed::Box<BioSet<Native>>,
    scheduling: QueueScheduler<Native>,
    coming: usize,
    groups: Arc<Groups<Native>>,
    deadline: Deadline<Native>,
}

impl Rig {
    fn new(chains: usize) -> Rig {
        let groups = Groups::new();
        for priority in [Priority::Realtime, Priority::Idle] {
            let name = alloc::format!("{priority:?}");
            groups.open(GroupConfig { priority, ..GroupConfig::new(name) }).unwrap();
        }
        let deadline = Deadline::new(CONFIG, 2).with_groups(Some(Arc::clone(&groups)));
        Rig {
            bio_set: bio_set(chains),
            scheduling: scheduling(&deadline, 0),
            coming: 0,
            groups,
            deadline,
        }
    }

    /// The other queue of the drive, with room for `chains` chains.
    fn other(&self, chains: usize) -> Rig {
        Rig {
            bio_set: bio_set(chains),
            scheduling: scheduling(&self.deadline, 1),
            coming: 0,
            groups: Arc::clone(&self.groups),
            deadline: Deadline::new(CONFIG, 1),
        }
    }

    /// Inserts chains for the default group. Returns the number of merges.
    fn insert(&mut self, ios: &[Io]) -> u32 {
        self.insert_as(Priority::BestEffort, ios)
    }

    /// Inserts chains for a group of this priority. Returns the number of merges.
    fn insert_as(&mut self, priority: Priority, ios: &[Io]) -> u32 {
        let group = self.groups.find(&alloc::format!("{priority:?}")).unwrap_or_default();
        let first = self.coming;
        self.coming += ios.len();
        let mut free = self.bio_set.handles(first..self.coming);
        let mut list = BioList::new();
        for (Io(op, sector, nr_sectors, queued_ns), number) in ios.iter().zip(first..) {
            let mut slot = free.pop_front().expect("one for each");
            let mut bio = Bio::discard(0, *nr_sectors).with_user_data(number as u64);
            bio.op = *op;
            let bio = bio.with_group(group);
            slot.bio = ManuallyDrop::new(bio);
            (slot.dev_sector, slot.chain_sectors, slot.q_ns) = (*sector, *nr_sectors, *queued_ns);
            slot.chain_segments = 1;
            slot.tail = slot.as_ptr();
            list.push_back(slot);
        }
        let mut merges = 0;
        self.scheduling.insert(list, &QueueLimits::default(), &mut |_, _| merges += 1);
        merges
    }

    /// Returns the first sector of the next chain and the numbers of its bios.
    fn next(&mut self, now_ns: u64) -> Option<(u64, Vec<u64>)> {
        let SchedulerPick::Chain(chain) = self.scheduling.next(now_ns) else { return None };
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

fn scheduling(deadline: &Deadline<Native>, hctx: u16) -> QueueScheduler<Native> {
    QueueScheduler::new(None, deadline.queue(hctx), 1, &Arc::new(DriveWaits::new(2)))
}

fn reads(sectors: &[u64]) -> Vec<Io> {
    sectors.iter().map(|sector| Io(Op::Read, *sector, 1, 0)).collect()
}

#[test]
fn chains_go_by_sector_and_a_finished_pass_restarts_low() {
    let mut rig = Rig::new(7);
    rig.insert(&reads(&[50, 10, 30]));
    assert_eq!(rig.sectors(0, 2), [10, 30]);
    rig.insert(&reads(&[5, 40, 1, 3]));
    // Sectors 40 and 50 lie ahead of the head; the next pass serves the others.
    assert_eq!(rig.sectors(0, 9), [40, 50, 1, 3, 5]);
    assert_eq!(rig.scheduling.len, 0);
}

#[test]
fn the_oldest_goes_first_once_it_has_waited_as_long_as_it_may() {
    for (now_ns, order) in [(99, [20, 30, 10]), (100, [10, 20, 30])] {
        let mut rig = Rig::new(8);
        // Moves the head behind sector 10.
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
    // Batches come in cycles: two of four reads, then one of four writes.
    let mut expected = vec![0; 8];
    expected.extend([1; 4].iter().chain(&[0; 8]).chain(&[1; 2]).chain(&[0; 4]));
    assert_eq!(found, expected);
}

#[test]
fn neighbours_of_one_operation_merge_and_keep_their_age() {
    let mut rig = Rig::new(9);
    let io = |op, sector, queued_ns| Io(op, sector, 8, queued_ns);
    rig.insert(&[io(Op::Read, 100, 0), io(Op::Read, 500, 40)]);
    assert_eq!(rig.insert(&[io(Op::Read, 108, 40), io(Op::Read, 92, 40)]), 2);
    assert_eq!(rig.insert(&[io(Op::Write, 116, 40), io(Op::Write, 84, 40)]), 0);
    assert_eq!(rig.scheduling.len, 4);
    // This chain contains a read that has expired, although its first bio is younger.
    assert_eq!(rig.next(120), Some((92, vec![3, 0, 2])));
    assert_eq!(rig.next(120), Some((500, vec![1])));
    assert_eq!(rig.sectors(120, 2), [84, 116]);
}

#[test]
fn what_is_taken_out_comes_oldest_first_and_may_come_back() {
    let mut rig = Rig::new(4);
    rig.insert(&[Io(Op::Write, 9, 1, 0), Io(Op::Read, 5, 1, 1), Io(Op::Read, 1, 1, 2)]);
    let mut left = rig.scheduling.empty();
    assert_eq!((left.len(), rig.scheduling.len, rig.next(0)), (3, 0, None));
    rig.scheduling.insert(left.take(), &QueueLimits::default(), &mut |_, _| ());
    assert_eq!(rig.sectors(0, 3), [1, 5, 9]);
}

#[test]
fn realtime_goes_before_best_effort_before_idle_each_by_sector() {
    let mut rig = Rig::new(8);
    rig.insert_as(Priority::Idle, &reads(&[20, 10]));
    rig.insert(&reads(&[40, 30]));
    assert_eq!(rig.sectors(0, 1), [30]);
    // A batch of best-effort priority has begun.
    rig.insert_as(Priority::Realtime, &[Io(Op::Write, 60, 1, 0), Io(Op::Read, 50, 1, 0)]);
    assert_eq!(rig.sectors(0, 9), [50, 60, 40, 10, 20]);
    // Adjacent chains of two groups are not merged.
    rig.insert_as(Priority::Idle, &reads(&[7]));
    assert_eq!(rig.insert_as(Priority::Realtime, &reads(&[8])), 0);
    assert_eq!(rig.sectors(0, 9), [8, 7]);
}

#[test]
fn aged_requests_go_before_higher_priorities() {
    let mut rig = Rig::new(20);
    rig.insert_as(Priority::Idle, &[Io(Op::Write, 3, 1, 0), Io(Op::Read, 1, 1, 60)]);
    rig.insert(&[Io(Op::Read, 5, 1, 50), Io(Op::Read, 7, 1, 51)]);
    rig.insert_as(Priority::Realtime, &reads(&[10, 20, 30, 40, 50, 60, 70]));
    assert_eq!(rig.sectors(499, 1), [10]);
    // The current batch ends first; then expired I/Os follow, the oldest first.
    assert_eq!(rig.sectors(550, 7), [20, 30, 40, 3, 5, 50, 60]);
    assert_eq!(rig.sectors(560, 9), [70, 1, 7]);
}

#[test]
fn a_live_change_of_priority_holds_for_what_comes_after_it() {
    let mut rig = Rig::new(4);
    rig.insert_as(Priority::Idle, &reads(&[10]));
    rig.insert(&reads(&[20]));
    let group = rig.groups.find("Idle").unwrap();
    let config = rig.groups.config(group).unwrap();
    rig.groups.set(group, GroupConfig { priority: Priority::Realtime, ..config }).unwrap();
    rig.insert_as(Priority::Idle, &reads(&[30]));
    assert_eq!(rig.sectors(0, 9), [30, 20, 10]);
}

fn io() -> impl Strategy<Value = Io> {
    let op = prop_oneof![3 => Just(Op::Read), 3 => Just(Op::Write), 1 => Just(Op::Discard)];
    (op, 0u64..200, 1u32..6).prop_map(|(op, sector, nr)| Io(op, sector, nr, 0))
}

/// A bio that waits.
struct Waits {
    priority: Priority,
    is_read: bool,
    came_ns: u64,
    /// Number of chains of the same priority that went first after this bio had expired.
    passed: u32,
    /// Number of younger chains of higher priority that went first after this bio had aged.
    overtaken: u32,
}

impl Waits {
    /// Counts that a chain of this priority, whose oldest bio was inserted at `came_ns`, goes
    /// before this bio.
    fn goes_by(&mut self, priority: Priority, came_ns: u64, now_ns: u64) {
        let expire = if self.is_read { CONFIG.read_expire } else { CONFIG.write_expire };
        let waited_ns = now_ns - self.came_ns;
        self.passed += u32::from(priority == self.priority && waited_ns >= nanoseconds(expire));
        let is_above = priority < self.priority && came_ns > self.came_ns;
        self.overtaken += u32::from(is_above && waited_ns >= nanoseconds(CONFIG.ageing));
    }
}

fn priority() -> impl Strategy<Value = Priority> {
    prop_oneof![Just(Priority::Realtime), Just(Priority::BestEffort), Just(Priority::Idle)]
}

proptest! {
    #[test]
    fn bio_comes_out_once_and_waits_within_its_bound(
        rounds in proptest::collection::vec(
            (proptest::collection::vec((priority(), io()), 0..8), 0usize..6, 0u64..60), 1..60,
        ),
    ) {
        let count = rounds.iter().map(|(ios, ..)| ios.len()).sum::<usize>();
        let mut rig = Rig::new(count);
        let mut waiting: Vec<Option<Waits>> = Vec::new();
        let (mut now_ns, mut out) = (0, 0);
        let all = rounds.into_iter().chain([(Vec::new(), usize::MAX, 0)]);
        for (ios, picks, pause_ns) in all {
            now_ns += pause_ns;
            for (priority, mut io) in ios {
                io.3 = now_ns;
                let (is_read, came_ns) = (io.0 == Op::Read, now_ns);
                waiting.push(Some(Waits { priority, is_read, came_ns, passed: 0, overtaken: 0 }));
                rig.insert_as(priority, &[io]);
            }
            for _ in 0..picks {
                let Some((_, bios)) = rig.next(now_ns) else { break };
                let mut gone = Vec::new();
                for bio in bios {
                    let taken = waiting[bio as usize].take();
                    prop_assert!(taken.is_some(), "bio {bio} twice");
                    gone.extend(taken);
                }
                out += gone.len();
                let came_ns = gone.iter().map(|bio| bio.came_ns).min().unwrap_or(0);
                let mut expired = 0;
                for bio in waiting.iter_mut().flatten() {
                    bio.goes_by(gone[0].priority, came_ns, now_ns);
                    expired += u32::from(bio.passed > 0);
                    // Limit: the current batch, and for each chain that expired before this one,
                    // one batch of its own direction and as many of the other direction as may go
                    // before.
                    let most = 4 + 4 * (1 + 2) * (expired + 8);
                    prop_assert!(bio.passed <= most, "{} went past it", bio.passed);
                    // Limit: the rest of the current batch.
                    prop_assert!(bio.overtaken <= 4, "{} overtook it", bio.overtaken);
                }
            }
        }
        prop_assert_eq!((out, rig.scheduling.len), (count, 0));
    }
}

#[test]
fn lower_priority_waits_for_higher_ones_until_it_has_aged() {
    let mut rig = Rig::new(4);
    let mut other = rig.other(4);
    rig.insert_as(Priority::Idle, &[Io(Op::Read, 10, 1, 0), Io(Op::Read, 20, 1, 0)]);
    other.insert_as(Priority::BestEffort, &reads(&[1, 5, 9]));
    assert_eq!(other.sectors(100, 1), [1]);
    assert!(matches!(rig.scheduling.next(100), SchedulerPick::WaitUntil(_)));
    assert_eq!(other.sectors(110, 1), [5]);
    assert_eq!(rig.next(110), None, "a chain of the other queue still waits");
    assert_eq!(rig.sectors(500, 1), [10], "it has aged");
    assert_eq!(rig.next(110), None);
    assert_eq!(other.sectors(120, 1), [9]);
    assert_eq!(rig.sectors(120, 1), [20]);
    // An I/O removed by a drain no longer holds back lower priorities.
    other.insert_as(Priority::Realtime, &reads(&[3]));
    rig.insert_as(Priority::Idle, &reads(&[30]));
    assert_eq!(rig.next(130), None);
    other.scheduling.empty().leak();
    assert_eq!(rig.sectors(130, 1), [30]);
}

#[test]
fn nobody_waits_for_a_queue_that_nobody_serves() {
    let mut rig = Rig::new(1);
    let mut other = rig.other(1);
    let now_ns = 1_000_000_000;
    other.insert_as(Priority::Realtime, &[Io(Op::Read, 1, 1, now_ns)]);
    rig.insert_as(Priority::Idle, &[Io(Op::Read, 10, 1, now_ns)]);
    assert_eq!(rig.sectors(now_ns, 1), [10], "the other queue was never asked for a chain");
    assert_eq!(other.sectors(now_ns, 1), [1]);
}
