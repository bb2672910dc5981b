//! Runs the jobs of a job file on volumes, with a thread for each clone of a job (`numjobs`).
//!
//! The caller of `run_jobs` creates the volumes. Jobs with `stonewall` divide the file into phases.
//! `run_jobs` starts the clones of a phase together, and waits for all of them before the next
//! phase. It adds up the counts of clones that report as a group. `bench --jobfile` calls this
//! file.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use millrace_block::{Disk, Stamp, Volume};
use millrace_drives::memory_bytes;
use millrace_machine::{CpuId, Machine, Native};
use millrace_random::SplitMix64;
use millrace_reactor::Config;
use millrace_runtime::{DriveWorkers, IoConfig, IoContext, Pinning};

use super::blocks::Sizes;
use super::flow::FlowGroups;
use super::page_cache::CachedRange;
use super::source::{Source, Span};
use super::spec::{JobFile, JobSpec};
use super::tally::Tally;
use super::value::Amount;
use super::worker::{Setting, Worker};
use crate::load::bench::{BenchError, Interrupt, Progress, check_writable};
use crate::load::drain_barrier::{DrainBarrier, serve_while};
use crate::load::threads::{cpu_of, join_all};

/// Settings of a run of jobs.
#[derive(Debug, Clone, Default)]
pub struct JobSetting {
    /// Settings of the I/O threads' rings.
    pub reactor: Config,
    /// True if jobs do I/O to the files that they name; jobs with `invalidate` then drop these
    /// files from the page cache.
    pub on_files: bool,
    /// Flag that ends all jobs early when the caller sets it.
    pub interrupt: Interrupt,
}

/// Counts of the I/Os of a job, or of a group of jobs.
#[derive(Debug, Clone, PartialEq)]
pub struct JobReport {
    /// Index of the job in its file. In a group, the index of the first job.
    pub job: usize,
    /// Number of jobs whose counts are summed.
    pub members: u32,
    /// Index of the job's group, from 0. A job with `new_group` or `stonewall` begins a group.
    pub group: u32,
    pub(super) tally: Tally,
}

#[derive(Clone)]
struct Instance {
    job: usize,
    clone: u32,
    number: u16,
    group: u32,
}

struct PhaseState {
    file: JobFile,
    setting: JobSetting,
    start: Barrier,
    barrier: DrainBarrier,
    flows: FlowGroups,
    running: Vec<AtomicU32>,
}

struct RunningClone<'a>(&'a AtomicU32);

impl Drop for RunningClone<'_> {
    fn drop(&mut self) {
        // Relaxed: no data depends on the number of running clones. A job that sees an old number
        // checks again later.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PhaseState {
    fn new(file: &JobFile, phase: &[Instance], setting: &JobSetting) -> PhaseState {
        let flows = phase.iter().filter_map(|instance| file.jobs[instance.job].flow.flow);
        let running: Vec<AtomicU32> = file.jobs.iter().map(|_| AtomicU32::new(0)).collect();
        for instance in phase {
            running[instance.job].fetch_add(1, Ordering::Relaxed);
        }
        PhaseState {
            file: file.clone(),
            setting: setting.clone(),
            start: Barrier::new(phase.len()),
            barrier: DrainBarrier::new(phase.len()),
            flows: FlowGroups::new(flows),
            running,
        }
    }

    fn must_wait(&self, job: usize) -> bool {
        let Some(awaited) = &self.file.jobs[job].crowd.wait_for else { return false };
        let mut above = self.file.jobs[..job].iter().zip(&self.running);
        above.any(|(job, count)| job.name == *awaited && count.load(Ordering::Relaxed) > 0)
    }
}

type InstanceResult = (Instance, Result<Tally, BenchError>);

/// Runs the jobs of a file: clone j of job i on `volumes[i][j]`, or on `volumes[i][0]` if all
/// clones share a volume. The volumes must have been created for as many I/O threads as there are
/// clones of all jobs.
///
/// If jobs of a later phase cannot be set up, the error comes with the reports of the jobs that
/// have already ended.
///
/// # Errors
/// If a job does not fit its volume, or a thread or a queue of the first phase cannot be set up.
pub fn run_jobs(
    file: &JobFile,
    volumes: &[Vec<Arc<Volume<Native>>>],
    setting: &JobSetting,
    progress: Progress<'_>,
) -> Result<(Vec<JobReport>, Option<BenchError>), BenchError> {
    check(file, volumes)?;
    let mut disks: Vec<Arc<Disk<Native>>> = Vec::new();
    for disk in volumes.iter().flatten().flat_map(|volume| volume.disks()) {
        if !disks.iter().any(|known| Arc::ptr_eq(known, disk)) {
            disks.push(Arc::clone(disk));
        }
    }
    let mut workers = DriveWorkers::start(&disks, setting.reactor, Pinning::Pinned)?;
    let instances = instances(file);
    let (mut reports, mut failed) = (Vec::new(), None);
    let is_same = |a: &Instance, b: &Instance| a.job == b.job || !file.jobs[b.job].crowd.stonewall;
    let phases: Vec<&[Instance]> = instances.chunk_by(is_same).collect();
    for (at, phase) in phases.iter().enumerate() {
        if setting.interrupt.is_set() && !reports.is_empty() {
            break;
        }
        let mut progress =
            |fraction, ios| progress((at as f64 + fraction) / phases.len() as f64, ios);
        match run_phase(file, phase, volumes, (setting, &mut progress)) {
            Ok(mut ended) => reports.append(&mut ended),
            Err(error) if reports.is_empty() => return Err(error),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    workers.stop()?;
    Ok((group(file, reports), failed))
}

fn instances(file: &JobFile) -> Vec<Instance> {
    let (mut all, mut group, mut first) = (Vec::new(), 0, 0);
    for (job, spec) in file.jobs.iter().enumerate() {
        if (spec.crowd.stonewall || spec.crowd.new_group) && !all.is_empty() {
            group += 1;
        }
        if spec.crowd.stonewall {
            // In each phase (the jobs between two stonewalls), the clones are numbered from 0. A
            // clone uses the queues with its number. The next phase uses the same queues again.
            first = all.len();
        }
        for clone in 0..spec.crowd.numjobs {
            all.push(Instance { job, clone, number: (all.len() - first) as u16, group });
        }
    }
    all
}

fn check(file: &JobFile, volumes: &[Vec<Arc<Volume<Native>>>]) -> Result<(), BenchError> {
    check_buffers(file)?;
    let topology = Native::topology();
    for (job, volumes) in file.jobs.iter().zip(volumes) {
        let wrong = |text: String| {
            Err(BenchError::Workload(format!("{}: job {}: {text}", job.place, job.name)))
        };
        let known = |cpu: &&u32| topology.cpus().iter().any(|known| known.id == CpuId(**cpu));
        if let Some(cpu) = job.crowd.cpus.iter().find(|cpu| !known(cpu)) {
            let count = topology.cpus().len();
            return wrong(format!(
                "cpus_allowed: CPU {cpu} is none of the {count} that this process may use; leave it \
                 out"
            ));
        }
        let block = volumes.iter().map(|volume| volume.limits().logical_block_size).max();
        let block = block.unwrap_or(512);
        for (sizes, _) in job.shape.sizes.iter().zip(job.kind.has).filter(|(_, has)| *has) {
            if !sizes.are_multiples_of(block) {
                let bs = sizes.least();
                return wrong(format!("bs={bs}: the device has blocks of {block} bytes"));
            }
        }
        let aligns = job.shape.align.iter().zip(job.kind.has).filter(|(_, has)| *has);
        if let Some(to) = aligns.filter_map(|(to, _)| *to).find(|to| !to.is_multiple_of(block)) {
            return wrong(format!("blockalign={to}: the device has blocks of {block} bytes"));
        }
        for clone in 0..job.crowd.numjobs {
            let volume = volume_of(volumes, clone);
            if let Err(text) = span_of(job, clone, volume.capacity() << 9) {
                return wrong(text);
            }
        }
        for volume in volumes {
            if job.changes_data()
                && let Err(error) = check_writable(volume, "rw")
            {
                return wrong(error.to_string());
            }
            if job.shape.verify.is_some() && volume.limits().features.no_payload {
                return wrong("verify: the null drive keeps no data; use ram or file".to_owned());
            }
        }
    }
    Ok(())
}

fn volume_of(volumes: &[Arc<Volume<Native>>], clone: u32) -> &Arc<Volume<Native>> {
    &volumes[clone as usize % volumes.len()]
}

/// Checks that the buffers of jobs that run together fit into half of the memory. Larger buffers
/// would push other programs out of memory long before an allocation failed. Trims have no buffers.
fn check_buffers(file: &JobFile) -> Result<(), BenchError> {
    let Some(memory) = memory_bytes() else { return Ok(()) };
    let mut all = 0_u64;
    for job in &file.jobs {
        let longest = u64::from(job.buffer_bytes());
        let (depth, jobs) = (job.flow.iodepth, job.crowd.numjobs);
        let buffers = longest.saturating_mul(depth.into()).saturating_mul(jobs.into());
        all = if job.crowd.stonewall { buffers } else { all.saturating_add(buffers) };
        if all > memory / 2 {
            let others = if all > buffers { ", with the jobs beside it" } else { "" };
            return Err(BenchError::Workload(format!(
                "{}: job {}: bs={longest} iodepth={depth} numjobs={jobs}: buffers of {} MiB{others}, \
                 and this machine has {} MiB of memory; lower one of them",
                job.place,
                job.name,
                all >> 20,
                memory >> 20
            )));
        }
    }
    Ok(())
}

fn span_of(job: &JobSpec, clone: u32, device: u64) -> Result<Span, String> {
    let region = &job.region;
    let used = || job.shape.sizes.iter().zip(job.kind.has).filter(|(_, has)| *has);
    // As in fio, the region must have room for the smallest I/O of any direction, even of a
    // direction that the job does not use.
    let least = job.shape.sizes.iter().map(Sizes::least).min().map_or(1, u64::from);
    let bytes = |amount: Option<Amount>| amount.map_or(0, |amount| amount.of(device));
    let increment = bytes(region.offset_increment).saturating_mul(clone.into());
    let begin = bytes(region.offset).saturating_add(increment);
    // An offset in percent is rounded up to `offset_align`, by default the smallest I/O size.
    let is_share = |amount| matches!(amount, Some(Amount::Percent(share)) if share > 0.0);
    let begin = if is_share(region.offset) || is_share(region.offset_increment) {
        let align = region.offset_align.unwrap_or(least);
        begin.div_ceil(align).saturating_mul(align)
    } else {
        begin
    };
    let left = device.saturating_sub(begin);
    let size = match region.size {
        Some(Amount::Bytes(bytes)) => bytes,
        // As in fio, round a size in percent down to whole I/Os, unless the size reaches the end of
        // the device.
        Some(share) => match share.of(device) {
            bytes if bytes >= left => left,
            bytes => bytes / least * least,
        },
        None => left.min(region.file_size.unwrap_or(left)),
    };
    let size = match region.file_size {
        Some(file_size) if file_size > begin => size.min(file_size - begin),
        _ => size,
    };
    let longest = used().map(|(sizes, _)| sizes.most()).max().unwrap_or(1);
    if begin < device && size <= left && u64::from(longest) > size {
        return Err(format!("bs={longest}: longer than the {size} bytes to work on"));
    }
    if begin >= device || size > left {
        return Err(format!(
            "offset={begin} and size={size}: the device has {device} bytes; use less of it"
        ));
    }
    if !begin.is_multiple_of(512) {
        return Err(format!("offset={begin}: not a multiple of 512; round it"));
    }
    let io_size = region.io_size.map_or(size, |amount| amount.of(size));
    Ok(Span { begin, size, io_size, device })
}

fn run_phase(
    file: &JobFile,
    phase: &[Instance],
    volumes: &[Vec<Arc<Volume<Native>>>],
    (setting, progress): (&JobSetting, Progress<'_>),
) -> Result<Vec<(Instance, Tally)>, BenchError> {
    let shared = Arc::new(PhaseState::new(file, phase, setting));
    let (sender, receiver) = channel();
    let spawn = |instance: &Instance| {
        let crowd = &file.jobs[instance.job].crowd;
        let cpu = cpu_of(&crowd.cpus, instance.clone);
        let (shared, instance) = (Arc::clone(&shared), instance.clone());
        let (volume, sender) =
            (Arc::clone(volume_of(&volumes[instance.job], instance.clone)), Sender::clone(&sender));
        let body = move || {
            let result = run_instance(&shared, &instance, &volume);
            // Sending cannot fail: the thread that started the jobs keeps the receiver until all
            // job threads have ended.
            let _ = sender.send((instance, result));
        };
        Native::spawn("job", cpu.map(CpuId), Box::new(body))
    };
    let threads: Vec<_> = phase.iter().map(spawn).collect();
    drop(sender);
    let mut used: Vec<_> = volumes.iter().flatten().collect();
    used.sort_by_key(|volume| Arc::as_ptr(volume));
    used.dedup_by_key(|volume| Arc::as_ptr(volume));
    let ios = || used.iter().map(|volume| volume.stats().ios()).sum();
    let mut ended = watch(file, phase, &receiver, &mut |fraction| progress(fraction, ios()));
    join_all(threads)?;
    ended.sort_by_key(|(instance, _)| instance.number);
    ended.into_iter().map(|(instance, result)| Ok((instance, result?))).collect()
}

fn watch(
    file: &JobFile,
    phase: &[Instance],
    receiver: &Receiver<InstanceResult>,
    progress: &mut dyn FnMut(f64),
) -> Vec<InstanceResult> {
    let time_ns = |instance: &Instance| {
        let span = &file.jobs[instance.job].span;
        Some(span.ramp_ns.saturating_add(span.delay_ns.1).saturating_add(span.runtime_ns?))
    };
    let longest = phase.iter().map(time_ns).try_fold(0, |most, time| Some(time?.max(most)));
    let (start, mut ended) = (Instant::now(), Vec::new());
    loop {
        let share =
            |longest_ns: u64| start.elapsed().as_secs_f64() * 1e9 / longest_ns.max(1) as f64;
        progress(longest.map_or(0.0, |longest_ns| share(longest_ns).min(1.0)));
        match receiver.recv_timeout(Duration::from_millis(50)) {
            Ok(one) => ended.push(one),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return ended,
        }
    }
}

fn run_instance(
    shared: &PhaseState,
    instance: &Instance,
    volume: &Arc<Volume<Native>>,
) -> Result<Tally, BenchError> {
    let (job, clone) = (&shared.file.jobs[instance.job], u64::from(instance.clone));
    let member = shared.barrier.member();
    let running = RunningClone(&shared.running[instance.job]);
    let flow = job.flow.flow.map(|flow| shared.flows.member(flow));
    let config = IoConfig { number: instance.number, reactor: shared.setting.reactor };
    let opened = IoContext::new(config).and_then(|mut context| {
        let channel = context.channel(volume, job.flow.iodepth, Stamp::Batch)?;
        Ok((context, channel))
    });
    // If the setup failed, do not return the error before the barrier, where the other clones wait.
    let salt = if job.shape.repeat { 0 } else { seed_of_now() };
    let place = |text| BenchError::Workload(format!("{}: job {}: {text}", job.place, job.name));
    let made = span_of(job, instance.clone, volume.capacity() << 9)
        .and_then(|span| {
            let cached = match shared.setting.on_files {
                true => CachedRange::of(job, instance.clone, span)?,
                false => None,
            };
            Ok((span, Source::new(job, span, clone ^ salt)?, cached))
        })
        .map_err(place);
    shared.start.wait();
    let ((mut context, mut channel), (span, source, cached)) = (opened?, made?);
    let interrupt = &shared.setting.interrupt;
    let begin_ns = Native::now().saturating_add(delay_ns(job, clone));
    let must_wait = || shared.must_wait(instance.job) && !interrupt.is_set();
    serve_while(&mut context, &mut channel, u64::MAX, must_wait)?;
    serve_while(&mut context, &mut channel, begin_ns, || !interrupt.is_set())?;
    let setting = Setting { job, span, cached, clone, salt, interrupt };
    let tally = Worker::new(&setting, source, &mut context, &mut channel).with_flow(flow).run()?;
    drop(running);
    member.linger(&mut context, &mut channel)?;
    drop(channel);
    Ok(tally)
}

fn delay_ns(job: &JobSpec, clone: u64) -> u64 {
    let (first, last) = job.span.delay_ns;
    first + SplitMix64::new(job.shape.seed.wrapping_add(clone)).below(last - first + 1)
}

fn seed_of_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |since| since.as_nanos() as u64)
}

fn group(file: &JobFile, tallies: Vec<(Instance, Tally)>) -> Vec<JobReport> {
    let mut reports: Vec<JobReport> = Vec::new();
    for (instance, tally) in tallies {
        let together = file.jobs[instance.job].crowd.group_reporting;
        match reports.last_mut().filter(|last| together && last.group == instance.group) {
            Some(last) => {
                last.tally.merge(&tally);
                last.members += 1;
            }
            None => reports.push(JobReport {
                job: instance.job,
                members: 1,
                group: instance.group,
                tally,
            }),
        }
    }
    reports
}

#[cfg(test)]
#[path = "run/tests.rs"]
mod tests;
