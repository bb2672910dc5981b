//! A run of fio: its jobs at the same time, what each got, and the CPU time that it took.
//!
//! Owns fio's process, which ends when dropped, and the signals that stop the program. Called by
//! main.rs for either side; reads CPU time from `/proc` while all jobs are at work, so that it goes
//! with the I/Os that fio reports.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millrace_block::{CostModel, Op};
use millrace_experiments::load::contention::jain;
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::compare::{Outcome, cpu_us, fio_jobs};
use crate::kernel::Group;
use crate::settings::{Cell, Client, Settings};

/// Signals that end the program, after it has cleaned up.
pub struct Stop(Signals);

impl Stop {
    pub fn new() -> Outcome<Stop> {
        Ok(Stop(Signals::new([SIGHUP, SIGINT, SIGTERM])?))
    }

    /// An error if such a signal has come.
    pub fn check(&mut self) -> Outcome<()> {
        match self.0.pending().next() {
            Some(signal) => {
                Err(format!("stopped by signal {signal}; everything is removed").into())
            }
            None => Ok(()),
        }
    }
}

/// Whose CPU time stands for the server's.
pub enum Processes {
    /// The process of this `stat` file in `/proc`.
    One(PathBuf),
    /// All of the kernel's workers: those of the loop device share threads with others'.
    KernelWorkers,
}

impl Processes {
    fn cpu_us(&self) -> Outcome<f64> {
        match self {
            Processes::One(stat) => Ok(cpu_us(stat)?.iter().sum()),
            Processes::KernelWorkers => worker_us(),
        }
    }
}

/// CPU time of the threads `kworker/...` so far.
fn worker_us() -> Outcome<f64> {
    let mut sum_ns = 0;
    for process in fs::read_dir("/proc")? {
        let path = process?.path();
        // Most entries have no such file, and a worker may end meanwhile.
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        if name.starts_with("kworker/") {
            let text = fs::read_to_string(path.join("schedstat")).unwrap_or_default();
            sum_ns += text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(sum_ns as f64 / 1e3)
}

/// How the clients of a cell reach the drive.
pub struct Jobs {
    /// fio's engine and place for each.
    pub ways: Vec<Vec<String>>,
    pub processes: Processes,
    /// The control group of each, or none.
    pub groups: Vec<Group>,
}

/// What a client got.
pub struct Got {
    pub iops: f64,
    pub bytes_per_s: f64,
    /// Latency as fio saw it: p50, p99, p99.9.
    pub lat_us: [f64; 3],
    /// Of all that was got, by cost.
    pub share: f64,
}

/// One run.
pub struct Sample {
    pub clients: Vec<Got>,
    pub jain: f64,
    /// CPU time for one I/O: the server's process; or the kernel's workers, and fio in the kernel.
    pub server_us: f64,
    /// CPU time for one I/O with all of fio's.
    pub cpu_us: f64,
}

impl Sample {
    pub fn total(&self, of: fn(&Got) -> f64) -> f64 {
        self.clients.iter().map(of).sum()
    }

    pub fn to_json(&self) -> Value {
        let client = |got: &Got| {
            let [p50, p99, p999] = got.lat_us;
            json!({ "iops": got.iops, "bytes_per_s": got.bytes_per_s, "share": got.share,
                    "p50_us": p50, "p99_us": p99, "p99_9_us": p999 })
        };
        let clients: Vec<Value> = self.clients.iter().map(client).collect();
        json!({ "clients": clients, "jain": self.jain, "server_us_per_io": self.server_us,
                "cpu_us_per_io": self.cpu_us })
    }
}

/// fio while it runs; ended by its pid, and reaped, when dropped.
struct Fio(Option<Child>);

impl Drop for Fio {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        // Told so, fio ends its jobs, which are processes of their own. A child that is not reaped
        // keeps its pid, so this meets no other process.
        let _ = Command::new("kill").arg(child.id().to_string()).status();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) && matches!(child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// fio's options for all jobs, then for each.
fn command(jobs: &Jobs, (cell, settings): (&Cell, &Settings), dir: &Path) -> Command {
    let mut command = Command::new("fio");
    command.current_dir(dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.args(["--time_based", "--norandommap", "--randrepeat=0", "--output-format=json"]);
    command.args(["--clat_percentiles=0", "--lat_percentiles=1", "--percentile_list=50:99:99.9"]);
    command.arg(format!("--ramp_time={}", settings.ramp_s));
    command.arg(format!("--runtime={}", settings.seconds));
    command.arg(format!("--size={}", settings.size_bytes));
    for (place, (client, way)) in cell.clients.iter().zip(&jobs.ways).enumerate() {
        command.arg(format!("--name=c{place}")).args(way);
        command.arg(format!("--rw={}", client.rw)).arg(format!("--bs={}", client.bs_bytes));
        command.arg(format!("--iodepth={}", client.depth));
        // A job runs this before its first I/O, as the parent of a shell whose output goes to
        // its `pid_file`.
        let group =
            jobs.groups.get(place).map(|group| format!("tee {}", group.members().display()));
        let tee = group.unwrap_or_else(|| "cat".to_owned());
        command.arg(format!("--exec_prerun=echo $PPID | {tee}"));
    }
    command
}

/// Where a job's pid is once it has begun.
fn pid_file(dir: &Path, place: usize) -> PathBuf {
    dir.join(format!("c{place}.prerun.txt"))
}

/// CPU time so far: of fio's jobs as `[user, kernel]`, and of the server.
struct Cpu {
    at: Instant,
    fio_us: [f64; 2],
    server_us: f64,
}

impl Cpu {
    fn now(jobs: &Jobs, dir: &Path) -> Outcome<Cpu> {
        let mut fio_us = [0.0; 2];
        for place in 0..jobs.ways.len() {
            let pid = fs::read_to_string(pid_file(dir, place)).unwrap_or_default();
            let job = cpu_us(&Path::new("/proc").join(pid.trim()).join("stat"));
            let job = job.map_err(|error| format!("fio's job c{place} is not there: {error}"))?;
            fio_us.iter_mut().zip(job).for_each(|(sum, us)| *sum += us);
        }
        Ok(Cpu { at: Instant::now(), fio_us, server_us: jobs.processes.cpu_us()? })
    }
}

/// How long fio may take to start its jobs, and to end after its time.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often CPU time is looked at in a run.
const LOOKS: u32 = 20;

/// Runs fio, and measures CPU time while all of its jobs are at work.
pub fn run(jobs: &Jobs, what: (&Cell, &Settings), dir: &Path, stop: &mut Stop) -> Outcome<Sample> {
    let places = 0..jobs.ways.len();
    places.clone().for_each(|place| drop(fs::remove_file(pid_file(dir, place))));
    let child = command(jobs, what, dir).spawn().map_err(|error| format!("fio: {error}"))?;
    let mut fio = Fio(Some(child));
    let has_begun =
        |place| fs::read_to_string(pid_file(dir, place)).is_ok_and(|t| t.ends_with('\n'));
    wait(&mut fio, (PATIENCE, stop), || places.clone().all(has_begun))?;
    let [ramp, length] = [what.1.ramp_s, what.1.seconds].map(Duration::from_secs);
    wait(&mut fio, (ramp, stop), || false)?;
    let before = Cpu::now(jobs, dir);
    let mut after = None;
    // The last look that still found all jobs at work counts.
    for _ in 0..LOOKS {
        if wait(&mut fio, (length / LOOKS, stop), || false)? {
            break;
        }
        after = Cpu::now(jobs, dir).ok().or(after);
    }
    if !wait(&mut fio, (PATIENCE, stop), || false)? {
        return Err("fio has not ended 30 s after its time".into());
    }
    let output = fio.0.take().ok_or("fio is gone")?.wait_with_output()?;
    let reports = fio_jobs(&output)?;
    let after = after.ok_or("fio's jobs ended before their time")?;
    sample(what.0, &reports, (before?, after, &jobs.processes))
}

/// Waits for so long, or until `done`, or until fio has ended; says whether it has ended.
fn wait(
    fio: &mut Fio,
    (limit, stop): (Duration, &mut Stop),
    done: impl Fn() -> bool,
) -> Outcome<bool> {
    let start = Instant::now();
    while start.elapsed() < limit && !done() {
        stop.check()?;
        if let Some(child) = &mut fio.0
            && child.try_wait()?.is_some()
        {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(false)
}

fn sample(cell: &Cell, reports: &[Value], cpu: (Cpu, Cpu, &Processes)) -> Outcome<Sample> {
    let pairs = || cell.clients.iter().zip(reports);
    let mut clients = pairs().map(|(c, report)| got(c, report)).collect::<Outcome<Vec<Got>>>()?;
    let cost = |client: &Client, got: &Got| {
        let op = if client.rw.writes() { Op::Write } else { Op::Read };
        let sectors = u32::try_from(client.bs_bytes >> 9).unwrap_or(u32::MAX);
        CostModel::default().of(op, (0, sectors), 1) as f64 * got.iops
    };
    let costs: Vec<f64> = cell.clients.iter().zip(&clients).map(|(c, g)| cost(c, g)).collect();
    let all = costs.iter().sum::<f64>().max(1e-9);
    clients.iter_mut().zip(&costs).for_each(|(got, cost)| got.share = cost / all);
    let weights = cell.clients.iter().map(|client| f64::from(client.weight));
    let jain = jain(costs.iter().zip(weights).map(|(cost, weight)| cost / weight));
    let (before, after, processes) = cpu;
    let ios = clients.iter().map(|got| got.iops).sum::<f64>()
        * after.at.duration_since(before.at).as_secs_f64();
    let [user, kernel] = [0, 1].map(|k| after.fio_us[k] - before.fio_us[k]);
    let server = after.server_us - before.server_us;
    let server_us = match processes {
        Processes::One(_) => server / ios,
        Processes::KernelWorkers => (server + kernel) / ios,
    };
    Ok(Sample { clients, jain, server_us, cpu_us: (server + user + kernel) / ios })
}

/// What a job's report says.
fn got(client: &Client, report: &Value) -> Outcome<Got> {
    let way = &report[if client.rw.writes() { "write" } else { "read" }];
    let percentiles = &way["lat_ns"]["percentile"];
    let number = |value: &Value| value.as_f64();
    let us = |key: &str| number(&percentiles[key]).map(|ns| ns / 1e3);
    let lat_us = (|| Some([us("50.000000")?, us("99.000000")?, us("99.900000")?]))();
    // A client that was given nothing at all has no percentiles.
    let (iops, bytes_per_s) = number(&way["iops"])
        .zip(number(&way["bw_bytes"]))
        .ok_or_else(|| format!("fio: no IOPS in {way}"))?;
    Ok(Got { iops, bytes_per_s, lat_us: lat_us.unwrap_or([f64::INFINITY; 3]), share: 0.0 })
}
