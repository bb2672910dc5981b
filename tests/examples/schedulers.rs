//! `cargo xtask schedulers`: a small client beside a bulk one on a slow drive, under millrace's
//! schedulers, the limits of qemu-storage-daemon, and the schedulers of Linux in a guest.
//!
//! Owns the clients' jobs, the contenders, and the table. All clients are fio processes, and all
//! contenders use the same modelled drive, whose service times are known.

#![allow(clippy::print_stdout, clippy::print_stderr)]

#[path = "common/comparison.rs"]
mod comparison;

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use millrace_tests::guest::{Guest, Image};
use millrace_tests::{Daemon, MILLRACE_LAB, client, poll_within};
use serde_json::{Value, json};

use comparison::table;

const USAGE: &str = "\
usage: cargo xtask schedulers [--contenders NAME,...] [--seconds N] [--json]

A small client reads 4 KiB, one I/O at a time, beside a bulk client, on a modelled drive that takes
2 ms for 4 KiB and moves 15.6 MiB/s. Each contender has its own way to protect the small one:

  simulated                       millrace's schedulers on four drives in virtual time, with tables of
                                  their own: millrace-lab paper schedulers:late,pauses,beside,storms

  none, deadline, fair, latency   millrace's schedulers, over NBD; with latency, the small client has
                                  latency-target = \"p99 20ms\"
  qemu-throttle                   qemu-storage-daemon over the drive; a throttle group limits the
                                  bulk client to 85 % of what the drive does
  linux-none, mq-deadline, kyber, bfq, iocost
                                  a guest that QEMU boots, with the drive as vhost-user-blk; the
                                  clients are in control groups of their own

  --contenders NAME,...   which of them [default: all]
  --seconds N             measured length of a run [default: 5]
  --json                  print an array with a row for each contender, without the simulated ones

Needs fio, qemu-storage-daemon, and for guests linux-image-amd64, qemu-system-x86 and busybox-static.
MILLRACE_BIN names the program to measure, such as target/release/millrace. Takes 90 s for each
contender.";

const DRIVE: &str =
    "model:units=8,read=2ms,write=2ms,latency=50us,size=4g,depth=128,queues=1,data=ram";
const CONTENDERS: [&str; 11] = [
    "simulated",
    "none",
    "deadline",
    "fair",
    "latency",
    "qemu-throttle",
    "linux-none",
    "mq-deadline",
    "kyber",
    "bfq",
    "iocost",
];
/// Time before figures count, in seconds.
const RAMP_S: u64 = 3;
/// Longest time of a run beside its length.
const PATIENCE: Duration = Duration::from_secs(60);

const SMALL: &str = "--rw=randread --bs=4k --iodepth=1";

/// Two clients that run at a time, and their settings.
struct Case {
    name: &'static str,
    small: &'static str,
    bulk: &'static str,
    /// The small client's weight, and the bulk client's.
    weights: (u32, u32),
    bulk_is_idle: bool,
    /// Limits of qemu's throttle group for the bulk client, in bytes and I/Os per second.
    bulk_limit: &'static str,
}

const CASE: Case = Case {
    name: "",
    small: SMALL,
    bulk: "",
    weights: (100, 100),
    bulk_is_idle: false,
    bulk_limit: "bps-total=14000000",
};

const CASES: [Case; 6] = [
    Case {
        name: "late",
        small: "--rw=randread --bs=4k --iodepth=1 --number_ios=1",
        bulk: "--rw=randread --bs=1m --iodepth=64",
        ..CASE
    },
    Case {
        name: "pauses",
        small: "--rw=randread --bs=4k --iodepth=1 --thinktime=20000",
        bulk: "--rw=randwrite --bs=64k --iodepth=64",
        ..CASE
    },
    Case { name: "large", bulk: "--rw=randread --bs=1m --iodepth=64", ..CASE },
    Case {
        name: "weights",
        small: "--rw=randread --bs=4k --iodepth=64",
        bulk: "--rw=randread --bs=4k --iodepth=64",
        weights: (100, 300),
        bulk_limit: "iops-total=3000",
        ..CASE
    },
    Case {
        name: "idle",
        small: "--rw=randread --bs=4k --iodepth=64",
        bulk: "--rw=randread --bs=4k --iodepth=32",
        bulk_is_idle: true,
        bulk_limit: "iops-total=400",
        ..CASE
    },
    Case {
        name: "many",
        bulk: "--rw=randread --bs=4k --iodepth=256 --numjobs=7 --thread --group_reporting",
        bulk_limit: "iops-total=3400",
        ..CASE
    },
];

const LEGEND: &str = "\
late     milliseconds of a first read that comes while 64 reads of 1 MiB are queued
pauses   p99 in milliseconds of reads with 20 ms between them, beside 64 writes of 64 KiB; what the
         writer keeps of its bytes
large    what is kept of IOPS alone beside 64 reads of 1 MiB; what these keep of their bytes
weights  the first's part of the IOPS at weights 1:3, depth 64 each: 25 % is meant
idle     IOPS of a bulk client of priority idle beside a busy one
many     what is kept of IOPS alone beside 7 readers of depth 256";

/// A client's results.
#[derive(Debug, Clone, Copy, Default)]
struct Got {
    iops: f64,
    bytes_per_s: f64,
    p99_ms: f64,
    max_ms: f64,
}

/// The clients' options that all runs have.
fn options(seconds: u64, job: &str) -> Vec<String> {
    let fixed = "--norandommap --randrepeat=0 --size=64m --time_based --name=c --output-format=terse \
                 --terse-version=3 --percentile_list=99";
    let words = fixed.split_whitespace().chain(job.split_whitespace()).map(str::to_owned);
    words.chain([format!("--runtime={seconds}")]).collect()
}

/// The small client's options: it comes when the other's figures begin to count.
fn small_options(case: &Case, seconds: u64) -> Vec<String> {
    let mut options = options(seconds, case.small);
    options.push(format!("--startdelay={RAMP_S}"));
    if case.name == "late" {
        options.retain(|option| option != "--time_based" && !option.starts_with("--runtime"));
    }
    options
}

/// The bulk client's.
fn bulk_options(case: &Case, seconds: u64, is_guest: bool) -> Vec<String> {
    let mut options = options(seconds, case.bulk);
    options.push(format!("--ramp_time={RAMP_S}"));
    if case.bulk_is_idle && is_guest {
        options.push("--prioclass=3".into());
    }
    options
}

/// Parses fio's terse report of a job, version 3 of the format.
fn got(report: &str) -> Result<Got, String> {
    // A warning may precede the report.
    let line = report.lines().find(|line| line.starts_with("3;"));
    let fields: Vec<&str> = line.ok_or_else(|| format!("fio said: {report}"))?.split(';').collect();
    let field = |at: usize| fields.get(at).copied().unwrap_or_default();
    if field(4) != "0" {
        return Err(format!("fio's job failed: error {}", field(4)));
    }
    let number = |at: usize| field(at).parse::<f64>().unwrap_or(0.0);
    // Reads, or writes if there were none.
    let first = if number(5) > 0.0 { 5 } else { 46 };
    let p99 = field(first + 12).split_once('=').map_or("", |(_, us)| us);
    Ok(Got {
        iops: number(first + 2),
        bytes_per_s: number(first + 1) * 1024.0,
        p99_ms: p99.parse::<f64>().unwrap_or(0.0) / 1e3,
        max_ms: number(first + 9) / 1e3,
    })
}

/// Where clients run.
enum Contender {
    /// Clients on this machine, over NBD, with a server for each run.
    Here(&'static str),
    /// Clients in a guest, whose disk the daemon serves.
    Guest(Box<Guest>, #[allow(dead_code, reason = "it serves until it is dropped")] Daemon),
}

impl Contender {
    fn new(name: &'static str) -> Result<Contender, String> {
        match name {
            "linux-none" | "mq-deadline" | "kyber" | "bfq" | "iocost" => guest(name),
            _ => Ok(Contender::Here(name)),
        }
    }

    /// Runs one client, or both; the small one's figures, then the bulk one's.
    fn run(&mut self, case: &Case, seconds: u64, who: [bool; 2]) -> Result<[Got; 2], String> {
        match self {
            Contender::Here(name) => run_here(name, case, seconds, who),
            Contender::Guest(guest, _) => run_in_guest(guest, case, seconds, who),
        }
    }
}

fn export(volume: &str, name: &str) -> String {
    format!("[[export]]\nvolume = \"{volume}\"\nname = \"{name}\"\nnbd = \"unix:s\"\n")
}

/// millrace with the drive, and a group for each client.
fn daemon(scheduler: &str, case: &Case) -> Daemon {
    let target = if scheduler == "latency" { "latency-target = \"p99 20ms\"\n" } else { "" };
    let idle = if case.bulk_is_idle { "priority = \"idle\"\n" } else { "" };
    let group = |name: &str, weight: u32, more: &str| {
        let export = export("v", name);
        format!(
            "[[group]]\nname = \"{name}\"\nweight = {weight}\n{more}{export}group = \"{name}\"\n"
        )
    };
    let config = [
        &format!("[[drive]]\nname = \"d\"\nspec = \"{DRIVE}\"\n"),
        &format!("[[volume]]\nname = \"v\"\ndrives = [\"d\"]\nscheduler = \"{scheduler}\"\n"),
        &group("small", case.weights.0, target),
        &group("bulk", case.weights.1, idle),
    ];
    Daemon::start(&config.map(String::as_str).concat(), &["s"])
}

/// qemu-storage-daemon over the drive that a daemon serves, with a throttle group for each client.
struct Throttled {
    child: Child,
    _drive: Daemon,
    socket: String,
}

impl Throttled {
    fn start(case: &Case) -> Result<Throttled, String> {
        let drive = daemon("none", case);
        let dir = drive.dir().to_owned();
        let socket = dir.join("q").display().to_string();
        let from = dir.join("s").display().to_string();
        let mut command = Command::new("qemu-storage-daemon");
        command.current_dir(&dir).stdin(Stdio::null()).stdout(Stdio::null());
        command.args([
            "--blockdev",
            &format!("driver=nbd,node-name=d,server.type=unix,server.path={from},export=small"),
        ]);
        for (name, limit) in [("small", ""), ("bulk", case.bulk_limit)] {
            let limit = match limit.split_once('=') {
                Some((key, value)) => format!(",x-{key}={value}"),
                None => String::new(),
            };
            command.args(["--object", &format!("throttle-group,id=g{name}{limit}")]);
            command.args([
                "--blockdev",
                &format!("driver=throttle,node-name={name},throttle-group=g{name},file=d"),
            ]);
        }
        command.args(["--nbd-server", &format!("addr.type=unix,addr.path={socket}")]);
        for name in ["small", "bulk"] {
            command.args([
                "--export",
                &format!("type=nbd,id=e{name},node-name={name},name={name},writable=on"),
            ]);
        }
        let child = command.spawn().map_err(|e| format!("qemu-storage-daemon: {e}"))?;
        let throttled = Throttled { child, _drive: drive, socket: socket.clone() };
        let there = poll_within(PATIENCE, || {
            std::os::unix::net::UnixStream::connect(Path::new(&socket)).ok()
        });
        there.ok_or("qemu-storage-daemon does not listen")?;
        // QEMU reads holes without the drive.
        let mut fill = Command::new("fio");
        fill.args(["--name=fill", "--rw=write", "--bs=1m", "--iodepth=8", "--size=64m"]);
        fill.args(["--ioengine=nbd", &format!("--uri=nbd+unix:///small?socket={from}")]);
        millrace_tests::run(fill.current_dir(&dir));
        Ok(throttled)
    }
}

impl Drop for Throttled {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run_here(name: &str, case: &Case, seconds: u64, who: [bool; 2]) -> Result<[Got; 2], String> {
    let (daemon, throttled) = match name {
        "qemu-throttle" => (None, Some(Throttled::start(case)?)),
        _ => (Some(daemon(name, case)), None),
    };
    let socket = match (&daemon, &throttled) {
        (_, Some(throttled)) => throttled.socket.clone(),
        (Some(daemon), None) => daemon.dir().join("s").display().to_string(),
        (None, None) => return Err("nobody serves".into()),
    };
    let fio = |export: &str, options: Vec<String>| {
        let mut fio = Command::new("fio");
        fio.args(options).arg("--ioengine=nbd");
        fio.arg(format!("--uri=nbd+unix:///{export}?socket={socket}"));
        fio.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        fio.spawn().map_err(|error| format!("fio: {error}"))
    };
    let small = who[0].then(|| fio("small", small_options(case, seconds))).transpose()?;
    let bulk = who[1].then(|| fio("bulk", bulk_options(case, seconds, false))).transpose()?;
    let end = |child: Option<Child>| -> Result<Got, String> {
        let Some(child) = child else { return Ok(Got::default()) };
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        got(&String::from_utf8_lossy(&output.stdout))
    };
    Ok([end(small)?, end(bulk)?])
}

/// A guest whose disk is the drive, with this scheduler and a control group for each client.
fn guest(scheduler: &'static str) -> Result<Contender, String> {
    let image = Image::build().ok_or("no guest can be started here")?;
    let config = format!(
        "[[drive]]\nname = \"d\"\nspec = \"{DRIVE}\"\n[[volume]]\nname = \"v\"\ndrives = [\"d\"]\n\
         [[export]]\nvolume = \"v\"\nvhost-user-blk = \"unix:vm\"\nqueues = 2\n"
    );
    let daemon = Daemon::start(&config, &["vm"]);
    let mut guest = Guest::boot(&image, &daemon.dir().join("vm"));
    let elevator = match scheduler {
        "linux-none" | "iocost" => "none",
        other => other,
    };
    let cgroups = "mkdir -p /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && \
                   cd /sys/fs/cgroup && echo +io > cgroup.subtree_control && mkdir small bulk";
    guest.succeed(cgroups);
    guest.succeed(&format!("echo {elevator} > /sys/block/vda/queue/scheduler"));
    if scheduler == "iocost" {
        // The drive's performance model, for iocost.
        let model = "ctrl=user model=linear rbps=16700000 rseqiops=4000 rrandiops=4000 \
                     wbps=16700000 wseqiops=4000 wrandiops=4000";
        let qos = "enable=1 ctrl=user rpct=95 rlat=20000 wpct=95 wlat=20000 min=50 max=100";
        guest.succeed(&format!(
            "cd /sys/fs/cgroup && D=$(cat /sys/block/vda/dev) && echo $D {model} > io.cost.model && \
             echo $D {qos} > io.cost.qos"
        ));
    }
    Ok(Contender::Guest(Box::new(guest), daemon))
}

fn run_in_guest(
    guest: &mut Guest,
    case: &Case,
    seconds: u64,
    who: [bool; 2],
) -> Result<[Got; 2], String> {
    for (name, weight) in [("small", case.weights.0), ("bulk", case.weights.1)] {
        // The scheduler decides which of the two files exists.
        guest.succeed(&format!(
            "cd /sys/fs/cgroup/{name}; for f in io.weight io.bfq.weight; do \
             test ! -e $f || echo {weight} > $f; done"
        ));
    }
    let both =
        [("small", small_options(case, seconds)), ("bulk", bulk_options(case, seconds, true))];
    let mut results = [Got::default(); 2];
    let begin = both.iter().zip(who).filter(|(_, is_in)| *is_in);
    for ((name, options), _) in begin.clone() {
        let options = options.join(" ");
        guest.start(name, &format!(
            "echo $(exec sh -c 'echo $PPID') > /sys/fs/cgroup/{name}/cgroup.procs; exec fio {options} \
             --ioengine=libaio --direct=1 --filename=/dev/vda --allow_file_create=0"
        ));
    }
    for (number, (name, _)) in both.iter().enumerate().filter(|(number, _)| who[*number]) {
        let limit = PATIENCE + Duration::from_secs(4 * seconds);
        results[number] = got(&guest.finish(name, limit))?;
    }
    Ok(results)
}

/// A contender's figures, as they stand in the table.
fn row(name: &'static str, seconds: u64) -> Result<Vec<(String, String)>, String> {
    let mut contender = Contender::new(name)?;
    let alone = |contender: &mut Contender, case: &Case, who: [bool; 2]| {
        let case = Case { bulk_limit: "", ..*case };
        contender.run(&case, seconds, who)
    };
    let percent = |part: f64, of: f64| format!("{:.0} %", 100.0 * part / of.max(1e-9));
    let large = CASES.iter().find(|case| case.name == "large").ok_or("no case")?;
    let small_alone = alone(&mut contender, large, [true, false])?[0];
    let mut cells = vec![("alone".to_owned(), format!("{:.0}", small_alone.iops))];
    for case in &CASES {
        let bulk_alone = match case.name {
            "pauses" | "large" => alone(&mut contender, case, [false, true])?[1],
            _ => Got::default(),
        };
        let [small, bulk] = contender.run(case, seconds, [true, true])?;
        let kept = percent(bulk.bytes_per_s, bulk_alone.bytes_per_s);
        let cell = match case.name {
            "late" => format!("{:.0} ms", small.max_ms),
            "pauses" => format!("{:.0} ms, {kept}", small.p99_ms),
            "large" => format!("{}, {kept}", percent(small.iops, small_alone.iops)),
            "weights" => percent(small.iops, small.iops + bulk.iops),
            "idle" => format!("{:.0}", bulk.iops),
            _ => percent(small.iops, small_alone.iops),
        };
        cells.push((case.name.to_owned(), cell));
        eprint!(".");
    }
    eprintln!(" {name}");
    Ok(cells)
}

/// Prints the tables of the simulated drives. The exit status only tells whether all checks hold.
fn simulated() -> Result<(), String> {
    let mut lab = Command::new(MILLRACE_LAB.path());
    lab.args(["paper", "schedulers:late,pauses,beside,storms"]);
    let status = lab.status().map_err(|error| format!("millrace-lab: {error}"))?;
    match status.code() {
        Some(0 | 1) => Ok(()),
        _ => Err(format!("millrace-lab paper ended with {status}")),
    }
}

/// The table's lines, with their head.
fn lines(rows: &[(&str, Vec<(String, String)>)]) -> Vec<Vec<String>> {
    let names = rows.first().map(|(_, cells)| cells.iter().map(|(name, _)| name.clone()));
    let head = std::iter::once("contender".to_owned()).chain(names.into_iter().flatten());
    let mut lines = vec![head.collect::<Vec<_>>()];
    lines.extend(rows.iter().map(|(name, cells)| {
        let cells = cells.iter().map(|(_, cell)| cell.clone());
        std::iter::once((*name).to_owned()).chain(cells).collect()
    }));
    lines
}

fn run(words: &[String]) -> Result<(), String> {
    let (mut chosen, mut seconds, mut is_json) = (CONTENDERS.to_vec(), 5, false);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word}: no value"));
        match word.as_str() {
            "--json" => is_json = true,
            "--seconds" => {
                let text = value()?;
                let number = text.parse().ok().filter(|number| (1..=600).contains(number));
                seconds = number.ok_or_else(|| format!("--seconds {text}: give 1 to 600"))?;
            }
            "--contenders" => {
                let find = |name: &str| {
                    let found = CONTENDERS.iter().find(|known| **known == name).copied();
                    found.ok_or_else(|| format!("{name}: there are {}", CONTENDERS.join(", ")))
                };
                chosen = value()?.split(',').map(find).collect::<Result<_, _>>()?;
            }
            _ => return Err(format!("{word}: unknown\n{USAGE}")),
        }
    }
    for needed in ["fio", "qemu-storage-daemon"] {
        client(needed).ok_or_else(|| format!("{needed} is not installed"))?;
    }
    if chosen.contains(&"simulated") && !is_json {
        simulated()?;
    }
    chosen.retain(|name| *name != "simulated");
    let mut rows = Vec::new();
    for name in chosen {
        rows.push((name, row(name, seconds).map_err(|error| format!("{name}: {error}"))?));
    }
    let object = |(name, cells): &(&str, Vec<(String, String)>)| {
        let cells = cells.iter().map(|(case, cell)| (case.clone(), json!(cell)));
        let mut all: serde_json::Map<String, Value> = cells.collect();
        all.insert("contender".into(), json!(name));
        Value::Object(all)
    };
    let text = match is_json {
        true => format!("{}\n", Value::Array(rows.iter().map(object).collect())),
        false => format!("{}\n{LEGEND}\n", table(&lines(&rows))),
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    comparison::start("schedulers", USAGE, run)
}
