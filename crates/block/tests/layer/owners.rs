//! Queues that belong to threads, on `TestDrive`.
//!
//! A thread opens an owner-only queue and is the only one to serve it. The owner also serves
//! requests that other threads put into the queue, watches their timeouts, and completes them when
//! it goes.

use std::sync::Arc;
use std::time::Duration;

use crate::support::script::{Asked, HeardBell, ScriptDrive, answer_after, turn, turns_taken};
use crate::support::{Knobs, TestDrive, pattern, run, thread_of};
use millrace_block::baseline::Stack;
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, Disk, DiskConfig, Dispatch, ErrorKind, IoThread, Layout,
    Op, QueueKind, Serving, ServingConfig, Status, TagScope, Volume, Worker,
};
use millrace_machine::{Doorbell, Machine, Native, NativeParker, Parker};

const STACKS: [Stack; 3] = [Stack::Mq, Stack::Sq, Stack::Raw];

fn owned_disk(io_threads: u16) -> (Arc<Disk<Native>>, Arc<Knobs>) {
    let mut drive = TestDrive::new(4096);
    drive.kind = QueueKind::OwnerOnly;
    let knobs = Arc::clone(&drive.knobs);
    let config = DiskConfig { io_threads, ..DiskConfig::default() };
    (Disk::new(Box::new(drive), config).unwrap(), knobs)
}

fn bell() -> Arc<Doorbell<Native>> {
    Arc::new(Doorbell::new(NativeParker::new()))
}

fn open(disk: &Arc<Disk<Native>>, number: u16, owner: u64) -> Channel<Native> {
    let thread = Some(IoThread { number, owner, bell: bell(), turn: None });
    let volume = Volume::single(Arc::clone(disk)).unwrap();
    Channel::open(&volume, ChannelConfig { thread, ..ChannelConfig::default() }).unwrap()
}

#[test]
fn queue_of_thread_serves_that_thread_and_is_refused_to_others() {
    let (disk, knobs) = owned_disk(2);
    disk.bring_up(0, &thread_of(1, &bell())).unwrap();
    disk.bring_up(0, &thread_of(1, &bell())).expect("it is this thread's already");
    let refused = disk.bring_up(0, &thread_of(2, &bell())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    disk.bring_up(1, &thread_of(2, &bell())).expect("the other queue is free");
    let mut channel = open(&disk, 0, 1);
    assert_eq!(run(&mut channel, Bio::write(16, pattern(8, 7))).0, Status::Ok);
    let (_, bio) = run(&mut channel, Bio::read(16, Buffer::new(4096)));
    assert_eq!(bio.into_buffer().as_deref(), Some(&pattern(8, 7)[..]));
    assert_eq!(knobs.given(Op::Write).len(), 1);
}

#[test]
fn channel_without_a_thread_is_refused_on_owned_queues() {
    let (disk, _) = owned_disk(1);
    let volume = Volume::single(disk).unwrap();
    let refused = Channel::open(&volume, ChannelConfig::default()).expect_err("nobody serves it");
    assert_eq!(refused.kind(), ErrorKind::NotSupported);
}

/// A disk whose queues belong to threads, on a scripted drive of `queues` queues.
fn scripted(
    queues: u16,
    depth: u32,
    config: DiskConfig<Native>,
) -> (Arc<Disk<Native>>, ScriptDrive) {
    let mut drive = ScriptDrive::new(queues, depth);
    drive.hw.kind = QueueKind::OwnerOnly;
    (Disk::new(Box::new(drive.clone()), config).unwrap(), drive)
}

fn threads(io_threads: u16) -> DiskConfig<Native> {
    DiskConfig { io_threads, ..DiskConfig::default() }
}

/// A channel of thread `owner`, whose bell this is, or of a thread that owns nothing.
fn channel_of(
    disk: &Arc<Disk<Native>>,
    (number, owner): (u16, u64),
    bell: &Arc<Doorbell<Native>>,
) -> Channel<Native> {
    let thread = Some(IoThread { number, owner, bell: Arc::clone(bell), turn: None });
    let volume = Volume::single(Arc::clone(disk)).unwrap();
    Channel::open(&volume, ChannelConfig { thread, ..ChannelConfig::default() }).unwrap()
}

fn read(channel: &mut Channel<Native>, sector: u64) {
    channel.submit(Bio::read(sector, Buffer::new(512))).map_err(|r| r.reason).unwrap();
    channel.flush();
}

fn opened(drive: &ScriptDrive) -> Vec<u16> {
    drive.lock().opened.iter().map(|(queue, _)| *queue).collect()
}

#[test]
fn each_thread_claims_one_queue_until_all_belong_to_others() {
    let (disk, drive) = scripted(8, 4, threads(2));
    assert_eq!(opened(&drive), [], "until somebody comes");
    let first = thread_of(1, &bell());
    disk.claim(&first).unwrap();
    disk.claim(&first).expect("it has one already");
    disk.claim(&thread_of(2, &bell())).unwrap();
    assert_eq!(opened(&drive), [1, 0], "the last one first");
    let refused = disk.claim(&thread_of(3, &bell())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    let text = refused.to_string();
    assert!(text.starts_with("drive disk: each of its 2 queues belongs to another"), "{text}");
    [9, 0, 1].into_iter().for_each(|owner| disk.bring_down(&thread_of(owner, &bell())));
    assert_eq!(disk.claim(&thread_of(3, &bell())).unwrap_err().kind(), ErrorKind::Busy);
    disk.bring_down(&first);
    disk.claim(&thread_of(3, &bell())).expect("that of the thread which went");
    assert_eq!(opened(&drive), [1, 0, 1]);
    let mut shared = TestDrive::new(64);
    shared.queues = 1;
    let shared = Disk::new(Box::new(shared), DiskConfig::default()).unwrap();
    (1..4).for_each(|owner| {
        shared.claim(&thread_of(owner, &bell())).expect("anybody may run its queue")
    });
}

#[test]
fn queue_that_cannot_open_fails_its_user_and_stays_free() {
    let (disk, drive) = scripted(8, 4, threads(2));
    drive.lock().closed = vec![1];
    let refused = disk.claim(&thread_of(1, &bell())).unwrap_err();
    assert_eq!(
        (refused.kind(), refused.to_string()),
        (ErrorKind::System, "queue 1 is closed".into())
    );
    assert_eq!(disk.bring_up(1, &thread_of(1, &bell())).unwrap_err().kind(), ErrorKind::System);
    assert_eq!(opened(&drive), []);
    drive.lock().closed.clear();
    disk.claim(&thread_of(2, &bell())).unwrap();
    assert_eq!(opened(&drive), [1]);
}

#[test]
fn thread_uses_queue_that_it_claimed_or_that_of_its_number() {
    let (disk, drive) = scripted(8, 4, threads(3));
    (1..4).for_each(|owner| disk.claim(&thread_of(owner, &bell())).unwrap());
    let bell = bell();
    for (thread, queue) in [((5, 1), 2), ((0, 2), 1), ((1, 3), 0), ((4, 9), 1), ((2, 9), 2)] {
        let mut channel = channel_of(&disk, thread, &bell);
        read(&mut channel, 0);
        // A queue that is another thread's is served by that one.
        let mut owner = channel_of(&disk, (0, 3 - queue), &bell);
        owner.poll(|_| ());
        let inside: Vec<u16> = drive.lock().inside.iter().map(|one| one.queue).collect();
        assert_eq!(inside, [queue as u16], "{thread:?}");
        drive.lock().answers = 1;
        owner.poll(|_| ());
        assert_eq!(channel.poll(|done| assert_eq!(done.status, Status::Ok)), 1);
    }
}

#[test]
fn last_queue_is_kept_for_a_worker_if_queues_exceed_threads() {
    let cpu = Native::topology().cpus()[0].id;
    for (queues, place) in [(4, true), (3, false)] {
        let config = DiskConfig { worker: Some(cpu), ..threads(3) };
        let (disk, drive) = scripted(queues, 4, config);
        assert_eq!(disk.worker_cpu(), place.then_some(cpu));
        assert_eq!(disk.queue_count().1, usize::from(queues));
        for number in 0..5 {
            disk.bring_up(number, &thread_of(1 + u64::from(number), &bell()))
                .expect("or there is none");
        }
        assert_eq!(opened(&drive), [0, 1, 2]);
        let mut channel = channel_of(&disk, (3, 1), &bell());
        read(&mut channel, 0);
        assert_eq!(drive.lock().inside[0].queue, 0);
        drive.lock().answers = 1;
        assert_eq!(channel.poll(|_| ()), 1);
        let sq = DiskConfig { worker: Some(cpu), baseline: Stack::Sq.into(), ..threads(3) };
        let (disk, _) = scripted(queues, 4, sq);
        assert_eq!((disk.worker_cpu(), disk.queue_count()), (None, (1, 1)));
    }
}

#[test]
fn work_put_into_a_queue_by_others_is_started_by_its_owner() {
    let stacks = STACKS.map(|stack| (stack, false));
    for (stack, with_worker) in stacks.into_iter().chain([(Stack::Mq, true)]) {
        let worker = with_worker.then(|| Native::topology().cpus()[0].id);
        let config = DiskConfig {
            baseline: stack.into(),
            worker,
            timeout: Duration::from_nanos(1),
            ..threads(1)
        };
        let (disk, drive) = scripted(1 + u16::from(with_worker), 4, config);
        let (mut mine, mut theirs) = (HeardBell::new(), HeardBell::new());
        disk.claim(&thread_of(1, &mine.bell)).unwrap();
        let thread = IoThread { number: 0, owner: 3, bell: bell(), turn: None };
        let mut worker = Worker::new(&thread);
        assert_eq!(worker.serve(&disk).unwrap(), with_worker);
        let mut owner = channel_of(&disk, (0, 1), &mine.bell);
        let mut other = channel_of(&disk, (1, 2), &theirs.bell);
        assert!(!owner.has_work() && !other.has_work());
        owner.tick();
        assert_eq!(owner.sleep_until(), None, "{stack:?}");
        assert!(mine.rings(|| read(&mut other, 0)), "{stack:?}");
        assert_eq!(other.poll(|_| ()), 0);
        assert_eq!(drive.lock().log, [], "{stack:?}: only the owner may hand it over");
        assert!(owner.has_work() && !other.has_work(), "{stack:?}");
        assert!(!theirs.rings(|| assert_eq!(owner.poll(|_| ()), 0)));
        assert_eq!(drive.lock().inside.len(), 1, "{stack:?}");
        assert!(!owner.has_work() && owner.sleep_until().is_some(), "{stack:?}");
        // Nor may the other say that it takes too long.
        other.tick();
        assert_eq!(disk.stats().timeouts(), 0, "{stack:?}");
        drive.lock().answers = 1;
        assert!(theirs.rings(|| assert_eq!(owner.poll(|_| ()), 0)), "{stack:?}");
        assert!(other.has_work() && owner.sleep_until().is_none(), "{stack:?}");
        assert_eq!(other.poll(|done| assert_eq!(done.status, Status::Ok)), 1);
        // A disk that is thawed has its owner look.
        disk.quiesce();
        assert!(mine.rings(|| disk.unquiesce()) && owner.has_work(), "{stack:?}");
    }
}

#[test]
fn earliest_wish_for_another_poll_is_when_to_wake_at_latest() {
    let (first, a) = scripted(1, 4, threads(1));
    let (second, b) = scripted(1, 4, threads(1));
    let bell = bell();
    [&first, &second].iter().for_each(|disk| disk.claim(&thread_of(1, &bell)).unwrap());
    let layout = Layout::Stripe { chunk_sectors: 8 };
    let volume = Volume::new("v", layout, vec![first, second]).unwrap();
    let thread = Some(IoThread { number: 0, owner: 1, bell, turn: None });
    let config = ChannelConfig { thread, ..ChannelConfig::default() };
    let mut channel = Channel::open(&volume, config).unwrap();
    channel.tick();
    channel.submit(Bio::read(0, Buffer::new(8192))).unwrap();
    channel.poll(|_| ());
    let usual = channel.sleep_until().expect("requests may take too long");
    for (wishes, expected) in [
        ([Some(9), Some(5)], 5),
        ([Some(5), Some(9)], 5),
        ([Some(7), None], 7),
        ([None, None], usual),
        ([Some(u64::MAX), None], usual),
    ] {
        (a.lock().wake_ns, b.lock().wake_ns) = (wishes[0], wishes[1]);
        channel.poll(|_| ());
        assert_eq!(channel.sleep_until(), Some(expected), "{wishes:?}");
    }
    [&a, &b].iter().for_each(|drive| drive.lock().answers = 1);
    assert_eq!(channel.wait(1, |done| assert_eq!(done.status, Status::Ok)), 1);
}

#[test]
fn busy_host_is_retried_by_time_and_busy_device_by_answer() {
    for stack in STACKS {
        for refusal in [Dispatch::HostBusy, Dispatch::DeviceBusy] {
            let (disk, drive) = scripted(1, 4, DiskConfig { baseline: stack.into(), ..threads(1) });
            let bell = bell();
            disk.claim(&thread_of(1, &bell)).unwrap();
            let mut channel = channel_of(&disk, (0, 1), &bell);
            channel.tick();
            drive.lock().refusals.push_back(refusal);
            let before_ns = Native::now();
            read(&mut channel, 0);
            let after_ns = Native::now();
            let wake_ns = channel.sleep_until().expect("a request is in flight");
            let soon = before_ns + 1_000_000..=after_ns + 1_000_000;
            // The other possible time is that of the next look for timeouts.
            let is_soon = soon.contains(&wake_ns) || after_ns - before_ns > 100_000_000;
            assert!(is_soon || refusal == Dispatch::DeviceBusy, "{stack:?}");
            assert!(wake_ns > after_ns || refusal == Dispatch::HostBusy, "{stack:?}");
            drive.lock().answers = 1;
            assert_eq!(channel.poll(|done| assert_eq!(done.status, Status::Ok)), 1, "{stack:?}");
            assert_eq!(disk.stats().requeues(), 1);
        }
    }
}

#[test]
fn requests_waiting_in_a_queue_are_aborted_with_its_owner() {
    for stack in STACKS {
        let (disk, drive) = scripted(1, 2, DiskConfig { baseline: stack.into(), ..threads(1) });
        let (mine, mut theirs) = (HeardBell::new(), HeardBell::new());
        disk.claim(&thread_of(1, &mine.bell)).unwrap();
        let mut owner = channel_of(&disk, (0, 1), &mine.bell);
        let mut other = channel_of(&disk, (1, 2), &theirs.bell);
        // The queue holds a flush that was refused, another that waits for it, and data behind
        // both.
        drive.lock().refusals.extend([Dispatch::DeviceBusy; 9]);
        for _ in 0..2 {
            owner.submit(Bio::flush()).unwrap();
            owner.flush();
        }
        (0..3).for_each(|n| read(&mut owner, n * 16));
        other.submit(Bio::flush()).unwrap();
        (3..5).for_each(|n| read(&mut other, n * 16));
        let rung = theirs.rings(|| disk.bring_down(&thread_of(1, &mine.bell)));
        assert!(rung, "{stack:?}");
        assert!(disk.tags_in_use() == 0 && disk.is_drained(), "{stack:?}");
        let mut ended = [0, 0];
        for (channel, ended) in [&mut owner, &mut other].into_iter().zip(&mut ended) {
            channel.poll(|done| {
                assert_eq!(done.status, Status::Aborted, "{stack:?}");
                *ended += 1;
            });
        }
        // Under `sq`, bios for which the single queue had no request are still in their channel's
        // plug.
        let expected = if stack == Stack::Sq { ended } else { [5, 3] };
        assert_eq!(ended, expected, "{stack:?}");
        assert!(ended[0] >= 2 && ended[1] >= 1, "{stack:?} {ended:?}");
        let failed: u64 = disk.stats().ops.iter().map(|op| op.errors).sum();
        assert_eq!(failed, ended.iter().sum::<u64>(), "{stack:?}");
        drive.lock().refusals.clear();
        // Aborted requests are not offered again.
        drive.lock().refused.clear();
        disk.claim(&thread_of(1, &mine.bell)).unwrap();
        drive.lock().answers = usize::MAX;
        owner.submit(Bio::flush()).unwrap();
        while owner.in_flight() + other.in_flight() > 0 {
            owner.poll(|done| assert_eq!(done.status, Status::Ok, "{stack:?}"));
            other.poll(|done| assert_eq!(done.status, Status::Ok, "{stack:?}"));
        }
        let flushes = drive
            .lock()
            .log
            .iter()
            .filter(|asked| matches!(asked, Asked::Took(given) if given.op == Op::Flush))
            .count();
        assert_eq!(flushes, 1, "{stack:?}");
    }
}

#[test]
fn a_drive_that_answers_nothing_lets_channel_and_disk_go() {
    for stack in STACKS {
        let (disk, drive) = scripted(1, 2, DiskConfig { baseline: stack.into(), ..threads(1) });
        let bell = bell();
        disk.claim(&thread_of(1, &bell)).unwrap();
        let mut owner = channel_of(&disk, (0, 1), &bell);
        let mut other = channel_of(&disk, (1, 2), &bell);
        for _ in 0..2 {
            owner.submit(Bio::flush()).unwrap();
            owner.flush();
        }
        (0..5).for_each(|n| read(&mut owner, n * 16));
        (0..3).for_each(|n| read(&mut other, n * 16));
        assert_eq!(drive.lock().inside.len(), 3, "{stack:?}: a flush and what has a tag");
        for channel in [&mut owner, &mut other] {
            channel.set_drain_timeout(Duration::ZERO);
        }
        // Their bios are in every place that a bio may be in; a lost one panics.
        drop((owner, other));
        let left = Arc::downgrade(&disk);
        drop(disk);
        assert!(left.upgrade().is_none(), "{stack:?}");
    }
}

#[test]
fn a_disk_is_empty_only_if_no_bio_waits_anywhere_in_it() {
    type Case = (Stack, &'static str, fn(&Disk<Native>, &ScriptDrive, [&mut Channel<Native>; 2]));
    let cases: [Case; 6] = [
        (Stack::Mq, "before a queue", |_, _, [_, other]| read(other, 0)),
        (Stack::Mq, "for leave to go out", |disk, _, [owner, _]| {
            disk.quiesce();
            read(owner, 0);
        }),
        (Stack::Sq, "in the one queue", |disk, _, [owner, _]| {
            disk.quiesce();
            read(owner, 0);
        }),
        (Stack::Mq, "for a busy drive", |_, drive, [owner, _]| {
            drive.lock().refusals.push_back(Dispatch::DeviceBusy);
            read(owner, 0);
        }),
        (Stack::Mq, "for the drive", |_, _, [owner, _]| read(owner, 0)),
        (Stack::Sq, "for a flush", |_, _, [owner, _]| {
            (0..2).for_each(|_| owner.submit(Bio::flush()).unwrap());
            owner.flush();
        }),
    ];
    for (stack, place, put) in cases {
        let (disk, drive) = scripted(1, 4, DiskConfig { baseline: stack.into(), ..threads(1) });
        let bell = bell();
        disk.claim(&thread_of(1, &bell)).unwrap();
        let mut owner = channel_of(&disk, (0, 1), &bell);
        let mut other = channel_of(&disk, (1, 2), &bell);
        assert!(disk.is_drained());
        put(&disk, &drive, [&mut owner, &mut other]);
        assert!(!disk.is_drained(), "one waits {place}");
        disk.unquiesce();
        drive.lock().answers = usize::MAX;
        while owner.in_flight() + other.in_flight() > 0 {
            owner.poll(|done| assert_eq!(done.status, Status::Ok));
            other.poll(|done| assert_eq!(done.status, Status::Ok));
        }
        assert!(disk.is_drained(), "none waits {place}");
    }
}

#[test]
fn flush_joined_from_another_queue_wakes_its_owner() {
    let (disk, drive) = scripted(2, 4, threads(2));
    let (mut first, mut second) = (HeardBell::new(), HeardBell::new());
    [&first, &second].iter().zip(1..).for_each(|(heard, owner)| {
        disk.claim(&thread_of(owner, &heard.bell)).unwrap();
    });
    let mut one = channel_of(&disk, (0, 1), &first.bell);
    let mut two = channel_of(&disk, (1, 2), &second.bell);
    for channel in [&mut one, &mut two] {
        channel.submit(Bio::flush()).unwrap();
        channel.flush();
    }
    let queues = || -> Vec<u16> { drive.lock().inside.iter().map(|one| one.queue).collect() };
    assert_eq!(queues(), [1]);
    drive.lock().answers = 1;
    assert!(second.rings(|| assert_eq!(one.poll(|_| ()), 1)));
    assert_eq!(queues(), [], "that queue is another thread's");
    assert!(two.has_work() && !one.has_work() && !disk.is_drained());
    assert!(!first.rings(|| assert_eq!(two.poll(|_| ()), 0)));
    assert_eq!(queues(), [0]);
    drive.lock().answers = 1;
    assert_eq!(two.poll(|done| assert_eq!(done.status, Status::Ok)), 1);
    assert!(disk.is_drained());
}

#[test]
fn waiting_thread_sleeps_in_its_turn_until_answered() {
    let (disk, drive) = scripted(1, 4, threads(1));
    let bell = bell();
    disk.claim(&thread_of(1, &bell)).unwrap();
    let thread = Some(IoThread { number: 0, owner: 1, bell, turn: Some(turn) });
    let config = ChannelConfig { thread, ..ChannelConfig::default() };
    let mut channel = Channel::open(&Volume::single(disk).unwrap(), config).unwrap();
    for turns in [1, 2, 20] {
        drive.lock().answers = 0;
        answer_after(&drive, turns);
        read(&mut channel, 0);
        assert_eq!(channel.wait(1, |done| assert_eq!(done.status, Status::Ok)), 1);
        assert_eq!(turns_taken(), vec![true; turns]);
    }
}

#[test]
fn tags_returned_by_a_frozen_drive_wake_a_remote_waiter() {
    let mut drive = ScriptDrive::new(2, 1);
    (drive.hw.kind, drive.hw.tags) = (QueueKind::OwnerOnly, TagScope::PerDrive);
    let disk = Disk::new(Box::new(drive.clone()), threads(2)).unwrap();
    let (mine, mut theirs) = (bell(), HeardBell::new());
    disk.claim(&thread_of(1, &mine)).unwrap();
    disk.claim(&thread_of(2, &theirs.bell)).unwrap();
    let serving = ServingConfig::of(Serving::PerVolume);
    let disks = vec![Arc::clone(&disk)];
    let volume = Volume::with_serving("v", Layout::Linear, disks, serving).unwrap();
    let thread = Some(IoThread { number: 0, owner: 1, bell: mine, turn: None });
    let config = ChannelConfig { thread, ..ChannelConfig::default() };
    let mut listed = Channel::open(&volume, config).unwrap();
    let mut waiting = channel_of(&disk, (1, 2), &theirs.bell);
    // The only tag, which a request in the list has before any drive does.
    listed.submit(Bio::read(0, Buffer::new(512))).unwrap();
    read(&mut waiting, 64);
    assert!(drive.lock().inside.is_empty() && !waiting.has_work());
    disk.freeze();
    assert!(theirs.rings(|| listed.flush()) && waiting.has_work());
    drive.lock().answers = 1;
    assert_eq!(waiting.wait(1, |done| assert_eq!(done.status, Status::Ok)), 1);
    disk.unfreeze();
    drive.lock().answers = 1;
    assert_eq!(listed.wait(1, |done| assert_eq!(done.status, Status::Ok)), 1);
}
