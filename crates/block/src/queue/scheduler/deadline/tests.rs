//! Tests of `Deadline`.

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

const CONFIG: DeadlineConfig =
    DeadlineConfig { read_expire_ns: 100, write_expire_ns: 300, fifo_batch: 4, writes_starved: 2 };

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
            (slot.dev_sector, slot.chain_sectors, slot.q_ns) = (*sector, *nr_sectors, *queued_ns);
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
