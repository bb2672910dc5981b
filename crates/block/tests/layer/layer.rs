//! The layer as a whole, on a drive made for tests.
//!
//! Every stack against a memory image, back pressure, busy drives, flushes that join, freezing,
//! timeouts and quarantine. The drive is in support/mod.rs; it checks that every request keeps the
//! limits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{Knobs, TestDrive, pattern, run};
use millrace_block::baseline::Stack;
use millrace_block::{
    AfterCompletion, Bio, Buffer, Channel, ChannelConfig, CompletionBatch, Disk, DiskConfig,
    Dispatch, Driver, DriverQueue, Error, Expired, Features, HwQueues, Layout, Op, OpFlags,
    QueueKind, QueueLimits, Reject, Request, Sector, Segment, Serving, ServingConfig, Status, Tag,
    TagScope, Volume, align_inwards,
};
use millrace_machine::{Machine, Native, Topology};
use proptest::prelude::*;

const STACKS: [Stack; 3] = [Stack::Mq, Stack::Sq, Stack::Raw];

fn disk(drive: TestDrive, stack: Stack) -> (Arc<Disk<Native>>, Arc<Knobs>) {
    disk_with(drive, DiskConfig { baseline: stack.into(), ..DiskConfig::default() })
}

fn disk_with(drive: TestDrive, config: DiskConfig<Native>) -> (Arc<Disk<Native>>, Arc<Knobs>) {
    let knobs = Arc::clone(&drive.knobs);
    (Disk::new(Box::new(drive), config).expect("a valid drive"), knobs)
}

/// A disk whose requests time out after 40 ms.
fn hasty_disk(drive: TestDrive, stack: Stack) -> (Arc<Disk<Native>>, Arc<Knobs>) {
    let config = DiskConfig {
        baseline: stack.into(),
        timeout: Duration::from_millis(40),
        ..DiskConfig::default()
    };
    disk_with(drive, config)
}

fn single(drive: TestDrive, stack: Stack) -> (Channel<Native>, Arc<Knobs>) {
    open_single(disk(drive, stack))
}

fn open_single((disk, knobs): (Arc<Disk<Native>>, Arc<Knobs>)) -> (Channel<Native>, Arc<Knobs>) {
    let volume = Volume::single(disk).expect("one disk");
    (Channel::open(&volume, ChannelConfig::default()).expect("its queues are served"), knobs)
}

#[test]
fn every_stack_reads_back_what_it_wrote() {
    for stack in STACKS {
        let (mut channel, _) = single(TestDrive::new(4096), stack);
        let (status, _) = run(&mut channel, Bio::write(16, pattern(8, 7)));
        assert_eq!(status, Status::Ok);
        let (_, bio) = run(&mut channel, Bio::read(16, Buffer::new(4096)));
        assert_eq!(bio.into_buffer().as_deref(), Some(&pattern(8, 7)[..]));
    }
}

#[test]
fn what_can_never_be_served_is_refused_with_its_status() {
    let (mut channel, _) = single(TestDrive::new(64), Stack::Mq);
    let cases = [
        (Bio::read(64, Buffer::new(512)), Status::OutOfRange),
        (Bio::read(60, Buffer::new(4096)), Status::OutOfRange),
        (Bio::read(u64::MAX, Buffer::new(512)), Status::OutOfRange),
        (Bio::discard(0, 0), Status::Invalid),
    ];
    for (bio, status) in cases {
        let rejected = channel.submit(bio).expect_err("refused");
        assert_eq!(rejected.reason, Reject::Invalid(status));
    }
}

#[test]
fn full_channel_gives_the_bio_back_and_takes_it_later() {
    let (disk, knobs) = disk(TestDrive::new(4096), Stack::Mq);
    let volume = Volume::single(disk).expect("one disk");
    let config = ChannelConfig { depth: 4, ..ChannelConfig::default() };
    let mut channel = Channel::open(&volume, config).expect("its queues are served");
    knobs.held.store(true, Ordering::SeqCst);
    (0..4).for_each(|n| channel.submit(Bio::read(n * 16, Buffer::new(512))).expect("room"));
    let rejected = channel.submit(Bio::read(0, Buffer::new(512))).expect_err("full");
    assert_eq!(rejected.reason, Reject::Full);
    knobs.held.store(false, Ordering::SeqCst);
    assert_eq!(channel.wait(4, |done| assert!(done.status.is_ok())), 4);
    channel.submit(rejected.bio).expect("room again");
    assert_eq!(channel.wait(1, |_| ()), 1);
}

/// Requests, and the most in flight at once, for `bios` neighbours of `sectors` sectors each on a
/// drive that prefers 128 KiB.
fn requests_for(bios: u64, sectors: u32) -> (u32, u32) {
    let mut drive = TestDrive::new(1 << 14);
    drive.limits.merge_sectors = 256;
    let (mut channel, knobs) = single(drive, Stack::Mq);
    knobs.held.store(true, Ordering::SeqCst);
    for number in 0..bios {
        let sector = number * u64::from(sectors);
        channel.submit(Bio::write(sector, Buffer::new(sectors as usize * 512))).expect("room");
    }
    channel.flush();
    let requests = knobs.seen[Op::Write as usize].load(Ordering::SeqCst);
    let in_flight = knobs.most_in_flight.load(Ordering::SeqCst);
    knobs.held.store(false, Ordering::SeqCst);
    let done = channel.wait(bios as usize, |done| assert!(done.status.is_ok()));
    assert_eq!(done as u64, bios);
    (requests as u32, in_flight)
}

#[test]
fn merging_makes_requests_as_long_as_drive_likes_and_no_longer() {
    // 128 KiB each: longer ones gain nothing.
    assert_eq!(requests_for(16, 256), (16, 16));
    assert_eq!(requests_for(4, 512), (4, 4));
    // Small ones, as many of them as make 128 KiB.
    assert_eq!(requests_for(2, 8), (1, 1));
    assert_eq!(requests_for(33, 8), (2, 2));
    assert_eq!(requests_for(128, 8), (4, 4));
    // Two of 96 KiB would be longer.
    assert_eq!(requests_for(4, 192), (4, 4));
}

#[test]
fn bios_sent_off_again_have_one_go_however_soon_they_are_done() {
    let disks = (0..2).map(|_| disk(TestDrive::new(1 << 14), Stack::Mq).0).collect();
    let layout = Layout::Stripe { chunk_sectors: 8 };
    let volume = Volume::new("v", layout, disks).expect("a valid volume");
    let mut channel = Channel::open(&volume, ChannelConfig { depth: 64, ..Default::default() })
        .expect("its queues are served");
    (0..64).for_each(|_| channel.submit(Bio::read(4, Buffer::new(65_536))).expect("room"));
    let handed = channel.poll_again(|_, _| AfterCompletion::Submit);
    assert!((1..=65).contains(&handed), "{handed}");
    // A bio that can never be served is not returned for ever either.
    let handed = channel.poll_again(|bio, _| {
        bio.set_sector(1 << 20);
        AfterCompletion::Submit
    });
    assert!((1..=65).contains(&handed), "{handed}");
    while channel.poll_again(|_, _| AfterCompletion::Drop) > 0 {}
    assert_eq!(channel.in_flight(), 0);
}

#[test]
fn bios_sent_off_again_through_the_one_list_have_one_go_too() {
    let disks = (0..2).map(|_| disk(TestDrive::new(1 << 14), Stack::Mq).0).collect();
    let layout = Layout::Stripe { chunk_sectors: 8 };
    let serving = ServingConfig::of(Serving::PerVolume);
    let volume = Volume::with_serving("v", layout, disks, serving).expect("a valid volume");
    let mut channel = Channel::open(&volume, ChannelConfig { depth: 128, ..Default::default() })
        .expect("its queues are served");
    // Neighbours of none, and enough of them to unplug on the way.
    (0..128).for_each(|n| channel.submit(Bio::read(n * 24, Buffer::new(4096))).expect("room"));
    let mut all = 0;
    for _ in 0..10 {
        let handed = channel.poll_again(|_, _| AfterCompletion::Submit);
        assert!(handed <= 128, "{handed}");
        all += handed;
    }
    assert!(all >= 128, "{all}");
    while channel.poll_again(|_, _| AfterCompletion::Drop) > 0 {}
    assert_eq!(channel.in_flight(), 0);
}

#[test]
fn bio_with_too_many_parts_is_finished_by_the_next_poller() {
    let disks = (0..2).map(|_| disk(TestDrive::new(1 << 14), Stack::Mq).0).collect();
    let layout = Layout::Stripe { chunk_sectors: 8 };
    let volume = Volume::new("v", layout, disks).expect("a valid volume");
    let mut channel = Channel::open(&volume, ChannelConfig { depth: 1, ..Default::default() })
        .expect("its queues are served");
    channel.submit(Bio::read(0, Buffer::new(1 << 20))).expect("room");
    // Each poll answers parts and sends more of the 256.
    let handed: usize = (0..1000).map(|_| channel.poll_again(|_, _| AfterCompletion::Drop)).sum();
    assert_eq!((handed, channel.in_flight()), (1, 0));
}

#[test]
fn excess_completions_are_found_by_a_later_submitter() {
    for stack in STACKS {
        for last in [1, 8] {
            let mut drive = TestDrive::new(1 << 16);
            drive.depth = 256;
            let (mut channel, knobs) = single(drive, stack);
            knobs.held.store(true, Ordering::SeqCst);
            let read = |n: u64| Bio::read(n * 16, Buffer::new(512));
            (0..150).for_each(|n| channel.submit(read(n)).expect("room"));
            assert_eq!(channel.poll(|_| ()), 0);
            knobs.held.store(false, Ordering::SeqCst);
            (0..last).for_each(|n| channel.submit(read(200 + n)).expect("room"));
            let mut seen = 0;
            while channel.in_flight() > 0 {
                channel.wait(1, |done| {
                    assert!(done.status.is_ok());
                    seen += 1;
                });
            }
            assert_eq!(seen, 150 + last, "{stack:?}");
            assert_eq!(channel.volume().disks()[0].tags_in_use(), 0);
        }
    }
}

#[test]
fn more_bios_than_tags_wait_and_finish_on_every_stack() {
    for stack in STACKS {
        let mut drive = TestDrive::new(1 << 16);
        drive.depth = 4;
        let (mut channel, knobs) = single(drive, stack);
        (0..200).for_each(|n| channel.submit(Bio::read(n * 32, Buffer::new(512))).expect("room"));
        assert_eq!(channel.wait(200, |done| assert!(done.status.is_ok())), 200, "{stack:?}");
        assert!(knobs.most_in_flight.load(Ordering::SeqCst) <= 4);
        assert_eq!(knobs.seen[0].load(Ordering::SeqCst), 200);
    }
}

#[test]
fn busy_drive_gets_its_requests_again_and_loses_none() {
    for stack in STACKS {
        let (mut channel, knobs) = single(TestDrive::new(1 << 16), stack);
        knobs.busy.store(5, Ordering::SeqCst);
        (0..20).for_each(|n| channel.submit(Bio::read(n * 32, Buffer::new(512))).expect("room"));
        assert_eq!(channel.wait(20, |done| assert!(done.status.is_ok())), 20, "{stack:?}");
        assert_eq!(channel.volume().disks()[0].stats().requeues(), 5);
    }
}

#[test]
fn neighbours_in_a_batch_merge_forwards_and_backwards() {
    for order in [[0u64, 8, 16, 24], [24, 16, 8, 0]] {
        let (mut channel, knobs) = single(TestDrive::new(4096), Stack::Mq);
        for sector in order {
            channel.submit(Bio::write(sector, pattern(8, sector as u8))).expect("room");
        }
        assert_eq!(channel.wait(4, |done| assert!(done.status.is_ok())), 4);
        assert_eq!(knobs.seen[1].load(Ordering::SeqCst), 1);
        for sector in order {
            let (_, bio) = run(&mut channel, Bio::read(sector, Buffer::new(4096)));
            assert_eq!(bio.into_buffer().as_deref(), Some(&pattern(8, sector as u8)[..]));
        }
    }
}

#[test]
fn flushes_that_come_while_one_is_issued_share_the_next() {
    let (mut channel, knobs) = single(TestDrive::new(64), Stack::Mq);
    knobs.held.store(true, Ordering::SeqCst);
    channel.submit(Bio::flush()).expect("room");
    channel.poll(|_| ());
    (0..7).for_each(|_| channel.submit(Bio::flush()).expect("room"));
    channel.poll(|_| ());
    assert_eq!(knobs.seen[2].load(Ordering::SeqCst), 1);
    knobs.held.store(false, Ordering::SeqCst);
    assert_eq!(channel.wait(8, |done| assert!(done.status.is_ok())), 8);
    assert_eq!(knobs.seen[2].load(Ordering::SeqCst), 2);
}

#[test]
fn fua_on_a_drive_without_it_is_a_write_and_a_flush() {
    let (mut channel, knobs) = single(TestDrive::new(64), Stack::Mq);
    let flags = OpFlags::FUA.with(OpFlags::PREFLUSH);
    let (status, _) = run(&mut channel, Bio::write(8, pattern(8, 1)).with_flags(flags));
    assert_eq!(status, Status::Ok);
    let seen = |op: Op| knobs.seen[op as usize].load(Ordering::SeqCst);
    assert_eq!((seen(Op::Write), seen(Op::Flush)), (1, 2));
}

#[test]
fn frozen_disk_takes_nothing_and_goes_on_after_unfreeze() {
    for stack in STACKS {
        let (mut channel, knobs) = single(TestDrive::new(4096), stack);
        let disk = Arc::clone(&channel.volume().disks()[0]);
        disk.freeze();
        assert!(disk.wait_drained(Native::now() + 1_000_000_000));
        channel.submit(Bio::read(0, Buffer::new(512))).expect("room");
        assert_eq!(channel.poll(|_| ()), 0);
        assert_eq!(knobs.seen[0].load(Ordering::SeqCst), 0, "{stack:?}");
        disk.unfreeze();
        assert_eq!(channel.wait(1, |done| assert!(done.status.is_ok())), 1);
    }
}

#[test]
fn quiesced_disk_queues_inside_and_goes_on_after_unquiesce() {
    for stack in STACKS {
        let (mut channel, knobs) = single(TestDrive::new(4096), stack);
        let disk = Arc::clone(&channel.volume().disks()[0]);
        disk.quiesce();
        (0..8).for_each(|n| channel.submit(Bio::read(n * 16, Buffer::new(512))).expect("room"));
        assert_eq!(channel.poll(|_| ()), 0);
        assert_eq!(knobs.seen[0].load(Ordering::SeqCst), 0, "{stack:?}");
        disk.unquiesce();
        assert_eq!(channel.wait(8, |done| assert!(done.status.is_ok())), 8);
    }
}

#[test]
fn longest_timeout_is_for_ever_and_not_at_once() {
    let config = DiskConfig { timeout: Duration::MAX, ..DiskConfig::default() };
    let (mut channel, knobs) = open_single(disk_with(TestDrive::new(4096), config));
    knobs.held.store(true, Ordering::SeqCst);
    channel.submit(Bio::read(0, Buffer::new(512))).expect("room");
    channel.flush();
    Native::spin_until(Native::now() + 20_000_000, || false);
    channel.tick();
    assert_eq!(channel.poll(|done| panic!("{:?}", done.status)), 0);
    knobs.held.store(false, Ordering::SeqCst);
    assert_eq!(channel.wait(1, |done| assert_eq!(done.status, Status::Ok)), 1);
}

#[test]
fn timed_out_memory_is_kept_until_the_drive_confirms() {
    for stack in STACKS {
        let (mut channel, knobs) = open_single(hasty_disk(TestDrive::new(4096), stack));
        knobs.held.store(true, Ordering::SeqCst);
        let bio = Bio::read(0, Buffer::new(4096)).with_user_data(5);
        let (status, bio) = run(&mut channel, bio);
        assert_eq!((status, bio.user_data()), (Status::TimedOut, 5), "{stack:?}");
        assert!(bio.into_buffer().is_none());
        assert_eq!(channel.quarantined_bios(), 1);
        knobs.held.store(false, Ordering::SeqCst);
        // The confirmation comes with any poll of the queue.
        let (status, _) = run(&mut channel, Bio::read(8, Buffer::new(512)));
        assert_eq!(status, Status::Ok);
        Native::spin_until(Native::now() + 60_000_000, || false);
        channel.tick();
        assert_eq!(channel.quarantined_bios(), 0);
        assert_eq!(channel.volume().disks()[0].tags_in_use(), 0);
    }
}

fn failures_of(channel: &Channel<Native>) -> u64 {
    channel.volume().disks()[0].failures().count
}

#[test]
fn a_request_with_foreign_memory_anywhere_in_it_is_not_given_up() {
    let mut memory = vec![0_u8; 4096];
    for (stack, fails) in [(Stack::Mq, false), (Stack::Sq, false), (Stack::Mq, true)] {
        let (mut channel, knobs) = open_single(hasty_disk(TestDrive::new(64), stack));
        knobs.held.store(true, Ordering::SeqCst);
        knobs.failing.store(fails, Ordering::SeqCst);
        channel.submit(Bio::read(0, Buffer::new(4096))).expect("room");
        // SAFETY: the memory lives until the bio has come back, below.
        let foreign = unsafe { Bio::foreign(Op::Read, 8, memory.as_mut_ptr(), 4096) };
        channel.submit(foreign).expect("room");
        let (mut looks, mut ended) = (0, 0);
        // Long enough for its time to pass five times, however late each look is.
        while looks < 40 || (looks < 4000 && failures_of(&channel) == 0) {
            looks += 1;
            ended += channel.poll(|_| ());
            channel.tick();
            Native::spin_until(Native::now() + 5_000_000, || false);
        }
        assert_eq!(knobs.given(Op::Read).len(), 1, "{stack:?}: one request");
        assert_eq!(ended, 0, "{stack:?}: the drive may still write the memory");
        let failures = channel.volume().disks()[0].failures();
        let told = failures.last.last().map(|one| (one.sector, one.nr_sectors, one.status));
        let expected = (2, Some((8, 8, Status::TimedOut)));
        assert_eq!((failures.count, told), expected, "{stack:?}: told once, however long");
        knobs.held.store(false, Ordering::SeqCst);
        assert_eq!(channel.wait(2, |done| assert_eq!(done.status.is_ok(), !fails)), 2, "{stack:?}");
        assert_eq!(failures_of(&channel), 2, "{stack:?}: each failed once, whatever came of it");
    }
}

#[test]
fn channel_dropped_with_io_in_flight_waits_for_it() {
    let (mut channel, knobs) = single(TestDrive::new(4096), Stack::Mq);
    let disk = Arc::clone(&channel.volume().disks()[0]);
    knobs.held.store(true, Ordering::SeqCst);
    (0..8).for_each(|n| channel.submit(Bio::read(n * 16, Buffer::new(512))).expect("room"));
    channel.poll(|_| ());
    let release = Arc::clone(&knobs);
    let thread = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        release.held.store(false, Ordering::SeqCst);
    });
    drop(channel);
    thread.join().expect("no panic");
    assert_eq!(disk.tags_in_use(), 0);
}

#[test]
fn threads_on_one_hardware_queue_all_get_their_answers() {
    for (stack, tags) in [
        (Stack::Mq, TagScope::PerQueue),
        (Stack::Mq, TagScope::PerDrive),
        (Stack::Sq, TagScope::PerQueue),
        (Stack::Raw, TagScope::PerDrive),
    ] {
        let mut drive = TestDrive::new(1 << 16);
        (drive.queues, drive.depth, drive.tags) = (2, 8, tags);
        let (disk, knobs) = disk(drive, stack);
        let volume = Volume::single(disk).expect("one disk");
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let volume = Arc::clone(&volume);
                scope.spawn(move || {
                    let mut channel = Channel::open(&volume, ChannelConfig::default())
                        .expect("its queues are served");
                    let mut done = 0;
                    for round in 0..200u64 {
                        for n in 0..16 {
                            let sector = (thread * 4096 + round * 16 + n * 2) & 0xffff;
                            let bio = Bio::read(sector, Buffer::new(512));
                            channel.submit(bio).expect("room");
                        }
                        done += channel.wait(16, |done| assert!(done.status.is_ok()));
                    }
                    assert_eq!(done, 3200);
                });
            }
        });
        let stats = volume.disks()[0].stats();
        assert_eq!((stats.ios(), stats.in_flight()), (4 * 3200, 0));
        assert_eq!(volume.disks()[0].tags_in_use(), 0);
        assert!(knobs.seen[0].load(Ordering::SeqCst) <= 4 * 3200);
    }
}

/// A step of a random history.
#[derive(Debug, Clone)]
struct Step {
    op: Op,
    sector: u64,
    sectors: u32,
    pieces: u8,
    seed: u8,
}

fn step(sectors: u64) -> impl Strategy<Value = Step> {
    let ops = prop_oneof![
        4 => Just(Op::Write), 4 => Just(Op::Read), 1 => Just(Op::Discard),
        1 => Just(Op::WriteZeroes), 1 => Just(Op::Flush),
    ];
    (ops, 0..sectors, 1u32..200, 1u8..5, any::<u8>()).prop_map(
        move |(op, sector, len, pieces, seed)| {
            let sectors = u64::from(len).min(sectors - sector) as u32;
            Step { op, sector, sectors, pieces, seed }
        },
    )
}

/// The bio of a step; data comes in several pieces of memory.
fn bio_of(step: &Step) -> Bio {
    let data = pattern(step.sectors as usize, step.seed);
    let mut pieces = Vec::new();
    let mut at = 0;
    for left in (1..=u32::from(step.pieces)).rev() {
        let sectors = (step.sectors - (at >> 9) as u32).div_ceil(left) as usize;
        if sectors > 0 {
            let mut piece = Buffer::new(sectors << 9);
            piece.copy_from_slice(&data[at..at + (sectors << 9)]);
            at += sectors << 9;
            pieces.push(piece);
        }
    }
    match step.op {
        Op::Read => Bio::readv(step.sector, pieces),
        Op::Write => Bio::writev(step.sector, pieces),
        Op::Discard => Bio::discard(step.sector, step.sectors),
        Op::WriteZeroes => Bio::write_zeroes(step.sector, step.sectors),
        Op::Flush => Bio::flush(),
    }
}

/// Limits that make the splitter work.
fn tight_limits(chunk: u32) -> QueueLimits {
    QueueLimits {
        max_sectors: 24,
        max_segments: 3,
        max_segment_size: 2048,
        seg_boundary_mask: 4095,
        max_discard_sectors: 40,
        max_write_zeroes_sectors: 50,
        chunk_sectors: chunk,
        features: Features { volatile_cache: true, ..Features::default() },
        ..QueueLimits::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn random_histories_agree_with_a_memory_image(
        drives in 1usize..5,
        layout in prop_oneof![Just(None), Just(Some(8u32)), Just(Some(16)), Just(Some(64))],
        stack in prop_oneof![Just(Stack::Mq), Just(Stack::Sq), Just(Stack::Raw)],
        tight in prop_oneof![Just(None), Just(Some(0u32)), Just(Some(32))],
        depth in 1u32..20,
        steps in proptest::collection::vec(step(1000), 1..60),
    ) {
        let mut disks = Vec::new();
        for index in 0..drives {
            let mut drive = TestDrive::new(1000 + 64 * index as u64);
            drive.depth = depth;
            if let Some(chunk) = tight {
                drive.limits = tight_limits(chunk);
            }
            disks.push(disk(drive, stack).0);
        }
        let layout = match layout {
            Some(chunk_sectors) => Layout::Stripe { chunk_sectors },
            None => Layout::Linear,
        };
        let volume = Volume::new("v", layout, disks).expect("a valid volume");
        prop_assert!(volume.capacity() >= 960);
        let mut channel = Channel::open(&volume, ChannelConfig::default()).expect("its queues are served");
        let mut image = vec![0u8; 1100 << 9];
        for step in steps.iter().filter(|s| s.sector + u64::from(s.sectors) <= 960) {
            let (status, bio) = run(&mut channel, bio_of(step));
            prop_assert_eq!(status, Status::Ok);
            let start = (step.sector << 9) as usize;
            let place = &mut image[start..start + ((step.sectors as usize) << 9)];
            match step.op {
                Op::Write => place.copy_from_slice(&pattern(step.sectors as usize, step.seed)),
                Op::Discard | Op::WriteZeroes => place.fill(0),
                Op::Read => {
                    let buffers = bio.into_buffers();
                    let read = buffers.iter().map(|b| b.to_vec()).collect::<Vec<_>>().concat();
                    prop_assert!(read == place);
                }
                Op::Flush => {}
            }
        }
        let in_use: u32 = volume.disks().iter().map(|d| d.tags_in_use()).sum();
        prop_assert_eq!(in_use, 0);
    }
}

#[test]
fn big_discard_is_one_request_for_each_drive() {
    let (mut disks, mut knobs) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let (disk, knob) = disk(TestDrive::new(1 << 14), Stack::Mq);
        disks.push(disk);
        knobs.push(knob);
    }
    let layout = Layout::Stripe { chunk_sectors: 8 };
    let volume = Volume::new("v", layout, disks).expect("a valid volume");
    let mut channel =
        Channel::open(&volume, ChannelConfig::default()).expect("its queues are served");
    let (status, _) = run(&mut channel, Bio::discard(3, 60_000));
    assert_eq!(status, Status::Ok);
    knobs.iter().for_each(|k| assert_eq!(k.seen[3].load(Ordering::SeqCst), 1));
}

#[test]
fn flush_after_one_that_timed_out_is_answered() {
    let (mut channel, knobs) = open_single(hasty_disk(TestDrive::new(64), Stack::Mq));
    knobs.held.store(true, Ordering::SeqCst);
    let (status, _) = run(&mut channel, Bio::flush());
    assert_eq!(status, Status::TimedOut);
    knobs.held.store(false, Ordering::SeqCst);
    let (status, _) = run(&mut channel, Bio::flush());
    assert_eq!(status, Status::Ok);
}

#[test]
fn memory_of_a_timed_out_part_is_kept_after_other_failures() {
    let (healthy, healthy_knobs) = hasty_disk(TestDrive::new(4096), Stack::Mq);
    let (stuck, stuck_knobs) = hasty_disk(TestDrive::new(4096), Stack::Mq);
    stuck_knobs.held.store(true, Ordering::SeqCst);
    healthy_knobs.failing.store(true, Ordering::SeqCst);
    let layout = Layout::Stripe { chunk_sectors: 8 };
    let volume = Volume::new("v", layout, vec![healthy, stuck]).expect("a valid volume");
    let mut channel =
        Channel::open(&volume, ChannelConfig::default()).expect("its queues are served");
    let (status, bio) = run(&mut channel, Bio::read(0, Buffer::new(8192)));
    assert_eq!(status, Status::TimedOut);
    assert!(bio.into_buffer().is_none());
    assert_eq!(channel.quarantined_bios(), 1);
    stuck_knobs.held.store(false, Ordering::SeqCst);
}

#[test]
fn data_of_four_gib_and_more_is_refused_and_discards_are_not() {
    let mut drive = TestDrive::new(64);
    drive.sectors = 1 << 25;
    drive.knobs.image.lock().expect("fresh").resize(64 << 9, 0);
    let (mut channel, knobs) = single(drive, Stack::Mq);
    let mut memory = Buffer::new(1 << 20);
    let segment = Segment { start: memory.as_mut_ptr(), len_bytes: 1 << 20 };
    let segments = vec![segment; 4096];
    // SAFETY: memory and list live until the answer; the bio is refused before it is touched.
    let bio = unsafe { Bio::foreign_vectored(Op::Read, 0, &raw const segments[..]) };
    assert_eq!(bio.nr_sectors(), 1 << 23);
    assert_eq!(run(&mut channel, bio).0, Status::Invalid);
    assert_eq!(knobs.given(Op::Read), [], "nothing of it reaches the drive");
}

/// A drive that never looks at data, so that they may be as long as they like.
struct Blind(TestDrive);

impl Driver<Native> for Blind {
    fn capacity(&self) -> Sector {
        1 << 25
    }
    fn limits(&self) -> QueueLimits {
        QueueLimits { max_sectors: u32::MAX, max_segments: u16::MAX, ..self.0.limits }
    }
    fn hw_queues(&self, _: &Topology) -> HwQueues {
        HwQueues { count: 1, depth: 4, kind: QueueKind::AnyThread, tags: TagScope::PerQueue }
    }
    fn open_queue(&self, _: u16, _: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        Ok(Box::new(BlindQueue(Vec::new())))
    }
}

struct BlindQueue(Vec<Tag>);

impl DriverQueue<Native> for BlindQueue {
    fn queue_rq(&mut self, rq: &Request<Native>) -> Dispatch {
        self.0.push(rq.tag());
        Dispatch::Queued
    }
    fn commit_rqs(&mut self) {}
    fn poll(&mut self, batch: &mut CompletionBatch) {
        self.0.drain(..).for_each(|tag| batch.push(tag, Status::Ok));
    }
    fn timeout(&mut self, _: Tag) -> Expired {
        Expired::Extend
    }
}

#[test]
fn data_just_under_four_gib_are_served_and_more_is_refused() {
    let disk = Disk::new(Box::new(Blind(TestDrive::new(8))), DiskConfig::default()).expect("valid");
    let volume = Volume::single(disk).expect("valid");
    let mut channel = Channel::open(&volume, ChannelConfig::default()).expect("valid");
    let mut memory = Buffer::new(1 << 20);
    for (short, status) in [(512, Status::Ok), (0, Status::Invalid)] {
        let segment = Segment { start: memory.as_mut_ptr(), len_bytes: 1 << 20 };
        let mut segments = vec![segment; 4096];
        segments[4095].len_bytes -= short;
        // SAFETY: memory and list live until the answer, and the drive looks at neither.
        let bio = unsafe { Bio::foreign_vectored(Op::Write, 0, &raw const segments[..]) };
        assert_eq!(run(&mut channel, bio).0, status, "{short}");
    }
}

#[test]
fn linear_volume_of_mixed_block_sizes_sends_whole_blocks_only() {
    let mut coarse = TestDrive::new(4096);
    coarse.limits.logical_block_size = 4096;
    let disks = vec![disk(TestDrive::new(1001), Stack::Mq).0, disk(coarse, Stack::Mq).0];
    let volume = Volume::new("v", Layout::Linear, disks).expect("a valid volume");
    assert_eq!(volume.capacity(), 1000 + 4096);
    let mut channel =
        Channel::open(&volume, ChannelConfig::default()).expect("its queues are served");
    for sector in [992, 1000, 1008] {
        assert_eq!(run(&mut channel, Bio::write(sector, pattern(16, 3))).0, Status::Ok);
    }
}

#[test]
fn flushes_in_one_plug_of_drive_with_boundary_are_all_answered() {
    let mut drive = TestDrive::new(1024);
    drive.limits.chunk_sectors = 64;
    let (mut channel, _) = single(drive, Stack::Mq);
    (0..3).for_each(|_| channel.submit(Bio::flush()).expect("room"));
    assert_eq!(channel.wait(3, |done| assert!(done.status.is_ok())), 3);
}

#[test]
fn stages_of_a_fua_write_follow_each_other_at_once() {
    let (mut channel, _) = single(TestDrive::new(64), Stack::Mq);
    let flags = OpFlags::FUA.with(OpFlags::PREFLUSH);
    let mut bio = Some(Bio::write(8, pattern(8, 1)).with_flags(flags));
    channel.submit(bio.take().expect("one")).expect("room");
    // Three stages, each started by the poll that ends the one before.
    let polls = (1..20).find(|_| channel.poll(|done| assert!(done.status.is_ok())) == 1);
    assert!(polls.is_some_and(|polls| polls <= 4), "{polls:?}");
}

#[test]
fn the_part_of_a_range_that_can_be_discarded_is_whole_units() {
    for (range, granularity, inside) in [
        ((0, 24), 8, (0, 24)),
        ((1, 24), 8, (8, 16)),
        ((9, 30), 8, (16, 16)),
        ((9, 5), 8, (16, 0)),
        ((3, 4), 0, (3, 4)),
    ] {
        assert_eq!(align_inwards(range.0, range.1, granularity), inside, "{range:?}");
    }
}
