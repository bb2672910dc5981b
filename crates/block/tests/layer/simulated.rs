//! The layer on the simulated machine: every stack, on one CPU and on two sockets.
//!
//! The workload is that of \[MQ\]: a null drive, 512-byte reads, and a submitter per CPU. The
//! machine does not exist, so the tests assert only results that hold on any machine of its kind,
//! and that the same seed gives the same result. `--nocapture` prints the numbers.

use std::sync::{Arc, Mutex};

use millrace_block::baseline::Stack;
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, CompletionBatch, Disk, DiskConfig, Dispatch, Driver,
    DriverQueue, Error, Expired, HwQueues, QueueKind, QueueLimits, Request, Sector, Spread, Status,
    Tag, TagScope, Volume,
};
use millrace_machine::{CpuId, Machine, Stage, Thread, Topology};
use millrace_simulator::{Model, Report, Simulated, Simulation};

struct Null;

impl<M: Machine> Driver<M> for Null {
    fn capacity(&self) -> Sector {
        1 << 30
    }
    fn limits(&self) -> QueueLimits {
        QueueLimits::default()
    }
    fn hw_queues(&self, _: &Topology) -> HwQueues {
        HwQueues { count: 2048, depth: 64, kind: QueueKind::AnyThread, tags: TagScope::PerQueue }
    }
    fn open_queue(&self, _: u16, _: u32) -> Result<Box<dyn DriverQueue<M>>, Error> {
        Ok(Box::new(NullQueue(Vec::new())))
    }
}

struct NullQueue(Vec<Tag>);

impl<M: Machine> DriverQueue<M> for NullQueue {
    fn queue_rq(&mut self, rq: &Request<M>) -> Dispatch {
        M::work(Stage::Driver, 1);
        self.0.push(rq.tag());
        Dispatch::Queued
    }
    fn commit_rqs(&mut self) {}
    fn poll(&mut self, batch: &mut CompletionBatch) {
        while !batch.is_full() {
            let Some(tag) = self.0.pop() else { return };
            batch.push(tag, Status::Ok);
        }
    }
    fn timeout(&mut self, _: Tag) -> Expired {
        Expired::Extend
    }
}

#[derive(Clone, Copy, Debug)]
struct Run {
    stack: Stack,
    hardware: Spread,
    cpus: u32,
    depth: u32,
    seed: u64,
}

/// I/Os of each CPU.
const IOS: u32 = 500;

fn submitter(volume: &Arc<Volume<Simulated>>, run: Run, cpu: u32) {
    let config = ChannelConfig { depth: run.depth, ..ChannelConfig::default() };
    let mut channel = Channel::open(volume, config).expect("its queues are served");
    let mut idle: Vec<Bio> = (0..run.depth).map(|_| Bio::read(0, Buffer::new(512))).collect();
    let (mut sent, mut done) = (0, 0);
    while done < IOS {
        for mut bio in idle.drain(..).take((IOS - sent) as usize) {
            // Far apart, so that nothing merges.
            bio.set_sector(u64::from(cpu * IOS + sent) * 8);
            channel.submit(bio).expect("room for as many as there are");
            sent += 1;
        }
        channel.wait(1, |completion| {
            assert_eq!(completion.status, Status::Ok);
            idle.push(completion.bio);
            done += 1;
        });
    }
}

/// Thousands of I/Os per second of virtual time, and the machine's report.
fn kiops(run: Run) -> (u64, Report) {
    let simulation = Simulation::new(&Model::plain(2, 6), run.seed).expect("a valid model");
    let elapsed_ns = Arc::new(Mutex::new(0));
    let result = Arc::clone(&elapsed_ns);
    let main = move || {
        let config = DiskConfig {
            baseline: run.stack.into(),
            hardware_queues: run.hardware,
            ..DiskConfig::default()
        };
        let disk = Disk::<Simulated>::new(Box::new(Null), config).expect("a valid drive");
        let volume = Volume::single(Arc::clone(&disk)).expect("one disk");
        let start_ns = Simulated::now();
        let start = |cpu| {
            let volume = Arc::clone(&volume);
            let body = Box::new(move || submitter(&volume, run, cpu));
            Simulated::spawn("submitter", Some(CpuId(cpu)), body)
        };
        let threads: Vec<_> = (0..run.cpus).map(start).collect();
        threads.into_iter().for_each(|thread| assert!(thread.join()));
        *elapsed_ns.lock().expect("no panics") = Simulated::now() - start_ns;
        assert_eq!(disk.tags_in_use(), 0);
        assert_eq!(disk.stats().in_flight(), 0);
    };
    let report = simulation.time_limit_ns(60_000_000_000).run(main);
    let report = report.unwrap_or_else(|error| panic!("{run:?}: {error}"));
    let ios = u64::from(run.cpus * IOS);
    let elapsed_ns = *result.lock().expect("no panics");
    (ios * 1_000_000 / elapsed_ns, report)
}

#[test]
fn stacks_scale_as_their_designs_say_and_lose_nothing() {
    let mut table = Vec::new();
    for depth in [32, 1] {
        for stack in [Stack::Mq, Stack::Sq, Stack::Raw] {
            let start = std::time::Instant::now();
            let mut row = [0; 3];
            let mut events = 0;
            for (place, cpus) in [1, 6, 12].into_iter().enumerate() {
                let run = Run { stack, hardware: Spread::Core, cpus, depth, seed: 1 };
                let (kiops, report) = kiops(run);
                row[place] = kiops;
                events += report.events;
            }
            let rate = events as f64 / start.elapsed().as_secs_f64() / 1e6;
            println!(
                "depth {depth:2} {stack:?}: {row:?} k/s on 1, 6, 12 CPUs; {rate:.1} M events/s"
            );
            table.push(row);
        }
    }
    let [mq, sq, raw, mq_one, sq_one, _] = table[..] else { panic!("{table:?}") };
    assert!(mq[1] > 5 * mq[0] && mq[2] > 10 * mq[0], "a queue per core scales: {mq:?}");
    assert!(sq[2] < 2 * sq[0], "one lock does not: {sq:?}");
    assert!(raw[0] > mq[0], "what passes the layer by is faster: {raw:?}, {mq:?}");
    assert!(mq_one[2] > 10 * mq_one[0] && sq_one[2] < 2 * sq_one[1], "{mq_one:?}, {sq_one:?}");
}

#[test]
fn every_stack_runs_the_same_again_with_the_same_seed() {
    for (stack, hardware) in
        [(Stack::Mq, Spread::Node), (Stack::Mq, Spread::One), (Stack::Sq, Spread::One)]
    {
        let run = Run { stack, hardware, cpus: 12, depth: 8, seed: 5 };
        let (first, again) = (kiops(run), kiops(run));
        assert_eq!(first, again, "{run:?}");
        println!("{stack:?} {hardware:?}: {} k/s", first.0);
    }
}

#[test]
fn waiter_for_tags_stays_awake_over_its_own_completions() {
    const DEPTH: u32 = 256;
    for (stack, tags) in [(Stack::Mq, 64), (Stack::Mq, 1), (Stack::Sq, 64), (Stack::Sq, 1)] {
        let simulation = Simulation::new(&Model::plain(1, 1), 1).expect("a valid model");
        let main = move || {
            let config = DiskConfig {
                baseline: stack.into(),
                queue_depth: Some(tags),
                ..DiskConfig::default()
            };
            let disk = Disk::<Simulated>::new(Box::new(Null), config).expect("a valid drive");
            let volume = Volume::single(disk).expect("one disk");
            let config = ChannelConfig { depth: DEPTH, ..ChannelConfig::default() };
            let mut channel = Channel::open(&volume, config).expect("its queues are served");
            for index in 0..u64::from(DEPTH) {
                channel.submit(Bio::read(8 * index, Buffer::new(512))).expect("room for all");
            }
            let start_ns = Simulated::now();
            assert_eq!(channel.wait(DEPTH as usize, |done| assert!(done.status.is_ok())), 256);
            // The drive answers at once; after a sleep it would be later.
            let took_ns = Simulated::now() - start_ns;
            assert!(took_ns < 1_000_000, "{stack:?}, {tags} tags: {took_ns} ns");
        };
        simulation.run(main).unwrap_or_else(|error| panic!("{stack:?}: {error}"));
    }
}
