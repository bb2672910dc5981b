//! What an I/O is charged for on the simulated machine, which queues it takes there, and what of
//! its locks is counted natively.
//!
//! Runs the same few bios on one CPU with a stage that costs nothing and with one that costs a
//! few microseconds; the difference of the virtual times says how often it was charged for.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::sync::{Arc, Mutex};

use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, CompletionBatch, Disk, DiskConfig, Dispatch, Driver,
    DriverQueue, Error, Expired, Features, HwQueues, IoThread, QueueKind, QueueLimits, Request,
    Sector, Spread, Stack, Stamp, Status, Tag, TagScope, Volume,
};
use millrace_machine::{
    CpuId, Doorbell, LockMeter, LockRow, Machine, Model, Native, Parker, Simulated, Simulation,
    Stage, Thread, Topology,
};
use support::{TestDrive, run};

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

/// Virtual time of a batch of reads, of every other block, or of a flush if there is none.
fn elapsed_ns(
    model: &Model,
    (stack, stamp): (Stack, Stamp),
    software_queues: Spread,
    reads: u64,
) -> u64 {
    let elapsed_ns = Arc::new(Mutex::new(0));
    let result = Arc::clone(&elapsed_ns);
    let main = move || {
        let config = DiskConfig { stack, software_queues, ..DiskConfig::default() };
        let disk = Disk::<Simulated>::new(Box::<Null>::default(), config).unwrap();
        let volume = Volume::single(disk).unwrap();
        let config = ChannelConfig { stamp, ..ChannelConfig::default() };
        let mut channel = Channel::open(&volume, config).unwrap();
        let start_ns = Simulated::now();
        for n in 0..reads {
            channel.submit(Bio::read(n * 2, Buffer::new(512))).unwrap();
        }
        if reads == 0 {
            channel.submit(Bio::flush()).unwrap();
        }
        channel.wait(usize::MAX, |done| assert_eq!(done.status, Status::Ok));
        *elapsed_ns.lock().unwrap() = Simulated::now() - start_ns;
    };
    let simulation = Simulation::new(model, 1).unwrap();
    simulation.time_limit_ns(1_000_000_000).run(main).unwrap();
    *result.lock().unwrap()
}

/// How often submission, insertion, dispatch, driver and completion are charged for.
fn charges(design: (Stack, Stamp), software_queues: Spread, reads: u64) -> [u64; 5] {
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
        ] {
            cost.ns = if stage == Some(of) { 10_000.0 } else { 0.0 };
        }
        elapsed_ns(&model, design, software_queues, reads)
    };
    let none_ns = with(None);
    [Stage::Submit, Stage::Insert, Stage::Dispatch, Stage::Driver, Stage::Complete]
        .map(|stage| (with(Some(stage)) - none_ns + 5_000) / 10_000)
}

#[test]
fn each_stage_of_a_design_is_charged_once_for_each_io() {
    for software_queues in [Spread::Core, Spread::One] {
        for reads in [1, 2, 7] {
            for stamp in [Stamp::Batch, Stamp::Io] {
                let charged = |stack| charges((stack, stamp), software_queues, reads);
                let case = format!("{reads} reads, {software_queues:?}, {stamp:?}");
                assert_eq!(charged(Stack::Mq), [reads; 5], "{case}");
                assert_eq!(charged(Stack::Sq), [reads; 5], "{case}");
                // Past the queues.
                assert_eq!(charged(Stack::Raw), [0, 0, 0, reads, reads], "{case}");
            }
        }
    }
}

/// Alone with the native machine's locks: the other test is on the simulated one.
#[test]
fn serve_locks_of_a_disk_count_from_when_it_is_told_until_nobody_asks() {
    let disk = Disk::<Native>::new(Box::new(TestDrive::new(64)), DiskConfig::default()).unwrap();
    let volume = Volume::single(Arc::clone(&disk)).unwrap();
    let mut channel = Channel::open(&volume, ChannelConfig::default()).unwrap();
    let mut read = || assert_eq!(run(&mut channel, Bio::read(0, Buffer::new(512))).0, Status::Ok);
    let meter = LockMeter::start().expect("nobody else asks");
    let entered = || {
        let serve = |row: &&LockRow| row.name == "serve";
        meter.rows().iter().filter(serve).map(|row| row.counts.acquisitions).sum::<u64>()
    };
    read();
    assert_eq!(entered(), 0);
    disk.meter_locks();
    read();
    assert!(entered() > 0);
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
                // A number says nothing where queues that anybody may run belong to CPUs.
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
