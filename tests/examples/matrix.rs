//! `cargo xtask matrix`: millrace beside the program that people would otherwise use, cell by cell:
//! workload, block size, kind of I/O, depth, connections.
//!
//! Owns the list of cells, the competitors' command lines, and the table. In each round of a cell
//! both sides run once, and the side that begins alternates. Both use the same caching: direct I/O,
//! or the page cache.

#![allow(clippy::print_stdout, clippy::print_stderr)]

#[path = "common/comparison.rs"]
mod comparison;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use millrace_authority::{Authority, Validity};
use millrace_tests::{MILLRACE, MILLRACE_LAB, client, poll_within, run_within};
use serde_json::{Value, json};

use comparison::table;

const USAGE: &str = "\
usage: cargo xtask matrix [--short] [--works NAME,...] [--dir DIR] [--rounds N] [--seconds N] [--json]

Measures millrace and a rival in turn and prints the ratio of their IOPS, the worst cell first.

  file         a file drive, measured by millrace-lab bench, and fio's io_uring engine; direct I/O
  file-huge    the same, with fio's buffers in huge pages, which vm.nr_hugepages has to provide
  stripe       four files as one volume, and fio with a job for each file
  nbd-file     NBD over a file, direct I/O, and qemu-nbd with --cache=none --aio=io_uring
  nbd-cached   NBD over a file through the page cache, and nbdkit's file plugin
  nbd-ram      NBD over memory, and nbdkit's memory plugin
  nbd-tls      NBD over memory with TLS, and nbdkit's memory plugin
  cache-hits   NBD over a volume with a write-back cache in memory that holds all that is used, and
               qemu-nbd with --cache=writeback
  cache-misses the same with a cache of a quarter of what is used
  vhost        vhost-user-blk over a file, and qemu-storage-daemon with io_uring

  --short        twelve cells in about three minutes
  --works NAME   which of them [default: all]
  --dir DIR      a directory on the store to be measured; files of 1 GiB are made there and removed
                 at the end [default: the directory for temporary files]
  --rounds N     runs of each side at each cell [default: 3]
  --seconds N    length of a run [default: 2]
  --json         print an array with a row for each cell

Needs fio, qemu-nbd, qemu-storage-daemon and nbdkit. MILLRACE_BIN and MILLRACE_LAB_BIN name the
programs to measure, such as target/release/millrace and target/release/millrace-lab. All cells take
about two hours.";

const WORKS: [&str; 10] = [
    "file",
    "file-huge",
    "stripe",
    "nbd-file",
    "nbd-cached",
    "nbd-ram",
    "nbd-tls",
    "cache-hits",
    "cache-misses",
    "vhost",
];
const KINDS: [&str; 4] = ["read", "randread", "write", "randwrite"];
/// Cells of `--short`, for a first impression.
const SHORT: [(&str, &str, &str, u32, u32); 12] = [
    ("file", "randread", "4k", 1, 1),
    ("file", "randread", "4k", 64, 1),
    ("file", "read", "128k", 1, 1),
    ("file", "read", "128k", 16, 1),
    ("file", "write", "128k", 16, 1),
    ("file", "read", "1m", 4, 1),
    ("nbd-file", "randread", "4k", 1, 1),
    ("nbd-file", "randread", "4k", 64, 4),
    ("nbd-file", "read", "128k", 8, 1),
    ("nbd-cached", "randread", "4k", 64, 4),
    ("nbd-ram", "randwrite", "64k", 8, 1),
    ("vhost", "randread", "4k", 32, 1),
];
const FILE_BYTES: u64 = 1 << 30;
/// Bytes that are used where a cache is to hold them.
const HOT_BYTES: u64 = 128 << 20;
/// Longest time for a server to start listening, and for a run to end after its length.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cell of the table: a workload and its parameters.
#[derive(Debug, Clone, Copy)]
struct Cell {
    work: &'static str,
    rw: &'static str,
    bs: &'static str,
    depth: u32,
    jobs: u32,
}

/// Results of a run.
#[derive(Debug, Clone, Copy)]
struct Sample {
    iops: f64,
    /// Processor time of the side that does the I/O, in microseconds per I/O.
    cpu_us: f64,
}

/// Length and number of runs, and the directory for their files.
struct Setting {
    seconds: u64,
    rounds: usize,
    dir: PathBuf,
    /// The certificate of servers, and of their CA.
    authority: Authority,
}

fn all_cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut add = |work: &'static str, sizes: &[&'static str], depths: &[u32], jobs: &[u32]| {
        let is_random = work.starts_with("cache") || work == "nbd-tls";
        for rw in KINDS.into_iter().filter(|rw| !is_random || rw.starts_with("rand")) {
            for bs in sizes {
                for depth in depths {
                    for jobs in jobs {
                        cells.push(Cell { work, rw, bs, depth: *depth, jobs: *jobs });
                    }
                }
            }
        }
    };
    let sizes = ["4k", "16k", "64k", "128k", "1m"];
    for work in ["file", "file-huge"] {
        add(work, &sizes, &[1, 4, 16, 64], &[1]);
    }
    add("stripe", &["4k", "128k"], &[1, 16, 64], &[4]);
    for work in ["nbd-file", "nbd-cached", "nbd-ram"] {
        add(work, &sizes, &[1, 8, 64], &[1, 4]);
    }
    add("nbd-tls", &["4k", "64k"], &[1, 64], &[1, 4]);
    for work in ["cache-hits", "cache-misses"] {
        add(work, &["4k"], &[1, 64], &[1, 4]);
    }
    add("vhost", &["4k", "128k"], &[1, 32, 128], &[1]);
    cells
}

fn short_cells() -> Vec<Cell> {
    SHORT.iter().map(|&(work, rw, bs, depth, jobs)| Cell { work, rw, bs, depth, jobs }).collect()
}

/// The rival of a kind of work.
fn rival(work: &str) -> &'static str {
    match work {
        "nbd-file" | "cache-hits" | "cache-misses" => "qemu-nbd",
        "nbd-cached" | "nbd-ram" | "nbd-tls" => "nbdkit",
        "vhost" => "qemu-storage-daemon",
        _ => "fio",
    }
}

/// A server of one side; it ends when this drops.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start(mut command: Command, socket: PathBuf) -> Result<Server, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        let listens = || {
            let ended = child.try_wait().ok().flatten().is_some();
            (socket.exists() || ended).then_some(ended)
        };
        match poll_within(PATIENCE, listens) {
            Some(false) => Ok(Server { child, socket }),
            _ => Err(format!("{name} does not listen on {}", socket.display())),
        }
    }

    /// Processor time so far, in microseconds.
    fn cpu_us(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let ticks = stat.ok().and_then(|stat| {
            let fields: Vec<u64> = stat
                .rsplit_once(')')?
                .1
                .split_ascii_whitespace()
                .map(|word| word.parse().unwrap_or(0))
                .collect();
            Some(fields.get(11)? + fields.get(12)?)
        });
        ticks.unwrap_or(0) as f64 * 1e4
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGTERM lets the server flush its files; a server that ignores it is killed.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        if poll_within(PATIENCE, || self.child.try_wait().ok().flatten()).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Both sides' servers for a workload: millrace's, then the competitor's.
fn servers(work: &str, setting: &Setting) -> Result<Vec<Server>, String> {
    let dir = &setting.dir;
    let sockets = ["ours", "rival"].map(|side| dir.join(format!("{work}-{side}.s")));
    let [our_file, rival_file] = [0, 1].map(|n| dir.join(format!("f{n}")).display().to_string());
    let [our_socket, rival_socket] = sockets.clone().map(|path| path.display().to_string());
    let (spec, listen) = match work {
        "nbd-file" => (format!("file:path={our_file}"), "nbd"),
        "nbd-cached" => (format!("file:path={our_file},direct=false"), "nbd"),
        "nbd-ram" | "nbd-tls" => ("ram:size=1g".to_owned(), "nbd"),
        "cache-hits" | "cache-misses" => (format!("file:path={our_file}"), "nbd"),
        "vhost" => (format!("file:path={our_file}"), "vhost-user-blk"),
        _ => return Ok(Vec::new()),
    };
    let config = dir.join(format!("{work}.toml"));
    let certificates = setting.authority.folder().display();
    let more = match work {
        "cache-hits" | "cache-misses" => "cache = { size = \"256m\" }\n".to_owned(),
        _ => String::new(),
    };
    let server = match work {
        "nbd-tls" => format!(
            "[server]\ntls = {{ certificate = \"{certificates}/server-cert.pem\", \
             key = \"{certificates}/server-key.pem\" }}\n"
        ),
        _ => String::new(),
    };
    let text = format!(
        "{server}[[drive]]\nname = \"d\"\nspec = \"{spec}\"\n[[volume]]\nname = \"v\"\n\
         drives = [\"d\"]\n{more}[[export]]\nvolume = \"v\"\n{listen} = \"unix:{our_socket}\"\n"
    );
    std::fs::write(&config, text).map_err(|error| format!("{}: {error}", config.display()))?;
    let mut ours = Command::new(MILLRACE.path());
    ours.arg("serve").arg(&config);
    let mut theirs = Command::new(rival(work));
    match work {
        "nbd-file" | "cache-hits" | "cache-misses" => theirs.args([
            "-t",
            "-f",
            "raw",
            if work == "nbd-file" { "--cache=none" } else { "--cache=writeback" },
            if work == "nbd-file" { "--aio=io_uring" } else { "--aio=threads" },
            "-e",
            "8",
            "-k",
            &rival_socket,
            &rival_file,
        ]),
        "nbd-cached" => theirs.args(["-f", "-U", &rival_socket, "file", &rival_file]),
        "nbd-ram" => theirs.args(["-f", "-U", &rival_socket, "memory", "1G"]),
        "nbd-tls" => theirs.args([
            "-f",
            "--tls=require",
            &format!("--tls-certificates={certificates}"),
            "-U",
            &rival_socket,
            "memory",
            "1G",
        ]),
        _ => theirs.args([
            "--blockdev",
            &format!("driver=file,filename={rival_file},node-name=d,aio=io_uring,cache.direct=on"),
            "--export",
            &format!(
                "type=vhost-user-blk,id=e,addr.type=unix,addr.path={rival_socket},node-name=d,\
                 writable=on"
            ),
        ]),
    };
    let [our_path, rival_path] = sockets;
    Ok(vec![Server::start(ours, our_path)?, Server::start(theirs, rival_path)?])
}

fn output_of(mut command: Command, limit: Duration) -> Result<Value, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null());
    let output = run_within(&mut command, limit);
    let text = String::from_utf8_lossy(&output.stdout);
    // fio may remark on something first.
    let json = text.find(['{', '[']).map_or("", |at| &text[at..]);
    serde_json::from_str(json).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("{name} gave no figures: {}", said.trim())
    })
}

/// A run of fio with these options of its own.
fn fio(cell: &Cell, setting: &Setting, own: &[String]) -> Result<(Sample, f64), String> {
    let mut command = Command::new("fio");
    command.args(["--name=m", "--time_based", "--group_reporting", "--output-format=json"]);
    let bytes = if cell.work == "cache-hits" { HOT_BYTES } else { FILE_BYTES };
    command.args(["--norandommap", "--thread", &format!("--size={bytes}")]);
    command.args([format!("--rw={}", cell.rw), format!("--bs={}", cell.bs)]);
    command.args([format!("--iodepth={}", cell.depth), format!("--runtime={}", setting.seconds)]);
    command.args(own);
    let report = output_of(command, PATIENCE + Duration::from_secs(setting.seconds))?;
    let job = &report["jobs"][0];
    let sum = |key: &str| ["read", "write"].iter().filter_map(|op| job[op][key].as_f64()).sum();
    let (iops, ios): (f64, f64) = (sum("iops"), sum("total_ios"));
    if job["error"].as_i64() != Some(0) || ios == 0.0 {
        return Err(format!("fio's job failed: error {}", job["error"]));
    }
    let percent = ["usr_cpu", "sys_cpu"].iter().filter_map(|key| job[key].as_f64()).sum::<f64>();
    let jobs = f64::from(cell.jobs);
    Ok((Sample { iops, cpu_us: percent / 100.0 * jobs * 1e6 / iops }, ios))
}

/// A run of `millrace-lab bench` against a target.
fn bench(cell: &Cell, setting: &Setting, target: &[String]) -> Result<(Sample, f64), String> {
    let mut command = Command::new(MILLRACE_LAB.path());
    command.args(["bench", "--json", "--overwrite", "--rw", cell.rw, "--bs", cell.bs]);
    command.args(["--iodepth", &cell.depth.to_string(), "--numjobs", &cell.jobs.to_string()]);
    command.args(["--runtime", &setting.seconds.to_string()]).args(target);
    let report = output_of(command, PATIENCE + Duration::from_secs(setting.seconds))?;
    let number = |key: &str| report[0][key].as_f64().unwrap_or(0.0);
    if number("total_ios") == 0.0 || number("total_err") != 0.0 {
        return Err("millrace-lab bench: I/Os failed".to_owned());
    }
    let sample = Sample { iops: number("iops"), cpu_us: number("cpu_ns_per_io") / 1e3 };
    Ok((sample, number("total_ios")))
}

/// Runs a cell on a side: 0 is millrace, others are its competitors.
fn run_side(
    cell: &Cell,
    setting: &Setting,
    servers: &[Server],
    side: usize,
) -> Result<Sample, String> {
    let file = |n: usize| setting.dir.join(format!("f{n}")).display().to_string();
    let before_us = servers.get(side).map(Server::cpu_us);
    let (mut sample, ios) = match (cell.work, side) {
        ("file" | "file-huge", 0) => {
            bench(cell, setting, &["--drive".into(), format!("file:path={}", file(0))])
        }
        ("stripe", 0) => {
            let drives = (0..4).flat_map(|n| ["--drive".into(), format!("file:path={}", file(n))]);
            bench(cell, setting, &drives.collect::<Vec<_>>())
        }
        ("file" | "file-huge" | "stripe", _) => {
            let mut own: Vec<String> = ["--ioengine=io_uring", "--direct=1"].map(Into::into).into();
            match cell.work {
                "stripe" => {
                    let files = (0..4).map(file).collect::<Vec<_>>().join(":");
                    let each =
                        ["--numjobs=4", "--file_service_type=random", "--allow_file_create=0"];
                    own.extend(each.map(Into::into));
                    own.push(format!("--filename={files}"));
                }
                _ => own.push(format!("--filename={}", file(0))),
            }
            if cell.work == "file-huge" {
                own.push("--iomem=shmhuge".into());
            }
            fio(cell, setting, &own)
        }
        ("vhost", _) => {
            let socket = servers[side].socket.display();
            bench(cell, setting, &["--connect".into(), format!("vhost-user:{socket}")])
        }
        // fio has no way to name certificates.
        ("nbd-tls", _) => {
            let (socket, ca) = (servers[side].socket.display(), setting.authority.ca());
            let name = if side == 0 { "v" } else { "" };
            let uri = format!("nbd:uri=nbds+unix:///{name}?socket={socket}");
            bench(cell, setting, &["--drive".into(), format!("{uri},tls-ca={}", ca.display())])
        }
        _ => {
            let name = if side == 0 { "v" } else { "" };
            let socket = servers[side].socket.display();
            let uri = format!("--uri=nbd+unix:///{name}?socket={socket}");
            fio(cell, setting, &["--ioengine=nbd".into(), uri, format!("--numjobs={}", cell.jobs)])
        }
    }?;
    if let (Some(before_us), Some(server)) = (before_us, servers.get(side)) {
        sample.cpu_us = (server.cpu_us() - before_us) / ios;
    }
    Ok(sample)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// A row of the table.
struct Row {
    cell: Cell,
    /// Ours and the rival's: median and best IOPS, median CPU.
    sides: [(f64, f64, f64); 2],
    ratio: f64,
}

fn measure(cell: &Cell, setting: &Setting, servers: &[Server]) -> Result<Row, String> {
    let mut samples: [Vec<Sample>; 2] = Default::default();
    for round in 0..setting.rounds {
        for turn in 0..2 {
            let side = (round + turn) % 2;
            samples[side].push(run_side(cell, setting, servers, side)?);
        }
    }
    let ratios = samples[0].iter().zip(&samples[1]).map(|(ours, rival)| ours.iops / rival.iops);
    let ratio = median(ratios.collect());
    let sides = samples.map(|side| {
        let iops: Vec<f64> = side.iter().map(|sample| sample.iops).collect();
        let best = iops.iter().copied().fold(0.0, f64::max);
        (median(iops), best, median(side.iter().map(|sample| sample.cpu_us).collect()))
    });
    Ok(Row { cell: *cell, sides, ratio })
}

fn lines(rows: &[Row]) -> Vec<Vec<String>> {
    let head = [
        "work",
        "rival",
        "rw",
        "bs",
        "depth",
        "jobs",
        "ours",
        "rival's",
        "ratio",
        "of the best",
        "CPU us/IO",
        "rival's CPU",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for Row { cell, sides: [ours, theirs], ratio } in rows {
        lines.push(vec![
            cell.work.into(),
            rival(cell.work).into(),
            cell.rw.into(),
            cell.bs.into(),
            cell.depth.to_string(),
            cell.jobs.to_string(),
            format!("{:.0}", ours.0),
            format!("{:.0}", theirs.0),
            format!("{ratio:.2}"),
            format!("{:.2}", ours.1 / theirs.1),
            format!("{:.1}", ours.2),
            format!("{:.1}", theirs.2),
        ]);
    }
    lines
}

fn run(words: &[String]) -> Result<(), String> {
    let authority = Authority::new("matrix");
    let _ = authority.issue("server", &["localhost"], Validity::Now);
    let mut setting = Setting { seconds: 2, rounds: 3, dir: std::env::temp_dir(), authority };
    let (mut cells, mut works, mut is_json) = (all_cells(), WORKS.to_vec(), false);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word}: no value"));
        let number = |text: &String| {
            let number = text.parse::<u64>().ok().filter(|number| (1..=600).contains(number));
            number.ok_or_else(|| format!("{word} {text}: give 1 to 600"))
        };
        match word.as_str() {
            "--json" => is_json = true,
            "--short" => cells = short_cells(),
            "--seconds" => setting.seconds = number(value()?)?,
            "--rounds" => setting.rounds = number(value()?)? as usize,
            "--dir" => setting.dir = value()?.into(),
            "--works" => {
                let find = |name: &str| {
                    let found = WORKS.iter().find(|known| **known == name).copied();
                    found.ok_or_else(|| format!("{name}: choose from {}", WORKS.join(", ")))
                };
                works = value()?.split(',').map(find).collect::<Result<_, _>>()?;
            }
            _ => return Err(format!("{word}: unknown\n{USAGE}")),
        }
    }
    for needed in ["fio", "qemu-nbd", "qemu-storage-daemon", "nbdkit"] {
        client(needed).ok_or_else(|| format!("{needed} is not installed"))?;
    }
    let dir = tempfile::Builder::new().prefix("matrix").tempdir_in(&setting.dir);
    let dir = dir.map_err(|error| format!("{}: {error}", setting.dir.display()))?;
    setting.dir = dir.path().into();
    let count = if works.contains(&"stripe") { 4 } else { 2 };
    for n in 0..count {
        write_file(&dir.path().join(format!("f{n}")))?;
    }
    let mut rows = Vec::new();
    for work in works {
        let of_work: Vec<&Cell> = cells.iter().filter(|cell| cell.work == work).collect();
        if of_work.is_empty() {
            continue;
        }
        let servers = servers(work, &setting)?;
        for cell in of_work {
            rows.push(
                measure(cell, &setting, &servers).map_err(|error| format!("{work}: {error}"))?,
            );
            if std::io::stderr().is_terminal() {
                eprint!(".");
            }
        }
    }
    rows.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
    let all = lines(&rows);
    let text = match is_json {
        false => format!(
            "{}\nmedian ratio {:.2}\n",
            table(&all),
            median(rows.iter().map(|row| row.ratio).collect())
        ),
        true => {
            let object = |line: &Vec<String>| {
                let pairs = all[0].iter().zip(line).map(|(key, cell)| (key.clone(), json!(cell)));
                Value::Object(pairs.collect())
            };
            format!("{}\n", Value::Array(all[1..].iter().map(object).collect()))
        }
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| error.to_string())
}

/// A file of random bytes, written whole, so that no side reads holes.
fn write_file(path: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = std::fs::File::create(path).map_err(failed)?;
    let mut random = millrace_random::SplitMix64::new(7);
    let mut block = vec![0; 1 << 20];
    block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
    for _ in 0..FILE_BYTES >> 20 {
        file.write_all(&block).map_err(failed)?;
    }
    file.sync_all().map_err(failed)
}

fn main() -> ExitCode {
    comparison::start("matrix", USAGE, run)
}
