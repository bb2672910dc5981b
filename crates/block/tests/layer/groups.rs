//! Limits of groups at a channel: groups that wait, that find it full, and that are let go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::TestDrive;
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, Disk, DiskConfig, GroupConfig, GroupId, GroupLimits,
    Groups, Op, Reject, Status, Volume,
};
use millrace_machine::Native;

const DEPTH: u32 = 16;

struct Rig {
    groups: Arc<Groups<Native>>,
    channel: Channel<Native>,
}

fn limited(name: &str, iops: u64) -> GroupConfig {
    let limits =
        GroupLimits { iops: Some(iops), burst: Duration::from_millis(1), ..GroupLimits::default() };
    GroupConfig { limits, ..GroupConfig::new(name) }
}

impl Rig {
    fn new() -> Rig {
        let groups = Groups::new();
        let config = DiskConfig { groups: Some(Arc::clone(&groups)), ..DiskConfig::default() };
        let disk = Disk::new(Box::new(TestDrive::new(4096)), config).unwrap();
        let config = ChannelConfig { depth: DEPTH, ..ChannelConfig::default() };
        let channel = Channel::open(&Volume::single(disk).unwrap(), config).unwrap();
        Rig { groups, channel }
    }

    fn submit(&mut self, group: GroupId, number: u64) -> Result<(), Reject> {
        let bio = Bio::read(number * 8, Buffer::new(4096)).with_user_data(number);
        self.channel.submit(bio.with_group(group)).map_err(|rejected| rejected.reason)
    }

    /// Numbers of bios that are done, with their status.
    fn poll(&mut self) -> Vec<(u64, Status)> {
        let mut done = Vec::new();
        self.channel.poll(|one| done.push((one.user_data, one.status)));
        done
    }

    fn held(&self) -> Vec<u64> {
        self.channel.held().map(Bio::user_data).collect()
    }
}

#[test]
fn a_group_that_waits_leaves_most_of_the_channel_to_others() {
    let mut rig = Rig::new();
    let [slow, other, more, free] = ["slow", "other", "more", "free"].map(|name| {
        let config = if name == "free" { GroupConfig::new(name) } else { limited(name, 1) };
        rig.groups.open(config).unwrap()
    });
    // The first I/O goes at once; then three more may wait.
    let taken = (0..9).take_while(|number| rig.submit(slow, *number).is_ok()).count();
    assert_eq!((taken, rig.submit(slow, 9)), (4, Err(Reject::Full)));
    assert!(rig.channel.is_throttled(slow) && !rig.channel.is_throttled(other));
    // Groups that come later still find room, but half of the channel is kept for groups that do
    // not wait.
    let taken = (20..40).take_while(|number| rig.submit(other, *number).is_ok()).count();
    assert_eq!(taken, 3);
    let taken = (50..60).take_while(|number| rig.submit(more, *number).is_ok()).count();
    assert_eq!((taken, rig.held()), (2, vec![1, 2, 3, 21, 22, 51]));
    let done = rig.poll();
    assert_eq!(done, [0, 20, 50].map(|number| (number, Status::Ok)));
    (60..68).for_each(|number| rig.submit(free, number).unwrap());
    rig.channel.submit(Bio::flush().with_group(slow).with_user_data(70)).unwrap();
    let start = Instant::now();
    while rig.channel.in_flight() > 6 && start.elapsed() < Duration::from_secs(5) {
        rig.poll();
    }
    assert_eq!(rig.channel.in_flight(), 6);
    rig.channel.lift_limits();
    assert_eq!(rig.channel.wait(6, |one| assert!(one.status.is_ok())), 6);
}

#[test]
fn channel_knows_at_once_for_which_operations_group_is_limited() {
    let mut rig = Rig::new();
    let parent = rig.groups.open(GroupConfig::new("parent")).unwrap();
    let child = GroupConfig { parent: Some(parent), ..GroupConfig::new("child") };
    let child = rig.groups.open(child).unwrap();
    assert!(!rig.channel.is_limited(child, Op::Write));
    let limits = GroupLimits { write_iops: Some(1), ..GroupLimits::default() };
    let limited = GroupConfig { limits, ..GroupConfig::new("parent") };
    rig.groups.set(parent, limited).unwrap();
    assert!(rig.channel.is_limited(child, Op::Write) && rig.channel.is_limited(parent, Op::Write));
    assert!(!rig.channel.is_limited(child, Op::Read));
    assert!(!rig.channel.is_limited(GroupId::DEFAULT, Op::Write));
}

#[test]
fn what_waits_can_be_taken_back_at_no_cost_to_the_group() {
    let mut rig = Rig::new();
    let slow = rig.groups.open(limited("slow", 4)).unwrap();
    (0..4).for_each(|number| rig.submit(slow, number).unwrap());
    let start = Instant::now();
    assert_eq!(rig.poll(), [(0, Status::Ok)]);
    // The first of them has its time in 250 ms, and gives it back.
    rig.channel.abort_held(|bio| bio.user_data() != 3);
    assert_eq!(rig.poll(), [(1, Status::Aborted), (2, Status::Aborted)]);
    assert_eq!(rig.held(), [3]);
    let mut done = Vec::new();
    rig.channel.wait(1, |one| done.push((one.user_data, one.status)));
    assert_eq!(done, [(3, Status::Ok)]);
    let took = start.elapsed();
    assert!((0.2..0.5).contains(&took.as_secs_f64()), "{took:?}");
}

#[test]
fn those_that_wait_go_in_their_order_through_change_of_limit() {
    let mut rig = Rig::new();
    let slow = rig.groups.open(limited("slow", 1)).unwrap();
    (0..4).for_each(|number| rig.submit(slow, number).unwrap());
    assert_eq!(rig.poll(), [(0, Status::Ok)]);
    rig.groups.set(slow, limited("slow", 100)).unwrap();
    let (start, mut done) = (Instant::now(), Vec::new());
    rig.channel.wait(3, |one| done.push(one.user_data));
    assert_eq!(done, [1, 2, 3]);
    let took = start.elapsed().as_secs_f64();
    assert!((0.02..0.3).contains(&took), "{took} s");
}

#[test]
fn a_group_gets_its_whole_rate_though_few_of_it_wait_at_a_time() {
    let mut rig = Rig::new();
    let fast = rig.groups.open(limited("fast", 5000)).unwrap();
    let mut number = 0;
    let mut second = |_: &i32| {
        let (start, mut done) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(1) {
            while rig.submit(fast, number % 500).is_ok() {
                number += 1;
            }
            done += rig.channel.wait(1, |_| ());
        }
        assert!(done <= 5100, "{done} in a second");
        done
    };
    // Other processes may use the processor for part of a second.
    assert!([0; 20].iter().any(|at| second(at) >= 4500), "not in one of twenty seconds");
}

#[test]
fn what_is_let_go_before_its_time_is_paid_for_by_its_group() {
    let mut rig = Rig::new();
    let slow = rig.groups.open(limited("slow", 10)).unwrap();
    (0..4).for_each(|number| rig.submit(slow, number).unwrap());
    let start = Instant::now();
    rig.channel.release_held(|bio| bio.user_data() != 2);
    let mut done = Vec::new();
    rig.channel.wait(3, |one| done.push(one.user_data));
    assert_eq!(done, [0, 1, 3]);
    assert!(start.elapsed() < Duration::from_millis(80));
    rig.channel.wait(1, |one| done.push(one.user_data));
    // 0 at once; 1, 3 and then 2 at 100 ms each.
    let took = start.elapsed().as_secs_f64();
    assert!(done == [0, 1, 3, 2] && (0.25..0.5).contains(&took), "{done:?} {took} s");
}

#[test]
fn changes_of_a_limit_between_two_polls_let_nothing_through() {
    let mut rig = Rig::new();
    let slow = rig.groups.open(limited("slow", 1)).unwrap();
    let (mut done, mut sector) = (0, 0);
    for round in 0..50 {
        while rig.submit(slow, sector % 400).is_ok() {
            sector += 1;
        }
        done += rig.poll().len();
        for change in 0..2 {
            rig.groups.set(slow, limited("slow", 1 + (round + change) % 2)).unwrap();
        }
    }
    assert!(done <= 2, "{done} at 1 or 2 a second");
    rig.channel.lift_limits();
    let left = rig.channel.in_flight();
    rig.channel.wait(left as usize, |_| ());
}

#[test]
fn a_group_that_moves_between_parents_leaves_no_debt_behind() {
    let mut rig = Rig::new();
    let parents = ["p", "q"].map(|name| rig.groups.open(limited(name, 4)).unwrap());
    let under = |parent| GroupConfig { parent: Some(parent), ..GroupConfig::new("g") };
    let moving = rig.groups.open(under(parents[0])).unwrap();
    (0..3).for_each(|number| rig.submit(moving, number).unwrap());
    for turn in 0..40 {
        rig.poll();
        rig.groups.set(moving, under(parents[turn % 2])).unwrap();
    }
    rig.poll();
    let most_ns = rig.groups.booked().into_iter().map(|(_, ns)| ns).max().unwrap_or(0);
    assert!(most_ns <= 600_000_000, "booked {most_ns} ns ahead at 4 a second");
    rig.channel.lift_limits();
    let left = rig.channel.in_flight();
    rig.channel.wait(left as usize, |_| ());
}
