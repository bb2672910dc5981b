//! Measures one configuration of a benchmark: starts the jobs, and sums up times and results.
//!
//! The caller of `run_row` creates the volume. `run_row` starts each job on a thread of its own,
//! lets the jobs run for the given time or number of I/Os, and adds up their results.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::{Duration, Instant};

use millrace_block::{Disk, Snapshot, Stamp, Volume, cuts_requests};
use millrace_drives::Words;
use millrace_machine::Native;
use millrace_reactor::Config;
use millrace_runtime::{DriveWorkers, IoConfig, IoContext, Pinning};

pub use crate::load::error::BenchError;

use crate::load::channel::ChannelTarget;
use crate::load::drain_barrier::DrainBarrier;
use crate::load::job::{Aim, Job, JobResult, StopCondition};
use crate::load::jobfile::Usage;
use crate::load::row::{Cost, DriveStates, LatencyNs, Outcome, Row};
use crate::load::threads::{ThreadGroup, cpu_of};
use crate::load::workload::Workload;

/// Settings of one measured configuration: workload, jobs, CPUs and length.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Workload of each job.
    pub workload: Workload,
    /// Number of submitting threads, 1 or more.
    pub jobs: u32,
    /// CPUs of the jobs: job i runs on `cpus[i % len]`, or on any CPU if the list is empty.
    pub cpus: Vec<u32>,
    /// Length of the measurement; ignored if `ios` is given.
    pub runtime: Duration,
    /// Number of I/Os of each job. If given, the measurement ends after these I/Os, not after a
    /// time.
    pub ios: Option<u64>,
    /// Granularity of the timestamps: one for each batch or for each I/O.
    pub stamp: Stamp,
    /// Settings of the I/O threads' rings.
    pub reactor: Config,
    /// Number of bytes, from the start of the device, that the jobs use; `None` means the whole
    /// device.
    pub size_bytes: Option<u64>,
    /// Flag that ends the measurement early when the caller sets it. The result then covers the
    /// I/Os so far.
    pub interrupt: Interrupt,
}

/// Flag that ends a run early. The starter of the run keeps a clone, which a signal handler may
/// set.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Requests the end of the run.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if the end of the run was requested.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Plan {
    pub(crate) fn blocks(&self, bytes: u64) -> u64 {
        self.size_bytes.map_or(bytes, |size| size.min(bytes)) / u64::from(self.workload.bs_bytes)
    }

    pub(crate) fn cpu_of(&self, job: u32) -> Option<u32> {
        cpu_of(&self.cpus, job)
    }
}

/// Callback for a progress bar, with the fraction of the measurement that is done, 0 to 1, and the
/// number of I/Os so far.
pub type Progress<'a> = &'a mut dyn FnMut(f64, u64);

pub(crate) struct RowState {
    pub(crate) until: StopCondition,
    start: Barrier,
    /// Number of threads, including the measuring thread, that are not set up yet.
    missing: AtomicUsize,
    /// Time, and this process's processor time, when the last thread finished its setup.
    began: OnceLock<(Instant, u64)>,
    left: AtomicUsize,
    pub(crate) barrier: DrainBarrier,
    syscalls: AtomicU64,
}

impl RowState {
    pub(crate) fn new(plan: &Plan) -> RowState {
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        RowState {
            until: StopCondition { ios: plan.ios, stop, done },
            start: Barrier::new(plan.jobs as usize + 1),
            missing: AtomicUsize::new(plan.jobs as usize + 1),
            began: OnceLock::new(),
            left: AtomicUsize::new(plan.jobs as usize),
            barrier: DrainBarrier::new(plan.jobs as usize),
            syscalls: AtomicU64::new(0),
        }
    }

    /// Waits until all threads are set up. The last thread to arrive records the start time. The
    /// measuring thread would record it too late: jobs may do many I/Os before that thread runs
    /// again.
    pub(crate) fn ready(&self) {
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.began.get_or_init(|| (Instant::now(), process_cpu_ns()));
        }
        self.start.wait();
    }

    pub(crate) fn add_system_calls(&self, calls: u64) {
        self.syscalls.fetch_add(calls, Ordering::Relaxed);
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    seconds: f64,
    cpu_ns: u64,
    syscalls: u64,
}

/// Runs each job of the plan on a thread of its own, and measures them together. A job opens its
/// target, calls `RowState::ready`, and does its I/Os. Returns the jobs' results in order.
pub(crate) fn run_jobs(
    plan: &Plan,
    name: &str,
    job: impl Fn(u32, &RowState) -> Result<JobResult, BenchError> + Send + Sync + 'static,
    progress: Progress<'_>,
) -> Result<(Vec<JobResult>, Times), BenchError> {
    let shared = Arc::new(RowState::new(plan));
    let threads = ThreadGroup { name, count: plan.jobs, cpu_of: &|job| plan.cpu_of(job) };
    let body = {
        let shared = Arc::clone(&shared);
        move |number| {
            let result = job(number, &shared);
            shared.left.fetch_sub(1, Ordering::Release);
            result
        }
    };
    let measured = threads.run::<Native, _, _>(body, || measure(&shared, plan, progress))?;
    Ok((measured.0.into_iter().collect::<Result<_, _>>()?, measured.1))
}

fn measure(shared: &RowState, plan: &Plan, progress: Progress<'_>) -> Times {
    shared.ready();
    let began = shared.began.get();
    let (start, cpu_start) =
        *began.expect("the last thread that became ready has set the start time");
    watch(shared, plan, start, progress);
    Times {
        seconds: start.elapsed().as_secs_f64(),
        cpu_ns: process_cpu_ns() - cpu_start,
        syscalls: shared.syscalls.load(Ordering::Relaxed),
    }
}

/// Measures one configuration on a volume that was created for the measurement, so that the
/// volume's accounting starts at zero. Starts the worker threads that the volume's drives need.
///
/// # Errors
/// If the workload does not fit the volume, or a thread cannot be set up.
pub fn run_row(
    volume: &Arc<Volume<Native>>,
    plan: &Plan,
    progress: Progress<'_>,
) -> Result<Row, BenchError> {
    check(volume, plan)?;
    let mut workers = DriveWorkers::start(volume.drives(), plan.reactor, Pinning::Pinned)?;
    let job = {
        let (volume, plan) = (Arc::clone(volume), plan.clone());
        move |job: u32, shared: &RowState| run_job(&volume, &plan, shared, job)
    };
    let mut progress = |fraction, _| progress(fraction, volume.stats().ios());
    let ran = run_jobs(plan, "job", job, &mut progress);
    workers.stop()?;
    let (results, mut times) = ran?;
    times.syscalls += workers.system_calls();
    let latency = match may_split(volume, plan) {
        true => latency_of(&results),
        false => volume.disks()[0].stats().total(),
    };
    let mut row = row_of(plan, &results, times, &latency);
    row.queues.serving = volume.serving_config().serving.name().to_owned();
    row.outcome.states = states_of(volume.drives());
    Ok(row)
}

fn states_of(disks: &[Arc<Disk<Native>>]) -> Vec<DriveStates> {
    disks.iter().map(|disk| DriveStates::new(disk.name(), &disk.stats())).collect()
}

pub(crate) fn check(volume: &Volume<Native>, plan: &Plan) -> Result<(), BenchError> {
    let (bs, limits) = (plan.workload.bs_bytes, volume.limits());
    check_block_size(bs, limits.logical_block_size)?;
    check_capacity(plan, volume.capacity() << 9)?;
    if plan.workload.rw.writes() {
        check_writable(volume, &format!("rw={}", plan.workload.rw))?;
    }
    if plan.workload.verify && limits.features.no_payload {
        let text = "verify: the null drive keeps no data; use ram or file".to_owned();
        return Err(BenchError::Workload(text));
    }
    check_verify(plan, volume.capacity() << 9)
}

/// Returns an error if a drive of the volume is read-only. In the message, `what` names the
/// workload.
pub(crate) fn check_writable(volume: &Volume<Native>, what: &str) -> Result<(), BenchError> {
    let read_only = |drive: &&Arc<Disk<Native>>| drive.limits().features.read_only;
    let Some(drive) = volume.drives().iter().find(read_only) else { return Ok(()) };
    let text = format!(
        "{what}: drive {} is read-only; open it for writing, or choose a read-only workload",
        drive.name()
    );
    Err(BenchError::Workload(text))
}

pub(crate) fn check_verify(plan: &Plan, bytes: u64) -> Result<(), BenchError> {
    let Workload { rw, bs_bytes, iodepth, verify, .. } = plan.workload;
    let blocks = plan.blocks(bytes) / u64::from(plan.jobs);
    let text = match verify {
        true if !rw.writes() => format!("verify: rw={rw} writes nothing; use write or randwrite"),
        true if blocks < iodepth.into() => format!(
            "verify: {blocks} blocks of {bs_bytes} bytes for each job on this device, and \
             iodepth={iodepth}: no block is written twice at once; use a smaller iodepth"
        ),
        _ => return Ok(()),
    };
    Err(BenchError::Workload(text))
}

pub(crate) fn check_block_size(bs: u32, block: u32) -> Result<(), BenchError> {
    if bs == 0 || !bs.is_multiple_of(block) {
        let text = format!("bs={bs}: not a multiple of the device's block of {block} bytes");
        return Err(BenchError::Workload(text));
    }
    Ok(())
}

/// Checks that a device of `bytes` bytes is large enough for `size` and for one I/O of each job.
pub(crate) fn check_capacity(plan: &Plan, bytes: u64) -> Result<(), BenchError> {
    let text = match plan.size_bytes {
        Some(size) if size > bytes => {
            format!("size={size}: the device has {bytes} bytes; use a smaller size")
        }
        size => return check_room(plan.workload.bs_bytes, plan.jobs, size.unwrap_or(bytes)),
    };
    Err(BenchError::Workload(text))
}

pub(crate) fn check_room(bs: u32, jobs: u32, bytes: u64) -> Result<(), BenchError> {
    if u64::from(bs) * u64::from(jobs) > bytes {
        let text = format!(
            "bs={bs}: a block for each of {jobs} jobs does not fit into the {bytes} bytes to be \
             used; use fewer jobs, a smaller bs or a larger size"
        );
        return Err(BenchError::Workload(text));
    }
    Ok(())
}

fn run_job(
    volume: &Arc<Volume<Native>>,
    plan: &Plan,
    shared: &RowState,
    job: u32,
) -> Result<JobResult, BenchError> {
    let member = shared.barrier.member();
    let config = IoConfig { number: job as u16, reactor: plan.reactor };
    let opened = IoContext::new(config).and_then(|mut context| {
        let channel = context.channel(volume, plan.workload.iodepth, plan.stamp)?;
        Ok((context, channel))
    });
    shared.ready();
    let (mut context, mut channel) = opened?;
    let blocks = plan.blocks(volume.capacity() << 9);
    let place = (job.into(), plan.jobs.into());
    let Workload { iodepth, bs_bytes, .. } = plan.workload;
    let target = ChannelTarget {
        context: &mut context,
        channel: &mut channel,
        iodepth,
        bs_bytes,
        spare: None,
    };
    let mut job = Job {
        target,
        aim: Aim::new(plan.workload, blocks, place),
        measure: may_split(volume, plan),
    };
    let mut result = job.run(&shared.until)?;
    job.read_back(&mut result)?;
    shared.add_system_calls(context.reactor().counters().system_calls);
    member.linger(&mut context, &mut channel)?;
    drop(channel);
    Ok(result)
}

fn may_split(volume: &Volume<Native>, plan: &Plan) -> bool {
    let sectors = plan.workload.bs_bytes >> 9;
    volume.disks().len() > 1
        || sectors > volume.limits().max_sectors
        || volume.disks().iter().any(|disk| cuts_requests(disk, sectors))
}

fn watch(shared: &RowState, plan: &Plan, start: Instant, progress: Progress<'_>) {
    let total = plan.ios.map(|ios| ios.saturating_mul(plan.jobs.into()));
    while shared.left.load(Ordering::Acquire) > 0 {
        let elapsed = start.elapsed();
        let done = shared.until.done.load(Ordering::Relaxed);
        let fraction = match total {
            Some(total) => done as f64 / total as f64,
            None => elapsed.as_secs_f64() / plan.runtime.as_secs_f64(),
        };
        progress(fraction.min(1.0), done);
        let step = match total {
            Some(_) => Duration::from_millis(1),
            None => plan.runtime.saturating_sub(elapsed).min(Duration::from_millis(50)),
        };
        if plan.interrupt.is_set() || total.is_none() && elapsed >= plan.runtime {
            shared.until.stop.store(true, Ordering::Relaxed);
            std::thread::yield_now();
        }
        std::thread::sleep(step.max(Duration::from_micros(200)));
    }
}

/// Returns the latencies that the jobs themselves have measured.
pub(crate) fn latency_of(results: &[JobResult]) -> Snapshot {
    let mut latency = Snapshot::default();
    results.iter().for_each(|result| latency.merge(&result.latencies));
    latency
}

/// Adds up the results of all jobs. The caller must set `Row::queues` afterwards.
pub(crate) fn row_of(plan: &Plan, results: &[JobResult], times: Times, latency: &Snapshot) -> Row {
    let total = |f: fn(&JobResult) -> u64| results.iter().map(f).sum::<u64>();
    let (ios, errors, bs) = (total(|r| r.ios), total(|r| r.errors), plan.workload.bs_bytes);
    // Failed I/Os do not count as completed.
    let done = ios.saturating_sub(errors) as f64;
    Row {
        jobs: plan.jobs,
        iodepth: plan.workload.iodepth,
        bs,
        rw: plan.workload.rw,
        stamp: plan.stamp.word().to_owned(),
        ios,
        seconds: times.seconds,
        iops: done / times.seconds,
        bw_bytes_per_s: done * f64::from(bs) / times.seconds,
        cost: Cost {
            cpu_ns_per_io: times.cpu_ns as f64 / ios.max(1) as f64,
            syscalls_per_io: times.syscalls as f64 / ios.max(1) as f64,
            notifications: None,
        },
        lat_ns: LatencyNs::of(latency),
        outcome: Outcome {
            errors,
            verified: total(|r| r.verified),
            first_error: results.iter().find_map(|r| r.first_error.clone()),
            states: Vec::new(),
        },
        ..Row::default()
    }
}

pub(crate) fn thread_usage() -> Usage {
    // SAFETY: all zeroes are a valid value of this plain structure of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes to one `rusage`, and the calling thread exists.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    Usage {
        user_us: us(usage.ru_utime),
        system_us: us(usage.ru_stime),
        switches: (usage.ru_nvcsw + usage.ru_nivcsw) as u64,
        major_faults: usage.ru_majflt as u64,
        minor_faults: usage.ru_minflt as u64,
    }
}

pub(crate) fn process_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to one `timespec`, and the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
