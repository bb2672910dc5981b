//! Statistics of disks and groups on `TestDrive`: stages that add up, queues, and tenants.
//!
//! A drive counts each part of a split bio, a tenant each bio once. I/O is charged to its own group
//! and tenant, whichever thread carries it out.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::support::TestDrive;
use millrace_block::baseline::Stack;
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, Controller, ControllerConfig, Disk, DiskConfig, IoThread,
    Layout, Op, OpFlags, Serving, ServingConfig, Sharing, StatsSnapshot, Status, TagScope,
    TenantSnapshot, Volume, Worker,
};
use millrace_machine::{CpuId, Doorbell, Machine, Native, NativeParker, Parker, Thread};

const STACKS: [Stack; 3] = [Stack::Mq, Stack::Sq, Stack::Raw];

fn disk(depth: u32, config: DiskConfig<Native>) -> (Arc<Disk<Native>>, Arc<crate::support::Knobs>) {
    let mut drive = TestDrive::new(1 << 14);
    drive.depth = depth;
    let knobs = Arc::clone(&drive.knobs);
    (Disk::new(Box::new(drive), config).unwrap(), knobs)
}

fn drain(channel: &mut Channel<Native>) {
    while channel.in_flight() > 0 {
        channel.wait(1, |_| ());
    }
}

fn reads(channel: &mut Channel<Native>, count: u64, tenant: u16) {
    for n in 0..count {
        channel.submit(Bio::read(n * 16, Buffer::new(512)).with_tenant(tenant)).unwrap();
    }
}

/// Counts and sums of the stages of reads must agree.
fn assert_adds_up(stats: &StatsSnapshot, ios: u64, case: &str) {
    let read = &stats.ops[Op::Read as usize];
    for stage in [&read.q2g, &read.g2i, &read.i2d, &read.queue, &read.service, &read.total] {
        assert_eq!(stage.count(), ios, "{case}");
    }
    let before_d = read.q2g.sum_ns() + read.g2i.sum_ns() + read.i2d.sum_ns();
    assert_eq!(before_d, read.queue.sum_ns(), "{case}");
    assert_eq!(read.queue.sum_ns() + read.service.sum_ns(), read.total.sum_ns(), "{case}");
    assert_eq!(read.ios, ios, "{case}");
}

#[test]
fn stages_add_up_and_what_waits_for_a_tag_waits_between_i_and_d() {
    for (stack, serving) in STACKS
        .map(|stack| (stack, Serving::Inline))
        .into_iter()
        .chain([(Stack::Mq, Serving::PerVolume)])
    {
        let case = format!("{stack:?} {serving:?}");
        let (disk, knobs) = disk(4, DiskConfig { baseline: stack.into(), ..DiskConfig::default() });
        let config = ServingConfig { serving, ..ServingConfig::default() };
        let disks = vec![Arc::clone(&disk)];
        let volume = Volume::with_serving("v", Layout::Linear, disks, config).unwrap();
        let mut channel =
            Channel::open(&volume, ChannelConfig::default()).expect("its queues are served");
        knobs.held.store(true, Ordering::SeqCst);
        let start_ns = Native::now();
        reads(&mut channel, 32, 0);
        channel.poll(|_| ());
        // Hold the requests for much longer than this thread was kept from its CPU, so that waits
        // stand out.
        let hold_ns = 4 * (Native::now() - start_ns) + 3_000_000;
        Native::spin_until(Native::now() + hold_ns, || false);
        knobs.held.store(false, Ordering::SeqCst);
        drain(&mut channel);
        let stats = disk.stats();
        assert_adds_up(&stats, 32, &case);
        let read = &stats.ops[Op::Read as usize];
        // The first four reads found a tag and went straight to the drive; the other 28 waited
        // while it was held.
        let waited = if stack == Stack::Sq || serving == Serving::PerVolume {
            // In these designs the tag is taken at G, so the wait lies between Q and G.
            read.q2g.clone()
        } else {
            read.i2d.clone()
        };
        let most_ns = hold_ns / 2;
        let long: u64 = waited.buckets().filter(|(ns, _)| *ns > most_ns).map(|(_, n)| n).sum();
        assert_eq!(long, 28, "{case}");
        assert_eq!(stats.batches.iter().sum::<u64>(), stats.dispatches());
        assert_eq!((stats.requests(), stats.queued()), (32, 32), "{case}");
    }
}

#[test]
fn what_waits_for_nothing_is_in_no_queue() {
    let (disk, _) = disk(64, DiskConfig::default());
    let volume = Volume::single(Arc::clone(&disk)).unwrap();
    let mut channel =
        Channel::open(&volume, ChannelConfig::default()).expect("its queues are served");
    reads(&mut channel, 20, 0);
    drain(&mut channel);
    let stats = disk.stats();
    assert_adds_up(&stats, 20, "straight");
    let read = &stats.ops[Op::Read as usize];
    assert_eq!((read.q2g.sum_ns(), read.i2d.sum_ns()), (0, 0));
    assert!(read.g2i.sum_ns() > 0);
    // All 20 reads went out in one batch, counted in the bucket of 16 to 31.
    assert_eq!((stats.batches[4], stats.dispatches()), (1, 1));
    // A lone read is dispatched in a batch of its own.
    reads(&mut channel, 1, 0);
    drain(&mut channel);
    assert_eq!((disk.stats().batches[0], disk.stats().requests()), (1, 21));
}

#[test]
fn what_the_drive_was_busy_for_waited() {
    let (disk, knobs) = disk(64, DiskConfig::default());
    let volume = Volume::single(Arc::clone(&disk)).unwrap();
    let mut channel =
        Channel::open(&volume, ChannelConfig::default()).expect("its queues are served");
    knobs.busy.store(1, Ordering::SeqCst);
    reads(&mut channel, 1, 0);
    drain(&mut channel);
    assert_adds_up(&disk.stats(), 1, "busy");
    assert!(disk.stats().ops[Op::Read as usize].i2d.sum_ns() > 0);
}

/// Each thread reads the topology while it is pinned to a single CPU of the machine.
#[test]
fn threads_on_cpus_of_their_own_have_queues_of_their_own() {
    let cpus = Native::topology().cpus().to_vec();
    let mut drive = TestDrive::new(1 << 14);
    drive.queues = cpus.len() as u16;
    let disk = Disk::new(Box::new(drive), DiskConfig::default()).unwrap();
    let volume = Volume::single(Arc::clone(&disk)).unwrap();
    for (index, cpu) in cpus.iter().enumerate() {
        let volume = Arc::clone(&volume);
        let body = move || {
            let mut channel =
                Channel::open(&volume, ChannelConfig::default()).expect("its queues are served");
            reads(&mut channel, 1 + index as u64, 0);
            drain(&mut channel);
        };
        assert!(Native::spawn("pinned", Some(cpu.id), Box::new(body)).join());
    }
    let reads = |sums: &StatsSnapshot| sums.ops[Op::Read as usize].ios;
    let done: Vec<_> = disk.queue_stats().iter().map(|(q, sums)| (*q, reads(sums))).collect();
    let expected: Vec<_> = (0..).zip(1..=cpus.len() as u64).collect();
    assert_eq!(done, expected);
}

/// Threads that are not pinned may all be on one CPU when they come, and never again.
#[test]
fn channels_opened_on_a_cpu_get_own_queues_while_any_are_left() {
    let cpus = Native::topology().cpus().to_vec();
    let mut drive = TestDrive::new(1 << 14);
    drive.queues = cpus.len() as u16;
    let disk = Disk::new(Box::new(drive), DiskConfig::default()).unwrap();
    let volume = Volume::single(Arc::clone(&disk)).unwrap();
    let body = move || {
        let open = |_| Channel::open(&volume, ChannelConfig::default()).unwrap();
        let mut first: Vec<_> = cpus.iter().map(open).collect();
        let used = |disk: &Disk<Native>| disk.queue_stats().len();
        assert_eq!(used(&disk), cpus.len());
        // A channel that was dropped leaves its queue to the next one.
        let last = first.pop();
        drop(last);
        first.push(open(&cpus[0]));
        for channel in &mut first {
            reads(channel, 3, 0);
            drain(channel);
        }
        let done: Vec<_> = disk.queue_stats().iter().map(|(_, s)| s.ops[0].ios).collect();
        assert_eq!(done, vec![3; cpus.len()]);
    };
    assert!(Native::spawn("pinned", Some(CpuId(0)), Box::new(body)).join());
}

#[test]
fn tenants_are_counted_once_despite_splits_and_enders() {
    for serving in [Serving::Inline, Serving::PerDrive, Serving::PerVolume] {
        let cpu = Native::topology().cpus()[0].id;
        let place = || DiskConfig { worker: Some(cpu), ..DiskConfig::default() };
        let (a, knobs) = disk(64, place());
        let (b, _) = disk(64, place());
        let layout = Layout::Stripe { chunk_sectors: 8 };
        let config = ServingConfig { serving, plug_low: 1, ..ServingConfig::default() };
        let volume = Volume::with_serving("v", layout, vec![a, b], config).unwrap();
        let bell = Arc::new(Doorbell::new(NativeParker::new()));
        let mut worker = Worker::new(&IoThread { number: 0, owner: 9, bell, turn: None });
        if serving == Serving::PerDrive {
            volume.disks().iter().for_each(|disk| assert!(worker.serve(disk).unwrap()));
        }
        let mut channel =
            Channel::open(&volume, ChannelConfig::default()).expect("its queues are served");
        let mut finish = |channel: &mut Channel<Native>| {
            while channel.in_flight() > 0 {
                channel.poll(|_| ());
                worker.turn();
            }
        };
        reads(&mut channel, 10, 1);
        // Eight chunks: four on each drive.
        let long = || Bio::write(0, Buffer::new(64 * 512)).with_tenant(2);
        (0..3).for_each(|_| channel.submit(long()).unwrap());
        channel.submit(Bio::flush().with_tenant(2)).unwrap();
        finish(&mut channel);
        knobs.failing.store(true, Ordering::SeqCst);
        channel.submit(long()).unwrap();
        channel.submit(Bio::read(0, Buffer::new(512)).with_tenant(1)).unwrap();
        finish(&mut channel);
        let tenants = volume.tenants();
        let [(1, one), (2, two)] = &tenants[..] else { panic!("{serving:?} {tenants:?}") };
        let op = |of: &millrace_block::TenantSnapshot, op: Op| {
            let op = &of.ops[op as usize];
            assert_eq!(op.ios, op.total.count());
            (op.ios, op.sectors, op.errors)
        };
        assert_eq!(op(one, Op::Read), (11, 11, 1), "{serving:?}");
        assert_eq!(op(two, Op::Write), (4, 4 * 64, 1), "{serving:?}");
        assert_eq!(op(two, Op::Flush), (1, 0, 0), "{serving:?}");
        assert_eq!(volume.stats().ios(), 16, "{serving:?}");
        let by_drive: u64 = volume.disks().iter().map(|disk| disk.stats().ios()).sum();
        assert!(by_drive > 16, "{serving:?}");
    }
}

#[test]
fn who_ends_anothers_io_counts_it_as_the_others() {
    for stack in STACKS {
        let config = ControllerConfig {
            name: "hba".into(),
            tags: 4,
            sharing: Sharing::Controller,
            node: None,
        };
        let hba = Controller::new(config).unwrap();
        let on_it = || {
            let mut drive = TestDrive::new(1 << 12);
            (drive.queues, drive.tags) = (1, TagScope::PerQueue);
            let knobs = Arc::clone(&drive.knobs);
            let controller = Some(Arc::clone(&hba));
            let config = DiskConfig { baseline: stack.into(), controller, ..DiskConfig::default() };
            (Disk::new(Box::new(drive), config).unwrap(), knobs)
        };
        let ((a, knobs), (b, _)) = (on_it(), on_it());
        let open = |disk: &Arc<Disk<Native>>| {
            Channel::open(&Volume::single(Arc::clone(disk)).unwrap(), ChannelConfig::default())
                .expect("its queues are served")
        };
        let (mut to_a, mut to_b) = (open(&a), open(&b));
        knobs.held.store(true, Ordering::SeqCst);
        reads(&mut to_a, 4, 0);
        to_a.poll(|_| ());
        reads(&mut to_b, 6, 0);
        to_b.poll(|_| ());
        knobs.held.store(false, Ordering::SeqCst);
        // Its tags go to the other drive, whose queue is then run by this thread.
        drain(&mut to_a);
        drain(&mut to_b);
        for (disk, ios) in [(&a, 4), (&b, 6)] {
            assert_adds_up(&disk.stats(), ios, &format!("{stack:?}"));
            assert_eq!(disk.stats().in_flight(), 0, "{stack:?}");
        }
        assert_eq!(to_b.volume().stats().ios(), 6, "{stack:?}");
    }
}

#[test]
fn queues_are_those_of_the_drive_and_count_closed_channels() {
    let (disk, _) = disk(64, DiskConfig::default());
    let volume = Volume::single(Arc::clone(&disk)).unwrap();
    for turn in 0..20 {
        let mut channel =
            Channel::open(&volume, ChannelConfig::default()).expect("its queues are served");
        let mut status = None;
        channel.submit(Bio::read(turn, Buffer::new(512))).unwrap();
        channel.wait(1, |done| status = Some(done.status));
        assert_eq!(status, Some(Status::Ok));
    }
    let mut sum = StatsSnapshot::default();
    disk.queue_stats().iter().for_each(|(_, queue)| sum.merge(queue));
    assert_eq!(sum, disk.stats());
    assert_eq!((disk.stats().ios(), volume.stats().ios()), (20, 20));
}

#[test]
fn what_comes_after_a_write_in_stages_has_its_own_time() {
    let drives = (0..2).map(|_| disk(64, DiskConfig::default()).0).collect();
    let layout = Layout::Stripe { chunk_sectors: 8 };
    let volume = Volume::new("v", layout, drives).unwrap();
    let mut channel =
        Channel::open(&volume, ChannelConfig::default()).expect("its queues are served");
    // Parts on both drives, and a flush after them, which ends in a poll that submits nothing more.
    let durable = Bio::write(0, Buffer::new(16 * 512)).with_flags(OpFlags::FUA);
    channel.submit(durable).unwrap();
    drain(&mut channel);
    std::thread::sleep(std::time::Duration::from_millis(300));
    reads(&mut channel, 1, 0);
    drain(&mut channel);
    let read = &volume.stats().ops[Op::Read as usize];
    assert!((1..150_000_000).contains(&read.total.max_ns()), "{} ns", read.total.max_ns());
}

#[test]
fn sums_of_tenants_are_added_number_by_number() {
    let mut sum = TenantSnapshot::default();
    let mut other = TenantSnapshot::default();
    for (index, (one, two)) in sum.ops.iter_mut().zip(&mut other.ops).enumerate() {
        let n = index as u64;
        (one.ios, one.sectors, one.errors) = (n + 2, n + 3, n + 4);
        (two.ios, two.sectors, two.errors) = (n + 50, n + 60, n + 70);
        two.total.add(1000, 3);
    }
    sum.merge(&other);
    for (index, op) in sum.ops.iter().enumerate() {
        let n = index as u64;
        assert_eq!((op.ios, op.sectors, op.errors), (2 * n + 52, 2 * n + 63, 2 * n + 74));
        assert_eq!((op.total.count(), op.total.sum_ns()), (3, 3000));
    }
    assert_eq!(sum.ios(), 52 * 5 + 2 * (1 + 2 + 3 + 4));
}
