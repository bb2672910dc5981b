//! The bios that go to workers and those that do not, and a worker's reports on itself.
//!
//! The test's own thread runs the workers' turns, so that every step is seen: the bios that wait,
//! the requests that drives were given, which worker has work and until when it may sleep.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::{Knobs, TestDrive, thread_of};
use millrace_block::blktrace::EventCode;
use millrace_block::{
    Bio, BioChain, Buffer, ChainBatch, Channel, ChannelConfig, CompletedChain, Disk, DiskConfig,
    GroupId, IoThread, Layout, Leftover, Op, QueueKind, Reject, Scheduler, SchedulerPick, Serving,
    ServingConfig, Status, TagScope, TraceStamp, Tracer, Volume, Worker,
};
use millrace_machine::{Doorbell, Machine, Native, NativeParker, Parker};

const CHUNK: u64 = 8;

struct Rig {
    volume: Arc<Volume<Native>>,
    knobs: Vec<Arc<Knobs>>,
    workers: Vec<Worker<Native>>,
    channel: Channel<Native>,
}

fn bell() -> Arc<Doorbell<Native>> {
    Arc::new(Doorbell::new(NativeParker::new()))
}

fn open(volume: &Arc<Volume<Native>>) -> Channel<Native> {
    Channel::open(volume, ChannelConfig::default()).unwrap()
}

fn worker_of(disk: &Arc<Disk<Native>>, owner: u64) -> Worker<Native> {
    let thread = IoThread { number: 0, owner, bell: bell(), turn: None };
    let mut worker = Worker::new(&thread);
    assert!(worker.serve(disk).unwrap());
    worker
}

/// A place for a worker.
fn place() -> DiskConfig<Native> {
    DiskConfig { worker: Some(Native::topology().cpus()[0].id), ..DiskConfig::default() }
}

/// A stripe of drives, of which the first `workers` have a worker.
fn rig_of(
    drives: Vec<TestDrive>,
    workers: usize,
    serving: ServingConfig,
    config: &DiskConfig<Native>,
) -> Rig {
    let knobs = drives.iter().map(|drive| Arc::clone(&drive.knobs)).collect();
    let disks = drives.into_iter().map(|drive| Disk::new(Box::new(drive), config.clone()).unwrap());
    let layout = Layout::Stripe { chunk_sectors: CHUNK as u32 };
    let volume = Volume::with_serving("v", layout, disks.collect(), serving).unwrap();
    let served = (1..).zip(&volume.disks()[..workers]);
    let workers = served.map(|(owner, disk)| worker_of(disk, owner)).collect();
    Rig { channel: open(&volume), volume, knobs, workers }
}

fn rig(drives: usize, workers: usize, serving: ServingConfig) -> Rig {
    let drives = (0..drives).map(|_| TestDrive::new(4096)).collect();
    rig_of(drives, workers, serving, &place())
}

fn per_drive(plug_low: u32, plug_high: u32) -> ServingConfig {
    ServingConfig { plug_low, plug_high, ..ServingConfig::of(Serving::PerDrive) }
}

impl Rig {
    /// The `n`th read of a drive, no neighbour of any other.
    fn read(&self, drive: usize, n: u64) -> Bio {
        let drives = self.volume.disks().len() as u64;
        Bio::read((2 * n * drives + drive as u64) * CHUNK, Buffer::new(512))
    }

    /// Submits `bios` reads to a drive.
    fn submit(&mut self, drive: usize, bios: u64) {
        for n in 0..bios {
            let bio = self.read(drive, n);
            self.channel.submit(bio).map_err(|refused| refused.reason).unwrap();
        }
    }

    fn hold(&self, held: bool) {
        self.knobs.iter().for_each(|knobs| knobs.held.store(held, Ordering::SeqCst));
    }

    /// Reads that each drive was given.
    fn given(&self) -> Vec<usize> {
        self.knobs.iter().map(|knobs| knobs.given(Op::Read).len()).collect()
    }

    fn turn(&mut self) {
        self.workers.iter_mut().for_each(Worker::turn);
    }

    /// Number of bios completed since the last call.
    fn poll(&mut self) -> usize {
        self.channel.poll(|done| assert_eq!(done.status, Status::Ok))
    }
}

#[test]
fn workers_get_batches_from_low_to_high_watermarks() {
    for (bios, handed) in [(1, false), (11, false), (12, true), (23, true)] {
        let mut rig = rig(3, 3, per_drive(4, 8));
        rig.submit(1, bios);
        assert_eq!((rig.volume.waiting(), rig.given()), (0, vec![0; 3]), "{bios} are plugged");
        rig.channel.flush();
        let (waiting, given) = if handed { (bios, 0) } else { (0, bios as usize) };
        assert_eq!((rig.volume.waiting(), rig.given()), (waiting, vec![0, given, 0]), "{bios}");
        rig.turn();
        assert_eq!((rig.poll(), rig.given()[1]), (bios as usize, bios as usize));
    }
    let mut rig = rig(3, 3, per_drive(4, 8));
    rig.submit(2, 24);
    assert_eq!((rig.volume.waiting(), rig.given()), (24, vec![0; 3]), "plugs are full");
    rig.turn();
    assert_eq!((rig.poll(), rig.volume.waiting()), (24, 0));
    assert_eq!((rig.volume.disks()[2].stats().queued(), rig.channel.in_flight()), (24, 0));
}

#[test]
fn drive_without_worker_and_single_drive_volume_use_submitters() {
    let mut two = rig(2, 1, per_drive(1, 64));
    two.submit(0, 3);
    two.submit(1, 4);
    two.channel.flush();
    assert_eq!((two.volume.waiting(), two.given()), (3, vec![0, 4]));
    assert_eq!(two.poll(), 4);
    two.turn();
    assert_eq!(two.poll(), 3);
    for serving in [Serving::PerDrive, Serving::Auto] {
        let config = ServingConfig { plug_low: 1, ..ServingConfig::of(serving) };
        let mut one = rig(1, 1, config);
        // Long enough for `auto` to have tried the workers.
        let end_ns = Native::now() + 5_000_000;
        for round in 0.. {
            one.submit(0, 8);
            one.channel.flush();
            assert_eq!(one.volume.waiting(), 0, "{serving:?}");
            assert_eq!(one.poll(), 8);
            if round > 40 && Native::now() > end_ns {
                break;
            }
        }
    }
}

#[test]
fn auto_tries_submitters_and_workers_and_skips_small_batches() {
    let config = ServingConfig { plug_low: 2, ..ServingConfig::of(Serving::Auto) };
    let mut rig = rig(2, 2, config);
    let mut batches = 0;
    loop {
        (0..2).for_each(|drive| rig.submit(drive, 4));
        rig.channel.flush();
        if rig.volume.waiting() > 0 {
            break;
        }
        assert_eq!(rig.poll(), 8);
        batches += 1;
    }
    // Four to settle and eight to measure, at least.
    assert!(batches >= 11, "{batches}");
    rig.turn();
    assert_eq!(rig.poll(), 8);
    // Below the low watermark: three bios for two drives.
    rig.submit(0, 3);
    rig.channel.flush();
    assert_eq!(rig.volume.waiting(), 0);
    assert_eq!(rig.poll(), 3);
}

#[test]
fn handed_work_is_left_to_the_worker_while_it_is_there() {
    let mut rig = rig(2, 2, per_drive(1, 64));
    rig.submit(0, 3);
    rig.submit(1, 3);
    rig.channel.flush();
    for _ in 0..20 {
        assert_eq!(rig.poll(), 0);
        assert!(!rig.channel.has_work());
    }
    assert_eq!((rig.volume.waiting(), rig.given()), (6, vec![0, 0]));
    rig.workers[0].turn();
    assert!(rig.channel.has_work(), "three are back");
    assert_eq!((rig.poll(), rig.volume.waiting()), (3, 3));
    rig.workers[1].close();
    assert!(rig.channel.has_work(), "three were left behind");
    let mut other = open(&rig.volume);
    assert!(!other.has_work(), "none of them its own");
    assert_eq!((other.poll(|_| ()), rig.given()), (0, vec![3, 0]));
    assert_eq!((rig.poll(), rig.given()), (3, vec![3, 3]));
    assert!(!rig.channel.has_work());
}

#[test]
fn small_batch_held_by_a_worker_is_found_by_its_submitter() {
    let mut rig = rig(2, 2, per_drive(16, 64));
    rig.hold(true);
    rig.submit(0, 2);
    assert_eq!((rig.poll(), rig.given()), (0, vec![2, 0]));
    rig.turn();
    assert_eq!(rig.poll(), 0);
    rig.hold(false);
    rig.turn();
    assert_eq!(rig.poll(), 2);
}

#[test]
fn back_pressure_begins_above_high_point_and_ends_at_low_one() {
    // Two drives: 12 and 6.
    let points = ServingConfig { pressure_high: 6, pressure_low: 3, ..per_drive(1, 64) };
    for bios in 1..16 {
        let mut rig = rig(2, 2, points);
        rig.submit(0, bios);
        rig.channel.flush();
        let refused = rig.channel.submit(rig.read(1, 0)).map_err(|refused| refused.reason);
        assert_eq!(refused, if bios <= 12 { Ok(()) } else { Err(Reject::Full) }, "{bios}");
        rig.turn();
        rig.channel.flush();
        rig.turn();
        assert_eq!(rig.poll() as u64, bios + u64::from(bios <= 12));
    }
    for left in 1..10 {
        let mut rig = rig(2, 2, points);
        rig.submit(0, left);
        rig.submit(1, 20);
        rig.channel.flush();
        assert_eq!(rig.volume.waiting(), 20 + left);
        assert_eq!(rig.channel.submit(rig.read(1, 0)).unwrap_err().reason, Reject::Full);
        rig.workers[1].turn();
        assert_eq!(rig.volume.waiting(), left);
        for _ in 0..2 {
            let refused = rig.channel.submit(rig.read(1, 0)).map_err(|refused| refused.reason);
            assert_eq!(refused, if left <= 6 { Ok(()) } else { Err(Reject::Full) }, "{left}");
        }
        rig.turn();
        let (mut back, expected) = (0, 20 + left as usize + if left <= 6 { 2 } else { 0 });
        while back < expected {
            back += rig.poll();
            rig.turn();
        }
        assert_eq!((back, rig.channel.in_flight()), (expected, 0));
    }
}

#[test]
fn who_submits_and_waits_is_let_in_and_gets_what_ends_meanwhile() {
    let drive = || TestDrive { depth: 4, ..TestDrive::new(4096) };
    let points = ServingConfig { pressure_high: 2, pressure_low: 1, ..per_drive(1, 2) };
    let mut rig = rig_of(vec![drive(), drive()], 0, points, &place());
    let mut back = 0;
    for n in 0..600 {
        let bio = rig.read(n as usize % 2, n % 200);
        rig.channel.submit_wait(bio, |done| back += usize::from(done.status.is_ok())).unwrap();
    }
    let outside = Bio::read(1 << 20, Buffer::new(512)).with_user_data(9);
    let refused = rig.channel.submit_wait(outside, |_| back += 1).unwrap_err();
    assert_eq!(refused.reason, Reject::Invalid(Status::OutOfRange));
    assert_eq!(refused.bio.user_data(), 9);
    rig.channel.wait(usize::MAX, |_| back += 1);
    assert_eq!(back, 600);
}

#[test]
fn worker_sleeps_unlimited_only_after_it_looked_at_idle_drives() {
    let mut rig = rig(2, 2, per_drive(1, 64));
    let idle = |rig: &Rig| rig.workers.iter().all(|w| !w.has_work() && w.sleep_until().is_none());
    assert!(idle(&rig), "nothing was ever there");
    rig.turn();
    assert!(idle(&rig));
    rig.hold(true);
    rig.submit(0, 3);
    rig.channel.flush();
    assert_eq!(rig.workers.iter().map(Worker::has_work).collect::<Vec<_>>(), [true, false]);
    rig.turn();
    assert_eq!((rig.given(), rig.volume.waiting()), (vec![3, 0], 0));
    assert!(!rig.workers[0].has_work() && rig.workers[0].sleep_until().is_some());
    assert!(!rig.workers[1].has_work() && rig.workers[1].sleep_until().is_none());
    rig.hold(false);
    rig.turn();
    assert_eq!(rig.poll(), 3);
    assert!(idle(&rig));
}

#[test]
fn worker_looks_once_after_another_left_something_in_its_queue() {
    let drive = || TestDrive { queues: 1, ..TestDrive::new(4096) };
    let mut rig = rig_of(vec![drive(), drive()], 2, per_drive(4, 64), &place());
    rig.hold(true);
    rig.submit(0, 8);
    rig.channel.flush();
    assert_eq!(rig.volume.waiting(), 8);
    // The batch is too small for the worker; its submitter also dispatches the requests that it
    // finds.
    rig.submit(0, 1);
    rig.channel.flush();
    assert_eq!((rig.volume.waiting(), rig.workers[0].has_work()), (0, true));
    rig.turn();
    assert!(!rig.workers[0].has_work(), "it has looked");
    rig.hold(false);
    rig.turn();
    assert_eq!(rig.poll(), 9);
}

#[test]
fn look_for_what_no_drive_answers_comes_every_tenth_of_second() {
    const TICK_NS: u64 = 100_000_000;
    let mut rig = rig(2, 1, per_drive(1, 64));
    rig.hold(true);
    rig.submit(0, 1);
    rig.channel.flush();
    let before_ns = Native::now();
    rig.turn();
    let after_ns = Native::now();
    let due_ns = rig.workers[0].sleep_until().expect("one is out");
    assert!((before_ns + TICK_NS..=after_ns + TICK_NS).contains(&due_ns));
    // Not at every turn.
    rig.turn();
    assert!(Native::now() >= due_ns || rig.workers[0].sleep_until() == Some(due_ns));
    rig.hold(false);
    rig.turn();
    assert_eq!((rig.poll(), rig.workers[0].sleep_until()), (1, None));
}

#[test]
fn unanswered_requests_time_out_with_and_without_a_worker() {
    for gone in [false, true] {
        let config = DiskConfig { timeout: Duration::from_millis(2), ..place() };
        let drives = vec![TestDrive::new(4096), TestDrive::new(4096)];
        let mut rig = rig_of(drives, 1, per_drive(1, 64), &config);
        rig.hold(true);
        rig.submit(0, 2);
        rig.channel.flush();
        rig.turn();
        assert_eq!(rig.given(), [2, 0]);
        if gone {
            rig.workers.clear();
        }
        let mut statuses = Vec::new();
        while statuses.len() < 2 {
            rig.turn();
            rig.channel.poll(|done| statuses.push(done.status));
            if gone {
                rig.channel.tick();
            }
        }
        assert_eq!((statuses, rig.channel.quarantined_bios()), (vec![Status::TimedOut; 2], 2));
        assert_eq!(rig.volume.disks()[0].stats().timeouts(), 2);
        rig.hold(false);
        // Nothing is in flight: the memory is looked after all the same.
        while rig.channel.quarantined_bios() > 0 {
            rig.turn();
            assert_eq!(rig.poll(), 0);
            rig.channel.tick();
        }
        assert_eq!(rig.volume.disks()[0].tags_in_use(), 0);
    }
}

/// Two drives with a worker each, in a volume of a thread that has queues of its own if they have
/// to have an owner.
fn rig_with_owner(kind: QueueKind, drive: impl Fn() -> TestDrive) -> Rig {
    let config = DiskConfig { io_threads: 1, ..place() };
    let layout = Layout::Stripe { chunk_sectors: CHUNK as u32 };
    let drives = [drive(), drive()].map(|drive| TestDrive { kind, ..drive });
    let knobs: Vec<_> = drives.iter().map(|drive| Arc::clone(&drive.knobs)).collect();
    let disks: Vec<_> =
        drives.map(|drive| Disk::new(Box::new(drive), config.clone()).unwrap()).into();
    let volume = Volume::with_serving("v", layout, disks, per_drive(1, 64)).unwrap();
    let mine = bell();
    if kind == QueueKind::OwnerOnly {
        volume.disks().iter().for_each(|disk| disk.bring_up(0, &thread_of(1, &mine)).unwrap());
    }
    let thread = Some(IoThread { number: 0, owner: 1, bell: mine, turn: None });
    let config = ChannelConfig { thread, ..ChannelConfig::default() };
    let channel = Channel::open(&volume, config).unwrap();
    let workers = (2..).zip(volume.disks()).map(|(owner, disk)| worker_of(disk, owner));
    let workers = workers.collect();
    Rig { volume, knobs, workers, channel }
}

#[test]
fn leaving_worker_finishes_only_its_own_and_leaves_the_rest() {
    for kind in [QueueKind::AnyThread, QueueKind::OwnerOnly] {
        let mut rig = rig_with_owner(kind, || TestDrive::new(4096));
        rig.hold(true);
        rig.submit(0, 2);
        rig.channel.flush();
        rig.turn();
        assert_eq!(rig.given(), [2, 0], "{kind:?}");
        rig.submit(0, 2);
        rig.channel.flush();
        assert_eq!(rig.volume.waiting(), 2, "{kind:?}");
        rig.workers.iter_mut().for_each(Worker::close);
        let shared = kind == QueueKind::AnyThread;
        let idle: Vec<bool> = rig.workers.iter().map(Worker::is_idle).collect();
        assert_eq!(idle, [shared, true], "{kind:?}");
        rig.hold(false);
        rig.workers.clear();
        let given = if shared { 2 } else { 4 };
        assert_eq!(rig.given(), [given, 0], "{kind:?}: while it polls it takes more");
        let mut back = 0;
        while back < 4 {
            back += rig.poll();
        }
        assert_eq!((back, rig.volume.waiting()), (4, 0), "{kind:?}");
        assert_eq!(rig.volume.disks()[0].tags_in_use(), 0, "{kind:?}");
    }
}

/// First come, first served; counts chains that it named and that it has heard of since.
struct Counting {
    chains: VecDeque<BioChain<Native>>,
    counts: Arc<[AtomicU32; 3]>,
}

impl Scheduler<Native> for Counting {
    fn insert(&mut self, batch: &mut ChainBatch<'_, Native>) {
        self.chains.extend(batch);
    }
    fn next(&mut self, _: u64) -> SchedulerPick<Native> {
        let next = self.chains.pop_front();
        self.counts[0].fetch_add(next.is_some().into(), Ordering::SeqCst);
        next.map_or(SchedulerPick::Nothing, SchedulerPick::Chain)
    }
    fn completed(&mut self, done: &CompletedChain) {
        let heard = if done.status.is_some() { 1 } else { 2 };
        self.counts[heard].fetch_add(1, Ordering::SeqCst);
    }
    fn pass(&mut self, _: GroupId, _: u64) -> bool {
        false
    }
    fn drain(&mut self, left: &mut Leftover<Native>) {
        self.chains.drain(..).for_each(|chain| left.push(chain));
    }
}

#[test]
fn scheduler_hears_of_chains_that_no_drive_ever_had() {
    // A drive that is too busy, and one whose only tag another queue has.
    for busy in [true, false] {
        let tags = if busy { TagScope::PerQueue } else { TagScope::PerDrive };
        let mut rig = rig_with_owner(QueueKind::OwnerOnly, || TestDrive {
            depth: 1,
            tags,
            ..TestDrive::new(4096)
        });
        let counts = Arc::<[AtomicU32; 3]>::default();
        let disk = Arc::clone(&rig.volume.disks()[0]);
        let scheduler =
            |_| Box::new(Counting { chains: VecDeque::new(), counts: Arc::clone(&counts) }) as _;
        disk.set_own_scheduler(scheduler).unwrap();
        let heard = || [0, 1, 2].map(|at| counts[at].load(Ordering::SeqCst));
        rig.hold(true);
        let single = Volume::single(Arc::clone(&disk)).unwrap();
        let thread = IoThread { number: 0, owner: 1, bell: bell(), turn: None };
        let config = ChannelConfig { thread: Some(thread), ..ChannelConfig::default() };
        let mut other = Channel::open(&single, config).unwrap();
        other.submit(Bio::read(64, Buffer::new(512))).map_err(|r| r.reason).unwrap();
        other.flush();
        assert_eq!(heard(), [1, 0, 0], "the drive has it");
        rig.knobs[0].busy.store(if busy { u32::MAX } else { 0 }, Ordering::SeqCst);
        rig.submit(0, 3);
        rig.channel.flush();
        rig.turn();
        assert_eq!(heard(), [2, 0, 0], "busy: {busy}");
        rig.workers.clear();
        assert_eq!(heard(), [2, 0, 1], "busy: {busy}");
        rig.knobs[0].busy.store(0, Ordering::SeqCst);
        rig.hold(false);
        assert_eq!(other.wait(1, |done| assert_eq!(done.status, Status::Ok)), 1);
        let mut back = 0;
        while back < 3 {
            back += rig.poll();
        }
        assert_eq!(heard(), [5, 4, 1], "busy: {busy}");
    }
}

#[test]
fn waiting_flush_is_found_where_the_other_comes_back() {
    let drives = || vec![TestDrive::new(4096), TestDrive::new(4096)];
    // In a queue of both channels, in one of each, and there before it could join.
    for (io_threads, early) in [(0, false), (4, false), (4, true)] {
        let config = DiskConfig { io_threads, ..place() };
        let mut rig = rig_of(drives(), 2, per_drive(16, 64), &config);
        let mut second = open(&rig.volume);
        rig.hold(true);
        let flushes = |rig: &Rig| rig.knobs.iter().map(|k| k.given(Op::Flush).len()).sum::<usize>();
        if early {
            rig.volume.disks().iter().for_each(|disk| disk.quiesce());
            second.submit(Bio::flush()).unwrap();
            assert_eq!((second.poll(|_| ()), flushes(&rig)), (0, 0));
            rig.volume.disks().iter().for_each(|disk| disk.unquiesce());
        }
        rig.channel.submit(Bio::flush()).unwrap();
        for _ in 0..3 {
            assert_eq!(rig.poll(), 0);
            rig.turn();
        }
        if !early {
            second.submit(Bio::flush()).unwrap();
        }
        for _ in 0..10 {
            assert_eq!(second.poll(|_| ()), 0);
            rig.turn();
        }
        assert_eq!(flushes(&rig), 2, "one on each drive; the others wait");
        // The first flush ends. The flushes that waited for it go to the drives, which hold them in
        // turn.
        rig.knobs.iter().for_each(|knobs| knobs.let_go.store(1, Ordering::SeqCst));
        let mut one = 0;
        for _ in 0..20 {
            rig.turn();
            one += rig.poll();
            assert_eq!(second.poll(|_| ()), 0);
        }
        assert_eq!((one, flushes(&rig)), (1, 4));
        rig.hold(false);
        let two: usize =
            (0..20).map(|_| second.poll(|done| assert_eq!(done.status, Status::Ok))).sum();
        assert_eq!(two, 1);
    }
}

#[test]
fn channel_has_work_if_its_marked_queue_is_its_alone() {
    for config in [place(), DiskConfig::default()] {
        let drives = vec![TestDrive::new(4096), TestDrive::new(4096)];
        let mut rig = rig_of(drives, 0, ServingConfig::of(Serving::Inline), &config);
        let other = open(&rig.volume);
        rig.volume.disks().iter().for_each(|disk| disk.quiesce());
        rig.submit(0, 2);
        assert_eq!((rig.poll(), rig.channel.has_work()), (0, false));
        rig.volume.disks().iter().for_each(|disk| disk.unquiesce());
        assert!(rig.channel.has_work() && !other.has_work());
        assert_eq!((rig.poll(), rig.channel.has_work()), (2, false));
    }
}

#[test]
fn merges_in_a_plug_are_counted_and_spread_by_one_list() {
    for (serving, unplugs) in [(Serving::Inline, [1, 2]), (Serving::PerVolume, [1, 2])] {
        let tracer = Tracer::new(1 << 12);
        let config = DiskConfig { tracer: Some(Arc::clone(&tracer)), ..DiskConfig::default() };
        let drives = vec![TestDrive::new(4096), TestDrive::new(4096)];
        let mut rig = rig_of(drives, 0, ServingConfig::of(serving), &config);
        assert!(tracer.start(TraceStamp::Batch) && rig.volume.set_traced(true));
        // The first one is not recorded before the channel has looked.
        assert_eq!(rig.poll(), 0);
        rig.submit(1, 1);
        assert_eq!(rig.poll(), 1);
        tracer.drain(|_, _| ());
        rig.submit(0, 1);
        rig.submit(1, 2);
        // A neighbour of the last.
        let next = Bio::read((2 * 2 + 1) * CHUNK + 1, Buffer::new(512));
        rig.channel.submit(next).unwrap();
        assert_eq!(rig.poll(), 4);
        let merges: Vec<u64> =
            rig.volume.disks().iter().map(|disk| disk.stats().ops[0].merges).collect();
        assert_eq!(merges, [0, 1], "{serving:?}");
        let mut found = Vec::new();
        tracer.drain(|_, entries| {
            let acts = entries.iter().map(|e| (EventCode::from_code(e.action & 0xffff), e.sector));
            found.extend(acts.filter(|(act, _)| *act == Some(EventCode::Unplug)).map(|(_, n)| n));
        });
        found.sort_unstable();
        assert_eq!(found, unplugs, "{serving:?}");
    }
}

#[test]
fn batch_is_unplugged_once_despite_a_frozen_drive() {
    for (workers, serving) in
        [(2, per_drive(1, 64)), (0, per_drive(1, 64)), (0, ServingConfig::of(Serving::Inline))]
    {
        let tracer = Tracer::new(1 << 12);
        let config = DiskConfig { tracer: Some(Arc::clone(&tracer)), ..place() };
        let drives = vec![TestDrive::new(4096), TestDrive::new(4096)];
        let mut rig = rig_of(drives, workers, serving, &config);
        assert!(tracer.start(TraceStamp::Batch) && rig.volume.set_traced(true));
        rig.volume.disks()[0].freeze();
        rig.submit(0, 3);
        rig.submit(1, 2);
        rig.channel.flush();
        for _ in 0..5 {
            rig.turn();
            rig.poll();
            assert_eq!((rig.given()[0], rig.channel.in_flight()), (0, 3));
            let soon_ns = rig.channel.sleep_until().expect("it looks again soon");
            assert!(soon_ns <= Native::now() + 1_000_000);
        }
        rig.volume.disks()[0].unfreeze();
        rig.channel.flush();
        rig.turn();
        assert_eq!((rig.poll(), rig.given()), (3, vec![3, 2]));
        rig.turn();
        let mut events = Vec::new();
        assert_eq!(tracer.drain(|_, entries| events.extend_from_slice(entries)).dropped, 0);
        let count = |act: EventCode| {
            let of = |entry: &&millrace_block::TraceEntry| {
                EventCode::from_code(entry.action & 0xffff) == Some(act)
            };
            let found: Vec<u64> = events.iter().filter(of).map(|entry| entry.sector).collect();
            found
        };
        // With how many each drive's began.
        let mut unplugs = count(EventCode::Unplug);
        unplugs.sort_unstable();
        assert_eq!(unplugs, [2, 3], "{workers} workers");
        for act in [
            EventCode::Queue,
            EventCode::GetRequest,
            EventCode::Insert,
            EventCode::Issue,
            EventCode::Complete,
        ] {
            assert_eq!(count(act).len(), 5, "{workers} workers: {act:?}");
        }
    }
}

#[test]
fn a_channel_polls_only_where_it_has_something_out() {
    for queues in [1, 64] {
        let drive = || TestDrive { queues, ..TestDrive::new(4096) };
        let serving = ServingConfig::of(Serving::Inline);
        let mut rig = rig_of(vec![drive(), drive()], 0, serving, &place());
        let mut other = open(&rig.volume);
        rig.hold(true);
        rig.submit(0, 2);
        assert_eq!(rig.poll(), 0);
        rig.hold(false);
        (0..10).for_each(|_| assert_eq!(other.poll(|_| ()), 0));
        assert!(!rig.channel.has_work(), "nobody has brought them home");
        assert_eq!(rig.poll(), 2);
    }
}
