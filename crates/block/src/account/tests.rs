//! Tests of accounts: statistics recorded for runs of equal I/Os must equal a plain sum over every
//! I/O, by stage and by tenant.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use core::ptr::{NonNull, null};

use millrace_machine::Native;
use proptest::prelude::*;

use super::*;
use crate::account::tenants::{TenantLedger, TenantSnapshot};
use crate::bio::Bio;
use crate::bio::group_id::GroupId;

/// A bio of a completed request.
#[derive(Debug, Clone, Copy)]
struct One {
    q_ns: u64,
    whose: IoOwner,
    sectors: u32,
}

fn tenant_of(tenant: u16) -> AccountKey {
    AccountKey { group: GroupId::DEFAULT, tenant }
}

/// An update of the ledger, applied both to it and to the model.
#[derive(Debug, Clone)]
enum Told {
    /// A request ended: operation, times of G and I if it waited, times of D and C, and its bios.
    Request(Op, Option<(u64, u64)>, u64, u64, Vec<One>),
    /// A single bio that this thread submitted ended, dispatched and completed at these times.
    Single(Op, One, u64, u64),
    /// A bio was aborted while it waited in a queue.
    Aborted(Op, One, u64),
    Error(Op),
    Merge(Op),
    /// A batch of this many requests went to the driver.
    Batch(u32),
    Count(DiskCounter, u64),
}

fn ops() -> impl Strategy<Value = Op> {
    prop::sample::select(&Op::ALL[..])
}

fn ones() -> impl Strategy<Value = One> {
    let stage = prop::sample::select(&[BioStage::Whole, BioStage::Whole, BioStage::Child][..]);
    let whose = (0u16..3, stage, prop::bool::weighted(0.7)).prop_map(|(tenant, stage, own)| {
        IoOwner { account_key: tenant_of(tenant * 7), stage, own }
    });
    (0u64..6, whose, 0u32..50).prop_map(|(q_ns, whose, sectors)| One { q_ns, whose, sectors })
}

fn told() -> impl Strategy<Value = Told> {
    let waits = prop_oneof![Just(None), (0u64..30, 0u64..30).prop_map(Some)];
    // Only a few different times, so that many I/Os have equal times.
    let (ds, cs) = (|| 4u64..9, || 7u64..20);
    prop_oneof![
        6 => (ops(), waits, ds(), cs(), prop::collection::vec(ones(), 1..4))
            .prop_map(|(op, waits, d, c, ones)| Told::Request(op, waits, d, c, ones)),
        2 => (ops(), ones(), ds(), cs()).prop_map(|(op, one, d, c)| Told::Single(op, one, d, c)),
        1 => (ops(), ones(), cs()).prop_map(|(op, one, now)| Told::Aborted(op, one, now)),
        1 => ops().prop_map(Told::Error),
        1 => ops().prop_map(Told::Merge),
        2 => (1u32..700).prop_map(Told::Batch),
        3 => (prop::sample::select(&DiskCounter::ALL[..]), 0u64..99)
            .prop_map(|(counter, count)| Told::Count(counter, count)),
    ]
}

/// A bio in its slot.
fn slot(op: Op, one: One) -> BioSlot<Native> {
    let mut bio = Bio::discard(0, one.sectors).with_tenant(one.whose.account_key.tenant);
    bio.op = op;
    let mut slot = BioSlot::empty(null());
    (slot.bio, slot.q_ns, slot.stage) = (ManuallyDrop::new(bio), one.q_ns, one.whose.stage);
    slot
}

fn tell(
    (stats, run, tenants): (&DiskStats<Native>, &mut EqualIos, &mut Tenants<Native>),
    told: &Told,
) {
    match *told {
        Told::Request(op, waits, d_ns, c_ns, ref ones) => {
            let times = IoTimes { q_ns: ones[0].q_ns, waits, d_ns, c_ns };
            stats.begin(run, EqualIos::like(op, ones[0].whose, times), tenants);
            for one in ones {
                stats.count(run, &slot(op, *one), one.whose, tenants);
            }
        }
        Told::Single(op, one, d_ns, c_ns) => {
            stats.record_one(&slot(op, one), (d_ns, c_ns), tenants);
        }
        Told::Aborted(op, one, now_ns) => stats.count_aborted(&slot(op, one), now_ns),
        Told::Error(op) => stats.count_error(op),
        Told::Merge(op) => stats.count_merge(op),
        Told::Batch(requests) => stats.count_batch(requests),
        Told::Count(counter, count) => stats.add(counter, count),
    }
}

/// The expected sums.
#[derive(Default)]
struct Model {
    stats: StatsSnapshot,
    tenants: BTreeMap<u16, TenantSnapshot>,
}

impl Model {
    fn add(&mut self, told: &Told) {
        let stats = &mut self.stats;
        match *told {
            Told::Request(op, waits, d_ns, c_ns, ref ones) => {
                ones.iter().for_each(|one| self.add_one(op, *one, waits, (d_ns, c_ns)));
            }
            Told::Single(op, one, d_ns, c_ns) => {
                let own = One { whose: IoOwner { own: true, ..one.whose }, ..one };
                self.add_one(op, own, None, (d_ns, c_ns));
            }
            Told::Aborted(op, one, now_ns) => {
                let others = One { whose: IoOwner { own: false, ..one.whose }, ..one };
                self.add_one(op, others, None, (now_ns, now_ns));
                self.stats.ops[op as usize].errors += 1;
            }
            Told::Error(op) => stats.ops[op as usize].errors += 1,
            Told::Merge(op) => stats.ops[op as usize].merges += 1,
            Told::Batch(requests) => {
                let starts = [1, 2, 4, 8, 16, 32, 64, 128, 256];
                let class = starts.iter().rposition(|start| *start <= requests).unwrap();
                stats.batches[class] += 1;
                stats.counts[DiskCounter::Dispatches as usize] += 1;
                stats.counts[DiskCounter::Requests as usize] += u64::from(requests);
            }
            Told::Count(counter, count) => stats.counts[counter as usize] += count,
        }
    }

    fn add_one(&mut self, op: Op, one: One, waits: Option<(u64, u64)>, (d_ns, c_ns): (u64, u64)) {
        let sum = &mut self.stats.ops[op as usize];
        let (q_ns, sectors) = (one.q_ns, u64::from(one.sectors));
        // The clocks of two CPUs may differ slightly; a negative time counts as 0.
        let (queue, service) = (d_ns.saturating_sub(q_ns), c_ns.saturating_sub(d_ns));
        // A bio that bypassed the queues got its request at submission and went to the driver
        // straight from the plug.
        let (g, i) = waits.map_or((0, queue), |(g_ns, i_ns)| {
            let i = i_ns.saturating_sub(q_ns).min(queue);
            (g_ns.saturating_sub(q_ns).min(i), i)
        });
        let stages = [
            (&mut sum.q2g, g),
            (&mut sum.g2i, i - g),
            (&mut sum.i2d, queue - i),
            (&mut sum.queue, queue),
            (&mut sum.service, service),
            (&mut sum.total, queue + service),
        ];
        stages.into_iter().for_each(|(stage, ns)| stage.add(ns, 1));
        sum.ios += 1;
        sum.sectors += sectors;
        if one.whose.own && one.whose.stage == BioStage::Whole {
            let tenant =
                &mut self.tenants.entry(one.whose.account_key.tenant).or_default().ops[op as usize];
            tenant.ios += 1;
            tenant.sectors += sectors;
            tenant.total.add(queue + service, 1);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn accounts_come_to_the_sums_of_what_they_were_told(
        first in prop::collection::vec(told(), 0..40),
        second in prop::collection::vec(told(), 0..40),
    ) {
        let (ledger, mut model) = (Arc::new(TenantLedger::new()), Model::default());
        let mut sum = StatsSnapshot::default();
        for list in [first, second] {
            let stats = DiskStats::<Native>::new(3);
            let mut tenants = Tenants::new(Some(Arc::clone(&ledger)));
            let mut run = EqualIos::EMPTY;
            for told in &list {
                tell((&stats, &mut run, &mut tenants), told);
                model.add(told);
            }
            stats.record(&mut run, &mut tenants);
            // The run is empty, so this records nothing.
            stats.record(&mut run, &mut tenants);
            prop_assert_eq!(stats.key(), 3);
            stats.add_to(&mut sum);
        }
        prop_assert_eq!(sum, model.stats);
        prop_assert_eq!(ledger.sums(|account_key| account_key.tenant), model.tenants);
    }
}

#[test]
fn io_matches_a_run_by_operation_tenant_and_stage() {
    let whose = IoOwner { account_key: tenant_of(4), stage: BioStage::Whole, own: true };
    let one = One { q_ns: 10, whose, sectors: 8 };
    let times = IoTimes { q_ns: 10, waits: None, d_ns: 20, c_ns: 30 };
    let mut run = EqualIos::like(Op::Write, whose, times);
    assert_eq!(run.c_ns(), 30);
    assert!(run.is_like(Op::Write, &slot(Op::Write, one), 20));
    let others = [
        (Op::Read, one, 20),
        (Op::Write, one, 21),
        (Op::Write, One { q_ns: 11, ..one }, 20),
        (Op::Write, One { whose: IoOwner { account_key: tenant_of(5), ..whose }, ..one }, 20),
        (Op::Write, One { whose: IoOwner { stage: BioStage::Child, ..whose }, ..one }, 20),
    ];
    for (op, other, d_ns) in others {
        assert!(!run.is_like(op, &slot(op, other), d_ns), "{op:?} {other:?} {d_ns}");
    }
    run.forget();
    assert!(!run.is_like(Op::Write, &slot(Op::Write, one), 20));
}

#[test]
fn run_is_straight_if_own_ios_waited_in_no_queue() {
    for own in [false, true] {
        for waits in [None, Some((1, 2))] {
            let whose = IoOwner { account_key: tenant_of(0), stage: BioStage::Child, own };
            let times = IoTimes { q_ns: 0, waits, d_ns: 3, c_ns: 4 };
            let run = EqualIos::like(Op::Read, whose, times);
            assert_eq!(run.is_straight(), own && waits.is_none(), "{own} {waits:?}");
        }
    }
}

#[test]
fn a_tenant_is_billed_here_for_whole_bios_of_this_thread_only() {
    let mine: *const BioSet<Native> = NonNull::dangling().as_ptr();
    for (bio_set, stage, counted) in [
        (mine, BioStage::Whole, true),
        (mine, BioStage::Child, false),
        (null(), BioStage::Whole, false),
        (null(), BioStage::Data, false),
    ] {
        let mut bio = BioSlot::<Native>::empty(bio_set);
        bio.stage = stage;
        bio.bio.account_key.tenant = 9;
        let whose = IoOwner::of(&bio, mine);
        assert_eq!(whose, IoOwner { account_key: tenant_of(9), stage, own: bio_set == mine });
        assert_eq!(whose.is_counted(), counted, "{whose:?}");
    }
}
