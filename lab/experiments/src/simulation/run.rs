//! Runs one benchmark on the simulated machine, or on this machine with lock statistics.
//!
//! The commands of millrace-lab call `run_simulated` and `run_metered`. Both call `run_jobs`, which
//! creates the drives, the volume and the jobs on the machine. A simulation hands out its results
//! together with the volume, so that the volume is dropped after the simulation has ended and the
//! drop takes no virtual time.

use std::sync::Arc;

use millrace_block::baseline::BaselineConfig;
use millrace_block::{
    Controller, Disk, DiskConfig, SchedulerKind, Snapshot, StatsSnapshot, Tracer, Volume,
};
use millrace_cache::CacheStats;
use millrace_drives::{Words, controller_of, open_on};
use millrace_machine::{CpuId, LockMeter, LockRow, Machine, Native, lock_unpoisoned};
use millrace_runtime::{Recorded, WorkerCpus};
use millrace_simulator::{CpuTimes, Model, Report, Simulated};
use millrace_trace::{LockLine, LockSpan};

use super::bounce::BounceDriver;
use super::host_adapter::{AdapterDriver, HostAdapter, HostAdapterConfig};
use super::interface::Host;
use super::irq::{Interrupts, IrqDriver, Signal};
use super::job::{self, RowState, Sums};
use super::linux3::{CountedDriver, Counters, QueueCounters};
use super::linux24::{Charge, Kernel, Locks};
use super::poller::PollerDriver;
use super::tags::{TagSample, TagWatch};
use super::window::Window;
use super::workers::Workers;
use super::{Irq, RecordingPlan, SimPlan};
use crate::filter::FilteredDriver;
use crate::filter::no_merges::NoMerges;
use crate::load::bench::{BenchError, Interrupt, process_cpu_ns};
use crate::load::row::{Cost, DriveStates, LatencyNs, MachineRow, Outcome, Row};
use crate::load::threads::{join_all, simulate};

const BUFFERS_MAX: u64 = 1 << 30;

const LIMIT_NS: u64 = 1_000_000_000_000;

struct RunMeasurement<M: Host> {
    length_ns: u64,
    ios: u64,
    total_ios: u64,
    sums: Sums,
    tags: Vec<TagSample>,
    spent_ns: Vec<u64>,
    recorded: Option<Recorded>,
    /// Volumes, to be dropped after the simulation, when the drops take no virtual time.
    _volumes: Vec<Arc<Volume<M>>>,
}

/// Result of a run: its `Row`, and data for which `Row` has no field.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObservedRow {
    /// Result as a row of the benchmark's table.
    pub row: Row,
    /// Mean time from queueing (Q) to dispatch (D) of each drive's I/Os, in nanoseconds.
    pub stack_ns: Vec<u64>,
    /// Samples of the tags in use, if `SimPlan::watch` asks for them.
    pub tags: Vec<TagSample>,
    /// CPU times summed over all CPUs, from the start to the end of the simulation.
    pub cpus: CpuTimes,
    /// Simulated time of Linux 2.4's work outside of the block layer, in nanoseconds, for each of
    /// [`TimeUse::NAMES`](super::TimeUse::NAMES); empty if that work was not simulated.
    pub spent_ns: Vec<u64>,
    /// Statistics of the page cache, if a program used one.
    pub cache: Option<CacheStats>,
    /// Recorded trace, if `SimPlan::watch` asks for it.
    pub recorded: Option<Recorded>,
}

/// Runs a benchmark on a simulated machine. The result is deterministic: the same plan and model
/// give a bit-identical row, however long the simulation takes in real time.
///
/// # Errors
/// If the plan does not fit the machine or the drives, or the simulation fails.
pub fn run_simulated(model: &Model, plan: &SimPlan) -> Result<Row, BenchError> {
    run_observed(model, plan).map(|observed| observed.row)
}

/// Like [`run_simulated`], but the caller may end the run early through `interrupt`. The row then
/// has the results so far; `None` if the run ended during the warm-up.
pub fn run_simulated_until(
    model: &Model,
    plan: &SimPlan,
    interrupt: &Interrupt,
) -> Result<Option<ObservedRow>, BenchError> {
    let observed = observe(model, plan, interrupt)?;
    Ok((observed.row.ios > 0 || !interrupt.is_set()).then_some(observed))
}

/// Like [`run_simulated`], but also returns data for which a `Row` has no field, such as tag
/// samples.
pub fn run_observed(model: &Model, plan: &SimPlan) -> Result<ObservedRow, BenchError> {
    observe(model, plan, &Interrupt::default())
}

fn observe(
    model: &Model,
    plan: &SimPlan,
    interrupt: &Interrupt,
) -> Result<ObservedRow, BenchError> {
    plan.check(model.cpus())?;
    let (inner, interrupt) = (plan.clone(), interrupt.clone());
    let charge = Charge { work: Simulated::charge, ghz: model.ghz };
    let main = move || run_jobs::<Simulated>(&inner, Some(charge), &interrupt);
    let limit_ns = LIMIT_NS.saturating_add(plan.length.time_ns().saturating_mul(2));
    let (measured, report) = simulate((model, plan.workload.seed), (plan.cpus[0], limit_ns), main)?;
    let mut row = row_of(plan, &measured);
    row.cost.cpu_ns_per_io = cpu_ns(&report) as f64 / measured.total_ios.max(1) as f64;
    let span = LockSpan { elapsed_ns: report.elapsed_ns(), cpus: plan.cpus.len() as u64 };
    let lines = |rows: &[LockRow]| rows.iter().map(|row| LockLine::new(row, span)).collect();
    row.machine = Some(MachineRow {
        sim_events: Some(report.events),
        locks: plan.watch.locks.then(|| lines(&report.locks)),
        ..plan.machine_row(&model.name)
    });
    let stack_ns = measured.sums.drives.iter().map(stack_ns).collect();
    let RunMeasurement { tags, spent_ns, recorded, .. } = measured;
    Ok(ObservedRow { row, stack_ns, tags, cpus: cpu_sum(&report), spent_ns, cache: None, recorded })
}

fn stack_ns(stats: &StatsSnapshot) -> u64 {
    let mut sum = Snapshot::default();
    stats.ops.iter().for_each(|op| sum.merge(&op.queue));
    sum.mean_ns()
}

fn cpu_sum(report: &Report) -> CpuTimes {
    report.cpus.iter().fold(CpuTimes::default(), |sum, cpu| CpuTimes {
        busy_ns: sum.busy_ns + cpu.busy_ns,
        spin_ns: sum.spin_ns + cpu.spin_ns,
        idle_ns: sum.idle_ns + cpu.idle_ns,
        context_switches: sum.context_switches + cpu.context_switches,
    })
}

fn cpu_ns(report: &Report) -> u64 {
    report.cpus.iter().map(|cpu| cpu.busy_ns + cpu.spin_ns).sum()
}

/// Runs a benchmark on this machine and collects lock statistics. The drives must be of kinds that
/// can also be simulated, as for all [`SimPlan`]s.
///
/// # Errors
/// If the plan does not fit the machine or the drives, or lock statistics are already in use.
pub fn run_metered(plan: &SimPlan) -> Result<Row, BenchError> {
    metered(plan, &Interrupt::default()).map(|observed| observed.row)
}

/// Like [`run_metered`], but the caller may end the run early through `interrupt`, as in
/// [`run_simulated_until`].
pub fn run_metered_until(
    plan: &SimPlan,
    interrupt: &Interrupt,
) -> Result<Option<ObservedRow>, BenchError> {
    let observed = metered(plan, interrupt)?;
    Ok((observed.row.ios > 0 || !interrupt.is_set()).then_some(observed))
}

fn metered(plan: &SimPlan, interrupt: &Interrupt) -> Result<ObservedRow, BenchError> {
    plan.check(u32::MAX)?;
    let busy = || {
        BenchError::Workload("lock statistics are already being collected in this process".into())
    };
    let (meter, cpu_start_ns) = (LockMeter::start().ok_or_else(busy)?, process_cpu_ns());
    let measured = run_jobs::<Native>(plan, None, interrupt)?;
    let (elapsed_ns, rows) = (meter.elapsed_ns(), meter.rows());
    drop(meter);
    let mut row = row_of(plan, &measured);
    let cpu_ns = process_cpu_ns() - cpu_start_ns;
    row.cost.cpu_ns_per_io = cpu_ns as f64 / measured.total_ios.max(1) as f64;
    let cpus = (Native::topology().cpus().len() as u64).min(plan.jobs.into());
    let line = |row: &LockRow| LockLine::new(row, LockSpan { elapsed_ns, cpus });
    row.machine = Some(MachineRow {
        irq: String::new(),
        locks: Some(rows.iter().map(line).collect()),
        ..plan.machine_row("native")
    });
    Ok(ObservedRow { row, recorded: measured.recorded, ..ObservedRow::default() })
}

fn run_jobs<M: Host>(
    plan: &SimPlan,
    charge: Option<Charge>,
    interrupt: &Interrupt,
) -> Result<RunMeasurement<M>, BenchError> {
    let signals: Vec<Arc<Signal<M>>> = (0..plan.jobs).map(|_| Arc::new(Signal::new())).collect();
    let mut locks = Locks::new(&plan.service.history);
    let kernel = Kernel::new(plan, &mut locks, charge)?;
    let interrupts = Interrupts::new(plan, &signals, kernel.as_ref());
    let counted = plan.service.linux3.queue_counters;
    let counters = counted.then(|| QueueCounters::new(plan.hardware_queues, &M::topology()));
    let tracer = plan.watch.trace.as_ref().map(|trace| Tracer::<M>::new(trace.ring));
    let around = (interrupts.as_ref(), &counters, tracer.as_ref());
    let volumes = volumes_of::<M>(plan, around, &mut locks)?;
    volumes.iter().try_for_each(|volume| check_workload(volume, plan))?;
    let disks: Vec<_> = volumes.iter().flat_map(|volume| volume.disks()).cloned().collect();
    let recording = plan.watch.trace.as_ref().zip(tracer.as_ref());
    let record =
        |(trace, tracer): (&RecordingPlan, _)| M::record(tracer, &volumes, trace.config.clone());
    let said = |error: std::io::Error| {
        let text = error.to_string();
        BenchError::Trace { text: text.trim_start_matches("trace ").to_owned() }
    };
    let recording = recording.map(record).transpose().map_err(said)?;
    let workers = Workers::start(&disks);
    let watch = plan.watch.tags.map(|often| TagWatch::start(disks, often));
    let (jobs, depth) = (plan.jobs, plan.workload.iodepth);
    let window = Window::new(plan.length, jobs, depth).ended_by(interrupt);
    let shared = RowState::new((plan, window), volumes, signals, (kernel, counters));
    let handlers = interrupts.as_ref().map_or(Vec::new(), Interrupts::start);
    let start = |number: u32| {
        let (cpu, shared) = (plan.cpu_of(number), Arc::clone(&shared));
        let body = Box::new(move || job::run(&shared, number));
        M::spawn(&format!("job-{number}"), cpu.map(CpuId), body)
    };
    let threads: Vec<M::Thread> = (0..plan.jobs).map(start).collect();
    let ended = join_all(threads).and(workers.stop());
    if let Some(interrupts) = interrupts {
        interrupts.stop();
    }
    let handled = join_all(handlers);
    let seen = watch.map_or(Some(Vec::new()), |watch| watch.stop(shared.window.begin_ns()));
    ended.and(handled)?;
    let tags = seen.ok_or(BenchError::Panicked)?;
    let recorded = recording.map(|stop| stop()).transpose().map_err(said)?;
    let (length_ns, ios) = shared.window.measured();
    let sums = lock_unpoisoned(&shared.sums).clone();
    Ok(RunMeasurement {
        length_ns,
        ios,
        total_ios: shared.window.total(),
        sums,
        tags,
        spent_ns: shared.kernel.as_ref().map_or(Vec::new(), |kernel| kernel.spent_ns()),
        recorded,
        _volumes: shared.volumes.clone(),
    })
}

type DriverExtras<'a, M> =
    (Option<&'a Arc<Interrupts<M>>>, &'a Counters<M>, Option<&'a Arc<Tracer<M>>>);

pub(super) fn volumes_of<M: Host>(
    plan: &SimPlan,
    (interrupts, counters, tracer): DriverExtras<'_, M>,
    locks: &mut Locks<M>,
) -> Result<Vec<Arc<Volume<M>>>, BenchError> {
    let controllers = plan.service.controllers.iter().cloned().map(Controller::new);
    let controllers = controllers.collect::<Result<Vec<_>, _>>()?;
    let workers: Vec<CpuId> = plan.service.worker_cpus.iter().copied().map(CpuId).collect();
    let mut workers = WorkerCpus::new(&workers, &M::topology());
    let shares = plan.service.adapter;
    let adapter = (shares != HostAdapterConfig::default()).then(|| HostAdapter::new(shares));
    let mut disks = Vec::new();
    for (index, spec) in plan.drives.iter().enumerate() {
        let failed = |source| BenchError::drive(spec, &source);
        let mut driver = open_on::<M>(spec).map_err(failed)?;
        if let Some(interrupts) = interrupts {
            let interrupts = Arc::clone(interrupts);
            driver =
                Box::new(FilteredDriver(IrqDriver { inner: driver, interrupts, drive: index }));
        } else if plan.irq == Irq::Poller {
            driver = Box::new(FilteredDriver(PollerDriver(driver)));
        }
        if let Some(adapter) = &adapter {
            driver = Box::new(FilteredDriver(AdapterDriver::new(driver, adapter)));
        }
        if let Some(counters) = counters {
            driver = Box::new(FilteredDriver(CountedDriver {
                inner: driver,
                counters: counters.clone(),
            }));
        }
        if plan.service.nomerges {
            driver = Box::new(FilteredDriver(NoMerges(driver)));
        }
        if plan.service.history.bounce {
            driver = Box::new(FilteredDriver(BounceDriver(driver)));
        }
        let controller = controller_of(spec, &controllers).map_err(failed)?;
        let node = controller.as_ref().and_then(|controller| controller.config().node);
        let config = DiskConfig {
            name: drive_name(index),
            worker: workers.next(node),
            software_queues: plan.software_queues,
            hardware_queues: plan.hardware_queues,
            baseline: BaselineConfig {
                stack: plan.stack,
                inside: plan.service.inside,
                request_lock: locks.of(plan.service.history.request_lock, spec),
            },
            controller,
            tracer: tracer.cloned(),
            device: plan.watch.trace.as_ref().map_or(0, |trace| trace.devices[index]),
            ..DiskConfig::default()
        };
        let disk = Disk::new(driver, config)?;
        if plan.service.scheduler != SchedulerKind::None {
            disk.set_scheduler(plan.service.scheduler)?;
        }
        disks.push(disk);
    }
    let together = |disks| Volume::with_serving("bench", plan.layout, disks, plan.service.serving);
    Ok(match plan.service.apart {
        true => disks.into_iter().map(|disk| together(vec![disk])).collect::<Result<_, _>>()?,
        false => vec![together(disks)?],
    })
}

fn check_workload<M: Machine>(volume: &Volume<M>, plan: &SimPlan) -> Result<(), BenchError> {
    let (bs, depth) = (plan.workload.bs_bytes, plan.workload.iodepth);
    let block_bytes = volume.limits().logical_block_size;
    crate::load::bench::check_block_size(bs, block_bytes)?;
    plan.service.history.check_units(bs, block_bytes)?;
    crate::load::bench::check_room(bs, plan.jobs, volume.capacity() << 9)?;
    let bytes = u64::from(bs.max(4096)) * u64::from(depth) * u64::from(plan.jobs);
    if bytes > BUFFERS_MAX {
        let text = format!(
            "bs={bs} iodepth={depth} with {} jobs needs {} MiB of buffers; at most {} MiB are \
             possible",
            plan.jobs,
            bytes >> 20,
            BUFFERS_MAX >> 20
        );
        return Err(BenchError::Workload(text));
    }
    Ok(())
}

fn states_of(sums: &Sums) -> Vec<DriveStates> {
    let drives = sums.drives.iter().zip(0..);
    drives.map(|(stats, index)| DriveStates::new(&drive_name(index), stats)).collect()
}

fn drive_name(index: usize) -> String {
    format!("d{index}")
}

fn row_of<M: Host>(plan: &SimPlan, measured: &RunMeasurement<M>) -> Row {
    let (sums, bs) = (&measured.sums, plan.workload.bs_bytes);
    // If each I/O is one system call, report the durations of the calls.
    let latency = if sums.calls.count() > 0 { &sums.calls } else { &sums.latency };
    let seconds = measured.length_ns as f64 / 1e9;
    let iops = measured.ios as f64 * 1e9 / measured.length_ns.max(1) as f64;
    Row {
        queues: plan.queues(),
        drives: plan.drives.iter().map(ToString::to_string).collect::<Vec<_>>().join("+"),
        jobs: plan.jobs,
        iodepth: plan.workload.iodepth,
        bs,
        rw: plan.workload.rw,
        stamp: plan.stamp.word().to_owned(),
        ios: measured.ios,
        seconds,
        iops,
        bw_bytes_per_s: iops * f64::from(bs),
        cost: Cost {
            cpu_ns_per_io: 0.0,
            syscalls_per_io: sums.system_calls as f64 / measured.total_ios.max(1) as f64,
            notifications: None,
        },
        lat_ns: LatencyNs::of(latency),
        outcome: Outcome {
            errors: sums.errors,
            verified: 0,
            first_error: sums.first_error.clone(),
            states: states_of(sums),
        },
        ..Row::default()
    }
}
