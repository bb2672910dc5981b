//! What held I/Os of a group, by reason, as a volume says it.
//!
//! On the drive made for tests: it keeps requests until it is told to go on, or refuses some. Times
//! are bounded from below only, by how long the test slept.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, Disk, DiskConfig, GroupConfig, GroupId, GroupLimits,
    Groups, HeldSnapshot, Hold, SchedulerKind, Volume,
};
use millrace_machine::Native;
use support::{Knobs, TestDrive};

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
    let groups = Groups::new();
    let gold = groups.open(GroupConfig { limits, ..GroupConfig::new("gold") }).unwrap();
    let drive = TestDrive { queues: 1, depth: 2, ..TestDrive::new(4096) };
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

    fn held(&self) -> HeldSnapshot {
        let held = self.volume.held();
        assert!(held.iter().all(|(group, _)| *group == self.gold), "{held:?}");
        held.first().map_or(HeldSnapshot::default(), |(_, held)| *held)
    }
}

/// That most of the waiting was for this, and at least so long.
fn assert_mostly(held: HeldSnapshot, hold: Hold, least: Duration, kind: SchedulerKind) {
    let ns = held.ns[hold as usize];
    assert!(u128::from(ns) >= least.as_nanos(), "{kind:?}: {held:?}");
    assert!(ns * 10 >= held.ns.iter().sum::<u64>() * 9, "{kind:?}: {held:?}");
}

#[test]
fn what_waits_in_a_scheduler_while_no_tag_is_free_waits_for_a_tag() {
    for kind in KINDS {
        let mut rig = rig(kind, GroupLimits::default());
        rig.knobs.held.store(true, Ordering::SeqCst);
        rig.submit(8);
        std::thread::sleep(SLEEP);
        rig.knobs.held.store(false, Ordering::SeqCst);
        rig.end(8);
        // Two have the tags, and one may already be picked.
        assert_mostly(rig.held(), Hold::NoTag, SLEEP * 4, kind);
    }
}

#[test]
fn what_waits_behind_a_request_that_the_drive_refused_waits_for_the_drive() {
    for kind in KINDS {
        let mut rig = rig(kind, GroupLimits::default());
        rig.knobs.busy.store(1, Ordering::SeqCst);
        rig.submit(2);
        std::thread::sleep(SLEEP);
        rig.end(2);
        assert_mostly(rig.held(), Hold::DriveBusy, SLEEP, kind);
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
fn what_waits_for_a_limit_is_its_groups_and_the_limit_is_booked_ahead() {
    let limits = GroupLimits { iops: Some(100), burst_ns: 1_000_000, ..GroupLimits::default() };
    let mut rig = rig(SchedulerKind::None, limits);
    rig.submit(4);
    let booked = rig.groups.booked();
    assert!(matches!(booked[..], [(group, ns)] if group == rig.gold && ns <= 40_000_000));
    rig.end(4);
    // 9, 19 and 29 ms.
    assert_mostly(rig.held(), Hold::Limit, Duration::from_millis(57), SchedulerKind::None);
    std::thread::sleep(SLEEP);
    assert!(rig.groups.booked().is_empty());
}
