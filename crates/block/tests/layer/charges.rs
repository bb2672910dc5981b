//! Virtual CPU time charged for an I/O on the simulated machine, the queues that it takes there,
//! and natively the counts of its locks.
//!
//! Runs the same few bios on one CPU with a stage that costs nothing and with one that costs a few
//! microseconds; the difference of the virtual times says how often the stage was charged for.

use std::sync::{Arc, Mutex};

use crate::alone;
use crate::support::{TestDrive, run};
use millrace_block::baseline::Stack;
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, CompletionBatch, Disk, DiskConfig, Dispatch, Driver,
    DriverQueue, Error, Expired, Features, HwQueues, IoThread, Layout, QueueKind, QueueLimits,
    Request, Sector, Serving, ServingConfig, Spread, Stamp, Status, Tag, TagScope, Volume, Worker,
};
use millrace_machine::{
    CpuId, Doorbell, LockMeter, LockRow, Machine, Native, NativeParker, Parker, Stage, Thread,
    Topology,
};
use millrace_simulator::{Model, Simulated, Simulation};

/// Answers at once, and notes which queues were used.
#[derive(Default)]
struct Null(Arc<Mutex<Vec<u16>>>);

impl Driver<Simulated> for Null {
    fn capacity(&self) -> Sector {
        1 << 20
    }
    fn limits(&self) -> QueueLimits {
        let features = Features { volatile_cache: true, ..Features::default() };
        QueueLimits { features, ..QueueLimits::default() }
    }
    fn hw_queues(&self, _: &Topology) -> HwQueues {
        HwQueues { count: 8, depth: 64, kind: QueueKind::AnyThread, tags: TagScope::PerQueue }
    }
    fn open_queue(&self, index: u16, _: u32) -> Result<Box<dyn DriverQueue<Simulated>>, Error> {
        Ok(Box::new(NullQueue { index, used: Arc::clone(&self.0), inside: Vec::new() }))
    }
}

struct NullQueue {
    index: u16,
    used: Arc<Mutex<Vec<u16>>>,
    inside: Vec<Tag>,
}

impl DriverQueue<Simulated> for NullQueue {
    fn queue_rq(&mut self, rq: &Request<Simulated>) -> Dispatch {
        self.used.lock().unwrap().push(self.index);
        self.inside.push(rq.tag());
        Dispatch::Queued
    }
    fn commit_rqs(&mut self) {}
    fn poll(&mut self, batch: &mut CompletionBatch) {
        self.inside.drain(..).for_each(|tag| batch.push(tag, Status::Ok));
    }
    fn timeout(&mut self, _: Tag) -> Expired {
        Expired::Extend
    }
}

/// Settings under which a batch of bios is served.
#[derive(Debug, Clone, Copy)]
struct Design {
    stack: Stack,
    stamp: Stamp,
    software_queues: Spread,
    serving: Serving,
    bytes: usize,
}

impl Design {
    const USUAL: Design = Design {
        stack: Stack::Mq,
        stamp: Stamp::Batch,
        software_queues: Spread::Core,
        serving: Serving::Inline,
        bytes: 512,
    };

    /// Two drives in chunks of 8 sectors, one hardware queue each.
    fn volume(self) -> Arc<Volume<Simulated>> {
        let config = DiskConfig {
            baseline: self.stack.into(),
            software_queues: self.software_queues,
            hardware_queues: Spread::One,
            worker: (self.serving == Serving::PerDrive).then_some(CpuId(0)),
            ..DiskConfig::default()
        };
        let disk = || Disk::new(Box::<Null>::default(), config.clone()).unwrap();
        let serving = ServingConfig { plug_low: 1, ..ServingConfig::of(self.serving) };
        let layout = Layout::Stripe { chunk_sectors: 8 };
        Volume::with_serving("v", layout, vec![disk(), disk()], serving).unwrap()
    }
}

/// Virtual time of a batch of bios for the first drive: reads of these chunks, or a flush of both
/// drives if there is none. Its worker, if it has one, runs on the thread that submits.
fn elapsed_ns(model: &Model, design: Design, chunks: &[u64]) -> u64 {
    let (elapsed_ns, chunks) = (Arc::new(Mutex::new(0)), chunks.to_vec());
    let result = Arc::clone(&elapsed_ns);
    let main = move || {
        let volume = design.volume();
        let bell = Arc::new(Doorbell::new(<Simulated as Machine>::Parker::new()));
        let mut worker = Worker::new(&IoThread { number: 0, owner: 1, bell, turn: None });
        let has_worker = worker.serve(&volume.disks()[0]).unwrap();
        assert_eq!(has_worker, design.serving == Serving::PerDrive);
        let config = ChannelConfig { stamp: design.stamp, ..ChannelConfig::default() };
        let mut channel = Channel::open(&volume, config).unwrap();
        let start_ns = Simulated::now();
        for chunk in &chunks {
            channel.submit(Bio::read(chunk * 16, Buffer::new(design.bytes))).unwrap();
        }
        if chunks.is_empty() {
            channel.submit(Bio::flush()).unwrap();
        }
        channel.flush();
        worker.turn();
        channel.wait(usize::MAX, |done| assert_eq!(done.status, Status::Ok));
        *elapsed_ns.lock().unwrap() = Simulated::now() - start_ns;
    };
    let simulation = Simulation::new(model, 1).unwrap();
    simulation.time_limit_ns(1_000_000_000).run(main).unwrap();
    *result.lock().unwrap()
}

/// Number of charges for submission, insertion, dispatch, driver, completion and search.
fn charges(design: Design, chunks: &[u64]) -> [u64; 6] {
    let with = |stage: Option<Stage>| {
        let mut model = Model::plain(1, 2);
        model.work.jitter.share = 0.0;
        let work = &mut model.work;
        for (cost, of) in [
            (&mut work.submit, Stage::Submit),
            (&mut work.insert, Stage::Insert),
            (&mut work.dispatch, Stage::Dispatch),
            (&mut work.driver, Stage::Driver),
            (&mut work.complete, Stage::Complete),
            (&mut work.search, Stage::Search),
        ] {
            cost.ns = if stage == Some(of) { 10_000.0 } else { 0.0 };
        }
        elapsed_ns(&model, design, chunks)
    };
    let none_ns = with(None);
    [Stage::Submit, Stage::Insert, Stage::Dispatch, Stage::Driver, Stage::Complete, Stage::Search]
        .map(|stage| (with(Some(stage)) - none_ns + 5_000) / 10_000)
}

#[test]
fn each_stage_of_a_design_is_charged_once_for_each_io() {
    for software_queues in [Spread::Core, Spread::One] {
        for reads in [1, 2, 7] {
            for stamp in [Stamp::Batch, Stamp::Io] {
                // The reads go to every other chunk.
                let chunks: Vec<u64> = (0..reads).map(|n| n * 2).collect();
                let design = |stack| Design { stack, stamp, software_queues, ..Design::USUAL };
                let charged = |stack| charges(design(stack), &chunks);
                let case = format!("{reads} reads, {software_queues:?}, {stamp:?}");
                let each = [reads, reads, reads, reads, reads, 0];
                assert_eq!(charged(Stack::Mq), each, "{case}");
                assert_eq!(charged(Stack::Sq), each, "{case}");
                // Past the queues.
                assert_eq!(charged(Stack::Raw), [0, 0, 0, reads, reads, 0], "{case}");
            }
        }
    }
}

#[test]
fn single_queue_is_charged_for_each_bio_merged_in_its_plug() {
    // Each read fills its chunk, so the drive sees one after the other.
    let design = Design { stack: Stack::Sq, bytes: 4096, ..Design::USUAL };
    assert_eq!(charges(design, &[0, 1, 2, 3]), [4, 1, 1, 1, 1, 0]);
    assert_eq!(charges(design, &[0, 1, 4, 5, 8]), [5, 3, 3, 3, 3, 0]);
}

/// Longest time from Q to G of `reads` reads under `sq` without contention, each of which takes 10
/// us to submit.
fn longest_q2g_ns(stamp: Stamp, reads: u64) -> u64 {
    let longest_ns = Arc::new(Mutex::new(0));
    let result = Arc::clone(&longest_ns);
    let mut model = Model::plain(1, 2);
    model.work.jitter.share = 0.0;
    model.work.submit.ns = 10_000.0;
    let main = move || {
        let volume = Design { stack: Stack::Sq, stamp, ..Design::USUAL }.volume();
        let config = ChannelConfig { stamp, ..ChannelConfig::default() };
        let mut channel = Channel::open(&volume, config).unwrap();
        for n in 0..reads {
            channel.submit(Bio::read(n * 32, Buffer::new(512))).unwrap();
        }
        channel.flush();
        channel.wait(usize::MAX, |done| assert_eq!(done.status, Status::Ok));
        let stats = volume.disks()[0].stats();
        *longest_ns.lock().unwrap() = stats.ops.iter().map(|op| op.q2g.max_ns()).max().unwrap();
    };
    Simulation::new(&model, 1).unwrap().time_limit_ns(1_000_000_000).run(main).unwrap();
    *result.lock().unwrap()
}

#[test]
fn later_bios_of_a_batch_get_their_requests_later() {
    let is_about = |ns: u64, expected_ns: u64| ns.abs_diff(expected_ns) < expected_ns / 4;
    // The fourth comes behind the work for three.
    let each_ns = longest_q2g_ns(Stamp::Io, 4);
    assert!(is_about(each_ns, 30_000), "{each_ns}");
    // A batch has one Q time. Bios that do not fit into its plug of sixteen have another.
    let batch_ns = longest_q2g_ns(Stamp::Batch, 16);
    assert!(batch_ns < 5_000, "{batch_ns}");
    let long_ns = longest_q2g_ns(Stamp::Batch, 20);
    assert!(is_about(long_ns, 160_000), "{long_ns}");
}

#[test]
fn worker_looks_at_each_chain_of_a_sorted_batch_once() {
    let design = Design { serving: Serving::PerDrive, ..Design::USUAL };
    let sorted: Vec<u64> = (0..8).map(|n| n * 2).collect();
    let reversed: Vec<u64> = sorted.iter().rev().copied().collect();
    // Four pairs take a look each, two fours two, and the eight four.
    for (chunks, looks) in [(&sorted[..1], 1), (&sorted[..2], 2), (&sorted, 8), (&reversed, 12)] {
        let ios = chunks.len() as u64;
        assert_eq!(charges(design, chunks), [ios, ios, ios, ios, ios, looks], "{chunks:?}");
    }
}

#[test]
fn the_one_list_is_searched_for_each_bio_and_sorted_once() {
    let design = Design { serving: Serving::PerVolume, ..Design::USUAL };
    // Each finds no neighbour among those before it; then n entries are sorted in n log n looks.
    for (reads, looks) in [(1, 1), (2, 1 + 2 * 2), (7, 21 + 7 * 3), (8, 28 + 8 * 4)] {
        let chunks: Vec<u64> = (0..reads).map(|n| n * 2).collect();
        assert_eq!(charges(design, &chunks), [reads, reads, reads, reads, reads, looks]);
    }
    // A flush of two drives goes past it.
    assert_eq!(charges(design, &[])[..5], charges(Design::USUAL, &[])[..5]);
}

/// Acquisitions of serve locks since the meter started.
fn entered(meter: &LockMeter) -> u64 {
    let serve = |row: &&LockRow| row.name == "serve";
    meter.rows().iter().filter(serve).map(|row| row.counts.acquisitions).sum()
}

#[test]
fn disk_locks_count_from_the_request_until_nobody_asks() {
    let _alone = alone();
    let disk = Disk::<Native>::new(Box::new(TestDrive::new(64)), DiskConfig::default()).unwrap();
    let volume = Volume::single(Arc::clone(&disk)).unwrap();
    let mut channel = Channel::open(&volume, ChannelConfig::default()).unwrap();
    let mut read = || assert_eq!(run(&mut channel, Bio::read(0, Buffer::new(512))).0, Status::Ok);
    let mut start = || {
        let meter = LockMeter::start().expect("nobody else asks");
        read();
        Some(meter).filter(|meter| entered(meter) == 0)
    };
    // Disks that other tests make meanwhile count from the beginning.
    let meter = (0..20).find_map(|_| start()).expect("it counts before it is told");
    disk.meter_locks();
    read();
    assert!(entered(&meter) > 0);
}

/// Two drives whose locks are metered, and their worker if there is one.
fn metered(worker: bool) -> (LockMeter, Channel<Native>, Worker<Native>) {
    let cpu = Native::topology().cpus()[0].id;
    let config = DiskConfig { worker: worker.then_some(cpu), ..DiskConfig::default() };
    let disk = || Disk::<Native>::new(Box::new(TestDrive::new(4096)), config.clone()).unwrap();
    let serving = ServingConfig { plug_low: 1, ..ServingConfig::of(Serving::PerDrive) };
    let layout = Layout::Stripe { chunk_sectors: 8 };
    let volume = Volume::with_serving("v", layout, vec![disk(), disk()], serving).unwrap();
    let bell = Arc::new(Doorbell::new(NativeParker::new()));
    let mut thread = Worker::new(&IoThread { number: 0, owner: 1, bell, turn: None });
    volume.disks().iter().for_each(|disk| assert_eq!(thread.serve(disk).unwrap(), worker));
    let mut channel = Channel::open(&volume, ChannelConfig::default()).unwrap();
    // The next look for a flush finds that it has ended.
    channel.submit(Bio::flush()).unwrap();
    channel.flush();
    while channel.poll(|done| assert_eq!(done.status, Status::Ok)) == 0 {
        thread.turn();
    }
    for chunk in 0..4 {
        channel.submit(Bio::read(chunk * 8, Buffer::new(512))).unwrap();
    }
    let done = (0..2).map(|_| channel.poll(|done| assert_eq!(done.status, Status::Ok))).sum();
    assert_eq!((done, volume.waiting()), if worker { (0, 4) } else { (4, 0) });
    let meter = LockMeter::start().expect("nobody else asks");
    volume.disks().iter().for_each(|disk| disk.meter_locks());
    (meter, channel, thread)
}

#[test]
fn idle_channel_looks_for_timeouts_in_its_own_queue_only() {
    let _alone = alone();
    let entered = [false, true].map(|handed| {
        let (meter, mut channel, mut worker) = metered(handed);
        (0..5).for_each(|_| assert_eq!(channel.poll(|_| ()), 0));
        assert_eq!(entered(&meter), 0);
        channel.tick();
        let entered = entered(&meter);
        worker.turn();
        assert_eq!(channel.poll(|_| ()), if handed { 4 } else { 0 });
        entered
    });
    assert!(entered[0] > 0 && entered[0] == entered[1], "{entered:?}");
}

/// The hardware queues that CPUs 0 to 3, two on each socket, use one after another.
fn queues_of_cpus(software_queues: Spread, hardware_queues: Spread) -> Vec<u16> {
    let used = Arc::new(Mutex::new(Vec::new()));
    let result = Arc::clone(&used);
    let main = move || {
        let config = DiskConfig { software_queues, hardware_queues, ..DiskConfig::default() };
        let disk = Disk::<Simulated>::new(Box::new(Null(used)), config).unwrap();
        let volume = Volume::single(disk).unwrap();
        for cpu in 0..4 {
            let volume = Arc::clone(&volume);
            let body = move || {
                // The thread's number has no effect on `AnyThread` queues, which are chosen by CPU.
                let bell = Arc::new(Doorbell::new(<Simulated as Machine>::Parker::new()));
                let thread = Some(IoThread { number: 5, owner: 6, bell, turn: None });
                let config = ChannelConfig { thread, ..ChannelConfig::default() };
                let mut channel = Channel::open(&volume, config).unwrap();
                channel.submit(Bio::read(0, Buffer::new(512))).unwrap();
                channel.wait(1, |done| assert_eq!(done.status, Status::Ok));
            };
            assert!(Simulated::spawn("submitter", Some(CpuId(cpu)), Box::new(body)).join());
        }
    };
    let simulation = Simulation::new(&Model::plain(2, 2), 1).unwrap();
    simulation.time_limit_ns(1_000_000_000).run(main).unwrap();
    let used = result.lock().unwrap();
    used.clone()
}

#[test]
fn where_threads_stay_each_cpu_uses_the_queue_of_its_place() {
    use Spread::{Core, Node, One};
    for (software, hardware, expected) in [
        (Core, Core, [0, 1, 2, 3]),
        (Core, Node, [0, 0, 1, 1]),
        (Core, One, [0; 4]),
        (Node, Core, [0, 1, 2, 3]),
        (Node, Node, [0, 0, 1, 1]),
        (One, Core, [0, 1, 2, 3]),
        (One, Node, [0, 0, 1, 1]),
    ] {
        assert_eq!(queues_of_cpus(software, hardware), expected, "{software:?} {hardware:?}");
    }
}
