//! `run_program_row`: runs a program's threads on this machine, on a volume of any kind of drive.
//!
//! `bench --program` calls this file, which has the names of the programs and checks if the volume
//! suits a program. Each thread of the program is an I/O thread; the workers of the drives run
//! beside them. The threads run the same code as in `atc17` on the simulated machine. The simulated
//! costs of system calls do not apply here. If a cache is used, pages are really copied.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use millrace_block::{Error, Stamp, Volume};
use millrace_cache::CacheConfig;
use millrace_machine::Native;
use millrace_reactor::Config;
use millrace_runtime::{DriveWorkers, IoConfig, IoContext, Pinning};

use super::{Runs, Task, servers, utilities};
use crate::load::bench::{BenchError, Interrupt, check_writable};
use crate::load::drain_barrier::DrainBarrier;
use crate::load::threads::{ThreadGroup, cpu_of};
use crate::simulation::program::{Access, Program, ProgramState};
use crate::simulation::window::Window;

const NAMES: [(&str, Task); 9] = [
    ("writers", Task::Writers),
    ("pagerank", Task::Graph(8)),
    ("fileserver", Task::Server(servers::Kind::File)),
    ("webserver", Task::Server(servers::Kind::Web)),
    ("webproxy", Task::Server(servers::Kind::Proxy)),
    ("copy-from", Task::Utility(utilities::Kind::CopyFrom)),
    ("copy-to", Task::Utility(utilities::Kind::CopyTo)),
    ("tar", Task::Utility(utilities::Kind::Tar)),
    ("untar", Task::Utility(utilities::Kind::Untar)),
];
/// Smallest volume for a program, in bytes: enough for a server's files, or for the tree and the
/// archive of `tar` and `untar`.
const BYTES_MIN: u64 = 16 << 30;
const GRAPH_DEPTH: u32 = 64;
/// Number of I/Os in flight in a read or write call of a program other than `pagerank`.
const CALLS: u32 = 4;

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_it = |(_, task): &&(&str, Task)| match (self, task) {
            (Task::Graph(_), Task::Graph(_)) => true,
            (one, other) => one == other,
        };
        f.write_str(NAMES.iter().find(is_it).map_or("program", |(name, _)| name))
    }
}

impl FromStr for Task {
    type Err = String;

    fn from_str(name: &str) -> Result<Task, String> {
        let known = || NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, task)| *task).ok_or_else(|| format!("not a program; there are {}", known()))
    }
}

impl Task {
    /// Returns the default cache of the program; `None` for a program that accesses the drives
    /// directly.
    pub fn cache(self) -> Option<CacheConfig> {
        self.with(1, CacheOf).ok().flatten()
    }
}

struct CacheOf;

impl Runs for CacheOf {
    type Result = Option<CacheConfig>;

    fn run<P: Program>(self, program: &P) -> Result<Option<CacheConfig>, BenchError> {
        Ok(program.cache())
    }
}

/// Settings of a program's run on this machine.
#[derive(Debug, Clone)]
pub struct ProgramPlan {
    /// CPUs of the threads: thread i runs on `cpus[i % len]`, or on any CPU if the list is empty.
    pub cpus: Vec<u32>,
    /// Measured time, after the warm-up.
    pub runtime: Duration,
    /// Seed of the program's random accesses.
    pub seed: u64,
    /// Settings of the I/O threads' rings.
    pub reactor: Config,
    /// Flag that ends the run early when the caller sets it.
    pub interrupt: Interrupt,
}

/// Result of a program's run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProgramRun {
    /// Number of the program's threads.
    pub threads: u32,
    /// Number of measured operations: pages of 4 KiB that were written, read or copied; for a
    /// server, file operations.
    pub operations: u64,
    /// Length of the measured window in seconds; 0 if the run ended before its warm-up was over.
    pub seconds: f64,
    /// Number of I/Os that failed.
    pub errors: u64,
}

/// Runs a program on a volume. The volume's disks must have queues for [`Task::threads`] I/O
/// threads.
///
/// # Errors
/// If the volume is too small for the program's files, or a thread cannot be set up.
pub fn run_program_row(
    volume: &Arc<Volume<Native>>,
    task: Task,
    plan: &ProgramPlan,
) -> Result<ProgramRun, BenchError> {
    let bytes = volume.capacity() << 9;
    if bytes < BYTES_MIN {
        let text = format!(
            "program {task}: the drives have {bytes} bytes, its files need {BYTES_MIN} (16g); use \
             larger drives, or more"
        );
        return Err(BenchError::Workload(text));
    }
    if task.writes() {
        check_writable(volume, &format!("program {task}"))?;
    }
    task.with(plan.seed, NativeRun { volume, task, plan })
}

struct NativeRun<'a> {
    volume: &'a Arc<Volume<Native>>,
    task: Task,
    plan: &'a ProgramPlan,
}

impl Runs for NativeRun<'_> {
    type Result = ProgramRun;

    fn run<P: Program>(self, program: &P) -> Result<ProgramRun, BenchError> {
        let NativeRun { volume, task, plan } = self;
        let length_ns = u64::try_from(plan.runtime.as_nanos()).unwrap_or(u64::MAX);
        let (warm_ops, _) = program.measured();
        let window = Window::after(warm_ops, length_ns).ended_by(&plan.interrupt);
        let depth = if matches!(task, Task::Graph(_)) { GRAPH_DEPTH } else { CALLS };
        let shared = Arc::new(ProgramState::new(Arc::clone(volume), window, depth)?);
        // Pin workers to CPUs only if the program's threads are pinned. The daemon does the same.
        let pinning = if plan.cpus.is_empty() { Pinning::Free } else { Pinning::Pinned };
        let mut workers = DriveWorkers::start(volume.drives(), plan.reactor, pinning)?;
        let barrier = DrainBarrier::new(task.threads() as usize);
        let body = {
            let (shared, program, reactor) = (Arc::clone(&shared), program.clone(), plan.reactor);
            move |number: u32| {
                let config = IoConfig { number: number as u16, reactor };
                work(&shared, (&program, config), &barrier)
            }
        };
        let threads = ThreadGroup {
            name: "program",
            count: task.threads(),
            cpu_of: &|number| cpu_of(&plan.cpus, number),
        };
        let ran = threads.run::<Native, _, _>(body, || ());
        workers.stop()?;
        ran?.0.into_iter().collect::<Result<(), Error>>()?;
        let (length_ns, operations) = shared.measured();
        let seconds = length_ns as f64 / 1e9;
        Ok(ProgramRun { threads: task.threads(), operations, seconds, errors: shared.errors() })
    }
}

fn work<P: Program>(
    shared: &ProgramState<Native>,
    (program, config): (&P, IoConfig),
    barrier: &DrainBarrier,
) -> Result<(), Error> {
    let member = barrier.member();
    let number = u32::from(config.number);
    let mut context = IoContext::new(config)?;
    let channel = context.channel(shared.volume(), shared.depth(), Stamp::Batch)?;
    let mut access = Access::over(shared, channel);
    program.run(number, &mut access);
    access.drain();
    member.linger(&mut context, access.channel())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_writes_is_refused_on_drive_that_is_read_only() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(BYTES_MIN).unwrap();
        let spec = format!("file:path={},read-only=on,direct=off", image.path().display());
        let driver = millrace_drives::open(&spec.parse().unwrap(), 64).unwrap().driver;
        let disk = millrace_block::Disk::new(driver, millrace_block::DiskConfig::default());
        let volume = Volume::single(disk.unwrap()).unwrap();
        let plan = ProgramPlan {
            cpus: Vec::new(),
            runtime: Duration::from_millis(1),
            seed: 1,
            reactor: Config::default(),
            interrupt: Interrupt::default(),
        };
        for (name, task) in NAMES.iter().filter(|(_, task)| task.writes()) {
            let refused = run_program_row(&volume, *task, &plan).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("program {name}: drive ")), "{refused}");
        }
        let readers = NAMES.iter().filter(|(_, task)| !task.writes()).map(|(name, _)| *name);
        assert_eq!(readers.collect::<Vec<_>>(), ["pagerank", "copy-from"]);
    }

    #[test]
    fn every_program_is_found_by_the_name_that_it_shows() {
        for (name, task) in NAMES {
            assert_eq!((task.to_string().as_str(), name.parse()), (name, Ok(task)));
        }
        let error = "nginx".parse::<Task>().unwrap_err();
        assert!(error.starts_with("not a program; there are writers, pagerank"), "{error}");
    }
}
