//! Compares schedulers, the kernel's with millrace's: the same file, fio's same jobs, turn about.
//!
//! The kernel's side is a loop device over the file (direct I/O), with one of its schedulers, and
//! fio's io_uring engine. Ours is `millrace serve` with a file drive over the same file (direct
//! I/O), one export and one group for each client, and fio's nbd engine. A cell is one client, or
//! several at the same time; in a round each scheduler of each side has one measured run in it, and
//! who is first changes. table.rs says what the columns count. Needs root, for the loop device.
//!
//! Nothing stays, also after Ctrl-C: the loop device goes with the last who has it open, the server
//! is killed by its pid, the file and control groups are removed.

#![allow(clippy::print_stdout, clippy::print_stderr)]

#[path = "../common/compare.rs"]
mod compare;
mod kernel;
mod load;
mod settings;
mod table;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::TempDir;

use compare::{Outcome, Server, in_turns};
use kernel::{Loop, WeightGroups};
use load::{Jobs, Processes, Sample, Stop};
use settings::{Cell, Pair, Settings};
use table::Measured;

/// A scheduler of one of the sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side<'a> {
    Kernel(&'a str),
    Ours(&'a str),
}

impl std::fmt::Display for Side<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Side::Kernel(name) => write!(f, "loop + {name}"),
            Side::Ours(name) => write!(f, "millrace {name}"),
        }
    }
}

/// What both sides work on.
struct Bench<'a> {
    settings: &'a Settings,
    /// Sockets, configurations and what fio leaves behind.
    scratch: TempDir,
    file: Backing,
    device: Loop,
    weights: Option<WeightGroups>,
    stop: Stop,
}

/// The file under both, written whole; removed when dropped.
struct Backing(PathBuf);

impl Backing {
    fn new(settings: &Settings, stop: &mut Stop) -> Outcome<Backing> {
        let path = settings.dir.join(format!("sched-compare-{}", std::process::id()));
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        let backing = Backing(path);
        let block = vec![0x5a; 1 << 20];
        for _ in 0..settings.size_bytes >> 20 {
            stop.check()?;
            file.write_all(&block)?;
        }
        file.sync_all()?;
        Ok(backing)
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl<'a> Bench<'a> {
    fn new(settings: &'a Settings) -> Outcome<Bench<'a>> {
        let mut stop = Stop::new()?;
        let file = Backing::new(settings, &mut stop)?;
        let device = Loop::attach(&file.0)?;
        let weights = WeightGroups::find();
        Ok(Bench { settings, scratch: tempfile::tempdir()?, file, device, weights, stop })
    }

    /// The configuration of a server for these clients: an export and a group for each.
    fn toml(&self, cell: &Cell, scheduler: &str, socket: &Path) -> String {
        let file = self.file.0.display();
        let mut text = format!(
            "server.control = \"off\"\n[[drive]]\nname = \"d\"\n\
             spec = \"file:path={file},direct=on\"\nscheduler = \"{scheduler}\"\n{}\n\
             [[volume]]\nname = \"v\"\ndrives = [\"d\"]\n",
            self.settings.drive_lines
        );
        for (place, client) in cell.clients.iter().enumerate() {
            let socket = socket.display();
            text += &format!(
                "[[export]]\nvolume = \"v\"\nname = \"c{place}\"\ngroup = \"c{place}\"\n\
                 nbd = \"unix:{socket}\"\n[[group]]\nname = \"c{place}\"\nweight = {}\n",
                client.weight
            );
            if client.depth == 1 {
                let target_us = self.settings.target_us;
                text += &format!("latency-target = \"p99 {target_us}us\"\n");
            }
        }
        text
    }

    fn ours(&mut self, cell: &Cell, scheduler: &str) -> Outcome<Sample> {
        let socket = self.scratch.path().join("nbd.sock");
        let toml = self.scratch.path().join("millrace.toml");
        fs::write(&toml, self.toml(cell, scheduler, &socket))?;
        let millrace = &self.settings.millrace;
        let log = self.scratch.path().join("log");
        let command = format!("exec {millrace} serve {} >{} 2>&1", toml.display(), log.display());
        let server = Server::start("millrace", &socket, &command).map_err(|error| {
            let said = fs::read_to_string(&log).unwrap_or_default();
            format!("{error}\n{said}")
        })?;
        let way = |place| {
            let uri = format!("nbd+unix:///c{place}?socket={}", socket.display());
            vec!["--ioengine=nbd".to_owned(), format!("--uri={uri}")]
        };
        let jobs = Jobs {
            ways: (0..cell.clients.len()).map(way).collect(),
            processes: Processes::One(server.proc("stat")),
            groups: Vec::new(),
        };
        self.run(cell, &jobs)
    }

    fn kernel(&mut self, cell: &Cell, scheduler: &str) -> Outcome<Sample> {
        self.device.set_scheduler(scheduler, self.settings.target_us)?;
        // Without control groups bfq shares evenly between processes, which is how it is used.
        let weighted = scheduler == "bfq" && cell.has_weights();
        let groups = match self.weights.as_ref().filter(|_| weighted) {
            Some(weights) => cell.clients.iter().map(|c| weights.group(c.weight)).collect(),
            None => Ok(Vec::new()),
        }?;
        let device = format!("--filename={}", self.device.path());
        let way =
            || vec!["--ioengine=io_uring".to_owned(), "--direct=1".to_owned(), device.clone()];
        let jobs = Jobs {
            ways: cell.clients.iter().map(|_| way()).collect(),
            processes: Processes::KernelWorkers,
            groups,
        };
        self.run(cell, &jobs)
    }

    fn run(&mut self, cell: &Cell, jobs: &Jobs) -> Outcome<Sample> {
        load::run(jobs, (cell, self.settings), self.scratch.path(), &mut self.stop)
    }

    /// The sides that this kernel has, and a line for each that it lacks.
    fn sides(&self) -> (Vec<Side<'a>>, Vec<String>) {
        let (mut sides, mut lacks) = (Vec::new(), Vec::new());
        for Pair { kernel, ours } in &self.settings.pairs {
            match self.device.set_scheduler(kernel, self.settings.target_us) {
                Ok(()) => sides.push(Side::Kernel(kernel)),
                Err(error) => lacks.push(format!("left out: loop + {kernel}: {error}")),
            }
            sides.push(Side::Ours(ours));
        }
        if self.weights.is_none() && self.settings.cells.iter().any(Cell::has_weights) {
            lacks.push("left out: weights of bfq: no control group here sets them".to_owned());
        }
        (sides, lacks)
    }
}

fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Measures cell after cell into `found`.
fn measure<'a>(
    bench: &mut Bench<'a>,
    sides: &[Side<'a>],
    found: &mut Vec<Measured<'a>>,
) -> Outcome<()> {
    let settings = bench.settings;
    for cell in &settings.cells {
        let samples = in_turns(settings.rounds, sides.len(), |index| match sides[index] {
            Side::Kernel(scheduler) => bench.kernel(cell, scheduler),
            Side::Ours(scheduler) => bench.ours(cell, scheduler),
        })?;
        eprintln!("{cell}: done");
        found.push((cell, sides.iter().copied().zip(samples).collect()));
    }
    Ok(())
}

fn run() -> Outcome<String> {
    let settings = Settings::parse(std::env::args().skip(1))?;
    let mut bench = Bench::new(&settings)?;
    let (sides, mut notes) = bench.sides();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
    let cpus = std::thread::available_parallelism()?;
    notes.push(format!("Linux {release}, {cpus} CPUs; load averages before: {}", load_average()));
    notes.iter().for_each(|note| eprintln!("{note}"));
    let mut found = Vec::new();
    let outcome = measure(&mut bench, &sides, &mut found);
    notes.push(format!("load averages after: {}", load_average()));
    let report = if settings.is_json {
        let document = json!({ "notes": notes, "samples": table::samples(&found) });
        serde_json::to_string_pretty(&document)?
    } else {
        let table = table::table(&found, &settings.pairs);
        format!("{table}\n\n{}\n{}", table::LEGEND, notes.join("\n"))
    };
    // Cells that were measured before a failure, or Ctrl-C, are not lost.
    if outcome.is_err() && !found.is_empty() {
        println!("{report}");
    }
    outcome.map(|()| report)
}

fn main() -> std::process::ExitCode {
    compare::print(run())
}
