//! Compares NBD servers: the same client, the same minute, turn and turn about.
//!
//! Starts every server with its command, fills what the client will read, then for each cell of a
//! matrix (kind, block size, depth x connections) runs rounds; in a round each server has one
//! measured run, and who is first changes. Prints for each cell the medians of I/Os a second and of
//! the server's CPU time for one I/O, and the first server's ratio to the best of the others, taken
//! within each round; then the least and the median of those ratios.
//!
//! The client is fio's nbd engine, as users have it, or our own (`--client own`). A server's CPU
//! time is that of its process, with threads that have ended, in ticks of 10 ms: nbdkit has threads
//! for each connection. Nothing is pinned; use `taskset -c` in commands.

#![allow(clippy::print_stdout, clippy::print_stderr)]

#[path = "common/compare.rs"]
mod compare;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use comfy_table::CellAlignment;
use millrace_drives::size_bytes;
use millrace_experiments::{Plan, Rw, Workload, run_nbd_row};

use compare::{Outcome, Server, ServerArgs, fio_job, in_turns, median, server_args, table};

const USAGE: &str = "\
usage: nbd_compare [OPTIONS] [--server NAME,SOCKET,COMMAND ...]

Without --server: millrace, nbdkit and qemu-nbd, each with --size bytes in memory, or in a file.

  --millrace target/release/millrace   the program that is compared
  --drive ram         ram (nbdkit memory, qemu-nbd on /dev/shm), or a folder for files, which all
                      serve through the page cache
  --rw randread,randwrite
  --bs 4k,64k,1m
  --loads 1x1,8x1,64x1,1x4,16x4        depth x connections; `few` for 1x1,2x1,4x1
  --size 256m         what is filled, and then read and written
  --rounds 3          runs of each server in each cell
  --seconds 2         length of a run
  --client fio        fio or own
  --fill yes          yes or no: whether every server's export is written first

example, the whole matrix, then few requests at a time:
  cargo run --release -p millrace-experiments --example nbd_compare
  cargo run --release -p millrace-experiments --example nbd_compare -- --bs 4k --loads few";

/// What a user gave, as text; checked when it is used.
struct Settings {
    millrace: String,
    drive: String,
    rw: Vec<String>,
    bs: Vec<String>,
    loads: Vec<(u32, u32)>,
    size: String,
    rounds: usize,
    seconds: u64,
    own_client: bool,
    fill: bool,
    servers: Vec<ServerArgs>,
}

impl Default for Settings {
    fn default() -> Settings {
        let list = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        Settings {
            millrace: "target/release/millrace".to_owned(),
            drive: "ram".to_owned(),
            rw: list(&["randread", "randwrite"]),
            bs: list(&["4k", "64k", "1m"]),
            loads: vec![(1, 1), (8, 1), (64, 1), (1, 4), (16, 4)],
            size: "256m".to_owned(),
            rounds: 3,
            seconds: 2,
            own_client: false,
            fill: true,
            servers: Vec::new(),
        }
    }
}

impl Settings {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Outcome<Settings> {
        let mut settings = Settings::default();
        while let Some(key) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{key}: no value\n{USAGE}"))?;
            settings.set(&key, value).map_err(|error| format!("{key}: {error}"))?;
        }
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: String) -> Outcome<()> {
        let words = |text: &str| text.split(',').map(str::to_owned).collect();
        let either = |yes, no| match value.as_str() {
            word if word == yes => Ok(true),
            word if word == no => Ok(false),
            _ => Err(format!("{value}: {yes} or {no}")),
        };
        match key {
            "--millrace" => self.millrace = value,
            "--drive" => self.drive = value,
            "--rw" => self.rw = words(&value),
            "--bs" => self.bs = words(&value),
            "--loads" if value == "few" => self.loads = vec![(1, 1), (2, 1), (4, 1)],
            "--loads" => self.loads = value.split(',').map(load).collect::<Outcome<_>>()?,
            "--size" => self.size = value,
            "--rounds" => self.rounds = value.parse::<usize>()?.max(1),
            "--seconds" => self.seconds = value.parse::<u64>()?.max(1),
            "--client" => self.own_client = either("own", "fio")?,
            "--fill" => self.fill = either("yes", "no")?,
            "--server" => {
                self.servers.push(server_args(&value)?);
            }
            _ => return Err(format!("unknown\n{USAGE}").into()),
        }
        Ok(())
    }

    /// The three servers of a run without `--server`; their sockets and files lie in `dir`.
    fn usual_servers(&mut self, dir: &Path) -> Outcome<()> {
        let size = bytes(&self.size)?;
        let is_ram = self.drive == "ram";
        let folder = if is_ram { PathBuf::from("/dev/shm") } else { PathBuf::from(&self.drive) };
        let file = |name: &str| -> Outcome<String> {
            let path = folder.join(format!("nbd_compare.{}.{name}", std::process::id()));
            fs::File::create(&path)?.set_len(size)?;
            Ok(path.display().to_string())
        };
        let socket = |name: &str| dir.join(format!("{name}.sock"));
        let (ours, kit, qemu) = (socket("millrace"), socket("nbdkit"), socket("qemu-nbd"));
        let (drive, plugin) = match is_ram {
            true => (format!("ram:size={size}"), format!("memory {size}")),
            false => {
                // Through the page cache, as the others have their files.
                let ours = format!("file:path={},direct=off", file("millrace")?);
                (ours, format!("file {}", file("kit")?))
            }
        };
        let toml = dir.join("millrace.toml");
        let text = format!(
            "server.control = \"off\"\n[[drive]]\nname = \"d\"\nspec = \"{drive}\"\n\
             [[volume]]\nname = \"v\"\nlayout = \"linear\"\ndrives = [\"d\"]\n\
             [[export]]\nvolume = \"v\"\nnbd = \"unix:{}\"\n",
            ours.display()
        );
        fs::write(&toml, text)?;
        let command = format!("{} serve {}", self.millrace, toml.display());
        self.servers.push(("millrace".to_owned(), ours, command));
        let command = format!("nbdkit -f -U {} {plugin}", kit.display());
        self.servers.push(("nbdkit".to_owned(), kit, command));
        let command = format!("qemu-nbd -t -e 8 -f raw -k {} {}", qemu.display(), file("qemu")?);
        self.servers.push(("qemu-nbd".to_owned(), qemu, command));
        Ok(())
    }

    /// Removes what [`Settings::usual_servers`] made outside its folder.
    fn remove_files(&self) {
        let folder = if self.drive == "ram" { "/dev/shm" } else { &self.drive };
        for name in ["millrace", "kit", "qemu"] {
            let name = format!("nbd_compare.{}.{name}", std::process::id());
            let _ = fs::remove_file(Path::new(folder).join(name));
        }
    }
}

/// `DEPTHxCONNECTIONS`.
fn load(text: &str) -> Outcome<(u32, u32)> {
    let (depth, connections) = text.split_once('x').ok_or("DEPTHxCONNECTIONS, for example 8x1")?;
    Ok((depth.parse()?, connections.parse()?))
}

fn bytes(text: &str) -> Outcome<u64> {
    size_bytes(text).ok_or_else(|| format!("{text}: a number with k, m or g").into())
}

fn uri(server: &Server) -> String {
    format!("nbd+unix:///?socket={}", server.socket.display())
}

/// CPU time of a server's process so far.
fn cpu_us(server: &Server) -> Outcome<f64> {
    Ok(compare::cpu_us(&server.proc("stat"))?.iter().sum())
}

/// One cell of the matrix.
#[derive(Clone)]
struct Cell {
    rw: String,
    bs: String,
    depth: u32,
    connections: u32,
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}x{}", self.rw, self.bs, self.depth, self.connections)
    }
}

/// One run.
#[derive(Clone, Copy)]
struct Sample {
    iops: f64,
    server_us: f64,
}

fn fio(server: &Server, cell: &Cell, size: &str, seconds: Option<u64>) -> Outcome<(f64, u64)> {
    let mut command = Command::new("fio");
    // fio leaves files of state where it runs.
    command.current_dir(std::env::temp_dir()).args(["--name=c", "--ioengine=nbd", "--thread"]);
    command.args(["--group_reporting", "--output-format=json"]);
    command.arg(format!("--uri={}", uri(server))).arg(format!("--size={size}"));
    command.arg(format!("--rw={}", cell.rw)).arg(format!("--bs={}", cell.bs));
    command.arg(format!("--iodepth={}", cell.depth));
    command.arg(format!("--numjobs={}", cell.connections));
    if let Some(seconds) = seconds {
        command.args(["--time_based".to_owned(), format!("--runtime={seconds}")]);
    }
    let job = fio_job(&command.output()?).map_err(|error| format!("{}: {error}", server.name))?;
    let part = if cell.rw.contains("read") { &job["read"] } else { &job["write"] };
    let numbers = part["iops"].as_f64().zip(part["total_ios"].as_u64());
    numbers.ok_or_else(|| format!("{}: fio: no IOPS in {part}", server.name).into())
}

/// The cell's I/Os a second, and their number, by our own client.
fn own(server: &Server, cell: &Cell, size: &str, seconds: u64) -> Outcome<(f64, u64)> {
    let bs_bytes = u32::try_from(bytes(&cell.bs)?)?;
    let rw: Rw = cell.rw.parse()?;
    let workload = Workload { rw, bs_bytes, iodepth: cell.depth, verify: false, seed: 1 };
    let plan = Plan {
        jobs: cell.connections,
        size_bytes: Some(bytes(size)?),
        ..compare::plan(workload, Duration::from_secs(seconds))
    };
    let row = run_nbd_row(&uri(server).parse()?, &plan, &mut |_| ())?;
    Ok((row.iops, row.ios))
}

fn measure(server: &Server, cell: &Cell, settings: &Settings) -> Outcome<Sample> {
    let before_us = cpu_us(server)?;
    let (iops, ios) = match settings.own_client {
        true => own(server, cell, &settings.size, settings.seconds),
        false => fio(server, cell, &settings.size, Some(settings.seconds)),
    }
    .map_err(|error| format!("{}: {cell}: {error}", server.name))?;
    Ok(Sample { iops, server_us: (cpu_us(server)? - before_us) / ios.max(1) as f64 })
}

/// The first server's I/Os a second by the best of the others', and its CPU time by the least of
/// theirs, medians over the rounds.
fn ratios(samples: &[Vec<Sample>]) -> (f64, f64) {
    let (first, others) = (&samples[0], &samples[1..]);
    let best = |round: usize| others.iter().map(|one| one[round].iops).fold(f64::MIN, f64::max);
    let least = |round: usize| others.iter().map(|o| o[round].server_us).fold(f64::MAX, f64::min);
    let rounds = || first.iter().enumerate();
    (
        median(rounds().map(|(round, sample)| sample.iops / best(round)).collect()),
        median(rounds().map(|(round, sample)| sample.server_us / least(round)).collect()),
    )
}

fn cells(settings: &Settings) -> Vec<Cell> {
    let mut cells = Vec::new();
    for rw in &settings.rw {
        for bs in &settings.bs {
            for &(depth, connections) in &settings.loads {
                cells.push(Cell { rw: rw.clone(), bs: bs.clone(), depth, connections });
            }
        }
    }
    cells
}

fn row(cell: &Cell, samples: &[Vec<Sample>]) -> Vec<String> {
    let mut row = vec![cell.to_string()];
    for of_server in samples {
        let of = |f: fn(&Sample) -> f64| median(of_server.iter().map(f).collect());
        row.push(format!("{:.1}", of(|sample| sample.iops) / 1e3));
        row.push(format!("{:.1}", of(|sample| sample.server_us)));
    }
    if samples.len() > 1 {
        let (iops, cpu) = ratios(samples);
        row.extend([format!("{iops:.2}"), format!("{cpu:.2}")]);
    }
    row
}

fn compare(settings: &Settings) -> Outcome<String> {
    let start = |(name, socket, command): &ServerArgs| {
        Server::start(name, socket, &format!("exec {command} >/dev/null"))
    };
    let servers = settings.servers.iter().map(start).collect::<Outcome<Vec<Server>>>()?;
    let fill = ("write".to_owned(), "1m".to_owned());
    let fill = Cell { rw: fill.0, bs: fill.1, depth: 4, connections: 1 };
    for server in servers.iter().filter(|_| settings.fill) {
        fio(server, &fill, &settings.size, None)?;
    }
    let mut head = vec!["cell".to_owned()];
    head.extend(servers.iter().flat_map(|s| [format!("{} K/s", s.name), "us/IO".to_owned()]));
    head.extend(["IOPS/best", "us/least"].iter().take(2 * (servers.len() - 1)).map(|&h| h.into()));
    let mut table = table(head);
    let mut found = Vec::new();
    for cell in cells(settings) {
        let measure = |index: usize| measure(&servers[index], &cell, settings);
        let samples = in_turns(settings.rounds, servers.len(), measure)?;
        if servers.len() > 1 {
            found.push((ratios(&samples).0, cell.clone()));
        }
        table.add_row(row(&cell, &samples));
        eprintln!("{}", row(&cell, &samples).join("  "));
    }
    table.column_iter_mut().skip(1).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    Ok(format!("{table}\n{}", summary(&found)))
}

/// The least and the median of the ratios.
fn summary(found: &[(f64, Cell)]) -> String {
    let Some((least, cell)) = found.iter().min_by(|a, b| a.0.total_cmp(&b.0)) else {
        return String::new();
    };
    let median = median(found.iter().map(|(ratio, _)| *ratio).collect());
    let below = found.iter().filter(|(ratio, _)| *ratio < 1.05).count();
    let cells = found.len();
    format!(
        "IOPS/best: least {least:.2} ({cell}), median {median:.2}; below 1.05: {below} of {cells}"
    )
}

fn run() -> Outcome<String> {
    let mut settings = Settings::parse(std::env::args().skip(1))?;
    if !settings.servers.is_empty() {
        return compare(&settings);
    }
    let dir = std::env::temp_dir().join(format!("nbd_compare.{}", std::process::id()));
    fs::create_dir(&dir)?;
    let outcome = settings.usual_servers(&dir).and_then(|()| compare(&settings));
    settings.remove_files();
    let _ = fs::remove_dir_all(&dir);
    outcome
}

fn main() -> std::process::ExitCode {
    compare::print(run())
}
