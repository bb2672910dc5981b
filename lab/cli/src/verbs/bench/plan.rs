//! Turns the arguments of `bench` into configurations to measure, in a stable order.
//!
//! This module opens no drive. If flags have lists of values, `bench` measures each combination of
//! values. If no argument selects a measurement, `bench` measures the null drive with:
//! - mq, sq and raw, at depth 1 and 32, with different numbers of CPUs.
//! - mq with one job and a timestamp for every I/O, as in SPDK's bdevperf.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use millrace::{
    CpuId, DriveOptions, Machine, Native, SchedulerKind, Serving, ServingConfig, Spread, Stack,
    Stamp, Topology, VolumeOptions, Words, check_serving, default_serving, needs_workers,
    worker_cpus,
};
use millrace_console::words::{bytes_for_people, design, ranges, size};
use millrace_drives::{memory_bytes, size_text};
use millrace_experiments::{Interrupt, Plan, Workload};
use millrace_machine::{Cpu, NodeId};
use millrace_reactor::Config;

use super::args::{ALL_CPUS, BenchArgs};

const RUNTIME: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct RowPlan {
    pub stack: Stack,
    pub scheduler: SchedulerKind,
    pub software_queues: Spread,
    pub hardware_queues: Spread,
    pub cpus: u32,
    pub serving: ServingConfig,
    /// CPUs of the drives' workers; empty if the serving mode or the volume uses no workers.
    pub workers: Vec<u32>,
    pub plan: Plan,
}

impl RowPlan {
    pub fn volume_options(&self, args: &BenchArgs, io_threads: u16) -> Result<VolumeOptions> {
        let drive = DriveOptions {
            stack: self.stack,
            scheduler: self.scheduler,
            software_queues: self.software_queues,
            hardware_queues: self.hardware_queues,
            ..DriveOptions::default()
        };
        Ok(VolumeOptions {
            drive,
            io_threads,
            groups: Vec::new(),
            controllers: args.target.controllers()?,
            serving: self.serving,
            worker_cpus: self.workers.iter().copied().map(CpuId).collect(),
            trace_ring: args.trace.trace_ring as usize,
        })
    }

    pub fn label(&self) -> String {
        let (stack, plan) = (design(self.stack, self.scheduler), &self.plan);
        let (workload, serving) = (&plan.workload, self.serving.serving.name());
        format!(
            "{stack} {serving} {} bs={} depth={} jobs={}",
            workload.rw, workload.bs_bytes, workload.iodepth, plan.jobs
        )
    }
}

#[derive(Debug, Clone)]
struct Place {
    cpus: Vec<u32>,
    jobs: u32,
}

/// Returns a plan for each row of the result table. The plans use only CPUs that this process may
/// use.
pub fn rows(args: &BenchArgs) -> Result<Vec<RowPlan>> {
    let all: Vec<u32> = Native::topology().cpus().iter().map(|cpu| cpu.id.0).collect();
    let mut rows = rows_on(args, &all)?;
    // If no flag selects CPUs, the kernel places the jobs, as it places fio's jobs and the daemon's
    // threads.
    if args.queues.cpus.is_empty() && args.queues.cpu_list.is_empty() {
        rows.iter_mut().filter(|row| row.workers.is_empty()).for_each(|row| row.plan.cpus.clear());
    }
    Ok(rows)
}

/// Returns a plan for each row of the result table. `all` lists the CPUs that the plans may use:
/// all CPUs of a simulated machine, or the CPUs of this machine that this process may use.
pub fn rows_on(args: &BenchArgs, all: &[u32]) -> Result<Vec<RowPlan>> {
    check_drives(args)?;
    let rows = queue_plans(args, all)?;
    // A simulated machine is not limited by the size of this machine's memory.
    check_memory(&rows, memory_bytes().filter(|_| args.machine.machine.is_none()))?;
    let mut served = Vec::new();
    for row in rows {
        let stacks = vec![row.stack; args.target.drive.len()];
        for serving in &args.serving.configs(default_serving(&stacks))? {
            check_queues(row.stack, (row.software_queues, row.hardware_queues), serving.serving)?;
            let workers = workers(args, serving.serving, &row.plan.cpus, all)?;
            served.push(RowPlan { serving: *serving, workers, ..row.clone() });
        }
    }
    check_workers(args, served.iter().map(|row| row.workers.len()).sum())?;
    Ok(served)
}

pub fn check_workers(args: &BenchArgs, workers: usize) -> Result<()> {
    if !args.serving.workers.is_empty() && workers == 0 {
        bail!(
            "--workers: none of these rows has workers; give several --drive, and --serving \
             per-drive or auto"
        );
    }
    Ok(())
}

pub fn check_queues(
    stack: Stack,
    (software_queues, hardware_queues): (Spread, Spread),
    serving: Serving,
) -> Result<()> {
    if let Err(text) = check_serving(serving, stack) {
        bail!("--{text}");
    }
    if stack != Stack::Mq && software_queues != Spread::Core {
        let (word, stack) = (software_queues.word(), stack.word());
        bail!("--software-queues {word}: only --stack mq has software queues, not {stack}");
    }
    if stack == Stack::Sq && hardware_queues != Spread::Core {
        let word = hardware_queues.word();
        bail!("--hardware-queues {word}: --stack sq has one queue, even if its drive has several");
    }
    Ok(())
}

/// Refuses flags that a single drive would ignore.
pub fn check_drives(args: &BenchArgs) -> Result<()> {
    if args.target.drive.len() > 1 || args.target.connect.is_some() {
        return Ok(());
    }
    if let Some(chunk) = args.target.chunk {
        bail!("--chunk {}: a stripe needs several drives; give several --drive", size_text(chunk));
    }
    let with_workers = |serving: &&Serving| matches!(serving, Serving::PerDrive | Serving::Auto);
    if let Some(serving) = args.serving.serving.iter().find(with_workers) {
        let name = serving.name();
        bail!(
            "--serving {name}: only volumes of several drives have drive workers; give --drive \
             more than once"
        );
    }
    Ok(())
}

/// Refuses a plan whose I/O buffers need more than half of the machine's memory.
fn check_memory(rows: &[RowPlan], memory_bytes: Option<u64>) -> Result<()> {
    let Some(memory_bytes) = memory_bytes else { return Ok(()) };
    for RowPlan { plan, .. } in rows {
        let (bs_bytes, iodepth) = (plan.workload.bs_bytes, plan.workload.iodepth);
        let each = u64::from(bs_bytes) * u64::from(iodepth);
        let all = each.saturating_mul(plan.jobs.into());
        if all > memory_bytes / 2 {
            bail!(
                "--bs {}: {} with --iodepth {iodepth} need buffers of {}, and this machine has {} \
                 of memory; lower --bs, --iodepth or --jobs",
                size_text(bs_bytes.into()),
                millrace_console::counted(plan.jobs as usize, "job"),
                bytes_for_people(all),
                bytes_for_people(memory_bytes)
            );
        }
    }
    Ok(())
}

/// Returns the CPUs of the drives' workers, for jobs that are not bound to CPUs.
pub fn worker_list(args: &BenchArgs, serving: Serving) -> Result<Vec<CpuId>> {
    let all: Vec<u32> = Native::topology().cpus().iter().map(|cpu| cpu.id.0).collect();
    Ok(workers(args, serving, &[], &all)?.into_iter().map(CpuId).collect())
}

fn workers(args: &BenchArgs, serving: Serving, jobs: &[u32], all: &[u32]) -> Result<Vec<u32>> {
    let given: Vec<u32> = args.serving.workers.iter().flat_map(|cpus| cpus.0..=cpus.1).collect();
    if let Some(cpu) = given.iter().find(|cpu| !all.contains(cpu)) {
        bail!("--workers {cpu}: this program may not use this CPU; it may use {}", ranges(all));
    }
    if !needs_workers(serving, args.target.drive.len()) {
        return Ok(Vec::new());
    }
    if !given.is_empty() {
        return Ok(given);
    }
    let cpu = |id: &u32| Cpu { id: CpuId(*id), node: NodeId(0) };
    let topology = Topology::new(all.iter().map(cpu).collect());
    let busy: Vec<CpuId> = jobs.iter().copied().map(CpuId).collect();
    Ok(worker_cpus(&topology, &busy).into_iter().map(|cpu| cpu.0).collect())
}

fn queue_plans(args: &BenchArgs, all: &[u32]) -> Result<Vec<RowPlan>> {
    let default = args.target.drive.is_empty() && args.target.connect.is_none();
    let bare = default
        && args.queues.numjobs.is_empty()
        && args.queues.cpus.is_empty()
        && args.queues.cpu_list.is_empty();
    let stacks = match args.queues.stack.as_slice() {
        [] if bare && args.workload.iodepth.is_empty() => vec![Stack::Mq, Stack::Sq, Stack::Raw],
        [] => vec![Stack::Mq],
        given => given.to_vec(),
    };
    let depths = match args.workload.iodepth.as_slice() {
        [] if bare => vec![1, 32],
        [] => vec![32],
        given => given.to_vec(),
    };
    let (kinds, sizes) =
        (args.workload.kinds()?, block_sizes(args, if default { 512 } else { 4096 })?);
    let mut rows = Vec::new();
    let unasked = if bare { core_counts(all.len()) } else { vec![0] };
    for place in places(args, unasked, all)? {
        for (rw, bs_bytes) in product(&kinds, &sizes) {
            for (iodepth, stamp) in product(&depths, &args.workload.stamp) {
                let workload = Workload {
                    rw,
                    bs_bytes,
                    iodepth,
                    verify: args.workload.verify,
                    seed: args.workload.seed,
                };
                rows.extend(queue_rows(args, &stacks, &place, (workload, stamp)));
            }
        }
    }
    if bare && args.queues.stack.is_empty() && args.workload.iodepth.is_empty() {
        let stamped = |row: &&RowPlan| row.stack == Stack::Mq && row.plan.jobs == 1;
        let mut more: Vec<RowPlan> = rows.iter().filter(stamped).cloned().collect();
        more.iter_mut().for_each(|row| row.plan.stamp = Stamp::Io);
        rows.append(&mut more);
    }
    Ok(rows)
}

/// Returns the configurations to measure with one workload and one list of CPUs: one for each
/// combination of design, scheduler and queue settings.
fn queue_rows(
    args: &BenchArgs,
    stacks: &[Stack],
    place: &Place,
    (workload, stamp): (Workload, Stamp),
) -> Vec<RowPlan> {
    let plan = Plan {
        workload,
        jobs: place.jobs,
        cpus: place.cpus.clone(),
        runtime: args.workload.runtime.unwrap_or(RUNTIME),
        ios: args.workload.ios,
        stamp,
        reactor: Config { backend: args.target.backend, ..Config::default() },
        size_bytes: args.workload.size,
        interrupt: Interrupt::default(),
    };
    let mut rows = Vec::new();
    for (software_queues, hardware_queues) in
        product(&args.queues.software_queues, &args.queues.hardware_queues)
    {
        for (stack, scheduler) in product(stacks, &args.queues.scheduler) {
            let (cpus, plan) = (place.cpus.len() as u32, plan.clone());
            rows.push(RowPlan {
                stack,
                scheduler,
                software_queues,
                hardware_queues,
                cpus,
                serving: ServingConfig::default(),
                workers: Vec::new(),
                plan,
            });
        }
    }
    rows
}

fn block_sizes(args: &BenchArgs, default_bytes: u32) -> Result<Vec<u32>> {
    if args.workload.bs.is_empty() {
        return Ok(vec![default_bytes]);
    }
    let mut sizes = Vec::new();
    for text in &args.workload.bs {
        match size(text).map_err(|wrong| anyhow!("--bs {text}: {wrong}"))? {
            bytes if bytes >= 512 && bytes % 512 == 0 && bytes <= 1 << 30 => {
                sizes.push(bytes as u32);
            }
            _ => bail!("--bs {text}: write a multiple of 512 up to 1g, such as 4k"),
        }
    }
    Ok(sizes)
}

/// Returns each combination of CPUs and number of jobs. If no flag selects CPUs, the CPU counts in
/// `unasked` are used, where 0 means one CPU per job.
fn places(args: &BenchArgs, unasked: Vec<usize>, all: &[u32]) -> Result<Vec<Place>> {
    if let Some(cpu) = args.queues.cpu_list.iter().find(|cpu| !all.contains(cpu)) {
        bail!("--cpu-list {cpu}: this program may not use this CPU; it may use {}", ranges(all));
    }
    let counts = match args.queues.cpus.as_slice() {
        _ if !args.queues.cpu_list.is_empty() => vec![args.queues.cpu_list.len()],
        [] => unasked,
        given => given.iter().map(|count| count_of(*count, all.len())).collect(),
    };
    let mut places = Vec::new();
    for count in counts {
        if count > all.len() || (count == 0 && !args.queues.cpus.is_empty()) {
            let cpus = millrace_console::counted(all.len(), "CPU");
            bail!("--cpus {count}: this program may use {cpus}; write 1 to {}, or all", all.len());
        }
        let jobs = if args.queues.numjobs.is_empty() {
            vec![count.max(1) as u32]
        } else {
            args.queues.numjobs.clone()
        };
        for jobs in jobs {
            let cpus = match (args.queues.cpu_list.as_slice(), count) {
                ([], 0) => all[..all.len().min(jobs as usize)].to_vec(),
                ([], count) => all[..count].to_vec(),
                (list, _) => list.to_vec(),
            };
            places.push(Place { cpus, jobs });
        }
    }
    Ok(places)
}

fn count_of(count: u32, all: usize) -> usize {
    if count == ALL_CPUS { all } else { count as usize }
}

/// Returns the counts of CPUs to compare: 1, 2, 4 and so on, and all.
fn core_counts(all: usize) -> Vec<usize> {
    let mut counts: Vec<usize> =
        std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < all).collect();
    counts.push(all);
    counts
}

fn product<A: Copy, B: Copy>(a: &[A], b: &[B]) -> Vec<(A, B)> {
    a.iter().flat_map(|x| b.iter().map(move |y| (*x, *y))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use millrace_experiments::Rw;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn plan(text: &str) -> Vec<RowPlan> {
        let words = std::iter::once("bench").chain(text.split_whitespace());
        rows(&Command::try_parse_from(words).unwrap().bench).unwrap()
    }

    #[test]
    fn without_arguments_it_is_the_comparison_on_each_core_count() {
        let rows = plan("");
        let cores = core_counts(Native::topology().cpus().len()).len();
        assert_eq!(rows.len(), 3 * 2 * cores + 2);
        assert_eq!(rows.last().map(|row| row.plan.stamp), Some(Stamp::Io));
    }

    #[test]
    fn words_of_fio_are_understood() {
        let rows = plan("--rw randrw,randread --rwmixread 70 --size 1g --runtime 5 --numjobs 2");
        let kinds: Vec<_> = rows.iter().map(|row| row.plan.workload.rw).collect();
        assert_eq!(kinds, [Rw::RandRw { read_percent: 70 }, Rw::RandRead]);
        let first = &rows[0].plan;
        assert_eq!((first.size_bytes, first.runtime.as_secs(), first.jobs), (Some(1 << 30), 5, 2));
        assert_eq!(plan("--jobs 2 --iodepth 1")[0].plan.jobs, 2);
        let long = plan("--readwrite write --blocksize 8k --iodepth 1 --jobs 1");
        let workload = &long[0].plan.workload;
        assert_eq!((long.len(), workload.rw, workload.bs_bytes), (1, Rw::Write, 8192));
        let args = Command::try_parse_from(["bench", "--rwmixread", "70"]).unwrap().bench;
        let wrong = super::rows(&args).unwrap_err().to_string();
        assert_eq!(wrong, "--rwmixread 70: only randrw has a share of reads; add --rw randrw");
    }

    #[test]
    fn comma_lists_make_every_combination() {
        let rows = plan("--stack mq,sq --iodepth 1,8,64 --bs 512,4k --jobs 1");
        assert_eq!(rows.len(), 12);
        assert_eq!(rows[11].plan.workload.bs_bytes, 4096);
        assert_eq!(rows[1].stack, Stack::Sq);
    }

    #[test]
    fn modes_make_rows_and_workers_run_where_no_job_does() {
        let command = "--drive null --drive null --serving inline,per-drive,per-volume,auto";
        let args = |more: &str| {
            let text = format!("bench {command} {more}");
            Command::try_parse_from(text.split_whitespace()).unwrap().bench
        };
        let rows = rows_on(&args("--jobs 2"), &[0, 1, 2, 3]).unwrap();
        let seen: Vec<_> = rows.iter().map(|row| (row.serving.serving, &row.workers[..])).collect();
        let free: &[u32] = &[2, 3];
        let expected = [
            (Serving::Inline, &[][..]),
            (Serving::PerDrive, free),
            (Serving::PerVolume, &[]),
            (Serving::Auto, free),
        ];
        assert_eq!(seen, expected);
        let rows = rows_on(&args("--workers 0,2-3 --plug-high 8"), &[0, 1, 2, 3]).unwrap();
        assert_eq!(rows[1].workers, [0, 2, 3]);
        assert_eq!((rows[1].serving.plug_high, rows[1].serving.plug_low), (8, 8));
        let wrong = rows_on(&args("--workers 4"), &[0, 1, 2, 3]).unwrap_err();
        let text = "--workers 4: this program may not use this CPU; it may use 0-3";
        assert_eq!(wrong.to_string(), text);
        let wrong = rows_on(&args("--stack mq,raw"), &[0]).unwrap_err().to_string();
        assert!(wrong.contains("serving = per-drive requires stack = mq, not raw"), "{wrong}");
        let alone = |text: &str| {
            let words = format!("bench --jobs 1 {text}");
            rows_on(&Command::try_parse_from(words.split_whitespace()).unwrap().bench, &[0])
        };
        let wrong = alone("--stack mq,raw --software-queues one").unwrap_err().to_string();
        assert!(wrong.starts_with("--software-queues one: only --stack mq has"), "{wrong}");
        assert!(alone("--stack mq,raw --software-queues core").is_ok());
        let wrong = rows_on(&args("--plug-low 64"), &[0]).unwrap_err().to_string();
        assert_eq!(wrong, "--plug-low = 64 is above plug-high = 32");
    }

    #[test]
    fn buffers_beyond_memory_are_refused_with_advice() {
        let rows = plan("--bs 1g --jobs 1 --iodepth 1");
        assert!(check_memory(&rows, Some(2 << 30)).is_ok() && check_memory(&rows, None).is_ok());
        let rows = plan("--bs 64m --jobs 2 --iodepth 8");
        let error = check_memory(&rows, Some(1 << 30)).unwrap_err().to_string();
        let said = "--bs 64m: 2 jobs with --iodepth 8 need buffers of 1 GiB, and this machine has \
                    1 GiB of memory; lower --bs, --iodepth or --jobs";
        assert_eq!(error, said);
    }

    #[test]
    fn core_counts_double_and_end_with_all() {
        assert_eq!(core_counts(1), [1]);
        assert_eq!(core_counts(6), [1, 2, 4, 6]);
        assert_eq!(core_counts(8), [1, 2, 4, 8]);
    }
}
