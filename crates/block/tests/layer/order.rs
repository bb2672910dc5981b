//! Requests that reach the drives, and their order.
//!
//! A single journal records every trace event of all drives, so that the order across drives is
//! seen. The expected order comes from a plain model or a table.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Given, Knobs, TestDrive, pattern, run, thread_of};
use millrace_block::baseline::Stack;
use millrace_block::blktrace::EventCode;
use millrace_block::{
    AfterCompletion, Bio, Buffer, Channel, ChannelConfig, Disk, DiskConfig, IoThread, Layout, Op,
    OpFlags, QueueKind, QueueLimits, Reject, Sector, Serving, ServingConfig, Status, TraceEvent,
    TraceSink, Volume,
};
use millrace_machine::{Doorbell, Machine, Native, NativeParker, Parker};
use proptest::prelude::*;

const STACKS: [Stack; 3] = [Stack::Mq, Stack::Sq, Stack::Raw];

/// Trace events of all drives, as code, drive and sector.
#[derive(Default)]
struct Journal(Mutex<Vec<(EventCode, u16, Sector)>>);

impl TraceSink for Journal {
    fn trace(&self, event: &TraceEvent) {
        self.0.lock().unwrap().push((event.action, event.drive, event.sector));
    }
}

impl Journal {
    /// Drives and places of one kind of event, taken out.
    fn take(&self, action: EventCode) -> Vec<(u16, Sector)> {
        let all = std::mem::take(&mut *self.0.lock().unwrap());
        let of = all.iter().filter(|event| event.0 == action);
        of.map(|event| (event.1, event.2)).collect()
    }
}

struct Rig {
    volume: Arc<Volume<Native>>,
    channel: Channel<Native>,
    knobs: Vec<Arc<Knobs>>,
    journal: Arc<Journal>,
}

const STRIPE: Layout = Layout::Stripe { chunk_sectors: 8 };

fn rig(layout: Layout, drives: Vec<TestDrive>, config: ServingConfig, stack: Stack) -> Rig {
    let journal = Arc::new(Journal::default());
    let sink: Arc<dyn TraceSink> = journal.clone();
    let told = DiskConfig { baseline: stack.into(), trace: Some(sink), ..DiskConfig::default() };
    let mut rig = silent(layout, drives, config, &told);
    rig.journal = journal;
    rig
}

/// A rig whose drives have no trace sink.
fn silent(
    layout: Layout,
    drives: Vec<TestDrive>,
    serving: ServingConfig,
    config: &DiskConfig<Native>,
) -> Rig {
    let knobs = drives.iter().map(|drive| Arc::clone(&drive.knobs)).collect();
    let disks = drives.into_iter().map(|drive| Disk::new(Box::new(drive), config.clone()).unwrap());
    let volume = Volume::with_serving("v", layout, disks.collect(), serving).unwrap();
    let channel = Channel::open(&volume, ChannelConfig::default()).unwrap();
    Rig { volume, channel, knobs, journal: Arc::default() }
}

fn drives(count: usize) -> Vec<TestDrive> {
    (0..count).map(|_| TestDrive::new(4096)).collect()
}

fn per_volume() -> ServingConfig {
    ServingConfig::of(Serving::PerVolume)
}

impl Rig {
    fn read(&mut self, sector: Sector) {
        self.channel.submit(Bio::read(sector, Buffer::new(4096))).unwrap();
    }

    fn hold(&self, held: bool) {
        self.knobs.iter().for_each(|knobs| knobs.held.store(held, Ordering::SeqCst));
    }

    /// First sectors and lengths of the reads that a drive was given since the last call.
    fn given(&self, drive: usize) -> Vec<(Sector, u32)> {
        let mut given = self.knobs[drive].given.lock().unwrap();
        given.drain(..).map(|given| (given.sector, given.nr_sectors)).collect()
    }

    fn end(&mut self) -> usize {
        let mut ended = 0;
        while self.channel.in_flight() > 0 {
            ended += self.channel.wait(1, |done| assert_eq!(done.status, Status::Ok));
        }
        ended
    }
}

/// The `n`th chunk of a drive in a stripe.
fn chunk(drives: u64, drive: u64, n: u64) -> Sector {
    (n * drives + drive) * 8
}

#[test]
fn each_batch_begins_with_the_next_drive() {
    let mut rig = rig(STRIPE, drives(3), ServingConfig::default(), Stack::Mq);
    for order in [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2], [1, 2, 0]] {
        (0..3).for_each(|drive| rig.read(chunk(3, drive, 5)));
        assert_eq!(rig.end(), 3);
        let issued: Vec<u16> = rig.journal.take(EventCode::Issue).iter().map(|at| at.0).collect();
        assert_eq!(issued, order);
    }
}

#[test]
fn one_list_goes_out_at_sixteen_requests_by_drive_and_sector() {
    let mut rig = rig(STRIPE, drives(3), per_volume(), Stack::Mq);
    rig.hold(true);
    rig.read(chunk(3, 1, 90));
    rig.read(chunk(3, 0, 70));
    for n in 0..15 {
        // Neighbours of none, from the last to the first.
        rig.read(chunk(3, 2, 60 - 2 * n));
        assert_eq!((rig.given(0), rig.given(1), rig.given(2)), (vec![], vec![], vec![]), "{n}");
    }
    // This bio merges with one far back in the list, so there is no more request.
    rig.read(chunk(3, 1, 91));
    rig.read(chunk(3, 0, 69));
    rig.read(chunk(3, 2, 61));
    rig.journal.0.lock().unwrap().clear();
    rig.read(chunk(3, 2, 2));
    let mut expected = vec![(0, 69), (0, 70), (1, 90), (1, 91), (2, 2)];
    expected.extend((32..=60).step_by(2).map(|n| (2, n)));
    expected.push((2, 61));
    let expected: Vec<_> = expected.into_iter().map(|(drive, n)| (drive, n * 8)).collect();
    assert_eq!(rig.journal.take(EventCode::Issue), expected);
    assert_eq!((rig.given(0), rig.given(1)), (vec![(69 * 8, 16)], vec![(90 * 8, 16)]));
    let last = rig.given(2).pop();
    assert_eq!(last, Some((60 * 8, 16)));
    rig.hold(false);
    assert_eq!(rig.end(), 21);
    for disk in rig.volume.disks() {
        let stats = disk.stats();
        let ios = stats.ios();
        assert_eq!((stats.ops[0].merges, stats.queued(), stats.requests()), (1, ios, ios - 1));
    }
}

#[test]
fn one_list_is_full_at_the_high_watermark_of_all_drives() {
    let config = ServingConfig { plug_high: 3, plug_low: 0, ..per_volume() };
    let mut rig = rig(STRIPE, drives(2), config, Stack::Mq);
    for n in 0..5 {
        rig.read(chunk(2, n % 2, 40 + 4 * n));
        rig.read(chunk(2, n % 2, 41 + 4 * n));
    }
    assert_eq!(rig.journal.take(EventCode::Issue), []);
    rig.read(chunk(2, 0, 0));
    assert_eq!(rig.journal.take(EventCode::Issue).len(), 11);
    assert_eq!(rig.end(), 11);
}

#[test]
fn single_drive_of_several_queues_keeps_one_request_back() {
    let mut rig = rig(Layout::Linear, drives(1), per_volume(), Stack::Mq);
    let several = rig.volume.disks()[0].queue_count().1 > 1;
    rig.read(0);
    rig.read(8);
    assert_eq!(rig.given(0), []);
    rig.read(800);
    assert_eq!(rig.given(0), if several { vec![(0, 16)] } else { vec![] });
    rig.read(808);
    rig.read(400);
    assert_eq!(rig.given(0), if several { vec![(800, 16)] } else { vec![] });
    rig.channel.flush();
    let rest = if several { vec![(400, 8)] } else { vec![(0, 16), (400, 8), (800, 16)] };
    assert_eq!(rig.given(0), rest);
    assert_eq!(rig.end(), 5);
}

#[test]
fn split_for_one_list_is_at_chunks_and_never_merged() {
    let mut rig = rig(STRIPE, drives(2), per_volume(), Stack::Mq);
    rig.channel.submit(Bio::write(4, pattern(40, 9))).unwrap();
    assert_eq!(rig.end(), 1);
    assert_eq!(rig.given(0), [(4, 4), (8, 8), (16, 8)]);
    assert_eq!(rig.given(1), [(0, 8), (8, 8), (16, 4)]);
    let parts: u64 = rig.volume.disks().iter().map(|disk| disk.stats().parts()).sum();
    assert_eq!(parts, 6);
    // Nor with a neighbour that is whole, before or after.
    rig.read(chunk(2, 0, 8));
    rig.channel.submit(Bio::read(chunk(2, 0, 9), Buffer::new(16 * 512))).unwrap();
    rig.read(chunk(2, 1, 10));
    assert_eq!(rig.end(), 3);
    assert_eq!(rig.given(0), [(64, 8), (72, 8)]);
    assert_eq!(rig.given(1), [(72, 8), (80, 8)]);
    let (_, bio) = run(&mut rig.channel, Bio::read(4, Buffer::new(40 * 512)));
    assert_eq!(&bio.into_buffers()[0][..], &pattern(40, 9)[..]);
}

/// Number of requests for three bios of one drive, of which the last is a neighbour of the first.
fn requests_of_three(rig: &mut Rig) -> u64 {
    let before = rig.volume.disks()[0].stats().requests();
    [0, 50, 1].into_iter().for_each(|n| rig.read(chunk(2, 0, n)));
    assert_eq!(rig.end(), 3);
    rig.volume.disks()[0].stats().requests() - before
}

#[test]
fn channel_follows_its_volume_from_drive_plugs_to_one_list() {
    for stack in [Stack::Mq, Stack::Raw] {
        let config = DiskConfig { baseline: stack.into(), ..DiskConfig::default() };
        let mut rig = silent(STRIPE, drives(2), ServingConfig::default(), &config);
        let deadline_ns = Native::now() + 10_000_000_000;
        for _ in 0..2 {
            // Only the single list finds a neighbour that was not the previous bio. Plugged bios
            // stay on the path they began with when the channel learns of a change.
            assert_eq!(requests_of_three(&mut rig), 3, "{stack:?}");
            assert!(rig.volume.switch_serving(Serving::PerVolume, deadline_ns));
            assert_eq!([(); 3].map(|()| requests_of_three(&mut rig)), [3, 2, 2], "{stack:?}");
            assert!(rig.volume.switch_serving(Serving::Inline, deadline_ns));
            assert_eq!([(); 3].map(|()| requests_of_three(&mut rig)), [2, 3, 3], "{stack:?}");
        }
    }
}

#[test]
fn work_refused_by_a_frozen_drive_holds_no_tag_and_resumes() {
    for kept in [3, 40] {
        let mut rig = rig(STRIPE, drives(2), per_volume(), Stack::Mq);
        let disk = Arc::clone(&rig.volume.disks()[0]);
        disk.freeze();
        rig.channel.submit(Bio::flush()).unwrap();
        (0..kept).for_each(|n| rig.read(chunk(2, 0, 3 * n)));
        rig.read(chunk(2, 1, 7));
        assert_eq!(rig.channel.poll(|_| ()), 1);
        // On the other drive the read and its part of the flush.
        assert_eq!((rig.given(0), rig.given(1).len(), disk.tags_in_use()), (vec![], 2, 0));
        assert!(rig.channel.sleep_until().is_some_and(|ns| ns <= Native::now() + 1_000_000));
        assert!(disk.is_drained());
        disk.unfreeze();
        assert_eq!(rig.end() as u64, kept + 1);
        assert_eq!((rig.given(0).len() as u64, disk.tags_in_use()), (kept + 1, 0));
        assert_eq!(rig.channel.sleep_until(), None);
    }
}

#[test]
fn a_flush_that_a_frozen_drive_refuses_is_tried_again() {
    for serving in [Serving::Inline, Serving::PerVolume] {
        let config = ServingConfig::of(serving);
        let mut rig = silent(STRIPE, drives(2), config, &DiskConfig::default());
        rig.volume.disks()[0].freeze();
        rig.channel.submit(Bio::flush()).unwrap();
        assert_eq!(rig.channel.poll(|_| ()), 0);
        rig.volume.disks()[0].unfreeze();
        let polls = (0..20).find(|_| rig.channel.poll(|_| ()) == 1);
        assert!(polls.is_some(), "{serving:?}");
    }
}

#[test]
fn change_of_way_waits_until_what_frozen_drive_refused_is_out() {
    let mut rig = silent(STRIPE, drives(2), per_volume(), &DiskConfig::default());
    let disk = Arc::clone(&rig.volume.disks()[0]);
    disk.freeze();
    rig.read(chunk(2, 0, 0));
    assert_eq!(rig.channel.poll(|_| ()), 0);
    assert!(rig.volume.switch_serving(Serving::Inline, Native::now() + 10_000_000_000));
    disk.freeze();
    rig.channel.flush();
    disk.unfreeze();
    let polls = (0..20).find(|_| rig.channel.poll(|_| ()) == 1);
    assert!(polls.is_some());
}

#[test]
fn tags_that_come_back_go_to_all_that_wait_for_them_in_one_list() {
    let narrow = TestDrive { depth: 4, queues: 1, ..TestDrive::new(4096) };
    let mut rig = silent(Layout::Linear, vec![narrow], per_volume(), &DiskConfig::default());
    rig.hold(true);
    (0..14).for_each(|n| rig.read(n * 24));
    assert_eq!((rig.channel.poll(|_| ()), rig.given(0).len()), (0, 4));
    rig.hold(false);
    // The four that were out come back, and make room for as many.
    assert_eq!(rig.channel.poll(|_| ()), 4);
    rig.hold(true);
    assert_eq!(rig.channel.poll(|_| ()), 0);
    assert_eq!(rig.given(0), [96, 120, 144, 168].map(|sector| (sector, 8)));
    rig.hold(false);
    assert_eq!(rig.end(), 10);
}

#[test]
fn busy_drive_does_not_keep_another_from_being_polled() {
    let mut rig = silent(STRIPE, drives(2), ServingConfig::default(), &DiskConfig::default());
    rig.hold(true);
    rig.channel.submit(Bio::read(chunk(2, 1, 0), Buffer::new(512)).with_user_data(7)).unwrap();
    assert_eq!(rig.channel.poll(|_| ()), 0);
    rig.hold(false);
    let rounds = (0..16).find(|_| {
        rig.read(chunk(2, 0, 0));
        let mut found = false;
        rig.channel.poll(|done| found |= done.user_data == 7);
        found
    });
    assert!(rounds.is_some_and(|rounds| rounds < 8), "{rounds:?}");
}

#[test]
fn only_memory_that_a_drive_may_still_write_is_kept() {
    for again in [false, true] {
        let config = DiskConfig { timeout: Duration::from_millis(2), ..DiskConfig::default() };
        let mut rig = silent(STRIPE, drives(2), ServingConfig::default(), &config);
        let poll = |rig: &mut Rig| {
            let mut seen = Vec::new();
            match again {
                false => rig.channel.poll(|mut done| {
                    seen.push((done.user_data, done.status, done.bio.memory().is_some()));
                }),
                true => rig.channel.poll_again(|bio, status| {
                    seen.push((bio.user_data(), status, bio.memory().is_some()));
                    AfterCompletion::Drop
                }),
            };
            rig.channel.tick();
            seen
        };
        rig.knobs[0].held.store(true, Ordering::SeqCst);
        rig.channel.submit(Bio::read(0, Buffer::new(512)).with_user_data(1)).unwrap();
        let mut lost = Vec::new();
        while lost.is_empty() {
            lost = poll(&mut rig);
        }
        assert_eq!(lost, [(1, Status::TimedOut, false)]);
        assert_eq!(rig.channel.quarantined_bios(), 1);
        // The other drive answers: its bio's memory goes back to the submitter at once, error or
        // not.
        for (n, status) in [(2, Status::Ok), (3, Status::NoSpace)] {
            rig.knobs[1].fail(Op::Read, status);
            rig.channel.submit(Bio::read(8, Buffer::new(512)).with_user_data(n)).unwrap();
            assert_eq!(poll(&mut rig), [(n, status, true)], "{again}");
        }
        assert_eq!(rig.channel.quarantined_bios(), 1);
        rig.hold(false);
        while rig.channel.quarantined_bios() > 0 {
            assert_eq!(poll(&mut rig), []);
        }
    }
}

#[test]
fn a_channel_that_is_gone_takes_its_place_in_the_lists_with_it() {
    for serving in [Serving::Inline, Serving::PerVolume] {
        let mut rig = silent(STRIPE, drives(2), ServingConfig::of(serving), &DiskConfig::default());
        rig.volume.disks()[0].freeze();
        // The frozen disk refuses these reads, and a part of the write, which is split.
        (0..3).for_each(|n| rig.read(chunk(2, 0, 3 * n)));
        rig.channel.submit(Bio::write(4, pattern(8, 9))).unwrap();
        rig.channel.poll(|_| ());
        // Never started.
        rig.read(chunk(2, 1, 3));
        rig.channel.set_drain_timeout(Duration::ZERO);
        let Rig { volume, channel, .. } = rig;
        drop(channel);
        volume.disks()[0].unfreeze();
        let mut channel = Channel::open(&volume, ChannelConfig::default()).unwrap();
        assert_eq!(run(&mut channel, Bio::read(0, Buffer::new(4096))).0, Status::Ok);
        assert_eq!(volume.disks().iter().map(|d| d.tags_in_use()).sum::<u32>(), 0, "{serving:?}");
    }
}

#[test]
fn a_channel_that_ends_with_nothing_out_leaves_nothing_behind() {
    let bell = Arc::new(Doorbell::new(NativeParker::new()));
    let open = |volume: &Arc<Volume<Native>>| {
        let thread = IoThread { number: 0, owner: 1, bell: Arc::clone(&bell), turn: None };
        Channel::open(volume, ChannelConfig { thread: Some(thread), ..Default::default() }).unwrap()
    };
    let rig = silent(STRIPE, drives(2), ServingConfig::default(), &DiskConfig::default());
    let mut channel = open(&rig.volume);
    assert_eq!(run(&mut channel, Bio::write(4, pattern(16, 9))).0, Status::Ok);
    drop(channel);
    assert_eq!(Arc::strong_count(&bell), 1, "its home is gone");
    // With something out, the drive may still answer to it.
    rig.hold(true);
    let mut channel = open(&rig.volume);
    channel.set_drain_timeout(Duration::ZERO);
    channel.submit(Bio::read(0, Buffer::new(4096))).unwrap();
    channel.flush();
    drop(channel);
    assert_eq!(Arc::strong_count(&bell), 2, "its home stays");
    rig.hold(false);
    let mut channel = open(&rig.volume);
    assert_eq!(run(&mut channel, Bio::read(8, Buffer::new(4096))).0, Status::Ok);
}

#[test]
fn plugs_go_out_when_they_are_full_and_not_before_parts_too() {
    let config = ServingConfig { plug_high: 5, plug_low: 0, ..ServingConfig::default() };
    for (drives_of, stack) in [(1, Stack::Mq), (3, Stack::Mq), (3, Stack::Raw)] {
        let layout = if drives_of == 1 { Layout::Linear } else { STRIPE };
        let mut rig = silent(
            layout,
            drives(drives_of),
            config,
            &DiskConfig { baseline: stack.into(), ..DiskConfig::default() },
        );
        rig.hold(true);
        let (width, most) = (drives_of as u64, 5 * drives_of as u64);
        let place = |n| chunk(width, n % width, n / width * 2);
        (0..most - 1).for_each(|n| rig.read(place(n)));
        let given = |rig: &Rig| rig.knobs.iter().map(|k| k.given(Op::Read).len()).sum::<usize>();
        assert_eq!(given(&rig), 0, "{drives_of} {stack:?}");
        rig.read(place(most));
        assert_eq!(given(&rig) as u64, most, "{drives_of} {stack:?}");
        rig.hold(false);
        assert_eq!(rig.end() as u64, most);
    }
    // Parts of two sectors each: unplugged at every tenth, and the rest at the end.
    let small = || {
        let mut drive = TestDrive::new(4096);
        drive.limits.max_sectors = 2;
        drive
    };
    let mut rig = rig(STRIPE, vec![small(), small()], config, Stack::Mq);
    rig.channel.submit(Bio::read(0, Buffer::new(48 * 512))).unwrap();
    assert_eq!(rig.journal.take(EventCode::Issue).len(), 20);
    assert_eq!(rig.end(), 1);
    assert_eq!(rig.journal.take(EventCode::Issue).len(), 4);
}

#[test]
fn a_bio_of_many_parts_has_as_many_out_as_there_is_room_for() {
    for (count, depth, room) in [(2usize, 4, 32), (2, 64, 64), (3, 1, 21), (4, 100, 100)] {
        let mut narrow = drives(count);
        for drive in &mut narrow {
            (drive.limits.max_write_zeroes_sectors, drive.depth) = (1, 1024);
        }
        let rig = silent(STRIPE, narrow, ServingConfig::default(), &DiskConfig::default());
        let config = ChannelConfig { depth, ..ChannelConfig::default() };
        let mut channel = Channel::open(&rig.volume, config).unwrap();
        rig.hold(true);
        channel.submit(Bio::write_zeroes(0, 4000)).unwrap();
        channel.flush();
        // Parts are made drive by drive.
        let given = |at: usize| rig.knobs[at].given(Op::WriteZeroes).len();
        assert_eq!((given(0), given(1)), (room, 0), "{count} {depth}");
        // With all slots in use, each bio still has a slot of its own.
        for n in 1..u64::from(depth) {
            channel.submit(Bio::write(chunk(count as u64, 1, n), pattern(8, n as u8))).unwrap();
        }
        channel.submit(Bio::read(0, Buffer::new(512))).unwrap_err();
        channel.flush();
        rig.hold(false);
        let mut ended = 0;
        while channel.in_flight() > 0 {
            ended += channel.wait(1, |done| assert_eq!(done.status, Status::Ok)) as u32;
        }
        assert_eq!(ended, depth);
        assert_eq!((0..count).map(given).sum::<usize>(), 4000);
    }
}

/// Operations that a drive with these features gets for a bio, each with its FUA flag.
fn expected(op: Op, flags: OpFlags, cache: bool, fua: bool) -> Vec<(Op, bool)> {
    let mut steps = Vec::new();
    let before = op == Op::Flush || flags.has(OpFlags::PREFLUSH);
    let by_drive = fua && op == Op::Write;
    let durable = flags.has(OpFlags::FUA) && op != Op::Flush;
    if before && cache {
        steps.push((Op::Flush, false));
    }
    if op != Op::Flush {
        steps.push((op, durable && by_drive));
    }
    if durable && cache && !by_drive {
        steps.push((Op::Flush, false));
    }
    steps
}

#[test]
fn flags_become_flushes_around_data_wherever_drive_needs_them() {
    let flags =
        [OpFlags::NONE, OpFlags::FUA, OpFlags::PREFLUSH, OpFlags::FUA.with(OpFlags::PREFLUSH)];
    for bits in 0..8 {
        let is = |bit: u32| bits & 1 << bit != 0;
        let (cache, fua, split) = (is(0), is(1), is(2));
        for serving in [Serving::Inline, Serving::PerVolume] {
            let mut two = drives(2);
            for drive in &mut two {
                drive.limits.features.volatile_cache = cache;
                drive.limits.features.fua = fua;
            }
            let config = ServingConfig::of(serving);
            let mut rig = silent(STRIPE, two, config, &DiskConfig::default());
            for (op, flags) in Op::ALL.into_iter().flat_map(|op| flags.map(|flags| (op, flags))) {
                let case = format!("{op:?} {flags:?} cache {cache} fua {fua} {split} {serving:?}");
                // On the second drive alone, or on both.
                let (sector, nr) = if split { (0, 16) } else { (8, 8) };
                let bio = match op {
                    Op::Read => Bio::read(sector, Buffer::new(nr << 9)),
                    Op::Write => Bio::write(sector, pattern(nr, 1)),
                    Op::Flush => Bio::flush(),
                    Op::Discard => Bio::discard(sector, nr as u32),
                    Op::WriteZeroes => Bio::write_zeroes(sector, nr as u32),
                };
                let parts = |rig: &Rig| {
                    rig.volume.disks().iter().map(|disk| disk.stats().parts()).sum::<u64>()
                };
                let before = parts(&rig);
                assert_eq!(run(&mut rig.channel, bio.with_flags(flags)).0, Status::Ok, "{case}");
                let whole = op != Op::Flush && !split && !flags.has(OpFlags::PREFLUSH);
                let as_it_is = !flags.has(OpFlags::FUA) || op == Op::Write && (fua || !cache);
                let split_up = op != Op::Flush && parts(&rig) > before;
                assert_eq!(split_up, op != Op::Flush && !(whole && as_it_is), "{case}");
                for (at, knobs) in rig.knobs.iter().enumerate() {
                    let given = std::mem::take(&mut *knobs.given.lock().unwrap());
                    // Without a cache the FUA flag has no meaning.
                    let durable = |given: &Given| cache && given.flags.has(OpFlags::FUA);
                    let found: Vec<_> = given.iter().map(|one| (one.op, durable(one))).collect();
                    let mut steps = expected(op, flags, cache, fua);
                    steps.iter_mut().for_each(|step| step.1 &= cache);
                    if at == 0 && !split && op != Op::Flush {
                        // A drive without data of this bio sees only the flush before the data.
                        steps.retain(|_| false);
                        if flags.has(OpFlags::PREFLUSH) && cache {
                            steps.push((Op::Flush, false));
                        }
                    }
                    assert_eq!(found, steps, "{case}, drive {at}");
                }
            }
        }
    }
}

#[test]
fn a_flush_of_a_range_goes_to_the_drives_that_it_lies_on() {
    for serving in [Serving::Inline, Serving::PerVolume, Serving::PerDrive] {
        let mut two = drives(2);
        two.iter_mut().for_each(|drive| drive.limits.features.volatile_cache = true);
        let config = ServingConfig::of(serving);
        let mut rig = silent(STRIPE, two, config, &DiskConfig::default());
        let end = rig.volume.capacity();
        let outside = rig.channel.submit(Bio::flush_range(end - 1, 2)).unwrap_err();
        assert_eq!(outside.reason, Reject::Invalid(Status::OutOfRange));
        for (bio, flushed) in [
            (Bio::flush_range(0, 8), [1, 0]),
            (Bio::flush_range(15, 1), [0, 1]),
            (Bio::flush_range(7, 2), [1, 1]),
            (Bio::flush_range(8, 0), [1, 1]),
            (Bio::flush(), [1, 1]),
        ] {
            assert_eq!(run(&mut rig.channel, bio).0, Status::Ok, "{serving:?}");
            for (knobs, count) in rig.knobs.iter().zip(flushed) {
                let given = std::mem::take(&mut *knobs.given.lock().unwrap());
                let found: Vec<_> = given.iter().map(|one| one.op).collect();
                assert_eq!(found, vec![Op::Flush; count], "{serving:?}");
            }
        }
    }
}

#[test]
fn what_a_drive_cannot_do_is_not_supported_whole_or_in_parts() {
    for serving in [Serving::Inline, Serving::PerVolume] {
        for (sector, nr) in [(0, 8), (0, 64)] {
            let mut two = drives(2);
            two[1].limits.max_discard_sectors = 0;
            two[0].limits.max_discard_sectors = 0;
            let config = ServingConfig::of(serving);
            let mut rig = silent(STRIPE, two, config, &DiskConfig::default());
            assert_eq!(run(&mut rig.channel, Bio::discard(sector, nr)).0, Status::NotSupported);
            assert_eq!(run(&mut rig.channel, Bio::write_zeroes(sector, nr)).0, Status::Ok);
            assert_eq!((rig.channel.in_flight(), rig.knobs[0].given(Op::Discard)), (0, vec![]));
        }
    }
}

/// The requests for one drive's part of a range in one piece of memory: as long as they can be.
fn pieces(first: u64, nr: u64, width: u64, limits: &QueueLimits) -> Vec<(Sector, u32)> {
    let (mut at, end, mut all) = (first, first + nr, Vec::new());
    while at < end {
        let mut most = (end - at).min(limits.max_sectors.into());
        if limits.chunk_sectors != 0 {
            let chunk = u64::from(limits.chunk_sectors);
            most = most.min(chunk - at % chunk);
        }
        if width > 1 {
            // Each chunk of eight sectors is a segment of its own.
            most = most.min(u64::from(limits.max_segments) * 8 - at % 8);
        }
        all.push((at, most as u32));
        at += most;
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn parts_are_as_long_as_the_drives_limits_let_them_be(
        width in 1usize..4,
        sector in 0u64..100,
        nr in 1u64..300,
        max_sectors in 8u32..60,
        max_segments in 1u16..6,
        chunk in prop_oneof![2 => Just(0u32), 1 => Just(16), 1 => Just(24)],
        stack in (0..3usize).prop_map(|at| STACKS[at]),
        bounded in any::<bool>(),
    ) {
        let mut all = drives(width);
        for drive in &mut all {
            (drive.queues, drive.depth) = (1, 16);
            drive.limits.max_sectors = max_sectors;
            drive.limits.max_segments = max_segments;
            drive.limits.chunk_sectors = chunk;
            drive.limits.merge_sectors = 1;
            if bounded {
                // No memory of a test is that long: it changes the way, and nothing else.
                drive.limits.max_segment_size = 1 << 30;
            }
        }
        let limits = all[0].limits;
        let config = DiskConfig { baseline: stack.into(), ..DiskConfig::default() };
        let mut rig = silent(STRIPE, all, ServingConfig::default(), &config);
        let bio = Bio::write(sector, pattern(nr as usize, 5));
        prop_assert_eq!(run(&mut rig.channel, bio).0, Status::Ok);
        let mut parts = 0;
        for drive in 0..width {
            let of = |at: u64| at / 8 % width as u64 == drive as u64;
            let places: Vec<u64> = (sector..sector + nr)
                .filter(|at| of(*at))
                .map(|at| at / (8 * width as u64) * 8 + at % 8)
                .collect();
            let found = rig.given(drive);
            let model = match places.first() {
                Some(first) => pieces(*first, places.len() as u64, width as u64, &limits),
                None => Vec::new(),
            };
            parts += model.len() as u64;
            prop_assert_eq!(found, model);
        }
        let counted: u64 = rig.volume.disks().iter().map(|disk| disk.stats().parts()).sum();
        let whole = (width == 1 || sector % 8 + nr <= 8) && parts == 1;
        prop_assert_eq!(counted, if whole { 0 } else { parts });
        let read = Bio::read(sector, Buffer::new((nr as usize) << 9));
        let (status, bio) = run(&mut rig.channel, read);
        prop_assert_eq!(status, Status::Ok);
        prop_assert!(bio.into_buffers()[0][..] == pattern(nr as usize, 5)[..]);
    }
}

#[test]
fn next_poll_is_soon_for_others_and_never_with_nothing_out() {
    let mut rig = silent(STRIPE, drives(2), ServingConfig::default(), &DiskConfig::default());
    let soon = |rig: &mut Rig| {
        let before_ns = Native::now();
        let due_ns = rig.channel.sleep_until().expect("something is out");
        let after_ns = Native::now();
        assert!((before_ns + 1_000_000..=after_ns + 1_000_000).contains(&due_ns));
    };
    assert_eq!((rig.channel.sleep_until(), rig.channel.has_work()), (None, false));
    rig.read(0);
    soon(&mut rig);
    rig.hold(true);
    assert_eq!(rig.channel.poll(|_| ()), 0);
    soon(&mut rig);
    rig.hold(false);
    assert_eq!(rig.channel.poll(|_| ()), 1);
    assert_eq!((rig.channel.sleep_until(), rig.channel.has_work()), (None, false));
    // A wait for one completion returns with it, although another request is still held.
    rig.knobs[1].held.store(true, Ordering::SeqCst);
    rig.read(chunk(2, 1, 0));
    rig.read(chunk(2, 0, 0));
    assert_eq!((rig.channel.wait(1, |_| ()), rig.channel.in_flight()), (1, 1));
    assert_eq!((rig.channel.wait(0, |_| ()), rig.channel.in_flight()), (0, 1));
    rig.hold(false);
    assert_eq!(rig.end(), 1);
}

#[test]
fn queue_owner_checks_eight_times_per_timeout_for_silence() {
    const SECOND: Duration = Duration::from_secs(1);
    for (timeout, period) in [
        (Duration::ZERO, SECOND),
        (30 * SECOND, SECOND),
        (SECOND, SECOND / 8),
        (Duration::from_nanos(1), Duration::from_millis(1)),
    ] {
        let drive = TestDrive { kind: QueueKind::OwnerOnly, ..TestDrive::new(4096) };
        let knobs = Arc::clone(&drive.knobs);
        let config = DiskConfig { io_threads: 1, timeout, ..DiskConfig::default() };
        let disk = Disk::new(Box::new(drive), config).unwrap();
        let bell = Arc::new(Doorbell::new(NativeParker::new()));
        disk.bring_up(0, &thread_of(1, &bell)).unwrap();
        let thread = Some(IoThread { number: 0, owner: 1, bell, turn: None });
        let config = ChannelConfig { thread, ..ChannelConfig::default() };
        let mut channel = Channel::open(&Volume::single(disk).unwrap(), config).unwrap();
        let before_ns = Native::now();
        channel.tick();
        let after_ns = Native::now();
        assert_eq!(channel.sleep_until(), None);
        knobs.held.store(true, Ordering::SeqCst);
        channel.submit(Bio::read(0, Buffer::new(512))).unwrap();
        assert_eq!(channel.poll(|_| ()), 0);
        let due_ns = channel.sleep_until().expect("one is out");
        let period_ns = period.as_nanos() as u64;
        let due = before_ns + period_ns..=after_ns + period_ns;
        assert!(due.contains(&due_ns), "{due_ns} in {due:?}");
        // Until then it is not looked again.
        channel.tick();
        assert!(Native::now() >= due_ns || channel.sleep_until() == Some(due_ns));
        knobs.held.store(false, Ordering::SeqCst);
        let mut status = None;
        assert_eq!(channel.wait(1, |done| status = Some(done.status)), 1);
        // The shortest timeout passes if the host pauses this process; the drive then keeps the
        // request.
        match period < SECOND / 8 && status != Some(Status::Ok) {
            true => assert_eq!(status, Some(Status::TimedOut)),
            false => assert_eq!((channel.sleep_until(), status), (None, Some(Status::Ok))),
        }
    }
}

#[test]
fn an_owner_serves_what_others_put_into_its_queue() {
    let drive = TestDrive { kind: QueueKind::OwnerOnly, queues: 1, ..TestDrive::new(4096) };
    let config = DiskConfig { io_threads: 2, ..DiskConfig::default() };
    let disk = Disk::new(Box::new(drive), config).unwrap();
    let bells = [(); 2].map(|()| Arc::new(Doorbell::new(NativeParker::new())));
    disk.bring_up(0, &thread_of(1, &bells[0])).unwrap();
    let volume = Volume::single(disk).unwrap();
    let [mut owner, mut other] = [1u16, 2].map(|owner| {
        let bell = Arc::clone(&bells[usize::from(owner) - 1]);
        let thread = Some(IoThread { number: 0, owner: owner.into(), bell, turn: None });
        Channel::open(&volume, ChannelConfig { thread, ..ChannelConfig::default() }).unwrap()
    });
    for serving in [Serving::Inline, Serving::PerVolume] {
        let mut polled = 0;
        if serving == Serving::PerVolume {
            assert!(volume.switch_serving(serving, Native::now() + 10_000_000_000));
            assert_eq!(run(&mut owner, Bio::read(0, Buffer::new(512))).0, Status::Ok);
            let _ = other.submit(Bio::read(0, Buffer::new(512)));
            other.flush();
            polled = owner.poll(|_| ()) + other.poll(|_| ());
            assert_eq!(polled, 1);
            polled = 0;
        }
        (0..3).for_each(|n| other.submit(Bio::read(n * 24, Buffer::new(512))).unwrap());
        other.flush();
        assert_eq!(other.poll(|_| ()), 0, "{serving:?}: it is the owner's");
        assert!(owner.has_work() && !other.has_work(), "{serving:?}");
        assert_eq!(owner.poll(|_| ()), 0);
        assert!(!owner.has_work() && other.has_work(), "{serving:?}");
        polled += other.poll(|done| assert_eq!(done.status, Status::Ok));
        assert_eq!(polled, 3, "{serving:?}");
    }
}

#[test]
fn bios_sent_off_again_take_their_new_place_on_every_way() {
    for serving in [Serving::Inline, Serving::PerVolume] {
        for (nr, told) in [(8u32, false), (8, true), (40, false)] {
            let config = ServingConfig::of(serving);
            let mut rig = match told {
                true => rig(STRIPE, drives(2), config, Stack::Mq),
                false => silent(STRIPE, drives(2), config, &DiskConfig::default()),
            };
            for n in 0..4 {
                let bio = Bio::write(n * 64, pattern(nr as usize, n as u8)).with_user_data(n);
                rig.channel.submit(bio).unwrap();
            }
            let (mut goes, mut dropped) = ([0; 4], 0);
            while rig.channel.in_flight() > 0 {
                let before = rig.channel.in_flight();
                let handed = rig.channel.poll_again(|bio, status| {
                    assert_eq!(status, Status::Ok);
                    let go = &mut goes[bio.user_data() as usize];
                    *go += 1;
                    if *go == 5 {
                        dropped += 1;
                        return AfterCompletion::Drop;
                    }
                    bio.set_sector(bio.sector() + 512);
                    AfterCompletion::Submit
                });
                assert!(handed <= before as usize, "one go each");
            }
            assert_eq!((goes, dropped), ([5; 4], 4), "{serving:?} {nr} {told}");
            for n in 0..4 {
                for go in 0..5 {
                    let bio = Bio::read(n * 64 + go * 512, Buffer::new((nr as usize) << 9));
                    let (_, bio) = run(&mut rig.channel, bio);
                    assert!(bio.into_buffers()[0][..] == pattern(nr as usize, n as u8)[..]);
                }
            }
            assert_eq!(rig.volume.stats().ios(), 20 + 20);
        }
    }
}
