//! Guarantees about flags, errors and memory, on `TestDrive`.
//!
//! A durable write stays durable, and no other write becomes so. An error reaches exactly the bios
//! that it concerns, and nothing is written after a flush that failed. Memory is kept as long as a
//! drive may write to it, whoever owns it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::support::{Given, Knobs, TestDrive, pattern, run};
use millrace_block::baseline::Stack;
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, Disk, DiskConfig, ErrorKind, Extent, Layout, Op, OpFlags,
    QueueKind, Spread, Stamp, Status, Volume,
};
use millrace_machine::{Machine, Native};

const STACKS: [Stack; 3] = [Stack::Mq, Stack::Sq, Stack::Raw];
/// Stacks that merge neighbours into one request.
const MERGING: [Stack; 2] = [Stack::Mq, Stack::Sq];

fn disk(drive: TestDrive, config: DiskConfig<Native>) -> (Arc<Disk<Native>>, Arc<Knobs>) {
    let knobs = Arc::clone(&drive.knobs);
    (Disk::new(Box::new(drive), config).unwrap(), knobs)
}

fn open(volume: &Arc<Volume<Native>>) -> Channel<Native> {
    Channel::open(volume, ChannelConfig::default()).unwrap()
}

fn single(drive: TestDrive, config: DiskConfig<Native>) -> (Channel<Native>, Arc<Knobs>) {
    let (disk, knobs) = disk(drive, config);
    (open(&Volume::single(disk).unwrap()), knobs)
}

fn of(stack: Stack) -> DiskConfig<Native> {
    DiskConfig { baseline: stack.into(), ..DiskConfig::default() }
}

/// Requests time out soon.
fn hasty(stack: Stack) -> DiskConfig<Native> {
    DiskConfig { timeout: Duration::from_millis(40), ..of(stack) }
}

/// Two drives in chunks of 8 sectors.
fn pair(drives: [TestDrive; 2], config: &DiskConfig<Native>) -> (Channel<Native>, [Arc<Knobs>; 2]) {
    let [(a, first), (b, second)] = drives.map(|drive| disk(drive, config.clone()));
    let layout = Layout::Stripe { chunk_sectors: 8 };
    (open(&Volume::new("v", layout, vec![a, b]).unwrap()), [first, second])
}

fn hold(knobs: &Knobs, held: bool) {
    knobs.held.store(held, Ordering::SeqCst);
}

fn with_fua() -> TestDrive {
    let mut drive = TestDrive::new(4096);
    drive.limits.features.fua = true;
    drive
}

#[test]
fn a_durable_write_shares_no_request_with_one_that_is_not() {
    for stack in STACKS {
        let (mut channel, knobs) = single(with_fua(), of(stack));
        channel.submit(Bio::write(0, pattern(8, 1)).with_flags(OpFlags::FUA)).unwrap();
        channel.submit(Bio::write(8, pattern(8, 2))).unwrap();
        channel.submit(Bio::write(16, pattern(8, 3)).with_flags(OpFlags::FUA)).unwrap();
        assert_eq!(channel.wait(3, |done| assert!(done.status.is_ok())), 3);
        let mut given = knobs.given(Op::Write);
        given.sort_by_key(|given| given.sector);
        let flags: Vec<OpFlags> = given.iter().map(|given| given.flags).collect();
        assert_eq!(flags, [OpFlags::FUA, OpFlags::NONE, OpFlags::FUA], "{stack:?}");
        assert!(knobs.given(Op::Flush).is_empty(), "{stack:?}");
    }
}

#[test]
fn drives_without_fua_are_flushed_after_such_writes() {
    for stack in STACKS {
        let drives = [TestDrive::new(4096), TestDrive::new(4096)];
        let (mut channel, knobs) = pair(drives, &of(stack));
        let write = Bio::write(0, pattern(16, 1)).with_flags(OpFlags::FUA);
        assert_eq!(run(&mut channel, write).0, Status::Ok);
        for knobs in &knobs {
            let writes = knobs.given(Op::Write);
            let plain = Given { op: Op::Write, sector: 0, nr_sectors: 8, flags: OpFlags::NONE };
            assert_eq!(writes, [plain], "{stack:?}");
            assert_eq!(knobs.given(Op::Flush).len(), 1, "{stack:?}");
            assert_eq!(knobs.given.lock().unwrap().last().map(|last| last.op), Some(Op::Flush));
        }
        // A drive that was not written needs no flush.
        let write = Bio::write(8, pattern(8, 1)).with_flags(OpFlags::FUA);
        assert_eq!(run(&mut channel, write).0, Status::Ok);
        assert_eq!(knobs.each_ref().map(|knobs| knobs.given(Op::Flush).len()), [1, 2]);
    }
}

#[test]
fn zeroes_that_must_stay_allocated_say_so_in_every_part() {
    for stack in STACKS {
        let drives = [(); 2].map(|()| {
            let mut drive = TestDrive::new(4096);
            drive.limits.max_write_zeroes_sectors = 4;
            drive
        });
        let (mut channel, knobs) = pair(drives, &of(stack));
        let zeroes = Bio::write_zeroes(0, 16).with_flags(OpFlags::NOUNMAP);
        assert_eq!(run(&mut channel, zeroes).0, Status::Ok);
        for knobs in &knobs {
            let given = knobs.given(Op::WriteZeroes);
            assert_eq!(given.iter().map(|given| given.nr_sectors).sum::<u32>(), 8, "{given:?}");
            assert!(given.iter().all(|given| given.flags == OpFlags::NOUNMAP), "{given:?}");
        }
    }
}

#[test]
fn a_read_only_drive_is_read_and_never_changed() {
    for stack in STACKS {
        let mut drive = TestDrive::new(64);
        drive.limits.features.read_only = true;
        let (mut channel, knobs) = single(drive, of(stack));
        let changes =
            [Bio::write(0, Buffer::new(512)), Bio::discard(0, 8), Bio::write_zeroes(0, 8)];
        for bio in changes {
            let refused = channel.submit(bio).unwrap_err();
            let reason = millrace_block::Reject::Invalid(Status::ReadOnly);
            assert_eq!(refused.reason, reason, "{stack:?} {:?}", refused.bio.op());
        }
        assert_eq!(run(&mut channel, Bio::read(0, Buffer::new(512))).0, Status::Ok);
        assert_eq!(run(&mut channel, Bio::flush()).0, Status::Ok);
        assert!(knobs.given.lock().unwrap().iter().all(|given| !given.op.is_write()));
    }
}

#[test]
fn no_data_are_written_after_a_flush_that_failed() {
    for stack in STACKS {
        let (mut channel, knobs) = single(TestDrive::new(64), of(stack));
        knobs.fail(Op::Flush, Status::IoError);
        let write = Bio::write(0, pattern(8, 1)).with_flags(OpFlags::PREFLUSH);
        assert_eq!(run(&mut channel, write).0, Status::IoError, "{stack:?}");
        assert_eq!(knobs.given(Op::Write), [], "{stack:?}");
        assert!(knobs.image.lock().unwrap().iter().all(|byte| *byte == 0));
    }
}

#[test]
fn the_error_that_came_first_is_that_of_a_bio_in_parts() {
    let errors = [Status::NoSpace, Status::Offline];
    for first in [0, 1] {
        let drives = [TestDrive::new(64), TestDrive::new(64)];
        let (mut channel, knobs) = pair(drives, &of(Stack::Mq));
        for (knobs, error) in knobs.iter().zip(errors) {
            knobs.fail(Op::Read, error);
            hold(knobs, true);
        }
        channel.submit(Bio::read(0, Buffer::new(8192))).unwrap();
        assert_eq!(channel.poll(|_| ()), 0);
        hold(&knobs[first], false);
        assert_eq!(channel.poll(|_| ()), 0, "the other drive has not answered");
        hold(&knobs[1 - first], false);
        let mut status = None;
        assert_eq!(channel.wait(1, |done| status = Some(done.status)), 1);
        assert_eq!(status, Some(errors[first]));
    }
}

#[test]
fn each_bio_of_merged_request_counts_its_error_and_its_own_time() {
    for stack in MERGING {
        let (disk, knobs) = disk(TestDrive::new(64), of(stack));
        let volume = Volume::single(disk).unwrap();
        let config = ChannelConfig { stamp: Stamp::Io, ..ChannelConfig::default() };
        let mut channel = Channel::open(&volume, config).unwrap();
        knobs.fail(Op::Read, Status::IoError);
        let first = Instant::now();
        channel.submit(Bio::read(0, Buffer::new(4096))).unwrap();
        // The second bio is this much younger than the first.
        std::thread::sleep(Duration::from_millis(50));
        let second = Instant::now();
        channel.submit(Bio::read(8, Buffer::new(4096))).unwrap();
        assert_eq!(channel.wait(2, |done| assert_eq!(done.status, Status::IoError)), 2);
        let most = first.elapsed() + second.elapsed();
        assert_eq!(knobs.given(Op::Read).len(), 1, "{stack:?}: one request");
        let stats = volume.disks()[0].stats();
        let read = &stats.ops[Op::Read as usize];
        assert_eq!((read.errors, read.ios), (2, 2), "{stack:?}");
        // With the first one's stamp for both, the sum would be 50 ms longer.
        let sum = Duration::from_nanos(read.total.sum_ns());
        assert!(sum >= Duration::from_millis(50), "{stack:?}: {sum:?}");
        assert!(sum <= most + Duration::from_millis(1), "{stack:?}: {sum:?} of {most:?}");
    }
}

#[test]
fn memory_of_a_request_given_up_is_kept_for_all_channels() {
    // Only the single queue of `sq` merges bios of two channels.
    let (disk, knobs) = disk(TestDrive::new(64), hasty(Stack::Sq));
    let volume = Volume::single(disk).unwrap();
    let (mut first, mut second) = (open(&volume), open(&volume));
    volume.disks()[0].quiesce();
    first.submit(Bio::read(0, Buffer::new(4096))).unwrap();
    first.flush();
    second.submit(Bio::read(8, Buffer::new(4096))).unwrap();
    second.flush();
    hold(&knobs, true);
    volume.disks()[0].unquiesce();
    for channel in [&mut first, &mut second] {
        let mut status = None;
        assert_eq!(channel.wait(1, |done| status = Some((done.status, done.bio))), 1);
        let (status, bio) = status.unwrap();
        assert_eq!(status, Status::TimedOut);
        assert!(bio.into_buffer().is_none(), "the drive may still write it");
    }
    assert_eq!(knobs.given(Op::Read).len(), 1, "one request");
    assert_eq!((first.quarantined_bios(), second.quarantined_bios()), (1, 1));
    hold(&knobs, false);
}

#[test]
fn a_range_reads_as_zeroes_only_if_every_drive_under_it_says_so() {
    let drives = [TestDrive::new(64), TestDrive::new(64)];
    let (channel, knobs) = pair(drives, &of(Stack::Mq));
    let volume = channel.volume();
    let say = |first, second| {
        knobs[0].zeroed.store(first, Ordering::SeqCst);
        knobs[1].zeroed.store(second, Ordering::SeqCst);
    };
    say(true, false);
    assert!(volume.reads_as_zeroes(0, 8) && !volume.reads_as_zeroes(0, 16));
    assert!(!volume.reads_as_zeroes(8, 8));
    say(false, true);
    assert!(!volume.reads_as_zeroes(0, 16) && volume.reads_as_zeroes(8, 8));
    say(true, true);
    assert!(volume.reads_as_zeroes(0, 16));
}

#[test]
fn a_disk_says_what_it_was_made_of() {
    let mut drive = TestDrive::new(101);
    (drive.queues, drive.limits.logical_block_size) = (2, 4096);
    let limits = drive.limits;
    let config = DiskConfig {
        name: "left".into(),
        timeout: Duration::from_nanos(5),
        device: 7,
        ..Default::default()
    };
    let (one, knobs) = disk(drive, config);
    assert_eq!((one.name(), one.device(), one.timeout()), ("left", 7, Duration::from_nanos(5)));
    assert_eq!((one.capacity(), one.size_bytes()), (96, 101 << 9), "whole blocks of all bytes");
    assert_eq!((one.kind(), one.node(), one.worker_cpu()), (QueueKind::AnyThread, None, None));
    assert_eq!(*one.limits(), limits.validate().unwrap());
    assert_eq!(one.queue_count().1, Native::topology().cpus().len().min(2));
    assert_eq!(one.extents(8, 16), [Extent { nr_sectors: 16, hole: false, zero: false }]);
    for zeroed in [true, false] {
        knobs.zeroed.store(zeroed, Ordering::SeqCst);
        assert_eq!(one.reads_as_zeroes(0, 8), zeroed);
    }
    let mut small = TestDrive::new(7);
    small.limits.logical_block_size = 4096;
    let refused = Disk::new(Box::new(small), DiskConfig::default()).err().unwrap();
    let said = "drive disk: smaller than one block; use a larger drive";
    assert_eq!((refused.kind(), refused.to_string()), (ErrorKind::InvalidSetting, said.into()));
    for (queues, depth, queue_depth, said) in [
        (0, 8, None, "drive disk: the driver offers no hardware queue"),
        (1, 0, None, "drive disk: the driver offers queues of depth 0"),
        (1, 8, Some(0), "drive disk: a queue depth of 0 is out of range; use 1 to 65536"),
    ] {
        let drive = TestDrive { queues, depth, ..TestDrive::new(8) };
        let config = DiskConfig { queue_depth, ..DiskConfig::default() };
        let refused = Disk::new(Box::new(drive), config).err().unwrap();
        assert_eq!((refused.kind(), refused.to_string()), (ErrorKind::InvalidSetting, said.into()));
    }
    let endless = TestDrive { depth: u32::MAX, ..TestDrive::new(8) };
    assert!(Disk::new(Box::new(endless), DiskConfig::default()).is_ok());
    let large = || Disk::new(Box::new(TestDrive::sparse(1 << 54)), DiskConfig::default()).unwrap();
    let refused = Volume::new("v", Layout::Linear, vec![large(), large()]).err().unwrap();
    assert_eq!(
        refused.to_string(),
        "volume v: larger than the maximum of 16 EiB; use fewer or smaller drives"
    );
}

#[test]
fn batched_times_give_each_step_of_a_batch_one_stamp() {
    for (stack, software_queues) in
        [(Stack::Mq, Spread::Core), (Stack::Mq, Spread::One), (Stack::Sq, Spread::One)]
    {
        let case = format!("{stack:?} {software_queues:?}");
        let (disk, _) = disk(TestDrive::new(4096), DiskConfig { software_queues, ..of(stack) });
        let mut channel = open(&Volume::single(Arc::clone(&disk)).unwrap());
        (0..16).for_each(|n| channel.submit(Bio::read(n * 16, Buffer::new(512))).unwrap());
        assert_eq!(channel.wait(16, |done| assert!(done.status.is_ok())), 16);
        let stats = disk.stats();
        let read = &stats.ops[Op::Read as usize];
        for stage in [&read.queue, &read.service, &read.total] {
            assert_eq!(stage.sum_ns(), 16 * (stage.sum_ns() / 16), "{case}");
            let different = stage.buckets().filter(|(_, count)| *count > 0).count();
            assert_eq!(different, 1, "{case}");
        }
        if stack == Stack::Mq {
            assert_eq!(read.i2d.sum_ns(), 0, "{case}: inserted and dispatched at once");
        }
    }
}

#[test]
fn disk_is_waited_for_until_it_is_empty_or_deadline_has_come() {
    let (disk, knobs) = disk(TestDrive::new(64), of(Stack::Mq));
    let mut channel = open(&Volume::single(Arc::clone(&disk)).unwrap());
    hold(&knobs, true);
    channel.submit(Bio::read(0, Buffer::new(512))).unwrap();
    channel.flush();
    disk.freeze();
    let deadline_ns = Native::now() + 2_000_000;
    assert!(!disk.wait_drained(deadline_ns));
    assert!(Native::now() >= deadline_ns);
    std::thread::scope(|scope| {
        let polls = scope.spawn(move || channel.wait(1, |done| assert!(done.status.is_ok())));
        hold(&knobs, false);
        assert!(disk.wait_drained(Native::now() + 60_000_000_000));
        assert_eq!(polls.join().unwrap(), 1);
    });
    assert!(disk.wait_drained(0), "empty as it is");
}

#[test]
fn lack_of_descriptors_is_an_error_but_of_no_drain() {
    std::thread::spawn(|| {
        let (disk, _) = disk(TestDrive::new(64), of(Stack::Mq));
        let volume = Volume::single(Arc::clone(&disk)).unwrap();
        millrace_require::forbid_eventfds();
        let error = Channel::open(&volume, ChannelConfig::default()).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::System, Some(24)));
        assert!(error.to_string().contains("RLIMIT_NOFILE"), "{error}");
        disk.freeze();
        assert!(disk.wait_drained(Native::now() + 1_000_000_000));
    })
    .join()
    .unwrap();
}
