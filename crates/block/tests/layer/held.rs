//! Reasons for which I/Os of a group were held, as a volume reports them.
//!
//! `TestDrive` keeps requests until it is told to go on, or refuses some. Times are bounded from
//! below only, by how long the test slept. The report is read while I/Os wait, and again
//! afterwards.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{Knobs, TestDrive};
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, Disk, DiskConfig, GroupConfig, GroupId, GroupLimits,
    Groups, LatencyTarget, Priority, SchedulerKind, Snapshot, Volume, WaitReason, WaitSnapshot,
};
use millrace_machine::Native;

const SLEEP: Duration = Duration::from_millis(20);
const KINDS: [SchedulerKind; 3] =
    [SchedulerKind::Deadline, SchedulerKind::Fair, SchedulerKind::Latency];

struct Rig {
    knobs: Arc<Knobs>,
    volume: Arc<Volume<Native>>,
    channel: Channel<Native>,
    groups: Arc<Groups<Native>>,
    gold: GroupId,
}

/// A drive of two tags.
fn rig(kind: SchedulerKind, limits: GroupLimits) -> Rig {
    rig_on(TestDrive { queues: 1, depth: 2, ..TestDrive::new(4096) }, kind, limits)
}

fn rig_on(drive: TestDrive, kind: SchedulerKind, limits: GroupLimits) -> Rig {
    let groups = Groups::new();
    let gold = groups.open(GroupConfig { limits, ..GroupConfig::new("gold") }).unwrap();
    let knobs = Arc::clone(&drive.knobs);
    let config = DiskConfig { groups: Some(Arc::clone(&groups)), ..DiskConfig::default() };
    let disk = Disk::new(Box::new(drive), config).unwrap();
    disk.set_scheduler(kind).unwrap();
    let volume = Volume::single(disk).unwrap();
    let channel = Channel::open(&volume, ChannelConfig::default()).unwrap();
    Rig { knobs, volume, channel, groups, gold }
}

impl Rig {
    /// Submits reads that no two of follow each other.
    fn submit(&mut self, reads: u64) {
        for at in 0..reads {
            let bio = Bio::read(at * 64, Buffer::new(4096)).with_group(self.gold);
            self.channel.submit(bio).unwrap();
        }
        self.channel.flush();
    }

    fn end(&mut self, reads: usize) {
        let ended = self.channel.wait(reads, |done| assert!(done.status.is_ok()));
        assert_eq!(ended, reads);
    }

    fn held(&self) -> WaitSnapshot {
        let held = self.volume.held();
        assert!(held.iter().all(|(group, _)| *group == self.gold), "{held:?}");
        held.first().map_or(WaitSnapshot::default(), |(_, held)| *held)
    }
}

/// Checks that I/O waited for at least `least`, and mostly for the reason `hold`.
fn assert_mostly(held: WaitSnapshot, hold: WaitReason, least: Duration, kind: SchedulerKind) {
    let ns = held.ns[hold as usize];
    assert!(u128::from(ns) >= least.as_nanos(), "{kind:?}: {held:?}");
    assert!(ns * 10 >= held.ns.iter().sum::<u64>() * 9, "{kind:?}: {held:?}");
}

#[test]
fn what_waits_in_scheduler_while_no_tag_is_free_waits_for_tag() {
    for kind in KINDS {
        let mut rig = rig(kind, GroupLimits::default());
        rig.knobs.held.store(true, Ordering::SeqCst);
        rig.submit(8);
        std::thread::sleep(SLEEP);
        rig.knobs.held.store(false, Ordering::SeqCst);
        rig.end(8);
        // Two have the tags, and one may already be picked.
        assert_mostly(rig.held(), WaitReason::NoTag, SLEEP * 4, kind);
    }
}

#[test]
fn what_waits_behind_request_that_drive_refused_waits_for_drive() {
    for kind in KINDS {
        let mut rig = rig(kind, GroupLimits::default());
        rig.knobs.busy.store(1, Ordering::SeqCst);
        rig.submit(2);
        std::thread::sleep(SLEEP);
        rig.end(2);
        assert_mostly(rig.held(), WaitReason::DriveBusy, SLEEP, kind);
    }
}

#[test]
fn time_in_which_nothing_waits_is_nobodys() {
    for kind in KINDS {
        let mut rig = rig(kind, GroupLimits::default());
        for _ in 0..5 {
            rig.submit(1);
            rig.end(1);
            std::thread::sleep(SLEEP);
        }
        let ns: u64 = rig.held().ns.iter().sum();
        assert!(u128::from(ns) < SLEEP.as_nanos(), "{kind:?}: {ns} ns");
    }
}

#[test]
fn what_waits_for_limit_is_its_groups_and_limit_is_booked_ahead() {
    let limits =
        GroupLimits { iops: Some(100), burst: Duration::from_millis(1), ..GroupLimits::default() };
    let mut rig = rig(SchedulerKind::None, limits);
    rig.submit(4);
    let booked = rig.groups.booked();
    assert!(matches!(booked[..], [(group, ns)] if group == rig.gold && ns <= 40_000_000));
    rig.end(4);
    // 9, 19 and 29 ms.
    assert_mostly(rig.held(), WaitReason::Limit, Duration::from_millis(57), SchedulerKind::None);
    std::thread::sleep(SLEEP);
    assert!(rig.groups.booked().is_empty());
}

#[test]
fn time_at_drive_is_known_of_group_with_target_alone_or_not() {
    for kind in KINDS {
        let mut rig = rig(kind, GroupLimits::default());
        let volume = Arc::clone(&rig.volume);
        let found = || volume.service_by_group().remove(0).into_iter().collect::<Vec<_>>();
        rig.submit(1);
        rig.end(1);
        assert!(found().is_empty(), "{kind:?}: it has no target");
        let latency_target = Some(LatencyTarget::Mean(Duration::from_millis(1)));
        rig.groups.set(rig.gold, GroupConfig { latency_target, ..GroupConfig::new("") }).unwrap();
        for _ in 0..3 {
            rig.knobs.held.store(true, Ordering::SeqCst);
            rig.submit(1);
            std::thread::sleep(SLEEP);
            rig.knobs.held.store(false, Ordering::SeqCst);
            rig.end(1);
        }
        if kind != SchedulerKind::Latency {
            assert!(found().is_empty(), "{kind:?} keeps no targets");
            continue;
        }
        let times = found();
        let [(group, at_drive)] = &times[..] else { panic!("{kind:?}: {times:?}") };
        assert_eq!((*group, at_drive.count()), (rig.gold, 3));
        assert!(u128::from(at_drive.sum_ns()) >= SLEEP.as_nanos() * 3, "{at_drive:?}");
        // Times of completed I/Os outlive the scheduler that measured them.
        volume.disks()[0].set_scheduler(SchedulerKind::None).unwrap();
        assert_eq!(found(), times);
    }
}

#[test]
fn of_a_group_with_a_target_nothing_goes_past_the_scheduler() {
    // A queue for each thread, where a batch could go the short way.
    let mut rig = rig_on(TestDrive::new(4096), SchedulerKind::Latency, GroupLimits::default());
    let latency_target = Some(LatencyTarget::Mean(Duration::from_millis(1)));
    rig.groups.set(rig.gold, GroupConfig { latency_target, ..GroupConfig::new("") }).unwrap();
    for _ in 0..200 {
        rig.submit(1);
        rig.end(1);
    }
    let times = rig.volume.service_by_group().remove(0);
    assert_eq!(times.get(&rig.gold).map(Snapshot::count), Some(200));
}

#[test]
fn what_waits_for_a_limit_is_counted_while_it_waits() {
    let limits =
        GroupLimits { iops: Some(2), burst: Duration::from_millis(1), ..GroupLimits::default() };
    let mut rig = rig(SchedulerKind::None, limits);
    rig.submit(2);
    std::thread::sleep(SLEEP);
    let held = rig.held();
    assert_mostly(held, WaitReason::Limit, SLEEP, SchedulerKind::None);
    assert!(held.waiting == 1 && u128::from(held.waiting_ns) >= SLEEP.as_nanos(), "{held:?}");
    std::thread::sleep(SLEEP);
    assert_mostly(rig.held(), WaitReason::Limit, SLEEP * 2, SchedulerKind::None);
    rig.channel.lift_limits();
    rig.end(2);
    let ended = rig.held();
    std::thread::sleep(SLEEP);
    assert_eq!(rig.held(), ended, "nothing waits any more");
    assert_eq!((ended.waiting, ended.waiting_ns), (0, 0));
}

#[test]
fn waiting_in_a_scheduler_is_counted_only_while_open() {
    for kind in KINDS {
        let mut rig = rig(kind, GroupLimits::default());
        rig.knobs.held.store(true, Ordering::SeqCst);
        rig.submit(8);
        std::thread::sleep(SLEEP);
        let held = rig.held();
        // Two have the tags.
        assert_mostly(held, WaitReason::NoTag, SLEEP * 6, kind);
        assert_eq!(held.waiting, 6, "{kind:?}: {held:?}");
        assert!(u128::from(held.waiting_ns) >= (SLEEP * 6).as_nanos(), "{kind:?}: {held:?}");
        rig.knobs.held.store(false, Ordering::SeqCst);
        rig.end(8);
        let ended = rig.held();
        assert_eq!((ended.waiting, ended.waiting_ns), (0, 0), "{kind:?}");
        std::thread::sleep(SLEEP);
        assert_eq!(rig.held(), ended, "{kind:?}");
    }
}

#[test]
fn one_io_of_group_beside_deep_one_is_counted_while_it_waits() {
    for kind in KINDS {
        let mut rig = rig(kind, GroupLimits::default());
        let one = rig.groups.open(GroupConfig::new("one")).unwrap();
        rig.knobs.held.store(true, Ordering::SeqCst);
        rig.submit(8);
        let bio = Bio::read(4000, Buffer::new(4096)).with_group(one);
        rig.channel.submit(bio).unwrap();
        rig.channel.flush();
        std::thread::sleep(SLEEP);
        let held = rig.volume.held().into_iter().find(|(group, _)| *group == one);
        let held = held.map_or(WaitSnapshot::default(), |(_, held)| held);
        assert_mostly(held, WaitReason::NoTag, SLEEP, kind);
        assert_eq!(held.waiting, 1, "{kind:?}");
        rig.knobs.held.store(false, Ordering::SeqCst);
        rig.end(9);
    }
}

#[test]
fn lower_priority_waits_for_higher_under_the_deadline() {
    let mut rig = rig(SchedulerKind::Deadline, GroupLimits::default());
    let terms = GroupConfig { priority: Priority::Realtime, ..GroupConfig::new("") };
    rig.groups.set(rig.gold, terms).unwrap();
    let slow = rig.groups.open(GroupConfig::new("slow")).unwrap();
    rig.knobs.held.store(true, Ordering::SeqCst);
    rig.submit(6);
    let bio = Bio::read(4000, Buffer::new(4096)).with_group(slow);
    rig.channel.submit(bio).unwrap();
    rig.channel.flush();
    // An I/O of gold completes, and gold's next goes before the other group's.
    rig.knobs.let_go.store(1, Ordering::SeqCst);
    rig.channel.wait(1, |done| assert!(done.status.is_ok()));
    std::thread::sleep(SLEEP);
    let held = rig.volume.held().into_iter().find(|(group, _)| *group == slow);
    let held = held.map_or(WaitSnapshot::default(), |(_, held)| held);
    assert_mostly(held, WaitReason::Priority, SLEEP, SchedulerKind::Deadline);
    rig.knobs.held.store(false, Ordering::SeqCst);
    rig.end(6);
}
