//! I/O must not be held up by a thread that went away with tags, by a drive that was busy, by
//! another drive that does not answer, or by a time limit too long to be added to a clock.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::TestDrive;
use crate::support::script::{Asked, ScriptDrive};
use millrace_block::baseline::Stack;
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, CompletionBatch, Controller, ControllerConfig, Disk,
    DiskConfig, Dispatch, Driver, DriverQueue, Error, Expired, Failure, HwQueues, Layout, Op,
    QueueKind, QueueLimits, Request, Sector, Serving, ServingConfig, Sharing, Status, Tag,
    TagScope, Volume,
};
use millrace_machine::{Machine, Native, Topology};

const STACKS: [Stack; 3] = [Stack::Mq, Stack::Sq, Stack::Raw];

fn read(sector: Sector) -> Bio {
    Bio::read(sector, Buffer::new(4096))
}

/// Submits, without waiting for anything.
fn start(channel: &mut Channel<Native>, bio: Bio) {
    channel.submit(bio).map_err(|refused| refused.reason).unwrap();
    channel.flush();
}

#[test]
fn the_longest_timeout_never_passes() {
    let drive = TestDrive::new(64);
    let knobs = Arc::clone(&drive.knobs);
    // `timeout = "18446744073s"` of a configuration, in nanoseconds.
    let config =
        DiskConfig { timeout: Duration::from_secs(18_446_744_073), ..DiskConfig::default() };
    let disk = Disk::new(Box::new(drive), config).unwrap();
    let mut channel =
        Channel::open(&Volume::single(disk).unwrap(), ChannelConfig::default()).unwrap();
    knobs.held.store(true, Ordering::SeqCst);
    start(&mut channel, read(0));
    channel.tick();
    assert_eq!(channel.poll(|done| panic!("{} at once", done.status)), 0);
    knobs.held.store(false, Ordering::SeqCst);
    let mut status = None;
    channel.wait(1, |done| status = Some(done.status));
    assert_eq!(status, Some(Status::Ok));
}

#[test]
fn tags_of_a_closed_channel_return_to_a_volume_with_one_list() {
    for stack in [Stack::Mq, Stack::Sq, Stack::Raw] {
        let drive = TestDrive { queues: 1, depth: 1, ..TestDrive::new(64) };
        let knobs = Arc::clone(&drive.knobs);
        let disk = Disk::new(
            Box::new(drive),
            DiskConfig { baseline: stack.into(), ..DiskConfig::default() },
        );
        let serving = ServingConfig::of(Serving::PerVolume);
        let disks = vec![disk.unwrap()];
        let volume = Volume::with_serving("v", Layout::Linear, disks, serving).unwrap();
        knobs.held.store(true, Ordering::SeqCst);
        let mut gone = Channel::open(&volume, ChannelConfig::default()).unwrap();
        gone.set_drain_timeout(Duration::ZERO);
        start(&mut gone, read(0));
        drop(gone);
        knobs.held.store(false, Ordering::SeqCst);
        let mut channel = Channel::open(&volume, ChannelConfig::default()).unwrap();
        start(&mut channel, read(16));
        let polls = (0..16).take_while(|_| channel.poll(|_| ()) == 0).count();
        assert!(polls < 16, "{stack:?}: nobody looks for the tag");
    }
}

/// A drive that takes one request at a time, and is too busy for more until it is asked.
struct OneAtATime(TestDrive);

impl Driver<Native> for OneAtATime {
    fn capacity(&self) -> Sector {
        self.0.capacity()
    }
    fn limits(&self) -> QueueLimits {
        self.0.limits()
    }
    fn hw_queues(&self, _: &Topology) -> HwQueues {
        HwQueues { count: 64, depth: 64, kind: QueueKind::AnyThread, tags: TagScope::PerQueue }
    }
    fn open_queue(&self, _: u16, _: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        Ok(Box::new(Narrow(None)))
    }
}

struct Narrow(Option<Tag>);

impl DriverQueue<Native> for Narrow {
    fn queue_rq(&mut self, rq: &Request<Native>) -> Dispatch {
        if self.0.is_some() {
            return Dispatch::DeviceBusy;
        }
        self.0 = Some(rq.tag());
        Dispatch::Queued
    }
    fn commit_rqs(&mut self) {}
    fn poll(&mut self, batch: &mut CompletionBatch) {
        if let Some(tag) = self.0.take() {
            batch.push(tag, Status::Ok);
        }
    }
    fn timeout(&mut self, _: Tag) -> Expired {
        Expired::Extend
    }
}

#[test]
fn refused_work_goes_out_with_the_awaited_completion() {
    for stack in [Stack::Mq, Stack::Sq, Stack::Raw] {
        let config = DiskConfig { baseline: stack.into(), ..DiskConfig::default() };
        let disk = Disk::new(Box::new(OneAtATime(TestDrive::new(256))), config).unwrap();
        let volume = Volume::single(disk).unwrap();
        let mut channel = Channel::open(&volume, ChannelConfig::default()).unwrap();
        (0..2).for_each(|n| channel.submit(read(n * 24)).map_err(|r| r.reason).unwrap());
        // Nothing else would retry the second one: no completion is due, and no timer is set.
        channel.flush();
        assert_eq!(volume.disks()[0].stats().requests(), 2, "{stack:?}");
        assert_eq!(channel.poll(|done| assert_eq!(done.status, Status::Ok)), 2, "{stack:?}");
    }
}

#[test]
fn parts_for_a_silent_drive_leave_room_for_others() {
    let mut knobs = Vec::new();
    let mut disk = || {
        let mut drive = TestDrive::new(4096);
        // A bio then has more parts than a channel has room for.
        drive.limits.max_write_zeroes_sectors = 1;
        knobs.push(Arc::clone(&drive.knobs));
        Disk::new(Box::new(drive), DiskConfig::default()).unwrap()
    };
    let disks = vec![disk(), disk(), disk()];
    let volume = Volume::new("v", Layout::Linear, disks).unwrap();
    let config = ChannelConfig { depth: 4, ..ChannelConfig::default() };
    let mut channel = Channel::open(&volume, config).unwrap();
    knobs[0].held.store(true, Ordering::SeqCst);
    start(&mut channel, Bio::write_zeroes(0, 1024).with_user_data(1));
    for round in 0..3 {
        start(&mut channel, Bio::write_zeroes(4096, 1024).with_user_data(2));
        start(&mut channel, Bio::write_zeroes(8000, 600).with_user_data(3));
        let mut done = Vec::new();
        for _ in 0..10_000 {
            channel.poll(|one| done.push((one.user_data, one.status)));
        }
        done.sort_by_key(|one| one.0);
        assert_eq!(done, [(2, Status::Ok), (3, Status::Ok)], "round {round}");
    }
    assert_eq!(channel.in_flight(), 1);
    knobs[0].held.store(false, Ordering::SeqCst);
    let mut last = None;
    channel.wait(1, |one| last = Some((one.user_data, one.status)));
    assert_eq!(last, Some((1, Status::Ok)));
}

/// A disk on a scripted drive, which has so long to answer, and channels to it.
fn timed(
    (stack, queues): (Stack, u16),
    timeout: Duration,
    channels: usize,
) -> (Arc<Disk<Native>>, ScriptDrive, Vec<Channel<Native>>) {
    let drive = ScriptDrive::new(queues, if queues == 1 { 8 } else { 1 });
    let config = DiskConfig { baseline: stack.into(), timeout, ..DiskConfig::default() };
    let disk = Disk::new(Box::new(drive.clone()), config).unwrap();
    let volume = Volume::single(Arc::clone(&disk)).unwrap();
    let open = |_| Channel::open(&volume, ChannelConfig::default()).unwrap();
    let channels = (0..channels).map(open).collect();
    (disk, drive, channels)
}

/// Looks for timeouts, which a channel does at most once a millisecond.
fn look(channel: &mut Channel<Native>) {
    Native::spin_until(Native::now() + 1_100_000, || false);
    channel.tick();
}

fn timeouts(drive: &ScriptDrive) -> Vec<Sector> {
    let script = drive.lock();
    let asked = script.log.iter().filter_map(|asked| match asked {
        Asked::TimedOut(given) => Some(given.sector),
        _ => None,
    });
    asked.collect()
}

#[test]
fn busy_drive_is_asked_again_each_period_until_it_succeeds() {
    for stack in STACKS {
        let (disk, drive, mut channels) = timed((stack, 1), Duration::from_nanos(1), 1);
        let channel = &mut channels[0];
        drive.lock().expired = Some(Expired::Extend);
        start(channel, read(0));
        start(channel, read(16));
        for looks in 1..4 {
            look(channel);
            assert_eq!(timeouts(&drive), [0, 16].repeat(looks), "{stack:?}");
        }
        assert_eq!(channel.poll(|done| panic!("{}", done.status)), 0);
        assert_eq!((disk.stats().timeouts(), disk.failures().count), (6, 0), "{stack:?}");
        drive.lock().answers = 2;
        assert_eq!(channel.poll(|done| assert_eq!(done.status, Status::Ok)), 2);
        look(channel);
        assert_eq!((disk.stats().timeouts(), disk.tags_in_use()), (6, 0), "{stack:?}");
    }
}

#[test]
fn abandoned_request_is_reported_once_and_keeps_its_tag() {
    for stack in STACKS {
        let (disk, drive, mut channels) = timed((stack, 1), Duration::from_nanos(1), 1);
        let channel = &mut channels[0];
        start(channel, read(16));
        look(channel);
        assert_eq!(channel.poll(|done| assert_eq!(done.status, Status::TimedOut)), 1);
        let failure = Failure { op: Op::Read, sector: 16, nr_sectors: 8, status: Status::TimedOut };
        for _ in 0..2 {
            look(channel);
            assert_eq!((timeouts(&drive), disk.stats().timeouts()), (vec![16], 1), "{stack:?}");
            assert_eq!((disk.failures().count, disk.failures().last), (1, vec![failure]));
            assert_eq!((disk.tags_in_use(), channel.quarantined_bios()), (1, 1), "{stack:?}");
            assert!(!disk.is_drained(), "{stack:?}");
        }
        drive.lock().answers = 1;
        assert_eq!(channel.poll(|done| panic!("{} again", done.status)), 0);
        look(channel);
        assert_eq!((disk.tags_in_use(), channel.quarantined_bios()), (0, 0), "{stack:?}");
        let reads = &disk.stats().ops[Op::Read as usize];
        assert_eq!((reads.ios, reads.errors, disk.stats().in_flight()), (1, 1, 0), "{stack:?}");
        assert!(disk.is_drained(), "{stack:?}");
    }
}

#[test]
fn nothing_is_given_up_on_that_has_time_left_or_no_limit() {
    for (stack, timeout) in
        STACKS.into_iter().flat_map(|s| [(s, Duration::ZERO), (s, Duration::from_secs(60))])
    {
        let (disk, drive, mut channels) = timed((stack, 1), timeout, 1);
        assert_eq!(disk.timeout(), timeout);
        start(&mut channels[0], read(0));
        look(&mut channels[0]);
        assert_eq!(timeouts(&drive), [], "{stack:?} {timeout:?}");
        drive.lock().answers = 1;
        channels[0].wait(1, |done| assert_eq!(done.status, Status::Ok));
    }
}

#[test]
fn memory_comes_back_to_channel_whose_request_drive_confirmed() {
    let (disk, drive, mut channels) = timed((Stack::Mq, 2), Duration::from_nanos(1), 2);
    for (number, channel) in channels.iter_mut().enumerate() {
        start(channel, read(number as u64 * 16));
        look(channel);
        assert_eq!(channel.poll(|done| assert_eq!(done.status, Status::TimedOut)), 1);
    }
    // Both queues use their tag 0.
    let mut inside: Vec<_> = drive.lock().inside.iter().map(|one| (one.queue, one.tag)).collect();
    inside.sort_unstable();
    assert_eq!(inside, [(0, Tag(0)), (1, Tag(0))]);
    for confirmed in [1, 0] {
        drive.lock().answers = 1;
        channels[confirmed].poll(|done| panic!("{} again", done.status));
        channels.iter_mut().for_each(look);
        let held: Vec<_> = channels.iter().map(Channel::quarantined_bios).collect();
        assert_eq!(held, [confirmed, 0]);
    }
    assert_eq!(disk.tags_in_use(), 0);
}

#[test]
fn flushes_joined_behind_an_abandoned_one_share_the_next() {
    for stack in STACKS {
        let (disk, drive, mut channels) = timed((stack, 1), Duration::from_nanos(1), 1);
        let channel = &mut channels[0];
        (0..3).for_each(|_| start(channel, Bio::flush()));
        assert_eq!(drive.lock().inside.len(), 1, "{stack:?}");
        look(channel);
        assert_eq!(drive.lock().inside.len(), 2, "{stack:?}: the next one, beside the old one");
        let mut statuses = Vec::new();
        channel.poll(|done| statuses.push(done.status));
        drive.lock().answers = 2;
        channel.wait(2, |done| statuses.push(done.status));
        assert_eq!(statuses, [Status::TimedOut, Status::Ok, Status::Ok], "{stack:?}");
        assert_eq!(disk.stats().ops[Op::Flush as usize].merges, 1, "{stack:?}");
    }
}

#[test]
fn joined_flushes_go_out_with_the_awaited_completion() {
    for stack in STACKS {
        for reads in [0, 1, 2] {
            let (disk, drive, mut channels) = timed((stack, 1), Duration::ZERO, 1);
            let channel = &mut channels[0];
            (0..3).for_each(|_| start(channel, Bio::flush()));
            (0..reads).for_each(|n| channel.submit(read(n * 16)).map_err(|r| r.reason).unwrap());
            drive.lock().answers = 1;
            // The next call finds it, be it a submission or a poll.
            if reads > 0 {
                channel.flush()
            } else {
                assert_eq!(channel.poll(|_| ()), 1)
            }
            let given: Vec<_> = drive.lock().inside.iter().map(|one| one.given.op).collect();
            let flushes = given.iter().filter(|op| **op == Op::Flush).count();
            assert_eq!((flushes, given.len() as u64), (1, 1 + reads), "{stack:?} {reads}");
            assert_eq!(disk.stats().ops[Op::Flush as usize].merges, 1, "{stack:?} {reads}");
            drive.lock().answers = usize::MAX;
            channel.wait(usize::MAX, |done| assert_eq!(done.status, Status::Ok));
            assert!(disk.is_drained(), "{stack:?} {reads}");
        }
    }
}

#[test]
fn requests_waiting_for_a_tag_go_out_with_the_completion() {
    for (stack, shared) in STACKS.into_iter().flat_map(|stack| [(stack, false), (stack, true)]) {
        let drive = ScriptDrive::new(1, 2);
        let controller = shared.then(|| {
            let sharing = Sharing::Controller;
            let config = ControllerConfig { name: "hba".into(), tags: 5, sharing, node: None };
            Controller::new(config).unwrap()
        });
        let config = DiskConfig { baseline: stack.into(), controller, ..DiskConfig::default() };
        let disk = Disk::new(Box::new(drive.clone()), config).unwrap();
        let volume = Volume::single(Arc::clone(&disk)).unwrap();
        let mut channel = Channel::open(&volume, ChannelConfig::default()).unwrap();
        (0..7).for_each(|n| start(&mut channel, read(n * 16)));
        for answered in [2, 1, 2] {
            assert_eq!(drive.lock().inside.len(), 2, "{stack:?} {shared}");
            drive.lock().answers = answered;
            assert_eq!(channel.poll(|done| assert_eq!(done.status, Status::Ok)), answered);
            // The old stack has bios in the plug until there is a request for them.
            channel.flush();
        }
        assert_eq!(drive.lock().inside.len(), 2, "{stack:?} {shared}");
        drive.lock().answers = usize::MAX;
        assert_eq!(channel.wait(2, |done| assert_eq!(done.status, Status::Ok)), 2);
        assert_eq!(disk.tags_in_use(), 0);
    }
}
