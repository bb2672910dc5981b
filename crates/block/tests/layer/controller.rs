//! Tags of controllers: their number, their owners, and no starvation.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::support::{Knobs, TestDrive};
use millrace_block::baseline::Stack;
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, Controller, ControllerConfig, Disk, DiskConfig, ErrorKind,
    Layout, Op, Serving, ServingConfig, Sharing, Spread, TagScope, Volume,
};
use millrace_machine::{Machine, Native, NodeId};
use proptest::prelude::*;

const STACKS: [Stack; 3] = [Stack::Mq, Stack::Sq, Stack::Raw];

fn config(tags: u32, sharing: Sharing) -> ControllerConfig {
    ControllerConfig { name: "hba".into(), tags, sharing, node: None }
}

fn controller(tags: u32, sharing: Sharing) -> Arc<Controller<Native>> {
    Controller::new(config(tags, sharing)).unwrap()
}

/// A drive that takes `depth` requests in each of its `queues`.
fn disk(
    (queues, depth): (u16, u32),
    scope: TagScope,
    stack: Stack,
    controller: &Arc<Controller<Native>>,
) -> (Arc<Disk<Native>>, Arc<Knobs>) {
    let mut drive = TestDrive::new(1 << 12);
    (drive.queues, drive.depth, drive.tags) = (queues, depth, scope);
    let knobs = Arc::clone(&drive.knobs);
    let controller = Some(Arc::clone(controller));
    let config = DiskConfig { baseline: stack.into(), controller, ..DiskConfig::default() };
    (Disk::new(Box::new(drive), config).unwrap(), knobs)
}

fn channel(disk: &Arc<Disk<Native>>) -> Channel<Native> {
    Channel::open(&Volume::single(Arc::clone(disk)).unwrap(), ChannelConfig::default())
        .expect("its queues are served")
}

/// Reads that merge with nothing, started as far as they can be; how many have ended.
fn submit(channel: &mut Channel<Native>, count: u64) -> usize {
    for n in 0..count {
        channel.submit(Bio::read(n * 2, Buffer::new(512))).expect("room");
    }
    channel.flush();
    channel.poll(|_| ())
}

fn held(knobs: &Knobs, held: bool) {
    knobs.held.store(held, Ordering::SeqCst);
}

fn both((a, b): (&Knobs, &Knobs), value: bool) {
    held(a, value);
    held(b, value);
}

fn most(knobs: &Knobs) -> u32 {
    knobs.most_in_flight.load(Ordering::SeqCst)
}

#[test]
fn drives_of_a_controller_share_its_tags() {
    for stack in STACKS {
        let hba = controller(6, Sharing::Controller);
        let (a, knobs_a) = disk((1, 64), TagScope::PerQueue, stack, &hba);
        let (b, knobs_b) = disk((1, 64), TagScope::PerQueue, stack, &hba);
        both((&knobs_a, &knobs_b), true);
        let (mut to_a, mut to_b) = (channel(&a), channel(&b));
        submit(&mut to_a, 4);
        submit(&mut to_b, 30);
        assert_eq!((most(&knobs_a), most(&knobs_b)), (4, 2), "{stack:?}");
        assert_eq!(hba.tags_in_use(), Some(6));
        both((&knobs_a, &knobs_b), false);
        assert_eq!((to_a.wait(4, |_| ()), to_b.wait(30, |_| ())), (4, 30));
        assert!(most(&knobs_b) <= 6, "{stack:?}: {}", most(&knobs_b));
        assert_eq!(hba.tags_in_use(), Some(0), "all tags come back");
    }
}

#[test]
fn slow_drive_keeps_no_more_tags_than_it_takes_itself() {
    for stack in STACKS {
        let hba = controller(12, Sharing::Controller);
        let (slow, knobs) = disk((1, 8), TagScope::PerQueue, stack, &hba);
        let (fast, _) = disk((1, 8), TagScope::PerQueue, stack, &hba);
        held(&knobs, true);
        let (mut to_slow, mut to_fast) = (channel(&slow), channel(&fast));
        submit(&mut to_slow, 100);
        assert_eq!((most(&knobs), hba.tags_in_use()), (8, Some(8)), "{stack:?}");
        for _ in 0..50 {
            let ended = submit(&mut to_fast, 20);
            assert_eq!(ended + to_fast.wait(20 - ended, |_| ()), 20, "{stack:?}");
            to_slow.poll(|_| ());
        }
        assert_eq!(most(&knobs), 8, "{stack:?}");
        held(&knobs, false);
        assert_eq!(to_slow.wait(100, |_| ()), 100);
        assert_eq!((most(&knobs), hba.tags_in_use()), (8, Some(0)), "{stack:?}");
    }
}

#[test]
fn drives_that_wait_for_tag_get_it_in_order_of_their_coming() {
    for (b_first, expected) in [(true, 1), (false, 0)] {
        let hba = controller(2, Sharing::Controller);
        let [(a, knobs_a), (b, knobs_b), (c, knobs_c)] =
            [0; 3].map(|_| disk((1, 64), TagScope::PerQueue, Stack::Mq, &hba));
        both((&knobs_a, &knobs_c), true);
        let [mut to_a, mut to_b, mut to_c] = [&a, &b, &c].map(channel);
        submit(&mut to_a, 1);
        submit(&mut to_c, 1);
        let (first, second) = if b_first { (&mut to_b, &mut to_a) } else { (&mut to_a, &mut to_b) };
        submit(first, 1);
        submit(second, 1);
        held(&knobs_c, false);
        assert_eq!(to_c.wait(1, |_| ()), 1);
        let reads_b = knobs_b.seen[Op::Read as usize].load(Ordering::SeqCst);
        assert_eq!(reads_b, expected, "the tag that came back");
        held(&knobs_a, false);
        assert_eq!((to_a.wait(2, |_| ()), to_b.wait(1, |_| ())), (2, 1));
        assert_eq!(hba.tags_in_use(), Some(0));
    }
}

#[test]
fn tags_are_of_a_queue_or_of_a_drive_or_of_all_drives() {
    let queues = Native::topology().cpus().len() as u16;
    for (sharing, scope, expected) in [
        (Sharing::Queue, TagScope::PerQueue, 5),
        (Sharing::Drive, TagScope::PerQueue, 5),
        (Sharing::Queue, TagScope::PerDrive, 5),
        (Sharing::Controller, TagScope::PerQueue, 5),
    ] {
        let hba = controller(5, sharing);
        let (a, knobs) = disk((queues, 64), scope, Stack::Mq, &hba);
        let (b, other) = disk((queues, 64), scope, Stack::Mq, &hba);
        both((&knobs, &other), true);
        let (mut to_a, mut to_b) = (channel(&a), channel(&b));
        submit(&mut to_a, 20);
        submit(&mut to_b, 20);
        let second = if sharing == Sharing::Controller { 0 } else { expected };
        assert_eq!((most(&knobs), most(&other)), (expected, second), "{sharing:?} {scope:?}");
        both((&knobs, &other), false);
        assert_eq!((to_a.wait(20, |_| ()), to_b.wait(20, |_| ())), (20, 20));
    }
}

#[test]
fn a_queue_of_a_deep_set_takes_what_its_drive_takes() {
    for sharing in [Sharing::Queue, Sharing::Drive, Sharing::Controller] {
        for scope in [TagScope::PerQueue, TagScope::PerDrive] {
            let hba = controller(10_140, sharing);
            let (sata, knobs) = disk((4, 32), scope, Stack::Mq, &hba);
            held(&knobs, true);
            let mut channel = channel(&sata);
            submit(&mut channel, 200);
            assert_eq!(most(&knobs), 32, "{sharing:?} {scope:?}");
            held(&knobs, false);
            assert_eq!(channel.wait(200, |_| ()), 200);
            assert_eq!((most(&knobs), sata.tags_in_use()), (32, 0), "{sharing:?} {scope:?}");
        }
    }
}

#[test]
fn drives_of_one_list_take_no_more_than_they_can_either() {
    let hba = controller(20, Sharing::Controller);
    let (a, knobs) = disk((1, 4), TagScope::PerQueue, Stack::Mq, &hba);
    let serving = ServingConfig::of(Serving::PerVolume);
    let volume = Volume::with_serving("v", Layout::Linear, vec![a], serving).unwrap();
    held(&knobs, true);
    let mut channel =
        Channel::open(&volume, ChannelConfig::default()).expect("its queues are served");
    submit(&mut channel, 12);
    assert_eq!(most(&knobs), 4);
    held(&knobs, false);
    assert_eq!(channel.wait(12, |_| ()), 12);
    assert_eq!((most(&knobs), hba.tags_in_use()), (4, Some(0)));
}

#[test]
fn queue_depth_of_a_drive_holds_behind_a_controller() {
    let hba = controller(100, Sharing::Controller);
    let drive = TestDrive::new(1 << 12);
    let knobs = Arc::clone(&drive.knobs);
    let (queue_depth, controller) = (Some(3), Some(hba));
    let config = DiskConfig { queue_depth, controller, ..DiskConfig::default() };
    let disk = Disk::new(Box::new(drive), config).unwrap();
    held(&knobs, true);
    let mut channel = channel(&disk);
    submit(&mut channel, 10);
    assert_eq!(most(&knobs), 3);
    held(&knobs, false);
    assert_eq!(channel.wait(10, |_| ()), 10);
}

#[test]
fn flush_passes_a_full_drive_and_a_full_controller() {
    for stack in STACKS {
        let hba = controller(8, Sharing::Controller);
        let (disk, knobs) = disk((1, 4), TagScope::PerQueue, stack, &hba);
        let mut channel = channel(&disk);
        for _ in 0..3 {
            held(&knobs, true);
            submit(&mut channel, 4);
            channel.submit(Bio::flush()).expect("room");
            submit(&mut channel, 10);
            assert_eq!(most(&knobs), 5, "{stack:?}");
            held(&knobs, false);
            assert_eq!(channel.wait(15, |done| assert!(done.status.is_ok())), 15);
        }
        assert_eq!((most(&knobs), hba.tags_in_use()), (5, Some(0)), "{stack:?}");
    }
}

#[test]
fn controller_is_checked_and_its_node_is_known_to_the_drive() {
    let nodes = Native::topology().nodes() as u32;
    let on = |node| ControllerConfig { node: Some(NodeId(node)), ..config(1, Sharing::Drive) };
    let here = Controller::<Native>::new(on(nodes - 1)).unwrap();
    let (disk, _) = disk((1, 1), TagScope::PerQueue, Stack::Mq, &here);
    assert_eq!(disk.node(), Some(NodeId(nodes - 1)));
    for wrong in [on(nodes), config(0, Sharing::Queue), config(65_537, Sharing::Queue)] {
        let error = Controller::<Native>::new(wrong).expect_err("it makes no sense");
        assert_eq!(error.kind(), ErrorKind::InvalidSetting);
        assert!(error.to_string().starts_with("controller hba: "), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Threads on drives of one controller, each drive with a depth of its own.
    #[test]
    fn all_ios_end_and_all_tags_come_back(
        tags in 1u32..40,
        depths in proptest::collection::vec(1u32..12, 1..5),
        stack in prop_oneof![Just(Stack::Mq), Just(Stack::Sq), Just(Stack::Raw)],
        hardware_queues in prop_oneof![Just(Spread::Core), Just(Spread::One)],
        scope in prop_oneof![Just(TagScope::PerQueue), Just(TagScope::PerDrive)],
        threads in 1u64..4,
    ) {
        let hba = controller(tags, Sharing::Controller);
        let (disks, knobs): (Vec<_>, Vec<_>) = depths.iter().map(|depth| {
            let mut drive = TestDrive::new(1 << 12);
            (drive.queues, drive.depth, drive.tags) = (2, *depth, scope);
            let knobs = Arc::clone(&drive.knobs);
            let controller = Some(Arc::clone(&hba));
            let baseline = stack.into();
            let config =
                DiskConfig { baseline, hardware_queues, controller, ..DiskConfig::default() };
            (Disk::new(Box::new(drive), config).unwrap(), knobs)
        }).unzip();
        let submit = |thread: u64| {
            let mut channels: Vec<_> = disks.iter().map(channel).collect();
            for round in 0..20 {
                for channel in &mut channels {
                    for n in 0..10 {
                        let sector = (thread * 400 + round * 20 + n * 2) & 0xfff;
                        channel.submit(Bio::read(sector, Buffer::new(512))).expect("room");
                    }
                    if round % 8 == 0 {
                        channel.submit(Bio::flush()).expect("room");
                    }
                    channel.flush();
                }
                for channel in &mut channels {
                    let all = 10 + usize::from(round % 8 == 0);
                    assert_eq!(channel.wait(all, |done| assert!(done.status.is_ok())), all);
                }
            }
        };
        std::thread::scope(|scope| {
            (0..threads).for_each(|thread| { scope.spawn(move || submit(thread)); });
        });
        prop_assert_eq!(hba.tags_in_use(), Some(0));
        for (depth, knobs) in depths.iter().zip(&knobs) {
            // Flushes use the two reserved tags.
            prop_assert!(most(knobs) <= depth.min(&tags) + 2);
        }
    }
}
