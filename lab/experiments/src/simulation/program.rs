//! Programs on the volume of a simulation: threads that read and write like a program, through a
//! cache or directly, on a simulated machine.
//!
//! This file creates the environment of the threads: the plan's volume, its drives' workers, a
//! cache on top of the volume, and the cache's flusher on a CPU of its own. A `Program` defines the
//! work of each thread, which does its I/O through an `Access`. The results count operations of the
//! program, not I/Os of the drives. `atc17` calls this file.

mod access;

use std::sync::Arc;
use std::time::Duration;

use millrace_block::{Channel, ChannelConfig, Disk, DiskConfig, IoThread, Volume};
use millrace_cache::{
    Cache, CacheConfig, CacheDriver, CacheStats, Flusher, FlusherConfig, WriteLists,
};
use millrace_machine::{CpuId, Doorbell, Machine, Order, Parker, Word};
use millrace_simulator::{Model, Simulated};

use super::file_costs::FileCosts;
use super::interface::Host;
use super::linux24::{Linux24, Locks};
use super::run::volumes_of;
use super::window::Window;
use super::workers::Workers;
use super::{ObservedRow, SimPlan};
use crate::load::bench::BenchError;
use crate::load::row::{MachineRow, Row};
use crate::load::threads::{join_all, simulate};

pub(crate) use access::{Access, PAGE_SECTORS, Span};

const LIMIT_NS: u64 = 600_000_000_000;

pub(crate) trait Program: Clone + Send + Sync + 'static {
    fn cache(&self) -> Option<CacheConfig>;

    /// Returns the number of operations of all threads in the warm-up, and the length of the
    /// measured window in nanoseconds.
    fn measured(&self) -> (u64, u64);

    /// Runs one thread of the program until `Access::is_over` returns true. `number` is the index
    /// of the thread.
    fn run<M: Host>(&self, number: u32, access: &mut Access<'_, M>);
}

pub(crate) struct ProgramState<M: Host> {
    volume: Arc<Volume<M>>,
    window: Window,
    costs: FileCosts,
    depth: u32,
    errors: M::Word,
}

impl<M: Host> ProgramState<M> {
    pub(crate) fn new(
        volume: Arc<Volume<M>>,
        window: Window,
        depth: u32,
    ) -> Result<ProgramState<M>, BenchError> {
        let costs = FileCosts::linux_4_4()?;
        Ok(ProgramState { volume, window, costs, depth, errors: M::Word::new(0) })
    }

    pub(crate) fn volume(&self) -> &Arc<Volume<M>> {
        &self.volume
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    pub(crate) fn measured(&self) -> (u64, u64) {
        self.window.measured()
    }

    pub(crate) fn errors(&self) -> u64 {
        // Relaxed: joining the threads orders their stores before this load.
        self.errors.load(Order::Relaxed)
    }
}

struct RunMeasurement<M: Host> {
    window: (u64, u64),
    errors: u64,
    stats: Option<CacheStats>,
    /// Volume to be dropped after the simulation. The drop then takes no virtual time.
    _volume: Arc<Volume<M>>,
}

/// Runs `program` on the plan's volume, with the flusher on CPU `flusher`. Each of the `plan.jobs`
/// threads has at most `plan.workload.iodepth` I/Os in flight, and runs on one of `plan.cpus`.
pub(crate) fn run_program<P: Program>(
    model: &Model,
    plan: &SimPlan,
    (program, flusher): (&P, u32),
) -> Result<ObservedRow, BenchError> {
    plan.check(model.cpus())?;
    let (inner, body) = (plan.clone(), program.clone());
    let main = move || play::<Simulated, P>(&inner, &body, CpuId(flusher));
    let (measured, report) = simulate((model, plan.workload.seed), (plan.cpus[0], LIMIT_NS), main)?;
    if measured.errors > 0 || measured.stats.is_some_and(|stats| stats.write_errors > 0) {
        let text = "a program's I/O failed".into();
        return Err(BenchError::Machine { text });
    }
    let (length_ns, ios) = measured.window;
    let row = Row {
        jobs: plan.jobs,
        ios,
        seconds: length_ns as f64 / 1e9,
        iops: ios as f64 * 1e9 / length_ns.max(1) as f64,
        machine: Some(MachineRow {
            sim_events: Some(report.events),
            ..plan.machine_row(&model.name)
        }),
        ..Row::default()
    };
    Ok(ObservedRow { row, cache: measured.stats, ..ObservedRow::default() })
}

fn thread<M: Machine>(number: u32) -> IoThread<M> {
    let bell = Arc::new(Doorbell::new(M::Parker::new()));
    IoThread { number: number as u16, owner: u64::from(number) + 1, bell, turn: None }
}

fn play<M: Host, P: Program>(
    plan: &SimPlan,
    program: &P,
    flusher_cpu: CpuId,
) -> Result<RunMeasurement<M>, BenchError> {
    let mut locks = Locks::new(&Linux24::default());
    let mut volumes = volumes_of::<M>(plan, (None, &None, None), &mut locks)?;
    let below = volumes.pop().expect("the plan's drives form one volume");
    let workers = Workers::start(below.disks());
    let cache = program.cache().map(|config| Cache::new(Arc::clone(&below), config)).transpose()?;
    let volume = match &cache {
        Some(cache) => over(&below, cache, plan.jobs)?,
        None => Arc::clone(&below),
    };
    let (warm_ops, length_ns) = program.measured();
    let window = Window::after(warm_ops, length_ns);
    let shared = Arc::new(ProgramState::new(volume, window, plan.workload.iodepth)?);
    let start = |cache| FlusherThread::start(cache, (plan.jobs, flusher_cpu), &shared.costs);
    let flusher = cache.as_ref().map(start);
    let start = |number: u32| {
        let (shared, program) = (Arc::clone(&shared), program.clone());
        let body = Box::new(move || {
            let thread = thread::<M>(number);
            shared.volume.disks().iter().for_each(|disk| {
                disk.bring_up(thread.number, &thread).expect("every thread has a queue of its own");
            });
            let mut access = Access::new(&shared, &thread);
            program.run(number, &mut access);
            access.drain();
            drop(access);
            shared.volume.disks().iter().for_each(|disk| disk.bring_down(&thread));
        });
        M::spawn(&format!("program-{number}"), plan.cpu_of(number).map(CpuId), body)
    };
    let threads: Vec<M::Thread> = (0..plan.jobs).map(start).collect();
    let joined = join_all(threads);
    let stats = cache.as_ref().map(|cache| cache.stats());
    let flushed = flusher.map_or(Ok(()), FlusherThread::stop);
    joined.and(flushed).and(workers.stop())?;
    let (window, errors) = (shared.measured(), shared.errors());
    Ok(RunMeasurement { window, errors, stats, _volume: Arc::clone(&shared.volume) })
}

fn over<M: Host>(
    below: &Arc<Volume<M>>,
    cache: &Arc<Cache<M>>,
    threads: u32,
) -> Result<Arc<Volume<M>>, BenchError> {
    let io_threads = threads as u16;
    let config = DiskConfig { io_threads, timeout: Duration::ZERO, ..DiskConfig::default() };
    let disk = Disk::new(Box::new(CacheDriver::new(cache)), config)?;
    Ok(Volume::over(Arc::clone(below), disk)?)
}

struct FlusherThread<M: Machine> {
    thread: M::Thread,
    stop: Arc<M::Word>,
    bell: Arc<Doorbell<M>>,
}

impl<M: Host> FlusherThread<M> {
    fn start(
        cache: &Arc<Cache<M>>,
        (number, cpu): (u32, CpuId),
        costs: &FileCosts,
    ) -> FlusherThread<M> {
        let costs = costs.clone();
        let (stop, mine) = (Arc::new(M::Word::new(0)), thread::<M>(number));
        let bell = Arc::clone(&mine.bell);
        let (cache, seen) = (Arc::clone(cache), Arc::clone(&stop));
        let body = Box::new(move || flush(&cache, &mine, (&seen, &costs)));
        FlusherThread { thread: M::spawn("flusher", Some(cpu), body), stop, bell }
    }

    fn stop(self) -> Result<(), BenchError> {
        self.stop.store(1, Order::SeqCst);
        self.bell.ring();
        join_all([self.thread])
    }
}

/// The flusher may have 64 writes in flight per drive, the I/O depth of the experiments without a
/// cache. All drives share one list of waiting writes, like the single `bdi_writeback` that the
/// kernel has for a volume.
const FLUSHER: FlusherConfig = FlusherConfig { drive_writes: 64, lists: WriteLists::Shared };

fn flush<M: Host>(
    cache: &Arc<Cache<M>>,
    thread: &IoThread<M>,
    (stop, costs): (&M::Word, &FileCosts),
) {
    for disk in cache.below().disks() {
        disk.bring_up(thread.number, thread).expect("every thread has a queue of its own");
    }
    let depth = FLUSHER.channel_depth(cache.below().disks().len());
    let config = ChannelConfig { depth, thread: Some(thread.clone()), ..ChannelConfig::default() };
    let below =
        Channel::open(cache.below(), config).expect("Channel::open must succeed on an I/O thread");
    let mut flusher = Flusher::new(cache, (below, FLUSHER), &thread.bell);
    let mut charged = 0;
    while stop.load(Order::SeqCst) == 0 {
        flusher.turn();
        let written = cache.written_back();
        M::kernel_work(costs.write_back_ns(written - charged));
        charged = written;
        let deadline_ns = flusher.sleep_until();
        let has_work = || flusher.has_work() || stop.load(Order::SeqCst) != 0;
        thread.bell.sleep_unless(deadline_ns, has_work);
    }
    drop(flusher);
    cache.below().disks().iter().for_each(|disk| disk.bring_down(thread));
}
